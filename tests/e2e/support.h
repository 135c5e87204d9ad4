// SPDX-License-Identifier: Apache-2.0
// What the end-to-end tests share: calls that must succeed or fail in a certain way, one step on one session,
// and a session filled from a context.
#ifndef TESTS_E2E_SUPPORT_H
#define TESTS_E2E_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "tests/e2e/context.h"
#include "tests/harness/cluster.h"

extern _Thread_local banyan_error support_error; // of the last call; ERR is its address
#define ERR (&support_error)

void support_expect(banyan_code got, banyan_code want, const char *reason, const char *call, const char *file,
                    int line);
#define OK(call)                  support_expect((call), BANYAN_OK, NULL, #call, __FILE__, __LINE__)
#define FAILS(want, reason, call) support_expect((call), want, reason, #call, __FILE__, __LINE__)

// One item, answered: buffers are made here. Free with step_free.
struct step {
    banyan_session *session;
    uint32_t layer, rows;
    uint64_t first, visible, block_first, block_count;
    const float *q; // NULL: made from seed, and freed with the step
    uint64_t seed;
    const void *k, *v; // NULL: nothing is appended
    const float *k_scale, *v_scale;
    uint64_t timeout_ns;     // 0: the client's
    banyan_partial *partial; // NULL: exact, or an error
    float *made_q, *o, *lse; // results
    uint64_t digest, length;
};

// Rows that go along: those of the step's layer and positions.
void step_append(struct step *step, const struct context *context);
// The item as the API takes it, its buffers ready. item->error is ERR.
banyan_item step_item(struct step *step);
// Runs it alone. The code is the call's, or else the item's. What it says is in ERR.
banyan_code step_run(banyan_client *client, struct step *step);
void step_free(struct step *step);
size_t step_floats(const struct step *step); // of o
bool step_same_bits(const struct step *a, const struct step *b);

// A step at the end of what is committed, judged by the reference, then forgotten.
void support_check_step(banyan_client *client, banyan_session *session, const struct context *context,
                        uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible, struct worst *worst,
                        const char *what);

// Attaches and commits rows [first, first + count) of all layers.
void support_fill(banyan_session *session, const struct context *context, uint64_t first, uint64_t count);
// Deletes the session, frees it and what it should hold.
void support_drop(banyan_session *session, struct context *context);

// Until all its full chunks, which are so many, are sealed: what comes later is compared with what they are
// now.
void support_wait_sealed(banyan_client *client, const banyan_session *session, uint64_t chunks);

// With heartbeats that are slower than the daemons' own, where options do not set them: no test may fail for
// want of speed.
struct harness_cluster *support_start(const struct harness_options *options);
void support_stop(struct harness_cluster *cluster); // fails the test when there were problems
// Its calls have SUPPORT_LONG_NS where they give no timeout.
banyan_client *support_connect(const struct harness_cluster *cluster, const char *transport);

// A worker counts as lost after three missed beats. Sanitizers and a busy machine make beats late.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SUPPORT_BEAT "6s"
#else
#define SUPPORT_BEAT "2s"
#endif

// A limit that only ends what hangs: a busy machine takes ten times as long as a quiet one, a daemon with a
// sanitizer ten times as long as one without. What must fail sooner gives a timeout of its own.
#define SUPPORT_LONG_NS (UINT64_C(300) * 1000000000u)

// Ask again until the condition holds, for what becomes true by itself soon: within `seconds` on a quiet
// machine, and five times as long is allowed.
#define EVENTUALLY(seconds, condition)                                                                       \
    do {                                                                                                     \
        uint64_t until_ = support_now_ns() + (uint64_t)(seconds)*5000000000u;                                \
        while (!(condition)) {                                                                               \
            if (support_now_ns() > until_)                                                                   \
                fail_msg("%s:%d: not true after %d s: %s", __FILE__, __LINE__, (int)(seconds)*5,             \
                         #condition);                                                                        \
            support_sleep_ms(5);                                                                             \
        }                                                                                                    \
    } while (0)
uint64_t support_now_ns(void);
void support_sleep_ms(unsigned ms);

void support_remove_folder(const char *path); // with all in it; none is allowed

uint64_t support_resident_bytes(int pid);                  // what a process occupies
uint64_t support_used_bytes(banyan_client *client);        // of K and V, all workers
bool support_alive(const struct harness_cluster *cluster); // every daemon

#endif
