// SPDX-License-Identifier: Apache-2.0
#include "common/blob.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/block.h"

// The address sanitizer knows malloc's blocks alone.
#ifdef __SANITIZE_ADDRESS__
#define BLOCK_FROM SIZE_MAX
#else
#define BLOCK_FROM COMMON_BLOCK_MIN
#endif

#define SMALL 2048 // bytes

// Header and data are one allocation; the header takes one aligned line, the data start behind it.
_Static_assert(sizeof(struct common_blob) <= COMMON_BLOB_ALIGN, "the blob's header fits in one line");

struct common_blob *common_blob_new(size_t len)
{
    if (len > PTRDIFF_MAX - 2 * COMMON_BLOB_ALIGN)
        return NULL;
    size_t cap = common_align64(len), block = 0;
    uint8_t *mem = cap < BLOCK_FROM ? aligned_alloc(COMMON_BLOB_ALIGN, COMMON_BLOB_ALIGN + cap)
                                    : common_block_take(COMMON_BLOB_ALIGN + cap, &block);
    if (!mem)
        return NULL;
    struct common_blob *blob = (struct common_blob *)(void *)mem;
    *blob = (struct common_blob){
        .data = mem + COMMON_BLOB_ALIGN, .len = len, .cap = cap, .block = block, .refs = 1};
    return blob;
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
    if (blob->block) {
        common_block_give(blob, blob->block);
    } else {
        if (blob->cap <= SMALL) // larger ones malloc wipes (common/memory.h)
            explicit_bzero(blob->data, blob->cap);
        free(blob);
    }
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
