// SPDX-License-Identifier: Apache-2.0
// Commits of overlapping ranges, side by side. One of the two holders is stopped until all of them wait for
// it, so that each has frozen its rows at the other one before any is done: what one of them then releases
// must not be another's. Then: rows of a durable commit that a worker refuses, and a coordinator that is
// killed between the two phases.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/secure/secret.h"
#include "tests/e2e/wire.h"

#define CHUNK          16
#define TOKENS         64 // put before the commits
#define BEYOND         80 // where the ranges with a hole end
#define ROUNDS         4
#define FIRST_OF(term) ((term) << 40) // numbers of commits (coordinator/commits.h)

static struct harness_cluster *cluster;
static banyan_client *client;

static const banyan_spec spec = {.layers = 2,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = CHUNK,
                                 .members = 2};

struct committer {
    pthread_t thread;
    banyan_session *session;
    uint32_t layer;
    uint64_t first, count;
    banyan_code code;
    banyan_error error;
};

static void *commit_main(void *arg)
{
    struct committer *c = arg;
    c->code = banyan_commit(c->session, c->layer, c->first, c->count, &c->error);
    return NULL;
}

// Runs them all while worker 1 stands still, and long enough for each to have reached worker 0.
static void commit_together(struct committer *all, uint32_t n)
{
    harness_cluster_signal(cluster, 1, SIGSTOP);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&all[i].thread, NULL, commit_main, &all[i]), 0);
    support_sleep_ms(400);
    harness_cluster_signal(cluster, 1, SIGCONT);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(all[i].thread, NULL);
}

static void session_start(banyan_session **session, struct context *context)
{
    context_init(context, &spec, BEYOND);
    context_random(context, 0, BEYOND, 31);
    OK(banyan_session_create(client, &spec, NULL, session, ERR));
    for (uint32_t l = 0; l < spec.layers; l++)
        OK(banyan_attach(*session, l, 0, TOKENS, context_k(context, l, 0), context_v(context, l, 0), ERR));
}

static void session_stop(banyan_session *session, struct context *context)
{
    support_drop(session, context);
}

static void check_rows(banyan_session *session, const struct context *context, uint64_t length)
{
    for (uint32_t l = 0; l < spec.layers; l++)
        for (uint64_t p = 0; p < length; p += 7)
            support_check_step(client, session, context, l, p, 1, 0, NULL, "after the commits");
    for (uint32_t l = 0; l < spec.layers; l++)
        support_check_step(client, session, context, l, length - 1, 1, 0, NULL, "the whole layer");
}

static void overlapping_commits(void **state)
{
    (void)state;
    static const struct {
        uint64_t first, end;
    } ranges[] = {{0, TOKENS},  {0, BEYOND},  {0, TOKENS},  {16, 48}, {5, 6},       {0, 40},
                  {40, TOKENS}, {30, BEYOND}, {33, TOKENS}, {20, 41}, {63, BEYOND}, {0, TOKENS}};
    enum { RANGES = sizeof(ranges) / sizeof(*ranges) };
    for (int round = 0; round < ROUNDS; round++) {
        banyan_session *session;
        struct context context;
        struct committer all[2 * RANGES];
        session_start(&session, &context);
        for (uint32_t i = 0; i < 2 * RANGES; i++) {
            uint32_t r = round % 2 ? (uint32_t)RANGES - 1 - i % RANGES : i % RANGES;
            all[i] = (struct committer){.session = session,
                                        .layer = i / RANGES,
                                        .first = ranges[r].first,
                                        .count = ranges[r].end - ranges[r].first};
        }
        commit_together(all, 2 * RANGES);
        for (uint32_t i = 0; i < 2 * RANGES; i++) {
            const struct committer *c = &all[i];
            bool hole = c->first + c->count > TOKENS;
            if (c->code != (hole ? BANYAN_FAILED_PRECONDITION : BANYAN_OK) ||
                (hole && strcmp(c->error.reason, "HOLE") != 0))
                fail_msg("commit of [%" PRIu64 ", %" PRIu64 ") of layer %u: %s: %s", c->first,
                         c->first + c->count, c->layer, banyan_code_name(c->code), c->error.message);
        }
        check_rows(session, &context, TOKENS);
        for (uint32_t l = 0; l < spec.layers; l++) { // nothing stays frozen: what was missing goes in
            OK(banyan_attach(session, l, 0, BEYOND, context_k(&context, l, 0), context_v(&context, l, 0),
                             ERR));
            OK(banyan_commit(session, l, 0, BEYOND, ERR));
            OK(banyan_commit(session, l, 0, BEYOND, ERR));
        }
        check_rows(session, &context, BEYOND);
        session_stop(session, &context);
    }
}

// What a range with a hole froze is free again, for other bytes too.
static void a_hole_leaves_nothing_frozen(void **state)
{
    (void)state;
    banyan_session *session;
    struct context context, other;
    session_start(&session, &context);
    struct committer all[3];
    for (uint32_t i = 0; i < 3; i++)
        all[i] = (struct committer){.session = session, .first = 10 * i, .count = BEYOND - 10 * i};
    commit_together(all, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(all[i].code, BANYAN_FAILED_PRECONDITION);
    context_init(&other, &spec, BEYOND);
    context_random(&other, 0, BEYOND, 77);
    OK(banyan_attach(session, 0, 0, BEYOND, context_k(&other, 0, 0), context_v(&other, 0, 0), ERR));
    OK(banyan_commit(session, 0, 0, BEYOND, ERR));
    support_check_step(client, session, &other, 0, BEYOND - 1, 1, 0, NULL, "the other bytes");
    context_free(&other);
    session_stop(session, &context);
}

// A caller with the cluster's secret thaws rows between the two phases, so that a worker must refuse them
// when their commit is durable: the client gets the error, and committing again heals it.
static void a_refused_commit(void **state)
{
    (void)state;
    struct common_secret secret;
    banyan_cluster_info info;
    banyan_session *session;
    struct context context;
    char endpoint[300];
    assert_int_equal(common_secret_load(harness_cluster_secret_file(cluster), &secret, NULL), COMMON_OK);
    OK(banyan_cluster_get_info(client, &info, ERR));
    uint64_t term = info.term;
    banyan_cluster_info_free(&info);
    snprintf(endpoint, sizeof(endpoint), "unix://%s/w0.sock", harness_cluster_dir(cluster));
    int fd = wire_dial(endpoint);
    assert_true(wire_hello_as(fd, BANYAN__PB__ROLE__ROLE_COORDINATOR, &secret));
    session_start(&session, &context);
    banyan_session_info about;
    OK(banyan_session_get_info(session, &about, ERR));
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    m.term = term;
    m.session = banyan_session_id(session);
    m.incarnation = about.incarnation;
    m.count = TOKENS;
    banyan_session_info_free(&about);
    struct committer one = {.session = session, .count = TOKENS};
    harness_cluster_signal(cluster, 1, SIGSTOP);
    assert_int_equal(pthread_create(&one.thread, NULL, commit_main, &one), 0);
    support_sleep_ms(400);
    for (uint64_t n = 0; n <= 1000; n++) { // its number is one of these
        m.commit = n ? FIRST_OF(term) + n : 0;
        struct wire_frame frame =
            wire_request(BANYAN__PB__METHOD__METHOD_ROWS_ABORT, n + 1, &m.base, NULL, 0);
        assert_true(wire_send(fd, frame.bytes, frame.len));
        free(frame.bytes);
        struct wire_answer answer = wire_read(fd, 20000);
        assert_int_equal(answer.code, COMMON_OK);
        wire_answer_free(&answer);
    }
    harness_cluster_signal(cluster, 1, SIGCONT);
    pthread_join(one.thread, NULL);
    close(fd);
    if (one.code != BANYAN_DATA_LOSS || strcmp(one.error.reason, "COVERAGE") != 0 ||
        !strstr(one.error.message, "w0") || !strstr(one.error.message, "[0, 64)"))
        fail_msg("a refused commit: %s: %s: %s", banyan_code_name(one.code), one.error.reason,
                 one.error.message);
    struct step step = {.session = session, .first = TOKENS - 1, .rows = 1};
    assert_int_equal(step_run(client, &step), BANYAN_DATA_LOSS);
    step_free(&step);
    OK(banyan_attach(session, 0, 0, TOKENS, context_k(&context, 0, 0), context_v(&context, 0, 0), ERR));
    OK(banyan_commit(session, 0, 0, TOKENS, ERR));
    OK(banyan_commit(session, 1, 0, TOKENS, ERR));
    check_rows(session, &context, TOKENS);
    session_stop(session, &context);
}

// The coordinator dies when one holder has frozen the rows and the other has not received the commit: the
// next one releases them, so that the client may attach other bytes there.
static void a_coordinator_dies_between_the_phases(void **state)
{
    (void)state;
    banyan_session *session;
    struct context context, other;
    session_start(&session, &context);
    OK(banyan_commit(session, 1, 0, TOKENS, ERR));
    struct committer one = {.session = session, .count = TOKENS};
    harness_cluster_signal(cluster, 1, SIGSTOP);
    assert_int_equal(pthread_create(&one.thread, NULL, commit_main, &one), 0);
    support_sleep_ms(400);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    harness_cluster_signal(cluster, 1, SIGCONT);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    pthread_join(one.thread, NULL);
    OK(one.code); // the library asked again, and what is committed is committed
    support_check_step(client, session, &context, 0, TOKENS - 1, 1, 0, NULL, "after the restart");
    session_stop(session, &context);
    // Now with a client that is gone as well, and other bytes.
    session_start(&session, &context);
    banyan_client *gone = support_connect(cluster, "unix");
    banyan_session *its;
    OK(banyan_session_open(gone, banyan_session_id(session), NULL, &its, ERR));
    OK(banyan_commit(session, 1, 0, TOKENS, ERR));
    one = (struct committer){.session = its, .count = TOKENS};
    harness_cluster_signal(cluster, 1, SIGSTOP);
    assert_int_equal(pthread_create(&one.thread, NULL, commit_main, &one), 0);
    support_sleep_ms(400);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    banyan_disconnect(gone);
    pthread_join(one.thread, NULL);
    assert_int_not_equal(one.code, BANYAN_OK);
    banyan_session_close(its);
    harness_cluster_signal(cluster, 1, SIGCONT);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    context_init(&other, &spec, BEYOND);
    context_random(&other, 0, BEYOND, 78);
    EVENTUALLY(60, banyan_attach(session, 0, 0, TOKENS, context_k(&other, 0, 0), context_v(&other, 0, 0),
                                 ERR) == BANYAN_OK);
    OK(banyan_commit(session, 0, 0, TOKENS, ERR));
    support_check_step(client, session, &other, 0, TOKENS - 1, 1, 0, NULL, "the other bytes");
    context_free(&other);
    session_stop(session, &context);
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = 2});
    harness_cluster_allow_error(cluster, "a worker lacks rows whose commit is durable");
    client = support_connect(cluster, "unix");
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
        cmocka_unit_test(overlapping_commits),
        cmocka_unit_test(a_hole_leaves_nothing_frozen),
        cmocka_unit_test(a_refused_commit),
        cmocka_unit_test(a_coordinator_dies_between_the_phases),
    };
    return cmocka_run_group_tests_name("commits", tests, start, stop);
}
