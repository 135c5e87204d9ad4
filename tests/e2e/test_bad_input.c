// SPDX-License-Identifier: Apache-2.0
// Bad input through the public API, one kind after the other: each gets its own status and its own sentence,
// and changes nothing. Prints a table.
#include "tests/e2e/witness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static banyan_code try_step(struct step step)
{
    banyan_code code = step_run(witness_client, &step);
    step_free(&step);
    return code;
}

static banyan_code try_create(banyan_spec s, const char *name)
{
    banyan_session *none = NULL;
    banyan_code code = banyan_session_create(witness_client, &s, name, &none, ERR);
    if (code == BANYAN_OK) {
        banyan_session_delete(none, NULL);
        banyan_session_close(none);
    } else {
        assert_null(none);
    }
    return code;
}

static void specs(void **state)
{
    (void)state;
    banyan_spec s = witness_spec;
#define BAD(what, change)                                                                                    \
    s = witness_spec;                                                                                        \
    change;                                                                                                  \
    witness_refused(what, try_create(s, NULL), BANYAN_INVALID_ARGUMENT, NULL)
    static float slopes[4] = {1, 2, NAN, 4}, sinks[4] = {1, INFINITY, 2, 3};
    BAD("no layers", s.layers = 0);
    s.layers = 2000;
    witness_refused_too("2000 layers", try_create(s, NULL), BANYAN_INVALID_ARGUMENT, NULL);
    BAD("no query heads", s.q_heads = 0);
    BAD("no KV heads", s.kv_heads = 0);
    s = witness_spec;
    s.kv_heads = 3;
    witness_refused_too("4 query heads over 3 KV heads", try_create(s, NULL), BANYAN_INVALID_ARGUMENT, NULL);
    BAD("k_dim 0", s.k_dim = 0);
    BAD("v_dim 5000", s.v_dim = 5000);
    BAD("an unknown KV type", s.kv_type = (banyan_kv_type)9);
    BAD("scale NaN", s.scale = NAN);
    BAD("a negative soft cap", s.soft_cap = -1);
    BAD("chunks of 17 tokens", s.chunk_tokens = 17);
    BAD("an ALiBi slope of NaN", s.alibi = slopes);
    BAD("a sink of infinity", s.sinks = sinks);
#undef BAD
    witness_refused("a name with a line feed", try_create(witness_spec, "a\nb"), BANYAN_INVALID_ARGUMENT,
                    NULL);
    char long_name[200];
    memset(long_name, 'x', sizeof(long_name));
    long_name[199] = '\0';
    witness_refused("a name of 199 characters", try_create(witness_spec, long_name), BANYAN_INVALID_ARGUMENT,
                    NULL);
    witness_refused("a name that is taken", try_create(witness_spec, "witness"), BANYAN_ALREADY_EXISTS,
                    "NAME_TAKEN");
}

static void handles(void **state)
{
    (void)state;
    banyan_session *none = NULL;
    witness_refused("session 0 without a name", banyan_session_open(witness_client, 0, NULL, &none, ERR),
                    BANYAN_INVALID_ARGUMENT, NULL);
    witness_refused("an unknown session",
                    banyan_session_open(witness_client, UINT64_C(0x700000000007), NULL, &none, ERR),
                    BANYAN_NOT_FOUND, "NO_SESSION");
    witness_refused("an unknown name", banyan_session_open(witness_client, 0, "nobody", &none, ERR),
                    BANYAN_NOT_FOUND, "NO_SESSION");
    assert_null(none);

    banyan_session *gone, *fork = NULL;
    banyan_session_info info;
    OK(banyan_session_create(witness_client, &witness_spec, NULL, &gone, ERR));
    OK(banyan_session_delete(gone, ERR));
    const void *k = context_k(&witness_context, 0, 0), *v = context_v(&witness_context, 0, 0);
    // One kind of input, and one sentence is enough for it; the code is what counts
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_delete(gone, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_get_info(gone, &info, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_truncate(gone, 0, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_fork(gone, 0, NULL, &fork, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_attach(gone, 0, 0, 4, k, v, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_commit(gone, 0, 0, 4, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, try_step((struct step){.session = gone, .rows = 1, .k = k, .v = v}));
    witness_row("a deleted session (7 calls)", banyan_code_name(ERR->code), ERR->message);
    banyan_session_close(gone);
    witness_nothing_changed("a deleted session");
}

static void steps(void **state)
{
    (void)state;
    const void *k = context_k(&witness_context, 0, 0), *v = context_v(&witness_context, 0, 0);
    struct step good = {.session = witness_session, .first = WITNESS_TOKENS - 1, .rows = 1}, s;
    float *q = context_queries(&witness_spec, 1, 1), o[128], lse[4];
    banyan_item item = {
        .session = witness_session, .first = 0, .rows = 1, .q = q, .o = o, .lse = lse, .error = ERR};
#define BAD_ITEM(what, change)                                                                               \
    do {                                                                                                     \
        banyan_item bad = item;                                                                              \
        change;                                                                                              \
        OK(banyan_attend(witness_client, &bad, 1, 0, NULL, NULL));                                           \
        witness_refused(what, bad.code, BANYAN_INVALID_ARGUMENT, NULL);                                      \
    } while (0)
    BAD_ITEM("no session", bad.session = NULL);
    BAD_ITEM("0 rows", bad.rows = 0);
    BAD_ITEM("no q", bad.q = NULL);
    BAD_ITEM("k without v", bad.k = k);
    BAD_ITEM("a layer that is not there", bad.layer = WITNESS_LAYERS);
    BAD_ITEM("positions that wrap", bad.first = UINT64_MAX);
#undef BAD_ITEM
    free(q);
    s = good;
    s.first = WITNESS_TOKENS;
    witness_refused("a position beyond the end", try_step(s), BANYAN_OUT_OF_RANGE, "PAST_END");
    s = good;
    s.visible = WITNESS_TOKENS + 1;
    s.first = WITNESS_TOKENS + 5;
    witness_refused_too("keys beyond the end", try_step(s), BANYAN_OUT_OF_RANGE, "PAST_END");
    s = good;
    s.first = WITNESS_TOKENS + 40;
    s.k = k;
    s.v = v;
    witness_refused("an append beyond the end", try_step(s), BANYAN_OUT_OF_RANGE, "PAST_END");
    s.first = UINT64_C(1) << 60;
    witness_refused("an append at 2^60", try_step(s), BANYAN_OUT_OF_RANGE, "LIMIT");
    s.first = WITNESS_TOKENS - 1; // holds other bytes
    witness_refused("other bytes where rows are acknowledged", try_step(s), BANYAN_FAILED_PRECONDITION,
                    "OTHER_BYTES");
    s = good;
    s.first = 0;
    s.rows = 2500; // of 512 bytes: 1.2 MiB
    s.k = s.v = calloc(2500, 512);
    assert_non_null(s.k);
    witness_refused("an append of more than 1 MiB", try_step(s), BANYAN_INVALID_ARGUMENT, NULL);
    free((void *)(uintptr_t)s.k);

    banyan_session *other;
    OK(banyan_session_open(witness_client, banyan_session_id(witness_session), NULL, &other, ERR));
    banyan_client *second = support_connect(witness_cluster, "unix");
    struct step foreign = {.session = other, .rows = 1};
    item = step_item(&foreign);
    OK(banyan_attend(second, &item, 1, 0, NULL, NULL));
    witness_refused("a session of another client", item.code, BANYAN_INVALID_ARGUMENT, NULL);
    step_free(&foreign);
    banyan_session_close(other);
    banyan_disconnect(second);

    // Hole: in a session of its own, for the witness has none
    banyan_session *holed;
    OK(banyan_session_create(witness_client, &witness_spec, NULL, &holed, ERR));
    OK(banyan_attach(holed, 0, 64, 20, k, v, ERR));
    OK(banyan_commit(holed, 0, 64, 20, ERR));
    struct step over = {.session = holed, .first = 70, .rows = 1};
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", step_run(witness_client, &over));
    assert_int_equal(ERR->n_ranges, 1);
    assert_true(ERR->ranges[0].first == 0 && ERR->ranges[0].count == 64);
    witness_row("a step over a hole", banyan_code_name(ERR->code), ERR->message);
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(holed, 0, 60, 10, ERR));
    witness_row("a commit of what has not come", banyan_code_name(ERR->code), ERR->message);
    step_free(&over);
    OK(banyan_session_delete(holed, ERR));
    banyan_session_close(holed);
    witness_nothing_changed("a hole");
}

static void attaches(void **state)
{
    (void)state;
    const void *k = context_k(&witness_context, 0, 0), *v = context_v(&witness_context, 0, 0);
    banyan_session *none = NULL;
    witness_refused("an attach of nothing", banyan_attach(witness_session, 0, 0, 0, k, v, ERR),
                    BANYAN_INVALID_ARGUMENT, NULL);
    witness_refused("an attach without v", banyan_attach(witness_session, 0, 0, 1, k, NULL, ERR),
                    BANYAN_INVALID_ARGUMENT, NULL);
    witness_refused("an attach to layer 7", banyan_attach(witness_session, 7, 0, 1, k, v, ERR),
                    BANYAN_INVALID_ARGUMENT, NULL);
    FAILS(BANYAN_INVALID_ARGUMENT, NULL,
          banyan_attach(witness_session, 0, UINT64_MAX - 1, 4, k, v, ERR)); // as of nothing
    witness_refused("an attach at 2^60", banyan_attach(witness_session, 0, UINT64_C(1) << 60, 4, k, v, ERR),
                    BANYAN_OUT_OF_RANGE, "LIMIT");
    witness_refused("other bytes where rows are committed",
                    banyan_attach(witness_session, 0, 4, 4, k, v, ERR), BANYAN_FAILED_PRECONDITION,
                    "OTHER_BYTES");
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(witness_session, 0, WITNESS_TOKENS, 1, ERR));
    witness_refused("a truncate to more than there is",
                    banyan_session_truncate(witness_session, WITNESS_TOKENS + 1, ERR), BANYAN_OUT_OF_RANGE,
                    "PAST_END");
    witness_refused("a fork beyond the shortest layer",
                    banyan_session_fork(witness_session, WITNESS_TOKENS + 1, NULL, &none, ERR),
                    BANYAN_OUT_OF_RANGE, "PAST_END");
    witness_refused_too("a fork with a name that is taken",
                        banyan_session_fork(witness_session, 10, "witness", &none, ERR),
                        BANYAN_ALREADY_EXISTS, "NAME_TAKEN");
    assert_null(none);
}

// ---- what is not a number ---------------------------------------------------------------------------------

static void nan_and_infinity_flow_through(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const char *const places[] = {"q", "k", "v"};
    const uint32_t tokens = 70;
    for (int type = BANYAN_F32; type <= BANYAN_FP8; type++)
        for (int p = 0; p < 3; p++)
            for (int n = 0; n < 3; n++) {
                banyan_spec s = witness_spec;
                s.kv_type = (banyan_kv_type)type;
                s.members = 3;
                banyan_session *own;
                struct context c;
                context_init(&c, &s, tokens);
                context_random(&c, 0, tokens, 6);
                float *q = context_queries(&s, 3, 8), row_k[32], row_v[32];
                for (int i = 0; i < 32; i++)
                    row_k[i] = row_v[i] = 0.1f * (float)i;
                if (p == 0)
                    q[128 + 2 * 32 + 5] = values[n]; // row 1, head 2: the others do not know
                else
                    (p == 1 ? row_k : row_v)[7] = values[n];
                if (p != 0)
                    for (uint32_t l = 0; l < WITNESS_LAYERS; l++)
                        context_set(&c, l, 40, 1, row_k, row_v);
                OK(banyan_session_create(witness_client, &s, NULL, &own, ERR));
                support_fill(own, &c, 0, tokens - 1);
                struct step step = {
                    .session = own, .first = tokens - 3, .rows = 3, .q = q, .visible = tokens - 1};
                OK(step_run(witness_client, &step));
                context_check(&c, 0, tokens - 3, 3, tokens - 1, q, step.o, step.lse, NULL, places[p]);
                step_free(&step);
                // Through an append as well, on the last row
                for (uint32_t l = 0; l < WITNESS_LAYERS; l++)
                    if (p != 0)
                        context_set(&c, l, tokens - 1, 0, row_k, row_v);
                struct step last = {.session = own, .layer = 1, .first = tokens - 1, .rows = 1, .q = q + 128};
                step_append(&last, &c);
                OK(step_run(witness_client, &last));
                context_check(&c, 1, tokens - 1, 1, 0, q + 128, last.o, last.lse, NULL, places[p]);
                bool any = false;
                for (size_t i = 0; i < step_floats(&last); i++)
                    any = any || !isfinite(last.o[i]) || !isfinite(last.lse[i / 32]);
                if (!any)
                    fail_msg("%g in %s vanished", (double)values[n], places[p]);
                step_free(&last);
                // The same bytes again are the same bytes, though NaN is not NaN
                struct step again = last;
                OK(step_run(witness_client, &again));
                step_free(&again);
                free(q);
                OK(banyan_session_delete(own, ERR));
                banyan_session_close(own);
                context_free(&c);
            }
    witness_row("NaN or infinity in q, k, v", "OK", "flows through as the reference says");
    witness_nothing_changed("NaN");
}

// ---- tokens ------------------------------------------------------------------------------------

static void tokens_of_clients(void **state)
{
    (void)state;
    struct harness_cluster *own =
        support_start(&(struct harness_options){.workers = 1, .token = "correct-horse-battery"});
    char wrong[300];
    snprintf(wrong, sizeof(wrong), "%s/wrong-token", harness_cluster_dir(own));
    FILE *file = fopen(wrong, "we");
    assert_non_null(file);
    fputs("wrong-horse-battery\n", file);
    fclose(file);
    assert_int_equal(chmod(wrong, 0600), 0);
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    for (int t = 0; t < 3; t++) {
        banyan_client *c = NULL;
        FAILS(BANYAN_UNAUTHENTICATED, NULL,
              banyan_connect(harness_cluster_endpoint(own, transports[t]), NULL, &c, ERR));
        FAILS(BANYAN_UNAUTHENTICATED, NULL,
              banyan_connect(harness_cluster_endpoint(own, transports[t]),
                             &(banyan_options){.token_file = wrong}, &c, ERR));
        assert_null(c);
        c = support_connect(own, transports[t]);
        banyan_disconnect(c);
    }
    witness_row("no token, or a wrong one", banyan_code_name(ERR->code), ERR->message);
    support_stop(own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),
        cmocka_unit_test(handles),
        cmocka_unit_test(steps),
        cmocka_unit_test(attaches),
        cmocka_unit_test(nan_and_infinity_flow_through),
        cmocka_unit_test(tokens_of_clients),
    };
    return cmocka_run_group_tests_name("bad input", tests, witness_start, witness_stop);
}
