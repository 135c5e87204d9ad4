// SPDX-License-Identifier: Apache-2.0
#include "proto/nng/sp_reader.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

void proto_sp_reader_init(struct proto_sp_reader *reader)
{
    *reader = (struct proto_sp_reader){.state = PROTO_SP_HELLO};
}

void proto_sp_reader_fini(struct proto_sp_reader *reader)
{
    common_blob_unref(reader->blob);
    reader->blob = NULL;
}

void proto_sp_hello(uint16_t protocol, uint8_t out[PROTO_SP_HELLO_BYTES])
{
    const uint8_t hello[PROTO_SP_HELLO_BYTES] = {0, 'S', 'P', 0, (uint8_t)(protocol >> 8), (uint8_t)protocol,
                                                 0, 0};
    memcpy(out, hello, sizeof hello);
}

static void reader_move(struct proto_sp_reader *reader, enum proto_sp_state to)
{
    static const bool allowed[9][9] = {
        [PROTO_SP_HELLO] = {[PROTO_SP_LENGTH] = true, [PROTO_SP_BROKEN] = true},
        [PROTO_SP_LENGTH] = {[PROTO_SP_TRACE] = true, [PROTO_SP_BROKEN] = true},
        [PROTO_SP_TRACE] = {[PROTO_SP_START] = true, [PROTO_SP_SKIP] = true, [PROTO_SP_BROKEN] = true},
        [PROTO_SP_START] = {[PROTO_SP_ADMIT] = true},
        [PROTO_SP_ADMIT] = {[PROTO_SP_BODY] = true},
        [PROTO_SP_BODY] = {[PROTO_SP_SKIP] = true, [PROTO_SP_WHOLE] = true},
        [PROTO_SP_SKIP] = {[PROTO_SP_WHOLE] = true, [PROTO_SP_LENGTH] = true},
        [PROTO_SP_WHOLE] = {[PROTO_SP_LENGTH] = true},
    };
    assert(allowed[reader->state][to]);
    reader->state = to;
    assert(to != PROTO_SP_WHOLE || reader->left == 0);
    assert(to != PROTO_SP_LENGTH || !reader->blob);
}

static enum proto_sp_event broken(struct proto_sp_reader *reader, const char *why)
{
    reader_move(reader, PROTO_SP_BROKEN);
    reader->why = why;
    return PROTO_SP_FAILED;
}

// Collects `want` bytes; false: some are missing still.
static bool collect(struct proto_sp_reader *reader, size_t want, const uint8_t **at, size_t *n)
{
    size_t step = want - reader->have;
    if (step > *n)
        step = *n;
    memcpy(reader->small + reader->have, *at, step);
    reader->have += (unsigned)step;
    *at += step;
    *n -= step;
    return reader->have == want;
}

static void begin_message(struct proto_sp_reader *reader)
{
    reader_move(reader, PROTO_SP_LENGTH);
    reader->have = 0;
    reader->trace_len = 0;
    reader->kept = 0;
    reader->unwanted = false;
}

static enum proto_sp_event take_hello(struct proto_sp_reader *reader)
{
    uint8_t req[PROTO_SP_HELLO_BYTES];
    proto_sp_hello(PROTO_SP_REQ, req);
    if (memcmp(reader->small, "\0SP\0", 4) != 0)
        return broken(reader, "not an nng handshake");
    if (memcmp(reader->small, req, sizeof req) != 0)
        return broken(reader, "an nng handshake for a protocol other than REQ");
    begin_message(reader);
    return PROTO_SP_MORE;
}

static enum proto_sp_event take_length(struct proto_sp_reader *reader)
{
    uint64_t word;
    memcpy(&word, reader->small, sizeof word);
    reader->left = be64toh(word);
    if (reader->left > PROTO_SP_MESSAGE_MAX)
        return broken(reader, "a message longer than the limit");
    if (reader->left < 4)
        return broken(reader, "a message without a request id");
    reader_move(reader, PROTO_SP_TRACE);
    reader->have = 0;
    return PROTO_SP_MORE;
}

static enum proto_sp_event take_word(struct proto_sp_reader *reader)
{
    bool last = reader->small[0] & 0x80;
    memcpy(reader->trace + reader->trace_len, reader->small, 4);
    reader->trace_len += 4;
    reader->left -= 4;
    reader->have = 0;
    if (last) {
        reader->len = reader->left;
        reader->want = reader->left < PROTO_SP_START_MAX ? (unsigned)reader->left : PROTO_SP_START_MAX;
        reader_move(reader, PROTO_SP_START);
        return PROTO_SP_MORE;
    }
    if (reader->trace_len == sizeof reader->trace) { // it went in a circle, says nng's REP, and drops it
        reader->unwanted = true;
        reader_move(reader, PROTO_SP_SKIP);
        return PROTO_SP_MORE;
    }
    return reader->left < 4 ? broken(reader, "a message without a request id") : PROTO_SP_MORE;
}

static void take_start(struct proto_sp_reader *reader)
{
    reader->left -= reader->have;
    reader_move(reader, PROTO_SP_ADMIT);
}

// What comes behind the bytes that are kept.
static void end_body(struct proto_sp_reader *reader)
{
    reader_move(reader, reader->left > 0 ? PROTO_SP_SKIP : PROTO_SP_WHOLE);
}

bool proto_sp_keep(struct proto_sp_reader *reader, size_t bytes)
{
    assert(reader->state == PROTO_SP_ADMIT && bytes <= reader->len);
    if (bytes > 0) {
        reader->blob = common_blob_new_of(bytes, reader->owner);
        if (!reader->blob)
            return false;
        reader->kept = bytes < reader->have ? bytes : reader->have;
        memcpy(reader->blob->data, reader->small, reader->kept);
    }
    reader_move(reader, PROTO_SP_BODY);
    if (reader->kept == bytes)
        end_body(reader);
    return true;
}

void proto_sp_next(struct proto_sp_reader *reader)
{
    assert(reader->state == PROTO_SP_WHOLE);
    common_blob_unref(reader->blob);
    reader->blob = NULL;
    begin_message(reader);
}

bool proto_sp_between(const struct proto_sp_reader *reader)
{
    return reader->state == PROTO_SP_LENGTH && reader->have == 0;
}

size_t proto_sp_room(struct proto_sp_reader *reader, uint8_t **to)
{
    if (reader->state != PROTO_SP_BODY)
        return 0;
    *to = reader->blob->data + reader->kept;
    return reader->blob->len - reader->kept;
}

void proto_sp_filled(struct proto_sp_reader *reader, size_t n)
{
    assert(reader->state == PROTO_SP_BODY && n <= reader->blob->len - reader->kept);
    reader->kept += n;
    reader->left -= n;
    if (reader->kept == reader->blob->len)
        end_body(reader);
}

// Takes bytes in one state; those are left that belong to another.
static enum proto_sp_event take_some(struct proto_sp_reader *reader, const uint8_t **at, size_t *n)
{
    uint8_t *to;
    size_t step;
    switch (reader->state) {
    case PROTO_SP_HELLO:
        return collect(reader, PROTO_SP_HELLO_BYTES, at, n) ? take_hello(reader) : PROTO_SP_MORE;
    case PROTO_SP_LENGTH:
        return collect(reader, 8, at, n) ? take_length(reader) : PROTO_SP_MORE;
    case PROTO_SP_TRACE:
        return collect(reader, 4, at, n) ? take_word(reader) : PROTO_SP_MORE;
    case PROTO_SP_START:
        if (collect(reader, reader->want, at, n))
            take_start(reader);
        return PROTO_SP_MORE;
    case PROTO_SP_BODY:
        step = proto_sp_room(reader, &to);
        if (step > *n)
            step = *n;
        memcpy(to, *at, step);
        *at += step;
        *n -= step;
        proto_sp_filled(reader, step);
        return PROTO_SP_MORE;
    case PROTO_SP_SKIP:
        step = reader->left < *n ? (size_t)reader->left : *n;
        reader->left -= step;
        *at += step;
        *n -= step;
        if (reader->left == 0 && reader->unwanted)
            begin_message(reader);
        else if (reader->left == 0)
            reader_move(reader, PROTO_SP_WHOLE);
        return PROTO_SP_MORE;
    case PROTO_SP_ADMIT:
        return PROTO_SP_ASK;
    case PROTO_SP_WHOLE:
        return PROTO_SP_MESSAGE;
    case PROTO_SP_BROKEN:
        break;
    }
    return PROTO_SP_FAILED;
}

enum proto_sp_event proto_sp_take(struct proto_sp_reader *reader, const uint8_t **at, size_t *n)
{
    enum proto_sp_state before;
    enum proto_sp_event event;
    do {
        before = reader->state;
        event = take_some(reader, at, n);
        // A state may change without a byte: an empty message is whole as soon as its trace is.
    } while (event == PROTO_SP_MORE && (*n > 0 || reader->state != before));
    return event;
}
