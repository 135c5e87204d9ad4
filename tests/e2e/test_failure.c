// SPDX-License-Identifier: Apache-2.0
// Processes that die, stop and come back; clients that vanish in the middle of a token; memory that is full.
// Answers are exact or errors; what is not concerned goes on.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/harness/process.h"

#define LONG_NS                                                                                              \
    (UINT64_C(300) * COMMON_NS_PER_S) // no test waits that long: a step that fails at once fails before

static const banyan_spec spread = {.layers = 1,
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .k_dim = 32,
                                   .v_dim = 32,
                                   .kv_type = BANYAN_F32,
                                   .chunk_tokens = 32,
                                   .members = 3};

struct held { // a session and what it should hold
    banyan_session *session;
    struct context context;
    uint64_t tokens;
};

static void make(banyan_client *client, struct held *h, const banyan_spec *spec, uint64_t tokens,
                 uint64_t room, const char *name)
{
    context_init(&h->context, spec, room);
    context_random(&h->context, 0, room, tokens + room);
    h->tokens = tokens;
    OK(banyan_session_create(client, spec, name, &h->session, ERR));
    if (tokens)
        support_fill(h->session, &h->context, 0, tokens);
}

static void drop(struct held *h)
{
    banyan_session_close(h->session);
    context_free(&h->context);
}

static banyan_code step_on(banyan_client *client, const struct held *h, uint64_t first, uint64_t timeout_ns)
{
    struct step step = {
        .session = h->session, .first = first, .rows = 1, .seed = first, .timeout_ns = timeout_ns};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

// Which worker holds a session that lives on one, by its number.
static uint32_t holder_of(banyan_session *session)
{
    banyan_session_info info;
    OK(banyan_session_get_info(session, &info, ERR));
    assert_int_equal(info.n_members, 1);
    uint32_t number = (uint32_t)atoi(info.members[0] + 1); // "w0", "w1", …
    banyan_session_info_free(&info);
    return number;
}

// ---- a worker is killed -----------------------------------------------------------------------------------

static void a_killed_worker(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 3});
    banyan_client *client = support_connect(cluster, "nng+tcp");
    struct held wide, alone[3];
    make(client, &wide, &spread, 320, 400, "wide"); // ten chunks over three workers
    banyan_spec one = spread;
    one.members = 1;
    one.chunk_tokens = 512; // one chunk: one worker
    for (int i = 0; i < 3; i++)
        make(client, &alone[i], &one, 100, 200, NULL);
    OK(step_on(client, &wide, 319, 0));

    uint32_t dead = holder_of(alone[0].session);
    const char *name = harness_cluster_worker_name(cluster, dead);
    banyan_plan_info plan;
    uint64_t tokens_there = 0;
    OK(banyan_session_get_plan(wide.session, &plan, ERR));
    for (uint32_t i = 0; i < plan.n_nodes; i++)
        if (strcmp(plan.nodes[i].worker, name) == 0)
            tokens_there = plan.nodes[i].tokens;
    banyan_plan_info_free(&plan);
    assert_true(tokens_there > 0);

    harness_cluster_signal(cluster, dead, SIGKILL);
    FAILS(BANYAN_UNAVAILABLE, "MISSING_RANGE", step_on(client, &wide, 319, LONG_NS));
    assert_string_equal(ERR->worker, name);
    uint64_t named = 0;
    assert_true(ERR->n_ranges > 0);
    for (uint32_t i = 0; i < ERR->n_ranges; i++) {
        named += ERR->ranges[i].count;
        assert_int_equal(ERR->ranges[i].first % 32, 0); // whole chunks, in order
        assert_true(i == 0 || ERR->ranges[i].first > ERR->ranges[i - 1].first);
    }
    assert_int_equal(named, tokens_there);
    // What looks only at chunks that are there goes on, if the first chunk is
    if (ERR->ranges[0].first > 0)
        OK(step_on(client, &wide, ERR->ranges[0].first - 1, LONG_NS));
    FAILS(BANYAN_UNAVAILABLE, "MISSING_RANGE", step_on(client, &alone[0], 99, LONG_NS));
    assert_true(ERR->n_ranges == 1 && ERR->ranges[0].first == 0 && ERR->ranges[0].count == 100);
    // An append fails likewise, and leaves the length alone
    struct step append = {.session = alone[0].session,
                          .first = 100,
                          .rows = 1,
                          .timeout_ns = LONG_NS,
                          .k = context_k(&alone[0].context, 0, 100),
                          .v = context_v(&alone[0].context, 0, 100)};
    FAILS(BANYAN_UNAVAILABLE, NULL, step_run(client, &append));
    step_free(&append);

    // The rest of the service goes on: sessions elsewhere, new sessions, information
    unsigned others = 0;
    for (int i = 1; i < 3; i++)
        if (holder_of(alone[i].session) != dead) {
            OK(step_on(client, &alone[i], 99, 0));
            others++;
        }
    assert_true(others > 0);
    struct held fresh;
    make(client, &fresh, &spread, 100, 200, NULL);
    OK(step_on(client, &fresh, 99, 0));
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        if ((strcmp(info.workers[i].name, name) == 0) == (strcmp(info.workers[i].state, "active") == 0))
            fail_msg("worker %s is %s", info.workers[i].name, info.workers[i].state);
    banyan_cluster_info_free(&info);
    banyan_session_info session;
    OK(banyan_session_get_info(wide.session, &session, ERR));
    assert_string_equal(session.state, "unavailable");
    banyan_session_info_free(&session);

    // A new process under the old name has nothing: never numbers, and the words say it
    assert_true(harness_cluster_restart(cluster, dead));
    EVENTUALLY(30, step_on(client, &wide, 319, LONG_NS) == BANYAN_DATA_LOSS);
    assert_string_equal(ERR->reason, "MISSING_RANGE");
    assert_true(ERR->n_ranges > 0);
    FAILS(BANYAN_DATA_LOSS, "MISSING_RANGE", step_on(client, &alone[0], 99, LONG_NS));
    // What to do then: cut the session before the loss, and fill it again
    OK(banyan_session_truncate(alone[0].session, 0, ERR));
    support_fill(alone[0].session, &alone[0].context, 0, 100);
    OK(step_on(client, &alone[0], 99, 0));
    OK(banyan_session_truncate(wide.session, 0, ERR));
    support_fill(wide.session, &wide.context, 0, 320);
    OK(step_on(client, &wide, 319, 0));
    drop(&fresh);
    drop(&wide);
    for (int i = 0; i < 3; i++)
        drop(&alone[i]);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- steps in flight when a worker dies -------------------------------------------------------------------

struct runner {
    pthread_t thread;
    banyan_client *client;
    const struct held *held;
    unsigned done, wrong;
    banyan_code code;
    banyan_error error;
};

static void *run_until_it_fails(void *arg)
{
    struct runner *r = arg;
    float *q = context_queries(&r->held->context.spec, 1, 3), o[128], first[128], lse[4];
    banyan_item item = {.session = r->held->session,
                        .first = r->held->tokens - 1,
                        .rows = 1,
                        .q = q,
                        .o = o,
                        .lse = lse,
                        .error = &r->error};
    while (r->code == BANYAN_OK && r->done < 10000000) {
        r->code = banyan_attend(r->client, &item, 1, LONG_NS, NULL, &r->error);
        r->code = r->code ? r->code : item.code;
        if (r->code == BANYAN_OK) {
            if (__atomic_fetch_add(&r->done, 1, __ATOMIC_RELAXED) == 0)
                memcpy(first, o, sizeof(o));
            r->wrong += memcmp(first, o, sizeof(o)) != 0;
        }
    }
    free(q);
    return NULL;
}

static void a_worker_dies_under_load(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 4});
    banyan_client *client = support_connect(cluster, "unix");
    struct held wide;
    struct runner runner[4];
    banyan_spec four = spread;
    four.members = 4;
    make(client, &wide, &four, 640, 640, NULL);
    for (int i = 0; i < 4; i++) {
        runner[i] = (struct runner){.client = client, .held = &wide};
        assert_int_equal(pthread_create(&runner[i].thread, NULL, run_until_it_fails, &runner[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        EVENTUALLY(60, __atomic_load_n(&runner[i].done, __ATOMIC_RELAXED) > 20);
    harness_cluster_signal(cluster, 2, SIGKILL);
    for (int i = 0; i < 4; i++)
        pthread_join(runner[i].thread, NULL); // ends long before the deadline, or the test's time is over
    for (int i = 0; i < 4; i++) {
        assert_int_equal(runner[i].wrong, 0);
        if (runner[i].code != BANYAN_UNAVAILABLE || strcmp(runner[i].error.reason, "MISSING_RANGE") != 0)
            fail_msg("a step in flight ends with %s (%s): %s", banyan_code_name(runner[i].code),
                     runner[i].error.reason, runner[i].error.message);
        assert_true(runner[i].error.n_ranges > 0);
        assert_string_equal(runner[i].error.worker, "w2");
    }
    drop(&wide);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- a worker stops, and wakes again ----------------------------------------------------------------------

static void a_stopped_worker(void **state)
{
    (void)state;
    static const char *const default_beat[] = {"--heartbeat", "500ms", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 3, .coordinator_args = default_beat});
    banyan_client *client = support_connect(cluster, "nng+tcp");
    struct held wide, away;
    make(client, &wide, &spread, 320, 400, NULL);
    banyan_spec one = spread;
    one.members = 1;
    one.chunk_tokens = 512; // one chunk: one worker
    make(client, &away, &one, 100, 200, NULL);
    uint32_t stopped = (holder_of(away.session) + 1) % 3;
    harness_cluster_signal(cluster, stopped, SIGSTOP);
    banyan_code code = step_on(client, &wide, 319, 2 * COMMON_NS_PER_S);
    if (code != BANYAN_DEADLINE_EXCEEDED && code != BANYAN_UNAVAILABLE)
        fail_msg("a step over a stopped worker: %s", banyan_code_name(code));
    OK(step_on(client, &away, 99, 0)); // others go on
    code =
        step_on(client, &wide, 319, LONG_NS); // three missed heartbeats, and it fails without waiting for it
    if (code != BANYAN_UNAVAILABLE)
        fail_msg("a step over a worker that is lost: %s", banyan_code_name(code));
    harness_cluster_signal(cluster, stopped, SIGCONT);
    EVENTUALLY(60, step_on(client, &wide, 319, LONG_NS) == BANYAN_OK); // it has kept everything
    drop(&wide);
    drop(&away);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- the coordinator is killed ----------------------------------------------------------------------------

static void a_killed_coordinator(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 3});
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    banyan_client *clients[3];
    for (int t = 0; t < 3; t++)
        clients[t] = support_connect(cluster, transports[t]);
    struct held wide;
    make(clients[0], &wide, &spread, 300, 400, "lasting");
    for (uint64_t p = 300; p < 310; p++) { // some by appends, which no store has seen
        struct step step = {.session = wide.session,
                            .first = p,
                            .rows = 1,
                            .k = context_k(&wide.context, 0, p),
                            .v = context_v(&wide.context, 0, p)};
        OK(step_run(clients[0], &step));
        step_free(&step);
    }
    struct step before = {.session = wide.session, .first = 309, .rows = 1, .seed = 3};
    OK(step_run(clients[0], &before));
    for (int round = 0; round < 3; round++) {
        harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
        assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
        for (int t = 0; t < 3; t++) {
            banyan_session *session = wide.session;
            if (t > 0)
                OK(banyan_session_open(clients[t], 0, "lasting", &session, ERR));
            struct step after = {
                .session = session, .first = 309, .rows = 1, .seed = 3, .timeout_ns = LONG_NS};
            OK(step_run(clients[t], &after)); // one call: the pause is inside
            assert_int_equal(after.length, 310 + (uint64_t)round);
            assert_true(after.digest == before.digest && step_same_bits(&after, &before));
            step_free(&after);
            if (t > 0)
                banyan_session_close(session);
        }
        uint64_t p = 310 + (uint64_t)round;
        struct step append = {.session = wide.session,
                              .first = p,
                              .rows = 1,
                              .timeout_ns = LONG_NS,
                              .k = context_k(&wide.context, 0, p),
                              .v = context_v(&wide.context, 0, p)};
        OK(step_run(clients[0], &append));
        assert_int_equal(append.length, p + 1);
        context_check(&wide.context, 0, p, 1, 0, append.made_q, append.o, append.lse, NULL,
                      "after a restart");
        step_free(&append);
    }
    step_free(&before);
    drop(&wide);
    for (int t = 0; t < 3; t++)
        banyan_disconnect(clients[t]);
    support_stop(cluster);
}

static void everything_restarts(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "nng+tcp");
    struct held h;
    make(client, &h, &spread, 100, 200, "gone");
    for (uint32_t w = 0; w < 2; w++)
        harness_cluster_signal(cluster, w, SIGKILL);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    for (uint32_t w = 0; w < 2; w++)
        assert_true(harness_cluster_restart(cluster, w));
    // Workers keep K and V in memory only: an error that says so, never numbers
    EVENTUALLY(30, step_on(client, &h, 99, LONG_NS) == BANYAN_DATA_LOSS);
    OK(banyan_session_delete(h.session, ERR));
    drop(&h);
    struct held fresh;
    make(client, &fresh, &spread, 100, 200, "gone");
    OK(step_on(client, &fresh, 99, 0));
    drop(&fresh);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- a client dies in the middle of a token ---------------------------------------------------------------

static const banyan_spec deep = {.layers = 8,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_BF16,
                                 .chunk_tokens = 16,
                                 .members = 2};
#define DEEP_TOKENS 40
#define DEEP_SEED   17
#define DEEP_LAYERS 3 // of the token that is not finished

static banyan_code append_layer(banyan_client *client, banyan_session *session, const struct context *c,
                                uint32_t layer, uint64_t position, bool judge)
{
    struct step step = {.session = session,
                        .layer = layer,
                        .first = position,
                        .rows = 1,
                        .seed = position,
                        .k = context_k(c, layer, position),
                        .v = context_v(c, layer, position)};
    banyan_code code = step_run(client, &step);
    if (judge && code == BANYAN_OK)
        context_check(c, layer, position, 1, 0, step.made_q, step.o, step.lse, NULL, "continued");
    step_free(&step);
    return code;
}

// The client that will be killed: a process of its own.
static int victim_main(const char *endpoint, const char *sign)
{
    banyan_client *client;
    banyan_session *session;
    struct context c;
    context_init(&c, &deep, DEEP_TOKENS + 10);
    context_random(&c, 0, DEEP_TOKENS + 10, DEEP_SEED);
    if (banyan_connect(endpoint, NULL, &client, NULL) != BANYAN_OK ||
        banyan_session_create(client, &deep, "victim", &session, NULL) != BANYAN_OK)
        return 1;
    for (uint32_t l = 0; l < deep.layers; l++)
        if (banyan_attach(session, l, 0, DEEP_TOKENS, context_k(&c, l, 0), context_v(&c, l, 0), NULL) !=
                BANYAN_OK ||
            banyan_commit(session, l, 0, DEEP_TOKENS, NULL) != BANYAN_OK)
            return 1;
    for (uint32_t l = 0; l < DEEP_LAYERS; l++)
        if (append_layer(client, session, &c, l, DEEP_TOKENS, false) != BANYAN_OK)
            return 1;
    FILE *file = fopen(sign, "we");
    if (!file || fclose(file) != 0)
        return 1;
    for (;;)
        pause();
}

static void a_client_dies_in_the_middle_of_a_token(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) { // continue with the same rows; truncate
        struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
        char self[4096], sign[512];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        assert_true(n > 0);
        self[n] = '\0';
        snprintf(sign, sizeof(sign), "%s/sign", harness_cluster_dir(cluster));
        char *argv[] = {self, (char *)"--victim",
                        (char *)(uintptr_t)harness_cluster_endpoint(cluster, way ? "unix" : "nng+tcp"), sign,
                        NULL};
        pid_t pid = harness_process_start(argv, NULL);
        assert_true(pid > 0);
        EVENTUALLY(60, access(sign, F_OK) == 0);
        kill(pid, SIGKILL);
        assert_true(harness_process_wait(pid, 10 * COMMON_NS_PER_S, NULL));

        banyan_client *client = support_connect(cluster, "nng+tcp");
        banyan_session *session;
        banyan_session_info info;
        struct context c;
        context_init(&c, &deep, DEEP_TOKENS + 10);
        context_random(&c, 0, DEEP_TOKENS + 10, DEEP_SEED);
        OK(banyan_session_open(client, 0, "victim", &session, ERR));
        OK(banyan_session_get_info(session, &info, ERR));
        assert_int_equal(info.length, DEEP_TOKENS);
        for (uint32_t l = 0; l < deep.layers; l++)
            assert_int_equal(info.layer_lengths[l], DEEP_TOKENS + (l < DEEP_LAYERS));
        banyan_session_info_free(&info);
        if (way == 0) {
            for (uint32_t l = 0; l < deep.layers; l++) // the same rows: where they are, no news
                OK(append_layer(client, session, &c, l, DEEP_TOKENS, true));
        } else {
            struct context other; // other rows are refused, until the session is cut
            context_init(&other, &deep, DEEP_TOKENS + 10);
            context_random(&other, 0, DEEP_TOKENS + 10, DEEP_SEED);
            context_random(&other, DEEP_TOKENS, 1, DEEP_SEED + 1);
            FAILS(BANYAN_FAILED_PRECONDITION, NULL,
                  append_layer(client, session, &other, 1, DEEP_TOKENS, false));
            OK(banyan_session_truncate(session, DEEP_TOKENS, ERR));
            for (uint32_t l = 0; l < deep.layers; l++)
                OK(append_layer(client, session, &other, l, DEEP_TOKENS, true));
            context_free(&c);
            c = other;
        }
        for (uint64_t p = DEEP_TOKENS + 1; p < DEEP_TOKENS + 10; p++)
            for (uint32_t l = 0; l < deep.layers; l++)
                OK(append_layer(client, session, &c, l, p, true));
        context_free(&c);
        banyan_session_close(session);
        banyan_disconnect(client);
        support_stop(cluster);
    }
}

// ---- memory is full ---------------------------------------------------------------------------------------

static void memory_that_is_full(void **state)
{
    (void)state;
    // 4 KiB a token of one layer: 16 MiB hold fewer than 4096 tokens
    const banyan_spec fat = {.layers = 2,
                             .q_heads = 4,
                             .kv_heads = 4,
                             .k_dim = 128,
                             .v_dim = 128,
                             .kv_type = BANYAN_F32,
                             .chunk_tokens = 64,
                             .members = 2};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2, .memory = "16M"});
    banyan_client *client = support_connect(cluster, "nng+tcp");
    struct held h, small;
    make(client, &small, &spread, 100, 120, NULL);
    make(client, &h, &fat, 0, 9000, NULL);
    uint64_t at = 0;
    banyan_code code = BANYAN_OK;
    while (at < 9000 && code == BANYAN_OK) {
        for (uint32_t l = 0; l < 2 && code == BANYAN_OK; l++) {
            code = banyan_attach(h.session, l, at, 100, context_k(&h.context, l, at),
                                 context_v(&h.context, l, at), ERR);
            if (code == BANYAN_OK)
                code = banyan_commit(h.session, l, at, 100, ERR);
        }
        at += code == BANYAN_OK ? 100 : 0;
    }
    if (code != BANYAN_RESOURCE_EXHAUSTED)
        fail_msg("16 MiB a worker took %" PRIu64 " tokens: %s: %s", at, banyan_code_name(code), ERR->message);
    assert_non_null(strstr(ERR->message, "worker w")); // says which
    assert_true(at >= 1000);                           // the memory was used, too
    // Nothing half-done: lengths are as committed, all of it exact, other sessions too
    banyan_session_info info;
    OK(banyan_session_get_info(h.session, &info, ERR));
    for (uint32_t l = 0; l < 2; l++)
        assert_true(info.layer_lengths[l] == at || info.layer_lengths[l] == at + 100);
    uint64_t lengths[2] = {info.layer_lengths[0], info.layer_lengths[1]};
    banyan_session_info_free(&info);
    for (uint32_t l = 0; l < 2; l++)
        support_check_step(client, h.session, &h.context, l, lengths[l] - 1, 1, 0, NULL, "full");
    // Appends find the end too, and say so; the session can still be read
    code = BANYAN_OK;
    uint64_t p = lengths[1];
    while (code == BANYAN_OK && p < 9000) {
        struct step step = {.session = h.session,
                            .layer = 1,
                            .first = p,
                            .rows = 16,
                            .k = context_k(&h.context, 1, p),
                            .v = context_v(&h.context, 1, p)};
        code = step_run(client, &step);
        step_free(&step);
        p += code == BANYAN_OK ? 16 : 0;
    }
    if (code != BANYAN_RESOURCE_EXHAUSTED)
        fail_msg("appends to a full cluster: %s: %s", banyan_code_name(code), ERR->message);
    support_check_step(client, h.session, &h.context, 1, p - 1, 1, 0, NULL, "full by appends");
    OK(step_on(client, &small, 99, 0));
    // Room comes back
    OK(banyan_session_truncate(h.session, 320, ERR));
    support_check_step(client, h.session, &h.context, 0, 319, 1, 0, NULL, "cut");
    support_fill(h.session, &h.context, 320, 300);
    support_check_step(client, h.session, &h.context, 1, 619, 1, 0, NULL, "filled again");
    OK(banyan_session_delete(h.session, ERR));
    OK(banyan_session_delete(small.session, ERR));
    EVENTUALLY(30, support_used_bytes(client) == 0);
    drop(&h);
    drop(&small);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--victim") == 0)
        return victim_main(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker),     cmocka_unit_test(a_worker_dies_under_load),
        cmocka_unit_test(a_stopped_worker),    cmocka_unit_test(a_killed_coordinator),
        cmocka_unit_test(everything_restarts), cmocka_unit_test(a_client_dies_in_the_middle_of_a_token),
        cmocka_unit_test(memory_that_is_full),
    };
    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
