// SPDX-License-Identifier: Apache-2.0
// Attaches: open, put, commit in two phases.
#include "coordinator/cluster/membership.h"
#include "coordinator/session/table.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "worker/core/state.h"

static void rows_are_attached_and_committed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, 30, 6));
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, 40);
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HOLE");
    assert_int_equal(commit->first_missing, 30);
    assert_int_equal(commit->count_missing, 10);
    OK(sim_put(cluster->client, opened, 0, 30, 10, 2));
    commit = sim_commit(cluster->client, session, 0, 0, 40);
    OK(commit);
    assert_int_equal(commit->length, 40);
    READS(cluster, session, 40, 30 * 6 + 10 * 2);
    OK(sim_append(cluster->client, session, 0, 40, 1, 1));
    READS(cluster, session, 41, 30 * 6 + 10 * 2 + 1);
    sim_cluster_free(cluster);
}

// New chunks of the range find a place, an old one's holder has not come back: the client must not be sent to
// it.
static void an_attach_beside_a_holder_that_is_away_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 16);
    struct sim_worker *holder = holder_of(cluster, session, 0);
    struct common_error err;
    sim_net_part(NULL, holder->loop);
    sim_coordinator_kill(cluster); // its next life has the holder's name alone
    sim_run_until_idle();
    assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
    assert_true(sim_wait_active(cluster, 1));
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    ENDS(COMMON_UNAVAILABLE, opened);
    assert_string_equal(opened->reason, "MISSING_RANGE");
    assert_int_equal(opened->first_missing, 0);
    assert_int_equal(opened->count_missing, 16);
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    OK(sim_open(cluster->client, session, 0, 40));
    sim_cluster_free(cluster);
}

// A holder that refused a durable commit, for want of memory, gets the commit again.
static void a_commit_that_a_holder_did_not_hear_is_told_again(void **state)
{
    static const enum common_code codes[] = {COMMON_RESOURCE_EXHAUSTED, COMMON_INTERNAL};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 0);
        struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 0, 40, 3));
        rule_all(cluster, METHOD(ROWS_COMMIT),
                 (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = codes[i]});
        OK(sim_commit(cluster->client, session, 0, 0, 40));
        assert_true(sim_wait_active(cluster, 2));
        READS(cluster, session, 40, 40 * 3);
        sim_cluster_free(cluster);
    }
}

struct liar {
    uint64_t chunk;
};

// A holder's report of a chunk: it has the rows, with a sum that is not theirs.
static void report(void *arg, struct proto_request *request)
{
    const struct liar *liar = arg;
    const Banyan__Pb__RowsPrepareRequest *m = (const void *)proto_request_message(request)->body;
    Banyan__Pb__Range present = BANYAN__PB__RANGE__INIT, *ranges[] = {&present};
    Banyan__Pb__ChunkReport report = BANYAN__PB__CHUNK_REPORT__INIT, *list[] = {&report};
    Banyan__Pb__RowsPrepareReply reply = BANYAN__PB__ROWS_PREPARE_REPLY__INIT;
    present.first = m->first;
    present.count = m->count;
    report.chunk = liar->chunk;
    report.first = m->first;
    report.sum = 7;
    report.n_present = 1;
    report.present = ranges;
    reply.n_chunks = 1;
    reply.chunks = list;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// A commit of what differs between holders would let clients read one or the other.
static void rows_that_differ_between_holders_are_not_committed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *made = sim_create(cluster->client, (struct sim_shape){.replicas = 2}, "");
    OK(made);
    uint64_t session = made->session;
    struct sim_call *opened = sim_open(cluster->client, session, 0, 16);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, 16, 3));
    const struct coordinator_session *s = coordinator_session_find(&cluster->coordinator->sessions, session);
    struct liar liar = {.chunk = s->layout.chunks[0].id};
    const struct sim_rule lie = {.verdict = SIM_TELL, .times = 1, .tell = report, .arg = &liar};
    uint64_t aborts = sim_serve_seen(cluster->workers[0]->loop, METHOD(ROWS_ABORT));
    sim_serve_rule(cluster->workers[1]->loop, METHOD(ROWS_PREPARE), lie);
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, 16);
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HASH_MISMATCH");
    assert_int_equal(length_of(cluster, session), 0);
    assert_int_equal(sim_serve_seen(cluster->workers[0]->loop, METHOD(ROWS_ABORT)), aborts + 1);
    OK(sim_commit(cluster->client, session, 0, 0, 16)); // they agree
    READS(cluster, session, 16, 16 * 3);
    sim_cluster_free(cluster);
}

// Rows past a hole are in no length: after a restart only the store has a record of them.
static void a_commit_past_a_hole_is_durable_when_it_is_answered(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 60);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 0, 60, 3));
    OK(sim_commit(cluster->client, session, 0, 20, 40));
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    assert_int_equal(length_of(cluster, session), 0);
    OK(sim_commit(cluster->client, session, 0, 0, 20));
    assert_int_equal(length_of(cluster, session), 60);
    READS(cluster, session, 60, 60 * 3);
    sim_cluster_free(cluster);
}

// A bit flips in a worker's memory between put and commit: the commit says where, the rows go, and attached
// again they are what they were.
static void rows_that_were_damaged_are_not_committed(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    float values[40];
    for (int i = 0; i < 40; i++)
        values[i] = 5;
    OK(opened);
    OK(sim_put_rows(cluster->client, opened, 0, 0, 40, values));
    struct sim_worker *holder = holder_of(cluster, session, 16);
    assert_true(sim_worker_rot(holder, 1));
    struct sim_call *commit = sim_commit_rows(cluster->client, session, 0, 0, 40, values, 16);
    ENDS(COMMON_DATA_LOSS, commit);
    assert_string_equal(commit->reason, "HASH_MISMATCH");
    assert_non_null(strstr(commit->text, holder->name));
    assert_non_null(strstr(commit->text, "of layer 0"));
    uint64_t first = commit->first_missing, count = commit->count_missing;
    assert_true(first % 16 == 0 && first < 40 && count == (first == 32 ? 8u : 16u));
    commit = sim_commit_rows(cluster->client, session, 0, 0, 40, values, 16); // nothing of them is left
    ENDS(COMMON_FAILED_PRECONDITION, commit);
    assert_string_equal(commit->reason, "HOLE");
    assert_int_equal(commit->first_missing, first);
    assert_int_equal(commit->count_missing, count);
    OK(sim_put_rows(cluster->client, opened, 0, first, count, values));
    OK(sim_commit_rows(cluster->client, session, 0, 0, 40, values, 16));
    READS(cluster, session, 40, 40 * 5);
    sim_cluster_free(cluster);
}

// What is committed stays, whatever a client says that it is. Sums of parts of a chunk are not compared.
static void a_commit_with_sums_of_something_else(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    float values[40], others[40];
    for (int i = 0; i < 40; i++)
        values[i] = 5, others[i] = i == 20 ? 6 : 5;
    OK(opened);
    OK(sim_put_rows(cluster->client, opened, 0, 0, 40, values));
    OK(sim_commit_rows(cluster->client, session, 0, 0, 40, values, 16));
    struct sim_call *commit = sim_commit_rows(cluster->client, session, 0, 0, 40, others, 16);
    ENDS(COMMON_DATA_LOSS, commit);
    assert_non_null(strstr(commit->text, "truncate"));
    assert_int_equal(commit->first_missing, 16);
    OK(sim_commit_rows(cluster->client, session, 0, 0, 40, others, 8));
    OK(sim_commit(cluster->client, session, 0, 0, 40));
    READS(cluster, session, 40, 40 * 5);
    sim_cluster_free(cluster);
}

// A link on which every other frame is damaged: calls end with UNAVAILABLE or with the right answer, and when
// it is mended all is as before.
static void damaged_frames_are_errors(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    unsigned right = 0, refused = 0;
    OK(sim_append(cluster->client, session, 0, 0, 40, 3));
    uint64_t damaged = proto_frames_damaged();
    sim_net_flip(NULL, sim_client_loop(cluster->client), 2);
    sim_net_flip(sim_client_loop(cluster->client), NULL, 8);
    for (int i = 0; i < 200; i++) {
        struct sim_call *read = sim_read(cluster->client, session, 0, 39, 1);
        enum common_code code = sim_wait(read);
        if (code == COMMON_OK)
            assert_true(read->o == 3);
        else if (code != COMMON_UNAVAILABLE)
            fail_msg("%s: %s", common_code_name(code), read->text);
        right += code == COMMON_OK;
        refused += code != COMMON_OK;
    }
    assert_true(right > 20 && refused > 20);
    assert_true(sim_net_flipped() > 20 && proto_frames_damaged() > damaged + 20);
    sim_net_heal();
    sim_advance(2 * COMMON_NS_PER_S);
    READS(cluster, session, 40, 40 * 3);
    sim_cluster_free(cluster);
}

// A holder does not take the word that a commit has come to nothing: the rows that it froze may be written
// all the same, once it has been asked.
static void rows_of_a_commit_that_failed_do_not_stay_frozen(void **state)
{
    static const enum common_code codes[] = {COMMON_ABORTED, COMMON_UNAVAILABLE, COMMON_INTERNAL,
                                             COMMON_NOT_FOUND};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_call *opened = sim_open(cluster->client, session, 20, 8);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 20, 4, 3));
        rule_all(cluster, METHOD(ROWS_ABORT),
                 (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = codes[i]});
        ENDS(COMMON_FAILED_PRECONDITION, sim_commit(cluster->client, session, 0, 20, 8)); // a hole
        OK(sim_append(cluster->client, session, 0, 20, 4, 7));
        READS(cluster, session, 24, 20 + 4 * 7);
        sim_cluster_free(cluster);
    }
}

// A holder gets the question only after the commit has been given up, and after the message that it failed:
// nothing would release what it froze then.
static void a_question_that_is_given_up_freezes_nothing(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_worker *holder = holder_of(cluster, session, 20);
    struct sim_call *opened = sim_open(cluster->client, session, 20, 8);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 20, 8, 3));
    sim_serve_rule(holder->loop, METHOD(ROWS_PREPARE), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    uint64_t aborts = sim_serve_seen(holder->loop, METHOD(ROWS_ABORT));
    ENDS(COMMON_DEADLINE_EXCEEDED, sim_commit(cluster->client, session, 0, 20, 8));
    sim_advance(COORDINATOR_CONTROL_NS); // the coordinator waits longer than the client
    assert_true(sim_serve_seen(holder->loop, METHOD(ROWS_ABORT)) > aborts);
    assert_int_equal(sim_serve_let_go(holder->loop), 1);
    OK(sim_append(cluster->client, session, 0, 20, 4, 7));
    READS(cluster, session, 24, 20 + 4 * 7);
    sim_cluster_free(cluster);
}

static uint32_t frozen_at(const struct sim_worker *worker, uint64_t session)
{
    const struct worker_session *held = worker_map_get(&worker->worker->sessions, session);
    return held ? held->frozen.n : 0;
}

static void nothing_is_frozen(struct sim_cluster *cluster, uint64_t session)
{
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        assert_int_equal(frozen_at(cluster->workers[i], session), 0);
    sim_run_until_idle();
    const struct coordinator_session *s = kept_of(cluster, session);
    assert_null(cluster->coordinator->sessions.commits.head);
    assert_int_equal(s->shared, 0);
    assert_int_equal(s->writing, 0);
    assert_int_equal(s->layers[0].pending, 0);
}

enum { REFUSED = WORKER_FROZEN_MAX + 904 }; // more than a worker keeps apart

// A full disk refuses commit after commit, all over the same rows: none has happened, and each gives back
// what it froze. Others have the rows as soon as there is room.
static void refused_commits_leave_nothing_behind(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, replicas, 20);
        struct sim_call *opened = sim_open(cluster->client, session, 20, 8);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 20, 8, 3));
        sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
        for (int i = 0; i < REFUSED; i++) {
            struct sim_call *commit = sim_commit(cluster->client, session, 0, 20 + i % 3, 8 - i % 5);
            enum common_code code = sim_wait(commit);
            if (i % 3 + 8 - i % 5 > 8) // past what was put
                assert_int_equal(code, COMMON_FAILED_PRECONDITION);
            else if (code != COMMON_RESOURCE_EXHAUSTED || !strstr(commit->text, "the store"))
                fail_msg("commit %d: %s: %s", i, common_code_name(code), commit->text);
        }
        nothing_is_frozen(cluster, session);
        sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
        OK(sim_put(cluster->client, opened, 0, 20, 8, 5)); // other rows, at the same positions
        OK(sim_commit(cluster->client, session, 0, 20, 8));
        READS(cluster, session, 28, 20 + 8 * 5);
        nothing_is_frozen(cluster, session);
        opened = sim_open(cluster->client, session, 20, 16);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 20, 16, 5)); // over them, and on
        OK(sim_commit(cluster->client, session, 0, 20, 16));
        sim_coordinator_kill(cluster);
        restart(cluster);
        assert_true(sim_wait_active(cluster, 2));
        READS(cluster, session, 36, 20 + 16 * 5);
        sim_cluster_free(cluster);
    }
}

// The message that a refused commit is over is lost: the holder is asked, and gets it again.
static void a_refused_commit_whose_end_a_holder_did_not_hear(void **state)
{
    static const enum common_code codes[] = {COMMON_ABORTED, COMMON_UNAVAILABLE, COMMON_INTERNAL};
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 20);
        struct sim_call *opened = sim_open(cluster->client, session, 20, 8);
        OK(opened);
        OK(sim_put(cluster->client, opened, 0, 20, 8, 3));
        rule_all(cluster, METHOD(ROWS_ABORT),
                 (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = codes[i]});
        sim_disk_fail(SIM_DISK_PATH, 1, COMMON_UNAVAILABLE);
        ENDS(COMMON_UNAVAILABLE, sim_commit(cluster->client, session, 0, 20, 8));
        OK(sim_append(cluster->client, session, 0, 20, 4, 7));
        nothing_is_frozen(cluster, session);
        READS(cluster, session, 24, 20 + 4 * 7);
        sim_cluster_free(cluster);
    }
}

// Nor may the holder hear at once that the commit is over while an older one of the session waits for the
// store: it hears so once that one has ended, too.
static void a_commit_that_ends_before_an_older_one(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_call *opened = sim_open(cluster->client, session, 20, 8);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 20, 4, 3));
    sim_disk_stall(SIM_DISK_PATH, true);
    struct sim_call *older = sim_commit(cluster->client, session, 0, 20, 4);
    sim_advance(10 * COMMON_NS_PER_MS);
    rule_all(cluster, METHOD(ROWS_ABORT),
             (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_UNAVAILABLE});
    ENDS(COMMON_FAILED_PRECONDITION, sim_commit(cluster->client, session, 0, 20, 8)); // a hole
    sim_advance(2 * COMMON_NS_PER_S);                                                 // it is repaired
    assert_false(older->done);
    assert_true(frozen_at(holder_of(cluster, session, 20), session) > 0);
    sim_disk_stall(SIM_DISK_PATH, false);
    OK(older);
    sim_advance(2 * COMMON_NS_PER_S);
    nothing_is_frozen(cluster, session);
    READS(cluster, session, 24, 20 + 4 * 3);
    sim_cluster_free(cluster);
}

static void another_is_older(bool again)
{
    struct sim_cluster *cluster =
        sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .store = again});
    sim_cluster_start(cluster);
    uint64_t session = session_of(cluster, 20), other = session_of(cluster, 4);
    struct sim_worker *holder = holder_of(cluster, session, 20);
    assert_true(holder_of(cluster, other, 0) != holder); // it is not held by the one that comes back
    struct sim_call *opened = sim_open(cluster->client, session, 20, 8),
                    *opened_other = sim_open(cluster->client, other, 4, 4);
    OK(opened);
    OK(opened_other);
    OK(sim_put(cluster->client, opened, 0, 20, 4, 3));
    OK(sim_put(cluster->client, opened_other, 0, 4, 4, 3));
    rule_all(cluster, METHOD(ROWS_PREPARE), (struct sim_rule){.verdict = SIM_HOLD});
    struct sim_call *older = sim_commit(cluster->client, other, 0, 4, 4);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(held_all(cluster), 1);
    sim_serve_rule(holder->loop, METHOD(ROWS_PREPARE), (struct sim_rule){.verdict = SIM_DO});
    if (again) { // the files have what was frozen, and not that it is over
        OK(sim_commit(cluster->client, session, 0, 20, 4));
        sim_worker_kill(holder);
        sim_worker_start(holder);
    } else {
        sim_serve_rule(holder->loop, METHOD(ROWS_ABORT), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
        struct sim_call *newer = sim_commit(cluster->client, session, 0, 20, 8); // a hole
        sim_advance(10 * COMMON_NS_PER_MS);
        assert_int_equal(sim_serve_held(holder->loop), 1);
        sim_net_cut(cluster->loop, holder->loop);
        ENDS(COMMON_FAILED_PRECONDITION, newer);
    }
    assert_true(frozen_at(holder, session) > 0);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(COMMON_NS_PER_S);
    assert_false(older->done);
    assert_int_equal(frozen_at(holder, session), 0);
    let_go_all(cluster);
    OK(older);
    nothing_is_frozen(cluster, session);
    nothing_is_frozen(cluster, other);
    sim_cluster_free(cluster);
}

// A returning worker gets, for all sessions at once, which commits are over: those before the oldest one of
// any. What a later one of this session has frozen goes, too.
static void a_commit_of_another_session_is_older(void **state)
{
    (void)state;
    another_is_older(false);
    another_is_older(true);
}

// A holder dies after the commit was durable and before it received it, and its next process gets its layouts
// while another holder's answer is still out: so the commit's rows are in none of them. They are lost, and
// the coordinator has recorded that.
static void rows_of_a_commit_that_died_with_their_holder_are_lost(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 0);
    struct sim_call *opened = sim_open(cluster->client, session, 0, 32);
    OK(opened);
    struct sim_worker *dies = holder_of(cluster, session, 0), *slow = holder_of(cluster, session, 16);
    assert_true(dies != slow);
    OK(sim_put(cluster->client, opened, 0, 0, 32, 3));
    rule_all(cluster, METHOD(ROWS_COMMIT), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *commit = sim_commit(cluster->client, session, 0, 0, 32);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(held_all(cluster), 2);
    sim_worker_kill(dies);
    sim_worker_start(dies);
    assert_true(sim_wait_active(cluster, 2));
    assert_false(commit->done);
    sim_serve_let_go(slow->loop);
    OK(commit); // it has happened
    sim_advance(COMMON_NS_PER_S);
    const struct coordinator_session *s = kept_of(cluster, session);
    assert_true(coordinator_layout_find(&s->layout, 0)->lost);
    assert_false(coordinator_layout_find(&s->layout, 1)->lost);
    struct sim_call *read = sim_read(cluster->client, session, 0, 31, 1);
    ENDS(COMMON_DATA_LOSS, read);
    assert_int_equal(read->first_missing, 0);
    assert_int_equal(read->count_missing, 16);
    sim_coordinator_kill(cluster);
    restart(cluster);
    assert_true(sim_wait_active(cluster, 2));
    ENDS(COMMON_DATA_LOSS, sim_read(cluster->client, session, 0, 31, 1));
    OK(sim_truncate(cluster->client, session, 0));
    OK(sim_append(cluster->client, session, 0, 0, 32, 1));
    READS(cluster, session, 32, 32);
    sim_cluster_free(cluster);
}

// Rows that a commit of an earlier life has frozen, and a session that changes at one holder while the other
// one gets its layouts: these do not say which commits of this session are over; a message of its own does
// afterwards.
static void a_commit_of_an_earlier_life_and_a_session_that_changes(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 20);
    struct sim_worker *first = cluster->workers[0], *late = cluster->workers[1];
    struct sim_call *opened = sim_open(cluster->client, session, 20, 8);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 20, 8, 3));
    sim_serve_rule(first->loop, METHOD(ROWS_PREPARE), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    sim_commit(cluster->client, session, 0, 20, 8);
    sim_advance(10 * COMMON_NS_PER_MS);
    assert_true(frozen_at(late, session) > 0);
    sim_coordinator_kill(cluster);
    assert_int_equal(sim_serve_let_go(first->loop), 1);
    sim_serve_rule(first->loop, METHOD(LAYOUT_SET),
                   (struct sim_rule){.verdict = SIM_FAIL, .times = 1, .code = COMMON_RESOURCE_EXHAUSTED});
    sim_serve_rule(late->loop, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    restart(cluster);
    assert_true(sim_wait_active(cluster, 1));
    sim_advance(100 * COMMON_NS_PER_MS); // the first one gets it again
    assert_int_equal(sim_serve_let_go(late->loop), 1);
    assert_true(sim_wait_active(cluster, 2));
    sim_advance(COMMON_NS_PER_S);
    nothing_is_frozen(cluster, session);
    OK(sim_append(cluster->client, session, 0, 20, 4, 7)); // other rows, at the same positions
    READS(cluster, session, 24, 20 + 4 * 7);
    sim_cluster_free(cluster);
}

// The sync of a commit fails, so it may be in the log after a crash: its rows stay frozen as long as the
// store cannot say, and no longer. Then it is refused for certain, and what was in its place is taken.
static void what_the_store_cannot_say_is_open_until_it_can(void **state)
{
    enum { OPEN = 6 };
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 20);
    struct sim_call *opened = sim_open(cluster->client, session, 20, 8), *commits[OPEN];
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 20, 8, 3));
    struct sim_worker *holder = holder_of(cluster, session, 20);
    sim_disk_unsure(SIM_DISK_PATH, UINT32_MAX);
    for (int i = 0; i < OPEN; i++) {
        commits[i] = sim_commit(cluster->client, session, 0, 20, 8);
        sim_advance(100 * COMMON_NS_PER_MS);
        assert_false(commits[i]->done);
    }
    assert_int_equal(frozen_at(holder, session), OPEN);
    sim_put(cluster->client, opened, 0, 20, 8, 5); // must not take: the rows are the commits'
    sim_advance(COMMON_NS_PER_S);
    sim_disk_unsure(SIM_DISK_PATH, 0);
    uint32_t refused = 0;
    for (int i = 0; i < OPEN; i++)
        refused += sim_wait(commits[i]) == COMMON_UNAVAILABLE;
    assert_int_equal(refused, 1); // the others were not written before the disk was well again
    nothing_is_frozen(cluster, session);
    READS(cluster, session, 28, 20 + 8 * 3);
    sim_cluster_free(cluster);
}

int hermetic_commits(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_attached_and_committed),
        cmocka_unit_test(an_attach_beside_a_holder_that_is_away_is_refused),
        cmocka_unit_test(a_commit_that_a_holder_did_not_hear_is_told_again),
        cmocka_unit_test(rows_that_differ_between_holders_are_not_committed),
        cmocka_unit_test(a_commit_past_a_hole_is_durable_when_it_is_answered),
        cmocka_unit_test(rows_that_were_damaged_are_not_committed),
        cmocka_unit_test(a_commit_with_sums_of_something_else),
        cmocka_unit_test(damaged_frames_are_errors),
        cmocka_unit_test(rows_of_a_commit_that_failed_do_not_stay_frozen),
        cmocka_unit_test(a_question_that_is_given_up_freezes_nothing),
        cmocka_unit_test(refused_commits_leave_nothing_behind),
        cmocka_unit_test(a_refused_commit_whose_end_a_holder_did_not_hear),
        cmocka_unit_test(a_commit_that_ends_before_an_older_one),
        cmocka_unit_test(a_commit_of_another_session_is_older),
        cmocka_unit_test(rows_of_a_commit_that_died_with_their_holder_are_lost),
        cmocka_unit_test(a_commit_of_an_earlier_life_and_a_session_that_changes),
        cmocka_unit_test(what_the_store_cannot_say_is_open_until_it_can),
    };
    return cmocka_run_group_tests_name("commits", tests, NULL, NULL);
}
