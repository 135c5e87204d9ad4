// SPDX-License-Identifier: Apache-2.0
// proto/sp_reader.c: nng's wire. Input: u8 how much of each message is kept, u8 how it is cut, then the
// bytes. Whichever way they are cut into pieces, the same messages come.
#include <string.h>
#include <xxhash.h>

#include "proto/sp_reader.h"
#include "tests/fuzz/fuzz.h"

struct seen {
    uint64_t messages, hash, kept;
    bool broken;
};

static void note(struct seen *seen, const void *data, size_t len)
{
    seen->hash = XXH3_64bits_withSeed(data, len, seen->hash);
}

static size_t keep_of(const struct proto_sp_reader *reader, uint8_t how)
{
    size_t most = how & 0x80 ? 4096 : how; // as an owner that has limits
    return reader->len < most ? (size_t)reader->len : most;
}

// Takes one piece; false: the reader is broken.
static bool take(struct proto_sp_reader *reader, const uint8_t *at, size_t n, uint8_t how, bool direct,
                 struct seen *seen)
{
    for (;;) {
        uint8_t *to;
        size_t room = direct ? proto_sp_room(reader, &to) : 0;
        if (room > 0 && n > 0) { // as sp_link.c reads into a blob
            size_t step = room < n ? room : n;
            memcpy(to, at, step);
            proto_sp_filled(reader, step);
            at += step;
            n -= step;
        }
        switch (proto_sp_take(reader, &at, &n)) {
        case PROTO_SP_MORE:
            if (n > 0)
                continue;
            return true;
        case PROTO_SP_ASK:
            FUZZ_CHECK(reader->have <= PROTO_SP_START_MAX && reader->have <= reader->len);
            note(seen, reader->small, reader->have);
            FUZZ_CHECK(proto_sp_keep(reader, keep_of(reader, how)));
            break;
        case PROTO_SP_MESSAGE:
            FUZZ_CHECK(reader->trace_len >= 4 && reader->trace_len <= sizeof reader->trace);
            note(seen, reader->trace, reader->trace_len);
            if (reader->blob)
                note(seen, reader->blob->data, reader->blob->len);
            seen->messages++;
            seen->kept += reader->blob ? reader->blob->len : 0;
            proto_sp_next(reader);
            break;
        case PROTO_SP_FAILED:
            FUZZ_CHECK(reader->why);
            seen->broken = true;
            return false;
        }
    }
}

static struct seen read_all(const uint8_t *at, size_t n, uint8_t how, uint8_t cut)
{
    struct proto_sp_reader reader;
    struct seen seen = {0};
    uint32_t draw = cut;
    proto_sp_reader_init(&reader);
    while (n > 0) {
        draw = draw * 1664525u + 1013904223u;
        size_t piece = cut == 0 ? n : 1 + (draw >> 24) % (1 + cut % 32);
        if (piece > n)
            piece = n;
        if (!take(&reader, at, piece, how, cut & 1, &seen))
            break;
        at += piece;
        n -= piece;
    }
    proto_sp_reader_fini(&reader);
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t how = fuzz_u8(&in), cut = fuzz_u8(&in);
    struct seen whole = read_all(in.at, in.left, how, 0), cuts = read_all(in.at, in.left, how, cut | 1);
    FUZZ_CHECK(whole.kept <= 4096 * (whole.messages + 1));
    FUZZ_CHECK(whole.messages == cuts.messages && whole.hash == cuts.hash && whole.broken == cuts.broken);
    return 0;
}
