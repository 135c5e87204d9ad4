// SPDX-License-Identifier: Apache-2.0
// Sessions that forget what windows have left behind: far longer than the workers' memory, exact all the
// same, over forks, truncates and restarts of the coordinator; and what goes too far back is refused, with a
// reason.
#include "tests/e2e/support.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK  64
#define MARGIN 40
#define BLOCK  384
#define WINDOW 100
#define LONG   6144
#define ROOM   (LONG + 256)
#define NONE   BANYAN_SHARES_NONE
#define LOCAL  BANYAN_LAYER_LOCAL

static struct harness_cluster *cluster;
static banyan_client *client;
static struct worst worst;

// Layers with windows, one with pieces, and a narrow one that sees all. WIDE reads what NEAR holds, with
// another window.
enum { NEAR, PIECES, FAR, WIDE, KINDS };
static const banyan_kind kinds[KINDS] = {
    [NEAR] = {.q_heads = 4, .kv_heads = 4, .k_dim = 64, .v_dim = 64, .window = WINDOW},
    [PIECES] = {.q_heads = 4, .kv_heads = 4, .k_dim = 64, .v_dim = 64, .mask_chunk = 96},
    [FAR] = {.q_heads = 2, .kv_heads = 1, .k_dim = 16, .v_dim = 16},
    [WIDE] = {.q_heads = 8, .kv_heads = 4, .k_dim = 64, .v_dim = 64, .window = 150},
};
#define LAYERS 7
static const uint32_t layer_kind[LAYERS] = {NEAR, FAR, PIECES, NEAR, LOCAL, WIDE, NEAR},
                      shares[LAYERS] = {NONE, NONE, NONE, NONE, NONE, 3, NONE};

static const banyan_spec spec = {.layers = LAYERS,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = CHUNK,
                                 .members = 2,
                                 .n_kinds = KINDS,
                                 .kinds = kinds,
                                 .layer_kind = layer_kind,
                                 .shares = shares,
                                 .forget = MARGIN};

static struct context held[KINDS]; // what all layers of a kind hold; none of WIDE

static bool stores(uint32_t layer)
{
    return layer_kind[layer] != LOCAL && shares[layer] == NONE;
}

static banyan_spec alike(uint32_t kind)
{
    return (banyan_spec){.layers = 1,
                         .q_heads = kinds[kind].q_heads,
                         .kv_heads = kinds[kind].kv_heads,
                         .k_dim = kinds[kind].k_dim,
                         .v_dim = kinds[kind].v_dim,
                         .kv_type = BANYAN_F32,
                         .window = kinds[kind].window,
                         .mask_chunk = kinds[kind].mask_chunk,
                         .chunk_tokens = CHUNK};
}

static struct context view_of(uint32_t layer)
{
    struct context view = held[stores(layer) ? layer_kind[layer] : layer_kind[shares[layer]]];
    view.spec = alike(layer_kind[layer]);
    return view;
}

static uint64_t row_bytes(uint32_t layer)
{
    const banyan_kind *kind = &kinds[layer_kind[layer]];
    return (uint64_t)kind->kv_heads * (kind->k_dim + kind->v_dim) * sizeof(float);
}

// A block of a prompt, as an engine does it: layer by layer attached, committed, attended.
static void prefill(banyan_session *session, uint64_t first, uint64_t count)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (layer_kind[l] == LOCAL)
            continue;
        struct context view = view_of(l);
        if (stores(l)) {
            OK(banyan_attach(session, l, first, count, context_k(&view, 0, first), context_v(&view, 0, first),
                             ERR));
            OK(banyan_commit(session, l, first, count, ERR));
        }
        struct step step = {.session = session, .layer = l, .first = first, .rows = 4, .seed = first + l};
        OK(step_run(client, &step));
        context_check(&view, 0, first, 4, 0, step.made_q, step.o, step.lse, &worst, "prefill");
        step_free(&step);
    }
}

// One token, as a model makes it. length: after it.
static void decode(banyan_session *session, uint64_t position, const char *what)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (layer_kind[l] == LOCAL)
            continue;
        struct context view = view_of(l);
        struct step step = {
            .session = session, .layer = l, .first = position, .rows = 1, .seed = position + l};
        if (stores(l)) {
            step.k = context_k(&view, 0, position);
            step.v = context_v(&view, 0, position);
        }
        OK(step_run(client, &step));
        context_check(&view, 0, position, 1, 0, step.made_q, step.o, step.lse, &worst, what);
        step_free(&step);
    }
}

// A row that reads, alone or at the end of a block.
static banyan_code ask(banyan_session *session, uint32_t layer, uint64_t first, uint64_t block_first)
{
    struct step step = {.session = session,
                        .layer = layer,
                        .first = first,
                        .rows = 1,
                        .block_first = block_first,
                        .block_count = block_first ? first + 1 - block_first : 0,
                        .seed = 1};
    banyan_code code = step_run(client, &step);
    step_free(&step);
    return code;
}

static uint64_t floor_of(banyan_session *session)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    uint64_t floor = info.forgotten;
    banyan_session_info_free(&info);
    return floor;
}

// What the session says of itself: each layer's first row that is not forgotten, and the bytes that are held.
static void check_info(banyan_session *session, uint64_t length)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    const uint64_t floor = info.forgotten, near = floor - WINDOW + 1, far = floor - 150 + 1,
                   from[LAYERS] = {near, 0, floor - floor % 96, far, 0, far, near}; // 5 reads what 3 holds
    uint64_t bytes = 0;
    assert_int_equal(info.length, length);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(info.layer_forgotten[l], from[l]);
        if (stores(l))
            bytes += (length - from[l] / CHUNK * CHUNK) * row_bytes(l);
    }
    assert_int_equal(info.bytes, bytes);
    banyan_session_info_free(&info);
}

static uint64_t capacity(void)
{
    banyan_cluster_info info;
    uint64_t bytes = 0;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        bytes += info.workers[i].capacity_bytes;
    banyan_cluster_info_free(&info);
    return bytes;
}

// Behind the floor no step goes, at it every step may.
static void check_refusals(banyan_session *session)
{
    static const uint32_t windowed[] = {0, 2, 3, 5, 6};
    const uint64_t floor = floor_of(session);
    banyan_session *fork;
    for (size_t i = 0; i < sizeof(windowed) / sizeof(*windowed); i++) {
        FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(session, windowed[i], 1000, 0));
        FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(session, windowed[i], floor, 500));
        OK(ask(session, windowed[i], floor, 0));
    }
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(session, 0, floor - 1, 0));
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(session, 0, floor, floor - WINDOW)); // a key too far
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", ask(session, 5, floor - 1, 0));          // its own window
    OK(ask(session, 1, 0, 0));
    OK(ask(session, 1, 1000, 500));
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", banyan_session_truncate(session, floor - 1, ERR));
    assert_non_null(strstr(ERR->message, "are possible"));
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN", banyan_session_fork(session, 200, NULL, &fork, ERR));
    struct context view = view_of(0);
    FAILS(BANYAN_FAILED_PRECONDITION, "FORGOTTEN",
          banyan_attach(session, 0, 64, 64, context_k(&view, 0, 64), context_v(&view, 0, 64), ERR));
    OK(banyan_commit(session, 0, 64, 640, ERR)); // it was
}

static void decode_many(banyan_session *session, uint64_t from, uint64_t to, const char *what)
{
    for (uint64_t p = from; p < to; p++)
        decode(session, p, what);
}

static void far_longer_than_memory(void **state)
{
    (void)state;
    banyan_session *session, *fork;
    uint64_t all = 0, most = 0, end = LONG + 110;
    OK(banyan_session_create(client, &spec, "forgetful", &session, ERR));
    assert_int_equal(banyan_session_spec(session)->forget, MARGIN);
    for (uint64_t at = 0; at < LONG; at += BLOCK) {
        prefill(session, at, BLOCK);
        uint64_t used = support_used_bytes(client);
        most = used > most ? used : most;
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        all += stores(l) ? LONG * row_bytes(l) : 0;
    assert_true(all > 3 * capacity()); // the whole would not fit
    assert_true(most <= capacity());
    assert_int_equal(floor_of(session), LONG - BLOCK - MARGIN);
    check_info(session, LONG);
    check_refusals(session);
    decode_many(session, LONG, end, "decode");
    assert_true(floor_of(session) > LONG);
    check_info(session, end);
    OK(banyan_session_fork(session, end - MARGIN, NULL, &fork, ERR));
    check_info(fork, end - MARGIN);
    decode_many(fork, end - MARGIN, end, "fork");
    banyan_session_close(session);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    OK(banyan_session_open(client, 0, "forgetful", &session, ERR));
    check_info(session, end);
    check_refusals(session);
    OK(banyan_session_truncate(session, end - MARGIN, ERR)); // as speculative decoding does
    check_info(session, end - MARGIN);
    decode_many(session, end - MARGIN, end + 90, "after a truncate and a restart");
    decode(fork, end, "fork after a restart");
    assert_true(floor_of(session) > end - MARGIN);
    check_info(session, end + 90);
    OK(banyan_session_delete(fork, ERR));
    banyan_session_close(fork);
    decode(session, end + 90, "after the fork");
    OK(banyan_session_truncate(session, 0, ERR)); // it may begin again
    assert_int_equal(floor_of(session), 0);
    prefill(session, 0, BLOCK);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    EVENTUALLY(60, support_used_bytes(client) == 0);
}

// The same session twice, one that forgets and one that does not: the same bits.
static void the_same_bits(void **state)
{
    (void)state;
    enum { SHORT = BLOCK };
    banyan_session *sessions[2];
    for (int keeps = 0; keeps < 2; keeps++) {
        banyan_spec mine = spec;
        mine.members = 1;
        mine.forget = keeps ? 0 : 1;
        OK(banyan_session_create(client, &mine, NULL, &sessions[keeps], ERR));
        for (uint64_t at = 0; at < SHORT; at += BLOCK / 4)
            prefill(sessions[keeps], at, BLOCK / 4);
        decode(sessions[keeps], SHORT, "two alike");
    }
    assert_true(floor_of(sessions[0]) > 2 * CHUNK + WINDOW);
    assert_int_equal(floor_of(sessions[1]), 0);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (layer_kind[l] == LOCAL)
            continue;
        struct step steps[2];
        for (int i = 0; i < 2; i++) {
            steps[i] =
                (struct step){.session = sessions[i], .layer = l, .first = SHORT - 1, .rows = 2, .seed = l};
            OK(step_run(client, &steps[i]));
        }
        assert_true(step_same_bits(&steps[0], &steps[1]));
        step_free(&steps[0]);
        step_free(&steps[1]);
    }
    OK(ask(sessions[1], 0, 100, 0)); // who keeps all looks back as far as it likes
    for (int i = 0; i < 2; i++) {
        OK(banyan_session_delete(sessions[i], ERR));
        banyan_session_close(sessions[i]);
    }
}

// Where rows looked: what was forgotten has no mass.
static void masses(void **state)
{
    (void)state;
    banyan_session *session;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint64_t at = 0; at < 4 * BLOCK; at += BLOCK)
        prefill(session, at, BLOCK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (layer_kind[l] == LOCAL)
            continue;
        struct context view = view_of(l);
        banyan_mass mass = {.bins = 8};
        struct step step = {.session = session, .layer = l, .first = 4 * BLOCK - 3, .rows = 3, .seed = l};
        banyan_item item = step_item(&step);
        item.mass = &mass;
        OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
        OK(item.code);
        context_check_mass(&view, 0, step.first, 0, item.q, &mass, NULL, "masses");
        banyan_mass_free(&mass);
        step_free(&step);
    }
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = 2, .memory = "16M"});
    client = support_connect(cluster, "nng+tcp");
    for (uint32_t k = 0; k < WIDE; k++) {
        banyan_spec one = alike(k);
        context_init(&held[k], &one, ROOM);
        context_random(&held[k], 0, ROOM, 7 + k);
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < WIDE; k++)
        context_free(&held[k]);
    banyan_disconnect(client);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(far_longer_than_memory),
                                       cmocka_unit_test(the_same_bits), cmocka_unit_test(masses)};
    return cmocka_run_group_tests_name("forget", tests, start, stop);
}
