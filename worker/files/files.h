// SPDX-License-Identifier: Apache-2.0
// The file system as a worker's store sees it: one directory with the folders sessions/, chunks/ and quarantine/.
// Names are relative to it. Every function blocks. All return 0 or more, or a negative errno; `write` and `sync`
// that fail may have been carried out in part.
//
// A handle belongs to one thread; two handles of one directory may be used at the same time by two threads.
#ifndef WORKER_DISK_FILES_H
#define WORKER_DISK_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/status.h"

struct worker_files; // a handle; a test's own kind begins with this

// False ends the listing. The name is relative to the folder.
typedef bool (*worker_files_fn)(void *arg, const char *name);

struct worker_files_ops {
    // All bytes at this offset; makes the file (mode 0600) where it is not.
    int (*write)(struct worker_files *files, const char *name, uint64_t at, const struct iovec *pieces,
                 int n);
    // How many bytes were there, `len` at most.
    int64_t (*read)(struct worker_files *files, const char *name, uint64_t at, void *out, size_t len);
    int64_t (*size)(struct worker_files *files, const char *name);
    int (*cut)(struct worker_files *files, const char *name, uint64_t len); // to this length
    int (*sync)(struct worker_files *files, const char *name);          // its bytes outlive a loss of power
    int (*sync_folder)(struct worker_files *files, const char *folder); // likewise its names
    int (*move)(struct worker_files *files, const char *from, const char *to); // replaces `to`
    int (*remove)(struct worker_files *files, const char *name);
    int (*list)(struct worker_files *files, const char *folder, worker_files_fn each, void *arg);
    // These bytes will be read soon: the system may begin. NULL: it has no use for that.
    void (*ahead)(struct worker_files *files, const char *name, uint64_t at, uint64_t len);
    struct worker_files *(*again)(struct worker_files *files); // another handle; NULL: no memory
    void (*close)(struct worker_files *files);
};

struct worker_files {
    const struct worker_files_ops *ops;
};

// Opens the directory, makes it and its folders where they are not (mode 0700), and locks it for this process.
// Blocks for up to 3 s while another process has it, which may be ending. PERMISSION_DENIED: others may read
// it, or it is another user's; FAILED_PRECONDITION: another process has it; UNAVAILABLE, with what the system
// says.
enum common_code worker_files_open(const char *path, struct worker_files **out, struct common_error *err);

#endif
