// SPDX-License-Identifier: Apache-2.0
// What coordinators up to version 0.1 with --standby have left beside a store: PATH-lease, in which one said
// that the store was its own, and PATH-taking, PATH-taking-wal, the copy that a takeover began with. Nothing
// reads them any more; PATH and PATH-wal have everything that was acknowledged, wherever such a takeover
// ended.
//
// Such a process may still run: it has PATH-lease open from its start to its end, stopped or not. It could
// write to PATH-wal, or remove it. So the store is not opened while another process has PATH-lease open; and
// once it is open here, the lock on PATH-lease, which that version took before it opened or took a store, is
// ours.
#ifndef COORDINATOR_LEFTOVER_H
#define COORDINATOR_LEFTOVER_H

#include "common/base/status.h"

// With the hold of the store. Logs the files that are there. fd: to be closed when the store is closed; -1:
// there is no PATH-lease. FAILED_PRECONDITION: a coordinator of that version still runs on the store.
enum common_code coordinator_leftover_look(const char *path, int *fd, struct common_error *err);

// The store is open: what PATH-lease says counts no more, for that version neither. fd may be -1.
void coordinator_leftover_void(int fd);

#endif
