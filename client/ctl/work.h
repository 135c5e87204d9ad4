// SPDX-License-Identifier: Apache-2.0
// Work on many files, a few at a time: threads, progress on a terminal, and an early end when the user asks
// for it.
#ifndef CLIENT_CTL_WORK_H
#define CLIENT_CTL_WORK_H

#include "client/ctl/ctl.h"
#include "common/base/status.h"

struct ctl_problem { // why a piece of work failed
    enum ctl_exit exit;
    bool of_cluster; // `cluster` says it, else `text` does
    banyan_error cluster;
    char text[512];
};

// Fills it in, and return what it has as exit code.
enum ctl_exit ctl_problem_file(struct ctl_problem *problem, const struct common_error *err);
enum ctl_exit ctl_problem_cluster(struct ctl_problem *problem, const banyan_error *error);
// Reports it on stderr.
enum ctl_exit ctl_problem_tell(const struct ctl_problem *problem);

struct ctl_work {
    const char *what;     // it is doing, for the progress line
    bool quiet;           // no progress line (it is on stderr, and only there if that is a terminal)
    uint64_t total_bytes; // of all work
    size_t first, n;      // pieces [first, n)
    // Does one; on any thread. *bytes: how many it was about.
    enum ctl_exit (*run)(void *arg, size_t nth, uint64_t *bytes, struct ctl_problem *problem);
    void *arg;
    uint64_t done_bytes, took_ns; // results
};

// Does them, on `threads` threads (1 .. 16), about in order, until one fails or the user ends it. Returns the
// first failure, with *problem filled in. May be called again for further pieces: *work goes on counting.
enum ctl_exit ctl_work_run(struct ctl_work *work, uint32_t threads, struct ctl_problem *problem);

// From here on SIGINT and SIGTERM end work between two pieces, and not the program.
void ctl_work_guard(void);
bool ctl_work_ended(void); // one of them came

#endif
