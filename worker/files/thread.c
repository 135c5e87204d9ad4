// SPDX-License-Identifier: Apache-2.0
#include "worker/files/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct worker_disk_thread {
    pthread_t thread;
    pthread_mutex_t mutex; // guards the list
    pthread_cond_t work;
    struct worker_disk_job *head, **tail;
    atomic_bool stop;
};

static struct worker_disk_job *take(struct worker_disk_thread *t)
{
    pthread_mutex_lock(&t->mutex);
    while (!t->head && !atomic_load(&t->stop))
        pthread_cond_wait(&t->work, &t->mutex);
    struct worker_disk_job *job = atomic_load(&t->stop) ? NULL : t->head;
    if (job) {
        t->head = job->next;
        t->tail = t->head ? t->tail : &t->head;
    }
    pthread_mutex_unlock(&t->mutex);
    return job;
}

static void *work(void *arg)
{
    struct worker_disk_thread *t = arg;
    struct worker_disk_job *job;
    while ((job = take(t))) {
        struct common_loop *loop = job->loop;
        job->run(job->arg, &t->stop);
        atomic_store(&job->done, true); // without a loop it may be gone from here on
        if (loop && !atomic_load(&t->stop))
            common_loop_mail(loop, &job->mail, job->ended, job->arg);
    }
    return NULL;
}

enum common_code worker_disk_thread_new(struct worker_disk_thread **out)
{
    struct worker_disk_thread *t = calloc(1, sizeof *t);
    sigset_t all, before;
    if (!t)
        return COMMON_RESOURCE_EXHAUSTED;
    t->tail = &t->head;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    sigfillset(&all); // signals are the loop's
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&t->thread, NULL, work, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_cond_destroy(&t->work);
        pthread_mutex_destroy(&t->mutex);
        free(t);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *out = t;
    return COMMON_OK;
}

void worker_disk_thread_submit(struct worker_disk_thread *t, struct worker_disk_job *job)
{
    atomic_store(&job->done, false);
    job->next = NULL;
    pthread_mutex_lock(&t->mutex);
    *t->tail = job;
    t->tail = &job->next;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
}

void worker_disk_thread_free(struct worker_disk_thread *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->mutex);
    atomic_store(&t->stop, true);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    free(t);
}
