// SPDX-License-Identifier: Apache-2.0
// What the tests of the public API share: one cluster, a client of a test's own, and questions to sessions
// that hold what a mirror does.
#ifndef TESTS_CLIENT_API_H
#define TESTS_CLIENT_API_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "tests/client/mirror.h"
#include "tests/harness/cluster.h"

extern struct harness_cluster *api_cluster; // three workers
extern const char *api_transport;
extern banyan_client *api_client;  // of the test that runs
extern const banyan_spec api_spec; // a small one

// The call succeeds; `err` in it is a banyan_error *.
#define OK(call)                                                                                             \
    do {                                                                                                     \
        banyan_error error_ = {0};                                                                           \
        banyan_error *err = &error_;                                                                         \
        if ((call) != BANYAN_OK)                                                                             \
            fail_msg("%s: %s %s (%s)", #call, banyan_code_name(error_.code), error_.message,                 \
                     banyan_reason_name(error_.reason));                                                     \
    } while (0)

int api_connect(void **state); // a test's set-up: makes api_client
int api_disconnect(void **state);

banyan_session *api_session(const banyan_spec *spec);
void api_drop(banyan_session *session);
// Attaches and commits positions [first, first + count) of all layers.
void api_attach(banyan_session *session, const struct mirror *m, uint64_t first, uint64_t count);

struct question {
    banyan_item item;
    banyan_error error;
    float *o, *lse;
};

void question_make(struct question *q, banyan_session *session, const struct mirror *m, uint32_t layer,
                   uint64_t first, uint32_t rows, bool append);
void question_free(struct question *q);

// Asks, and judges the answer by the mirror.
void api_check(banyan_session *session, const struct mirror *m, uint32_t layer, uint64_t first, uint32_t rows,
               bool append);
// Asks; the item's code, what it says in *error.
banyan_code api_ask(banyan_session *session, const struct mirror *m, uint32_t layer, uint64_t first,
                    uint32_t rows, bool append, banyan_error *error);

// ---- tests, which api_test.c runs ----

// api_attention.c
void test_attach_any_order_in_parallel(void **state);
void test_commit_names_what_is_missing(void **state);
void test_commit_compares_bytes(void **state);
void test_decode_token_by_token(void **state);
void test_positions_beyond(void **state);
void test_kinds_of_attention(void **state);
void test_quantised(void **state);
void test_scales_where_they_belong(void **state);
void test_prefill_block_in_slabs(void **state);
void test_full_memory(void **state);

// api_flight.c
void test_batch_over_sessions(void **state);
void test_ten_thousand_in_flight(void **state);
void test_queue(void **state);
void test_disconnect_in_flight(void **state);

#endif
