// SPDX-License-Identifier: Apache-2.0
// worker/files/thread.h without a thread: a job begins at a moment that the seed draws, and between its calls
// of the file system the loops go on (sim_thread_yield). So everything comes before a job, into the midst of
// it, and between it and its effect.
#include "worker/files/thread.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"
#include "tests/sim/sim_worker.h"

struct worker_disk_thread {
    struct sim_event event; // armed: the first job has not begun, or the loop cannot know it
    struct worker_disk_thread *next, **at;
    struct worker_disk_job *head, **tail;
    atomic_bool stop;
};

static struct worker_disk_thread *threads;
static bool at_work; // a job's own stack, on which nothing else runs

enum common_code worker_disk_thread_new(struct worker_disk_thread **out)
{
    struct worker_disk_thread *t = calloc(1, sizeof *t);
    if (!t)
        return COMMON_RESOURCE_EXHAUSTED;
    t->tail = &t->head;
    t->next = threads;
    t->at = &threads;
    if (t->next)
        t->next->at = &t->next;
    threads = t;
    sim_alive++;
    *out = t;
    return COMMON_OK;
}

// Most disks are fast, and now and then one is not.
static uint64_t begins_ns(const struct worker_disk_job *job)
{
    uint64_t draw = sim_random(32);
    if ((job->loop && sim_loop_muted(job->loop)) ||
        draw < 12) // a process that has been killed has no time left
        return sim_clock();
    return sim_clock() + sim_random(draw < 28   ? COMMON_NS_PER_MS
                                    : draw < 31 ? 50 * COMMON_NS_PER_MS
                                                : 2 * COMMON_NS_PER_S);
}

static void work(void *arg);

static void arm(struct worker_disk_thread *t)
{
    sim_event_init(&t->event, SIM_FILES, t->head->loop, NULL, work, t);
    sim_event_arm(&t->event, begins_ns(t->head));
}

static void run(struct worker_disk_thread *t)
{
    struct worker_disk_job *job = t->head; // it stays the first: what is submitted meanwhile comes after it
    struct common_loop *loop = job->loop;
    bool was = at_work;
    at_work = true;
    job->run(job->arg, &t->stop);
    at_work = was;
    t->head = job->next;
    t->tail = t->head ? t->tail : &t->head;
    atomic_store(&job->done, true);
    if (loop && !atomic_load(&t->stop))
        common_loop_mail(loop, &job->mail, job->ended, job->arg);
}

static void work(void *arg)
{
    struct worker_disk_thread *t = arg;
    run(t);
    if (t->head)
        arm(t);
}

void worker_disk_thread_submit(struct worker_disk_thread *t, struct worker_disk_job *job)
{
    bool idle = !t->head;
    atomic_store(&job->done, false);
    job->next = NULL;
    *t->tail = job;
    t->tail = &job->next;
    if (idle)
        arm(t);
}

// Between two calls of a job the loops go on; what they call of the file system themselves is done at once.
void sim_thread_yield(void)
{
    if (!at_work)
        return;
    at_work = false;
    for (uint64_t n = sim_random(2) ? 0 : sim_random(8); n > 0 && sim_step_within(); n--) {
    }
    at_work = true;
}

// A sync takes its time: mostly less than a turn, now and then so long that heartbeats would be missed. One
// that is on a loop's own stack stops that loop, and with it all others: chaos has no such syncs once a
// worker serves.
void sim_thread_sync(void)
{
    uint64_t draw = at_work ? sim_random(16) : 0;
    uint64_t until_ns = sim_clock() + (draw < 14 ? 0 : sim_random(300 * COMMON_NS_PER_MS));
    if (!at_work)
        return;
    at_work = false;
    while (sim_clock() < until_ns && sim_step_within()) {
    }
    at_work = true;
}

void sim_thread_hurry(const struct common_loop *loop)
{
    for (struct worker_disk_thread *t = threads; t; t = t->next)
        if (t->head && t->head->loop == loop && sim_event_armed(&t->event))
            sim_event_arm(&t->event, sim_clock());
}

void worker_disk_thread_free(struct worker_disk_thread *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    if (t->head && sim_random(2)) // it has begun
        run(t);
    sim_event_cancel(&t->event);
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    sim_alive--;
    free(t);
}
