// SPDX-License-Identifier: Apache-2.0
// A copy of the store as it is at one moment, made while the store is written, and read piece by piece. It is
// in a file without a name, in the store's folder: it is gone with the process that has it, also after a
// crash.
//
//   new ──▶ COPYING: 64 pages between two batches; what is written meanwhile goes into the copy, too
//              ▼
//           SUMMING ──▶ READY ◀──▶ READING          each of them ──▶ free
//
// Layout of a backup's file (restore.h reads it), little-endian:
//
//   0    16  "BANYAN BACKUP\n\0\0"      48  8  when it was made, ns since 1970
//   16    8  format, 1                  56  8  sessions
//   24    8  bytes of the database      64  8  chunks
//   32    8  its sum                    72  8  term
//   40    8  the life that made it      80     zeros; 120: XXH3 of the bytes before
//   128      the database
//
// So it is no database by itself: SQLite does not open it, and no coordinator starts on it unmarked.
#ifndef COORDINATOR_BACKUP_H
#define COORDINATOR_BACKUP_H

#include "coordinator/store/store.h"

#define COORDINATOR_BACKUP_MAGIC  "BANYAN BACKUP\n\0"
#define COORDINATOR_BACKUP_FORMAT 1
#define COORDINATOR_BACKUP_HEAD   128          // bytes before the database
#define COORDINATOR_BACKUP_PIECE  (256 * 1024) // that is read at a time, and summed at a time

struct coordinator_backup_facts {
    uint64_t bytes,
        sum; // of the database; sum: XXH3 of each COORDINATOR_BACKUP_PIECE, the one before as its seed
    uint64_t term, life, sessions, tokens, chunks, workers;
    uint8_t head[COORDINATOR_BACKUP_HEAD];
};

struct coordinator_backup;

// On the loop thread, never on the caller's stack.
typedef void (*coordinator_backup_fn)(void *arg, enum common_code code, const char *text);

// Begins a copy; done runs when it is there, or has failed. RESOURCE_EXHAUSTED: another is being made, or no
// memory; FAILED_PRECONDITION: the store is not a file.
enum common_code coordinator_backup_new(struct coordinator_store *store, coordinator_backup_fn done,
                                        void *arg, struct coordinator_backup **out, struct common_error *err);
// Once it is there.
const struct coordinator_backup_facts *coordinator_backup_facts(const struct coordinator_backup *backup);
// The piece at `offset`, a multiple of COORDINATOR_BACKUP_PIECE below the bytes: into a buffer of its own,
// valid until the next call (coordinator_backup_piece). False: it is busy, or there is no such piece; done is
// not called.
bool coordinator_backup_read(struct coordinator_backup *backup, uint64_t offset, coordinator_backup_fn done,
                             void *arg);
const void *coordinator_backup_piece(const struct coordinator_backup *backup, size_t *bytes);
// NULL is allowed. What is under way ends with its next slice; its done runs (CANCELLED).
void coordinator_backup_free(struct coordinator_backup *backup);

#endif
