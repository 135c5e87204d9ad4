// SPDX-License-Identifier: Apache-2.0
// Same data, same request, same plan digest: the same bits. Alone, repeated, beside other sessions in one
// call, under load from other clients, with 1 or 2 compute threads, over every transport. Another plan has
// another digest.
#include "tests/e2e/support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLUSTERS 2 // the same but for the compute threads of a worker: 1 and 2
#define SESSIONS 7
#define STEPS    18
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 2  // of everything: each is ten times as slow
#define CALLS  60 // in flight together
#else
#define ROUNDS 8
#define CALLS  240
#endif

static struct harness_cluster *cluster[CLUSTERS];
static banyan_client *client[CLUSTERS];
static banyan_session *session[CLUSTERS][SESSIONS];
static struct context context[SESSIONS];
static struct step want[STEPS]; // on the first cluster, alone

static const float slopes[8] = {0.5f, 0.25f, 0.125f, 0.1f, 0.05f, 0.03f, 0.01f, 0};
static const float sinks[8] = {1, 0, -1, 2, -2, 3, 0.5f, 4};

static const struct {
    banyan_spec spec;
    uint32_t tokens;
} shapes[SESSIONS] = {
    {{.layers = 1,
      .q_heads = 8,
      .kv_heads = 2,
      .k_dim = 64,
      .v_dim = 64,
      .kv_type = BANYAN_F32,
      .chunk_tokens = 64,
      .members = 3},
     2000},
    {{.layers = 1,
      .q_heads = 8,
      .kv_heads = 2,
      .k_dim = 64,
      .v_dim = 64,
      .kv_type = BANYAN_BF16,
      .chunk_tokens = 256,
      .members = 3},
     900},
    {{.layers = 1,
      .q_heads = 4,
      .kv_heads = 4,
      .k_dim = 32,
      .v_dim = 48,
      .kv_type = BANYAN_F16,
      .chunk_tokens = 16,
      .members = 3,
      .window = 300,
      .soft_cap = 25},
     700},
    {{.layers = 1,
      .q_heads = 8,
      .kv_heads = 1,
      .k_dim = 64,
      .v_dim = 32,
      .kv_type = BANYAN_F32,
      .chunk_tokens = 32,
      .members = 3,
      .alibi = slopes,
      .sinks = sinks},
     333},
    {{.layers = 1, .q_heads = 4, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_BF16}, 1},
    {{.layers = 1,
      .q_heads = 8,
      .kv_heads = 2,
      .k_dim = 64,
      .v_dim = 64,
      .kv_type = BANYAN_INT8,
      .chunk_tokens = 64,
      .members = 3},
     300},
    {{.layers = 1,
      .q_heads = 8,
      .kv_heads = 2,
      .k_dim = 64,
      .v_dim = 64,
      .kv_type = BANYAN_FP8,
      .chunk_tokens = 256,
      .members = 3},
     300},
};

// Small ones that a worker computes where they arrive, large ones for the compute team, some in several
// slabs.
static const struct {
    uint32_t session, first, rows, visible;
} steps[STEPS] = {{0, 1999, 1, 0},  {0, 1800, 200, 0}, {0, 1700, 1, 1500}, {0, 64, 1, 0},   {1, 899, 1, 0},
                  {1, 640, 260, 0}, {2, 699, 1, 0},    {2, 500, 64, 600},  {3, 332, 1, 0},  {3, 0, 333, 0},
                  {4, 0, 1, 0},     {0, 1990, 10, 0},  {5, 299, 1, 0},     {5, 280, 20, 0}, {5, 200, 7, 250},
                  {6, 299, 1, 0},   {6, 280, 20, 0},   {6, 200, 7, 250}};

static struct step step_of(int c, int nth)
{
    return (struct step){.session = session[c][steps[nth].session],
                         .first = steps[nth].first,
                         .rows = steps[nth].rows,
                         .visible = steps[nth].visible,
                         .seed = (uint64_t)nth};
}

static void expect_same(const struct step *got, int nth)
{
    if (got->digest != want[nth].digest)
        fail_msg("step %d: the digest is another though the plan is the same", nth);
    if (!step_same_bits(got, &want[nth]))
        fail_msg("step %d: other bits under the same digest", nth);
}

static int start(void **state)
{
    (void)state;
    // Placement rests on speed, which the harness says, and how widely a session is spread on threads
    static const char *const patient[] = {"--heartbeat", "20s", NULL}; // the machine is kept busy on purpose
    for (int c = 0; c < CLUSTERS; c++) {
        cluster[c] =
            support_start(&(struct harness_options){.threads = 1 + (uint32_t)c, .coordinator_args = patient});
        for (int w = 0; w < 3; w++) // one after the other: among equals the order of arrival decides
            assert_int_not_equal(harness_cluster_add_worker(cluster[c], NULL), UINT32_MAX);
        client[c] = support_connect(cluster[c], "nng+tcp");
    }
    for (int s = 0; s < SESSIONS; s++) {
        context_init(&context[s], &shapes[s].spec, shapes[s].tokens);
        context_random(&context[s], 0, shapes[s].tokens, 40 + (uint64_t)s);
        for (int c = 0; c < CLUSTERS; c++) {
            OK(banyan_session_create(client[c], &shapes[s].spec, NULL, &session[c][s], ERR));
            support_fill(session[c][s], &context[s], 0, shapes[s].tokens);
        }
    }
    for (int i = 0; i < STEPS; i++) {
        want[i] = step_of(0, i);
        OK(step_run(client[0], &want[i]));
        assert_int_not_equal(want[i].digest, 0);
        context_check(&context[steps[i].session], 0, want[i].first, want[i].rows, want[i].visible,
                      want[i].made_q, want[i].o, want[i].lse, NULL, "alone");
    }
    return 0;
}

static void repeated(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < STEPS; i++) {
            struct step step = step_of(0, i);
            OK(step_run(client[0], &step));
            expect_same(&step, i);
            step_free(&step);
        }
}

static void over_every_transport(void **state)
{
    (void)state;
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    for (int t = 0; t < 3; t++) {
        banyan_client *other = support_connect(cluster[0], transports[t]);
        for (int i = 0; i < STEPS; i++) {
            struct step step = step_of(0, i);
            OK(banyan_session_open(other, banyan_session_id(session[0][steps[i].session]), NULL,
                                   &step.session, ERR));
            OK(step_run(other, &step));
            expect_same(&step, i);
            banyan_session_close(step.session);
            step.session = session[0][steps[i].session];
            step_free(&step);
        }
        banyan_disconnect(other);
    }
}

static void one_or_two_threads(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < STEPS; i++) {
            struct step step = step_of(1, i);
            OK(step_run(client[1], &step));
            expect_same(&step, i);
            step_free(&step);
        }
}

// All steps in one call, in changing order, twice each, with items between them that fail.
static void in_a_batch(void **state)
{
    (void)state;
    for (int c = 0; c < CLUSTERS; c++)
        for (int round = 0; round < ROUNDS; round++) {
            struct step step[STEPS * 2];
            banyan_item item[STEPS * 2 + 2];
            banyan_error error[STEPS * 2 + 2];
            int nth[STEPS * 2];
            size_t n = 0;
            for (int i = 0; i < STEPS * 2; i++) {
                nth[i] = (i * 5 + round) % STEPS;
                step[i] = step_of(c, nth[i]);
                if (i == 3 || i == 17) { // beyond the end, between its neighbours
                    item[n] = step_item(&step[i]);
                    item[n].first = 100000;
                    item[n].error = &error[n];
                    item[n].visible = 0;
                    n++;
                    step_free(&step[i]);
                }
                item[n] = step_item(&step[i]);
                item[n].error = &error[n];
                n++;
            }
            // The failing ones need outputs too: nothing is written there
            float *spare = malloc(500 * 8 * 64 * sizeof(float));
            assert_non_null(spare);
            for (size_t i = 0; i < n; i++)
                if (item[i].first == 100000) {
                    item[i].q = context_queries(banyan_session_spec(item[i].session), item[i].rows, 1);
                    item[i].o = item[i].lse = spare;
                }
            OK(banyan_attend(client[c], item, n, 0, NULL, ERR));
            for (size_t i = 0, at = 0; i < n; i++) {
                if (item[i].first == 100000) {
                    assert_int_equal(item[i].code, BANYAN_OUT_OF_RANGE);
                    free((float *)(uintptr_t)item[i].q);
                    continue;
                }
                if (item[i].code != BANYAN_OK)
                    fail_msg("step %d among others: %s", nth[at], error[i].message);
                step[at].digest = item[i].digest;
                expect_same(&step[at], nth[at]);
                step_free(&step[at]);
                at++;
            }
            free(spare);
        }
}

struct burden {
    pthread_t thread;
    const struct harness_cluster *cluster;
    uint64_t seed;
    atomic_bool *stop;
    atomic_uint *going;
    const char *failed; // NULL, or what
    banyan_error error;
};

// A client of its own with a session of its own: appends and reads, as fast as it can.
static void *burden_main(void *arg)
{
    struct burden *b = arg;
    banyan_client *own = NULL;
    banyan_session *mine = NULL;
    const banyan_spec spec = {.layers = 2,
                              .q_heads = 8,
                              .kv_heads = 2,
                              .k_dim = 64,
                              .v_dim = 64,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = 64,
                              .members = 3};
    static float rows[64 * 8 * 64]; // zeros: what they say does not matter
    float *o = malloc(sizeof(rows)), *lse = malloc(64 * 8 * sizeof(float));
    if (!o || !lse ||
        banyan_connect(harness_cluster_endpoint(b->cluster, b->seed % 2 ? "unix" : "nng+tcp"), NULL, &own,
                       &b->error) != BANYAN_OK ||
        banyan_session_create(own, &spec, NULL, &mine, &b->error) != BANYAN_OK)
        b->failed = "connect and create";
    for (uint64_t p = 0; !b->failed && !atomic_load(b->stop); p += 16) {
        banyan_item item[3];
        for (uint32_t l = 0; l < 2; l++)
            item[l] = (banyan_item){.session = mine,
                                    .layer = l,
                                    .first = p,
                                    .rows = 16,
                                    .q = rows,
                                    .k = rows,
                                    .v = rows,
                                    .o = o,
                                    .lse = lse,
                                    .error = &b->error};
        if (banyan_attend(own, item, 1, 0, NULL, &b->error) != BANYAN_OK || item[0].code != BANYAN_OK ||
            banyan_attend(own, item + 1, 1, 0, NULL, &b->error) != BANYAN_OK || item[1].code != BANYAN_OK)
            b->failed = "append";
        if (p == 0)
            atomic_fetch_add(b->going, 1);
        if (!b->failed && p >= 2048 && banyan_session_truncate(mine, 0, &b->error) != BANYAN_OK)
            b->failed = "truncate";
        if (p >= 2048)
            p = (uint64_t)-16;
    }
    if (b->failed)
        atomic_fetch_add(b->going, 1);
    banyan_session_close(mine);
    banyan_disconnect(own);
    free(o);
    free(lse);
    return NULL;
}

static void under_load(void **state)
{
    (void)state;
    for (int c = 0; c < CLUSTERS; c++) {
        struct burden burden[3];
        atomic_bool stop = false;
        atomic_uint going = 0;
        for (int i = 0; i < 3; i++) {
            burden[i] =
                (struct burden){.cluster = cluster[c], .seed = (uint64_t)i, .stop = &stop, .going = &going};
            assert_int_equal(pthread_create(&burden[i].thread, NULL, burden_main, &burden[i]), 0);
        }
        EVENTUALLY(60, atomic_load(&going) == 3);
        banyan_code failed = BANYAN_OK;
        bool same = true;
        for (int round = 0; round < ROUNDS && failed == BANYAN_OK; round++)
            for (int i = 0; i < STEPS && failed == BANYAN_OK; i++) {
                struct step step = step_of(c, i);
                failed = step_run(client[c], &step);
                same = same && (failed != BANYAN_OK ||
                                (step.digest == want[i].digest && step_same_bits(&step, &want[i])));
                step_free(&step);
            }
        atomic_store(&stop, true);
        for (int i = 0; i < 3; i++)
            pthread_join(burden[i].thread, NULL);
        for (int i = 0; i < 3; i++)
            if (burden[i].failed)
                fail_msg("another client: %s: %s", burden[i].failed, burden[i].error.message);
        OK(failed);
        assert_true(same);
    }
}

static void count_down(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                       size_t n_items)
{
    (void)code; // the item has it too
    (void)error;
    (void)items;
    (void)n_items;
    atomic_fetch_sub((atomic_uint *)arg, 1);
}

// Many calls at once from one client: frames collect whatever waits. A sanitizer on a busy machine needs
// up to a second for each, so the limit is only there to end a test that hangs.
static void in_flight_together(void **state)
{
    (void)state;
    static struct step step[CALLS];
    static banyan_item item[CALLS];
    static banyan_error error[CALLS];
    atomic_uint left = CALLS;
    for (int i = 0; i < CALLS; i++) {
        step[i] = step_of(0, i * 7 % STEPS);
        item[i] = step_item(&step[i]);
        item[i].error = &error[i];
    }
    for (int i = 0; i < CALLS; i++)
        OK(banyan_attend_async(client[0], &item[i], 1, UINT64_C(600000000000), count_down, &left, ERR));
    EVENTUALLY(620, atomic_load(&left) == 0);
    for (int i = 0; i < CALLS; i++) {
        if (item[i].code != BANYAN_OK)
            fail_msg("call %d: %s", i, error[i].message);
        step[i].digest = item[i].digest;
        expect_same(&step[i], i * 7 % STEPS);
        step_free(&step[i]);
    }
}

// The same rows under other plans and splits: whatever has the same digest has the same bits.
static void digests_name_the_plan(void **state)
{
    (void)state;
    enum { PLANS = 6 };
    struct step step[PLANS];
    banyan_session *held[PLANS];
    const uint32_t tokens = 600;
    banyan_spec spec = shapes[0].spec;
    struct context same;
    context_init(&same, &spec, tokens);
    context_random(&same, 0, tokens, 99);
    for (int i = 0; i < PLANS; i++) {
        spec.members = 1 + (uint32_t)(i % 3);
        spec.chunk_tokens = i < 3 ? 64 : 32;
        OK(banyan_session_create(client[0], &spec, NULL, &held[i], ERR));
        support_fill(held[i], &same, 0, tokens);
        step[i] = (struct step){.session = held[i], .first = tokens - 1, .rows = 1, .seed = 4};
        OK(step_run(client[0], &step[i]));
        context_check(&same, 0, tokens - 1, 1, 0, step[i].made_q, step[i].o, step[i].lse, NULL, "plans");
        for (int j = 0; j < i; j++)
            if (step[i].digest == step[j].digest)
                fail_msg("plans %d and %d have the same digest, and not the same tree or chunks", i, j);
    }
    struct step sees_less = {
        .session = held[1], .first = tokens - 1, .rows = 1, .visible = tokens - 1, .seed = 4};
    OK(step_run(client[0], &sees_less));
    assert_int_not_equal(sees_less.digest, step[1].digest);
    step_free(&sees_less);
    for (int i = 0; i < PLANS; i++) {
        step_free(&step[i]);
        OK(banyan_session_delete(held[i], ERR));
        banyan_session_close(held[i]);
    }
    context_free(&same);
}

// More context arrives behind what a step sees. The tree may grow with it, and the digest then says so.
static void growth_keeps_the_promise(void **state)
{
    (void)state;
    banyan_session *grows;
    banyan_spec spec = shapes[0].spec;
    spec.members = 0;
    struct context rows;
    context_init(&rows, &spec, 1600);
    context_random(&rows, 0, 1600, 7);
    OK(banyan_session_create(client[0], &spec, NULL, &grows, ERR));
    support_fill(grows, &rows, 0, 200);
    struct step before = {.session = grows, .first = 199, .rows = 1, .seed = 8};
    OK(step_run(client[0], &before));
    for (uint64_t at = 200; at < 1600; at += 200) {
        support_fill(grows, &rows, at, 200);
        struct step after = {.session = grows, .first = 199, .rows = 1, .seed = 8};
        OK(step_run(client[0], &after));
        context_check(&rows, 0, 199, 1, 0, after.made_q, after.o, after.lse, NULL, "grown");
        if (after.digest == before.digest)
            assert_true(step_same_bits(&before, &after));
        step_free(&after);
    }
    step_free(&before);
    OK(banyan_session_delete(grows, ERR));
    banyan_session_close(grows);
    context_free(&rows);
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < STEPS; i++)
        step_free(&want[i]);
    for (int c = 0; c < CLUSTERS; c++) {
        for (int s = 0; s < SESSIONS; s++)
            banyan_session_close(session[c][s]);
        banyan_disconnect(client[c]);
        support_stop(cluster[c]);
    }
    for (int s = 0; s < SESSIONS; s++)
        context_free(&context[s]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated),
        cmocka_unit_test(over_every_transport),
        cmocka_unit_test(one_or_two_threads),
        cmocka_unit_test(in_a_batch),
        cmocka_unit_test(under_load),
        cmocka_unit_test(in_flight_together),
        cmocka_unit_test(digests_name_the_plan),
        cmocka_unit_test(growth_keeps_the_promise),
    };
    return cmocka_run_group_tests_name("bits of the service", tests, start, stop);
}
