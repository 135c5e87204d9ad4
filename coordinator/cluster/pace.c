// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/pace.h"

#include <stdlib.h>
#include <string.h>

#define LOW_LOOKS    2   // of a pace below half: slow
#define HIGH_LOOKS   4   // above three quarters: well
#define KEPT_LOOKS   12  // so long a pace is known, and a window waits for enough work
#define SILENT_LOOKS 120 // without work: it gets another try
#define LOW          0.5
#define HIGH         0.75
#define PACE_MOST    4.0                // a stretch of work that takes no time
#define ENOUGH_NS    UINT64_C(20000000) // of planned time in a window: what a measurement takes (worker: pace.h)

void coordinator_pace_hear(struct coordinator_pace *pace, const struct coordinator_pace_report *report)
{
    if (report->up_ns < pace->last.up_ns || report->planned_ns < pace->last.planned_ns ||
        report->taken_ns < pace->last.taken_ns || report->stalled_ns < pace->last.stalled_ns)
        pace->begun = false;
    pace->last = *report;
}

double coordinator_pace_seen(const struct coordinator_pace *pace)
{
    if (pace->work > 0 && pace->awake > 0)
        return pace->work < pace->awake ? pace->work : pace->awake;
    return pace->work;
}

static void begin(struct coordinator_pace *pace)
{
    pace->begun = pace->last.up_ns > 0;
    pace->work_from = pace->awake_from = pace->last;
    pace->fresh = false;
    pace->work = pace->awake = 0;
    pace->low = pace->high = 0;
}

static double capped(double pace)
{
    return pace > PACE_MOST ? PACE_MOST : pace < COORDINATOR_PACE_LEAST ? COORDINATOR_PACE_LEAST : pace;
}

static void take_work(struct coordinator_pace *pace, uint64_t window_ns)
{
    const struct coordinator_pace_report *from = &pace->work_from, *to = &pace->last;
    uint64_t enough = window_ns / 100 < ENOUGH_NS ? window_ns / 100 : ENOUGH_NS;
    uint64_t up = to->up_ns - from->up_ns;
    bool busy = to->taken_ns - from->taken_ns >= up / 2; // one that is very slow gets little done
    pace->fresh = up >= window_ns / 2 && (busy || to->planned_ns - from->planned_ns >= enough);
    if (pace->fresh) {
        uint64_t taken = to->taken_ns - from->taken_ns;
        double planned = (double)(to->planned_ns - from->planned_ns) * (pace->scale > 0 ? pace->scale : 1);
        pace->work = capped(planned / (double)(taken ? taken : 1));
        pace->work_age = 0;
    } else if (++pace->work_age > KEPT_LOOKS) {
        pace->work = 0;
    }
    if (pace->fresh || to->up_ns - from->up_ns > KEPT_LOOKS * window_ns)
        pace->work_from = *to;
}

static void take_awake(struct coordinator_pace *pace, uint64_t window_ns)
{
    const struct coordinator_pace_report *from = &pace->awake_from, *to = &pace->last;
    uint64_t up = to->up_ns - from->up_ns;
    pace->awake = 0;
    if (up < window_ns / 2)
        return; // it has hardly said anything since
    pace->awake = capped(1 - (double)(to->stalled_ns - from->stalled_ns) / (double)up);
    pace->awake_from = *to;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct known { // paces of all, ascending
    double *paces;
    uint32_t n;
};

// The lower median of all but one of them, which is `own` where that is known (> 0). 0: there is no other. At most 1.
static double others(const struct known *known, double own)
{
    uint32_t n = known->n - (own > 0), at = n ? (n - 1) / 2 : 0;
    if (!n)
        return 0;
    if (own > 0 && known->paces[at] >= own) // own, or its equal, stands before: those behind it move up
        at++;
    return known->paces[at] < 1 ? known->paces[at] : 1;
}

static void note(struct coordinator_pace *pace, bool low, bool high, bool evidence)
{
    pace->silent = evidence ? 0 : pace->silent + 1;
    if (!evidence && pace->silent < KEPT_LOOKS)
        return;
    pace->low = low ? pace->low + 1 : 0;
    pace->high = high ? pace->high + 1 : 0;
}

// Whether its verdict has changed.
static bool judge(struct coordinator_pace *pace, double work_of_others, double awake_of_others)
{
    double work = pace->fresh && work_of_others > 0 ? pace->work / work_of_others : 0,
           awake = pace->awake > 0 && awake_of_others > 0 ? pace->awake / awake_of_others : 0,
           least = LOW * (pace->slow ? pace->factor : 1);
    double lower = work > 0 && (awake <= 0 || work < awake) ? work : awake;
    bool low = (work > 0 && work < least) || (awake > 0 && awake < least),
         alone =
             pace->slow && pace->fresh && work_of_others <= 0, // as fast as it was measured is well enough
        high = !low && (work > HIGH || (alone && pace->work > HIGH)) && (awake <= 0 || awake > HIGH);
    note(pace, low, high, low || work > 0 || alone);
    if (pace->low >= LOW_LOOKS) {
        pace->low = pace->high = 0;
        pace->factor = lower > COORDINATOR_PACE_LEAST ? lower : COORDINATOR_PACE_LEAST;
        pace->slow = true;
        return true;
    }
    if (!pace->slow || (pace->high < HIGH_LOOKS && pace->silent < SILENT_LOOKS))
        return false;
    pace->slow = false;
    pace->low = pace->high = pace->silent = 0;
    pace->work = 0;
    return true;
}

// One that has no work is asked, so that there is one to compare with.
static void ask_another(struct coordinator_pace *const *paces, uint32_t n, uint64_t turn,
                        const struct coordinator_pace *suspect)
{
    for (uint32_t k = 0; k < n; k++) {
        struct coordinator_pace *pace = paces[(turn + k) % n];
        if (pace == suspect || !pace->begun || pace->work > 0)
            continue;
        pace->probe = true;
        return;
    }
}

void coordinator_pace_look(struct coordinator_pace *const *paces, uint32_t n, uint64_t window_ns,
                           uint64_t turn, bool *changed)
{
    struct known work = {calloc(n + 1, sizeof(double)), 0}, awake = {calloc(n + 1, sizeof(double)), 0};
    memset(changed, 0, n * sizeof(*changed));
    for (uint32_t i = 0; i < n && work.paces && awake.paces; i++) {
        struct coordinator_pace *pace = paces[i];
        if (!pace->begun) {
            begin(pace);
        } else {
            take_work(pace, window_ns);
            take_awake(pace, window_ns);
        }
        if (pace->work > 0)
            work.paces[work.n++] = pace->work;
        if (pace->awake > 0)
            awake.paces[awake.n++] = pace->awake;
    }
    qsort(work.paces, work.n, sizeof(double), by_size);
    qsort(awake.paces, awake.n, sizeof(double), by_size);
    for (uint32_t i = 0; i < n && work.paces && awake.paces; i++) {
        struct coordinator_pace *pace = paces[i];
        double work_of_others = others(&work, pace->work);
        if (pace->begun)
            changed[i] = judge(pace, work_of_others, others(&awake, pace->awake));
        if (pace->slow && pace->silent % KEPT_LOOKS == KEPT_LOOKS - 1)
            pace->probe = true;
        if (pace->fresh && pace->work < LOW && work_of_others <= 0)
            ask_another(paces, n, turn, pace);
    }
    free(work.paces);
    free(awake.paces);
}
