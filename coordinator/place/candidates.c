// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/candidates.h"

#include <string.h>

#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/edges.h"
#include "coordinator/cluster/worker.h"

static uint32_t number_of_host(struct coordinator_worker *const *active, uint32_t nth)
{
    uint32_t i = 0;
    while (strcmp(active[i]->host, active[nth]->host) != 0)
        i++;
    return i;
}

static void part_from(struct coordinator_candidate *candidates, struct coordinator_worker *const *active,
                      uint32_t n, const struct coordinator_worker *member)
{
    for (uint32_t i = 0; i < n && member->cluster->n_edges; i++)
        candidates[i].apart =
            candidates[i].apart ||
            (!candidates[i].member && coordinator_edges_apart(member->cluster, active[i], member));
}

void coordinator_candidates_join(struct coordinator_candidate *candidates,
                                 struct coordinator_worker *const *active, uint32_t n, uint32_t joining)
{
    if (candidates[joining].member)
        return;
    candidates[joining].member = true;
    candidates[joining].apart = false;
    part_from(candidates, active, n, active[joining]);
}

struct coordinator_candidate *coordinator_candidates(const struct coordinator_session *s,
                                                     struct coordinator_worker **active, uint32_t *n)
{
    const struct coordinator_cluster *cluster = s->sessions->cluster;
    uint64_t tokens[COORDINATOR_WORKERS_MAX], follows[COORDINATOR_WORKERS_MAX]; // of this session, by worker
    uint32_t ct = s->layout.chunk_tokens;
    *n = 0;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        struct coordinator_worker *w = cluster->workers[i];
        if (w && coordinator_worker_takes(w))
            active[(*n)++] = w;
    }
    memset(tokens, 0, cluster->n_workers * sizeof(*tokens));
    memset(follows, 0, cluster->n_workers * sizeof(*follows));
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        tokens[coordinator_chunk_serves(chunk)->slot] += ct;
        for (uint32_t k = 1; k < coordinator_chunk_copies(chunk); k++)
            follows[coordinator_chunk_holder(chunk, k)->slot] += ct;
    }
    struct coordinator_candidate *candidates = coordinator_alloc((*n + 1) * sizeof(*candidates));
    for (uint32_t i = 0; i < *n; i++) {
        const struct coordinator_worker *w = active[i];
        candidates[i] = (struct coordinator_candidate){.free_bytes = coordinator_worker_free_bytes(w),
                                                       .open_bytes = w->open_bytes,
                                                       .bandwidth = coordinator_worker_speed(w),
                                                       .load_bytes = w->load_bytes,
                                                       .tokens = tokens[w->slot],
                                                       .member = coordinator_session_has_member(s, w),
                                                       .follows = follows[w->slot],
                                                       .host = number_of_host(active, i)};
    }
    for (uint32_t i = 0; i < s->n_members; i++)
        if (!s->members[i]->draining)
            part_from(candidates, active, *n, s->members[i]);
    return candidates;
}
