// SPDX-License-Identifier: Apache-2.0
// Attach is incremental: layers and ranges in any order and in parallel; re-sends alter only what is not
// committed; what is not committed is not seen; holes are named; a step goes as soon as what it sees is
// there.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/data.h"

#define LAYERS 4
#define CHUNK  32

static struct harness_cluster *cluster;
static banyan_client *client;

static const banyan_spec spec = {.layers = LAYERS,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = CHUNK,
                                 .members = 3};

struct pair { // a session and what it should hold
    banyan_session *session;
    struct context context;
};

static void open_pair(struct pair *p, uint64_t tokens, uint64_t seed)
{
    context_init(&p->context, &spec, tokens);
    context_random(&p->context, 0, tokens, seed);
    OK(banyan_session_create(client, &spec, NULL, &p->session, ERR));
}

static banyan_code attach(const struct pair *p, uint32_t layer, uint64_t first, uint64_t count)
{
    return banyan_attach(p->session, layer, first, count, context_k(&p->context, layer, first),
                         context_v(&p->context, layer, first), ERR);
}

static void expect_lengths(const struct pair *p, const uint64_t want[LAYERS])
{
    banyan_session_info info;
    uint64_t least = UINT64_MAX;
    OK(banyan_session_get_info(p->session, &info, ERR));
    assert_int_equal(info.n_layers, LAYERS);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(info.layer_lengths[l], want[l]);
        least = want[l] < least ? want[l] : least;
    }
    assert_int_equal(info.length, least);
    banyan_session_info_free(&info);
}

static void expect_range(uint64_t first, uint64_t count)
{
    if (ERR->n_ranges != 1 || ERR->ranges[0].first != first || ERR->ranges[0].count != count)
        fail_msg("the error should name [%" PRIu64 ", +%" PRIu64 "), it names %u ranges, the first "
                 "[%" PRIu64 ", +%" PRIu64 "): %s",
                 first, count, ERR->n_ranges, ERR->ranges[0].first, ERR->ranges[0].count, ERR->message);
}

static void check(const struct pair *p, uint32_t layer, uint64_t first, uint32_t rows)
{
    support_check_step(client, p->session, &p->context, layer, first, rows, 0, NULL, "attached");
}

static void layers_and_ranges_in_any_order(void **state)
{
    (void)state;
    enum { PIECES = 20, TOKENS = 391 };
    struct pair p;
    struct data_random r = {12};
    struct {
        uint32_t layer, first, count;
    } piece[LAYERS * PIECES], swap;
    open_pair(&p, TOKENS, 1);
    for (int round = 0; round < 2; round++) { // sent in one order, committed in another
        int n = 0;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t i = 0; i < PIECES; i++, n++) {
                piece[n].layer = l;
                piece[n].first = i * TOKENS / PIECES;
                piece[n].count = (i + 1) * TOKENS / PIECES - piece[n].first;
            }
        for (int i = n; i > 1; i--) {
            uint32_t j = data_random_below(&r, (uint32_t)i);
            swap = piece[i - 1];
            piece[i - 1] = piece[j];
            piece[j] = swap;
        }
        for (int i = 0; i < n; i++)
            OK(round ? banyan_commit(p.session, piece[i].layer, piece[i].first, piece[i].count, ERR)
                     : attach(&p, piece[i].layer, piece[i].first, piece[i].count));
        expect_lengths(&p, round ? (const uint64_t[LAYERS]){TOKENS, TOKENS, TOKENS, TOKENS}
                                 : (const uint64_t[LAYERS]){0, 0, 0, 0});
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        check(&p, l, TOKENS - 7, 7);
    support_drop(p.session, &p.context);
}

struct sender {
    pthread_t thread;
    const struct pair *pair;
    uint32_t layer, of, nth;
    banyan_code code;
    banyan_error error;
};

// Every `of`-th piece of one layer, each attached and committed on its own.
static void *sender_main(void *arg)
{
    struct sender *s = arg;
    const struct context *c = &s->pair->context;
    for (uint64_t first = s->nth * 23; first < c->room && s->code == BANYAN_OK; first += s->of * 23) {
        uint64_t count = c->room - first < 23 ? c->room - first : 23;
        s->code = banyan_attach(s->pair->session, s->layer, first, count, context_k(c, s->layer, first),
                                context_v(c, s->layer, first), &s->error);
        if (s->code == BANYAN_OK)
            s->code = banyan_commit(s->pair->session, s->layer, first, count, &s->error);
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    enum { TOKENS = 1000 };
    struct pair p;
    struct sender sender[LAYERS * 2];
    open_pair(&p, TOKENS, 2);
    for (uint32_t i = 0; i < LAYERS * 2; i++) {
        sender[i] = (struct sender){.pair = &p, .layer = i % LAYERS, .of = 2, .nth = i / LAYERS};
        assert_int_equal(pthread_create(&sender[i].thread, NULL, sender_main, &sender[i]), 0);
    }
    for (uint32_t i = 0; i < LAYERS * 2; i++)
        pthread_join(sender[i].thread, NULL);
    for (uint32_t i = 0; i < LAYERS * 2; i++)
        if (sender[i].code != BANYAN_OK)
            fail_msg("sender %u: %s", i, sender[i].error.message);
    expect_lengths(&p, (const uint64_t[LAYERS]){TOKENS, TOKENS, TOKENS, TOKENS});
    for (uint32_t l = 0; l < LAYERS; l++)
        check(&p, l, TOKENS - 3, 3);
    support_drop(p.session, &p.context);
}

static void resend_before_commit(void **state)
{
    (void)state;
    struct pair p, wrong;
    open_pair(&p, 100, 3);
    open_pair(&wrong, 100, 4);
    for (uint32_t l = 0; l < LAYERS; l++) {
        OK(banyan_attach(p.session, l, 0, 100, context_k(&wrong.context, l, 0),
                         context_v(&wrong.context, l, 0), ERR));
        OK(attach(&p, l, 0, 70)); // the last word counts, also for a part
        OK(attach(&p, l, 60, 40));
        OK(attach(&p, l, 60, 40));
        OK(banyan_commit(p.session, l, 0, 100, ERR));
        check(&p, l, 99, 1);
    }
    support_drop(wrong.session, &wrong.context);
    support_drop(p.session, &p.context);
}

static void resend_after_commit(void **state)
{
    (void)state;
    struct pair p, wrong;
    open_pair(&p, 128, 5);
    open_pair(&wrong, 128, 6);
    OK(attach(&p, 0, 0, 64));
    OK(banyan_commit(p.session, 0, 0, 64, ERR));
    struct step before = {.session = p.session, .first = 63, .rows = 1, .seed = 1}, after = before;
    OK(step_run(client, &before));

    OK(attach(&p, 0, 0, 64)); // the same bytes are no news
    OK(attach(&p, 0, 17, 30));
    OK(banyan_commit(p.session, 0, 0, 64, ERR));
    OK(banyan_commit(p.session, 0, 31, 2, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL,
          banyan_attach(p.session, 0, 0, 64, context_k(&wrong.context, 0, 0), context_v(&wrong.context, 0, 0),
                        ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, // K the same, V not
          banyan_attach(p.session, 0, 40, 1, context_k(&p.context, 0, 40), context_v(&wrong.context, 0, 40),
                        ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, // half of it committed: that half is not altered
          banyan_attach(p.session, 0, 48, 32, context_k(&wrong.context, 0, 48),
                        context_v(&wrong.context, 0, 48), ERR));
    expect_lengths(&p, (const uint64_t[LAYERS]){64, 0, 0, 0});
    OK(step_run(client, &after));
    assert_true(before.digest == after.digest && step_same_bits(&before, &after));

    OK(attach(&p, 0, 48, 80)); // over the border: the same bytes before it, new ones after
    OK(banyan_commit(p.session, 0, 48, 80, ERR));
    expect_lengths(&p, (const uint64_t[LAYERS]){128, 0, 0, 0});
    check(&p, 0, 120, 8);
    step_free(&before);
    step_free(&after);
    support_drop(wrong.session, &wrong.context);
    support_drop(p.session, &p.context);
}

static void uncommitted_rows_are_invisible(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 100, 7);
    struct step step = {.session = p.session, .first = 0, .rows = 1, .seed = 2};
    OK(attach(&p, 0, 0, 100));
    expect_lengths(&p, (const uint64_t[LAYERS]){0, 0, 0, 0});
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    OK(banyan_commit(p.session, 0, 0, 50, ERR)); // a part, not at the border of a chunk
    expect_lengths(&p, (const uint64_t[LAYERS]){50, 0, 0, 0});
    check(&p, 0, 49, 1);
    check(&p, 0, 20, 30);
    step.first = 50;
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    step.first = 49;
    step.rows = 2;
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    step.rows = 1;
    step.visible = 51;
    step.first = 60;
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    step.layer = 1; // of which nothing is committed
    step.first = step.visible = 0;
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    OK(banyan_commit(p.session, 0, 50, 50, ERR));
    check(&p, 0, 99, 1);
    step_free(&step);
    support_drop(p.session, &p.context);
}

// A row beyond the end may look back at what is committed: visible says so.
static void a_row_may_stand_beyond_its_keys(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 100, 8);
    support_fill(p.session, &p.context, 0, 60);
    support_check_step(client, p.session, &p.context, 2, 80, 3, 60, NULL, "beyond");
    support_drop(p.session, &p.context);
}

static void holes_are_named(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 200, 9);
    struct step step = {.session = p.session, .first = 150, .rows = 1, .seed = 2};
    // A commit of what has not come
    OK(attach(&p, 0, 0, 16));
    OK(attach(&p, 0, 20, 80));
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(p.session, 0, 0, 100, ERR));
    expect_range(16, 4);
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(p.session, 0, 17, 1, ERR));
    expect_range(17, 1);
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(p.session, 3, 0, 10, ERR));
    expect_range(0, 10);
    expect_lengths(&p, (const uint64_t[LAYERS]){0, 0, 0, 0});
    OK(attach(&p, 0, 16, 4)); // nothing was frozen by the refusal
    OK(banyan_commit(p.session, 0, 0, 100, ERR));

    // A step over what is not committed, with more behind it
    OK(attach(&p, 0, 130, 70));
    OK(banyan_commit(p.session, 0, 130, 70, ERR));
    expect_lengths(&p, (const uint64_t[LAYERS]){100, 0, 0, 0});
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", step_run(client, &step));
    expect_range(100, 30);
    step.first = 110;
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", step_run(client, &step));
    expect_range(100, 30);
    step.first = 200; // past everything
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    check(&p, 0, 99, 1); // what lies before the hole goes on
    step.first = 200;    // an append over a hole is none
    step.k = context_k(&p.context, 0, 199);
    step.v = context_v(&p.context, 0, 199);
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, step_run(client, &step));
    OK(attach(&p, 0, 100, 30));
    OK(banyan_commit(p.session, 0, 100, 30, ERR));
    expect_lengths(&p, (const uint64_t[LAYERS]){200, 0, 0, 0});
    check(&p, 0, 199, 1);
    step.k = step.v = NULL;
    FAILS(BANYAN_OUT_OF_RANGE, NULL, step_run(client, &step));
    step_free(&step);
    support_drop(p.session, &p.context);
}

static void attach_and_append_take_turns(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 160, 10);
    uint64_t at = 0;
    while (at < 160) {
        support_fill(p.session, &p.context, at, 37 < 160 - at ? 37 : 160 - at);
        at += 37;
        for (int i = 0; i < 3 && at < 160; i++, at++)
            for (uint32_t l = 0; l < LAYERS; l++) {
                struct step step = {.session = p.session,
                                    .layer = l,
                                    .first = at,
                                    .rows = 1,
                                    .seed = at,
                                    .k = context_k(&p.context, l, at),
                                    .v = context_v(&p.context, l, at)};
                OK(step_run(client, &step));
                context_check(&p.context, l, at, 1, 0, step.made_q, step.o, step.lse, NULL, "appended");
                step_free(&step);
            }
    }
    expect_lengths(&p, (const uint64_t[LAYERS]){160, 160, 160, 160});
    for (uint32_t l = 0; l < LAYERS; l++)
        check(&p, l, 0, 160);
    support_drop(p.session, &p.context);
}

// What was sent and never committed gives way to an append.
static void an_append_takes_the_place_of_uncommitted_rows(void **state)
{
    (void)state;
    struct pair p, wrong;
    open_pair(&p, 40, 11);
    open_pair(&wrong, 40, 12);
    OK(attach(&p, 0, 0, 20));
    OK(banyan_commit(p.session, 0, 0, 20, ERR));
    OK(banyan_attach(p.session, 0, 20, 20, context_k(&wrong.context, 0, 20), context_v(&wrong.context, 0, 20),
                     ERR));
    struct step step = {.session = p.session,
                        .first = 20,
                        .rows = 5,
                        .seed = 1,
                        .k = context_k(&p.context, 0, 20),
                        .v = context_v(&p.context, 0, 20)};
    OK(step_run(client, &step));
    assert_int_equal(step.length, 25);
    context_check(&p.context, 0, 20, 5, 0, step.made_q, step.o, step.lse, NULL, "over uncommitted rows");
    step_free(&step);
    OK(attach(&p, 0, 25, 15));
    OK(banyan_commit(p.session, 0, 25, 15, ERR));
    check(&p, 0, 39, 1);
    support_drop(wrong.session, &wrong.context);
    support_drop(p.session, &p.context);
}

struct arrival {
    const struct pair *pair;
    _Atomic uint64_t committed;
    banyan_code code;
    banyan_error error;
};

static void *arrive(void *arg)
{
    struct arrival *a = arg;
    const struct context *c = &a->pair->context;
    for (uint64_t first = 0; first < c->room && a->code == BANYAN_OK; first += 50) {
        for (uint32_t l = 0; l < LAYERS && a->code == BANYAN_OK; l++) {
            a->code = banyan_attach(a->pair->session, l, first, 50, context_k(c, l, first),
                                    context_v(c, l, first), &a->error);
            if (a->code == BANYAN_OK)
                a->code = banyan_commit(a->pair->session, l, first, 50, &a->error);
        }
        if (a->code == BANYAN_OK)
            atomic_store(&a->committed, first + 50);
    }
    if (a->code != BANYAN_OK)
        atomic_store(&a->committed, c->room);
    return NULL;
}

static void steps_while_more_arrives(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, 2000, 13);
    struct arrival arrival = {.pair = &p};
    pthread_t thread;
    uint64_t seen = 0, steps = 0;
    banyan_code failed = BANYAN_OK;
    assert_int_equal(pthread_create(&thread, NULL, arrive, &arrival), 0);
    struct step kept[64];
    while (seen < 2000 && failed == BANYAN_OK && steps < 64) {
        uint64_t now = atomic_load(&arrival.committed);
        if (now == seen) {
            support_sleep_ms(1);
            continue;
        }
        seen = now;
        struct step *step = &kept[steps++];
        *step = (struct step){.session = p.session,
                              .layer = (uint32_t)(steps % LAYERS),
                              .first = seen - 1,
                              .rows = 1,
                              .seed = seen};
        failed = step_run(client, step);
    }
    pthread_join(thread, NULL);
    if (arrival.code != BANYAN_OK)
        fail_msg("attach: %s", arrival.error.message);
    OK(failed);
    assert_true(steps > 0);
    for (uint64_t i = 0; i < steps; i++) {
        context_check(&p.context, kept[i].layer, kept[i].first, 1, 0, kept[i].made_q, kept[i].o, kept[i].lse,
                      NULL, "while more arrives");
        step_free(&kept[i]);
    }
    check(&p, 1, 1999, 1);
    support_drop(p.session, &p.context);
}

// Big ranges go in many puts, over the nng endpoints of workers too.
static void a_large_range_at_once(void **state)
{
    (void)state;
    static const banyan_spec wide = {.layers = 1,
                                     .q_heads = 8,
                                     .kv_heads = 8,
                                     .k_dim = 128,
                                     .v_dim = 128,
                                     .kv_type = BANYAN_F32,
                                     .members = 2};
    for (int nng = 0; nng < 2; nng++) {
        struct harness_cluster *own = support_start(
            &(struct harness_options){.workers = 2, .public_nng = nng, .edges_tcp = nng, .memory = "64M"});
        banyan_client *c = support_connect(own, nng ? "tcp" : "nng+tcp");
        banyan_session *session;
        struct context context;
        context_init(&context, &wide, 3000); // 24 MB
        context_random(&context, 0, 3000, 14);
        OK(banyan_session_create(c, &wide, NULL, &session, ERR));
        support_fill(session, &context, 0, 3000);
        support_check_step(c, session, &context, 0, 2999, 1, 0, NULL, "large");
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
        context_free(&context);
        banyan_disconnect(c);
        support_stop(own);
    }
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
        cmocka_unit_test(layers_and_ranges_in_any_order),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(resend_before_commit),
        cmocka_unit_test(resend_after_commit),
        cmocka_unit_test(uncommitted_rows_are_invisible),
        cmocka_unit_test(a_row_may_stand_beyond_its_keys),
        cmocka_unit_test(holes_are_named),
        cmocka_unit_test(attach_and_append_take_turns),
        cmocka_unit_test(an_append_takes_the_place_of_uncommitted_rows),
        cmocka_unit_test(steps_while_more_arrives),
        cmocka_unit_test(a_large_range_at_once),
    };
    return cmocka_run_group_tests_name("attach", tests, start, stop);
}
