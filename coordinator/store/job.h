// SPDX-License-Identifier: Apache-2.0
// Work on the store that is done piece by piece on the store's thread, between batches (private to this
// room).
#ifndef COORDINATOR_STORE_JOB_H
#define COORDINATOR_STORE_JOB_H

#include "common/loop/loop.h"
#include "coordinator/store/sql.h"

struct coordinator_store_job {
    // The store's thread, outside of any transaction; some milliseconds at most. closing: the store waits for
    // the end, and closes its file. True: over; always, when closing.
    bool (*slice)(struct coordinator_store_job *job, struct coordinator_sql *sql, bool closing);
    common_loop_fn done; // the loop thread, with the job: after the last slice, exactly once
    struct common_mail mail;
};

// From the loop thread. False: another job is under way, or the store is being stopped; nothing is called.
bool coordinator_store_run(struct coordinator_store *store, struct coordinator_store_job *job);

const char *coordinator_store_path(const struct coordinator_store *store);
// Any thread, between open and stop. Whether the files beside this path are this store's (hold.h).
bool coordinator_store_named(const struct coordinator_store *store);

#endif
