// SPDX-License-Identifier: Apache-2.0
#include "examples/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    pthread_t *threads;
    unsigned n_threads, running;
    unsigned long long round;
    bool stop;
    unsigned next, n; // of the current loop; guarded by lock
    void (*fn)(void *arg, unsigned i);
    void *arg;
};

// Takes indices until none is left. The lock is held on entry and on return.
static void drain(struct pool *pool)
{
    while (pool->next < pool->n) {
        unsigned i = pool->next++;
        pthread_mutex_unlock(&pool->lock);
        pool->fn(pool->arg, i);
        pthread_mutex_lock(&pool->lock);
    }
}

static void *work(void *arg)
{
    struct pool *pool = arg;
    unsigned long long seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->stop)
            pthread_cond_wait(&pool->start, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->round;
        pool->running++;
        drain(pool);
        if (--pool->running == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

struct pool *pool_new(unsigned threads)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->threads = threads > 1 ? calloc(threads - 1, sizeof(*pool->threads)) : NULL;
    while (pool->threads && pool->n_threads + 1 < threads &&
           pthread_create(&pool->threads[pool->n_threads], NULL, work, pool) == 0)
        pool->n_threads++;
    return pool;
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}

void pool_run(struct pool *pool, unsigned n, void (*fn)(void *arg, unsigned i), void *arg)
{
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->next = 0;
    pool->n = n;
    pool->round++;
    if (n > 1)
        pthread_cond_broadcast(&pool->start);
    drain(pool);
    while (pool->running)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
