// SPDX-License-Identifier: Apache-2.0
#include "worker/core/pace.h"

#include <assert.h>
#include <string.h>

#include "common/base/clock.h"

#define LEAST_BEST 0.25

void worker_pace_init(struct worker_pace *pace, uint64_t bandwidth)
{
    memset(pace, 0, sizeof *pace);
    pace->bandwidth = bandwidth;
    pace->least_ns = WORKER_PACE_LEAST_NS;
    pace->probe_ns = WORKER_PACE_PROBE_NS;
}

static double planned(const struct worker_pace *pace, double work)
{
    return work * (double)COMMON_NS_PER_S / (double)pace->bandwidth;
}

bool worker_pace_begin(struct worker_pace *pace, double work, uint64_t kind, bool clean, uint64_t now_ns)
{
    if (pace->bandwidth == 0 || planned(pace, work) < (double)pace->least_ns)
        return false;
    if (pace->computing++ == 0) {
        pace->since_ns = now_ns;
        pace->kind = kind;
        pace->work = 0;
        pace->unclean = pace->mixed = false;
    }
    pace->mixed = pace->mixed || kind != pace->kind || kind == 0;
    pace->unclean = pace->unclean || !clean;
    pace->work += work;
    return true;
}

// What is expected of this kind; *known: it has been seen before. Learns what it has reached now.
static double expected_of(struct worker_pace *pace, uint64_t kind, double reached, bool *known)
{
    uint32_t i = 0;
    while (i < WORKER_PACE_KINDS && (pace->kinds[i].best <= 0 || pace->kinds[i].kind != kind))
        i++;
    *known = i < WORKER_PACE_KINDS;
    if (!*known) {
        i = pace->next_kind++ % WORKER_PACE_KINDS;
        pace->kinds[i].kind = kind;
        pace->kinds[i].best = LEAST_BEST;
    }
    reached = reached < 1 ? reached : 1;
    if (reached > pace->kinds[i].best)
        pace->kinds[i].best = reached;
    return pace->kinds[i].best;
}

void worker_pace_end(struct worker_pace *pace, bool clean, uint64_t now_ns)
{
    assert(pace->computing > 0);
    pace->unclean = pace->unclean || !clean;
    if (--pace->computing > 0 || pace->unclean || pace->mixed)
        return;
    uint64_t taken = now_ns > pace->since_ns ? now_ns - pace->since_ns : 1;
    bool known;
    double ns = planned(pace, pace->work), best = expected_of(pace, pace->kind, ns / (double)taken, &known);
    if (!known)
        return;
    pace->planned_ns += (uint64_t)(ns / best);
    pace->taken_ns += taken;
}

void worker_pace_probed(struct worker_pace *pace, uint64_t planned_ns, uint64_t taken_ns)
{
    pace->planned_ns += planned_ns;
    pace->taken_ns += taken_ns;
}
