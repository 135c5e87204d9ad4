// SPDX-License-Identifier: Apache-2.0
#include "worker/processors/team.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/memory/blob.h"

struct worker_team {
    struct common_loop *loop;
    pthread_mutex_t mutex; // guards everything below and the team's part of jobs
    pthread_cond_t work, idle;
    struct worker_job *head, **tail; // jobs that may have unclaimed tasks; claiming is atomic
    bool stop;
    const struct worker_place *place;
    uint32_t n_bound; // threads that have begun
    uint32_t n_threads;
    pthread_t threads[];
};

static void job_report(void *arg)
{
    struct worker_job *job = arg;
    job->done(job->arg, !job->stopped);
}

// Under the mutex: takes a job out of the list, all of whose tasks are claimed.
static void job_unlist(struct worker_team *team, struct worker_job *job)
{
    for (struct worker_job **at = &team->head; job->listed && *at; at = &(*at)->next) {
        if (*at != job)
            continue;
        *at = job->next;
        if (!job->next)
            team->tail = at;
        job->listed = false;
        return;
    }
}

// Under the mutex: `n` tasks ended. The job may be gone afterwards.
static void job_finish(struct worker_team *team, struct worker_job *job, uint32_t n)
{
    job->finished += n;
    if (n == 0 || job->finished < job->tasks)
        return;
    job_unlist(team, job);
    if (job->done)
        common_loop_mail(team->loop, &job->mail, job_report, job);
    else
        pthread_cond_broadcast(&team->idle);
}

// Under the mutex.
static void stop_job(struct worker_team *team, struct worker_job *job)
{
    uint64_t claimed = atomic_exchange(&job->claimed, job->tasks);
    job->stopped = true;
    if (claimed < job->tasks)
        job_finish(team, job, job->tasks - (uint32_t)claimed);
}

// Runs tasks of a job while there are any. Returns how many: the job lives until they are reported as
// finished.
static uint32_t run_tasks(struct worker_job *job, uint64_t task, void *scratch)
{
    uint32_t n = 0;
    for (; task < job->tasks; task = atomic_fetch_add_explicit(&job->claimed, 1, memory_order_relaxed), n++)
        job->run(job->arg, (uint32_t)task, scratch);
    return n;
}

static void *team_serve(void *arg)
{
    struct worker_team *team = arg;
    void *scratch = NULL;
    uint64_t scratch_bytes = 0;
    pthread_mutex_lock(&team->mutex);
    uint32_t self = team->n_bound++;
    pthread_mutex_unlock(&team->mutex);
    if (team->place)
        worker_place_bind_compute(team->place, self);
    pthread_mutex_lock(&team->mutex);
    for (;;) {
        struct worker_job *job = team->head;
        if (!job && team->stop)
            break;
        if (!job) {
            pthread_cond_wait(&team->work, &team->mutex);
            continue;
        }
        uint64_t task = atomic_fetch_add(&job->claimed, 1);
        if (task + 1 >= job->tasks)
            job_unlist(team, job);
        if (task >= job->tasks)
            continue;
        pthread_mutex_unlock(&team->mutex);
        if (job->scratch_bytes > scratch_bytes) {
            free(scratch);
            scratch_bytes = common_align64(job->scratch_bytes);
            scratch = aligned_alloc(COMMON_BLOB_ALIGN, scratch_bytes);
            if (!scratch)
                scratch_bytes = 0;
        }
        bool able = scratch || job->scratch_bytes == 0;
        uint32_t n = able ? run_tasks(job, task, scratch) : 1;
        pthread_mutex_lock(&team->mutex);
        if (!able)
            stop_job(team, job);
        job_finish(team, job, n);
    }
    pthread_mutex_unlock(&team->mutex);
    free(scratch);
    return NULL;
}

enum common_code worker_team_new(struct common_loop *loop, uint32_t threads, const struct worker_place *place,
                                 struct worker_team **out, struct common_error *err)
{
    struct worker_team *team = calloc(1, sizeof *team + threads * sizeof *team->threads);
    if (!team)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "the system has no memory for a compute team");
    team->loop = loop;
    team->place = place;
    team->tail = &team->head;
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->work, NULL);
    pthread_cond_init(&team->idle, NULL);
    sigset_t all, before; // signals are the loop thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team->n_threads < threads &&
           pthread_create(&team->threads[team->n_threads], NULL, team_serve, team) == 0)
        team->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (uint32_t i = 0; i < team->n_threads; i++)
        pthread_setname_np(team->threads[i], "compute");
    if (team->n_threads < threads) {
        worker_team_free(team);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "cannot start %u compute threads: try fewer (--threads)", threads);
    }
    *out = team;
    return COMMON_OK;
}

uint32_t worker_team_threads(const struct worker_team *team)
{
    return team->n_threads;
}

const struct worker_place *worker_team_place(const struct worker_team *team)
{
    return team->place;
}

static void job_enlist(struct worker_team *team, struct worker_job *job)
{
    assert(job->tasks > 0);
    job->next = NULL;
    atomic_init(&job->claimed, 0);
    job->finished = 0;
    job->listed = true;
    job->stopped = false;
    *team->tail = job;
    team->tail = &job->next;
    if (job->tasks >= team->n_threads)
        pthread_cond_broadcast(&team->work);
    for (uint32_t i = 0; i < job->tasks && job->tasks < team->n_threads; i++) // no more than have work
        pthread_cond_signal(&team->work);
}

void worker_team_submit(struct worker_team *team, struct worker_job *job)
{
    pthread_mutex_lock(&team->mutex);
    job_enlist(team, job);
    pthread_mutex_unlock(&team->mutex);
}

void worker_team_cancel(struct worker_team *team, struct worker_job *job)
{
    pthread_mutex_lock(&team->mutex);
    stop_job(team, job);
    pthread_mutex_unlock(&team->mutex);
}

bool worker_team_run(struct worker_team *team, struct worker_job *job)
{
    assert(!job->done);
    pthread_mutex_lock(&team->mutex);
    job_enlist(team, job);
    while (job->finished < job->tasks)
        pthread_cond_wait(&team->idle, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
    return !job->stopped;
}

void worker_team_free(struct worker_team *team)
{
    if (!team)
        return;
    pthread_mutex_lock(&team->mutex);
    assert(!team->head);
    team->stop = true;
    pthread_cond_broadcast(&team->work);
    pthread_mutex_unlock(&team->mutex);
    for (uint32_t i = 0; i < team->n_threads; i++)
        pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->work);
    pthread_cond_destroy(&team->idle);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}
