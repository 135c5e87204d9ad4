// SPDX-License-Identifier: Apache-2.0
// worker/processors/team.h without threads: each task of a job is an event of the worker's loop, so that
// cancellations and everything else come between them.
#include "worker/processors/team.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"
#include "tests/sim/sim_worker.h"

struct worker_team {
    struct sim_event event;
    uint32_t threads;
    const struct worker_place *place;
    struct worker_job *head, **tail;
    void *scratch;
    uint64_t task_ns; // of each task
};

static void *scratch_for(struct worker_team *team, const struct worker_job *job)
{
    free(team->scratch);
    team->scratch = NULL;
    if (job->scratch_bytes && posix_memalign(&team->scratch, 64, job->scratch_bytes) != 0)
        abort();
    return team->scratch;
}

static void work(void *arg)
{
    struct worker_team *team = arg;
    struct worker_job *job = team->head;
    uint32_t task = (uint32_t)atomic_load(&job->claimed);
    if (!job->stopped && task < job->tasks) {
        void *scratch = task == 0 ? scratch_for(team, job) : team->scratch;
        atomic_store(&job->claimed, task + 1);
        job->run(job->arg, task, scratch);
        sim_event_arm(&team->event, sim_clock() + team->task_ns);
        return;
    }
    team->head = job->next;
    if (!team->head)
        team->tail = &team->head;
    else
        sim_event_arm(&team->event, sim_clock());
    job->listed = false;
    job->done(job->arg, !job->stopped);
}

enum common_code worker_team_new(struct common_loop *loop, uint32_t threads, const struct worker_place *place,
                                 struct worker_team **out, struct common_error *err)
{
    struct worker_team *team = calloc(1, sizeof *team);
    if (!team)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a team");
    team->threads = threads;
    team->place = place;
    team->tail = &team->head;
    sim_event_init(&team->event, SIM_TEAM, loop, NULL, work, team);
    sim_alive++;
    *out = team;
    return COMMON_OK;
}

void sim_team_slow(struct worker_team *team, uint64_t task_ns)
{
    team->task_ns = task_ns;
    if (!task_ns && sim_event_armed(&team->event)) // what it is at is done at once
        sim_event_arm(&team->event, sim_clock());
}

uint32_t worker_team_threads(const struct worker_team *team)
{
    return team->threads;
}

const struct worker_place *worker_team_place(const struct worker_team *team)
{
    return team->place;
}

void worker_team_submit(struct worker_team *team, struct worker_job *job)
{
    job->next = NULL;
    job->stopped = false;
    job->listed = true;
    atomic_store(&job->claimed, 0);
    *team->tail = job;
    team->tail = &job->next;
    if (!sim_event_armed(&team->event))
        sim_event_arm(&team->event, sim_clock());
}

void worker_team_cancel(struct worker_team *team, struct worker_job *job)
{
    (void)team;
    job->stopped = true;
}

bool worker_team_run(struct worker_team *team, struct worker_job *job)
{
    void *scratch = scratch_for(team, job);
    for (uint32_t i = 0; i < job->tasks; i++)
        job->run(job->arg, i, scratch);
    return true;
}

void worker_team_free(struct worker_team *team)
{
    if (!team)
        return;
    assert(!team->head);
    sim_event_cancel(&team->event);
    free(team->scratch);
    sim_alive--;
    free(team);
}
