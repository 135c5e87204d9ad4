// SPDX-License-Identifier: Apache-2.0
// The public API: what goes into a session, and what attention over it answers.
#include <pthread.h>
#include <string.h>

#include "tests/client/api.h"

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

void test_attach_any_order_in_parallel(void **state)
{
    (void)state;
    enum { TOKENS = 2000, THREADS = 4 };
    banyan_spec spec = api_spec;
    spec.members = 3;
    banyan_session *session = api_session(&spec);
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
    assert_int_equal(api_ask(session, m, 0, 10, 1, false, &error), BANYAN_OUT_OF_RANGE);
    OK(banyan_commit(session, 0, 500, 500, err)); // ranges in any order too
    assert_int_equal(api_ask(session, m, 0, 600, 1, false, &error), BANYAN_FAILED_PRECONDITION);
    assert_string_equal(error.reason, "HOLE");
    assert_int_equal(error.n_ranges, 1);
    assert_int_equal(error.ranges[0].first, 0);
    assert_int_equal(error.ranges[0].count, 500);
    OK(banyan_commit(session, 0, 0, TOKENS, err));
    OK(banyan_commit(session, 1, 0, TOKENS, err));
    OK(banyan_commit(session, 1, 0, TOKENS, err)); // again: nothing changes
    for (uint32_t layer = 0; layer < 2; layer++) {
        api_check(session, m, layer, TOKENS - 1, 1, false);
        api_check(session, m, layer, 0, 1, false);
        api_check(session, m, layer, 700, 20, false);
    }
    // Committed rows are not altered: the same bytes are fine, others are not.
    OK(banyan_attach(session, 0, 0, TOKENS, mirror_k(m, 0, 0), mirror_v(m, 0, 0), err));
    assert_int_equal(banyan_attach(session, 0, 30, 5, mirror_k(wrong, 0, 30), mirror_v(wrong, 0, 30), &error),
                     BANYAN_FAILED_PRECONDITION);
    api_check(session, m, 0, TOKENS - 1, 1, false);
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, err));
    assert_int_equal(info.length, TOKENS);
    assert_int_equal(info.n_members, 3);
    banyan_session_info_free(&info);
    mirror_free(m);
    mirror_free(wrong);
    api_drop(session);
}

void test_commit_names_what_is_missing(void **state)
{
    (void)state;
    banyan_session *session = api_session(&api_spec);
    struct mirror *m = mirror_new(&api_spec, 600, 4);
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
    api_check(session, m, 0, 599, 1, false);
    assert_int_equal(banyan_attach(session, 2, 0, 1, m, m, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(banyan_attach(session, 0, 0, 0, m, m, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(banyan_attach(session, 0, UINT64_MAX - 1, 2, m, m, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(banyan_attach(session, 0, 0, 1, NULL, m, &error), BANYAN_INVALID_ARGUMENT);
    mirror_free(m);
    api_drop(session);
}

// Rows that a worker holds are not those that this handle attached: here because another one has put its own
// there, as a flipped bit would have it. The commit says so, and attached again they are right.
void test_commit_compares_bytes(void **state)
{
    static const banyan_kv_type types[] = {BANYAN_F32, BANYAN_BF16, BANYAN_INT8};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        banyan_spec spec = api_spec;
        spec.kv_type = types[i];
        bool scaled = banyan_kv_scaled(types[i]);
        uint64_t ct = spec.chunk_tokens ? spec.chunk_tokens : 256, at = ct + 3;
        banyan_session *session = api_session(&spec), *other;
        struct mirror *m = mirror_new(&spec, 3 * ct, 8), *n = mirror_new(&spec, 3 * ct, 9);
        banyan_error error;
        OK(banyan_session_open(api_client, banyan_session_id(session), NULL, &other, err));
#define ATTACH(to, from, first, count)                                                                       \
    (scaled ? banyan_attach_scaled(to, 0, first, count, mirror_k(from, 0, first),                            \
                                   mirror_k_scale(from, 0, first), mirror_v(from, 0, first),                 \
                                   mirror_v_scale(from, 0, first), err)                                      \
            : banyan_attach(to, 0, first, count, mirror_k(from, 0, first), mirror_v(from, 0, first), err))
        OK(ATTACH(session, m, 0, ct / 2)); // in pieces that a chunk's sum is made of
        OK(ATTACH(session, m, ct / 2, 3 * ct - ct / 2));
        OK(ATTACH(other, n, at, 1));
        assert_int_equal(banyan_commit(session, 0, 0, 3 * ct, &error), BANYAN_DATA_LOSS);
        assert_string_equal(error.reason, "HASH_MISMATCH");
        assert_int_equal(error.n_ranges, 1);
        assert_int_equal(error.ranges[0].first, ct);
        assert_int_equal(error.ranges[0].count, ct);
        assert_true(error.worker[0] != 0);
        assert_int_equal(banyan_commit(session, 0, 0, 3 * ct, &error), BANYAN_FAILED_PRECONDITION);
        assert_string_equal(error.reason, "HOLE");
        OK(ATTACH(session, m, ct, ct));
        OK(banyan_commit(session, 0, 0, 3 * ct, err));
        OK(banyan_commit(session, 0, 0, 3 * ct, err)); // again: nothing is compared any more
        api_check(session, m, 0, 3 * ct - 1, 1, false);
        mirror_free(m);
        mirror_free(n);
        banyan_session_close(other);
        api_drop(session);
    }
}

void test_decode_token_by_token(void **state)
{
    (void)state;
    enum { PROMPT = 250, TOKENS = 300 };
    banyan_session *session = api_session(&api_spec);
    struct mirror *m = mirror_new(&api_spec, TOKENS, 5);
    struct mirror *wrong = mirror_new(&api_spec, TOKENS, 6);
    banyan_error error;
    api_attach(session, m, 0, PROMPT);
    for (uint64_t t = PROMPT; t < TOKENS; t++)
        for (uint32_t layer = 0; layer < 2; layer++)
            api_check(session, m, layer, t, 1, true);
    api_check(session, m, 0, TOKENS - 1, 1, true); // the same bytes again: a no-op
    assert_int_equal(api_ask(session, wrong, 0, TOKENS - 1, 1, true, &error), BANYAN_FAILED_PRECONDITION);
    api_check(session, m, 0, TOKENS - 1, 1, false);
    assert_int_equal(api_ask(session, m, 1, TOKENS - 1, 1, false, &error), BANYAN_OK);
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, err));
    assert_int_equal(info.layer_lengths[0], TOKENS);
    assert_int_equal(info.layer_lengths[1], TOKENS);
    banyan_session_info_free(&info);
    mirror_free(m);
    mirror_free(wrong);
    api_drop(session);
}

void test_positions_beyond(void **state)
{
    (void)state;
    banyan_session *session = api_session(&api_spec);
    struct mirror *m = mirror_new(&api_spec, 100, 7);
    banyan_error error;
    assert_int_equal(api_ask(session, m, 0, 0, 1, false, &error), BANYAN_OUT_OF_RANGE);
    assert_int_not_equal(api_ask(session, m, 0, 5, 1, true, &error),
                         BANYAN_OK); // an append that is not at the end
    api_check(session, m, 0, 0, 10, true);
    assert_int_equal(api_ask(session, m, 0, 10, 1, false, &error), BANYAN_OUT_OF_RANGE);
    // visible cuts what a row sees.
    struct question q;
    question_make(&q, session, m, 0, 8, 2, false);
    q.item.visible = 5;
    OK(banyan_attend(api_client, &q.item, 1, 0, NULL, err));
    assert_int_equal(q.item.code, BANYAN_OK);
    mirror_check(m, 0, 8, 2, 5, q.o, q.lse);
    question_free(&q);
    mirror_free(m);
    api_drop(session);
}

void test_kinds_of_attention(void **state)
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
        banyan_session *session = api_session(&specs[i]);
        struct mirror *m = mirror_new(&specs[i], 400, 10 + i);
        api_attach(session, m, 0, 390);
        api_check(session, m, 0, 390, 10, true);
        api_check(session, m, 0, 0, 400, false);
        mirror_free(m);
        api_drop(session);
    }
}

// Codes and scales go in and come back as attention: attached, appended (also across many RPCs), forked and
// truncated.
void test_quantised(void **state)
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
        banyan_session *session = api_session(&spec), *fork = NULL;
        struct mirror *m = mirror_new(&spec, 900, 50 + type), *other = mirror_new(&spec, 900, 50 + type);
        api_attach(session, m, 0, 333);
        api_check(session, m, 0, 333, 77, true);
        api_check(session, m, 1, 333, 1, true);
        api_check(session, m, 1, 334, 76, true);
        api_check(session, m, 1, 100, 310, false);
        banyan_session_info info;
        OK(banyan_session_get_info(session, &info, err));
        assert_int_equal(info.bytes, UINT64_C(2) * 410 * 3 * (40 + 4 + 24 + 4));
        banyan_session_info_free(&info);
        OK(banyan_session_fork(session, 205, NULL, &fork, err));
        OK(banyan_session_truncate(session, 150, err));
        mirror_change(other, 205, 77);
        api_check(fork, other, 0, 205, 20, true);
        api_check(session, m, 0, 150, 500, true); // more than a MiB: in parts
        api_check(fork, other, 0, 0, 225, false);
        api_check(session, m, 0, 640, 10, false);
        mirror_free(m);
        mirror_free(other);
        api_drop(fork);
        api_drop(session);
    }
}

void test_scales_where_they_belong(void **state)
{
    (void)state;
    banyan_error error;
    banyan_spec spec = api_spec;
    spec.kv_type = BANYAN_INT8;
    banyan_session *scaled = api_session(&spec), *plain = api_session(&api_spec);
    struct mirror *m = mirror_new(&spec, 4, 60), *n = mirror_new(&api_spec, 4, 60);
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
        {true, true, false, false, "give k_scale and v_scale with k and v"},
        {true, true, true, false, "give k_scale and v_scale with k and v"},
        {true, true, false, true, "give k_scale and v_scale with k and v"},
        {true, false, true, true, "only for k and v of BANYAN_INT8 and BANYAN_FP8"},
        {false, true, true, false, "only for k and v of BANYAN_INT8 and BANYAN_FP8"},
        {false, true, false, true, "only for k and v of BANYAN_INT8 and BANYAN_FP8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        question_make(&q, cases[i].scaled ? scaled : plain, cases[i].scaled ? m : n, 0, 0, 4, cases[i].k);
        q.item.k_scale = cases[i].ks ? ks : NULL;
        q.item.v_scale = cases[i].vs ? vs : NULL;
        OK(banyan_attend(api_client, &q.item, 1, 0, NULL, err));
        error = q.error;
        SAYS(q.item.code, cases[i].text);
        question_free(&q);
    }
#undef SAYS
    api_check(scaled, m, 0, 0, 4, true);
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
    api_drop(scaled);
    api_drop(plain);
}

void test_prefill_block_in_slabs(void **state)
{
    (void)state;
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 16,
                              .kv_heads = 4,
                              .k_dim = 64,
                              .v_dim = 64,
                              .kv_type = BANYAN_BF16,
                              .members = 3};
    banyan_session *session = api_session(&spec);
    struct mirror *m = mirror_new(&spec, 1200, 20);
    api_attach(session, m, 0, 1200);
    struct question q;
    question_make(&q, session, m, 0, 700, 500, false); // 2 MB of o
    OK(banyan_attend(api_client, &q.item, 1, 0, NULL, err));
    assert_int_equal(q.item.code, BANYAN_OK);
    for (uint64_t row = 0; row < 500; row += 41) // the reference takes its time
        mirror_check(m, 0, 700 + row, 1, 0, q.o + row * 16 * 64, q.lse + row * 16);
    question_free(&q);
    mirror_free(m);
    api_drop(session);
}

void test_full_memory(void **state)
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
    banyan_session *session = api_session(&spec);
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
    api_check(session, m, 0, BLOCK - 1, 1, false);
    mirror_free(m);
    api_drop(session);
}
