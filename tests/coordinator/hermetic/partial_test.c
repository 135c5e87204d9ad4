// SPDX-License-Identifier: Apache-2.0
// Partial answers: over what is left, and every token that is left out is declared; without leave an error
// names them.
#include <math.h>

#include "coordinator/sync/missing.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/sim/sim_watch.h"

enum { CHUNK = 16, TOKENS_MOST = 640 };

struct filled { // a session whose row at i has the value i + 1
    struct sim_cluster *cluster;
    uint64_t session;
    uint32_t tokens;
    bool lost[TOKENS_MOST / CHUNK + 1]; // chunks without a copy
};

static float values[TOKENS_MOST];

static struct sim_call *append(const struct filled *f, uint64_t first, uint32_t rows)
{
    return sim_append_rows(f->cluster->client, f->session, 0, 0, first, rows, &values[first]);
}

static struct filled fill(uint32_t workers, struct sim_shape shape, uint32_t tokens)
{
    struct filled f = {.cluster = cluster_of(workers), .tokens = tokens};
    struct sim_call *made = sim_create(f.cluster->client, shape, "");
    OK(made);
    f.session = made->session;
    for (uint32_t i = 0; i < TOKENS_MOST; i++)
        values[i] = (float)(i + 1);
    for (uint32_t at = 0; at < tokens; at += CHUNK)
        OK(append(&f, at, tokens - at < CHUNK ? tokens - at : CHUNK));
    return f;
}

static struct filled fill_wide(uint32_t workers, uint32_t tokens)
{
    return fill(workers, (struct sim_shape){.members = workers}, tokens);
}

// What the worker alone has is gone with it.
static void loses(struct filled *f, struct sim_worker *w)
{
    for (uint32_t i = 0; i * CHUNK < f->tokens; i++)
        if (coordinator_chunk_copies(coordinator_layout_find(&kept_of(f->cluster, f->session)->layout, i)) ==
            1)
            f->lost[i] = f->lost[i] || copy_of(f->cluster, f->session, i, 0) == w;
    sim_worker_kill(w);
}

// The answer of the row at `at` that sees the rows from `from` on: the mean of exactly those that are left,
// in float64, and exactly the others declared.
static void answers(const struct filled *f, const struct sim_call *call, uint64_t from, uint64_t at)
{
    double sum = 0;
    uint64_t seen = 0, end = 0;
    uint32_t n = 0;
    for (uint64_t i = from; i <= at; i++) {
        if (!f->lost[i / CHUNK]) {
            sum += (double)i + 1;
            seen++;
            continue;
        }
        if (i != end || !n) {
            assert_true(n < call->n_declared);
            assert_int_equal(call->missing_first[n], i);
            n++;
        }
        end = i + 1;
        if (i == at || !f->lost[end / CHUNK])
            assert_int_equal(call->missing_first[n - 1] + call->missing_count[n - 1], end);
    }
    assert_int_equal(call->n_declared, n);
    assert_int_equal(call->seen, seen);
    if (seen)
        assert_float_equal(call->o, sum / (double)seen, 1e-5 * sum / (double)seen);
    else
        assert_true(call->o == 0 && call->lse == -INFINITY);
}

#define READS_PARTIAL(f, layer, from, at)                                                                    \
    do {                                                                                                     \
        sim_client_partial((f)->cluster->client, true);                                                      \
        struct sim_call *partial = sim_read((f)->cluster->client, (f)->session, layer, at, 1);               \
        sim_client_partial((f)->cluster->client, false);                                                     \
        OK(partial);                                                                                         \
        answers(f, partial, from, at);                                                                       \
    } while (0)

// Without leave it is an error, which says what is missing.
static void refused(const struct filled *f, enum common_code code, uint64_t at)
{
    struct sim_call *call = sim_read(f->cluster->client, f->session, 0, at, 1);
    ENDS(code, call);
    assert_string_equal(call->reason, "MISSING_RANGE");
    uint32_t first = 0, last = 0;
    while (!f->lost[first])
        first++;
    for (last = first; f->lost[last + 1] && (last + 1) * CHUNK <= at;)
        last++;
    uint64_t end = (uint64_t)(last + 1) * CHUNK;
    assert_int_equal(call->first_missing, first * CHUNK);
    assert_int_equal(call->count_missing, (end > at ? at + 1 : end) - first * CHUNK);
}

static void an_answer_is_over_what_is_left(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        struct filled f = fill_wide(3, 150);
        struct sim_call *whole = sim_read(f.cluster->client, f.session, 0, 149, 1), *one, *two;
        OK(whole);
        loses(&f, f.cluster->workers[victim]);
        refused(&f, COMMON_UNAVAILABLE, 149);
        for (uint32_t at = 0; at < 150; at += 7)
            READS_PARTIAL(&f, 0, 0, at);
        uint64_t counted = f.cluster->coordinator->steps.count_partial;
        assert_true(counted > 10);
        refused(&f, COMMON_UNAVAILABLE, 149);
        assert_int_equal(f.cluster->coordinator->steps.count_partial, counted);
        sim_worker_start(f.cluster->workers[victim]); // with nothing: now they are lost for good
        assert_true(sim_wait_active(f.cluster, 3));
        refused(&f, COMMON_DATA_LOSS, 149);
        READS_PARTIAL(&f, 0, 0, 149);
        sim_client_partial(f.cluster->client, true);
        one = sim_read(f.cluster->client, f.session, 0, 149, 1);
        two = sim_read(f.cluster->client, f.session, 0, 149, 1);
        OK(one);
        OK(two);
        assert_true(one->digest == two->digest && one->o == two->o && one->lse == two->lse);
        assert_true(one->digest != whole->digest);
        sim_cluster_free(f.cluster);
    }
}

static void what_is_whole_is_what_it_is_without_the_flag(void **state)
{
    (void)state;
    struct filled f = fill_wide(3, 100);
    struct sim_call *without = sim_read(f.cluster->client, f.session, 0, 99, 1);
    OK(without);
    sim_client_partial(f.cluster->client, true);
    struct sim_call *with = sim_read(f.cluster->client, f.session, 0, 99, 1);
    OK(with);
    assert_true(with->o == without->o && with->lse == without->lse && with->digest == without->digest);
    assert_true(!with->n_declared && with->seen == 100);
    assert_int_equal(f.cluster->coordinator->steps.count_partial, 0);
    sim_cluster_free(f.cluster);
}

// A worker that is back in its grace has lost nothing; one that ends in the middle of a step makes its next
// attempt a partial one.
static void nothing_is_left_out_that_may_yet_come(void **state)
{
    (void)state;
    struct filled f = fill_wide(3, 100);
    struct sim_worker *w = copy_of(f.cluster, f.session, 1, 0);
    sim_net_part(f.cluster->loop, w->loop);
    sim_advance(10 * COMMON_NS_PER_MS);
    sim_client_partial(f.cluster->client, true);
    struct sim_call *call = sim_read(f.cluster->client, f.session, 0, 99, 1);
    sim_advance(100 * COMMON_NS_PER_MS);
    assert_false(call->done);
    sim_net_mend(f.cluster->loop, w->loop);
    OK(call);
    answers(&f, call, 0, 99);
    w = copy_of(f.cluster, f.session, 1, 0);
    sim_serve_rule(w->loop, METHOD(STEP), (struct sim_rule){.verdict = SIM_HOLD});
    call = sim_read(f.cluster->client, f.session, 0, 99, 1);
    sim_advance(5 * COMMON_NS_PER_MS);
    assert_true(!call->done && sim_serve_held(w->loop));
    loses(&f, w);
    OK(call);
    answers(&f, call, 0, 99);
    assert_true(call->n_declared > 0);
    sim_cluster_free(f.cluster);
}

static void a_worker_ends_at_any_moment_of_a_step(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 30; moment++) {
        struct filled g = fill_wide(3, 100);
        struct sim_call *calls[10];
        sim_client_partial(g.cluster->client, true);
        for (uint32_t i = 0; i < 10; i++) {
            calls[i] = sim_read(g.cluster->client, g.session, 0, 99, 1);
            sim_advance(20 * COMMON_NS_PER_US);
        }
        sim_advance(moment * 10 * COMMON_NS_PER_US);
        struct filled whole = g;
        loses(&g, copy_of(g.cluster, g.session, moment % 7, 0));
        for (uint32_t i = 0; i < 10; i++) {
            OK(calls[i]);
            answers(calls[i]->n_declared ? &g : &whole, calls[i], 0, 99);
        }
        sim_cluster_free(g.cluster);
    }
}

// An append goes to all holders of its chunk, or is refused as without the flag; what it left out counts for
// no other step.
static void appends_go_on_where_their_chunk_is_left(void **state)
{
    (void)state;
    for (uint32_t open = 0; open < 2; open++) {
        struct filled f = fill_wide(3, 40);
        struct sim_worker *w = copy_of(f.cluster, f.session, open ? 2 : 0, 0);
        loses(&f, w);
        ENDS(COMMON_UNAVAILABLE, append(&f, 40, 1));
        sim_client_partial(f.cluster->client, true);
        struct sim_call *call = append(&f, 40, 1);
        if (open) { // the chunk that it goes into
            ENDS(COMMON_UNAVAILABLE, call);
            assert_int_equal(call->first_missing, 32);
            assert_int_equal(length_of(f.cluster, f.session), 40);
            OK(sim_truncate(f.cluster->client, f.session, 32));
            f.tokens = 32;
            f.lost[2] = false;
            OK(append(&f, 32, 3));
            sim_cluster_free(f.cluster);
            continue;
        }
        OK(call);
        assert_int_equal(call->length, 41);
        answers(&f, call, 0, 40);
        f.tokens = 41;
        call = append(&f, 41, 30); // into chunks that are still to be placed
        OK(call);
        answers(&f, call, 0, 70);
        f.tokens = 71;
        sim_client_partial(f.cluster->client, false);
        refused(&f, COMMON_UNAVAILABLE, 70);
        assert_int_equal(tokens_held(f.cluster, f.session), 71 - CHUNK);
        sim_cluster_free(f.cluster);
    }
}

// The algebra's answer for no keys, with workers and without any, and masses that are all 0.
static void nothing_is_left(void **state)
{
    (void)state;
    for (uint32_t back = 0; back < 2; back++) {
        struct filled f = fill_wide(1, 40);
        loses(&f, f.cluster->workers[0]);
        if (back) {
            sim_worker_start(f.cluster->workers[0]);
            assert_true(sim_wait_active(f.cluster, 1));
        }
        READS_PARTIAL(&f, 0, 0, 39);
        READS_PARTIAL(&f, 0, 0, 5);
        sim_cluster_free(f.cluster);
    }
    struct filled f = fill_wide(2, 20); // a member is left, without any of it
    f.lost[0] = f.lost[1] = true;
    struct sim_worker *w = copy_of(f.cluster, f.session, 0, 0), *other = copy_of(f.cluster, f.session, 1, 0);
    sim_worker_kill(w);
    if (other != w) {
        sim_worker_kill(other);
        sim_worker_start(other);
        assert_true(sim_wait_active(f.cluster, 1));
    }
    READS_PARTIAL(&f, 0, 0, 19);
    sim_cluster_free(f.cluster);
}

static void every_copy_must_be_gone(void **state)
{
    (void)state;
    struct filled f = fill(4, (struct sim_shape){.members = 4, .replicas = 2}, 150);
    uint64_t epoch = kept_of(f.cluster, f.session)->layout.epoch;
    loses(&f, f.cluster->workers[0]);
    READS_PARTIAL(&f, 0, 0, 149);
    assert_true(kept_of(f.cluster, f.session)->layout.epoch > epoch);
    for (uint32_t w = 1; w < 4; w++) {
        loses(&f, f.cluster->workers[w]); // copies are made again meanwhile, or not
        READS_PARTIAL(&f, 0, 0, 149);
    }
    sim_cluster_free(f.cluster);
}

// A worker with a store is back with all of it: answers are whole again, also those that are under way just
// then.
static void what_comes_back_is_not_left_out(void **state)
{
    (void)state;
    struct filled f = {.tokens = 100};
    f.cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .store = true});
    sim_cluster_start(f.cluster);
    struct sim_call *made = sim_create(f.cluster->client, (struct sim_shape){.members = 3}, ""), *calls[200];
    OK(made);
    f.session = made->session;
    for (uint32_t at = 0; at < 100; at += CHUNK)
        OK(append(&f, at, 100 - at < CHUNK ? 100 - at : CHUNK));
    struct filled whole = f;
    struct sim_worker *w = copy_of(f.cluster, f.session, 1, 0);
    struct sim_call *before = sim_read(f.cluster->client, f.session, 0, 99, 1);
    OK(before);
    loses(&f, w);
    READS_PARTIAL(&f, 0, 0, 99);
    sim_client_partial(f.cluster->client, true);
    sim_worker_start(w);
    for (uint32_t i = 0; i < 200; i++) {
        calls[i] = sim_read(f.cluster->client, f.session, 0, 99, 1);
        sim_advance(COMMON_NS_PER_MS / 4);
    }
    for (uint32_t i = 0; i < 200; i++) {
        OK(calls[i]);
        answers(calls[i]->n_declared ? &f : &whole, calls[i], 0, 99);
    }
    assert_true(sim_wait_active(f.cluster, 3));
    calls[0] = sim_read(f.cluster->client, f.session, 0, 99, 1);
    OK(calls[0]);
    answers(&whole, calls[0], 0, 99);
    assert_true(calls[0]->digest == before->digest && calls[0]->o == before->o);
    sim_cluster_free(f.cluster);
}

// A coordinator that has just started leaves nothing out that a worker has not reported yet before it has
// waited for that; rows that only the worker has make the layer's end uncertain.
static void a_restart_waits_for_who_may_come(void **state)
{
    (void)state;
    struct filled f = fill_wide(3, 100);
    struct sim_call *opened = sim_open(f.cluster->client, f.session, 100, 28);
    OK(opened);
    OK(sim_put_rows(f.cluster->client, opened, 0, 100, 28, &values[100]));
    OK(sim_commit(f.cluster->client, f.session, 0, 0, 128)); // in the store, so that its end is certain
    f.tokens = 128;
    struct sim_worker *w = copy_of(f.cluster, f.session, 1, 0);
    sim_coordinator_kill(f.cluster);
    sim_net_part(NULL, w->loop);
    restart(f.cluster);
    sim_client_partial(f.cluster->client, true);
    struct sim_call *call = sim_read(f.cluster->client, f.session, 0, 127, 1);
    sim_advance(2 * COMMON_NS_PER_S);
    assert_false(call->done);
    loses(&f, w);
    OK(call);
    answers(&f, call, 0, 127);
    assert_true(call->n_declared > 0);
    sim_cluster_free(f.cluster);
}

// Only what the rows would have seen is declared: a window that has left the loss behind has a whole answer.
static void masks_decide_what_is_declared(void **state)
{
    (void)state;
    const struct sim_mask masks[] = {{.window = 20}, {.mask_chunk = 24}};
    struct filled f = fill(3, (struct sim_shape){.layers = 2, .members = 3, .masks = masks}, 100);
    for (uint32_t at = 0; at < 100; at += 10)
        OK(sim_append_rows(f.cluster->client, f.session, 0, 1, at, 10, &values[at]));
    loses(&f, copy_of(f.cluster, f.session, 2, 0));
    uint32_t whole = 0;
    for (uint32_t at = 0; at < 100; at++) {
        READS_PARTIAL(&f, 0, at < 20 ? 0 : at - 19, at);
        READS_PARTIAL(&f, 1, at - at % 24, at);
        sim_client_partial(f.cluster->client, true);
        struct sim_call *call = sim_read(f.cluster->client, f.session, 0, at, 1);
        OK(call);
        whole += !call->n_declared;
        if (at < 5)
            continue;
        call = sim_read(f.cluster->client, f.session, 0, at - 5, 6); // of all rows together
        OK(call);
        uint64_t from = at - 5 < 20 ? 0 : at - 5 - 19, missing = 0, declared = 0;
        for (uint64_t i = from; i <= at; i++)
            missing += f.lost[i / CHUNK];
        for (uint32_t i = 0; i < call->n_declared; i++)
            declared += call->missing_count[i];
        assert_int_equal(declared, missing);
        assert_int_equal(call->seen, at + 1 - from - missing);
        sim_client_partial(f.cluster->client, false);
    }
    assert_in_range(whole, 20, 90);
    sim_cluster_free(f.cluster);
}

// A row that needs all of a layer, of which a worker that is away may have rows that no one else has: neither
// an answer, which would lack them, nor a partial one, which could not say so.
static void the_end_of_a_layer_must_be_certain(void **state)
{
    (void)state;
    const struct sim_mask masks[] = {{.not_causal = true}};
    struct filled f = fill(2, (struct sim_shape){.layers = 1, .members = 2, .masks = masks}, 20);
    struct sim_worker *w = copy_of(f.cluster, f.session, 1, 0), *other = copy_of(f.cluster, f.session, 0, 0);
    assert_ptr_not_equal(w, other);
    sim_coordinator_kill(f.cluster);
    sim_net_part(NULL, w->loop);
    restart(f.cluster);
    sim_advance(6 * COMMON_NS_PER_S);
    for (uint32_t partial = 0; partial < 2; partial++) {
        sim_client_partial(f.cluster->client, partial);
        struct sim_call *call = sim_read(f.cluster->client, f.session, 0, 3, 1);
        ENDS(COMMON_UNAVAILABLE, call);
        assert_string_equal(call->reason, "MISSING_RANGE");
        assert_int_equal(call->first_missing, 16);
    }
    sim_net_mend(NULL, w->loop);
    assert_true(sim_wait_active(f.cluster, 2));
    struct sim_call *call = sim_read(f.cluster->client, f.session, 0, 3, 1);
    OK(call);
    answers(&f, call, 0, 19);
    loses(&f, w);
    sim_advance(COMMON_NS_PER_S);
    call = sim_read(f.cluster->client, f.session, 0, 3, 1); // its end is known
    OK(call);
    answers(&f, call, 0, 19);
    sim_cluster_free(f.cluster);
}

// An item of many slabs, whose bands of appended rows see less than all.
static void a_large_item_leaves_out_the_same_everywhere(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    sim_client_dim(cluster->client, 64);
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.members = 3}, "");
    OK(made);
    struct filled f = {.cluster = cluster, .session = made->session, .tokens = 48};
    OK(append(&f, 0, 48));
    loses(&f, copy_of(cluster, f.session, 1, 0));
    sim_client_partial(cluster->client, true);
    uint64_t frames = cluster->coordinator->steps.count_frames;
    struct sim_call *call = append(&f, 48, 560);
    OK(call);
    assert_true(cluster->coordinator->steps.count_frames - frames > 1);
    answers(&f, call, 0, 607);
    f.tokens = 608;
    call = sim_read(cluster->client, f.session, 0, 0, 600);
    OK(call);
    answers(&f, call, 0, 599);
    sim_cluster_free(cluster);
}

// Masses are of what is left, and a watch says that a step was partial.
static void masses_leave_out_the_same(void **state)
{
    (void)state;
    struct filled f = fill_wide(3, 100);
    loses(&f, copy_of(f.cluster, f.session, 1, 0));
    struct sim_wish wish = {.steps = 2, .wait_ns = 5 * COMMON_NS_PER_S, .trace = true, .mass_bins = 7};
    struct sim_call *watched = sim_watch(f.cluster->client, f.session, &wish);
    sim_run_until_idle();
    READS_PARTIAL(&f, 0, 0, 99);
    uint32_t first = f.lost[0] ? 20 : 0; // a row that sees something of what is left
    READS_PARTIAL(&f, 0, 0, first + 20);
    OK(watched);
    assert_int_equal(watched->n_watched, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct sim_watched *step = &watched->watched[i];
        uint64_t lost = 0;
        for (uint64_t at = 0; at < step->visible; at++)
            lost += f.lost[at / CHUNK];
        assert_int_equal(step->mass_code, COMMON_OK);
        assert_int_equal(step->missing, lost);
        assert_int_equal(step->mass_tokens, step->visible - lost);
    }
    sim_cluster_free(f.cluster);
}

static void little_memory(struct coordinator_options *options)
{
    options->max_bytes = 700; // an answer to 17 rows, and one range
}

// What is declared takes memory, which counts; what does not fit is refused, not left out.
static void what_is_declared_counts_as_memory(void **state)
{
    (void)state;
    struct filled f = {.tokens = 100};
    f.cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .tune = little_memory});
    sim_cluster_start(f.cluster);
    struct sim_call *call = sim_create(f.cluster->client, (struct sim_shape){.members = 2}, "");
    OK(call);
    f.session = call->session;
    for (uint32_t at = 0; at < 100; at += CHUNK)
        OK(append(&f, at, 100 - at < CHUNK ? 100 - at : CHUNK));
    loses(&f, copy_of(f.cluster, f.session, 1, 0));
    sim_client_partial(f.cluster->client, true);
    call = sim_read(f.cluster->client, f.session, 0, 83, 17);
    ENDS(COMMON_RESOURCE_EXHAUSTED, call);
    assert_string_equal(call->reason, "LIMIT");
    call = sim_read(f.cluster->client, f.session, 0, 99, 1);
    OK(call);
    answers(&f, call, 0, 99);
    assert_true(call->n_declared > 1);
    sim_run_until_idle();
    assert_int_equal(f.cluster->coordinator->steps.bytes, 0);
    sim_cluster_free(f.cluster);
}

static void a_survey_has_bounds(void **state)
{
    (void)state;
    struct filled f = fill_wide(3, 150);
    loses(&f, f.cluster->workers[0]);
    sim_advance(COMMON_NS_PER_S);
    struct coordinator_session *s = kept_of(f.cluster, f.session);
    struct coordinator_missing missing, copy;
    assert_int_equal(coordinator_missing_find(s, 150, 100, &missing), COORDINATOR_SURVEY_DONE);
    uint32_t n = missing.n;
    uint64_t tokens = missing.tokens;
    assert_true(n >= 2);
    assert_true(coordinator_missing_copy(&missing, &copy));
    assert_int_equal(coordinator_missing_within(&missing, 0, UINT64_MAX), tokens);
    coordinator_missing_clip(&copy, missing.ranges[0].first + 1, UINT64_MAX);
    assert_int_equal(copy.tokens, tokens - 1);
    coordinator_missing_clip(&copy, 0, missing.ranges[0].first + 3);
    assert_true(copy.n == 1 && copy.tokens == 2);
    coordinator_missing_clip(&copy, 0, 0);
    assert_true(copy.n == 0 && copy.tokens == 0);
    coordinator_missing_free(&copy);
    coordinator_missing_free(&missing);
    assert_int_equal(coordinator_missing_find(s, 150, n, &missing), COORDINATOR_SURVEY_DONE);
    coordinator_missing_free(&missing);
    assert_int_equal(coordinator_missing_find(s, 150, n - 1, &missing), COORDINATOR_SURVEY_TOO_MANY);
    assert_int_equal(coordinator_missing_find(s, 150, 0, &missing), COORDINATOR_SURVEY_TOO_MANY);
    sim_cluster_free(f.cluster);
}

int hermetic_partial(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_over_what_is_left),
        cmocka_unit_test(what_is_whole_is_what_it_is_without_the_flag),
        cmocka_unit_test(nothing_is_left_out_that_may_yet_come),
        cmocka_unit_test(a_worker_ends_at_any_moment_of_a_step),
        cmocka_unit_test(appends_go_on_where_their_chunk_is_left),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(every_copy_must_be_gone),
        cmocka_unit_test(what_comes_back_is_not_left_out),
        cmocka_unit_test(a_restart_waits_for_who_may_come),
        cmocka_unit_test(masks_decide_what_is_declared),
        cmocka_unit_test(the_end_of_a_layer_must_be_certain),
        cmocka_unit_test(a_large_item_leaves_out_the_same_everywhere),
        cmocka_unit_test(masses_leave_out_the_same),
        cmocka_unit_test(what_is_declared_counts_as_memory),
        cmocka_unit_test(a_survey_has_bounds),
    };
    return cmocka_run_group_tests_name("partial", tests, NULL, NULL);
}
