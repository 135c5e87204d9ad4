// SPDX-License-Identifier: Apache-2.0
#include "reduce/nccl/quiet.h"

#include <assert.h>
#include <pthread.h>
#include <time.h>

#include "common/base/clock.h"

#define LOOK_NS (5 * COMMON_NS_PER_MS) // how often who waits looks at its *stop

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned running; // communicators with operations under way
static atomic_uint inside;

static void init(void)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attr);
    pthread_condattr_destroy(&attr);
}

void nccl_quiet_begin(void)
{
    pthread_mutex_lock(&lock);
    running++;
    pthread_mutex_unlock(&lock);
}

void nccl_quiet_end(void)
{
    pthread_once(&once, init);
    pthread_mutex_lock(&lock);
    assert(running > 0);
    if (--running == 0)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

bool nccl_quiet_enter(uint64_t until_ns, const atomic_bool *stop)
{
    pthread_once(&once, init);
    atomic_fetch_add(&inside, 1);
    pthread_mutex_lock(&lock);
    while (running > 0 && common_clock_ns() < until_ns && !(stop && atomic_load(stop))) {
        uint64_t look = common_clock_after(LOOK_NS), at = look < until_ns ? look : until_ns;
        struct timespec t = {(time_t)(at / COMMON_NS_PER_S), (long)(at % COMMON_NS_PER_S)};
        pthread_cond_timedwait(&changed, &lock, &t);
    }
    bool quiet = running == 0;
    pthread_mutex_unlock(&lock);
    return quiet;
}

void nccl_quiet_leave(void)
{
    unsigned before = atomic_fetch_sub(&inside, 1);
    assert(before > 0);
    (void)before;
}

bool nccl_quiet_wanted(void)
{
    return atomic_load(&inside) > 0;
}
