// SPDX-License-Identifier: Apache-2.0
// What an operator does after the script, while a point is armed. An act arms it where it may be reached,
// repeats what has come to nothing, and looks after each try at what is left:
//
//   snapshot  session snapshot, session restore       a folder is whole, or nothing that looks whole is there
//   swap      backup, a store made of it, accept,     what the store lacks is kept by its holders; the old store has
//             the old store again, quarantine drop    all of it again; what is dropped is gone
//   flip      a bit flips in a sealed chunk; scrub    healed from the worker's files, or removed and made again
//   damage    a bit flips in a worker's files         nothing of them is served; other workers' copies are
//   cold      more rows than the workers' memory      leave it, and come back; where the files are damaged meanwhile,
//                                                     from another holder
//   forget    a session with a window is stepped      its floor stays, its memory is given back
//
// Acts run in the process that has the daemons, which restarts any that dies.
#ifndef TESTS_FAILPOINTS_ACT_H
#define TESTS_FAILPOINTS_ACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/failpoints/script.h"
#include "tests/harness/cluster.h"

struct act {
    struct harness_cluster *cluster;
    struct script *script; // connected
    void (*arm)(void);
    bool (*mend)(void); // starts what has ended; false: it does not come back
    bool (*was_hit)(void);
    volatile int *lost; // copies that may have gone
    uint32_t replicas;
    bool stores;          // of workers
    bool heals_fail;      // the point fails: a worker's files do not heal its memory
    bool coordinator_off; // on purpose: it must not be started
    bool impossible;      // after false: the system does not let a test do this
    char wrong[900];      // after false
};

// False: there is no such act.
bool act_find(const char *name, bool (**out)(struct act *act));

// ---- what they share ----

// Runs banyanctl to its end. Its exit code; 137: it was killed, which a point does.
int act_ctl(struct act *act, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same of the coordinator's program: a store is made of a backup.
int act_restore_store(struct act *act, const char *backup, const char *store);
// Whether it is to be tried again after this code: a failure that passes, or the point's own.
bool act_again(const struct act *act, int code);
bool act_wrong(struct act *act, const char *format, ...) __attribute__((format(printf, 2, 3))); // false
// A path in the cluster's folder; it is valid for the next 15 calls.
const char *act_path(const struct act *act, const char *name);
// How many names there begin with this; *first (may be NULL): the path of one.
int act_count(const struct act *act, const char *prefix, const char **first);
bool act_is_there(const char *path);
// Flips a bit in the middle of each file that w0 has of chunks. How many there are.
int act_flip_files(const struct act *act);
bool act_wait_workers(struct act *act); // until all are active
// How long one thing may be tried again and again, from now on; whether that is over.
uint64_t act_until(void);
bool act_out_of_time(uint64_t until_ns);

bool act_snapshot(struct act *act);
bool act_swap(struct act *act);
bool act_flip(struct act *act);
bool act_damage(struct act *act);
bool act_cold(struct act *act);
bool act_forget(struct act *act);

#endif
