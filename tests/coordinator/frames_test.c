// SPDX-License-Identifier: Apache-2.0
// The step scheduler's promise: frames are as many as plans and round trips, not as items or workers.
#include "tests/coordinator/helper.h"

#include <stdatomic.h>

#include "tests/common/group.h"

static struct harness_cluster *cluster;
static banyan_client *client;

static int start(void **state)
{
    (void)state;
    cluster = harness_cluster_start(&(struct harness_options){.workers = 3});
    return !cluster || banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &client,
                                      &helper_error) != BANYAN_OK;
}

static int stop(void **state)
{
    (void)state;
    banyan_disconnect(client);
    return harness_cluster_stop(cluster);
}

static void close_all(banyan_session **sessions, int n)
{
    for (int i = 0; i < n; i++) {
        OK(banyan_session_delete(sessions[i], &helper_error));
        banyan_session_close(sessions[i]);
    }
}

static void a_step_is_a_frame_however_many_workers(void **state)
{
    (void)state;
    for (uint32_t members = 1; members <= 3; members++) {
        banyan_spec spec = HELPER_SPEC;
        spec.members = members;
        banyan_session *session = helper_session(client, &spec, NULL);
        helper_fill(client, session, 0, 100);
        uint64_t before = helper_counts(client).frames;
        for (int i = 0; i < 5; i++)
            OK(helper_step(client, session, 99, 1, false));
        OK(helper_step(client, session, 100, 1, true));
        struct helper_counts after = helper_counts(client);
        assert_int_equal(after.frames - before, 6);
        close_all(&session, 1);
    }
}

static void a_call_over_one_plan_is_a_frame(void **state)
{
    (void)state;
    banyan_session *sessions[64];
    banyan_item items[64];
    banyan_spec spec = HELPER_SPEC;
    spec.members = 3;
    for (int i = 0; i < 64; i++) {
        sessions[i] = helper_session(client, &spec, NULL);
        helper_fill(client, sessions[i], 0, 20);
    }
    for (int append = 0; append < 2; append++) {
        for (int i = 0; i < 64; i++)
            items[i] = helper_item(sessions[i], append ? 20 : 19, 1, append);
        struct helper_counts before = helper_counts(client);
        OK(banyan_attend(client, items, 64, 0, NULL, &helper_error));
        for (int i = 0; i < 64; i++)
            assert_int_equal(items[i].code, BANYAN_OK);
        struct helper_counts after = helper_counts(client);
        assert_int_equal(after.frames - before.frames, 1);
        assert_int_equal(after.steps - before.steps, 64);
    }
    close_all(sessions, 64);
}

static void a_frame_for_each_plan(void **state)
{
    (void)state;
    banyan_session *sessions[12];
    banyan_item items[12];
    banyan_spec spec = HELPER_SPEC;
    for (int i = 0; i < 12; i++) { // on one worker each, and some on all three
        spec.members = i < 9 ? 1 : 3;
        sessions[i] = helper_session(client, &spec, NULL);
        helper_fill(client, sessions[i], 0, 20);
    }
    uint64_t plans[12], n_plans = 0;
    for (int i = 0; i < 12; i++) {
        banyan_plan_info plan;
        OK(banyan_session_get_plan(sessions[i], &plan, &helper_error));
        uint64_t k = 0;
        while (k < n_plans && plans[k] != plan.plan)
            k++;
        if (k == n_plans)
            plans[n_plans++] = plan.plan;
        assert_int_equal(plan.n_nodes, i < 9 ? 1 : 3);
        banyan_plan_info_free(&plan);
        items[i] = helper_item(sessions[i], 19, 1, false);
    }
    assert_true(n_plans >= 2 && n_plans <= 4); // plans are shared by all sessions on the same members
    uint64_t before = helper_counts(client).frames;
    OK(banyan_attend(client, items, 12, 0, NULL, &helper_error));
    assert_int_equal(helper_counts(client).frames - before, n_plans);
    close_all(sessions, 12);
}

static void bad_items_make_no_frames(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    banyan_session *session = helper_session(client, &spec, NULL);
    helper_fill(client, session, 0, 20);
    banyan_item items[3] = {helper_item(session, 25, 1, false), helper_item(session, 19, 1, false),
                            helper_item(session, 40, 1, true)};
    struct helper_counts before = helper_counts(client);
    OK(banyan_attend(client, items, 3, 0, NULL, &helper_error));
    assert_int_equal(items[0].code, BANYAN_OUT_OF_RANGE);
    assert_int_equal(items[1].code, BANYAN_OK);
    assert_int_equal(items[2].code, BANYAN_OUT_OF_RANGE);
    assert_int_equal(helper_counts(client).frames - before.frames, 1);
    items[0].first = 30;
    OK(banyan_attend(client, items, 1, 0, NULL, &helper_error));
    assert_int_equal(helper_counts(client).frames - before.frames, 1);
    close_all(&session, 1);
}

// Appends of one session in one call go one after the other, and what looks at their rows after them.
static void appends_take_turns(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 2;
    banyan_session *session = helper_session(client, &spec, NULL);
    banyan_item items[40];
    for (int i = 0; i < 40; i += 2) {
        items[i] = helper_item(session, (uint64_t)i / 2, 1, true);
        items[i + 1] = helper_item(session, (uint64_t)i / 2, 1, false);
    }
    OK(banyan_attend(client, items, 40, 0, NULL, &helper_error));
    for (int i = 0; i < 40; i++) {
        if (items[i].code != BANYAN_OK)
            fail_msg("item %d: %s", i, helper_error.message);
        assert_true(items[i].length >= (uint64_t)i / 2 + 1);
    }
    assert_int_equal(helper_length(session), 20);
    close_all(&session, 1);
}

// A prefill block is cut; rows that are appended with it too, and all of it is there afterwards.
static void a_giant_is_cut(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 3;
    spec.chunk_tokens = 64;
    banyan_session *session = helper_session(client, &spec, NULL);
    uint64_t before = helper_counts(client).frames;
    OK(helper_step(client, session, 0, 4000,
                   true)); // one KV head of all rows is 576 KB of partial: bands of rows too
    assert_int_equal(helper_length(session), 4000);
    uint64_t cut = helper_counts(client).frames - before;
    assert_true(cut >= 4);
    OK(helper_step(client, session, 0, 4000, false));
    assert_int_equal(helper_counts(client).frames - before, 2 * cut);
    OK(helper_step(client, session, 0, 4000, true)); // the same bytes again are no news
    assert_int_equal(helper_length(session), 4000);
    close_all(&session, 1);
}

struct seen {
    atomic_uint done; // giants and the small one
    atomic_uint giants, failed;
    atomic_uint small_after, last_giant_after; // how many were done before
};

static void giant_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                       size_t n_items)
{
    struct seen *seen = arg;
    (void)error, (void)items, (void)n_items;
    atomic_fetch_add(&seen->failed, code != BANYAN_OK);
    atomic_fetch_add(&seen->giants, 1);
    atomic_store(&seen->last_giant_after, atomic_fetch_add(&seen->done, 1));
}

static void small_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                       size_t n_items)
{
    struct seen *seen = arg;
    (void)error, (void)items, (void)n_items;
    atomic_fetch_add(&seen->failed, code != BANYAN_OK);
    atomic_store(&seen->small_after, atomic_fetch_add(&seen->done, 1));
}

// No step waits behind a giant: with many of them under way a small step comes back before they have all done
// so.
static void small_ones_pass_giants(void **state)
{
    (void)state;
    enum { GIANTS = 12 };
    static const uint64_t patience_ns = UINT64_C(300000000000); // giants are slow under sanitizers
    banyan_spec spec = HELPER_SPEC;
    spec.chunk_tokens = 64;
    spec.members = 1;
    banyan_session *session = helper_session(client, &spec, NULL);
    OK(helper_step(client, session, 0, 4000, true));
    static banyan_item items[GIANTS];
    static float o[4000 * 4 * 16];
    struct seen seen = {0};
    for (int i = 0; i < GIANTS; i++) {
        items[i] = helper_item(session, 0, 4000, false);
        items[i].o = o;
        items[i].lse = NULL;
        items[i].error = NULL;
        OK(banyan_attend_async(client, &items[i], 1, patience_ns, giant_done, &seen, &helper_error));
    }
    banyan_item small = helper_item(session, 10, 1, false);
    small.error = NULL;
    OK(banyan_attend_async(client, &small, 1, patience_ns, small_done, &seen, &helper_error));
    while (atomic_load(&seen.done) < GIANTS + 1)
        usleep(1000);
    assert_int_equal(atomic_load(&seen.giants), GIANTS);
    assert_int_equal(atomic_load(&seen.failed), 0);
    assert_true(atomic_load(&seen.small_after) < atomic_load(&seen.last_giant_after));
    close_all(&session, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_a_frame_however_many_workers),
        cmocka_unit_test(a_call_over_one_plan_is_a_frame),
        cmocka_unit_test(a_frame_for_each_plan),
        cmocka_unit_test(bad_items_make_no_frames),
        cmocka_unit_test(appends_take_turns),
        cmocka_unit_test(a_giant_is_cut),
        cmocka_unit_test(small_ones_pass_giants),
    };
    return group_run(tests, start, stop);
}
