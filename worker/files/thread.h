// SPDX-License-Identifier: Apache-2.0
// A thread for file work. The loop looks now and then whether a job without a waiter is done: nothing is
// posted to it, so that neither has to outlive the other. For a job with `ended` it is notified by its
// mailbox; the job lives until then, and so does the thread's owner.
#ifndef WORKER_DISK_THREAD_H
#define WORKER_DISK_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/base/status.h"
#include "common/loop/loop.h"

struct worker_disk_thread; // opaque

struct worker_disk_job {
    void (*run)(void *arg, const atomic_bool *stop); // on the thread; ends soon after *stop
    void *arg;
    atomic_bool done;
    struct common_loop *loop; // that is notified of its end; NULL: none
    common_loop_fn ended;     // there, with arg
    struct common_mail mail;
    struct worker_disk_job *next; // the thread's
};

// RESOURCE_EXHAUSTED: no memory, or no thread.
enum common_code worker_disk_thread_new(struct worker_disk_thread **out);
// Jobs are run in order. The job lives until it is done.
void worker_disk_thread_submit(struct worker_disk_thread *thread, struct worker_disk_job *job);
// Jobs that have not begun are not run; waits for the one that has. No loop is notified of an end from here
// on. NULL is allowed.
void worker_disk_thread_free(struct worker_disk_thread *thread);

#endif
