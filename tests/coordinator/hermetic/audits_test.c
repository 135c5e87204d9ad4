// SPDX-License-Identifier: Apache-2.0
// Steps that are kept, and audits: which steps, what is found, what is not called wrong, and what becomes of
// both when rows go.
#include <stdlib.h>

#include "coordinator/steps/audit.h"
#include "coordinator/steps/lane.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

static void each(struct coordinator_options *options)
{
    options->audit = 1;
}

static void each_and_none_kept(struct coordinator_options *options)
{
    options->audit = 1;
    options->keep_bytes = 0;
}

static void each_a_little(struct coordinator_options *options)
{
    options->audit = 1;
    options->audit_madds = 256; // a row and a head, a chunk at a time
}

static void few_kept(struct coordinator_options *options)
{
    options->keep_bytes = 3000; // of the sessions here, two steps or three
}

static struct sim_cluster *audited(uint32_t workers, void (*tune)(struct coordinator_options *options))
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = workers, .tune = tune});
    sim_cluster_start(cluster);
    return cluster;
}

static const struct coordinator_steps *steps_of(const struct sim_cluster *cluster)
{
    return &cluster->coordinator->steps;
}

#define COUNTS(cluster, right, wrong, skipped)                                                               \
    do {                                                                                                     \
        sim_advance(COMMON_NS_PER_S);                                                                        \
        assert_int_equal(steps_of(cluster)->count_audited, (right) + (wrong));                               \
        assert_int_equal(steps_of(cluster)->count_audit_differences, wrong);                                 \
        assert_int_equal(steps_of(cluster)->count_audit_skipped, skipped);                                   \
    } while (0)

// ---- SessionStep -----------------------------------------------------------------------------------------

static Banyan__Pb__SessionStepReply told;
static uint64_t told_positions[PROTO_KEPT_ROWS_MAX];
static float told_o, told_lse;

static void take_kept(struct sim_call *call, const struct proto_message *message)
{
    (void)call;
    told = *(const Banyan__Pb__SessionStepReply *)(const void *)message->body;
    assert_int_equal(message->n_tensors, told.rows ? 3 : 0);
    assert_true(told.n_positions <= PROTO_KEPT_ROWS_MAX);
    if (told.n_positions)
        memcpy(told_positions, told.positions, told.n_positions * sizeof *told.positions);
    if (message->n_tensors) {
        assert_int_equal(message->tensors[0].bytes, told.n_positions * 2 * 4 * sizeof(float));
        assert_int_equal(message->tensors[2].bytes, told.n_positions * 2 * sizeof(float));
        const float *o = message->tensors[1].data, *lse = message->tensors[2].data;
        told_o = o[(told.n_positions - 1) * 2 * 4];
        told_lse = lse[(told.n_positions - 1) * 2];
    }
}

static void ask_kept(struct sim_cluster *cluster, uint64_t session)
{
    Banyan__Pb__SessionStepRequest m = BANYAN__PB__SESSION_STEP_REQUEST__INIT;
    m.session = session;
    told = (Banyan__Pb__SessionStepReply){.rows = UINT32_MAX};
    OK(sim_call_start(cluster->client, METHOD(SESSION_STEP), &m.base, NULL, 0, take_kept));
}

// ---- which -------------------------------------------------------------------------------------------------

// One of each N, wherever the callers' period falls.
static void one_in_so_many(void **state)
{
    (void)state;
    struct coordinator_core core = {.started_ns = 0};
    struct coordinator_steps steps = {.core = &core};
    assert_false(coordinator_audit_picks(&steps, 1)); // 0: none
    for (uint64_t n = 1; n <= 64; n *= 4) {
        uint32_t of_layer[8] = {0};
        core.options.audit = n;
        for (uint64_t from = 0; from < 1000 * n; from += n) {
            uint32_t picked = 0;
            for (uint64_t i = from + 1; i <= from + n; i++)
                if (coordinator_audit_picks(&steps, i)) {
                    of_layer[i % 8]++;
                    picked++;
                }
            assert_int_equal(picked, 1);
        }
        for (int l = 0; l < 8 && n > 1; l++)
            assert_true(of_layer[l] > 60); // of 1,000 on 8
    }
}

static void a_step_is_kept_as_it_was_answered(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.layers = 2, .members = 2}, "");
    OK(made);
    uint64_t session = made->session;
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 0); // nothing yet
    OK(sim_append(cluster->client, session, 1, 0, 20, 3));
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 20);
    assert_int_equal(told.layer, 1);
    assert_int_equal(told.first, 0);
    assert_int_equal(told.visible, 20);
    assert_true(told.append);
    assert_int_equal(told.audit, COORDINATOR_AUDIT_NONE);
    assert_int_equal(told.n_positions, PROTO_KEPT_ROWS_MAX);
    assert_int_equal(told_positions[0], 0);
    assert_int_equal(told_positions[PROTO_KEPT_ROWS_MAX - 1], 19);
    for (uint32_t i = 1; i < told.n_positions; i++)
        assert_true(told_positions[i] > told_positions[i - 1]);
    assert_float_equal(told_o, 3, 1e-5);
    assert_true(told_lse > 2);                             // ln 20 and the logit
    OK(sim_append(cluster->client, session, 0, 0, 20, 3)); // within a second: the first one stays
    ask_kept(cluster, session);
    assert_int_equal(told.layer, 1);
    for (uint32_t at = 20; at < 60; at++) { // later ones take its place
        sim_advance(COMMON_NS_PER_S + COMMON_NS_PER_MS);
        OK(sim_append(cluster->client, session, 0, at, 1, 3));
    }
    ask_kept(cluster, session);
    assert_int_equal(told.layer, 0);
    assert_int_equal(told.rows, 1);
    assert_true(told_positions[0] > 30);
    assert_int_equal(steps_of(cluster)->keep.n, 1);
    OK(sim_delete(cluster->client, session));
    sim_run_until_idle();
    assert_int_equal(steps_of(cluster)->keep.n, 0);
    assert_int_equal(steps_of(cluster)->keep.bytes, 0);
    Banyan__Pb__SessionStepRequest m = BANYAN__PB__SESSION_STEP_REQUEST__INIT;
    m.session = session;
    ENDS(COMMON_NOT_FOUND,
         sim_call_start(cluster->client, METHOD(SESSION_STEP), &m.base, NULL, 0, take_kept));
    sim_cluster_free(cluster);
}

static void the_oldest_go_first(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(1, few_kept);
    uint64_t sessions[6];
    for (int i = 0; i < 6; i++) {
        struct sim_call *made = sim_create(cluster->client, (struct sim_shape){0}, "");
        OK(made);
        sessions[i] = made->session;
        sim_advance(10 * COMMON_NS_PER_MS);
        OK(sim_append(cluster->client, sessions[i], 0, 0, 3, 1));
        assert_true(steps_of(cluster)->keep.bytes <= 3000);
    }
    assert_in_range(steps_of(cluster)->keep.n, 2, 5);
    ask_kept(cluster, sessions[0]);
    assert_int_equal(told.rows, 0);
    ask_kept(cluster, sessions[5]);
    assert_int_equal(told.rows, 3);
    sim_cluster_free(cluster);
}

// ---- whether it stands ---------------------------------------------------------------------------------------

static void a_truncate_ends_what_it_takes_rows_from(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 16);
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 16);
    uint64_t incarnation = told.incarnation;
    OK(sim_append(cluster->client, session, 0, 16, 20, 1));
    OK(sim_truncate(cluster->client, session, 30));
    OK(sim_truncate(cluster->client, session, 16)); // it saw rows below 16
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 16);
    assert_int_equal(told.incarnation, incarnation + 2);
    OK(sim_append(cluster->client, session, 0, 16, 20, 1));
    OK(sim_truncate(cluster->client, session, 15));
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 0);
    OK(sim_append(cluster->client, session, 0, 15, 1, 9)); // another row in its place
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 0);
    sim_cluster_free(cluster);
}

// ---- audits ----------------------------------------------------------------------------------------------------

static void what_is_right_is_called_right(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(3, each);
    uint64_t session = session_of(cluster, 100); // 7 appends
    for (uint32_t at = 0; at < 5; at++)
        OK(sim_read(cluster->client, session, 0, 10 * at, 1 + at));
    COUNTS(cluster, 12, 0, 0);
    ask_kept(cluster, session);
    assert_int_equal(told.audit, COORDINATOR_AUDIT_RIGHT);
    sim_cluster_free(cluster);
}

// Of a long context one row and head is looked at, a stretch of keys after the other, others the next time.
static void a_part_of_what_is_long(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(2, each_a_little);
    uint64_t session = filled_of(cluster, 2, 64);
    COUNTS(cluster, 4, 0, 0);
    uint64_t before = sim_serve_seen(cluster->workers[0]->loop, METHOD(AUDIT)) +
                      sim_serve_seen(cluster->workers[1]->loop, METHOD(AUDIT));
    OK(sim_read(cluster->client, session, 0, 63, 1));
    COUNTS(cluster, 5, 0, 0);
    assert_int_equal(sim_serve_seen(cluster->workers[0]->loop, METHOD(AUDIT)) +
                         sim_serve_seen(cluster->workers[1]->loop, METHOD(AUDIT)) - before,
                     4);
    assert_true(sim_worker_flip(copy_of(cluster, session, 1, 0), session, 0, 20));
    for (uint32_t i = 0; i < 12; i++) // 4 rows each; the first two see nothing of what has flipped
        OK(sim_read(cluster->client, session, 0, 18, 4));
    COUNTS(cluster, 17 - steps_of(cluster)->count_audit_differences,
           steps_of(cluster)->count_audit_differences, 0);
    assert_in_range(steps_of(cluster)->count_audit_differences, 2, 10);
    sim_cluster_free(cluster);
}

// The holder that serves has a bit that has flipped; another holder is asked.
static void a_flipped_bit_of_one_holder_is_found(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(2, each);
    uint64_t session = filled_of(cluster, 2, 64); // 4 appends
    COUNTS(cluster, 4, 0, 0);
    assert_true(sim_worker_flip(copy_of(cluster, session, 2, 0), session, 0, 40));
    sim_advance(2 * COMMON_NS_PER_S);
    OK(sim_read(cluster->client, session, 0, 50, 1));
    COUNTS(cluster, 4, 1, 0);
    ask_kept(cluster, session);
    assert_int_equal(told.audit, COORDINATOR_AUDIT_WRONG);
    assert_int_equal(told_positions[0], 50);
    for (uint32_t at = 0; at < 30; at++) { // it stays, whatever comes
        sim_advance(2 * COMMON_NS_PER_S);
        OK(sim_read(cluster->client, session, 0, at, 1));
    }
    COUNTS(cluster, 34, 1, 0);
    ask_kept(cluster, session);
    assert_int_equal(told.audit, COORDINATOR_AUDIT_WRONG);
    assert_int_equal(told_positions[0], 50);
    OK(sim_truncate(cluster->client, session, 30)); // but not when its rows go
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 0);
    sim_advance(2 * COMMON_NS_PER_S);
    OK(sim_append(cluster->client, session, 0, 30, 1, 1));
    ask_kept(cluster, session);
    assert_int_equal(told_positions[0], 30);
    sim_cluster_free(cluster);
}

// There is one holder: a bit flips after the answer.
static void what_changes_behind_an_answer_is_found(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(1, each_and_none_kept);
    uint64_t session = session_of(cluster, 20);
    COUNTS(cluster, 2, 0, 0);
    sim_serve_rule(cluster->workers[0]->loop, METHOD(AUDIT),
                   (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    OK(sim_read(cluster->client, session, 0, 19, 1));
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_int_equal(sim_serve_held(cluster->workers[0]->loop), 1);
    assert_true(sim_worker_flip(cluster->workers[0], session, 0, 3));
    sim_serve_let_go(cluster->workers[0]->loop);
    COUNTS(cluster, 2, 1, 0);
    ask_kept(cluster, session);
    assert_int_equal(told.rows, 0); // --keep-steps 0
    sim_cluster_free(cluster);
}

// A worker answers a step with numbers that are not those of its rows: the test does, in its place.
static void answer_wrongly(void *arg, struct proto_request *request)
{
    const Banyan__Pb__StepRequest *m = (const void *)proto_request_message(request)->body;
    static float o[8], lse[2];
    for (int i = 0; i < 8; i++)
        o[i] = 1 + 1e-4f; // all its values are 1
    lse[0] = lse[1] = *(float *)arg;
    Banyan__Pb__StepItemResult item = BANYAN__PB__STEP_ITEM_RESULT__INIT, *items[1] = {&item};
    Banyan__Pb__StepReply reply = BANYAN__PB__STEP_REPLY__INIT;
    item.cover_tokens = m->items[0]->cover_tokens;
    item.cover_sum = m->items[0]->cover_sum;
    reply.items = items;
    reply.n_items = 1;
    const struct common_slice pieces[2] = {{o, sizeof o}, {lse, sizeof lse}};
    struct proto_tensor_out tensors[2];
    for (int i = 0; i < 2; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                               .n_dims = 1,
                                               .dims = {pieces[i].len / sizeof(float)},
                                               .pieces = &pieces[i],
                                               .n_pieces = 1};
    proto_request_reply(request, &reply.base, tensors, 2, NULL, NULL);
}

static void a_wrong_worker_is_found(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(1, each);
    uint64_t session = session_of(cluster, 20);
    ask_kept(cluster, session);
    float lse = told_lse; // of another row: it is wrong, too
    sim_serve_rule(cluster->workers[0]->loop, METHOD(STEP),
                   (struct sim_rule){.verdict = SIM_TELL, .times = 1, .tell = answer_wrongly, .arg = &lse});
    sim_advance(2 * COMMON_NS_PER_S);
    OK(sim_read(cluster->client, session, 0, 19, 1));
    COUNTS(cluster, 2, 1, 0);
    OK(sim_read(cluster->client, session, 0, 19, 1));
    COUNTS(cluster, 3, 1, 0);
    sim_cluster_free(cluster);
}

// ---- what is not audited is not called wrong -----------------------------------------------------------------------

static void hold_an_audit(struct sim_cluster *cluster, uint64_t session, uint64_t at)
{
    rule_all(cluster, METHOD(AUDIT), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    OK(sim_read(cluster->client, session, 0, at, 1));
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_true(held_all(cluster) > 0);
}

static void rows_that_go_meanwhile(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(2, each);
    uint64_t session = session_of(cluster, 40); // 3 appends
    COUNTS(cluster, 3, 0, 0);
    hold_an_audit(cluster, session, 39);
    OK(sim_truncate(cluster->client, session, 20));
    let_go_all(cluster);
    COUNTS(cluster, 3, 0, 1);
    OK(sim_append(cluster->client, session, 0, 20, 20, 7)); // other rows in their place
    COUNTS(cluster, 4, 0, 1);
    hold_an_audit(cluster, session, 39);
    OK(sim_delete(cluster->client, session));
    let_go_all(cluster);
    COUNTS(cluster, 4, 0, 2);
    sim_cluster_free(cluster);
}

static void workers_that_go_or_cannot(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(2, each);
    uint64_t session = session_of(cluster, 40);
    COUNTS(cluster, 3, 0, 0);
    rule_all(cluster, METHOD(AUDIT),
             (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_UNIMPLEMENTED});
    OK(sim_read(cluster->client, session, 0, 39, 1));
    COUNTS(cluster, 3, 0, 1);
    let_go_all(cluster);
    rule_all(cluster, METHOD(AUDIT), (struct sim_rule){.verdict = SIM_DO});
    hold_an_audit(cluster, session, 39);
    sim_worker_kill(holder_of(cluster, session, 20));
    let_go_all(cluster);
    COUNTS(cluster, 3, 0, 2);
    sim_cluster_free(cluster);
}

// One is under way, some wait, the rest is skipped; and a coordinator that ends has none left.
static void no_more_than_some_wait(void **state)
{
    (void)state;
    struct sim_cluster *cluster = audited(1, each);
    uint64_t session = session_of(cluster, 16);
    COUNTS(cluster, 1, 0, 0);
    hold_an_audit(cluster, session, 15);
    for (uint32_t i = 0; i < COORDINATOR_AUDITS_WAITING + 3; i++)
        OK(sim_read(cluster->client, session, 0, i % 16, 1));
    COUNTS(cluster, 1, 0, 3);
    assert_int_equal(sim_serve_seen(cluster->workers[0]->loop, METHOD(AUDIT)), 2);
    let_go_all(cluster);
    sim_advance(10 * COMMON_NS_PER_S);
    COUNTS(cluster, 2 + COORDINATOR_AUDITS_WAITING, 0, 3);
    hold_an_audit(cluster, session, 15);
    sim_coordinator_stop(cluster);
    restart(cluster);
    sim_wait_active(cluster, 1);
    let_go_all(cluster);
    OK(sim_read(cluster->client, session, 0, 15, 1));
    COUNTS(cluster, 1, 0, 0);
    sim_cluster_free(cluster);
}

int hermetic_audits(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_in_so_many),
        cmocka_unit_test(a_step_is_kept_as_it_was_answered),
        cmocka_unit_test(the_oldest_go_first),
        cmocka_unit_test(a_truncate_ends_what_it_takes_rows_from),
        cmocka_unit_test(what_is_right_is_called_right),
        cmocka_unit_test(a_part_of_what_is_long),
        cmocka_unit_test(a_flipped_bit_of_one_holder_is_found),
        cmocka_unit_test(what_changes_behind_an_answer_is_found),
        cmocka_unit_test(a_wrong_worker_is_found),
        cmocka_unit_test(rows_that_go_meanwhile),
        cmocka_unit_test(workers_that_go_or_cannot),
        cmocka_unit_test(no_more_than_some_wait),
    };
    return cmocka_run_group_tests_name("audits", tests, NULL, NULL);
}
