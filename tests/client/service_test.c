// SPDX-License-Identifier: Apache-2.0
// The library against a service in this process that says q back as o (echo_service.h): what calls,
// splitting, queues, retries and disconnects do, whatever a coordinator does. Every test runs over every
// transport.
#include "tests/client/echo_service.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

// ---- tests -----------------------------------------------------------------------------------------------

static void test_ping_and_session(void **state)
{
    (void)state;
    banyan_client *client = connect_client(NULL);
    uint64_t rtt = 0;
    assert_int_equal(banyan_ping(client, &rtt, NULL), BANYAN_OK);
    assert_true(rtt > 0);
    banyan_session *session = create_session(client);
    assert_int_equal(banyan_session_id(session), 42);
    assert_int_equal(banyan_session_spec(session)->chunk_tokens, 256);
    assert_true(banyan_session_spec(session)->scale == 0.5f);
    banyan_session_close(session);
    banyan_disconnect(client);
}

static void test_nobody_there(void **state)
{
    (void)state;
    banyan_client *client = NULL;
    banyan_error error = {0};
    banyan_options options = {.connect_timeout_ns = 100 * COMMON_NS_PER_MS};
    char endpoint[128];
    if (strcmp(service_transport, "unix") == 0)
        snprintf(endpoint, sizeof endpoint, "unix://%s/nobody", service_dir);
    else
        snprintf(endpoint, sizeof endpoint, "%s://127.0.0.1:1", service_transport);
    assert_int_equal(banyan_connect(endpoint, &options, &client, &error), BANYAN_UNAVAILABLE);
    assert_non_null(strstr(error.message, endpoint));
    assert_null(client);
    assert_int_equal(banyan_connect("what", NULL, &client, &error), BANYAN_INVALID_ARGUMENT);
    options.token_file = "/nonexistent/token";
    assert_int_not_equal(banyan_connect(service.endpoint, &options, &client, &error), BANYAN_OK);
    assert_null(client);
}

static void test_scatter(void **state)
{
    (void)state;
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct work works[50];
    banyan_item items[50];
    for (int i = 0; i < 50; i++) {
        make_work(&works[i], session, 1 + (uint32_t)i % 5, (float)i * 1000);
        if (i % 7 == 3)
            works[i].item.lse = NULL;
        if (i == 20)
            works[i].item.layer = BAD_LAYER;
        if (i == 30)
            works[i].item.layer = 4; // not there: never sent
        if (i == 31)
            works[i].item.rows = 0;
        if (i == 32)
            works[i].item.k = works[i].q; // k without v
        items[i] = works[i].item;
    }
    banyan_trace trace;
    assert_int_equal(banyan_attend(client, items, 50, 0, &trace, NULL), BANYAN_OK);
    assert_int_equal(trace.coordinator_ns, 5);
    assert_int_equal(trace.tree_ns, 6);
    assert_true(trace.total_ns > 0);
    banyan_trace_free(&trace);
    for (int i = 0; i < 50; i++) {
        works[i].item = items[i];
        if (i == 20) {
            assert_int_equal(items[i].code, BANYAN_OUT_OF_RANGE);
            assert_string_equal(works[i].error.message, "this layer is bad");
            assert_true(works[i].o[0] == 0); // outputs are written only on success
        } else if (i >= 30 && i <= 32) {
            assert_int_equal(items[i].code, BANYAN_INVALID_ARGUMENT);
            assert_int_equal(works[i].error.code, BANYAN_INVALID_ARGUMENT);
        } else if (items[i].lse) {
            check_work(&works[i]);
            assert_int_equal(items[i].digest, 77);
        } else {
            assert_int_equal(items[i].code, BANYAN_OK);
            assert_memory_equal(works[i].q, works[i].o, (size_t)items[i].rows * HEADS * DIM * sizeof(float));
        }
        free_work(&works[i]);
    }
    assert_int_equal(service.calls, 1);
    banyan_session_close(session);
    banyan_disconnect(client);
}

static void test_large_calls_are_split(void **state)
{
    (void)state;
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct work big;
    make_work(&big, session, 1200000, 0); // 38 MB of q
    assert_int_equal(banyan_attend(client, &big.item, 1, 0, NULL, NULL), BANYAN_OK);
    check_work(&big);
    assert_in_range(service.calls, 3, 10);
    free_work(&big);
    service.calls = 0;
    enum { MANY = 2500 };
    struct work *works = calloc(MANY, sizeof *works);
    banyan_item *items = calloc(MANY, sizeof *items);
    for (int i = 0; i < MANY; i++) {
        make_work(&works[i], session, 1, (float)i);
        items[i] = works[i].item;
    }
    assert_int_equal(banyan_attend(client, items, MANY, 0, NULL, NULL), BANYAN_OK);
    assert_int_equal(service.calls, 4);
    for (int i = 0; i < MANY; i++) {
        works[i].item = items[i];
        check_work(&works[i]);
        free_work(&works[i]);
    }
    free(works);
    free(items);
    banyan_session_close(session);
    banyan_disconnect(client);
}

// Each piece of an append arrives before the next one is there to be seen.
static void test_pieces_of_an_append_see_what_is_there(void **state)
{
    (void)state;
    enum { ROWS = 5000 };
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    uint16_t *kv = calloc(ROWS * DIM, sizeof *kv);
    for (int whole = 0; whole < 2; whole++) {
        struct work work;
        uint32_t rows = whole ? 100 : ROWS;
        make_work(&work, session, rows, 0);
        work.item.k = work.item.v = kv;
        work.item.visible = work.item.first + rows;
        assert_int_equal(banyan_attend(client, &work.item, 1, 0, NULL, NULL), BANYAN_OK);
        check_work(&work);
        work.item.visible++; // what the caller gets wrong is not mended
        assert_int_equal(banyan_attend(client, &work.item, 1, 0, NULL, NULL), BANYAN_OK);
        assert_int_equal(work.item.code, whole ? BANYAN_OUT_OF_RANGE : BANYAN_OK);
        free_work(&work);
    }
    free(kv);
    banyan_session_close(session);
    banyan_disconnect(client);
}

static void test_failed_calls(void **state)
{
    (void)state;
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct work w;
    banyan_error error;
    make_work(&w, session, 2, 1);
    service.mode = WRONG_SHAPE;
    assert_int_equal(banyan_attend(client, &w.item, 1, 0, NULL, &error), BANYAN_INTERNAL);
    assert_int_equal(w.item.code, BANYAN_INTERNAL);
    assert_true(w.o[1] == 0);
    service.mode = UNAVAILABLE_STATUS; // the coordinator's word is final
    service.calls = 0;
    assert_int_equal(banyan_attend(client, &w.item, 1, 0, NULL, &error), BANYAN_UNAVAILABLE);
    assert_string_equal(error.message, "w3 is lost");
    assert_int_equal(service.calls, 1);
    service.mode = SILENT;
    assert_int_equal(banyan_attend(client, &w.item, 1, 50 * COMMON_NS_PER_MS, NULL, &error),
                     BANYAN_DEADLINE_EXCEEDED);
    assert_int_equal(w.item.code, BANYAN_DEADLINE_EXCEEDED);
    assert_int_equal(banyan_attend(client, NULL, 0, 0, NULL, &error), BANYAN_INVALID_ARGUMENT);
    banyan_client *other = connect_client(NULL);
    assert_int_equal(banyan_attend(other, &w.item, 1, 0, NULL, &error),
                     BANYAN_OK); // the call is answered: a bad item fails alone
    assert_int_equal(w.item.code, BANYAN_INVALID_ARGUMENT);
    banyan_disconnect(other);
    free_work(&w);
    banyan_session_close(session);
    banyan_disconnect(client);
}

struct counter {
    atomic_uint done, ok;
    unsigned expected;
    sem_t all;
};

static void count_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                       size_t n_items)
{
    struct counter *counter = arg;
    (void)error;
    if (code == BANYAN_OK && n_items == 1 && items[0].code == BANYAN_OK)
        atomic_fetch_add(&counter->ok, 1);
    if (atomic_fetch_add(&counter->done, 1) + 1 == counter->expected)
        sem_post(&counter->all);
}

static void test_ten_thousand_in_flight(void **state)
{
    (void)state;
    enum { N = 10000 };
    banyan_client *client =
        connect_client(&(banyan_options){.calls_max = N, .timeout_ns = 100 * COMMON_NS_PER_S});
    banyan_session *session = create_session(client);
    struct work *works = calloc(N, sizeof *works);
    struct counter counter = {.expected = N};
    sem_init(&counter.all, 0, 0);
    // Over a stream the service sees them all before it answers any; nng carries 64 at a time.
    service.hold_until = strcmp(service_transport, "nng+tcp") == 0 ? 16 : N;
    service.mode = HOLD;
    for (int i = 0; i < N; i++) {
        make_work(&works[i], session, 1, (float)i);
        assert_int_equal(banyan_attend_async(client, &works[i].item, 1, 0, count_done, &counter, NULL),
                         BANYAN_OK);
    }
    sem_wait(&counter.all);
    assert_int_equal(counter.ok, N);
    assert_int_equal(service.calls, N);
    for (int i = 0; i < N; i++) {
        check_work(&works[i]);
        free_work(&works[i]);
    }
    free(works);
    sem_destroy(&counter.all);
    banyan_session_close(session);
    banyan_disconnect(client);
}

static void test_calls_max_and_queue(void **state)
{
    (void)state;
    enum { MAX = 8 };
    banyan_client *client = connect_client(&(banyan_options){.calls_max = MAX});
    banyan_session *session = create_session(client);
    struct work works[MAX + 1];
    banyan_error error;
    service.hold_until = MAX;
    service.mode = HOLD;
    struct pollfd fd = {.fd = banyan_poll_fd(client), .events = POLLIN};
    for (int i = 0; i <= MAX; i++)
        make_work(&works[i], session, 1, (float)i);
    for (int i = 0; i < MAX; i++)
        assert_int_equal(banyan_attend_queue(client, &works[i].item, 1, 0, &works[i], NULL), BANYAN_OK);
    assert_int_equal(banyan_attend_queue(client, &works[MAX].item, 1, 0, NULL, &error),
                     BANYAN_RESOURCE_EXHAUSTED);
    assert_int_equal(works[MAX].item.code, BANYAN_RESOURCE_EXHAUSTED);
    unsigned seen = 0;
    bool refused = false;
    while (seen < MAX) {
        banyan_completion done[3];
        assert_int_equal(poll(&fd, 1, 60000), 1);
        // Answered but not fetched still counts.
        if (!refused)
            assert_int_equal(banyan_attend_queue(client, &works[MAX].item, 1, 0, NULL, &error),
                             BANYAN_RESOURCE_EXHAUSTED);
        refused = true;
        size_t n = banyan_poll(client, done, 3);
        for (size_t i = 0; i < n; i++) {
            struct work *w = done[i].tag;
            assert_int_equal(done[i].code, BANYAN_OK);
            assert_ptr_equal(done[i].items, &w->item);
            assert_int_equal(done[i].n_items, 1);
            check_work(w);
        }
        seen += (unsigned)n;
    }
    assert_int_equal(poll(&fd, 1, 0), 0); // nothing is left: not readable
    banyan_completion none;
    assert_int_equal(banyan_poll(client, &none, 1), 0);
    service.mode = ECHO;
    assert_int_equal(banyan_attend_queue(client, &works[MAX].item, 1, 0, &works[MAX], NULL),
                     BANYAN_OK);  // there is room again
    for (int i = 0; i < 2; i++) { // also when as many are fetched as were asked for
        assert_int_equal(poll(&fd, 1, 60000), 1);
        assert_int_equal(banyan_poll(client, &none, 1), 1);
        assert_ptr_equal(none.tag, &works[MAX]);
        assert_int_equal(poll(&fd, 1, 0), 0);
        if (i == 0)
            assert_int_equal(banyan_attend_queue(client, &works[MAX].item, 1, 0, &works[MAX], NULL),
                             BANYAN_OK);
    }
    for (int i = 0; i <= MAX; i++)
        free_work(&works[i]);
    banyan_session_close(session);
    banyan_disconnect(client);
}

struct chain {
    banyan_client *client;
    struct work work;
    unsigned left;
    bool blocked_refused;
    banyan_code item_code;
    sem_t end;
};

static void next_in_chain(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                          size_t n_items)
{
    (void)error;
    (void)n_items;
    struct chain *chain = arg;
    banyan_error refused;
    chain->item_code = items[0].code;
    if (banyan_attend(chain->client, items, 1, 0, NULL, &refused) == BANYAN_FAILED_PRECONDITION &&
        banyan_ping(chain->client, NULL, NULL) == BANYAN_FAILED_PRECONDITION)
        chain->blocked_refused = true;
    if (code != BANYAN_OK || chain->left-- == 0 ||
        banyan_attend_async(chain->client, items, 1, 0, next_in_chain, chain, NULL) != BANYAN_OK)
        sem_post(&chain->end);
}

static void test_callbacks_start_calls(void **state)
{
    (void)state;
    struct chain chain = {.client = connect_client(&(banyan_options){.calls_max = 1}), .left = 500};
    banyan_session *session = create_session(chain.client);
    make_work(&chain.work, session, 1, 1);
    sem_init(&chain.end, 0, 0);
    assert_int_equal(banyan_attend_async(chain.client, &chain.work.item, 1, 0, next_in_chain, &chain, NULL),
                     BANYAN_OK);
    sem_wait(&chain.end);
    assert_int_equal(chain.left, UINT32_MAX);
    assert_true(chain.blocked_refused);
    // An item that never leaves the house ends on the library's thread too, and not on this stack of calls.
    chain.left = 500;
    chain.work.item.layer = 99;
    assert_int_equal(banyan_attend_async(chain.client, &chain.work.item, 1, 0, next_in_chain, &chain, NULL),
                     BANYAN_OK);
    sem_wait(&chain.end);
    assert_int_equal(chain.left, UINT32_MAX);
    assert_int_equal(chain.item_code, BANYAN_INVALID_ARGUMENT);
    sem_destroy(&chain.end);
    free_work(&chain.work);
    banyan_session_close(session);
    banyan_disconnect(chain.client);
}

struct blocked {
    banyan_client *client;
    struct work work;
    banyan_code code;
};

static void *block_in_attend(void *arg)
{
    struct blocked *blocked = arg;
    blocked->code = banyan_attend(blocked->client, &blocked->work.item, 1, 0, NULL, NULL);
    return NULL;
}

static void test_disconnect_with_calls_in_flight(void **state)
{
    (void)state;
    enum { N = 300 };
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct work works[N];
    struct counter counter = {.expected = N};
    struct blocked blocked = {.client = client, .code = BANYAN_OK};
    pthread_t thread;
    sem_init(&counter.all, 0, 0);
    make_work(&blocked.work, session, 1, 0);
    for (int i = 0; i < 3; i++) // so that the next one does the I/O thread's work (common/loop/loop.h)
        assert_int_equal(banyan_ping(client, NULL, NULL), BANYAN_OK);
    service.mode = SILENT;
    pthread_create(&thread, NULL, block_in_attend, &blocked);
    while (atomic_load(&service.calls) < 1) // it is on its way
        usleep(1000);
    for (int i = 0; i < N; i++) {
        make_work(&works[i], session, 1, (float)i);
        assert_int_equal(banyan_attend_async(client, &works[i].item, 1, 0, count_done, &counter, NULL),
                         BANYAN_OK);
    }
    banyan_shutdown(client);
    assert_int_equal(counter.done, N); // before it returned
    banyan_disconnect(client);
    assert_int_equal(counter.ok, 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(works[i].item.code, BANYAN_CANCELLED);
        free_work(&works[i]);
    }
    pthread_join(thread, NULL);
    assert_int_equal(blocked.code, BANYAN_CANCELLED);
    free_work(&blocked.work);
    sem_destroy(&counter.all);
    banyan_session_close(session); // after its client: allowed
}

struct caller {
    banyan_client *client;
    atomic_uint answered;
    banyan_code code; // that ended it
};

static void *call_until_cancelled(void *arg)
{
    struct caller *caller = arg;
    while ((caller->code = banyan_ping(caller->client, NULL, NULL)) == BANYAN_OK)
        atomic_fetch_add(&caller->answered, 1);
    caller->code = banyan_ping(caller->client, NULL, NULL); // and one that begins after that
    return NULL;
}

static void test_shutdown_beside_calls_that_begin(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct caller callers[THREADS];
    pthread_t threads[THREADS];
    struct work work;
    make_work(&work, session, 1, 0);
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){.client = client};
        pthread_create(&threads[i], NULL, call_until_cancelled, &callers[i]);
        while (!atomic_load(&callers[i].answered))
            usleep(100);
    }
    banyan_shutdown(client);
    banyan_shutdown(client);
    assert_int_equal(banyan_attend(client, &work.item, 1, 0, NULL, NULL), BANYAN_CANCELLED);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].code, BANYAN_CANCELLED);
    }
    banyan_disconnect(client);
    banyan_session_close(session);
    free_work(&work);
    banyan_shutdown(NULL);
}

static void test_lost_connection_is_retried(void **state)
{
    (void)state;
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct blocked blocked = {.client = client, .code = BANYAN_UNKNOWN};
    pthread_t thread;
    char endpoint[sizeof service.endpoint];
    service.mode = SILENT;
    make_work(&blocked.work, session, 3, 5);
    pthread_create(&thread, NULL, block_in_attend, &blocked);
    while (atomic_load(&service.calls) < 1)
        usleep(1000);
    memcpy(endpoint, service.endpoint, sizeof endpoint);
    common_loop_call(service.loop, close_server, NULL);
    service.mode = ECHO;
    common_loop_call(service.loop, open_server, endpoint); // a coordinator comes back at its address
    pthread_join(thread, NULL);
    assert_int_equal(blocked.code, BANYAN_OK);
    check_work(&blocked.work);
    free_work(&blocked.work);
    banyan_session_close(session);
    banyan_disconnect(client);
}

#define MEASURE_N 2000

// Not a timed test: it prints what a call costs, for readers of the log.
static void test_blocking_calls_from_threads(void **state)
{
    (void)state;
    banyan_client *client = connect_client(NULL);
    banyan_session *session = create_session(client);
    struct work w;
    make_work(&w, session, 1, 1);
    uint64_t start = common_clock_ns();
    for (int i = 0; i < MEASURE_N; i++)
        assert_int_equal(banyan_attend(client, &w.item, 1, 0, NULL, NULL), BANYAN_OK);
    print_message("%s: %.1f us a blocking attend\n", service_transport,
                  (double)(common_clock_ns() - start) / 1e3 / MEASURE_N);
    check_work(&w);
    struct blocked blocked[8];
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        blocked[i] = (struct blocked){.client = client, .code = BANYAN_UNKNOWN};
        make_work(&blocked[i].work, session, 2, (float)i);
        pthread_create(&threads[i], NULL, block_in_attend, &blocked[i]);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(blocked[i].code, BANYAN_OK);
        check_work(&blocked[i].work);
        free_work(&blocked[i].work);
    }
    free_work(&w);
    banyan_session_close(session);
    banyan_disconnect(client);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start_service, stop_service)
    const struct CMUnitTest tests[] = {
        TEST(test_ping_and_session),
        TEST(test_nobody_there),
        TEST(test_scatter),
        TEST(test_large_calls_are_split),
        TEST(test_pieces_of_an_append_see_what_is_there),
        TEST(test_failed_calls),
        TEST(test_ten_thousand_in_flight),
        TEST(test_calls_max_and_queue),
        TEST(test_callbacks_start_calls),
        TEST(test_disconnect_with_calls_in_flight),
        TEST(test_shutdown_beside_calls_that_begin),
        TEST(test_lost_connection_is_retried),
        TEST(test_blocking_calls_from_threads),
    };
    static const char *const transports[] = {"unix", "tcp", "nng+tcp"};
    int failed = 0;
    if (!service_begin())
        return 1;
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        service_transport = transports[i];
        print_message("over %s\n", service_transport);
        failed += cmocka_run_group_tests_name(service_transport, tests, NULL, NULL);
    }
    service_end();
    return failed;
}
