// SPDX-License-Identifier: Apache-2.0
// What the end-to-end tests of engines share: a session and what it should hold, steps without a pause, and
// what is asked of a session's plan.
#ifndef TESTS_E2E_ENGINES_H
#define TESTS_E2E_ENGINES_H

#include <stdatomic.h>

#include "tests/e2e/support.h"

struct held { // a session and what it should hold; support_drop it
    banyan_session *session;
    struct context context;
};

// On so many members, two layers of 8 query and 2 KV heads of 64, chunks of 32 tokens, bfloat16; room for 64
// more.
void held_make(banyan_client *client, struct held *h, uint32_t members, uint64_t tokens);
// A step of the first layer; judged by the reference when it succeeds.
banyan_code held_step(banyan_client *client, const struct held *h, uint64_t first, uint32_t rows,
                      uint64_t timeout_ns);
// Steps of one row, of many (cut into slabs), and 8 tokens that are appended, layer by layer.
void held_exercise(banyan_client *client, struct held *h, uint64_t tokens);
// The same step so many times: the bits and the digest of `kept`.
void held_same_bits(banyan_client *client, const struct held *h, const struct step *kept, int times);

bool engine_is(banyan_session *session, const char *engine);
bool has_member(banyan_session *session, const char *name);
// The first worker that is none of the session's.
uint32_t no_member(struct harness_cluster *cluster, banyan_session *session);

struct stepper { // steps of row 199 without a pause, from a thread
    banyan_client *client;
    struct held *held;
    _Atomic bool stop;
    _Atomic unsigned done;
    _Atomic banyan_code failed;
    char text[512]; // written before failed is
};
void *stepper_run(void *stepper);                     // a thread's function
void stepper_await(struct stepper *s, unsigned more); // fails the test when a step does

// Fails the test when a worker uses more than a tenth of a processor in a second without requests.
void workers_are_idle(const struct harness_cluster *cluster, uint32_t workers);

// banyan-worker with these arguments, ending with NULL: it ends by itself, with that code and these words on
// stderr.
void worker_refuses(const char *const *arguments, int code, const char *says);

#endif
