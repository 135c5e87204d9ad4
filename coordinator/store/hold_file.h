// SPDX-License-Identifier: Apache-2.0
// The file PATH-lock beside a store, and the lock on it: what hold.h asks of the system. The simulator has
// another one of these (tests/sim/sim_hold.c).
//
// The lock is flock(2)'s. It belongs to the open file, so the kernel gives it back when the process ends,
// however it ends. It is not fcntl's (POSIX) lock: that one is lost as soon as the process closes any
// descriptor of the file, and SQLite has locks of that kind on the store, which a second opening of the store
// in this process would drop. So the lock has a file of its own, which nothing else opens. The descriptor is
// closed at exec: a program that is started does not inherit it. The coordinator forks no child that goes on
// without exec; such a child would keep the lock.
#ifndef COORDINATOR_HOLD_FILE_H
#define COORDINATOR_HOLD_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct coordinator_hold_file;

// Makes it where it is absent (mode 0600). Nothing ever removes it. Does not lock. UNAVAILABLE: it cannot be
// made or opened; RESOURCE_EXHAUSTED.
enum common_code coordinator_hold_file_open(const char *path, struct coordinator_hold_file **out,
                                            struct common_error *err);
// Does not block. IN_PROGRESS: another process has the lock; UNAVAILABLE: the file system gives none (err
// says so).
enum common_code coordinator_hold_file_lock(struct coordinator_hold_file *file, struct common_error *err);
// Whether the path still names this file: somebody may have moved or removed it.
bool coordinator_hold_file_named(const struct coordinator_hold_file *file);
// What the holder has written; "" where that is nothing, or cannot be read.
void coordinator_hold_file_read(const struct coordinator_hold_file *file, char *text, size_t bytes);
bool coordinator_hold_file_write(struct coordinator_hold_file *file, const char *text);
// The kind of file system where it is one of a network, whose locks are its server's ("NFS", …); NULL
// elsewhere.
const char *coordinator_hold_file_network(const struct coordinator_hold_file *file);
// Gives the lock back. NULL is allowed.
void coordinator_hold_file_close(struct coordinator_hold_file *file);

#endif
