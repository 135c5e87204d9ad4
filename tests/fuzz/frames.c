// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/frames.h"

#include <string.h>
#include <xxhash.h>

#include "common/memory/blob.h"
#include "proto/wire/frame.h"

enum { SUM_KEY = 8 << 3 | 1, SUM_BYTES = 9 }; // Header.sum, fixed64

static uint8_t *aligned(size_t len)
{
    void *bytes;
    if (posix_memalign(&bytes, 64, len ? len : 64) != 0)
        abort();
    memset(bytes, 0, len);
    return bytes;
}

uint8_t *fuzz_frame(struct fuzz_input *in, size_t *len)
{
    if (in->left == 0)
        return NULL;
    uint8_t what = fuzz_u8(in);
    size_t header_len = fuzz_u16(in), payload_len = fuzz_u16(in);
    struct proto_prefix prefix = {.version = what & FUZZ_OLD ? 0 : PROTO_VERSION, .kind = what & 3};
    uint32_t said_header = 0;
    uint64_t said_payload = 0;
    if (what & FUZZ_LIES) {
        said_header = fuzz_u32(in);
        said_payload = fuzz_u64(in);
    }
    const uint8_t *header = fuzz_bytes(in, header_len, &header_len),
                  *payload = fuzz_bytes(in, payload_len, &payload_len);
    if (prefix.kind == FUZZ_RAW) {
        uint8_t *raw = aligned(payload_len);
        if (payload_len > 0)
            memcpy(raw, payload, payload_len);
        *len = payload_len;
        return raw;
    }
    prefix.header_len = (uint32_t)header_len;
    prefix.payload_len = payload_len;
    size_t at = proto_frame_payload_at(prefix.header_len);
    *len = at + common_align64(payload_len);
    uint8_t *frame = aligned(*len);
    if (what & FUZZ_LIES) {
        prefix.header_len = said_header;
        prefix.payload_len = said_payload;
    }
    proto_prefix_encode(&prefix, frame);
    if (header_len > 0)
        memcpy(frame + PROTO_PREFIX_BYTES, header, header_len);
    if (payload_len > 0)
        memcpy(frame + at, payload, payload_len);
    size_t summed = PROTO_PREFIX_BYTES + SUM_BYTES;
    if (what & FUZZ_SUM && header_len >= SUM_BYTES && header[0] == SUM_KEY) {
        uint64_t sum = XXH3_64bits(frame + summed, *len - summed);
        memcpy(frame + summed - sizeof sum, &sum, sizeof sum);
    }
    return frame;
}

uint8_t *fuzz_frames(struct fuzz_input *in, size_t *len)
{
    uint8_t *all = NULL, *frame;
    size_t n;
    *len = 0;
    while ((frame = fuzz_frame(in, &n))) {
        all = realloc(all, *len + n + 1);
        if (!all)
            abort();
        memcpy(all + *len, frame, n);
        *len += n;
        free(frame);
    }
    return all;
}
