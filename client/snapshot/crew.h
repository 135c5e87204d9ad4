// SPDX-License-Identifier: Apache-2.0
// Work on many files, a few at a time: threads, and progress on the caller's own, which may end it early.
#ifndef CLIENT_SNAPSHOT_CREW_H
#define CLIENT_SNAPSHOT_CREW_H

#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"

#define SNAPSHOT_THREADS_MAX 16

struct snapshot_crew {
    size_t first, n; // pieces [first, n)
    // Does one; on any thread. *bytes: how many it was about.
    banyan_code (*run)(void *arg, size_t nth, uint64_t *bytes, banyan_error *error);
    void *arg;
    banyan_progress progress; // NULL: none
    void *progress_arg;
    uint64_t total_bytes, done_bytes; // the latter: so far, and in earlier calls
};

// Does the pieces, on `threads` threads (1 .. SNAPSHOT_THREADS_MAX), about in order, until one fails or
// `progress` ends it: CANCELLED. Returns the first failure, when no piece is being worked on any longer. May
// be called again for further pieces. Blocks.
banyan_code snapshot_crew_run(struct snapshot_crew *crew, uint32_t threads, banyan_error *error);

#endif
