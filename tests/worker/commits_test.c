// SPDX-License-Identifier: Apache-2.0
// Commits whose ranges overlap, message by message in every order that a network may make of them: each
// freezes and releases rows of its own.
#include "tests/worker/service.h"

enum { A = 11, B = 12, C = 13, PREPARE, COMMIT, ABORT };

// One message of a commit's, to the one worker, about layer 1.
static enum common_code say(struct setup *s, int what, uint64_t commit, uint64_t first, uint64_t count)
{
    Banyan__Pb__RowsPrepareRequest prepare = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
    Banyan__Pb__RowsCommitRequest rows_commit = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
    Banyan__Pb__RowsAbortRequest rows_abort = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    const ProtobufCMessage *body;
    uint32_t method;
#define FILL(m)                                                                                              \
    ((m).term = TERM, (m).session = SESSION, (m).incarnation = INCARNATION, (m).layer = 1,                   \
     (m).first = first, (m).count = count, (m).commit = commit, &(m).base)
    if (what == PREPARE) {
        body = FILL(prepare);
        method = BANYAN__PB__METHOD__METHOD_ROWS_PREPARE;
    } else if (what == COMMIT) {
        body = FILL(rows_commit);
        method = BANYAN__PB__METHOD__METHOD_ROWS_COMMIT;
    } else {
        body = FILL(rows_abort);
        method = BANYAN__PB__METHOD__METHOD_ROWS_ABORT;
    }
#undef FILL
    return cluster_call(&s->c, s->c.edges[0], method, body, NULL, 0, NULL);
}

static enum common_code settle(struct setup *s, uint64_t term, uint64_t before)
{
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    m.term = term;
    m.before = before;
    return cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, NULL, 0, NULL);
}

static bool frozen(struct setup *s, uint64_t row) // other bytes of this row are refused; puts it back if not
{
    enum common_code code = cluster_put(&s->c, 0, SESSION, 1, row, 1, 1);
    assert_true(code == COMMON_OK || code == COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_put(&s->c, 0, SESSION, 1, row, 1, 0), COMMON_OK);
    return code != COMMON_OK;
}

static void rows_start(struct setup *s) // layer 1: [0, 40) committed, [40, 60) put
{
    begin(s);
    assert_int_equal(cluster_put(&s->c, 0, SESSION, 1, 40, 20, 0), COMMON_OK);
}

static void rows_stop(struct setup *s)
{
    free(s->before);
    cluster_stop(&s->c);
}

// The one that was seen: B finds a hole and releases its rows while A's commit is being made durable.
static void an_abort_leaves_what_another_froze(void **state)
{
    (void)state;
    for (int b_first = 0; b_first < 2; b_first++) {
        struct setup s;
        rows_start(&s);
        if (b_first)
            assert_int_equal(say(&s, PREPARE, B, 30, 34), COMMON_OK);
        assert_int_equal(say(&s, PREPARE, A, 40, 15), COMMON_OK);
        if (!b_first)
            assert_int_equal(say(&s, PREPARE, B, 30, 34), COMMON_OK);
        assert_int_equal(say(&s, ABORT, B, 30, 34), COMMON_OK);
        assert_true(frozen(&s, 40) && frozen(&s, 54));
        assert_false(frozen(&s, 55)); // B's alone
        assert_int_equal(say(&s, COMMIT, A, 40, 15), COMMON_OK);
        assert_int_equal(say(&s, ABORT, B, 30, 34), COMMON_OK); // once more
        assert_int_equal(say(&s, ABORT, A, 40, 15), COMMON_OK); // late
        assert_true(frozen(&s, 40) && frozen(&s, 54));
        assert_int_equal(say(&s, COMMIT, A, 40, 15), COMMON_OK); // once more
        rows_stop(&s);
    }
}

// The last to release thaws, whichever it is; a commit needs a freeze of its own.
static void the_last_to_let_go_thaws(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 40, 20), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, A, 40, 20), COMMON_OK); // twice is once
    assert_int_equal(say(&s, PREPARE, B, 40, 20), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, C, 44, 4), COMMON_OK); // inside
    assert_int_equal(say(&s, ABORT, A, 40, 20), COMMON_OK);
    assert_true(frozen(&s, 40));
    assert_int_equal(say(&s, COMMIT, A, 40, 20), COMMON_FAILED_PRECONDITION);
    assert_int_equal(say(&s, ABORT, B, 40, 20), COMMON_OK);
    assert_false(frozen(&s, 43));
    assert_false(frozen(&s, 48));
    assert_true(frozen(&s, 44) && frozen(&s, 47));
    assert_int_equal(say(&s, COMMIT, B, 40, 20), COMMON_FAILED_PRECONDITION);
    assert_int_equal(say(&s, COMMIT, C, 44, 4), COMMON_OK);
    assert_int_equal(say(&s, COMMIT, C, 44, 4), COMMON_OK);
    assert_int_equal(say(&s, COMMIT, A, 40, 20), COMMON_FAILED_PRECONDITION);
    assert_int_equal(say(&s, PREPARE, A, 48, 12), COMMON_OK); // adjacent to C's
    assert_int_equal(say(&s, PREPARE, B, 40, 4), COMMON_OK);
    assert_int_equal(say(&s, ABORT, B, 40, 4), COMMON_OK);
    assert_false(frozen(&s, 43));
    assert_int_equal(say(&s, COMMIT, A, 48, 12), COMMON_OK);
    rows_stop(&s);
}

// A coordinator that was killed in between, or an abort that was never heard.
static void what_is_over_thaws(void **state)
{
    (void)state;
    struct setup s;
    struct answer answer;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 40, 10), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, B, 45, 10), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, C, 50, 10), COMMON_OK);
    assert_int_equal(say(&s, COMMIT, 0, 45, 2), COMMON_OK); // of a durable commit, repeated
    assert_int_equal(settle(&s, TERM, C), COMMON_OK);
    assert_false(frozen(&s, 44));
    assert_true(frozen(&s, 45) && frozen(&s, 46)); // committed
    assert_false(frozen(&s, 47));
    assert_true(frozen(&s, 50) && frozen(&s, 59));                 // C is under way
    assert_int_equal(say(&s, PREPARE, A, 40, 10), COMMON_ABORTED); // so late that it would never be thawed
    Banyan__Pb__RowsPrepareRequest late = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
    late.term = TERM;
    late.session = SESSION;
    late.incarnation = INCARNATION;
    late.first = 40;
    late.count = 4;
    late.commit = B;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, &late.base,
                                  NULL, 0, &answer),
                     COMMON_ABORTED);
    assert_string_equal(answer.reason, "OLD_COMMIT");
    answer_free(&answer);
    assert_false(frozen(&s, 44));
    assert_int_equal(settle(&s, TERM, A), COMMON_OK); // an older word changes nothing
    assert_int_equal(say(&s, PREPARE, B, 45, 10), COMMON_ABORTED);
    assert_int_equal(say(&s, COMMIT, C, 50, 10), COMMON_OK);
    assert_int_equal(settle(&s, TERM - 1, UINT64_MAX), COMMON_ABORTED); // an old coordinator's
    assert_int_equal(say(&s, PREPARE, C + 1, 40, 5), COMMON_OK);
    assert_true(frozen(&s, 40));
    rows_stop(&s);
}

static void ask_as(struct setup *s, uint64_t life)
{
    Banyan__Pb__InventoryRequest m = BANYAN__PB__INVENTORY_REQUEST__INIT;
    m.term = TERM;
    m.life = life;
    assert_int_equal(cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &m.base, NULL,
                                  0, NULL),
                     COMMON_OK);
}

// A coordinator on a wrong store does not know whether the commit is durable on the right one (seed 20003411
// of chaos_test).
static void what_is_over_for_another_store_stays_frozen(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 40, 10), COMMON_OK);
    ask_as(&s, 9);
    assert_int_equal(settle(&s, TERM, C), COMMON_OK);
    assert_true(frozen(&s, 40) && frozen(&s, 49));
    ask_as(&s, 0);
    assert_int_equal(settle(&s, TERM, C), COMMON_OK);
    assert_false(frozen(&s, 40) || frozen(&s, 49));
    rows_stop(&s);
}

// Repeated, a durable range is committed as far as it is here, and the rest is refused.
static void what_is_here_of_a_durable_range_counts(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 50, 10), COMMON_OK);
    assert_int_equal(say(&s, COMMIT, 0, 0, 60), COMMON_FAILED_PRECONDITION); // [40, 50) was not prepared
    assert_int_equal(settle(&s, TERM, B), COMMON_OK);
    assert_false(frozen(&s, 49));
    assert_true(frozen(&s, 50) && frozen(&s, 59));
    rows_stop(&s);
}

// A new incarnation: all commits of the one before are over.
static void a_truncation_ends_them_all(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 40, 10), COMMON_OK);
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION + 1;
    layout.epoch = EPOCH;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    assert_int_equal(say(&s, COMMIT, A, 40, 10), COMMON_ABORTED);
    Banyan__Pb__RowsCommitRequest m = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
    m.term = TERM;
    m.session = SESSION;
    m.incarnation = INCARNATION + 1;
    m.layer = 1;
    m.first = 40;
    m.count = 10;
    m.commit = A;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &m.base, NULL,
                                  0, NULL),
                     COMMON_FAILED_PRECONDITION);
    rows_stop(&s);
}

// Of a chunk that a truncation has made of another, a repeated commit asks nothing, wherever its id puts it.
static void nothing_is_asked_of_a_copy(void **state)
{
    (void)state;
    for (uint64_t id = 50; id < 200; id += 100) {
        struct setup s;
        rows_start(&s);
        Banyan__Pb__LayoutChunk copy = BANYAN__PB__LAYOUT_CHUNK__INIT, *list[1] = {&copy};
        Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
        copy.chunk = id;
        copy.copy = true;
        layout.term = TERM;
        layout.session = SESSION;
        layout.incarnation = INCARNATION;
        layout.epoch = EPOCH;
        layout.chunks = list;
        layout.n_chunks = 1;
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
        assert_int_equal(say(&s, COMMIT, 0, 0, 40), COMMON_OK);
        assert_int_equal(cluster_put(&s.c, 0, SESSION, 1, 62, 1, 0), COMMON_OK); // not into the copy
        copy.copy = false;
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
        assert_int_equal(say(&s, COMMIT, 0, 0, 40),
                         COMMON_FAILED_PRECONDITION); // now it is a chunk as others
        rows_stop(&s);
    }
}

// As many as there may be; the refused one froze nothing. The memory comes back with the last.
static void there_is_a_limit(void **state)
{
    (void)state;
    enum { MOST = 4096 }; // WORKER_FROZEN_MAX
    struct setup s;
    cluster_start(&s.c, &(struct cluster_options){0});
    cluster_layout_ok(&s.c, 0, SESSION, chunks, 2);
    assert_int_equal(cluster_put(&s.c, 0, SESSION, 1, 40, 20, 0), COMMON_OK);
    char *before = cluster_state(&s.c, 0);
    for (uint64_t i = 0; i < MOST; i++)
        assert_int_equal(say(&s, PREPARE, 100 + i, 40, 10), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, 100 + MOST, 50, 10), COMMON_RESOURCE_EXHAUSTED);
    assert_false(frozen(&s, 50));
    for (uint64_t i = 0; i < MOST; i++) {
        assert_true(i % 512 != 0 || frozen(&s, 40));
        assert_int_equal(say(&s, ABORT, 100 + i, 40, 10), COMMON_OK);
    }
    assert_false(frozen(&s, 40));
    char *after = cluster_state(&s.c, 0);
    assert_string_equal(before, after);
    free(before);
    free(after);
    cluster_stop(&s.c);
}

static uint64_t next_random(uint64_t *seed) // splitmix64
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Against a model: for each row who has frozen it, for random ranges and orders.
static void any_order(void **state)
{
    (void)state;
    enum { ROWS = 20, OWNERS = 6, STEPS = 300 };
    struct setup s;
    rows_start(&s);
    struct {
        bool on;
        uint64_t first, count;
    } own[OWNERS] = {0};
    uint64_t seed = 7, number[OWNERS], next = 1000;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t o = (uint32_t)(next_random(&seed) % OWNERS);
        if (own[o].on) {
            assert_int_equal(say(&s, ABORT, number[o], 40 + own[o].first, own[o].count), COMMON_OK);
            own[o].on = false;
        } else {
            own[o].first = next_random(&seed) % ROWS;
            own[o].count = 1 + next_random(&seed) % (ROWS - own[o].first);
            own[o].on = true;
            number[o] = next++;
            assert_int_equal(say(&s, PREPARE, number[o], 40 + own[o].first, own[o].count), COMMON_OK);
        }
        for (uint64_t row = 0; row < ROWS; row++) {
            bool want = false;
            for (uint32_t k = 0; k < OWNERS; k++)
                want = want || (own[k].on && row >= own[k].first && row - own[k].first < own[k].count);
            if (frozen(&s, 40 + row) != want)
                fail_msg("step %u: row %u should%s be frozen", i, (unsigned)row, want ? "" : " not");
        }
    }
    rows_stop(&s);
}

static enum common_code tell_ranges(struct setup *s, uint64_t commit, const uint64_t (*ranges)[3], uint32_t n)
{
    Banyan__Pb__RowsCommitRequest m = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
    Banyan__Pb__RowsRange list[4], *pointers[4];
    for (uint32_t i = 0; i < n; i++) {
        banyan__pb__rows_range__init(&list[i]);
        list[i].layer = (uint32_t)ranges[i][0];
        list[i].first = ranges[i][1];
        list[i].count = ranges[i][2];
        pointers[i] = &list[i];
    }
    m.term = TERM;
    m.session = SESSION;
    m.incarnation = INCARNATION;
    m.commit = commit;
    m.ranges = pointers;
    m.n_ranges = n;
    return cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &m.base, NULL, 0, NULL);
}

// Rows whose commits are durable, repeated in one message: what is here of all of them counts.
static void many_ranges_in_a_message(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 40, 4), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, B, 50, 4), COMMON_OK);
    static const uint64_t bad[][3] = {{1, 40, 4}, {LAYERS, 0, 1}}, empty[][3] = {{1, 40, 4}, {1, 50, 0}},
                          lacking[][3] = {{1, 55, 1}, {1, 40, 4}, {0, 0, 40}, {1, 50, 4}},
                          all[][3] = {{1, 0, 44}, {1, 50, 4}};
    assert_int_equal(tell_ranges(&s, 0, bad, 2), COMMON_INVALID_ARGUMENT);
    assert_int_equal(tell_ranges(&s, 0, empty, 2), COMMON_INVALID_ARGUMENT);
    assert_int_equal(tell_ranges(&s, A, all, 2), COMMON_INVALID_ARGUMENT);
    assert_int_equal(say(&s, ABORT, B, 50, 4), COMMON_OK); // so nothing was committed
    assert_false(frozen(&s, 50));
    assert_int_equal(say(&s, PREPARE, B, 50, 4), COMMON_OK);
    assert_int_equal(tell_ranges(&s, 0, lacking, 4), COMMON_FAILED_PRECONDITION);
    assert_int_equal(say(&s, ABORT, A, 40, 4), COMMON_OK);
    assert_int_equal(say(&s, ABORT, B, 50, 4), COMMON_OK);
    assert_true(frozen(&s, 40) && frozen(&s, 43) && frozen(&s, 50) && frozen(&s, 53)); // committed
    assert_false(frozen(&s, 55));
    assert_int_equal(tell_ranges(&s, 0, all, 2), COMMON_OK);
    rows_stop(&s);
}

// What is over for one session is not over for the others.
static void one_session_is_settled(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    m.term = TERM;
    m.before = C;
    m.session = OTHER;
    assert_int_equal(say(&s, PREPARE, A, 40, 4), COMMON_OK);
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, NULL, 0,
                                  NULL),
                     COMMON_OK);
    assert_true(frozen(&s, 40));
    assert_int_equal(say(&s, PREPARE, B, 50, 4), COMMON_OK);
    m.session = SESSION;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, NULL, 0,
                                  NULL),
                     COMMON_OK);
    assert_false(frozen(&s, 40) || frozen(&s, 50));
    assert_int_equal(say(&s, PREPARE, B, 50, 4), COMMON_ABORTED); // it comes late
    assert_int_equal(say(&s, PREPARE, C, 50, 4), COMMON_OK);
    rows_stop(&s);
}

static enum common_code undo_append(struct setup *s, uint64_t write, uint64_t length)
{
    Banyan__Pb__RowsAbortRequest m = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    m.term = TERM;
    m.session = SESSION;
    m.incarnation = INCARNATION;
    m.layer = 1;
    m.first = length;
    m.count = 1;
    m.write = write;
    return cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &m.base, NULL, 0, NULL);
}

// An append over frozen rows takes them out of the commit. When it is taken back they are the commit's again,
// which may be durable already.
static void an_append_that_is_taken_back_leaves_a_commit_its_rows(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 44, 10), COMMON_OK);
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 1, 40, 20, chunks, 2);
    step_append(step, 0, 101, 0, 9, 40, 0);
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    assert_int_equal(out.result->items[0].code, COMMON_OK);
    outcome_free(&out);
    assert_int_equal(undo_append(&s, 9, 40), COMMON_OK);
    assert_int_equal(undo_append(&s, 9, 40), COMMON_OK); // once more
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    assert_string_equal(out.result->items[0].reason, "OLD_WRITE"); // late
    outcome_free(&out);
    proto_step_free(step);
    assert_false(frozen(&s, 43));
    assert_true(frozen(&s, 44) && frozen(&s, 53));
    assert_false(frozen(&s, 54));
    assert_int_equal(say(&s, COMMIT, A, 44, 10), COMMON_OK);
    assert_int_equal(undo_append(&s, 10, 40), COMMON_OK); // what is committed cannot be taken back
    assert_true(frozen(&s, 44) && frozen(&s, 53));
    rows_stop(&s);
}

// A commit that found holes comes to nothing. An append that filled them, and is taken back, leaves nothing
// frozen.
static void what_fills_a_commits_holes_is_not_its_own(void **state)
{
    (void)state;
    struct setup s;
    rows_start(&s);
    assert_int_equal(say(&s, PREPARE, A, 44, 10), COMMON_OK);
    assert_int_equal(say(&s, PREPARE, B, 50, 12), COMMON_OK); // 60 and 61 are not here
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 1, 40, 22, chunks, 2);
    step_append(step, 0, 101, 0, 9, 40, 0);
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    assert_int_equal(out.result->items[0].code, COMMON_OK);
    outcome_free(&out);
    proto_step_free(step);
    assert_int_equal(undo_append(&s, 9, 40), COMMON_OK);
    assert_true(frozen(&s, 44) && frozen(&s, 53)); // the other one's
    assert_false(frozen(&s, 54) || frozen(&s, 60) || frozen(&s, 61));
    assert_int_equal(say(&s, ABORT, B, 50, 12), COMMON_OK);
    assert_true(frozen(&s, 50) && frozen(&s, 53));
    rows_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_leaves_what_another_froze),
        cmocka_unit_test(the_last_to_let_go_thaws),
        cmocka_unit_test(what_is_over_thaws),
        cmocka_unit_test(what_is_over_for_another_store_stays_frozen),
        cmocka_unit_test(what_is_here_of_a_durable_range_counts),
        cmocka_unit_test(a_truncation_ends_them_all),
        cmocka_unit_test(nothing_is_asked_of_a_copy),
        cmocka_unit_test(there_is_a_limit),
        cmocka_unit_test(any_order),
        cmocka_unit_test(an_append_that_is_taken_back_leaves_a_commit_its_rows),
        cmocka_unit_test(what_fills_a_commits_holes_is_not_its_own),
        cmocka_unit_test(many_ranges_in_a_message),
        cmocka_unit_test(one_session_is_settled),
    };
    return cmocka_run_group_tests_name("commits", tests, NULL, NULL);
}
