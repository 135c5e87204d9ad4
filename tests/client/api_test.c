// SPDX-License-Identifier: Apache-2.0
// The whole public API against a real cluster (one coordinator, three workers as processes), over each
// transport.
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "common/clock.h"
#include "tests/client/mirror.h"
#include "tests/harness/cluster.h"

static struct harness_cluster *cluster;
static const char *transport;
static banyan_client *client;

static const banyan_spec small_spec = {
    .layers = 2, .q_heads = 4, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_BF16};

#define OK(call)                                                                                             \
    do {                                                                                                     \
        banyan_error error_ = {0};                                                                           \
        banyan_error *err = &error_;                                                                         \
        if ((call) != BANYAN_OK)                                                                             \
            fail_msg("%s: %s %s (%s)", #call, banyan_code_name(error_.code), error_.message, error_.reason); \
    } while (0)

static int connect_client(void **state)
{
    (void)state;
    banyan_error error;
    banyan_options options = {.timeout_ns = 120 * COMMON_NS_PER_S};
    if (banyan_connect(harness_cluster_endpoint(cluster, transport), &options, &client, &error) == BANYAN_OK)
        return 0;
    fprintf(stderr, "%s\n", error.message);
    return -1;
}

static int disconnect_client(void **state)
{
    (void)state;
    banyan_disconnect(client);
    client = NULL;
    return 0;
}

static banyan_session *new_session(const banyan_spec *spec)
{
    banyan_session *session = NULL;
    OK(banyan_session_create(client, spec, NULL, &session, err));
    return session;
}

static void drop_session(banyan_session *session)
{
    OK(banyan_session_delete(session, err));
    banyan_session_close(session);
}

static void attach_all(banyan_session *session, const struct mirror *m, uint64_t first, uint64_t count)
{
    for (uint32_t layer = 0; layer < banyan_session_spec(session)->layers; layer++) {
        if (banyan_kv_scaled(banyan_session_spec(session)->kv_type))
            OK(banyan_attach_scaled(session, layer, first, count, mirror_k(m, layer, first),
                                    mirror_k_scale(m, layer, first), mirror_v(m, layer, first),
                                    mirror_v_scale(m, layer, first), err));
        else
            OK(banyan_attach(session, layer, first, count, mirror_k(m, layer, first),
                             mirror_v(m, layer, first), err));
        OK(banyan_commit(session, layer, first, count, err));
    }
}

struct question {
    banyan_item item;
    banyan_error error;
    float *o, *lse;
};

static void make_question(struct question *q, banyan_session *session, const struct mirror *m, uint32_t layer,
                          uint64_t first, uint32_t rows, bool append)
{
    const banyan_spec *spec = banyan_session_spec(session);
    q->o = calloc((size_t)rows * spec->q_heads, spec->v_dim * sizeof(float));
    q->lse = calloc((size_t)rows * spec->q_heads, sizeof(float));
    q->item = (banyan_item){
        .session = session,
        .layer = layer,
        .first = first,
        .rows = rows,
        .q = mirror_q(m, first),
        .k = append ? mirror_k(m, layer, first) : NULL,
        .v = append ? mirror_v(m, layer, first) : NULL,
        .k_scale = append ? mirror_k_scale(m, layer, first) : NULL,
        .v_scale = append ? mirror_v_scale(m, layer, first) : NULL,
        .o = q->o,
        .lse = q->lse,
        .error = &q->error,
    };
}

static void free_question(struct question *q)
{
    free(q->o);
    free(q->lse);
}

static void ask_and_check(banyan_session *session, const struct mirror *m, uint32_t layer, uint64_t first,
                          uint32_t rows, bool append)
{
    struct question q;
    make_question(&q, session, m, layer, first, rows, append);
    OK(banyan_attend(client, &q.item, 1, 0, NULL, err));
    if (q.item.code != BANYAN_OK)
        fail_msg("item: %s: %s", banyan_code_name(q.item.code), q.error.message);
    mirror_check(m, layer, first, rows, 0, q.o, q.lse);
    free_question(&q);
}

static banyan_code ask_code(banyan_session *session, const struct mirror *m, uint32_t layer, uint64_t first,
                            uint32_t rows, bool append, banyan_error *error)
{
    struct question q;
    make_question(&q, session, m, layer, first, rows, append);
    OK(banyan_attend(client, &q.item, 1, 0, NULL, err));
    *error = q.error;
    if (q.item.code != BANYAN_OK)
        assert_true(q.o[0] == 0 && q.lse[0] == 0); // outputs are written only on success
    free_question(&q);
    return q.item.code;
}

// ---- tests -----------------------------------------------------------------------------------------------

static void test_cluster(void **state)
{
    (void)state;
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, err));
    assert_string_equal(info.version, banyan_version());
    assert_int_equal(info.n_workers, 3);
    assert_true(info.term > 0);
    for (uint32_t i = 0; i < info.n_workers; i++) {
        assert_string_equal(info.workers[i].state, "active");
        assert_in_range(info.workers[i].capacity_bytes, 1, UINT64_C(64) << 20);
        assert_true(info.workers[i].bandwidth > 0);
    }
    banyan_cluster_info_free(&info);
    uint64_t rtt;
    OK(banyan_ping(client, &rtt, err));
}

static void test_session_life(void **state)
{
    (void)state;
    banyan_session *session, *again, *by_name, *none = NULL;
    banyan_session_info info;
    banyan_session_list list;
    banyan_error error;
    float slopes[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    banyan_spec spec = small_spec;
    spec.alibi = slopes;
    OK(banyan_session_create(client, &spec, "a name", &session, err));
    uint64_t id = banyan_session_id(session);
    assert_int_not_equal(id, 0);
    assert_int_equal(banyan_session_create(client, &spec, "a name", &none, &error), BANYAN_ALREADY_EXISTS);
    OK(banyan_session_open(client, id, NULL, &again, err));
    OK(banyan_session_open(client, 0, "a name", &by_name, err));
    assert_int_equal(banyan_session_id(by_name), id);
    assert_memory_equal(banyan_session_spec(again)->alibi, slopes, sizeof slopes);
    assert_int_equal(banyan_session_spec(again)->k_dim, 16);
    OK(banyan_session_get_info(again, &info, err));
    assert_string_equal(info.name, "a name");
    assert_int_equal(info.id, id);
    assert_int_equal(info.n_layers, 2);
    assert_int_equal(info.length, 0);
    banyan_session_info_free(&info);
    OK(banyan_session_get_list(client, &list, err));
    unsigned seen = 0;
    for (uint32_t i = 0; i < list.n; i++)
        seen += list.sessions[i].id == id;
    assert_int_equal(seen, 1);
    banyan_session_list_free(&list);
    banyan_session_close(again);
    OK(banyan_session_get_info(by_name, &info, err)); // closing one hold leaves the others
    banyan_session_info_free(&info);
    OK(banyan_session_delete(session, err));
    assert_int_equal(banyan_session_delete(session, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_get_info(by_name, &info, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_open(client, id, NULL, &none, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_open(client, 0, "a name", &none, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_open(client, 0, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    assert_null(none);
    struct mirror *m = mirror_new(&small_spec, 4, 1);
    assert_int_equal(ask_code(session, m, 0, 0, 1, true, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_attach(session, 0, 0, 4, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error),
                     BANYAN_NOT_FOUND);
    mirror_free(m);
    banyan_session_close(by_name);
    banyan_session_close(session);
}

static void test_bad_specs(void **state)
{
    (void)state;
    banyan_session *none = NULL;
    banyan_error error;
    banyan_spec spec = small_spec;
    spec.kv_heads = 3;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = small_spec;
    spec.k_dim = 0;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = small_spec;
    spec.layers = 100000;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = small_spec;
    spec.chunk_tokens = 100;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = small_spec;
    spec.kv_type = 9;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = small_spec;
    spec.scale = NAN;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    assert_null(none);
}

struct part {
    banyan_session *session;
    const struct mirror *m;
    uint64_t first, step, end;
    banyan_code code;
    banyan_error error;
};

// Every step-th run of 37 tokens, last ones first, layers alternating.
static void *attach_part(void *arg)
{
    struct part *part = arg;
    uint64_t n = (part->end - part->first + part->step - 1) / part->step;
    for (uint64_t i = n; i-- > 0 && part->code == BANYAN_OK;) {
        uint64_t first = part->first + i * part->step;
        uint64_t count = part->end - first < 37 ? part->end - first : 37;
        for (uint32_t layer = 2; layer-- > 0 && part->code == BANYAN_OK;)
            part->code = banyan_attach(part->session, layer, first, count, mirror_k(part->m, layer, first),
                                       mirror_v(part->m, layer, first), &part->error);
    }
    return NULL;
}

static void test_attach_any_order_in_parallel(void **state)
{
    (void)state;
    enum { TOKENS = 2000, THREADS = 4 };
    banyan_spec spec = small_spec;
    spec.members = 3;
    banyan_session *session = new_session(&spec);
    struct mirror *m = mirror_new(&spec, TOKENS, 2), *wrong = mirror_new(&spec, TOKENS, 3);
    banyan_error error;
    // Sent again before the commit: the last word counts.
    OK(banyan_attach(session, 1, 100, 500, mirror_k(wrong, 1, 100), mirror_v(wrong, 1, 100), err));
    struct part parts[THREADS];
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        parts[i] =
            (struct part){.session = session, .m = m, .first = i * 37, .step = THREADS * 37, .end = TOKENS};
        pthread_create(&threads[i], NULL, attach_part, &parts[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (parts[i].code != BANYAN_OK)
            fail_msg("%s", parts[i].error.message);
    }
    // Not visible before the commit.
    assert_int_equal(ask_code(session, m, 0, 10, 1, false, &error), BANYAN_OUT_OF_RANGE);
    OK(banyan_commit(session, 0, 500, 500, err)); // ranges in any order too
    assert_int_equal(ask_code(session, m, 0, 600, 1, false, &error), BANYAN_FAILED_PRECONDITION);
    assert_string_equal(error.reason, "HOLE");
    assert_int_equal(error.n_ranges, 1);
    assert_int_equal(error.ranges[0].first, 0);
    assert_int_equal(error.ranges[0].count, 500);
    OK(banyan_commit(session, 0, 0, TOKENS, err));
    OK(banyan_commit(session, 1, 0, TOKENS, err));
    OK(banyan_commit(session, 1, 0, TOKENS, err)); // again: nothing changes
    for (uint32_t layer = 0; layer < 2; layer++) {
        ask_and_check(session, m, layer, TOKENS - 1, 1, false);
        ask_and_check(session, m, layer, 0, 1, false);
        ask_and_check(session, m, layer, 700, 20, false);
    }
    // Committed rows are not altered: the same bytes are fine, others are not.
    OK(banyan_attach(session, 0, 0, TOKENS, mirror_k(m, 0, 0), mirror_v(m, 0, 0), err));
    assert_int_equal(banyan_attach(session, 0, 30, 5, mirror_k(wrong, 0, 30), mirror_v(wrong, 0, 30), &error),
                     BANYAN_FAILED_PRECONDITION);
    ask_and_check(session, m, 0, TOKENS - 1, 1, false);
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, err));
    assert_int_equal(info.length, TOKENS);
    assert_int_equal(info.n_members, 3);
    banyan_session_info_free(&info);
    mirror_free(m);
    mirror_free(wrong);
    drop_session(session);
}

static void test_commit_names_what_is_missing(void **state)
{
    (void)state;
    banyan_session *session = new_session(&small_spec);
    struct mirror *m = mirror_new(&small_spec, 600, 4);
    banyan_error error;
    OK(banyan_attach(session, 0, 0, 100, mirror_k(m, 0, 0), mirror_v(m, 0, 0), err));
    OK(banyan_attach(session, 0, 150, 450, mirror_k(m, 0, 150), mirror_v(m, 0, 150), err));
    assert_int_equal(banyan_commit(session, 0, 0, 600, &error), BANYAN_FAILED_PRECONDITION);
    assert_string_equal(error.reason, "HOLE");
    assert_int_equal(error.n_ranges, 1);
    assert_int_equal(error.ranges[0].first, 100);
    assert_int_equal(error.ranges[0].count, 50);
    // What was refused is not frozen.
    OK(banyan_attach(session, 0, 90, 70, mirror_k(m, 0, 90), mirror_v(m, 0, 90), err));
    OK(banyan_commit(session, 0, 0, 600, err));
    ask_and_check(session, m, 0, 599, 1, false);
    assert_int_equal(banyan_attach(session, 2, 0, 1, m, m, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(banyan_attach(session, 0, 0, 0, m, m, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(banyan_attach(session, 0, UINT64_MAX - 1, 2, m, m, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(banyan_attach(session, 0, 0, 1, NULL, m, &error), BANYAN_INVALID_ARGUMENT);
    mirror_free(m);
    drop_session(session);
}

static void test_decode_token_by_token(void **state)
{
    (void)state;
    enum { PROMPT = 250, TOKENS = 300 };
    banyan_session *session = new_session(&small_spec);
    struct mirror *m = mirror_new(&small_spec, TOKENS, 5);
    struct mirror *wrong = mirror_new(&small_spec, TOKENS, 6);
    banyan_error error;
    attach_all(session, m, 0, PROMPT);
    for (uint64_t t = PROMPT; t < TOKENS; t++)
        for (uint32_t layer = 0; layer < 2; layer++)
            ask_and_check(session, m, layer, t, 1, true);
    ask_and_check(session, m, 0, TOKENS - 1, 1, true); // the same bytes again: a no-op
    assert_int_equal(ask_code(session, wrong, 0, TOKENS - 1, 1, true, &error), BANYAN_FAILED_PRECONDITION);
    ask_and_check(session, m, 0, TOKENS - 1, 1, false);
    assert_int_equal(ask_code(session, m, 1, TOKENS - 1, 1, false, &error), BANYAN_OK);
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, err));
    assert_int_equal(info.layer_lengths[0], TOKENS);
    assert_int_equal(info.layer_lengths[1], TOKENS);
    banyan_session_info_free(&info);
    mirror_free(m);
    mirror_free(wrong);
    drop_session(session);
}

static void test_positions_beyond(void **state)
{
    (void)state;
    banyan_session *session = new_session(&small_spec);
    struct mirror *m = mirror_new(&small_spec, 100, 7);
    banyan_error error;
    assert_int_equal(ask_code(session, m, 0, 0, 1, false, &error), BANYAN_OUT_OF_RANGE);
    assert_int_not_equal(ask_code(session, m, 0, 5, 1, true, &error),
                         BANYAN_OK); // an append that is not at the end
    ask_and_check(session, m, 0, 0, 10, true);
    assert_int_equal(ask_code(session, m, 0, 10, 1, false, &error), BANYAN_OUT_OF_RANGE);
    // visible cuts what a row sees.
    struct question q;
    make_question(&q, session, m, 0, 8, 2, false);
    q.item.visible = 5;
    OK(banyan_attend(client, &q.item, 1, 0, NULL, err));
    assert_int_equal(q.item.code, BANYAN_OK);
    mirror_check(m, 0, 8, 2, 5, q.o, q.lse);
    free_question(&q);
    mirror_free(m);
    drop_session(session);
}

static void test_kinds_of_attention(void **state)
{
    (void)state;
    static const float slopes[6] = {0.5f, 0.25f, 0.125f, 0.06f, 0.03f, 0.01f},
                       sinks[6] = {0, 1, -1, 2, -5, 3};
    const banyan_spec specs[] = {
        {.layers = 1,
         .q_heads = 6,
         .kv_heads = 6,
         .k_dim = 24,
         .v_dim = 40,
         .kv_type = BANYAN_F32,
         .chunk_tokens = 16,
         .members = 3},
        {.layers = 1,
         .q_heads = 6,
         .kv_heads = 1,
         .k_dim = 33,
         .v_dim = 7,
         .kv_type = BANYAN_F16,
         .scale = 2,
         .alibi = slopes,
         .chunk_tokens = 32,
         .members = 2},
        {.layers = 1,
         .q_heads = 6,
         .kv_heads = 3,
         .k_dim = 64,
         .v_dim = 64,
         .kv_type = BANYAN_BF16,
         .sinks = sinks,
         .soft_cap = 5,
         .window = 50,
         .members = 3,
         .chunk_tokens = 64},
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        banyan_session *session = new_session(&specs[i]);
        struct mirror *m = mirror_new(&specs[i], 400, 10 + i);
        attach_all(session, m, 0, 390);
        ask_and_check(session, m, 0, 390, 10, true);
        ask_and_check(session, m, 0, 0, 400, false);
        mirror_free(m);
        drop_session(session);
    }
}

// Codes and scales go in and come back as attention: attached, appended (also across many RPCs), forked and
// truncated.
static void test_quantised(void **state)
{
    (void)state;
    for (banyan_kv_type type = BANYAN_INT8; type <= BANYAN_FP8; type++) {
        const banyan_spec spec = {.layers = 2,
                                  .q_heads = 6,
                                  .kv_heads = 3,
                                  .k_dim = 40,
                                  .v_dim = 24,
                                  .kv_type = type,
                                  .chunk_tokens = 32,
                                  .members = 3};
        banyan_session *session = new_session(&spec), *fork = NULL;
        struct mirror *m = mirror_new(&spec, 900, 50 + type), *other = mirror_new(&spec, 900, 50 + type);
        attach_all(session, m, 0, 333);
        ask_and_check(session, m, 0, 333, 77, true);
        ask_and_check(session, m, 1, 333, 1, true);
        ask_and_check(session, m, 1, 334, 76, true);
        ask_and_check(session, m, 1, 100, 310, false);
        banyan_session_info info;
        OK(banyan_session_get_info(session, &info, err));
        assert_int_equal(info.bytes, UINT64_C(2) * 410 * 3 * (40 + 4 + 24 + 4));
        banyan_session_info_free(&info);
        OK(banyan_session_fork(session, 205, NULL, &fork, err));
        OK(banyan_session_truncate(session, 150, err));
        mirror_change(other, 205, 77);
        ask_and_check(fork, other, 0, 205, 20, true);
        ask_and_check(session, m, 0, 150, 500, true); // more than a MiB: in parts
        ask_and_check(fork, other, 0, 0, 225, false);
        ask_and_check(session, m, 0, 640, 10, false);
        mirror_free(m);
        mirror_free(other);
        drop_session(fork);
        drop_session(session);
    }
}

static void test_scales_where_they_belong(void **state)
{
    (void)state;
    banyan_error error;
    banyan_spec spec = small_spec;
    spec.kv_type = BANYAN_INT8;
    banyan_session *scaled = new_session(&spec), *plain = new_session(&small_spec);
    struct mirror *m = mirror_new(&spec, 4, 60), *n = mirror_new(&small_spec, 4, 60);
    const void *k = mirror_k(m, 0, 0), *v = mirror_v(m, 0, 0);
    const float *ks = mirror_k_scale(m, 0, 0), *vs = mirror_v_scale(m, 0, 0);
#define SAYS(call, text)                                                                                     \
    do {                                                                                                     \
        assert_int_equal(call, BANYAN_INVALID_ARGUMENT);                                                     \
        if (!strstr(error.message, text))                                                                    \
            fail_msg("%s: '%s' without '%s'", #call, error.message, text);                                   \
    } while (0)
    SAYS(banyan_attach(scaled, 0, 0, 4, k, v, &error), "banyan_attach_scaled");
    SAYS(banyan_attach_scaled(plain, 0, 0, 4, k, ks, v, vs, &error), "use banyan_attach");
    SAYS(banyan_attach_scaled(scaled, 0, 0, 4, k, NULL, v, vs, &error), "k_scale or v_scale is NULL");
    SAYS(banyan_attach_scaled(scaled, 0, 0, 4, k, ks, v, NULL, &error), "k_scale or v_scale is NULL");
    SAYS(banyan_attach_scaled(scaled, 0, 0, 4, NULL, ks, v, vs, &error), "k or v is NULL");
    SAYS(banyan_attach_scaled(scaled, 2, 0, 4, k, ks, v, vs, &error), "layer 2");
    struct question q;
    static const struct {
        bool scaled, k, ks, vs;
        const char *text;
    } cases[] = {
        {true, true, false, false, "k_scale and v_scale go with k and v"},
        {true, true, true, false, "k_scale and v_scale go with k and v"},
        {true, true, false, true, "k_scale and v_scale go with k and v"},
        {true, false, true, true, "of BANYAN_INT8 and BANYAN_FP8 only"},
        {false, true, true, false, "of BANYAN_INT8 and BANYAN_FP8 only"},
        {false, true, false, true, "of BANYAN_INT8 and BANYAN_FP8 only"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_question(&q, cases[i].scaled ? scaled : plain, cases[i].scaled ? m : n, 0, 0, 4, cases[i].k);
        q.item.k_scale = cases[i].ks ? ks : NULL;
        q.item.v_scale = cases[i].vs ? vs : NULL;
        OK(banyan_attend(client, &q.item, 1, 0, NULL, err));
        error = q.error;
        SAYS(q.item.code, cases[i].text);
        free_question(&q);
    }
#undef SAYS
    ask_and_check(scaled, m, 0, 0, 4, true);
    float x[6] = {0}, scales[2];
    int8_t codes[6];
    assert_int_equal(banyan_quantise(BANYAN_BF16, x, 2, 3, codes, scales), BANYAN_INVALID_ARGUMENT);
    x[0] = 1, x[1] = -2, x[5] = 254;
    assert_int_equal(banyan_quantise(BANYAN_INT8, x, 2, 3, codes, scales), BANYAN_OK);
    assert_memory_equal(codes, ((const int8_t[]){64, -127, 0, 0, 0, 127}), 6); // 63.5 to the even
    assert_true(scales[0] == 2.0f / 127 && scales[1] == 2);
    assert_true(banyan_kv_scaled(BANYAN_FP8) && !banyan_kv_scaled(BANYAN_F16));
    mirror_free(m);
    mirror_free(n);
    drop_session(scaled);
    drop_session(plain);
}

static void test_prefill_block_in_slabs(void **state)
{
    (void)state;
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 16,
                              .kv_heads = 4,
                              .k_dim = 64,
                              .v_dim = 64,
                              .kv_type = BANYAN_BF16,
                              .members = 3};
    banyan_session *session = new_session(&spec);
    struct mirror *m = mirror_new(&spec, 1200, 20);
    attach_all(session, m, 0, 1200);
    struct question q;
    make_question(&q, session, m, 0, 700, 500, false); // 2 MB of o
    OK(banyan_attend(client, &q.item, 1, 0, NULL, err));
    assert_int_equal(q.item.code, BANYAN_OK);
    for (uint64_t row = 0; row < 500; row += 41) // the reference takes its time
        mirror_check(m, 0, 700 + row, 1, 0, q.o + row * 16 * 64, q.lse + row * 16);
    free_question(&q);
    mirror_free(m);
    drop_session(session);
}

static void test_batch_over_sessions(void **state)
{
    (void)state;
    enum { N = 40 };
    banyan_session *sessions[N];
    struct mirror *m = mirror_new(&small_spec, 64, 30);
    struct question questions[N];
    banyan_item items[N];
    for (uint32_t i = 0; i < N; i++) {
        sessions[i] = new_session(&small_spec);
        make_question(&questions[i], sessions[i], m, i % 2, 0, 1 + i % 7, true);
        if (i == 11)
            questions[i].item.first = 20; // bad: not at the end
        if (i == 12)
            questions[i].item.layer = 9;
        items[i] = questions[i].item;
    }
    banyan_trace trace;
    OK(banyan_attend(client, items, N, 0, &trace, err));
    assert_true(trace.n_workers > 0 && trace.tree_ns > 0);
    banyan_trace_free(&trace);
    for (uint32_t i = 0; i < N; i++) {
        if (i == 11 || i == 12) {
            assert_int_not_equal(items[i].code, BANYAN_OK);
            assert_int_equal(items[i].code, questions[i].error.code);
            assert_true(questions[i].o[0] == 0);
        } else {
            assert_int_equal(items[i].code, BANYAN_OK);
            assert_int_equal(items[i].length, items[i].rows);
            mirror_check(m, i % 2, 0, items[i].rows, 0, questions[i].o, questions[i].lse);
        }
        free_question(&questions[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        drop_session(sessions[i]);
    mirror_free(m);
}

static void test_truncate(void **state)
{
    (void)state;
    banyan_spec spec = small_spec;
    spec.members = 2;
    banyan_session *session = new_session(&spec), *other;
    struct mirror *m = mirror_new(&spec, 900, 40);
    banyan_error error;
    attach_all(session, m, 0, 800);
    OK(banyan_session_open(client, banyan_session_id(session), NULL, &other, err));
    OK(banyan_session_truncate(session, 300, err)); // inside a sealed chunk
    assert_int_equal(ask_code(session, m, 0, 300, 1, false, &error), BANYAN_OUT_OF_RANGE);
    ask_and_check(session, m, 1, 299, 1, false);
    // Another history from there on.
    mirror_change(m, 300, 41);
    ask_and_check(session, m, 0, 300, 3, true);
    ask_and_check(session, m, 1, 300, 3, true);
    attach_all(session, m, 303, 597);
    ask_and_check(session, m, 0, 899, 1, false);
    // A hold that has not heard of it is told, and hears of it when it asks.
    assert_int_equal(ask_code(other, m, 0, 899, 1, false, &error), BANYAN_ABORTED);
    assert_int_equal(banyan_attach(other, 0, 0, 10, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error),
                     BANYAN_ABORTED);
    banyan_session_info info;
    OK(banyan_session_get_info(other, &info, err));
    assert_int_equal(info.length, 900);
    banyan_session_info_free(&info);
    ask_and_check(other, m, 0, 899, 1, false);
    assert_int_equal(banyan_session_truncate(session, 5000, &error), BANYAN_OUT_OF_RANGE);
    ask_and_check(session, m, 0, 899, 1, false);
    OK(banyan_session_truncate(session, 0, err));
    ask_and_check(session, m, 0, 0, 5, true);
    banyan_session_close(other);
    mirror_free(m);
    drop_session(session);
}

static void test_fork(void **state)
{
    (void)state;
    banyan_spec spec = small_spec;
    spec.members = 3;
    banyan_session *session = new_session(&spec), *fork, *none = NULL;
    struct mirror *m = mirror_new(&spec, 900, 50), *branch = mirror_new(&spec, 900, 50);
    banyan_error error;
    attach_all(session, m, 0, 800);
    OK(banyan_session_fork(session, 700, "a fork", &fork, err));
    mirror_change(branch, 700, 51);
    for (uint32_t layer = 0; layer < 2; layer++) {
        ask_and_check(fork, branch, layer, 699, 1, false);
        ask_and_check(fork, branch, layer, 700, 2, true);
        ask_and_check(session, m, layer, 800, 2, true); // each goes its own way
    }
    ask_and_check(fork, branch, 0, 701, 1, false);
    ask_and_check(session, m, 0, 801, 1, false);
    assert_int_equal(banyan_session_fork(session, 5000, NULL, &none, &error), BANYAN_OUT_OF_RANGE);
    assert_int_equal(banyan_session_fork(session, 10, "a fork", &none, &error), BANYAN_ALREADY_EXISTS);
    drop_session(session); // what is shared stays
    ask_and_check(fork, branch, 1, 701, 1, false);
    mirror_free(m);
    mirror_free(branch);
    drop_session(fork);
}

static void test_plan(void **state)
{
    (void)state;
    banyan_spec spec = small_spec;
    spec.members = 3;
    banyan_session *session = new_session(&spec);
    struct mirror *m = mirror_new(&spec, 1024, 60);
    attach_all(session, m, 0, 1024);
    banyan_plan_info plan;
    OK(banyan_session_get_plan(session, &plan, err));
    assert_int_equal(plan.n_nodes, 3);
    assert_string_equal(plan.engine, "stream");
    uint64_t tokens = 0;
    unsigned roots = 0;
    for (uint32_t i = 0; i < plan.n_nodes; i++) {
        tokens += plan.nodes[i].tokens;
        roots += plan.nodes[i].parent < 0;
    }
    assert_int_equal(tokens, 1024);
    assert_int_equal(roots, 1);
    banyan_plan_info_free(&plan);
    mirror_free(m);
    drop_session(session);
}

struct counter {
    atomic_uint done, ok;
    unsigned expected;
    sem_t all;
};

static void count_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                       size_t n_items)
{
    struct counter *counter = arg;
    (void)error;
    if (code == BANYAN_OK && n_items == 1 && items[0].code == BANYAN_OK)
        atomic_fetch_add(&counter->ok, 1);
    if (atomic_fetch_add(&counter->done, 1) + 1 == counter->expected)
        sem_post(&counter->all);
}

static void test_ten_thousand_in_flight(void **state)
{
    (void)state;
    enum { N = 10000, TOKENS = 40 };
    banyan_session *session = new_session(&small_spec);
    struct mirror *m = mirror_new(&small_spec, TOKENS, 70);
    attach_all(session, m, 0, TOKENS);
    struct question *questions = calloc(N, sizeof *questions);
    struct counter counter = {.expected = N};
    sem_init(&counter.all, 0, 0);
    for (uint64_t i = 0; i < N; i++) {
        make_question(&questions[i], session, m, i % 2, i % TOKENS, 1, false);
        OK(banyan_attend_async(client, &questions[i].item, 1, 300 * COMMON_NS_PER_S, count_done, &counter,
                               err));
    }
    sem_wait(&counter.all);
    assert_int_equal(counter.ok, N);
    for (uint64_t i = 0; i < N; i++) {
        if (i % 37 == 0)
            mirror_check(m, i % 2, i % TOKENS, 1, 0, questions[i].o, questions[i].lse);
        free_question(&questions[i]);
    }
    free(questions);
    sem_destroy(&counter.all);
    mirror_free(m);
    drop_session(session);
}

static void test_queue(void **state)
{
    (void)state;
    enum { N = 100 };
    banyan_session *session = new_session(&small_spec);
    struct mirror *m = mirror_new(&small_spec, N, 80);
    attach_all(session, m, 0, N);
    struct question questions[N];
    struct pollfd fd = {.fd = banyan_poll_fd(client), .events = POLLIN};
    for (uint64_t i = 0; i < N; i++) {
        make_question(&questions[i], session, m, 0, i, 1, false);
        OK(banyan_attend_queue(client, &questions[i].item, 1, 0, &questions[i], err));
    }
    for (unsigned seen = 0; seen < N;) {
        banyan_completion done[7];
        assert_int_equal(poll(&fd, 1, 120000), 1);
        size_t n = banyan_poll(client, done, 7);
        for (size_t i = 0; i < n; i++) {
            struct question *q = done[i].tag;
            assert_int_equal(done[i].code, BANYAN_OK);
            mirror_check(m, 0, q->item.first, 1, 0, q->o, q->lse);
            free_question(q);
        }
        seen += (unsigned)n;
    }
    mirror_free(m);
    drop_session(session);
}

static void test_disconnect_in_flight(void **state)
{
    (void)state;
    enum { N = 200 };
    banyan_session *session = new_session(&small_spec), *again;
    struct mirror *m = mirror_new(&small_spec, 64, 90);
    attach_all(session, m, 0, 64);
    struct question questions[N];
    struct counter counter = {.expected = N};
    sem_init(&counter.all, 0, 0);
    uint64_t id = banyan_session_id(session);
    for (uint64_t i = 0; i < N; i++) {
        make_question(&questions[i], session, m, 0, i % 64, 1, false);
        OK(banyan_attend_async(client, &questions[i].item, 1, 0, count_done, &counter, err));
    }
    banyan_disconnect(client);
    assert_int_equal(counter.done, N); // answered or cancelled, every one, before disconnect returned
    for (uint64_t i = 0; i < N; i++) {
        assert_true(questions[i].item.code == BANYAN_OK || questions[i].item.code == BANYAN_CANCELLED);
        free_question(&questions[i]);
    }
    banyan_session_close(session);
    assert_int_equal(connect_client(NULL), 0);
    OK(banyan_session_open(client, id, NULL, &again, err)); // the session lives on
    ask_and_check(again, m, 0, 63, 1, false);
    sem_destroy(&counter.all);
    mirror_free(m);
    drop_session(again);
}

static void test_full_memory(void **state)
{
    (void)state;
    // More rows than three workers of 64 MiB have.
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .k_dim = 1024,
                              .v_dim = 1024,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = 1024};
    enum { BLOCK = 4096 };
    banyan_session *session = new_session(&spec);
    struct mirror *m = mirror_new(&spec, BLOCK, 95);
    banyan_error error;
    banyan_code code = BANYAN_OK;
    uint64_t first = 0;
    while (code == BANYAN_OK && first < UINT64_C(1) << 17) {
        code = banyan_attach(session, 0, first, BLOCK, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error);
        if (code == BANYAN_OK)
            first += BLOCK;
    }
    assert_int_equal(code, BANYAN_RESOURCE_EXHAUSTED);
    assert_true(first > 0);
    OK(banyan_commit(session, 0, 0, BLOCK, err)); // what is there is not harmed
    ask_and_check(session, m, 0, BLOCK - 1, 1, false);
    mirror_free(m);
    drop_session(session);
}

static int start_cluster(void **state)
{
    (void)state;
    cluster = harness_cluster_start(&(struct harness_options){.workers = 3, .memory = "64M"});
    return cluster ? 0 : -1;
}

static int stop_cluster(void **state)
{
    (void)state;
    int problems = harness_cluster_stop(cluster);
    cluster = NULL;
    return problems;
}

int main(int argc, char **argv)
{
    transport = argc > 1 ? argv[1] : "unix";
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_client, disconnect_client)
    const struct CMUnitTest tests[] = {
        TEST(test_cluster),
        TEST(test_session_life),
        TEST(test_bad_specs),
        TEST(test_attach_any_order_in_parallel),
        TEST(test_commit_names_what_is_missing),
        TEST(test_decode_token_by_token),
        TEST(test_positions_beyond),
        TEST(test_kinds_of_attention),
        TEST(test_quantised),
        TEST(test_scales_where_they_belong),
        TEST(test_prefill_block_in_slabs),
        TEST(test_batch_over_sessions),
        TEST(test_truncate),
        TEST(test_fork),
        TEST(test_plan),
        TEST(test_ten_thousand_in_flight),
        TEST(test_queue),
        TEST(test_disconnect_in_flight),
        TEST(test_full_memory),
    };
    return cmocka_run_group_tests_name(transport, tests, start_cluster, stop_cluster);
}
