// SPDX-License-Identifier: Apache-2.0
// The compute team: parked threads that run the tasks of jobs, jobs in the order of submission, tasks in
// ascending order. What a task computes must not depend on which thread runs it.
#ifndef WORKER_TEAM_H
#define WORKER_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "worker/memory/place.h"

struct worker_team; // opaque

struct worker_job {         // owned by the submitter, untouched until done has run
    uint32_t tasks;         // >= 1
    uint64_t scratch_bytes; // per thread, aligned to 64
    void (*run)(void *arg, uint32_t task, void *scratch); // team threads
    // On the loop thread, exactly once. complete is false: cancelled, or no memory for scratch.
    void (*done)(void *arg, bool complete);
    void *arg;
    // the team's own
    struct worker_job *next;
    struct common_mail mail;  // its end
    _Atomic uint64_t claimed; // beyond `tasks`, too
    uint32_t finished;
    bool listed, stopped;
};

// place, kept: where thread i runs; NULL: anywhere.
enum common_code worker_team_new(struct common_loop *loop, uint32_t threads, const struct worker_place *place,
                                 struct worker_team **out, struct common_error *err);
uint32_t worker_team_threads(const struct worker_team *team);
const struct worker_place *worker_team_place(const struct worker_team *team); // NULL: anywhere
void worker_team_submit(struct worker_team *team, struct worker_job *job);
// No task begins any more; done still comes. Loop thread, before done.
void worker_team_cancel(struct worker_team *team, struct worker_job *job);
// Runs a job on the team and waits for it; done is not called. Before the loop runs (measurements).
bool worker_team_run(struct worker_team *team, struct worker_job *job);
// Every job is done. Joins the threads. NULL is allowed.
void worker_team_free(struct worker_team *team);

#endif
