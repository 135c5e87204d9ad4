// SPDX-License-Identifier: Apache-2.0
// The public API: many steps in one call, and many calls under way.
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/client/api.h"

void test_batch_over_sessions(void **state)
{
    (void)state;
    enum { N = 40 };
    banyan_session *sessions[N];
    struct mirror *m = mirror_new(&api_spec, 64, 30);
    struct question questions[N];
    banyan_item items[N];
    for (uint32_t i = 0; i < N; i++) {
        sessions[i] = api_session(&api_spec);
        question_make(&questions[i], sessions[i], m, i % 2, 0, 1 + i % 7, true);
        if (i == 11)
            questions[i].item.first = 20; // bad: not at the end
        if (i == 12)
            questions[i].item.layer = 9;
        items[i] = questions[i].item;
    }
    banyan_trace trace;
    OK(banyan_attend(api_client, items, N, 0, &trace, err));
    assert_true(trace.n_workers > 0 && trace.tree_ns > 0);
    banyan_trace_free(&trace);
    for (uint32_t i = 0; i < N; i++) {
        if (i == 11 || i == 12) {
            assert_int_not_equal(items[i].code, BANYAN_OK);
            assert_int_equal(items[i].code, questions[i].error.code);
            assert_true(questions[i].o[0] == 0);
        } else {
            assert_int_equal(items[i].code, BANYAN_OK);
            assert_int_equal(items[i].length, items[i].rows);
            mirror_check(m, i % 2, 0, items[i].rows, 0, questions[i].o, questions[i].lse);
        }
        question_free(&questions[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        api_drop(sessions[i]);
    mirror_free(m);
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

void test_ten_thousand_in_flight(void **state)
{
    (void)state;
    enum { N = 10000, TOKENS = 40 };
    banyan_session *session = api_session(&api_spec);
    struct mirror *m = mirror_new(&api_spec, TOKENS, 70);
    api_attach(session, m, 0, TOKENS);
    struct question *questions = calloc(N, sizeof *questions);
    struct counter counter = {.expected = N};
    sem_init(&counter.all, 0, 0);
    for (uint64_t i = 0; i < N; i++) {
        question_make(&questions[i], session, m, i % 2, i % TOKENS, 1, false);
        OK(banyan_attend_async(api_client, &questions[i].item, 1, 300 * COMMON_NS_PER_S, count_done, &counter,
                               err));
    }
    sem_wait(&counter.all);
    assert_int_equal(counter.ok, N);
    for (uint64_t i = 0; i < N; i++) {
        if (i % 37 == 0)
            mirror_check(m, i % 2, i % TOKENS, 1, 0, questions[i].o, questions[i].lse);
        question_free(&questions[i]);
    }
    free(questions);
    sem_destroy(&counter.all);
    mirror_free(m);
    api_drop(session);
}

void test_queue(void **state)
{
    (void)state;
    enum { N = 100 };
    banyan_session *session = api_session(&api_spec);
    struct mirror *m = mirror_new(&api_spec, N, 80);
    api_attach(session, m, 0, N);
    struct question questions[N];
    struct pollfd fd = {.fd = banyan_poll_fd(api_client), .events = POLLIN};
    for (uint64_t i = 0; i < N; i++) {
        question_make(&questions[i], session, m, 0, i, 1, false);
        OK(banyan_attend_queue(api_client, &questions[i].item, 1, 0, &questions[i], err));
    }
    for (unsigned seen = 0; seen < N;) {
        banyan_completion done[7];
        assert_int_equal(poll(&fd, 1, 120000), 1);
        size_t n = banyan_poll(api_client, done, 7);
        for (size_t i = 0; i < n; i++) {
            struct question *q = done[i].tag;
            assert_int_equal(done[i].code, BANYAN_OK);
            mirror_check(m, 0, q->item.first, 1, 0, q->o, q->lse);
            question_free(q);
        }
        seen += (unsigned)n;
    }
    mirror_free(m);
    api_drop(session);
}

void test_disconnect_in_flight(void **state)
{
    (void)state;
    enum { N = 200 };
    banyan_session *session = api_session(&api_spec), *again;
    struct mirror *m = mirror_new(&api_spec, 64, 90);
    api_attach(session, m, 0, 64);
    struct question questions[N];
    struct counter counter = {.expected = N};
    sem_init(&counter.all, 0, 0);
    uint64_t id = banyan_session_id(session);
    for (uint64_t i = 0; i < N; i++) {
        question_make(&questions[i], session, m, 0, i % 64, 1, false);
        OK(banyan_attend_async(api_client, &questions[i].item, 1, 0, count_done, &counter, err));
    }
    banyan_disconnect(api_client);
    assert_int_equal(counter.done, N); // answered or cancelled, every one, before disconnect returned
    for (uint64_t i = 0; i < N; i++) {
        assert_true(questions[i].item.code == BANYAN_OK || questions[i].item.code == BANYAN_CANCELLED);
        question_free(&questions[i]);
    }
    banyan_session_close(session);
    assert_int_equal(api_connect(NULL), 0);
    OK(banyan_session_open(api_client, id, NULL, &again, err)); // the session lives on
    api_check(again, m, 0, 63, 1, false);
    sem_destroy(&counter.all);
    mirror_free(m);
    api_drop(again);
}
