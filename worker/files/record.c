// SPDX-License-Identifier: Apache-2.0
#include "worker/files/record.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"

#define MAGIC  UINT32_C(0x6b4e4142) // "BANk"
#define SECTOR 512u

struct header {
    uint32_t magic, type;
    uint64_t owner, at, bytes, sum;
};

_Static_assert(sizeof(struct header) == 40, "as record.h says");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

uint64_t worker_record_bytes(const struct iovec *payload, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += payload[i].iov_len;
    return sizeof(struct header) + worker_padded(bytes);
}

int worker_record_write(struct worker_files *files, struct worker_log *log, uint32_t type,
                        const struct iovec *payload, int n, bool *broken)
{
    static const uint8_t zeros[8];
    struct iovec pieces[WORKER_RECORD_PIECES + 2];
    struct header header = {.magic = MAGIC, .type = type, .owner = log->owner, .at = log->end};
    int count = 0;
    assert(n <= WORKER_RECORD_PIECES);
    pieces[count++] = (struct iovec){&header, sizeof header};
    for (int i = 0; i < n; i++) {
        header.bytes += payload[i].iov_len;
        pieces[count++] = payload[i];
    }
    if (header.bytes % 8)
        pieces[count++] =
            (struct iovec){(void *)(uintptr_t)zeros, worker_padded(header.bytes) - header.bytes};
    header.sum = common_xxh3_gather(pieces, (size_t)count);
    int result = files->ops->write(files, log->name, log->end, pieces, count);
    if (result == 0)
        log->end += sizeof header + worker_padded(header.bytes);
    else if (files->ops->cut(files, log->name, log->end) != 0)
        *broken = true;
    return result;
}

static bool record_at(const uint8_t *log, uint64_t len, uint64_t owner, uint64_t at,
                      struct worker_record *out)
{
    struct header header;
    if (at > len || len - at < sizeof header)
        return false;
    memcpy(&header, log + at, sizeof header);
    if (header.magic != MAGIC || header.owner != owner || header.at != at ||
        header.bytes > len - at - sizeof header || worker_padded(header.bytes) > len - at - sizeof header)
        return false;
    struct header bare = header;
    bare.sum = 0;
    const struct iovec pieces[] = {
        {&bare, sizeof bare},
        {(void *)(uintptr_t)(log + at + sizeof header), worker_padded(header.bytes)},
    };
    if (common_xxh3_gather(pieces, 2) != header.sum)
        return false;
    *out = (struct worker_record){header.type, header.bytes, log + at + sizeof header};
    return true;
}

bool worker_record_next(const uint8_t *log, uint64_t len, uint64_t owner, uint64_t *at,
                        struct worker_record *out)
{
    if (!record_at(log, len, owner, *at, out))
        return false;
    *at += sizeof(struct header) + worker_padded(out->bytes);
    return true;
}

static bool has_zero_sector(const uint8_t *log, uint64_t from, uint64_t to)
{
    static const uint8_t zeros[SECTOR];
    for (uint64_t at = (from + SECTOR - 1) / SECTOR * SECTOR; at + SECTOR <= to; at += SECTOR)
        if (memcmp(log + at, zeros, SECTOR) == 0)
            return true;
    return false;
}

bool worker_record_damaged(const uint8_t *log, uint64_t len, uint64_t owner, uint64_t at)
{
    struct worker_record record;
    for (uint64_t next = at + 8; next < len; next += 8)
        if (record_at(log, len, owner, next, &record))
            return !has_zero_sector(log, at, next);
    return false;
}

int worker_file_read(struct worker_files *files, const char *name, uint8_t **out, uint64_t *len)
{
    int64_t size = files->ops->size(files, name);
    if (size < 0)
        return (int)size;
    uint8_t *bytes = malloc((size_t)size + 1);
    if (!bytes)
        return -ENOMEM;
    int64_t n = files->ops->read(files, name, 0, bytes, (size_t)size);
    if (n < 0) {
        free(bytes);
        return (int)n;
    }
    *out = bytes;
    *len = (uint64_t)n;
    return 0;
}
