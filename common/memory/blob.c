// SPDX-License-Identifier: Apache-2.0
#include "common/memory/blob.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory/block.h"

#define SMALL 512 // bytes: malloc's, whose own lists are as good, and zeroed at once

// Header and data are one allocation; the header takes one aligned line, the data start behind it.
_Static_assert(sizeof(struct common_blob) <= COMMON_BLOB_ALIGN, "the blob's header fits in one line");
_Static_assert(COMMON_BLOCK_ALIGN % COMMON_BLOB_ALIGN == 0, "a block is aligned as a blob");

struct common_blob *common_blob_new_of(size_t len, uint64_t owner)
{
    if (len > PTRDIFF_MAX - 2 * COMMON_BLOB_ALIGN)
        return NULL;
    size_t cap = common_align64(len);
    uint8_t *mem = cap <= SMALL ? aligned_alloc(COMMON_BLOB_ALIGN, COMMON_BLOB_ALIGN + cap)
                                : common_block_take(COMMON_BLOB_ALIGN + cap, owner);
    if (!mem)
        return NULL;
    struct common_blob *blob = (struct common_blob *)(void *)mem;
    *blob = (struct common_blob){.data = mem + COMMON_BLOB_ALIGN, .len = len, .cap = cap, .refs = 1};
    return blob;
}

struct common_blob *common_blob_new(size_t len)
{
    return common_blob_new_of(len, COMMON_BLOCK_DAEMONS);
}

struct common_blob *common_blob_ref(struct common_blob *blob)
{
    if (blob) {
        unsigned before = __atomic_fetch_add(&blob->refs, 1, __ATOMIC_RELAXED);
        assert(before > 0);
        (void)before;
    }
    return blob;
}

void common_blob_unref(struct common_blob *blob)
{
    if (!blob)
        return;
    unsigned before = __atomic_fetch_sub(&blob->refs, 1, __ATOMIC_ACQ_REL);
    assert(before > 0);
    if (before > 1)
        return;
    if (blob->cap > SMALL) {
        common_block_give(blob);
        return;
    }
    explicit_bzero(blob->data, blob->cap);
    free(blob);
}

bool common_size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool common_size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}
