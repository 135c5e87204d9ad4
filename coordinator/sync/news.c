// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/news.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"

#define STORE_AGAIN_NS (2 * COMMON_NS_PER_S)

// All that it has lost, and which process of its name it is. What a new process lacks comes out in two steps: chunks are absent
// when it is asked, and rows are when it is told which are durable. So the store has the process only once all of it is known,
// with all of it: a later life either knows what is lost or finds it out again from a process that is new to it.
void coordinator_news_store(struct coordinator_sessions *sessions, const struct coordinator_worker *w,
                            uint64_t instance, coordinator_store_fn done, void *arg)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    if (instance) // else it may be there with what it has joined (session/table.h)
        coordinator_batch_worker(batch, w->name, instance);
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        const struct coordinator_session *s = sessions->slots[i];
        for (uint32_t k = 0; s && k < s->layout.n; k++) {
            const struct coordinator_chunk *chunk = &s->layout.chunks[k];
            uint32_t copy = coordinator_chunk_copy_at(chunk, w);
            if (copy < COORDINATOR_COPIES_MAX && chunk->lost)
                coordinator_batch_chunk_lost(batch, s->id, chunk->index, chunk->id);
            else if (copy < COORDINATOR_COPIES_MAX && (chunk->gone & 1u << copy))
                coordinator_batch_copy_lost(batch, s->id, chunk->index, chunk->id, w->name);
        }
    }
    coordinator_store_submit(sessions->store, batch, done, arg);
}

void coordinator_news_answered(struct coordinator_worker *w, enum common_code code)
{
    COMMON_FAILPOINT("news_stored");
    w->store_again_ns = code == COMMON_OK ? 0 : common_clock_after(STORE_AGAIN_NS);
}

struct process_news {
    struct coordinator_worker *w;
    uint64_t instance;
};

static void process_stored(void *arg, enum common_code code, const char *text)
{
    struct process_news news = *(struct process_news *)arg;
    free(arg);
    (void)text;
    news.w->visitors--;
    if (code == COMMON_OK)
        news.w->stored_instance = news.instance;
    coordinator_news_answered(news.w, code);
}

static void store_process(struct coordinator_sessions *sessions, struct coordinator_worker *w)
{
    struct process_news *news = coordinator_alloc(sizeof(*news));
    *news = (struct process_news){.w = w, .instance = w->instance};
    w->visitors++; // its record stays
    coordinator_news_store(sessions, w, w->instance, process_stored, news);
}

void coordinator_news_store_process(struct coordinator_sessions *sessions, struct coordinator_worker *w)
{
    if (w->instance != w->stored_instance)
        store_process(sessions, w);
}

void coordinator_news_tick(struct coordinator_sessions *sessions, uint64_t now_ns)
{
    for (uint32_t i = 0; i < sessions->cluster->n_workers; i++) {
        struct coordinator_worker *w = sessions->cluster->workers[i];
        if (!w || !w->store_again_ns || w->store_again_ns > now_ns || w->state != COORDINATOR_WORKER_ACTIVE)
            continue;
        w->store_again_ns = 0;
        coordinator_news_store_process(sessions, w);
    }
}
