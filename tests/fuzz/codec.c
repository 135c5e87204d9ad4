// SPDX-License-Identifier: Apache-2.0
// proto/wire/codec.c and codec_scan.c: packed bodies of every message that travels. Input: u8 method, whose
// top bit says the reply, then the bytes.
#include <string.h>

#include "proto/wire/codec.h"
#include "tests/fuzz/fuzz.h"

static uint8_t *pack(const ProtobufCMessage *message, size_t *len)
{
    *len = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(*len + 1);
    FUZZ_CHECK(bytes && protobuf_c_message_pack(message, bytes) == *len);
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t method = fuzz_u8(&in);
    const struct proto_method_info *info = proto_codec_method(method & 0x7f);
    if (!info)
        return 0;
    const ProtobufCMessageDescriptor *type = method & 0x80 ? info->reply : info->request;
    struct common_error err;
    struct proto_arena arena, again;
    ProtobufCMessage *message, *second;
    enum common_code scanned = proto_codec_scan(type, in.at, in.left, &err);
    proto_arena_init(&arena);
    enum common_code code = proto_codec_unpack(&arena, type, in.at, in.left, &message, &err);
    FUZZ_CHECK(!arena.out_of_memory && arena.used <= 32 * in.left + 4096);
    if (scanned != COMMON_OK)
        FUZZ_CHECK(code == scanned && err.message[0]);
    if (code == COMMON_OK) { // what was read is written, read and written again: the same
        size_t len, len_again;
        uint8_t *bytes = pack(message, &len);
        proto_arena_init(&again);
        code = proto_codec_unpack(&again, type, bytes, len, &second, &err);
        FUZZ_CHECK(code == COMMON_OK ||
                   len < in.left); // a message may take 32 times its bytes: of fewer bytes less
        if (code == COMMON_OK) {
            uint8_t *bytes_again = pack(second, &len_again);
            FUZZ_CHECK(len == len_again && memcmp(bytes, bytes_again, len) == 0);
            free(bytes_again);
        }
        proto_arena_fini(&again);
        free(bytes);
    }
    proto_arena_fini(&arena);
    return 0;
}
