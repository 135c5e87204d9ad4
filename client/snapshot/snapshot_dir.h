// SPDX-License-Identifier: Apache-2.0
// A snapshot's folder: written whole or not at all, read with nothing taken for granted. Blocks.
//
//   snapshot_dir_make ──▶ DIR.XXXXXX (a temporary folder) ──write…──▶ snapshot_dir_finish: it is named DIR
//                                    └── snapshot_dir_discard: it is gone, with all in it
//
// Each file is on the disk (fsync) before the folder gets its name. A program that is killed in between
// leaves the temporary folder, which nothing takes for a snapshot.
//
// Errors: INTERNAL with the system's reason when the disk refuses; NOT_FOUND: a file or the folder is not
// there; ALREADY_EXISTS: DIR is there; INVALID_ARGUMENT: what is there is not what it should be;
// RESOURCE_EXHAUSTED: no memory. All name the file.
#ifndef CLIENT_SNAPSHOT_DIR_H
#define CLIENT_SNAPSHOT_DIR_H

#include <stddef.h>
#include <stdint.h>

#include "client/snapshot/snapshot.h"
#include "common/base/status.h"

struct snapshot_dir;

#define SNAPSHOT_STATES "states" // the folder with the session's states, a snapshot itself

enum common_code snapshot_dir_make(const char *path, struct snapshot_dir **out, struct common_error *err);
// Compressed with zstd (level 3, with a checksum of its own) where the snapshot is. *stored: bytes of the
// file.
enum common_code snapshot_dir_write(struct snapshot_dir *dir, const char *name, const void *data, size_t len,
                                    bool zstd, uint64_t *stored, struct common_error *err);
// Where a snapshot of the session's states goes (SNAPSHOT_STATES), while the folder is made. Free it; NULL:
// no memory.
char *snapshot_dir_states(const struct snapshot_dir *dir);
// Frees dir, whatever the outcome; what was written is gone when it fails.
enum common_code snapshot_dir_finish(struct snapshot_dir *dir, struct common_error *err);
void snapshot_dir_discard(struct snapshot_dir *dir); // frees it; NULL is allowed

enum common_code snapshot_dir_open(const char *path, struct snapshot_dir **out, struct common_error *err);
// manifest.json, read.
enum common_code snapshot_dir_manifest(struct snapshot_dir *dir, struct snapshot *out,
                                       struct common_error *err);
// Whether each file is there, a regular file of its size. Nothing of it is read.
enum common_code snapshot_dir_look(struct snapshot_dir *dir, const struct snapshot *snapshot,
                                   struct common_error *err);

struct snapshot_rows {              // of one file
    const void *k, *v;              // [tokens][kv_heads][dim]; v NULL: it lies in K
    const float *k_scale, *v_scale; // NULL: a type without
    void *memory;                   // to be freed
};
// Reads a file of a snapshot that snapshot_check has accepted, and compares it with its sum and with the
// shape. Takes memory for the file, and for its compressed form while it reads; a compressed file never
// becomes more than the manifest says.
enum common_code snapshot_dir_read(struct snapshot_dir *dir, const struct snapshot *snapshot,
                                   const struct snapshot_shape *shape, const struct snapshot_file *file,
                                   struct snapshot_rows *out, struct common_error *err);
void snapshot_dir_close(struct snapshot_dir *dir); // NULL is allowed

#endif
