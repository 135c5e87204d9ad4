// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "proto/model/limits.h"
#include "proto/wire/codec.h"
#include "proto/wire/wire.h"

static const struct limit {
    const ProtobufCMessageDescriptor *type;
    const char *field;
    uint32_t max;
} limits[] = {
#define ROW(message, field, most) {&banyan__pb__##message##__descriptor, #field, most},
    PROTO_LIMITS(ROW)
#undef ROW
};

enum {
    TEXT_MAX = 1024,   // strings and bytes without a number of their own
    FIELDS_MAX = 32,   // of one type
    UNKNOWN_MAX = 16,  // unknown fields of one message: those of a newer peer
    DEPTH_MAX = 8,     // the types nest less deeply: proto_codec_sound
    TYPES_SLOTS = 256, // of the hash table below, a power of two
};

// Limits by type and field index, found by the descriptor's address.
static struct type_limits {
    const ProtobufCMessageDescriptor *type;
    uint32_t max[FIELDS_MAX]; // 0: none written down
} types[TYPES_SLOTS];
static pthread_once_t types_once = PTHREAD_ONCE_INIT;

static struct type_limits *type_slot(const ProtobufCMessageDescriptor *type)
{
    size_t i = ((uintptr_t)type >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    while (types[i % TYPES_SLOTS].type && types[i % TYPES_SLOTS].type != type)
        i++;
    return &types[i % TYPES_SLOTS];
}

static bool is_text(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_BYTES;
}

// Visits the types below `type`; `path` holds those above it.
static bool visit(const ProtobufCMessageDescriptor *type, const ProtobufCMessageDescriptor **path, int depth,
                  char *why, size_t why_len)
{
    if (depth >= DEPTH_MAX) {
        snprintf(why, why_len, "%s is nested too deeply", type->name);
        return false;
    }
    for (int i = 0; i < depth; i++)
        if (path[i] == type) {
            snprintf(why, why_len, "%s contains itself", type->name);
            return false;
        }
    if (type->n_fields > FIELDS_MAX) {
        snprintf(why, why_len, "%s has more than %d fields", type->name, FIELDS_MAX);
        return false;
    }
    path[depth] = type;
    struct type_limits *slot = type_slot(type);
    slot->type = type;
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        if (field->label == PROTOBUF_C_LABEL_REPEATED && slot->max[i] == 0) {
            snprintf(why, why_len, "%s.%s is repeated and has no limit", type->name, field->name);
            return false;
        }
        if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
            !visit(field->descriptor, path, depth + 1, why, why_len))
            return false;
    }
    return true;
}

static bool visit_all(char *why, size_t why_len)
{
    const ProtobufCMessageDescriptor *path[DEPTH_MAX];
    if (!visit(&banyan__pb__header__descriptor, path, 0, why, why_len))
        return false;
    for (uint32_t i = 0; i < PROTO_METHOD_LIMIT; i++) {
        const struct proto_method_info *info = proto_codec_method(i);
        if (info &&
            (!visit(info->request, path, 0, why, why_len) || !visit(info->reply, path, 0, why, why_len)))
            return false;
    }
    return true;
}

static void types_build(void)
{
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(limits[i].type, limits[i].field);
        assert(field && field - limits[i].type->fields < FIELDS_MAX);
        struct type_limits *slot = type_slot(limits[i].type);
        slot->type = limits[i].type;
        slot->max[field - limits[i].type->fields] = limits[i].max;
    }
    char why[160];
    bool sound =
        visit_all(why, sizeof why); // also enters the types without limits, so that later look-ups only read
    assert(sound);
    (void)sound;
}

uint32_t proto_codec_limit(const ProtobufCMessageDescriptor *type, const char *field)
{
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].type == type && strcmp(limits[i].field, field) == 0)
            return limits[i].max;
    return 0;
}

bool proto_codec_sound(char *why, size_t why_len)
{
    pthread_once(&types_once, types_build);
    return visit_all(why, why_len);
}

// ---- the scan -------------------------------------------------------------------------------------------

// Elements in a packed run of a repeated scalar; false when it does not divide.
static bool packed_count(const ProtobufCFieldDescriptor *field, const uint8_t *data, size_t len, size_t *out)
{
    size_t width = 1;
    switch (field->type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        width = 4;
        break;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        width = 8;
        break;
    default: { // varints: one byte without the continuation bit each
        size_t n = 0;
        for (size_t i = 0; i < len; i++)
            n += data[i] < 0x80;
        *out = n;
        return len == 0 || data[len - 1] < 0x80;
    }
    }
    *out = len / width;
    return len % width == 0;
}

static enum common_code malformed(struct common_error *err, const ProtobufCMessageDescriptor *type)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "malformed %s", type->short_name);
}

static enum common_code too_many(struct common_error *err, const ProtobufCMessageDescriptor *type,
                                 const char *field, uint32_t max)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s.%s is above its limit of %u", type->short_name,
                            field, max);
}

// Fields lie in the order of their numbers, in a type as in what encoders write: the search begins at `next`,
// and is the library's only where that order is broken.
static const ProtobufCFieldDescriptor *find_field(const ProtobufCMessageDescriptor *type, uint32_t number,
                                                  unsigned *next)
{
    for (unsigned i = *next; i < type->n_fields && type->fields[i].id <= number; i++)
        if (type->fields[i].id == number) {
            *next = i;
            return &type->fields[i];
        }
    return protobuf_c_message_descriptor_get_field(type, number);
}

static enum common_code scan(const ProtobufCMessageDescriptor *type, struct proto_cursor c, int depth,
                             struct common_error *err)
{
    if (depth >= DEPTH_MAX)
        return malformed(err, type);
    const struct type_limits *slot = type_slot(type);
    uint32_t counts[FIELDS_MAX] = {0}, unknown = 0;
    unsigned next = 0;
    while (c.at < c.end) {
        struct proto_field found;
        if (!proto_wire_field(&c, &found))
            return malformed(err, type);
        const uint8_t *data = found.data;
        size_t len = found.len;
        unsigned wire = found.wire;
        const ProtobufCFieldDescriptor *field = find_field(type, found.number, &next);
        if (!field) {
            if (++unknown > UNKNOWN_MAX || len > TEXT_MAX)
                return malformed(err, type);
            continue;
        }
        size_t index = (size_t)(field - type->fields), n = 1;
        bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
        bool sub = field->type == PROTOBUF_C_TYPE_MESSAGE;
        if ((sub || is_text(field)) != (wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) &&
            !(repeated && !sub && !is_text(field))) // a packed run of scalars is the exception
            return malformed(err, type);
        if (is_text(field)) {
            uint32_t max = repeated || slot->max[index] == 0 ? TEXT_MAX : slot->max[index];
            if (len > max)
                return too_many(err, type, field->name, max);
        } else if (!sub && wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED &&
                   !packed_count(field, data, len, &n)) {
            return malformed(err, type);
        }
        if (repeated) {
            if (n > slot->max[index] - counts[index])
                return too_many(err, type, field->name, slot->max[index]);
            counts[index] += (uint32_t)n;
        } else if (sub && ++counts[index] > 1) {
            return malformed(err, type); // merging twice-given messages has no use
        }
        if (sub) {
            enum common_code code =
                scan(field->descriptor, (struct proto_cursor){data, data + len}, depth + 1, err);
            if (code != COMMON_OK)
                return code;
        }
    }
    return COMMON_OK;
}

enum common_code proto_codec_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                                  size_t len, struct common_error *err)
{
    pthread_once(&types_once, types_build);
    if (len == 0)
        return COMMON_OK; // data may be NULL
    return scan(descriptor, (struct proto_cursor){data, data + len}, 0, err);
}
