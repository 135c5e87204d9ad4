// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/clean.h"

#include <stdlib.h>

#include "common/base/clock.h"

#define CLEAN_BYTES (UINT64_C(2) << 20)
#define CLEAN_NS    (2 * COMMON_NS_PER_MS)

struct worker_clean {
    struct worker_memory *memory;
    struct common_timer *timer;
};

static void clean_tick(void *arg)
{
    struct worker_clean *clean = arg;
    if (worker_memory_clean(clean->memory, CLEAN_BYTES))
        common_timer_start(clean->timer, CLEAN_NS, false);
}

static void clean_begin(void *arg)
{
    struct worker_clean *clean = arg;
    common_timer_start(clean->timer, CLEAN_NS, false);
}

struct worker_clean *worker_clean_new(struct common_loop *loop, struct worker_memory *memory)
{
    struct worker_clean *clean = calloc(1, sizeof *clean);
    if (!clean || common_timer_new(loop, clean_tick, clean, &clean->timer) != COMMON_OK) {
        free(clean);
        return NULL;
    }
    clean->memory = memory;
    worker_memory_on_soiled(memory, clean_begin, clean);
    return clean;
}

void worker_clean_free(struct worker_clean *clean)
{
    if (!clean)
        return;
    worker_memory_on_soiled(clean->memory, NULL, NULL);
    common_timer_free(clean->timer);
    free(clean);
}
