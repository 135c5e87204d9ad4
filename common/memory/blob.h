// SPDX-License-Identifier: Apache-2.0
// A reference-counted run of bytes, 64-byte aligned: what a received frame lives in, so that a tensor can be
// used where it was read, by several owners, on any thread. References are atomic; contents are not guarded.
#ifndef COMMON_BLOB_H
#define COMMON_BLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMMON_BLOB_ALIGN 64

struct common_blob {
    uint8_t *data; // 64-byte aligned, owned
    size_t len;    // bytes in use, <= cap
    size_t cap;
    unsigned refs; // atomic; use the functions
};

// One reference, len = len. NULL when memory is short. Contents are not cleared; of a small blob they are
// when it ends, of others when they change hands: `owner`, and why, in common/memory/block.h.
// common_blob_new: COMMON_BLOCK_DAEMONS.
struct common_blob *common_blob_new(size_t len);
struct common_blob *common_blob_new_of(size_t len, uint64_t owner);
struct common_blob *common_blob_ref(struct common_blob *blob); // returns blob; NULL passes through
void common_blob_unref(struct common_blob *blob);              // NULL is allowed

// A piece of memory owned by someone else; a gather list is an array of these.
struct common_slice {
    const void *data;
    size_t len;
};

// Checked size arithmetic: 0 on overflow is ambiguous, so these return false on overflow, true with *out set.
bool common_size_mul(size_t a, size_t b, size_t *out);
bool common_size_add(size_t a, size_t b, size_t *out);

// Rounds up to a multiple of 64. The caller makes sure that it does not wrap.
static inline size_t common_align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

#endif
