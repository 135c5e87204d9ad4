// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

struct member {
    struct attention_team *team;
    uint32_t index;
    pthread_t id;
};

struct attention_team {
    uint32_t threads;
    cpu_set_t before; // of who made the team
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    uint64_t measurements; // under the mutex
    bool stop;             // under the mutex
    attention_work *work;  // written before go, read after it
    void *arg;
    _Alignas(64) atomic_uint here;        // threads that spin for `go`
    _Alignas(64) atomic_uint_fast64_t go; // the measurement that has started
    _Alignas(64) atomic_uint ended;
    struct member members[];
};

uint32_t attention_team_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    uint32_t n = (uint32_t)CPU_COUNT(&set);
    return n < 1 ? 1 : n > ATTENTION_TEAM_MOST ? ATTENTION_TEAM_MOST : n;
}

// The n-th CPU of a set, as a set.
static cpu_set_t nth_cpu(const cpu_set_t *set, uint32_t n)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, set) && n-- == 0) {
            CPU_SET(cpu, &one);
            break;
        }
    }
    return one;
}

static void relax(uint32_t turn)
{
    if (turn % 4096 == 4095)
        sched_yield(); // someone else may need this CPU to get us on
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void *serve(void *arg)
{
    struct member *member = arg;
    struct attention_team *team = member->team;
    uint64_t done = 0;
    for (;;) {
        pthread_mutex_lock(&team->mutex);
        while (team->measurements == done && !team->stop)
            pthread_cond_wait(&team->wake, &team->mutex);
        bool stop = team->measurements == done;
        pthread_mutex_unlock(&team->mutex);
        if (stop)
            return NULL;
        done++;
        atomic_fetch_add(&team->here, 1);
        for (uint32_t turn = 0; atomic_load_explicit(&team->go, memory_order_acquire) != done; turn++)
            relax(turn);
        team->work(team->arg, member->index);
        atomic_fetch_add_explicit(&team->ended, 1, memory_order_release);
    }
}

struct attention_team *attention_team_new(uint32_t threads)
{
    size_t bytes = (sizeof(struct attention_team) + threads * sizeof(struct member) + 63) / 64 * 64;
    struct attention_team *team = aligned_alloc(64, bytes);
    if (!team) {
        fprintf(stderr, "attention: no memory for threads\n");
        return NULL;
    }
    memset(team, 0, bytes);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->wake, NULL);
    team->threads = 1;
    cpu_set_t one;
    sched_getaffinity(0, sizeof team->before, &team->before);
    for (uint32_t i = 1; i < threads; i++, team->threads++) {
        team->members[i] = (struct member){.team = team, .index = i};
        int code = pthread_create(&team->members[i].id, NULL, serve, &team->members[i]);
        if (code) {
            fprintf(stderr, "attention: cannot start %u threads (%s): try fewer (--threads)\n", threads,
                    strerror(code));
            attention_team_free(team);
            return NULL;
        }
        one = nth_cpu(&team->before, i);
        pthread_setaffinity_np(team->members[i].id, sizeof one, &one);
    }
    one = nth_cpu(&team->before, 0);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return team;
}

uint32_t attention_team_threads(const struct attention_team *team)
{
    return team->threads;
}

uint64_t attention_team_run(struct attention_team *team, attention_work *work, void *arg)
{
    uint32_t others = team->threads - 1;
    team->work = work;
    team->arg = arg;
    atomic_store(&team->here, 0);
    atomic_store(&team->ended, 0);
    pthread_mutex_lock(&team->mutex);
    uint64_t measurement = ++team->measurements;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
    for (uint32_t turn = 0; atomic_load(&team->here) < others; turn++)
        relax(turn);
    uint64_t start = common_clock_ns();
    atomic_store_explicit(&team->go, measurement, memory_order_release);
    work(arg, 0);
    for (uint32_t turn = 0; atomic_load_explicit(&team->ended, memory_order_acquire) < others; turn++)
        relax(turn);
    return common_clock_ns() - start;
}

void attention_team_free(struct attention_team *team)
{
    if (!team)
        return;
    pthread_mutex_lock(&team->mutex);
    team->stop = true;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
    for (uint32_t i = 1; i < team->threads; i++)
        pthread_join(team->members[i].id, NULL);
    pthread_setaffinity_np(pthread_self(), sizeof team->before, &team->before);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}
