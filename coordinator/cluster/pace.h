// SPDX-License-Identifier: Apache-2.0
// Which workers compute far slower than they were measured at their start. Pure: what heartbeats say comes in
// (worker/core/pace.h), verdicts come out; the clocks are the workers' own.
//
//                  below 1/2 of the others' pace, 2 looks one after the other
//        WELL ──────────────────────────────────────────────────────────────▶ SLOW ─┐ below 1/2 of its
//          ▲                                                                  │  ▲  │ verdict, twice:
//          └── above 3/4 of it, 4 times; or 120 looks without work ───────────┘  └──┘ slower still
//
// Pace: the time that the work of a window should have taken over the time that it took. 1: as measured at
// the start. A process that does not run (its loop is late) has a pace for that, too, the part of the time
// for which it runs, with or without work: what it is stopped for before it begins to compute is no time of
// computing. The lower of both counts. A pace is compared with the others': the lower median of their last
// ones, at most 1. Where most are slow, by load that they have in common, none is slow. A worker with none to
// compare with is not judged; others that have no work are asked to measure, one at a time.
//
// A worker that is slow and gets no work is asked to measure once in 12 looks. One that cannot (a device) gets another
// try after 120.
#ifndef COORDINATOR_PACE_H
#define COORDINATOR_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define COORDINATOR_PACE_LEAST (1.0 / 64) // no worker counts as slower

struct coordinator_pace_report { // sums since the worker's start; zeroed: it does not say
    uint64_t planned_ns, taken_ns, stalled_ns, up_ns;
};

struct coordinator_pace {                // of a worker; zeroed: a new process
    struct coordinator_pace_report last; // newest
    double scale; // planned speed of its reports over the one that plans count with; 0: 1
    bool slow;
    double factor; // slow: its pace, by which it is planned with. Else nothing
    bool probe;    // it must measure; sending it that clears this
    // The judge's own:
    bool begun;
    struct coordinator_pace_report work_from, awake_from; // where the windows began
    bool fresh;                                           // the last look had enough work
    double work, awake;                                   // paces of the last windows; 0: not known
    uint32_t work_age;                                    // looks since then
    uint32_t low, high, silent;                           // looks one after the other; silent: without work
};

// A report has come. A smaller sum is another process's.
void coordinator_pace_hear(struct coordinator_pace *pace, const struct coordinator_pace_report *report);

// Looks at all that are there, once a window (5 s or so). changed[i]: its verdict is another one now.
// turn: rises with each look.
void coordinator_pace_look(struct coordinator_pace *const *paces, uint32_t n, uint64_t window_ns,
                           uint64_t turn, bool *changed);

// Its pace of late: 1 is as measured; 0: not known.
double coordinator_pace_seen(const struct coordinator_pace *pace);

#endif
