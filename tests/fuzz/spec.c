// SPDX-License-Identifier: Apache-2.0
// proto/model/spec.c: a session's Spec, packed. What the check takes, all of the functions take, too: sizes
// do not wrap, layers lie where they say.
#include <math.h>

#include "proto/model/spec.h"
#include "proto/wire/codec.h"
#include "tests/fuzz/fuzz.h"

static void look(Banyan__Pb__Spec *spec)
{
    static const uint64_t at[] = {0, 1, 15, 4096, UINT64_C(1) << 40, UINT64_MAX - 1};
    uint64_t bytes = 0;
    proto_spec_fill(spec);
    for (uint32_t i = 0; i < spec->layers; i++) {
        struct proto_layer layer = proto_spec_layer(spec, i);
        uint32_t source = proto_spec_source(spec, i);
        FUZZ_CHECK(source < spec->layers && source <= i && source == layer.source);
        if (proto_layer_local(&layer)) {
            FUZZ_CHECK(!proto_spec_stores(spec, i));
            continue;
        }
        FUZZ_CHECK(layer.q_heads >= 1 && layer.kv_heads >= 1 && layer.q_heads % layer.kv_heads == 0);
        FUZZ_CHECK(layer.k_dim >= 1 && layer.k_dim <= 1024 && layer.v_dim >= 1 && layer.v_dim <= 1024);
        FUZZ_CHECK(isfinite(layer.scale) && layer.scale > 0 && layer.k_row > 0);
        FUZZ_CHECK((layer.v_row == 0) == layer.v_in_k);
        for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
            FUZZ_CHECK(proto_layer_from(&layer, at[k]) <= at[k]);
            FUZZ_CHECK(k == 0 || proto_layer_from(&layer, at[k - 1]) <= proto_layer_from(&layer, at[k]));
        }
        if (!proto_spec_stores(spec, i))
            continue;
        bytes += layer.k_row + layer.v_row;
        for (size_t k = 0; k < sizeof at / sizeof *at; k++)
            FUZZ_CHECK(proto_spec_forgotten(spec, i, at[k]) <= at[k]);
    }
    FUZZ_CHECK(proto_spec_token_bytes(spec) == bytes && bytes > 0);
    FUZZ_CHECK(proto_spec_stores(spec, proto_spec_first_layer(spec)));
    FUZZ_CHECK(proto_spec_stores(spec, proto_spec_heavy_layer(spec)));
    FUZZ_CHECK(proto_spec_most_q_heads(spec) >= 1 && proto_spec_most_q_heads(spec) <= 1024);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct proto_arena arena;
    ProtobufCMessage *message;
    struct common_error err;
    proto_arena_init(&arena);
    proto_arena_allow(&arena, size);
    if (proto_codec_unpack(&arena, &banyan__pb__spec__descriptor, data, size, &message, &err) == COMMON_OK) {
        Banyan__Pb__Spec *spec = (Banyan__Pb__Spec *)(void *)message;
        if (proto_spec_check(spec, &err) == COMMON_OK) {
            look(spec);
            FUZZ_CHECK(proto_spec_check(spec, &err) == COMMON_OK); // filled in, it is still right
        } else {
            FUZZ_CHECK(err.message[0]);
        }
    }
    proto_arena_fini(&arena);
    return 0;
}
