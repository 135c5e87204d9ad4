// SPDX-License-Identifier: Apache-2.0
// A store that another process has locked, and does not run, becomes ours: its file and its log are copied, the copy takes
// the file's name, the log goes. The other process keeps its lock on, and its descriptors of, files that have no name any
// more: what it writes, nobody reads.
//
//   PATH, PATH-wal ──copied until two readings agree──▶ PATH-taking, PATH-taking-wal
//                                                            │ SQLite puts the log into the file, and does nothing else
//                                                            ▼
//                       PATH ◀──rename── PATH-taking         then PATH-wal is removed
//
// It may end anywhere and be done again. Between the rename and the removal the old log lies beside the new file: its
// pages are in that file as they are, so that a copy of both is the same again. OWNER says TAKING (lease.h) from before
// the first reading until after the removal, so nobody opens the store in between.
#ifndef COORDINATOR_TAKEOVER_H
#define COORDINATOR_TAKEOVER_H

#include "common/status.h"

// Blocks. With the starters' lock, and OWNER saying TAKING. UNAVAILABLE: the file system; INVALID_ARGUMENT: what was there
// is no store, or damaged.
enum common_code coordinator_takeover(const char *path, struct common_error *err);

#endif
