// SPDX-License-Identifier: Apache-2.0
// worker/disk/thread.h without a thread: a job is done when it is submitted, and the loop hears of it at its next look.
// What comes to the loop between the two comes between the job and its effect.
#include "worker/disk/thread.h"

#include <stdlib.h>

struct worker_disk_thread {
    atomic_bool stop;
};

enum common_code worker_disk_thread_new(struct worker_disk_thread **out)
{
    *out = calloc(1, sizeof(**out));
    return *out ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED;
}

void worker_disk_thread_submit(struct worker_disk_thread *thread, struct worker_disk_job *job)
{
    job->run(job->arg, &thread->stop);
    atomic_store(&job->done, true);
}

void worker_disk_thread_free(struct worker_disk_thread *thread)
{
    free(thread);
}
