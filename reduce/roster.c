// SPDX-License-Identifier: Apache-2.0
#include "reduce/roster.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool text_ends(const char text[REDUCE_NAME_BYTES])
{
    return memchr(text, 0, REDUCE_NAME_BYTES) != NULL;
}

static enum common_code check_member(const struct reduce_member *m, uint32_t i, struct common_error *err)
{
    if (!text_ends(m->name) || !text_ends(m->host) || !text_ends(m->kernel) || m->name[0] == 0)
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "member %u: the name is empty, or a name, host or kernel is longer than %d bytes", i,
            REDUCE_NAME_BYTES - 1);
    if (m->bandwidth == 0 || m->cores == 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "member %u: bandwidth and cores must be above zero", i);
    return COMMON_OK;
}

static int by_name(const void *a, const void *b, void *arg)
{
    const struct reduce_member *members = arg;
    return strcmp(members[*(const uint32_t *)a].name, members[*(const uint32_t *)b].name);
}

static int by_host_then_name(const void *a, const void *b, void *arg)
{
    const struct reduce_member *members = arg;
    int order = strcmp(members[*(const uint32_t *)a].host, members[*(const uint32_t *)b].host);
    return order ? order : by_name(a, b, arg);
}

struct host {
    const char *name;
    uint64_t bandwidth;   // sum, saturating
    uint32_t first, size; // in the order by host and name
    uint32_t cores;
};

static int by_bandwidth_then_name(const void *a, const void *b)
{
    const struct host *x = a, *y = b;
    if (x->bandwidth != y->bandwidth)
        return x->bandwidth > y->bandwidth ? -1 : 1;
    return strcmp(x->name, y->name);
}

// Cuts sorted members into hosts; returns how many.
static uint32_t gather_hosts(const struct reduce_member *members, const uint32_t *sorted, uint32_t n,
                             struct host *hosts)
{
    uint32_t n_hosts = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct reduce_member *m = &members[sorted[i]];
        if (n_hosts == 0 || strcmp(hosts[n_hosts - 1].name, m->host) != 0)
            hosts[n_hosts++] = (struct host){.name = m->host, .first = i};
        struct host *host = &hosts[n_hosts - 1];
        host->size++;
        if (__builtin_add_overflow(host->bandwidth, m->bandwidth, &host->bandwidth))
            host->bandwidth = UINT64_MAX;
        if (host->cores < m->cores)
            host->cores = m->cores;
    }
    return n_hosts;
}

static void number_ranks(struct reduce_roster *roster, const struct host *hosts, const uint32_t *sorted)
{
    uint32_t rank = 0;
    for (uint32_t h = 0; h < roster->n_hosts; h++) {
        roster->sizes[h] = hosts[h].size;
        roster->cores[h] = hosts[h].cores;
        for (uint32_t i = 0; i < hosts[h].size; i++, rank++) {
            roster->order[rank] = sorted[hosts[h].first + i];
            roster->hosts[rank] = h;
        }
    }
}

enum common_code reduce_roster_init(struct reduce_roster *roster, const struct reduce_member *members,
                                    uint32_t n, struct common_error *err)
{
    if (n == 0 || n > REDUCE_PLAN_MEMBERS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a plan has 1 to %d members, not %u",
                                REDUCE_PLAN_MEMBERS_MAX, n);
    for (uint32_t i = 0; i < n; i++) {
        enum common_code code = check_member(&members[i], i, err);
        if (code != COMMON_OK)
            return code;
    }

    enum common_code code = COMMON_OK;
    struct reduce_roster r = {.n = n};
    uint32_t *sorted = calloc(n, sizeof *sorted);
    struct host *hosts = calloc(n, sizeof *hosts);
    r.order = calloc(n, sizeof *r.order);
    r.hosts = calloc(n, sizeof *r.hosts);
    r.sizes = calloc(n, sizeof *r.sizes);
    r.cores = calloc(n, sizeof *r.cores);
    if (!sorted || !hosts || !r.order || !r.hosts || !r.sizes || !r.cores) {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a plan of %u members", n);
        goto out;
    }
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = i;
    qsort_r(sorted, n, sizeof *sorted, by_name, (void *)members);
    for (uint32_t i = 1; i < n; i++) {
        if (strcmp(members[sorted[i - 1]].name, members[sorted[i]].name) == 0) {
            code = common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "members %u and %u have the same name: names are unique", sorted[i - 1],
                                    sorted[i]);
            goto out;
        }
    }
    qsort_r(sorted, n, sizeof *sorted, by_host_then_name, (void *)members);
    r.n_hosts = gather_hosts(members, sorted, n, hosts);
    qsort(hosts, r.n_hosts, sizeof *hosts, by_bandwidth_then_name);
    number_ranks(&r, hosts, sorted);
    *roster = r;

out:
    free(sorted);
    free(hosts);
    if (code != COMMON_OK)
        reduce_roster_fini(&r);
    return code;
}

void reduce_roster_fini(struct reduce_roster *roster)
{
    free(roster->order);
    free(roster->hosts);
    free(roster->sizes);
    free(roster->cores);
    *roster = (struct reduce_roster){0};
}
