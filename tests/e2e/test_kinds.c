// SPDX-License-Identifier: Apache-2.0
// Sessions whose layers differ: heads, dimensions, windows, sinks, masks, layers that share K and V, layers
// that hold nothing, V inside K. All of it on the same session, against the float64 reference: attached in
// pieces, appended, in one call for all layers, forked, truncated, over a restart of the coordinator.
#include "tests/e2e/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/common/sanitized.h"
#include "tests/e2e/wire.h"

#define LOCAL BANYAN_LAYER_LOCAL
#define NONE  BANYAN_SHARES_NONE
#define CHUNK 32
#define ROOM  640

static struct harness_cluster *cluster;
static banyan_client *client;
static struct worst worst;

enum { NEAR, FAR, LATENT, PIECES, BOTH, WIDE, KINDS };
static const float slopes[4] = {0.5f, 0.25f, 0.02f, 0};
static const banyan_kind kinds[KINDS] = {
    [NEAR] = {.q_heads = 4, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .window = 64},
    [FAR] = {.q_heads = 8, .kv_heads = 1, .k_dim = 32, .v_dim = 24, .soft_cap = 20, .scale = 0.2f},
    [LATENT] = {.q_heads = 16, .kv_heads = 1, .k_dim = 72, .v_dim = 64, .v_in_k = true},
    [PIECES] = {.q_heads = 4, .kv_heads = 4, .k_dim = 8, .v_dim = 8, .mask_chunk = 96, .alibi = slopes},
    [BOTH] = {.q_heads = 4, .kv_heads = 2, .k_dim = 20, .v_dim = 12, .not_causal = true},
    [WIDE] = {.q_heads = 6, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .scale = 0.3f}, // shares with NEAR
};

#define LAYERS 10
static const uint32_t layer_kind[LAYERS] = {NEAR, FAR, LOCAL, NEAR, LATENT, PIECES, BOTH, WIDE, LOCAL, NEAR};
static const uint32_t shares[LAYERS] = {NONE, NONE, NONE, NONE, NONE, NONE, NONE, 3, NONE, 0};
static const float few_sinks[4] = {1, -2, 30, 0.5f}, many_sinks[8] = {0, 1, -1, 2, -2, 3, -30, 8},
                   shared_sinks[6] = {4, -8, 0, 1, 2, 3};
static const float *const layer_sinks[LAYERS] = {[1] = many_sinks, [3] = few_sinks, [7] = shared_sinks};

static banyan_spec spec_of(banyan_kv_type type)
{
    return (banyan_spec){.layers = LAYERS,
                         .kv_type = type,
                         .chunk_tokens = CHUNK,
                         .members = 3,
                         .n_kinds = KINDS,
                         .kinds = kinds,
                         .layer_kind = layer_kind,
                         .shares = shares,
                         .layer_sinks = layer_sinks};
}

// The layer as if all of a session were like it.
static banyan_spec alike(uint32_t layer, banyan_kv_type type)
{
    const banyan_kind *kind = &kinds[layer_kind[layer]];
    return (banyan_spec){.layers = 1,
                         .q_heads = kind->q_heads,
                         .kv_heads = kind->kv_heads,
                         .k_dim = kind->k_dim,
                         .v_dim = kind->v_dim,
                         .kv_type = type,
                         .scale = kind->scale,
                         .soft_cap = kind->soft_cap,
                         .window = kind->window,
                         .mask_chunk = kind->mask_chunk,
                         .not_causal = kind->not_causal,
                         .v_in_k = kind->v_in_k,
                         .alibi = kind->alibi,
                         .sinks = layer_sinks[layer],
                         .chunk_tokens = CHUNK};
}

static bool local(uint32_t layer)
{
    return layer_kind[layer] == LOCAL;
}

static bool stores(uint32_t layer)
{
    return !local(layer) && shares[layer] == NONE;
}

struct model { // what the session should hold
    banyan_kv_type type;
    struct context own[LAYERS]; // of layers that store
};

static void model_init(struct model *m, banyan_kv_type type, uint64_t seed)
{
    m->type = type;
    for (uint32_t l = 0; l < LAYERS; l++) {
        banyan_spec spec = stores(l) ? alike(l, type) : (banyan_spec){0};
        if (!stores(l))
            continue;
        context_init(&m->own[l], &spec, ROOM);
        context_random(&m->own[l], 0, ROOM, seed * 100 + l);
    }
}

static void model_free(struct model *m)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        if (stores(l))
            context_free(&m->own[l]);
}

// What a layer reads, with its own heads, mask and sinks.
static struct context model_view(const struct model *m, uint32_t layer)
{
    struct context view = m->own[stores(layer) ? layer : shares[layer]];
    view.spec = alike(layer, m->type);
    return view;
}

static banyan_code attach(banyan_session *session, uint32_t layer, const struct context *own, uint64_t first,
                          uint64_t count)
{
    const void *k = context_k(own, 0, first), *v = context_v(own, 0, first);
    if (!banyan_kv_scaled(own->spec.kv_type))
        return banyan_attach(session, layer, first, count, k, v, ERR);
    return banyan_attach_scaled(session, layer, first, count, k, context_k_scale(own, 0, first), v,
                                context_v_scale(own, 0, first), ERR);
}

static void fill(banyan_session *session, const struct model *m, uint64_t first, uint64_t end, uint32_t most)
{
    for (uint32_t l = LAYERS; l-- > 0;) {
        if (!stores(l))
            continue;
        for (uint64_t at = first, n; at < end; at += n) {
            n = most < end - at ? most : end - at;
            OK(attach(session, l, &m->own[l], at, n));
        }
        OK(banyan_commit(session, l, first, end - first, ERR));
    }
}

// Rows of all layers in one call, appended or not, twice: right, and the same bits.
struct rows {
    uint64_t first, visible, block_first, block_count;
    uint32_t count;
    bool append;
};

static void check_rows(banyan_session *session, const struct model *m, uint64_t length, struct rows rows,
                       const char *what)
{
    struct step steps[2][LAYERS];
    banyan_item items[LAYERS];
    banyan_error errors[LAYERS];
    uint64_t end = rows.first + rows.count;
    for (int again = 0; again < 2; again++) {
        uint32_t n = 0;
        for (uint32_t l = 0; l < LAYERS; l++) {
            if (local(l))
                continue;
            struct step *step = &steps[again][n];
            *step = (struct step){.session = session,
                                  .layer = l,
                                  .first = rows.first,
                                  .rows = rows.count,
                                  .visible = rows.visible,
                                  .block_first = rows.block_first,
                                  .block_count = rows.block_count,
                                  .seed = rows.first * 31 + l};
            if (rows.append && stores(l)) {
                struct context one = m->own[l]; // its only layer is the session's layer l
                step->k = context_k(&one, 0, rows.first);
                step->v = context_v(&one, 0, rows.first);
                step->k_scale = context_k_scale(&one, 0, rows.first);
                step->v_scale = context_v_scale(&one, 0, rows.first);
            }
            items[n] = step_item(step);
            items[n].error = &errors[n];
            n++;
        }
        OK(banyan_attend(client, items, n, 0, NULL, ERR));
        for (uint32_t i = 0; i < n; i++) {
            if (items[i].code != BANYAN_OK)
                fail_msg("%s: layer %u: %s", what, items[i].layer, errors[i].message);
            uint64_t block_end = rows.block_first + rows.block_count, visible = rows.visible;
            struct context view = model_view(m, items[i].layer);
            view.block_first = rows.block_first;
            view.block_end = block_end;
            visible = visible ? visible : view.spec.not_causal ? length : end > block_end ? end : block_end;
            context_check(&view, 0, rows.first, rows.count, visible, items[i].q, items[i].o, items[i].lse,
                          &worst, what);
            assert_int_equal(items[i].length, length);
            if (again && items[i].digest == steps[0][i].digest)
                assert_true(step_same_bits(&steps[0][i], &steps[1][i]));
            steps[again][i].digest = items[i].digest;
        }
        if (again)
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(steps[0][i].digest, steps[1][i].digest);
                step_free(&steps[0][i]);
                step_free(&steps[1][i]);
            }
    }
}

static void check_lengths(banyan_session *session, uint64_t length)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    assert_int_equal(info.length, length);
    assert_int_equal(info.n_layers, LAYERS);
    uint64_t bytes = 0;
    const banyan_kv_type type = banyan_session_spec(session)->kv_type;
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(info.layer_lengths[l], local(l) ? 0 : length);
        if (!stores(l))
            continue;
        const banyan_kind *kind = &kinds[layer_kind[l]];
        uint32_t element = type == BANYAN_F32    ? 4
                           : type == BANYAN_INT8 ? 1
                                                 : 2,
                 scale = type == BANYAN_INT8 ? 4 : 0;
        uint64_t row = kind->k_dim * element + scale + (kind->v_in_k ? 0 : kind->v_dim * element + scale);
        bytes += length * kind->kv_heads * row;
    }
    assert_int_equal(info.bytes, bytes);
    banyan_session_info_free(&info);
}

static void assert_floats(const float *a, const float *b, uint32_t n)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_memory_equal(a, b, n * sizeof(*a));
}

static void check_spec(const banyan_session *session)
{
    const banyan_spec *s = banyan_session_spec(session);
    assert_int_equal(s->layers, LAYERS);
    assert_int_equal(s->n_kinds, KINDS);
    assert_int_equal(s->q_heads, 0);
    assert_memory_equal(s->layer_kind, layer_kind, sizeof(layer_kind));
    assert_memory_equal(s->shares, shares, sizeof(shares));
    for (uint32_t i = 0; i < KINDS; i++) {
        banyan_kind want = kinds[i], got = s->kinds[i];
        assert_true(got.scale > 0 && (want.scale == 0 || want.scale == got.scale));
        assert_int_equal(got.q_heads, want.q_heads);
        assert_int_equal(got.kv_heads, want.kv_heads);
        assert_int_equal(got.k_dim, want.k_dim);
        assert_int_equal(got.v_dim, want.v_dim);
        assert_int_equal(got.window, want.window);
        assert_int_equal(got.mask_chunk, want.mask_chunk);
        assert_int_equal(got.not_causal, want.not_causal);
        assert_int_equal(got.v_in_k, want.v_in_k);
        assert_true(got.soft_cap == want.soft_cap);
        assert_floats(got.alibi, want.alibi, want.q_heads);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_floats(s->layer_sinks[l], layer_sinks[l], local(l) ? 0 : kinds[layer_kind[l]].q_heads);
}

static void live(banyan_kv_type type)
{
    banyan_spec spec = spec_of(type);
    banyan_session *session, *fork;
    struct model m;
    model_init(&m, type, type);
    OK(banyan_session_create(client, &spec, "kinds", &session, ERR));
    check_spec(session);
    fill(session, &m, 0, 210, 50); // prefill in blocks
    check_rows(session, &m, 210, (struct rows){.first = 150, .count = 60}, "first block");
    fill(session, &m, 210, 400, 77);
    check_rows(session, &m, 400, (struct rows){.first = 210, .count = 190}, "second block");
    check_rows(session, &m, 400, (struct rows){.first = 60, .count = 40, .visible = 90},
               "rows before the end");
    check_lengths(session, 400);
    for (uint64_t p = 400; p < 420; p++)
        check_rows(session, &m, p + 1, (struct rows){.first = p, .count = 1, .append = true}, "decode");
    check_rows(session, &m, 420,
               (struct rows){.first = 300, .count = 60, .block_first = 310, .block_count = 90},
               "block of attached rows");
    check_rows(
        session, &m, 470,
        (struct rows){.first = 420, .count = 50, .append = true, .block_first = 425, .block_count = 40},
        "appended with a block");
    OK(banyan_session_fork(session, 450, NULL, &fork, ERR));
    check_spec(fork);
    check_lengths(fork, 450);
    check_rows(fork, &m, 451, (struct rows){.first = 450, .count = 1, .append = true}, "fork");
    banyan_session_close(session);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    OK(banyan_session_open(client, 0, "kinds", &session, ERR));
    check_spec(session);
    check_lengths(session, 470);
    check_rows(session, &m, 470, (struct rows){.first = 440, .count = 30}, "after a restart");
    check_rows(session, &m, 480, (struct rows){.first = 470, .count = 10, .append = true},
               "appended after a restart");
    OK(banyan_session_truncate(session, 333, ERR));
    check_lengths(session, 333);
    check_rows(session, &m, 333, (struct rows){.first = 320, .count = 13}, "truncated");
    check_rows(session, &m, 350, (struct rows){.first = 333, .count = 17, .append = true},
               "truncated, appended");
    check_rows(fork, &m, 452, (struct rows){.first = 451, .count = 1, .append = true},
               "fork after the truncate");
    OK(banyan_session_delete(fork, ERR));
    banyan_session_close(fork);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    model_free(&m);
    print_message("largest error: o %.3g, lse %.3g of what is allowed (%s)\n", worst.o, worst.lse,
                  worst.what);
}

static void all_kinds_of_layers(void **state)
{
    (void)state;
    static const banyan_kv_type types[] = {BANYAN_F32, BANYAN_BF16, BANYAN_INT8};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i += SANITIZED(1, 2, 2))
        live(types[i]);
}

// Rows that see later ones of their own append, more of them than one reduction takes.
static void a_long_append_without_a_causal_mask(void **state)
{
    (void)state;
    enum { ROWS = 1000 };
    banyan_spec spec = {.layers = 1,
                        .q_heads = 16,
                        .kv_heads = 1,
                        .k_dim = 24,
                        .v_dim = 16,
                        .kv_type = BANYAN_BF16,
                        .members = 3,
                        .not_causal = true,
                        .v_in_k = true};
    banyan_session *session;
    struct context context;
    context_init(&context, &spec, ROWS);
    context_random(&context, 0, ROWS, 5);
    for (int block = 0; block < 2; block++) {
        context.spec.not_causal = spec.not_causal = !block;
        context.block_first = block ? 100 : 0;
        context.block_end = block ? 900 : 0;
        OK(banyan_session_create(client, &spec, NULL, &session, ERR));
        struct step step = {.session = session,
                            .rows = ROWS,
                            .block_first = context.block_first,
                            .block_count = context.block_end - context.block_first};
        step_append(&step, &context);
        OK(step_run(client, &step));
        context_check(&context, 0, 0, ROWS, ROWS, step.made_q, step.o, step.lse, &worst, "a long append");
        assert_int_equal(step.length, ROWS);
        step_free(&step);
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
    }
    context_free(&context);
}

static void masses(void **state)
{
    (void)state;
    banyan_spec spec = spec_of(BANYAN_F16);
    banyan_session *session;
    struct model m;
    model_init(&m, BANYAN_F16, 9);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    fill(session, &m, 0, 300, 300);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (local(l))
            continue;
        struct context view = model_view(&m, l);
        banyan_mass mass = {.bins = 5, .per_head = l % 2};
        struct step step = {
            .session = session, .layer = l, .first = 220, .rows = 40, .block_first = 230, .block_count = 50};
        banyan_item item = step_item(&step);
        item.mass = &mass;
        OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
        OK(item.code);
        view.block_first = 230;
        view.block_end = 280;
        context_check_mass(&view, 0, 220, view.spec.not_causal ? 300 : 280, item.q, &mass, NULL, "masses");
        banyan_mass_free(&mass);
        step_free(&step);
    }
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    model_free(&m);
}

// Rows of an open chunk are copied for a fork and for a truncate, whichever layers have any.
static void a_first_layer_that_holds_nothing(void **state)
{
    (void)state;
    static const uint32_t of_layer[2] = {LOCAL, 0};
    banyan_spec spec = {.layers = 2,
                        .kv_type = BANYAN_F32,
                        .chunk_tokens = CHUNK,
                        .n_kinds = 1,
                        .kinds = &kinds[NEAR],
                        .layer_kind = of_layer};
    banyan_spec alone = alike(0, BANYAN_F32);
    struct context own;
    context_init(&own, &alone, 100);
    context_random(&own, 0, 100, 77);
    banyan_session *session, *fork;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    OK(attach(session, 1, &own, 0, 100));
    OK(banyan_commit(session, 1, 0, 100, ERR));
    OK(banyan_session_fork(session, 70, NULL, &fork, ERR));
    OK(banyan_session_truncate(session, 45, ERR));
    banyan_session *const holds[] = {session, fork};
    for (int i = 0; i < 2; i++) {
        uint64_t length = i ? 70 : 45;
        struct step step = {.session = holds[i], .layer = 1, .first = length - 20, .rows = 20, .seed = 5};
        OK(step_run(client, &step));
        context_check(&own, 0, length - 20, 20, length, step.made_q, step.o, step.lse, &worst, "a copy");
        step_free(&step);
        OK(banyan_session_delete(holds[i], ERR));
        banyan_session_close(holds[i]);
    }
    context_free(&own);
}

static void what_a_layer_is_not_for(void **state)
{
    (void)state;
    banyan_spec spec = spec_of(BANYAN_F32);
    banyan_session *session;
    struct model m;
    model_init(&m, BANYAN_F32, 3);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    fill(session, &m, 0, 64, 64);
    const void *k = context_k(&m.own[0], 0, 0), *v = context_v(&m.own[0], 0, 0);
    float q[16 * 72] = {0}, o[16 * 64];
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_attach(session, 2, 0, 8, k, v, ERR)); // holds nothing
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_commit(session, 2, 0, 8, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_attach(session, 9, 0, 8, k, v, ERR)); // reads another's
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_commit(session, 7, 0, 8, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_attach(session, 4, 64, 8, k, v, ERR)); // V lies in K
    FAILS(BANYAN_INVALID_ARGUMENT, "", banyan_attach(session, 0, 64, 8, k, NULL, ERR));
    static const struct {
        uint32_t layer;
        bool k, v;
        uint64_t visible, block_first, block_count;
        banyan_code code;
    } items[] = {
        {.layer = 2, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = LAYERS, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 9, .k = true, .v = true, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 4, .k = true, .v = true, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 0, .k = true, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 0, .visible = 60, .block_first = 40, .block_count = 21, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 0, .block_first = 40, .block_count = UINT64_MAX, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 0, .block_first = UINT64_C(1) << 50, .block_count = 1, .code = BANYAN_INVALID_ARGUMENT},
        {.layer = 0, .block_first = 40, .block_count = 25, .code = BANYAN_OUT_OF_RANGE},
        {.layer = 6, .visible = 65, .code = BANYAN_OUT_OF_RANGE},
        {.layer = 0, .block_first = 40, .block_count = 24, .code = BANYAN_OK},
    };
    for (size_t i = 0; i < sizeof(items) / sizeof(*items); i++) {
        banyan_item item = {.session = session,
                            .layer = items[i].layer,
                            .first = items[i].k ? 64 : 63,
                            .rows = 1,
                            .q = q,
                            .k = items[i].k ? k : NULL,
                            .v = items[i].v ? v : NULL,
                            .visible = items[i].visible,
                            .block_first = items[i].block_first,
                            .block_count = items[i].block_count,
                            .o = o,
                            .error = ERR};
        OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
        support_expect(item.code, items[i].code, NULL, "an item", __FILE__, (int)i);
    }
    check_lengths(session, 64);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    model_free(&m);
}

static struct wire_answer ask(int fd, uint32_t method, const ProtobufCMessage *body,
                              const struct proto_tensor_out *tensors, size_t n_tensors)
{
    static uint64_t id = 500;
    struct wire_frame frame = wire_request(method, ++id, body, tensors, n_tensors);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    struct wire_answer answer = wire_read(fd, 30000);
    assert_false(answer.closed || answer.silent);
    return answer;
}

// What the library would not send, said to the coordinator.
static void by_hand(void **state)
{
    (void)state;
    banyan_spec spec = spec_of(BANYAN_F32);
    banyan_session *session;
    static uint8_t bytes[8192];
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    int fd = wire_dial(harness_cluster_endpoint(cluster, "unix"));
    assert_true(wire_hello(fd));
    static const struct {
        uint32_t layer;
        bool append;
        uint32_t q, k, v; // bytes
        const char *says;
    } items[] = {
        {2, false, 64, 0, 0, "layer 2 of 10 holds nothing"},
        {2, true, 64, 128, 128, "layer 2 of 10 holds nothing"},
        {LAYERS, false, 64, 0, 0, "layer 10 does not exist"},
        {9, true, 256, 128, 128, "layer 9 reads K and V of layer 0"},
        {7, true, 384, 128, 128, "layer 7 reads K and V of layer 3"},
        {4, true, 16 * 72 * 4, 72 * 4, 64 * 4, "v has 256 bytes, the session's shape needs 0"},
        {0, true, 256, 72 * 4, 128, "k has 288 bytes, the session's shape needs 128"},
        {1, false, 256, 0, 0, "q has 256 bytes, the session's shape needs 1024"},
    };
    for (size_t i = 0; i < sizeof(items) / sizeof(*items); i++) {
        Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *list[1] = {&item};
        Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
        attend.n_items = 1;
        attend.items = list;
        item.session = banyan_session_id(session);
        item.layer = items[i].layer;
        item.rows = 1;
        item.append = items[i].append;
        item.q_bytes = items[i].q;
        item.k_bytes = items[i].k;
        item.v_bytes = items[i].v;
        struct common_slice slice[3] = {{bytes, items[i].q}, {bytes, items[i].k}, {bytes, items[i].v}};
        struct proto_tensor_out tensor[3];
        for (int t = 0; t < 3; t++)
            tensor[t] =
                (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {slice[t].len}, &slice[t], 1};
        struct wire_answer a = ask(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, tensor, 3);
        if (a.code != COMMON_OK)
            fail_msg("item %zu: %s", i, a.message);
        Banyan__Pb__AttendReply *reply = banyan__pb__attend_reply__unpack(NULL, a.body_len, a.body);
        assert_non_null(reply);
        const Banyan__Pb__Status *status = reply->items[0]->status;
        if (!status || status->code != BANYAN_INVALID_ARGUMENT || !strstr(status->message, items[i].says))
            fail_msg("item %zu: '%s' does not say '%s'", i, status ? status->message : "", items[i].says);
        banyan__pb__attend_reply__free_unpacked(reply, NULL);
        wire_answer_free(&a);
    }
    static const uint32_t layers[] = {2, 7, 8, 9, LAYERS};
    for (size_t i = 0; i < sizeof(layers) / sizeof(*layers); i++) {
        Banyan__Pb__AttachCommitRequest commit = BANYAN__PB__ATTACH_COMMIT_REQUEST__INIT;
        commit.session = banyan_session_id(session);
        commit.layer = layers[i];
        commit.count = 8;
        struct wire_answer a = ask(fd, BANYAN__PB__METHOD__METHOD_ATTACH_COMMIT, &commit.base, NULL, 0);
        assert_int_equal(a.code, COMMON_INVALID_ARGUMENT);
        wire_answer_free(&a);
    }
    close(fd);
    check_lengths(session, 0);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

static void refused(const banyan_spec *spec, const char *says, int line)
{
    banyan_session *session;
    support_expect(banyan_session_create(client, spec, NULL, &session, ERR), BANYAN_INVALID_ARGUMENT, "",
                   says, __FILE__, line);
    if (!strstr(ERR->message, says))
        fail_msg("%s:%d: '%s' does not say '%s'", __FILE__, line, ERR->message, says);
}

// Each rule of a spec, broken. What is wrong is said by the coordinator, or by the library.
static void wrong_specs(void **state)
{
    (void)state;
    static const uint32_t no_such_kind[LAYERS] = {KINDS},
                          all_local[LAYERS] = {LOCAL, LOCAL, LOCAL, LOCAL, LOCAL,
                                               LOCAL, LOCAL, LOCAL, LOCAL, LOCAL};
    static const uint32_t itself[LAYERS] = {0},
                          other_shape[LAYERS] = {NONE, 0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
                          of_local[LAYERS] = {NONE, NONE, NONE, 2, NONE, NONE, NONE, NONE, NONE, NONE},
                          by_local[LAYERS] = {NONE, NONE, 0, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
                          of_shared[LAYERS] = {NONE, NONE, NONE, 0, NONE, NONE, NONE, 3, NONE, NONE},
                          later[LAYERS] = {3, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE};
    static const float infinite[4] = {0, 0, 0, __builtin_inff()};
    static const float *const bad_sinks[LAYERS] = {infinite}, *const sinks_of_local[LAYERS] = {[2] =
                                                                                                   few_sinks};
// CASE(what the refusal says, what is changed in a good spec): kind is its first kind.
#define CASE(says, change)                                                                                   \
    do {                                                                                                     \
        banyan_spec spec = spec_of(BANYAN_F32);                                                              \
        banyan_kind mine[KINDS], *kind = mine;                                                               \
        memcpy(mine, kinds, sizeof(mine));                                                                   \
        spec.kinds = mine;                                                                                   \
        (void)kind;                                                                                          \
        change;                                                                                              \
        refused(&spec, says, __LINE__);                                                                      \
    } while (0)
    CASE("is of kind 6", spec.layer_kind = no_such_kind);
    CASE("no layer holds anything",
         (spec.layer_kind = all_local, spec.shares = NULL, spec.layer_sinks = NULL));
    CASE("a lower one", spec.shares = itself);
    CASE("a lower one", spec.shares = later);
    CASE("another shape", spec.shares = other_shape);
    CASE("none of its own", spec.shares = of_local);
    CASE("holds nothing", spec.shares = by_local);
    CASE("none of its own", spec.shares = of_shared);
    CASE("below +inf", spec.layer_sinks = bad_sinks);
    CASE("no sinks", spec.layer_sinks = sinks_of_local);
    CASE("with kinds", spec.q_heads = 4);
    CASE("with kinds", spec.window = 4);
    CASE("with kinds", spec.not_causal = true);
    CASE("NULL", spec.layer_kind = NULL);
    CASE("must be NULL", spec.n_kinds = 0);
    CASE("at most 64", spec.n_kinds = 65);
    CASE("1 to 1024 are allowed", spec.layers = 0);
    CASE("KV heads", kind->kv_heads = 3);
    CASE("kind 0: keys", kind->k_dim = 1025);
    CASE("kind 0: values", kind->v_dim = 0);
    CASE("first elements", (kind->v_dim = 17, kind->v_in_k = true));
    CASE("kind 0: scale", kind->scale = -1);
    CASE("kind 0: soft cap", kind->soft_cap = __builtin_inff());
    CASE("kind 0: there must be no ALiBi", kind->alibi = infinite);
    CASE("without a causal mask", kind->not_causal = true);
    CASE("without a causal mask", (kind->not_causal = true, kind->window = 0, kind->mask_chunk = 9));
    CASE("without a causal mask", (kind->not_causal = true, kind->window = 0, kind->alibi = slopes));
#undef CASE
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = 3});
    client = support_connect(cluster, "nng+tcp");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    banyan_disconnect(client);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_of_layers),
        cmocka_unit_test(a_long_append_without_a_causal_mask),
        cmocka_unit_test(masses),
        cmocka_unit_test(a_first_layer_that_holds_nothing),
        cmocka_unit_test(what_a_layer_is_not_for),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(wrong_specs),
    };
    return cmocka_run_group_tests_name("kinds", tests, start, stop);
}
