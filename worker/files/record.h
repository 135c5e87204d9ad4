// SPDX-License-Identifier: Apache-2.0
// A log is a file of records, one after the other, little-endian:
//
//     | magic u32 | type u32 | owner u64 | at u64 | bytes u64 | sum u64 | payload, padded to 8 bytes |
//
// owner: the id of the chunk or session; at: where in the file the record begins, so that none counts in another file
// or at another place. sum: XXH3 of header (sum 0), payload and padding.
#ifndef WORKER_DISK_RECORD_H
#define WORKER_DISK_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "worker/files/files.h"

#define WORKER_RECORD_PIECES 8 // of a payload, at most

struct worker_log { // a file of records
    char name[48];
    uint64_t owner, end;
};

// Writes a record behind the last one. Where that fails, the file is cut to its old length; *broken: not even
// that could be done, so that it must be rewritten. 0 or a negative errno; *bytes: what it added.
int worker_record_write(struct worker_files *files, struct worker_log *log, uint32_t type,
                        const struct iovec *payload, int n, bool *broken);
uint64_t worker_record_bytes(const struct iovec *payload, int n); // of the record in the file

struct worker_record {
    uint32_t type;
    uint64_t bytes;
    const uint8_t *payload;
};

// The record at *at, which goes on to the next one. False: none that is good.
bool worker_record_next(const uint8_t *log, uint64_t len, uint64_t owner, uint64_t *at,
                        struct worker_record *out);
// What is bad at `at`, where the good records end, is no torn end: a good record follows somewhere, and what lies
// between has no sector of zeros, as a loss of power leaves where a later part of a file came to the disk before an
// earlier one.
bool worker_record_damaged(const uint8_t *log, uint64_t len, uint64_t owner, uint64_t at);

// The whole file; free it. A negative errno, -ENOMEM among them.
int worker_file_read(struct worker_files *files, const char *name, uint8_t **out, uint64_t *len);

// What lies in a file begins at a multiple of 8.
static inline uint64_t worker_padded(uint64_t bytes)
{
    return (bytes + 7) & ~UINT64_C(7);
}

#endif
