// SPDX-License-Identifier: Apache-2.0
// Form of a message: fields until an index that the type has not:
//
//   | index u8 | value |
//   number   u8: 0..0x5f itself; 0x60..0x9f one that is known; 0xa0..0xbf one that is special; above: u16, u32 or u64 follow
//   text     u8: 0..0x3f known; else u8 & 0x3f bytes follow; 0x7f: u16 says how many
//   message  its fields
// A repeated field has one more element each time that it comes.
#include "tests/fuzz/message.h"

#include <string.h>

enum { DEPTH_MAX = 6, REPEATED_MAX = 256, FIELDS_MAX = 4096 };

struct builder {
    struct fuzz_input *in;
    const struct fuzz_known *known;
    unsigned fields; // so far, of the whole message
};

// ---- what is known --------------------------------------------------------------------------------------

void fuzz_know_number(struct fuzz_known *known, uint64_t number)
{
    for (unsigned i = 0; i < FUZZ_KNOWN; i++)
        if (number <= 0x5f || known->numbers[i] == number)
            return;
    known->numbers[known->n_numbers++ % FUZZ_KNOWN] = number;
}

void fuzz_know_text(struct fuzz_known *known, const void *bytes, size_t len)
{
    if (len == 0 || len > FUZZ_KNOWN_BYTES)
        return;
    for (unsigned i = 0; i < FUZZ_KNOWN; i++)
        if (known->texts[i].len == len && memcmp(known->texts[i].bytes, bytes, len) == 0)
            return;
    unsigned at = known->n_texts++ % FUZZ_KNOWN;
    memcpy(known->texts[at].bytes, bytes, len);
    known->texts[at].len = len;
}

static void know_value(struct fuzz_known *known, const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_UINT64:
        fuzz_know_number(known, *(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_STRING:
        fuzz_know_text(known, *(char *const *)at, strlen(*(char *const *)at));
        break;
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *data = at;
        fuzz_know_text(known, data->data, data->len);
        break;
    }
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)at)
            fuzz_know_message(known, *(ProtobufCMessage *const *)at);
        break;
    default:
        break;
    }
}

static size_t size_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

void fuzz_know_message(struct fuzz_known *known, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const uint8_t *at = (const uint8_t *)message + field->offset;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            know_value(known, field, at);
            continue;
        }
        size_t n = *(const size_t *)(const void *)((const uint8_t *)message + field->quantifier_offset);
        const uint8_t *values = *(uint8_t *const *)(const void *)at;
        for (size_t k = 0; k < n && k < 16; k++)
            know_value(known, field, values + k * size_of(field->type));
    }
}

// ---- making ---------------------------------------------------------------------------------------------

static uint64_t number(struct builder *b)
{
    static const uint64_t special[] = {UINT64_MAX,
                                       UINT64_MAX - 1,
                                       INT64_MAX,
                                       (uint64_t)INT64_MAX + 1,
                                       UINT32_MAX,
                                       UINT32_MAX - 1,
                                       (uint64_t)UINT32_MAX + 1,
                                       INT32_MAX,
                                       (uint64_t)INT32_MAX + 1,
                                       UINT64_C(1) << 40,
                                       UINT64_C(1) << 52,
                                       (UINT64_C(1) << 52) + 1,
                                       UINT64_C(1) << 20,
                                       1000000000,
                                       65535,
                                       65536,
                                       4096,
                                       4097,
                                       1024,
                                       1023,
                                       1025,
                                       256,
                                       255,
                                       128,
                                       0x3f800000, // 1.0f
                                       0x7f800000, // infinity
                                       0x7fc00000, // no number
                                       0xbf800000, // -1.0f
                                       UINT64_C(1) << 44,
                                       100,
                                       512,
                                       2048};
    uint8_t tag = fuzz_u8(b->in);
    if (tag < 0x60)
        return tag;
    if (tag < 0xa0)
        return b->known->numbers[tag - 0x60];
    if (tag < 0xc0)
        return special[tag - 0xa0];
    return tag < 0xd8 ? fuzz_u16(b->in) : tag < 0xec ? fuzz_u32(b->in) : fuzz_u64(b->in);
}

static uint8_t *text(struct builder *b, size_t *len)
{
    uint8_t tag = fuzz_u8(b->in);
    const uint8_t *from;
    if (tag < 0x40) {
        from = b->known->texts[tag].bytes;
        *len = b->known->texts[tag].len;
    } else {
        from = fuzz_bytes(b->in, tag == 0x7f ? fuzz_u16(b->in) : tag & 0x3f, len);
    }
    uint8_t *copy = calloc(1, *len + 1);
    if (!copy)
        abort();
    if (*len > 0)
        memcpy(copy, from, *len);
    return copy;
}

static ProtobufCMessage *build(struct builder *b, const ProtobufCMessageDescriptor *type, unsigned depth);

static void make_value(struct builder *b, const ProtobufCFieldDescriptor *field, void *at, unsigned depth)
{
    size_t len;
    uint64_t value;
    double real;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = (char *)text(b, &len);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        ((ProtobufCBinaryData *)at)->data = text(b, &((ProtobufCBinaryData *)at)->len);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = build(b, field->descriptor, depth + 1);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = fuzz_u8(b->in) & 1;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        real = (double)(int64_t)number(b);
        memcpy(at, &real, sizeof real);
        break;
    default:
        value = number(b);
        memcpy(at, &value, size_of(field->type)); // little-endian
    }
}

static void end_value(const ProtobufCFieldDescriptor *field, void *at)
{
    if (field->type == PROTOBUF_C_TYPE_STRING && *(char **)at != (const char *)field->default_value &&
        *(char **)at != protobuf_c_empty_string)
        free(*(char **)at);
    if (field->type == PROTOBUF_C_TYPE_BYTES)
        free(((ProtobufCBinaryData *)at)->data);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE && *(ProtobufCMessage **)at)
        fuzz_message_end(*(ProtobufCMessage **)at);
}

static void add_value(struct builder *b, const ProtobufCFieldDescriptor *field, uint8_t *message,
                      unsigned depth)
{
    size_t *n = (size_t *)(void *)(message + field->quantifier_offset), size = size_of(field->type);
    uint8_t **values = (uint8_t **)(void *)(message + field->offset);
    if (*n >= REPEATED_MAX)
        return;
    if ((*n & (*n - 1)) == 0) { // 0, 1, 2, 4 ...: it is full
        *values = realloc(*values, (*n ? 2 * *n : 1) * size);
        if (!*values)
            abort();
    }
    memset(*values + *n * size, 0, size);
    make_value(b, field, *values + *n * size, depth);
    ++*n;
}

static ProtobufCMessage *build(struct builder *b, const ProtobufCMessageDescriptor *type, unsigned depth)
{
    uint8_t *message = calloc(1, type->sizeof_message);
    if (!message)
        abort();
    type->message_init((ProtobufCMessage *)(void *)message);
    while (b->in->left > 0 && depth < DEPTH_MAX && b->fields++ < FIELDS_MAX) {
        uint8_t index = fuzz_u8(b->in);
        if (index >= type->n_fields)
            break;
        const ProtobufCFieldDescriptor *field = &type->fields[index];
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            add_value(b, field, message, depth);
            continue;
        }
        end_value(field, message + field->offset);
        make_value(b, field, message + field->offset, depth);
    }
    return (ProtobufCMessage *)(void *)message;
}

ProtobufCMessage *fuzz_message(struct fuzz_input *in, const ProtobufCMessageDescriptor *type,
                               const struct fuzz_known *known)
{
    struct builder b = {.in = in, .known = known};
    return build(&b, type, 0);
}

void fuzz_message_end(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        uint8_t *at = (uint8_t *)message + field->offset;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            end_value(field, at);
            continue;
        }
        size_t n = *(size_t *)(void *)((uint8_t *)message + field->quantifier_offset);
        uint8_t *values = *(uint8_t **)(void *)at;
        for (size_t k = 0; k < n; k++)
            end_value(field, values + k * size_of(field->type));
        free(values);
    }
    free(message);
}
