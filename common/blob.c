// SPDX-License-Identifier: Apache-2.0
#include "common/blob.h"

#include <assert.h>
#include <stdlib.h>

// Header and data are one allocation; the header takes one aligned line, the data start behind it.
_Static_assert(sizeof(struct common_blob) <= COMMON_BLOB_ALIGN, "the blob's header fits in one line");

struct common_blob *common_blob_new(size_t len)
{
    if (len > PTRDIFF_MAX - 2 * COMMON_BLOB_ALIGN)
        return NULL;
    size_t cap = common_align64(len);
    uint8_t *mem = aligned_alloc(COMMON_BLOB_ALIGN, COMMON_BLOB_ALIGN + cap);
    if (!mem)
        return NULL;
    struct common_blob *blob = (struct common_blob *)(void *)mem;
    *blob = (struct common_blob){.data = mem + COMMON_BLOB_ALIGN, .len = len, .cap = cap, .refs = 1};
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
    if (before == 1)
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
