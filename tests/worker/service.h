// SPDX-License-Identifier: Apache-2.0
// What the tests of a worker's service start from: one worker with a state that bad calls must leave as it
// was.
#ifndef TESTS_WORKER_SERVICE_H
#define TESTS_WORKER_SERVICE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/worker/fixture.h"

enum { OTHER = 0x777 };

static const struct chunk_place chunks[2] = {{100, 0}, {101, TOKENS}};

struct setup {
    struct cluster c;
    char *before;
};

// One worker: two chunks of SESSION, 40 rows of both layers committed, rows 40..43 put; OTHER without chunks;
// the plan.
static inline void begin(struct setup *s)
{
    cluster_start(&s->c, &(struct cluster_options){.memory_bytes = 1 << 20});
    cluster_layout_ok(&s->c, 0, SESSION, chunks, 2);
    cluster_layout_ok(&s->c, 0, OTHER, NULL, 0);
    cluster_plan(&s->c, false);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        cluster_attach(&s->c, 0, SESSION, layer, 0, 40);
    assert_int_equal(cluster_put(&s->c, 0, SESSION, 0, 40, 4, 0), COMMON_OK);
    s->before = cluster_state(&s->c, 0);
}

static inline void unchanged(struct setup *s)
{
    char *after = cluster_state(&s->c, 0);
    assert_string_equal(s->before, after);
    free(after);
}

static inline void end(struct setup *s)
{
    unchanged(s);
    // It still serves.
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
    assert_int_equal(cluster_step(&s->c, 0, step, &out), COMMON_OK);
    assert_exact(step, &out, 0);
    outcome_free(&out);
    proto_step_free(step);
    free(s->before);
    cluster_stop(&s->c);
}

// Calls, expects this code and reason (NULL: any), and the worker's state as it was. Fails at the caller's
// line.
#define expect(s, method, body, want, reason) expect_at(s, method, body, want, reason, __FILE__, __LINE__)

static inline void expect_at(struct setup *s, uint32_t method, const ProtobufCMessage *body,
                             enum common_code want, const char *reason, const char *file, int line)
{
    struct answer answer;
    _assert_int_equal(cluster_call(&s->c, s->c.edges[0], method, body, NULL, 0, &answer), want, file, line);
    if (reason)
        _assert_string_equal(answer.reason, reason, file, line);
    answer_free(&answer);
    unchanged(s);
}

#endif
