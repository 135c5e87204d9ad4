// SPDX-License-Identifier: Apache-2.0
// A store of a backup (backup.h). It is marked, because workers may hold what is newer:
//
//  - the life that made the backup is none of its history: what that life did after the copy is told apart from what it
//    did before, so that it is kept in quarantine, and not taken for deleted;
//  - its term and generations of session ids are above what may have been given since;
//  - RESTORED: its sessions are not served until an operator says that all workers are back (sync/restored.h). A
//    worker that was away when the session was truncated, or when it was struck off, would say what is long over.
#ifndef COORDINATOR_RESTORE_H
#define COORDINATOR_RESTORE_H

#include "common/base/status.h"

// Makes a store at `path`, where none may be. Blocks. What is there afterwards is whole, or nothing is. ALREADY_EXISTS;
// FAILED_PRECONDITION: a coordinator has the path (hold.h), or the backup is of a newer version; INVALID_ARGUMENT: the file is no backup, or damaged; UNAVAILABLE: the file system.
enum common_code coordinator_restore(const char *backup, const char *path, struct common_error *err);

#endif
