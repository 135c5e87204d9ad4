// SPDX-License-Identifier: Apache-2.0
// The few pieces of protobuf's encoding that the hot path writes and reads by hand: varints, fixed 64-bit
// numbers, keys.
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PROTO_WIRE_VARINT = 0, PROTO_WIRE_FIXED64 = 1, PROTO_WIRE_BYTES = 2, PROTO_WIRE_FIXED32 = 5 };

struct proto_cursor {
    const uint8_t *at, *end;
};

// A field as it stands: its number, its wire type and either `value` (varint, fixed) or `data` and `len`
// (bytes, borrowed).
struct proto_field {
    uint32_t number, wire;
    uint64_t value;
    const uint8_t *data;
    size_t len;
};

static inline bool proto_wire_varint(struct proto_cursor *c, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (c->at == c->end)
            return false;
        uint8_t byte = *c->at++;
        if (shift == 63 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

// The next field; false: malformed (groups, field 0, beyond the end). The caller has seen that c->at <
// c->end.
static inline bool proto_wire_field(struct proto_cursor *c, struct proto_field *out)
{
    uint64_t key, value = 0;
    if (!proto_wire_varint(c, &key) || key >> 3 == 0 || key >> 3 > (UINT32_C(1) << 29) - 1)
        return false;
    *out = (struct proto_field){.number = (uint32_t)(key >> 3), .wire = (uint32_t)(key & 7)};
    size_t left = (size_t)(c->end - c->at);
    switch (out->wire) {
    case PROTO_WIRE_VARINT:
        return proto_wire_varint(c, &out->value);
    case PROTO_WIRE_FIXED64:
        if (left < 8)
            return false;
        memcpy(&value, c->at, 8);
        out->value = le64toh(value);
        c->at += 8;
        return true;
    case PROTO_WIRE_FIXED32:
        if (left < 4)
            return false;
        memcpy(&value, c->at, 4);
        out->value = (uint32_t)le64toh(value);
        c->at += 4;
        return true;
    case PROTO_WIRE_BYTES:
        if (!proto_wire_varint(c, &value) || value > (uint64_t)(c->end - c->at))
            return false;
        out->data = c->at;
        out->len = (size_t)value;
        c->at += value;
        return true;
    default:
        return false;
    }
}

static inline size_t proto_wire_varint_len(uint64_t value)
{
    return (size_t)(63 - __builtin_clzll(value | 1)) / 7 + 1;
}

static inline uint8_t *proto_wire_put_varint(uint8_t *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static inline uint8_t *proto_wire_put_key(uint8_t *at, uint32_t number,
                                          uint32_t wire) // numbers below 16: one byte
{
    *at++ = (uint8_t)(number << 3 | wire);
    return at;
}

static inline uint8_t *proto_wire_put_fixed64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, 8);
    return at + 8;
}

#endif
