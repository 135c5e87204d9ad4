// SPDX-License-Identifier: Apache-2.0
// Specs whose layers differ: what each layer is, and every rule that a spec may break.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "kernels/attention.h"
#include "proto/model/kv.h"
#include "proto/model/limits.h"
#include "proto/model/spec.h"

enum { LAYERS = 5 }; // near, far, local, near with sinks, one that reads the last one's K and V

struct spec {
    Banyan__Pb__Spec pb;
    Banyan__Pb__LayerKind kind[3], *kinds[3];
    Banyan__Pb__LayerSinks layer_sinks[LAYERS], *sink_list[LAYERS];
    uint32_t layer_kind[LAYERS], shares[LAYERS];
    float sinks[4], slopes[4];
};

static void kind_init(Banyan__Pb__LayerKind *kind, uint32_t q_heads, uint32_t kv_heads, uint32_t dim)
{
    banyan__pb__layer_kind__init(kind);
    kind->q_heads = q_heads;
    kind->kv_heads = kv_heads;
    kind->k_dim = kind->v_dim = dim;
}

static void spec_init(struct spec *s)
{
    static const uint32_t of[LAYERS] = {0, 1, PROTO_LAYER_LOCAL, 0, 2}, shares[LAYERS] = {0, 0, 0, 0, 4};
    memset(s, 0, sizeof *s);
    banyan__pb__spec__init(&s->pb);
    kind_init(&s->kind[0], 4, 2, 16);
    kind_init(&s->kind[1], 8, 1, 32);
    kind_init(&s->kind[2], 6, 2, 16);
    s->kind[0].window = 64;
    s->kind[1].v_dim = 24;
    s->kind[1].v_in_k = true;
    s->kind[1].scale = 0.5f;
    s->kind[2].mask_chunk = 128;
    memcpy(s->layer_kind, of, sizeof of);
    memcpy(s->shares, shares, sizeof shares);
    for (uint32_t i = 0; i < 3; i++)
        s->kinds[i] = &s->kind[i];
    for (uint32_t l = 0; l < LAYERS; l++) {
        banyan__pb__layer_sinks__init(&s->layer_sinks[l]);
        s->sink_list[l] = &s->layer_sinks[l];
    }
    s->layer_sinks[3].n_sinks = 4;
    s->layer_sinks[3].sinks = s->sinks;
    s->pb.layers = LAYERS;
    s->pb.kv_type = BANYAN__PB__DTYPE__DTYPE_BF16;
    s->pb.n_kinds = 3;
    s->pb.kinds = s->kinds;
    s->pb.n_layer_kind = s->pb.n_shares = s->pb.n_layer_sinks = LAYERS;
    s->pb.layer_kind = s->layer_kind;
    s->pb.shares = s->shares;
    s->pb.layer_sinks = s->sink_list;
}

static void layers_that_differ(void **state)
{
    (void)state;
    struct spec s;
    struct common_error err;
    spec_init(&s);
    assert_int_equal(proto_spec_check(&s.pb, &err), COMMON_OK);
    struct proto_layer near = proto_spec_layer(&s.pb, 0), far = proto_spec_layer(&s.pb, 1),
                       none = proto_spec_layer(&s.pb, 2), sunk = proto_spec_layer(&s.pb, 3),
                       reads = proto_spec_layer(&s.pb, 4);
    assert_int_equal(near.window, 64);
    assert_int_equal(near.k_row, 2 * 16 * 2);
    assert_int_equal(near.v_row, 2 * 16 * 2);
    assert_true(near.scale == 0.25f);
    assert_null(near.sinks);
    assert_true(far.v_in_k && far.scale == 0.5f);
    assert_int_equal(far.k_row, 32 * 2);
    assert_int_equal(far.v_row, 0);
    assert_true(proto_layer_local(&none) && !proto_layer_local(&far));
    assert_ptr_equal(sunk.sinks, s.sinks);
    assert_int_equal(sunk.source, 3);
    assert_int_equal(reads.source, 3);
    assert_int_equal(reads.q_heads, 6);
    assert_int_equal(reads.mask_chunk, 128);
    static const bool stores[LAYERS] = {true, true, false, true, false};
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(proto_spec_stores(&s.pb, l), stores[l]);
    assert_int_equal(proto_spec_token_bytes(&s.pb), 128 + 64 + 128);
    assert_int_equal(proto_spec_first_layer(&s.pb), 0);
    assert_int_equal(proto_spec_heavy_layer(&s.pb), 0);
    assert_int_equal(proto_spec_most_q_heads(&s.pb), 8);
    s.layer_kind[0] = PROTO_LAYER_LOCAL;
    assert_int_equal(proto_spec_first_layer(&s.pb), 1);
    assert_int_equal(proto_spec_heavy_layer(&s.pb), 3);
    proto_spec_fill(&s.pb);
    assert_true(s.kind[0].scale == 0.25f && s.kind[1].scale == 0.5f && s.pb.scale == 0);
}

static void layers_that_are_alike(void **state)
{
    (void)state;
    struct common_error err;
    Banyan__Pb__Spec pb = BANYAN__PB__SPEC__INIT;
    float sinks[4] = {0};
    pb.layers = 3;
    pb.q_heads = 4;
    pb.kv_heads = 2;
    pb.k_dim = 16;
    pb.v_dim = 8;
    pb.kv_type = BANYAN__PB__DTYPE__DTYPE_INT8;
    pb.n_sinks = 4;
    pb.sinks = sinks;
    assert_int_equal(proto_spec_check(&pb, &err), COMMON_OK);
    for (uint32_t l = 0; l < 3; l++) {
        struct proto_layer layer = proto_spec_layer(&pb, l);
        assert_int_equal(layer.source, l);
        assert_int_equal(layer.k_row, proto_kv_row_bytes(pb.kv_type, 2, 16));
        assert_int_equal(layer.v_row, proto_kv_row_bytes(pb.kv_type, 2, 8));
        assert_ptr_equal(layer.sinks, sinks);
        assert_true(layer.scale == 0.25f);
    }
    assert_int_equal(proto_spec_token_bytes(&pb), 3 * 2 * (16 + 4 + 8 + 4));
    assert_int_equal(proto_spec_heavy_layer(&pb), 0);
    assert_int_equal(proto_spec_most_q_heads(&pb), 4);
    // As a store of an older build has it: nothing of what is new is written.
    uint8_t packed[256];
    size_t bytes = banyan__pb__spec__pack(&pb, packed);
    pb.n_sinks = 0;
    assert_int_equal(bytes, banyan__pb__spec__get_packed_size(&pb) + 18);
    assert_int_equal(banyan__pb__spec__get_packed_size(&pb), 12);
}

static void refused(const struct spec *s, const char *says, int line)
{
    struct common_error err = {.message = ""};
    if (proto_spec_check(&s->pb, &err) != COMMON_INVALID_ARGUMENT || !strstr(err.message, says))
        fail_msg("%s:%d: '%s' does not say '%s'", __FILE__, line, err.message, says);
}

static void each_rule(void **state)
{
    (void)state;
// What is refused, and the sentence that says why.
#define CASE(says, change)                                                                                   \
    do {                                                                                                     \
        struct spec s;                                                                                       \
        spec_init(&s);                                                                                       \
        change;                                                                                              \
        refused(&s, says, __LINE__);                                                                         \
    } while (0)
    CASE("0 layers", s.pb.layers = 0);
    CASE("1025 layers", s.pb.layers = 1025);
    CASE("KV type 6", s.pb.kv_type = BANYAN__PB__DTYPE__DTYPE_U8);
    CASE("chunks of 24", s.pb.chunk_tokens = 24);
    CASE("chunks of 8", s.pb.chunk_tokens = 8);
    CASE("chunks of 8192", s.pb.chunk_tokens = 8192);
    CASE("with kinds", s.pb.q_heads = 1);
    CASE("with kinds", s.pb.kv_heads = 1);
    CASE("with kinds", s.pb.k_dim = 1);
    CASE("with kinds", s.pb.v_dim = 1);
    CASE("with kinds", s.pb.scale = 1);
    CASE("with kinds", s.pb.scale = NAN);
    CASE("with kinds", s.pb.soft_cap = 1);
    CASE("with kinds", s.pb.window = 1);
    CASE("with kinds", s.pb.mask_chunk = 1);
    CASE("with kinds", s.pb.not_causal = true);
    CASE("with kinds", s.pb.v_in_k = true);
    CASE("with kinds", (s.pb.n_alibi = 4, s.pb.alibi = s.slopes));
    CASE("with kinds", (s.pb.n_sinks = 4, s.pb.sinks = s.sinks));
    CASE("65 kinds", s.pb.n_kinds = 65);
    CASE("for each of the 5 layers", s.pb.n_layer_kind = 4);
    CASE("for each of the 5 layers", s.pb.n_layer_kind = 0);
    CASE("for each of the 5 layers", s.pb.n_shares = 4);
    CASE("for each of the 5 layers", s.pb.n_layer_sinks = 1);
    CASE("layer 1 is of kind 3", s.layer_kind[1] = 3);
    CASE("layer 4 is of kind 4294967294", s.layer_kind[4] = PROTO_LAYER_LOCAL - 1);
    CASE("a lower one", s.shares[4] = 5);
    CASE("a lower one", s.shares[0] = 2);
    CASE("a lower one", s.shares[1] = UINT32_MAX);
    CASE("has none of its own", s.shares[4] = 3);
    CASE("another shape", s.shares[4] = 2);
    CASE("another shape", s.kind[2].k_dim = 17);
    CASE("another shape", s.kind[2].v_dim = 15);
    CASE("another shape", s.kind[2].kv_heads = 1);
    CASE("another shape", s.kind[2].v_in_k = true);
    CASE("holds nothing and cannot share", s.shares[2] = 1);
    CASE("layer 3: there must be no sinks", s.layer_sinks[3].n_sinks = 3);
    CASE("layer 3: there must be no sinks", s.sinks[2] = INFINITY);
    CASE("layer 3: there must be no sinks", s.sinks[2] = NAN);
    CASE("layer 2: there must be no sinks", (s.layer_sinks[2].n_sinks = 4, s.layer_sinks[2].sinks = s.sinks));
    CASE("kind 0: 0 query heads", s.kind[0].q_heads = 0);
    CASE("kind 1: 1025 query heads", s.kind[1].q_heads = 1025);
    CASE("kind 0: 4 query heads over 3 KV heads", s.kind[0].kv_heads = 3);
    CASE("kind 0: 4 query heads over 0 KV heads", s.kind[0].kv_heads = 0);
    CASE("kind 2: keys of dimension 0", s.kind[2].k_dim = 0);
    CASE("kind 2: values of dimension 1025", s.kind[2].v_dim = 1025);
    CASE("kind 1: values of dimension 33", s.kind[1].v_dim = 33);
    CASE("kind 0: scale", s.kind[0].scale = -1);
    CASE("kind 0: scale", s.kind[0].scale = NAN);
    CASE("kind 0: soft cap", s.kind[0].soft_cap = INFINITY);
    CASE("kind 0: there must be no ALiBi", (s.kind[0].n_alibi = 3, s.kind[0].alibi = s.slopes));
    CASE("kind 0: there must be no ALiBi",
         (s.slopes[1] = NAN, s.kind[0].n_alibi = 4, s.kind[0].alibi = s.slopes));
    CASE("kind 0: without a causal mask", s.kind[0].not_causal = true);
    CASE("kind 2: without a causal mask", s.kind[2].not_causal = true);
    CASE("kind 1: without a causal mask", (s.kind[1].not_causal = true, s.kind[1].q_heads = 4,
                                           s.kind[1].n_alibi = 4, s.kind[1].alibi = s.slopes));
    CASE(
        "no layer holds anything", for (uint32_t l = 0; l < LAYERS; l++) {
            s.layer_kind[l] = PROTO_LAYER_LOCAL;
            s.shares[l] = 0;
            s.layer_sinks[l].n_sinks = 0;
        });
    CASE("need kinds", (s.pb.n_kinds = 0, s.pb.q_heads = s.pb.kv_heads = s.pb.k_dim = s.pb.v_dim = 1));
#undef CASE
}

// Any numbers at all: refused with a sentence, or every layer makes sense.
static void any_numbers(void **state)
{
    (void)state;
    uint64_t n_good = 0, n = 200000;
    for (uint64_t seed = 0; seed < n; seed++) {
        static const uint32_t odd[] = {0, 1, 2, 3, 4, 5, 6, 16, 17, 1024, 1025, UINT32_MAX - 1, UINT32_MAX};
        struct spec s;
        struct common_error err = {.message = ""};
        spec_init(&s);
        for (uint64_t i = 0, changes = 1 + seed % 3; i < changes; i++) {
            uint64_t draw = common_mix64(seed * 8 + i);
            uint32_t value = odd[draw % (sizeof odd / sizeof *odd)], at = (uint32_t)(draw >> 20);
            Banyan__Pb__LayerKind *kind = &s.kind[at % 3];
            uint32_t *fields[] = {&kind->q_heads,         &kind->kv_heads,    &kind->k_dim,
                                  &kind->v_dim,           &s.pb.chunk_tokens, &s.layer_kind[at % LAYERS],
                                  &s.shares[at % LAYERS], &s.pb.q_heads};
            protobuf_c_boolean *flags[] = {&kind->v_in_k, &s.kind[2].not_causal};
            uint64_t which = draw >> 40;
            if (which % 8 == 0)
                *flags[which / 8 % 2] ^= true;
            else if (which % 8 == 1)
                s.pb.n_kinds = value < 3 ? value : 3;
            else if (which % 8 == 2)
                s.pb.layers = value < LAYERS ? value : LAYERS + (value > 1024);
            else
                *fields[which / 8 % 8] = value;
        }
        if (proto_spec_check(&s.pb, &err) != COMMON_OK) {
            assert_true(err.message[0] && !strchr(err.message, '\n'));
            continue;
        }
        uint64_t bytes = 0;
        n_good++;
        proto_spec_fill(&s.pb);
        assert_int_equal(proto_spec_check(&s.pb, &err), COMMON_OK);
        for (uint32_t l = 0; l < s.pb.layers; l++) {
            struct proto_layer layer = proto_spec_layer(&s.pb, l);
            if (proto_layer_local(&layer))
                continue;
            assert_true(layer.scale > 0 && layer.kv_heads > 0 && layer.q_heads % layer.kv_heads == 0);
            assert_true(proto_spec_stores(&s.pb, layer.source) && layer.source <= l);
            assert_true(layer.k_row > 0 && (layer.v_row > 0) != layer.v_in_k);
            bytes += layer.source == l ? layer.k_row + layer.v_row : 0;
        }
        assert_int_equal(proto_spec_token_bytes(&s.pb), bytes);
    }
    assert_true(n_good > n / 50 && n_good < n / 2);
}

// Sinks of 1,024 heads in each of 1,024 layers would be 4 MiB.
static void a_spec_has_a_largest_size(void **state)
{
    (void)state;
    enum { MANY = 40, HEADS = 1024 };
    struct common_error err;
    Banyan__Pb__Spec pb = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__LayerKind kind, *kinds = &kind;
    Banyan__Pb__LayerSinks sinks[MANY], *list[MANY];
    uint32_t of[MANY] = {0};
    float *values = calloc(HEADS, sizeof *values);
    assert_non_null(values);
    kind_init(&kind, HEADS, 1, 1);
    pb.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    pb.n_kinds = 1;
    pb.kinds = &kinds;
    pb.layer_kind = of;
    pb.layer_sinks = list;
    for (uint32_t l = 0; l < MANY; l++) {
        banyan__pb__layer_sinks__init(&sinks[l]);
        sinks[l].n_sinks = HEADS;
        sinks[l].sinks = values;
        list[l] = &sinks[l];
    }
    pb.layers = pb.n_layer_kind = pb.n_layer_sinks = 31;
    assert_int_equal(proto_spec_check(&pb, &err), COMMON_OK);
    pb.layers = pb.n_layer_kind = pb.n_layer_sinks = 32;
    assert_int_equal(proto_spec_check(&pb, &err), COMMON_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "at most 131072"));
    free(values);
}

// What the coordinator takes for seen is what kernels see.
static void what_a_row_sees_begins_where_kernels_begin(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t draw = common_mix64(i), at = common_mix64(draw) % 300;
        struct proto_layer layer = {.window = draw % 3 ? 0 : 1 + draw / 8 % 70,
                                    .mask_chunk = draw % 5 < 3 ? 0 : 1 + draw / 1024 % 70};
        struct kernels_mask mask = {.visible = 1000, .window = layer.window, .mask_chunk = layer.mask_chunk};
        assert_int_equal(proto_layer_from(&layer, at), kernels_row_interval(&mask, at).from);
    }
    assert_int_equal(proto_layer_from(&(struct proto_layer){.not_causal = true}, 1000), 0);
}

static void what_nobody_sees_is_forgotten(void **state)
{
    (void)state;
    struct spec s;
    spec_init(&s); // window 64; all; -; window 64, also read by pieces of 128; that reader
    assert_int_equal(proto_spec_forgotten(&s.pb, 0, 1000), 0); // it forgets nothing
    s.pb.forget = 5;
    assert_int_equal(proto_spec_forgotten(&s.pb, 0, 63), 0);
    assert_int_equal(proto_spec_forgotten(&s.pb, 0, 64), 1);
    assert_int_equal(proto_spec_forgotten(&s.pb, 0, 1000), 937);
    assert_int_equal(proto_spec_forgotten(&s.pb, 1, 1000), 0);
    assert_int_equal(proto_spec_forgotten(&s.pb, 2, 1000), 0);
    assert_int_equal(proto_spec_forgotten(&s.pb, 3, 1000), 896); // the reader sees further
    assert_int_equal(proto_spec_forgotten(&s.pb, 3, 1023), 896);
    assert_int_equal(proto_spec_forgotten(&s.pb, 3, 1024), 961); // and now less far
    assert_int_equal(proto_spec_forgotten(&s.pb, 4, 1000), 0);   // it has no rows of its own
    s.kind[2].mask_chunk = 0;
    assert_int_equal(proto_spec_forgotten(&s.pb, 3, 1000), 0);
    struct spec alike = s;
    alike.pb.n_kinds = alike.pb.n_shares = 0;
    alike.pb.q_heads = alike.pb.kv_heads = alike.pb.k_dim = alike.pb.v_dim = 1;
    alike.pb.window = 10;
    assert_int_equal(proto_spec_forgotten(&alike.pb, 4, 100), 91);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_that_differ),
        cmocka_unit_test(layers_that_are_alike),
        cmocka_unit_test(each_rule),
        cmocka_unit_test(any_numbers),
        cmocka_unit_test(a_spec_has_a_largest_size),
        cmocka_unit_test(what_a_row_sees_begins_where_kernels_begin),
        cmocka_unit_test(what_nobody_sees_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
