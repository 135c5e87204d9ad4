// SPDX-License-Identifier: Apache-2.0
// What the library asks again and what it does not, in which order, and how much at once (again_service.h).
#include "tests/client/again_service.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/banyan.h"
#include "common/base/clock.h"

static char dir[] = "/tmp/banyan-again-XXXXXX";

// ---- helpers ---------------------------------------------------------------------------------------------

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = HEADS,
                                 .kv_heads = 1,
                                 .k_dim = DIM,
                                 .v_dim = DIM,
                                 .kv_type = BANYAN_F16,
                                 .chunk_tokens = TOKENS};
static banyan_client *client;
static banyan_session *session;

static int set_up(void **state)
{
    (void)state;
    memset(&service, 0, sizeof service);
    service.incarnation = service.ticket = 1;
    for (int i = 0; i < 2; i++)
        snprintf(service.endpoints[i], sizeof service.endpoints[i], "unix://%s/%c", dir, 's' + i);
    if (common_loop_new(&service.loop) != COMMON_OK ||
        common_loop_start_thread(service.loop, "service") != COMMON_OK)
        return -1;
    common_loop_call(service.loop, service_open, NULL);
    return banyan_connect(service.endpoints[0], NULL, &client, NULL) == BANYAN_OK &&
                   banyan_session_create(client, &spec, NULL, &session, NULL) == BANYAN_OK
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    banyan_session_close(session);
    banyan_disconnect(client);
    common_loop_call(service.loop, service_close, NULL);
    common_loop_stop(service.loop);
    common_loop_join(service.loop);
    common_loop_free(service.loop);
    return 0;
}

static unsigned calls(uint32_t method)
{
    return atomic_load(&service.calls[method]);
}

// Everything that the library had to send when this began has arrived when it ends.
static void all_arrives(void)
{
    for (int i = 0; i < 3; i++)
        assert_int_equal(banyan_ping(client, NULL, NULL), BANYAN_OK);
}

static uint16_t kv[1024 * DIM]; // rows of K, and of V

// ---- tests -----------------------------------------------------------------------------------------------

// With the key of the call that was lost, so that there is one session; another call has another key.
static void a_lost_create_or_fork_is_repeated(void **state)
{
    (void)state;
    banyan_session *made = NULL;
    uint64_t before = service.keys[2]; // of the create that made `session`
    service.lose = true;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &made, NULL), BANYAN_OK);
    banyan_session_close(made);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_CREATE), 3);
    assert_true(service.keys[2] != 0 && service.keys[2] == service.keys[1] && service.keys[2] != before);
    before = service.keys[2];
    service.lose = true;
    assert_int_equal(banyan_session_fork(session, 0, NULL, &made, NULL), BANYAN_OK);
    banyan_session_close(made);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_FORK), 2);
    assert_true(service.keys[2] != 0 && service.keys[2] == service.keys[1] && service.keys[2] != before);
}

static void a_lost_truncate_or_delete_is_repeated(void **state)
{
    (void)state;
    float q[HEADS * DIM] = {0}, o[HEADS * DIM];
    banyan_item item = {.session = session, .rows = 1, .q = q, .o = o};
    service.lose = true;
    assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE), 2);
    // What it says about the session holds from now on.
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_OK);
    assert_int_equal(service.attend_incarnation, 3);
    // A session that is gone: by this delete, if an earlier sending of it was lost.
    assert_int_equal(banyan_session_delete(session, NULL), BANYAN_NOT_FOUND);
    service.lose = true;
    assert_int_equal(banyan_session_delete(session, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_DELETE), 3);
}

static banyan_code append(void)
{
    float q[HEADS * DIM] = {0}, o[HEADS * DIM];
    banyan_item item = {.session = session, .rows = 1, .q = q, .o = o, .k = kv, .v = kv};
    banyan_code code = banyan_attend(client, &item, 1, 0, NULL, NULL);
    return code == BANYAN_OK ? item.code : code;
}

static void learn(void)
{
    banyan_session_info info;
    assert_int_equal(banyan_session_get_info(session, &info, NULL), BANYAN_OK);
    banyan_session_info_free(&info);
}

// Each truncate names the one before it, and has the same number however often it is sent.
static void truncates_are_a_chain(void **state)
{
    (void)state;
    service.cut = 100;
    learn();
    service.lose = true;
    assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE), 2);
    uint64_t first = service.keys[2];
    assert_true(first != 0 && service.keys[1] == first);
    assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_OK);
    assert_int_equal(service.after, first);
    assert_int_not_equal(service.keys[2], first);
    assert_int_equal(service.settles, 0);
}

// One that is refused may have been sent twice: it is settled before the application goes on.
static void a_refused_truncate_is_settled(void **state)
{
    (void)state;
    service.cut = 100;
    learn();
    service.truncates_refused = 1;
    assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_UNAVAILABLE);
    assert_int_equal(service.settles, 1);
    assert_int_not_equal(service.cut, 100); // whatever follows 100 comes too late
    assert_int_equal(append(), BANYAN_OK);
}

// Nothing is written until it is known what became of a truncate; then it goes on from there.
static void a_truncate_in_doubt_keeps_writes_back(void **state)
{
    (void)state;
    for (int done = 0; done < 2; done++)
        for (int again = 0; again < 2; again++) {
            service.cut = 100;
            service.truncates_anyway = done;
            learn();
            uint64_t before = service.incarnation;
            service.truncates_refused = 2; // the truncate, and settling it
            assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_UNAVAILABLE);
            unsigned attends = calls(BANYAN__PB__METHOD__METHOD_ATTEND);
            assert_int_equal(append(), BANYAN_ABORTED);
            assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_ABORTED);
            assert_int_equal(banyan_commit(session, 0, 0, TOKENS, NULL), BANYAN_ABORTED);
            assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTEND), attends);
            if (again)
                assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_OK);
            else
                learn();
            assert_int_equal(append(), BANYAN_OK);
            assert_int_equal(service.attend_incarnation, before + (uint64_t)(done + again));
        }
}

// What cannot be done twice is not asked twice: the answer of the second would be another one.
static void a_lost_drop_is_not_repeated(void **state)
{
    (void)state;
    uint64_t dropped = 77;
    banyan_error error;
    service.quarantined = 3;
    service.lose = true;
    assert_int_equal(banyan_quarantine_drop(client, "w", 0, &dropped, NULL, &error), BANYAN_UNAVAILABLE);
    assert_int_equal(dropped, 77);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_QUARANTINE_DROP), 1);
    service.quarantined = 3;
    assert_int_equal(banyan_quarantine_drop(client, "w", 0, &dropped, NULL, &error), BANYAN_OK);
    assert_int_equal(dropped, 3);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_QUARANTINE_DROP), 2);
}

// A worker gets no token, not even that of the token file, where the coordinator gives a pass: one whose key
// was stolen would have it then.
static void workers_are_shown_the_pass(void **state)
{
    (void)state;
    const banyan_options options = {.token = SERVICE_TOKEN};
    banyan_client *own;
    banyan_session *of;
    assert_int_equal(banyan_connect(service.endpoints[0], &options, &own, NULL), BANYAN_OK);
    assert_int_equal(banyan_session_create(own, &spec, NULL, &of, NULL), BANYAN_OK);
    assert_int_equal(banyan_attach(of, 0, 0, 4 * TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(service.shown_tokens, 1); // the coordinator was
    assert_int_equal(service.shown_passes, 2);
    banyan_session_close(of);
    banyan_disconnect(own);
}

struct attending {
    pthread_t thread;
    banyan_item *items;
    size_t n;
    banyan_code code;
};

static void *attend(void *arg)
{
    struct attending *a = arg;
    a->code = banyan_attend(client, a->items, a->n, 0, NULL, NULL);
    return NULL;
}

// An append in several calls: each waits for the answer to the one before. What only reads does not.
static void calls_of_an_append_go_one_by_one(void **state)
{
    (void)state;
    enum { N = 801 }; // a call has at most 800 items
    float q[HEADS * DIM] = {0}, o[HEADS * DIM];
    banyan_item items[N];
    for (int append = 0; append < 2; append++) {
        for (size_t i = 0; i < N; i++)
            items[i] = (banyan_item){.session = session, .first = i, .rows = 1, .q = q, .o = o};
        for (size_t i = 0; append && i < N; i++)
            items[i].k = items[i].v = kv;
        struct attending a = {.items = items, .n = N};
        unsigned before = calls(BANYAN__PB__METHOD__METHOD_ATTEND);
        service.hold = true;
        pthread_create(&a.thread, NULL, attend, &a);
        while (atomic_load(&service.n_held) == 0)
            usleep(1000);
        all_arrives();
        assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTEND) - before, append ? 1 : 2);
        common_loop_call(service.loop, service_release, NULL);
        pthread_join(a.thread, NULL);
        assert_int_equal(a.code, BANYAN_OK);
        assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTEND) - before, 2);
    }
}

static void an_item_says_its_first_failure(void **state)
{
    (void)state;
    enum { ROWS = 5000 }; // two pieces
    float *q = calloc(2 * ROWS, HEADS * DIM * sizeof *q);
    banyan_error error;
    banyan_item item = {
        .session = session, .rows = ROWS, .q = q, .o = q + (size_t)ROWS * HEADS * DIM, .error = &error};
    service.fails = true;
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_OK);
    assert_int_equal(item.code, BANYAN_OUT_OF_RANGE);
    assert_string_equal(error.message, "row 0 fails");
    service.fails = false;
    service.short_answer = true; // the right bytes, and no items
    item.rows = 1;
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_INTERNAL);
    free(q);
}

static void an_error_says_nothing_of_an_older_one(void **state)
{
    (void)state;
    banyan_error error = {0};
    banyan_session *none;
    assert_int_equal(banyan_session_open(client, 7, NULL, &none, &error), BANYAN_UNAVAILABLE);
    assert_int_equal(error.reason, BANYAN_REASON_MISSING_RANGE);
    assert_string_equal(error.worker, "w3");
    assert_int_equal(error.n_ranges, 1);
    assert_int_equal(banyan_session_open(client, 0, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    assert_int_equal(error.reason, BANYAN_REASON_NONE);
    assert_string_equal(error.worker, "");
    assert_int_equal(error.n_ranges, 0);
}

static void a_list_has_all_its_pages(void **state)
{
    (void)state;
    banyan_session_list list;
    assert_int_equal(banyan_session_get_list(client, &list, NULL), BANYAN_OK);
    assert_int_equal(list.n, 266);
    for (uint32_t i = 0; i < list.n; i++)
        assert_int_equal(list.sessions[i].id, i + 1);
    banyan_session_list_free(&list);
}

static void *attach_many(void *arg)
{
    *(banyan_code *)arg = banyan_attach(session, 0, 0, 40 * TOKENS, kv, kv, NULL);
    return NULL;
}

static void few_puts_are_under_way_to_a_worker(void **state)
{
    (void)state;
    pthread_t thread;
    banyan_code code;
    service.hold = true;
    pthread_create(&thread, NULL, attach_many, &code);
    while (atomic_load(&service.n_held) < 2 * PUTS_A_WORKER)
        usleep(1000);
    all_arrives();
    assert_int_equal(service.n_held, 2 * PUTS_A_WORKER);
    common_loop_call(service.loop, service_release, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(code, BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 40);
}

static void a_refused_ticket_is_replaced_once(void **state)
{
    (void)state;
    service.puts_refused = 1;
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 2);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 2);
    service.puts_refused = UINT32_MAX;
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_ABORTED);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 4);
}

// Holders come and go: any holder of the rows is asked for until the time is over.
static void holders_may_change_more_than_once(void **state)
{
    (void)state;
    service.puts_moved = 3;
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 4);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 4);
}

// The clock of a coordinator does not count here: its tickets are used until a worker refuses them.
static void clocks_may_differ(void **state)
{
    (void)state;
    service.behind = true;
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 2);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 1);
}

// Each ticket is refused, as by a worker whose clock is wrong: few are asked for, and the error is the
// worker's.
static void tickets_that_are_always_refused(void **state)
{
    (void)state;
    const banyan_options options = {.timeout_ns = 500 * COMMON_NS_PER_MS,
                                    .connect_timeout_ns = 30 * COMMON_NS_PER_S};
    banyan_client *own;
    banyan_session *of;
    banyan_error error;
    service.puts_moved = UINT32_MAX;
    assert_int_equal(banyan_connect(service.endpoints[0], &options, &own, NULL), BANYAN_OK);
    assert_int_equal(banyan_session_create(own, &spec, NULL, &of, NULL), BANYAN_OK);
    assert_int_equal(banyan_attach(of, 0, 0, TOKENS, kv, kv, &error), BANYAN_FAILED_PRECONDITION);
    assert_int_equal(error.reason, BANYAN_REASON_OLD_TICKET);
    assert_in_range(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 1, OPENS_MAX);
    banyan_session_close(of);
    banyan_disconnect(own);
}

static void a_ticket_is_of_this_incarnation(void **state)
{
    (void)state;
    for (service.ticket = 0; service.ticket <= 2; service.ticket += 2) {
        unsigned before = calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN);
        assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_ABORTED);
        assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN) - before, 1);
    }
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 0);
}

// Asking ahead is a courtesy: without room for it the need alone is asked for, once.
static void no_room_ahead_may_be_room_enough(void **state)
{
    (void)state;
    enum { IN_ORDER = 40 }; // chunks: an eighth of them is more than the need
    service.crowded = true;
    uint32_t n = 0;
    for (uint64_t at = 0; at < IN_ORDER; at += AHEAD_CHUNKS, n++)
        assert_int_equal(banyan_attach(session, 0, at * TOKENS, AHEAD_CHUNKS * TOKENS, kv, kv, NULL),
                         BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), n);
    assert_int_equal(banyan_attach(session, 0, IN_ORDER * TOKENS, AHEAD_CHUNKS * TOKENS, kv, kv, NULL),
                     BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), n + 2);
    assert_int_equal(banyan_attach(session, 0, 60 * TOKENS, (AHEAD_CHUNKS + 1) * TOKENS, kv, kv, NULL),
                     BANYAN_RESOURCE_EXHAUSTED);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), n + 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_lost_create_or_fork_is_repeated),
        TEST(a_lost_truncate_or_delete_is_repeated),
        TEST(truncates_are_a_chain),
        TEST(a_refused_truncate_is_settled),
        TEST(a_truncate_in_doubt_keeps_writes_back),
        TEST(a_lost_drop_is_not_repeated),
        TEST(workers_are_shown_the_pass),
        TEST(calls_of_an_append_go_one_by_one),
        TEST(an_item_says_its_first_failure),
        TEST(an_error_says_nothing_of_an_older_one),
        TEST(a_list_has_all_its_pages),
        TEST(few_puts_are_under_way_to_a_worker),
        TEST(a_refused_ticket_is_replaced_once),
        TEST(holders_may_change_more_than_once),
        TEST(clocks_may_differ),
        TEST(tickets_that_are_always_refused),
        TEST(a_ticket_is_of_this_incarnation),
        TEST(no_room_ahead_may_be_room_enough),
    };
    if (!mkdtemp(dir))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir); // the sockets went with the server
    return failed;
}
