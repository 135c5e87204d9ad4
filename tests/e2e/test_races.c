// SPDX-License-Identifier: Apache-2.0
// Many threads and clients at one session: appends of the same position, truncates and deletes under steps,
// tickets that expire on the way. Whatever wins, answers are exact or errors, and the session stays whole.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

#define THREADS 6

static struct harness_cluster *cluster;
static banyan_client *client;

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 16,
                                 .members = 3};

struct racer {
    pthread_t thread;
    uint32_t number;
    uint64_t session;
    const struct context *context; // its own, or everybody's
    atomic_uint *ready;
    uint64_t rounds;
    // results
    uint64_t wins, losses;
    char failed[500]; // what must not happen
    uint8_t *won;     // [rounds]
};

static void meet(const struct racer *r, unsigned until)
{
    atomic_fetch_add(r->ready, 1);
    while (atomic_load(r->ready) < until)
        support_sleep_ms(0);
}

static void go(struct racer *racers, uint32_t n, void *(*fn)(void *))
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&racers[i].thread, NULL, fn, &racers[i]), 0);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(racers[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (racers[i].failed[0])
            fail_msg("racer %u: %s", i, racers[i].failed);
}

// Round by round all clients append at the same position, a token each.
static void *append_main(void *arg)
{
    struct racer *r = arg;
    banyan_client *own = NULL;
    banyan_session *session = NULL;
    banyan_error e = {0};
    float *q = context_queries(&spec, 1, r->number), o[128], lse[4];
    if (banyan_connect(harness_cluster_endpoint(cluster, r->number % 2 ? "unix" : "nng+tcp"), NULL, &own,
                       &e) != BANYAN_OK ||
        banyan_session_open(own, r->session, NULL, &session, &e) != BANYAN_OK)
        snprintf(r->failed, sizeof(r->failed), "%s", e.message);
    for (uint64_t p = 0; p < r->rounds; p++) {
        meet(r, THREADS * (unsigned)(p + 1));
        if (r->failed[0])
            continue; // the others wait at the meeting
        banyan_item item = {.session = session,
                            .first = p,
                            .rows = 1,
                            .q = q,
                            .o = o,
                            .lse = lse,
                            .error = &e,
                            .k = context_k(r->context, 0, p),
                            .v = context_v(r->context, 0, p)};
        banyan_code code = banyan_attend(own, &item, 1, 0, NULL, &e);
        code = code ? code : item.code;
        r->won[p] = code == BANYAN_OK;
        r->wins += code == BANYAN_OK;
        r->losses += code == BANYAN_FAILED_PRECONDITION;
        if (code != BANYAN_OK && code != BANYAN_FAILED_PRECONDITION)
            snprintf(r->failed, sizeof(r->failed), "position %" PRIu64 ": %s: %s", p, banyan_code_name(code),
                     e.message);
    }
    free(q);
    banyan_session_close(session);
    banyan_disconnect(own);
    return NULL;
}

static void appends_at_one_position(void **state)
{
    (void)state;
    enum { ROUNDS = 60 };
    for (int same = 0; same < 2; same++) {
        struct context contexts[THREADS], whole;
        struct racer racers[THREADS];
        banyan_session *session;
        atomic_uint ready = 0;
        static uint8_t won[THREADS][ROUNDS];
        OK(banyan_session_create(client, &spec, NULL, &session, ERR));
        for (uint32_t i = 0; i < THREADS; i++) {
            context_init(&contexts[i], &spec, ROUNDS);
            context_random(&contexts[i], 0, ROUNDS, same ? 1 : 100 + i);
            racers[i] = (struct racer){.number = i,
                                       .session = banyan_session_id(session),
                                       .context = &contexts[i],
                                       .ready = &ready,
                                       .rounds = ROUNDS,
                                       .won = won[i]};
        }
        go(racers, THREADS, append_main);
        context_init(&whole, &spec, ROUNDS);
        for (uint64_t p = 0; p < ROUNDS; p++) {
            uint32_t winners = 0, winner = 0;
            for (uint32_t i = 0; i < THREADS; i++)
                if (won[i][p]) {
                    winners++;
                    winner = i;
                }
            if (winners != (same ? THREADS : 1))
                fail_msg("position %" PRIu64 ": %u of %d appends of %s bytes were taken", p, winners, THREADS,
                         same ? "the same" : "other");
            memcpy(whole.k[0] + p * whole.k_row, context_k(&contexts[winner], 0, p), whole.k_row);
            memcpy(whole.v[0] + p * whole.v_row, context_v(&contexts[winner], 0, p), whole.v_row);
        }
        support_check_step(client, session, &whole, 0, 0, ROUNDS, 0, NULL, "who won is what is there");
        for (uint32_t i = 0; i < THREADS; i++)
            context_free(&contexts[i]);
        context_free(&whole);
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
    }
}

// Steps over a session that is cut and refilled all the time: its rows are a function of their position, so
// every answer that comes must be the one.
static void *read_main(void *arg)
{
    struct racer *r = arg;
    banyan_session *session = NULL;
    banyan_error e = {0};
    const uint64_t at = 20 + r->number * 30;
    float *q = context_queries(&spec, 1, r->number), o[128], lse[4], first[128];
    if (banyan_session_open(client, r->session, NULL, &session, &e) != BANYAN_OK)
        snprintf(r->failed, sizeof(r->failed), "%s", e.message);
    for (uint64_t i = 0; i < r->rounds && !r->failed[0]; i++) {
        banyan_item item = {
            .session = session, .first = at, .rows = 1, .q = q, .o = o, .lse = lse, .error = &e};
        banyan_session_info info;
        banyan_code code = banyan_attend(client, &item, 1, 0, NULL, &e);
        code = code ? code : item.code;
        if (code == BANYAN_OK) {
            if (r->wins++ == 0)
                memcpy(first, o, sizeof(o));
            // Chunks move when they are placed again, so not the same bits, but the same within the bound
            for (int d = 0; d < 128; d++)
                if (!(o[d] - first[d] < 1e-5f && first[d] - o[d] < 1e-5f))
                    snprintf(r->failed, sizeof(r->failed), "other numbers: %g and %g", (double)o[d],
                             (double)first[d]);
        } else if (code == BANYAN_ABORTED || code == BANYAN_OUT_OF_RANGE ||
                   code == BANYAN_FAILED_PRECONDITION) {
            r->losses++;
            if (banyan_session_get_info(session, &info, &e) == BANYAN_OK) // learns the new incarnation
                banyan_session_info_free(&info);
        } else {
            snprintf(r->failed, sizeof(r->failed), "%s: %s", banyan_code_name(code), e.message);
        }
    }
    free(q);
    banyan_session_close(session);
    atomic_fetch_add(r->ready, 1);
    return NULL;
}

static void truncates_under_steps(void **state)
{
    (void)state;
    enum { TOKENS = 200 };
    struct racer racers[THREADS];
    struct context context;
    banyan_session *session;
    atomic_uint done = 0;
    context_init(&context, &spec, TOKENS);
    context_random(&context, 0, TOKENS, 9);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &context, 0, TOKENS);
    for (uint32_t i = 0; i < THREADS; i++) {
        racers[i] = (struct racer){.number = i,
                                   .session = banyan_session_id(session),
                                   .context = &context,
                                   .ready = &done,
                                   .rounds = 300};
        assert_int_equal(pthread_create(&racers[i].thread, NULL, read_main, &racers[i]), 0);
    }
    banyan_code code = BANYAN_OK;
    for (uint64_t i = 0; code == BANYAN_OK && atomic_load(&done) < THREADS; i++) {
        uint64_t keep = (i * 37) % TOKENS;
        code = banyan_session_truncate(session, keep, ERR);
        if (code == BANYAN_OK)
            code = banyan_attach(session, 0, keep, TOKENS - keep, context_k(&context, 0, keep),
                                 context_v(&context, 0, keep), ERR);
        if (code == BANYAN_OK)
            code = banyan_commit(session, 0, keep, TOKENS - keep, ERR);
    }
    uint64_t wins = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(racers[i].thread, NULL);
        wins += racers[i].wins;
    }
    OK(code);
    for (uint32_t i = 0; i < THREADS; i++)
        if (racers[i].failed[0])
            fail_msg("reader %u: %s", i, racers[i].failed);
    assert_true(wins > 0);
    support_check_step(client, session, &context, 0, TOKENS - 1, 1, 0, NULL, "after the truncates");
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(&context);
}

// Many calls in flight when their session is deleted: each ends, with an answer or NOT_FOUND.
static void one_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                     size_t n_items)
{
    (void)code;
    (void)error;
    (void)items;
    (void)n_items;
    atomic_fetch_sub((atomic_uint *)arg, 1);
}

static void a_delete_under_steps(void **state)
{
    (void)state;
    enum { CALLS = 400 };
    static struct step steps[CALLS];
    static banyan_item items[CALLS];
    static banyan_error errors[CALLS];
    for (int round = 0; round < 5; round++) {
        struct context context;
        banyan_session *session;
        atomic_uint left = CALLS;
        context_init(&context, &spec, 100);
        context_random(&context, 0, 100, 4);
        OK(banyan_session_create(client, &spec, NULL, &session, ERR));
        support_fill(session, &context, 0, 100);
        for (int i = 0; i < CALLS; i++) {
            steps[i] = (struct step){.session = session, .first = 99, .rows = 1, .seed = 1};
            items[i] = step_item(&steps[i]);
            items[i].error = &errors[i];
        }
        for (int i = 0; i < CALLS; i++)
            OK(banyan_attend_async(client, &items[i], 1, 60 * COMMON_NS_PER_S, one_done, &left, ERR));
        OK(banyan_session_delete(session, ERR));
        EVENTUALLY(90, atomic_load(&left) == 0);
        for (int i = 0; i < CALLS; i++) {
            if (items[i].code == BANYAN_OK)
                context_check(&context, 0, 99, 1, 0, steps[i].made_q, steps[i].o, steps[i].lse, NULL,
                              "deleted");
            else if (items[i].code != BANYAN_NOT_FOUND && items[i].code != BANYAN_ABORTED)
                fail_msg("a step of a deleted session: %s: %s", banyan_code_name(items[i].code),
                         errors[i].message);
            step_free(&steps[i]);
        }
        banyan_session_close(session);
        context_free(&context);
    }
}

struct late {
    banyan_session *session;
    const struct context *context;
    banyan_code code;
    banyan_error error;
};

static void *attach_main(void *arg)
{
    struct late *l = arg;
    l->code = banyan_attach(l->session, 0, 0, l->context->room, context_k(l->context, 0, 0),
                            context_v(l->context, 0, 0), &l->error);
    return NULL;
}

static bool worker_refused_a_ticket(const struct harness_cluster *own)
{
    char *log = harness_cluster_log(own, 0);
    bool refused = log && strstr(log, "an old ticket: ");
    free(log);
    return refused;
}

// A worker that sleeps for longer than a ticket lives: the rows go again with a fresh one. On a slow machine
// the ticket may be renewed before the rows go; so again, until the worker has refused one.
static void tickets_that_expire_on_the_way(void **state)
{
    (void)state;
    static const char *const slow_hearts[] = {"--ticket-life", "4s", "--heartbeat", "10s", NULL};
    static const char *const talks[] = {"--log-level", "debug", NULL};
    struct harness_cluster *own = support_start(
        &(struct harness_options){.workers = 1, .coordinator_args = slow_hearts, .worker_args = talks});
    banyan_client *c = support_connect(own, "nng+tcp");
    struct context context;
    context_init(&context, &spec, 100);
    context_random(&context, 0, 100, 4);
    struct late late = {.context = &context};
    pthread_t thread;
    OK(banyan_session_create(c, &spec, NULL, &late.session, ERR));
    for (int i = 0; i < 10 && !worker_refused_a_ticket(own); i++) {
        OK(banyan_attach(late.session, 0, 0, 1, context_k(&context, 0, 0), context_v(&context, 0, 0),
                         ERR)); // has a ticket
        harness_cluster_signal(own, 0, SIGSTOP);
        assert_int_equal(pthread_create(&thread, NULL, attach_main, &late), 0);
        support_sleep_ms(5000);
        harness_cluster_signal(own, 0, SIGCONT);
        pthread_join(thread, NULL);
        if (late.code != BANYAN_OK)
            fail_msg("attach: %s: %s", banyan_code_name(late.code), late.error.message);
    }
    assert_true(worker_refused_a_ticket(own));
    OK(banyan_commit(late.session, 0, 0, 100, ERR));
    support_check_step(c, late.session, &context, 0, 99, 1, 0, NULL, "late");
    banyan_session_close(late.session);
    banyan_disconnect(c);
    context_free(&context);
    support_stop(own);
}

// An append that fails may have written its rows somewhere, and its holder may receive late that it has
// failed. A truncate to where the session ends takes them away in any case, so that other rows can be
// attached there.
static void a_truncate_after_a_failed_append(void **state)
{
    (void)state;
    struct context context, other;
    banyan_session *session;
    context_init(&context, &spec, 64);
    context_random(&context, 0, 64, 21);
    context_init(&other, &spec, 64);
    context_random(&other, 0, 64, 22);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &context, 0, 40);
    for (uint64_t w = 0; w < 3; w++) { // one of them is neither the root nor where the row goes
        uint64_t p = 40 + w;
        struct step step = {.session = session,
                            .first = p,
                            .rows = 1,
                            .timeout_ns = COMMON_NS_PER_S,
                            .k = context_k(&other, 0, p),
                            .v = context_v(&other, 0, p)};
        harness_cluster_signal(cluster, (uint32_t)w, SIGSTOP);
        banyan_code code = step_run(client, &step);
        harness_cluster_signal(cluster, (uint32_t)w, SIGCONT);
        step_free(&step);
        assert_int_not_equal(code, BANYAN_OK);
        bool definite = strcmp(ERR->reason, "UNCONFIRMED") != 0;
        EVENTUALLY(60, (step = (struct step){.session = session, .first = 0, .rows = 1},
                        code = step_run(client, &step), step_free(&step), code == BANYAN_OK));
        if (definite) // then nothing of it is anywhere
            OK(banyan_attach(session, 0, p, 1, context_k(&context, 0, p), context_v(&context, 0, p), ERR));
        OK(banyan_session_truncate(session, p, ERR));
        support_fill(session, &context, p, 1);
        support_check_step(client, session, &context, 0, p, 1, 0, NULL, "after a failed append");
    }
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    context_free(&context);
    context_free(&other);
}

// The workers stop, an append fails, the coordinator is killed, the workers go on and store what lies in
// their sockets, and a coordinator starts: the rows are there as a whole or not at all, and the same append
// settles it.
static void an_append_fails_before_a_restart(void **state)
{
    (void)state;
    enum { FROM = 36, ROWS = 20 }; // over two chunks
    struct harness_cluster *own = support_start(&(struct harness_options){.workers = 2});
    banyan_client *c = support_connect(own, "unix");
    struct context context, other;
    banyan_session *session;
    banyan_session_info info;
    banyan_spec two = spec;
    two.members = 2;
    context_init(&context, &two, FROM + ROWS);
    context_random(&context, 0, FROM + ROWS, 31);
    context_init(&other, &two, FROM + ROWS);
    context_random(&other, 0, FROM + ROWS, 32);
    OK(banyan_session_create(c, &two, NULL, &session, ERR));
    support_fill(session, &context, 0, FROM);
    struct step step = {.session = session, .first = FROM, .rows = ROWS, .timeout_ns = COMMON_NS_PER_S};
    OK(context_attach(session, &context, 0, FROM, ROWS, ERR)); // both chunks have their places
    for (uint32_t w = 0; w < 2; w++)
        harness_cluster_signal(own, w, SIGSTOP);
    step_append(&step, &context);
    assert_int_not_equal(step_run(c, &step), BANYAN_OK);
    assert_string_equal(ERR->reason, "UNCONFIRMED");
    harness_cluster_signal(own, HARNESS_COORDINATOR, SIGKILL);
    for (uint32_t w = 0; w < 2; w++)
        harness_cluster_signal(own, w, SIGCONT);
    assert_true(harness_cluster_restart(own, HARNESS_COORDINATOR));
    EVENTUALLY(60, banyan_session_get_info(session, &info, ERR) == BANYAN_OK);
    banyan_session_info_free(&info);
    step.timeout_ns = 0;
    EVENTUALLY(60, step_run(c, &step) == BANYAN_OK);
    step_free(&step);
    support_check_step(c, session, &context, 0, FROM + ROWS - 1, 1, 0, NULL, "the same append");
    step = (struct step){.session = session, .first = FROM, .rows = ROWS};
    step_append(&step, &other);
    assert_int_equal(step_run(c, &step), BANYAN_FAILED_PRECONDITION);
    assert_string_not_equal(ERR->reason, "UNCONFIRMED");
    step_free(&step);
    harness_cluster_signal(own, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(own, HARNESS_COORDINATOR));
    EVENTUALLY(60, banyan_session_get_info(session, &info, ERR) == BANYAN_OK);
    banyan_session_info_free(&info);
    support_check_step(c, session, &context, 0, FROM + ROWS - 1, 1, 0, NULL, "after another restart");
    banyan_session_close(session);
    banyan_disconnect(c);
    context_free(&context);
    context_free(&other);
    support_stop(own);
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
        cmocka_unit_test(appends_at_one_position),
        cmocka_unit_test(truncates_under_steps),
        cmocka_unit_test(a_delete_under_steps),
        cmocka_unit_test(tickets_that_expire_on_the_way),
        cmocka_unit_test(a_truncate_after_a_failed_append),
        cmocka_unit_test(an_append_fails_before_a_restart),
    };
    return cmocka_run_group_tests_name("races", tests, start, stop);
}
