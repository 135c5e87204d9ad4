// SPDX-License-Identifier: Apache-2.0
// One coordinator a store: the process that has this hold is the only one that opens, writes or removes files
// of the store.
//
//   take PATH-lock ──▶ open PATH, PATH-wal ──▶ … ──▶ last write, close PATH, PATH-wal ──▶ give PATH-lock back
//
// It begins before the store is opened and ends after it is closed, so a coordinator that is still stopping
// has it: the next one is refused until the last byte is written. The kernel gives it back with the process,
// so a killed coordinator leaves nothing to clean up. PATH-lock itself stays forever: a lock on a file that
// had lost its name would keep no other process out, which is why its name is looked at once the lock is
// there.
//
// In the file stands who holds it, for the one that is refused:
//
//   process 4711 on host a since 2026-11-27 22:54:09 UTC
#ifndef COORDINATOR_HOLD_H
#define COORDINATOR_HOLD_H

#include <stdbool.h>

#include "common/base/status.h"

struct coordinator_hold;

// path: of the store, without links (coordinator_sql_real_path). Does not wait. FAILED_PRECONDITION: another
// process has it, named in err; UNAVAILABLE: the file system; RESOURCE_EXHAUSTED: out of memory.
enum common_code coordinator_hold_take(const char *path, struct coordinator_hold **out,
                                       struct common_error *err);

// Whether PATH-lock still names the file that is locked. If not, it was moved or removed, and another process
// may have the files that have the store's names now.
bool coordinator_hold_named(const struct coordinator_hold *hold);

// Calls close(arg), which closes the store's files, and gives the hold back afterwards. NULL: only calls it.
void coordinator_hold_end(struct coordinator_hold *hold, void (*close)(void *arg), void *arg);

#endif
