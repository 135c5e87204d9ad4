// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

#include "client/lib/core/error.h"
#include "common/base/clock.h"

#define PROGRESS_NS (200 * COMMON_NS_PER_MS)

struct shift {
    struct snapshot_crew *crew;
    pthread_mutex_t lock; // of what follows, and of the crew's count
    pthread_cond_t ended; // a worker has come to its end
    size_t next;
    uint32_t at_work;
    uint64_t reported; // bytes
    banyan_code code;
    banyan_error error;
};

static void shift_fail(struct shift *shift, banyan_code code, const banyan_error *error)
{
    if (shift->code != BANYAN_OK)
        return;
    shift->code = code;
    shift->error = *error;
}

// With the lock. False: nothing is left, or it is over.
static bool work_one(struct shift *shift)
{
    struct snapshot_crew *crew = shift->crew;
    if (shift->code != BANYAN_OK || shift->next >= crew->n)
        return false;
    size_t nth = shift->next++;
    pthread_mutex_unlock(&shift->lock);
    banyan_error error = {0};
    uint64_t bytes = 0;
    banyan_code code = crew->run(crew->arg, nth, &bytes, &error);
    pthread_mutex_lock(&shift->lock);
    if (code != BANYAN_OK)
        shift_fail(shift, code, &error);
    crew->done_bytes += bytes;
    return true;
}

static void *labour(void *arg)
{
    struct shift *shift = arg;
    pthread_mutex_lock(&shift->lock);
    while (work_one(shift))
        continue;
    shift->at_work--;
    pthread_cond_signal(&shift->ended);
    pthread_mutex_unlock(&shift->lock);
    return NULL;
}

// With the lock, which `progress` is called without.
static void report(struct shift *shift)
{
    struct snapshot_crew *crew = shift->crew;
    uint64_t done = crew->done_bytes;
    banyan_error error;
    if (!crew->progress || shift->code != BANYAN_OK)
        return;
    shift->reported = done;
    pthread_mutex_unlock(&shift->lock);
    bool goes_on = crew->progress(crew->progress_arg, done, crew->total_bytes);
    pthread_mutex_lock(&shift->lock);
    client_error_set(&error, BANYAN_CANCELLED, "ended early");
    if (!goes_on)
        shift_fail(shift, BANYAN_CANCELLED, &error);
}

static void wait_some(struct shift *shift)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t at_ns = (uint64_t)until.tv_nsec + PROGRESS_NS;
    until.tv_sec += (time_t)(at_ns / COMMON_NS_PER_S);
    until.tv_nsec = (long)(at_ns % COMMON_NS_PER_S);
    pthread_cond_timedwait(&shift->ended, &shift->lock, &until);
}

// Signals of the process are for its own threads.
static uint32_t start_threads(struct shift *shift, uint32_t threads, pthread_t *out)
{
    sigset_t all, before;
    uint32_t n = 0;
    size_t pieces = shift->crew->n - shift->crew->first;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (n < threads && n < pieces && pthread_create(&out[n], NULL, labour, shift) == 0)
        n++;
    shift->at_work = n; // they wait for the lock
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n;
}

banyan_code snapshot_crew_run(struct snapshot_crew *crew, uint32_t threads, banyan_error *error)
{
    struct shift shift = {.crew = crew, .next = crew->first};
    pthread_t others[SNAPSHOT_THREADS_MAX];
    pthread_condattr_t clock;
    pthread_mutex_init(&shift.lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&shift.ended, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_lock(&shift.lock);
    report(&shift);
    uint32_t n = start_threads(&shift, threads, others);
    if (n == 0) // no thread is to be had: this one does it
        while (work_one(&shift))
            report(&shift);
    while (shift.at_work > 0) {
        wait_some(&shift);
        report(&shift);
    }
    if (shift.reported != crew->done_bytes) // the last ones ended during the last report
        report(&shift);
    pthread_mutex_unlock(&shift.lock);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(others[i], NULL);
    pthread_cond_destroy(&shift.ended);
    pthread_mutex_destroy(&shift.lock);
    if (shift.code != BANYAN_OK && error)
        *error = shift.error;
    return shift.code;
}
