// SPDX-License-Identifier: Apache-2.0
// Layouts of very many chunks, in whatever order and in however many messages they come: what takes a time
// that grows with the square of them would not end here.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>

#include "common/hash/hash.h"
#include "worker/memory/memory.h"
#include "worker/session/session.h"

enum { SESSION = 7, TOKENS = 16, MANY = 1 << 18 };

struct setup {
    struct worker_store *store;
    struct worker_map sessions;
    struct common_error err;
    Banyan__Pb__LayoutChunk *chunks, **pointers; // [MANY]
};

static void set_up(struct setup *s)
{
    const uint64_t memory = UINT64_C(4) << 30; // address space: chunks without rows
    *s = (struct setup){.store = worker_store_new(memory, worker_memory_host(memory, NULL))};
    s->chunks = malloc(MANY * sizeof *s->chunks);
    s->pointers = malloc(MANY * sizeof *s->pointers);
    assert_true(s->store && s->chunks && s->pointers);
    for (uint32_t i = 0; i < MANY; i++) {
        s->chunks[i] = (Banyan__Pb__LayoutChunk)BANYAN__PB__LAYOUT_CHUNK__INIT;
        s->chunks[i].chunk = 100 + i;
        s->chunks[i].first = (uint64_t)i * TOKENS;
        s->chunks[i].compute = true;
        s->pointers[i] = &s->chunks[i];
    }
}

static void tear_down(struct setup *s)
{
    worker_session_drop(&s->sessions, s->store, SESSION);
    assert_int_equal(worker_store_chunks(s->store), 0);
    worker_map_free(&s->sessions);
    worker_store_free(s->store);
    free(s->chunks);
    free(s->pointers);
}

static enum common_code layout(struct setup *s, uint64_t epoch, uint32_t from, uint32_t n, uint32_t page,
                               bool more)
{
    Banyan__Pb__LayoutSetRequest m = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    spec.layers = spec.q_heads = spec.kv_heads = 1;
    spec.k_dim = spec.v_dim = 4;
    spec.scale = 0.5f;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = TOKENS;
    m.term = 1;
    m.session = SESSION;
    m.incarnation = 1;
    m.epoch = epoch;
    m.spec = &spec;
    m.replace = true;
    m.chunks = s->pointers + from;
    m.n_chunks = n;
    m.page = page;
    m.more = more;
    return worker_session_layout(&s->sessions, s->store, &m, &s->err);
}

static void is_whole(struct setup *s, uint32_t n)
{
    const struct worker_session *session = worker_map_get(&s->sessions, SESSION);
    assert_int_equal(session->n_chunks, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(worker_chunk_id(session->chunks[i].chunk), 100 + i);
}

static void in_any_order(void **state)
{
    (void)state;
    struct setup s;
    set_up(&s);
    for (int way = 0; way < 3; way++) {
        for (uint32_t i = 0; i < MANY; i++) // forwards, backwards, and mixed up
            s.pointers[i] = &s.chunks[way == 1 ? MANY - 1 - i : i];
        for (uint32_t i = MANY - 1; way == 2 && i > 0; i--) {
            uint32_t other = (uint32_t)(common_mix64(i) % (i + 1));
            Banyan__Pb__LayoutChunk *chunk = s.pointers[i];
            s.pointers[i] = s.pointers[other];
            s.pointers[other] = chunk;
        }
        if (layout(&s, 1 + (uint64_t)way, 0, MANY, 0, false) != COMMON_OK)
            fail_msg("%s", s.err.message);
        is_whole(&s, MANY);
    }
    tear_down(&s);
}

// Each message brings a few: to sort, and to copy, all that came before with each would be to do so thousands
// of times.
static void in_many_messages(void **state)
{
    enum { EACH = 8 };
    (void)state;
    struct setup s;
    set_up(&s);
    for (uint32_t at = 0; at < MANY; at += EACH) {
        if (layout(&s, 1, at, EACH, at + 1, at + EACH < MANY) != COMMON_OK)
            fail_msg("page %u: %s", at + 1, s.err.message);
        const struct worker_session *session = worker_map_get(&s.sessions, SESSION);
        assert_int_equal(session->n_chunks, at + EACH < MANY ? 0 : MANY);
    }
    is_whole(&s, MANY);
    // One that is broken off leaves what is there; it begins again from its first message.
    assert_int_equal(layout(&s, 2, 0, EACH, 1, true), COMMON_OK);
    assert_int_equal(layout(&s, 2, 3 * EACH, EACH, 3 * EACH + 1, true), COMMON_ABORTED);
    is_whole(&s, MANY);
    assert_int_equal(layout(&s, 2, 0, EACH, 1, true), COMMON_OK);
    assert_int_equal(layout(&s, 2, EACH, EACH, EACH + 1, false), COMMON_OK);
    is_whole(&s, 2 * EACH);
    tear_down(&s);
}

// Of one that comes twice the last word counts, whichever message has it; one id at two positions is refused.
static void what_comes_twice(void **state)
{
    (void)state;
    for (uint32_t messages = 1; messages <= 2; messages++) {
        struct setup s;
        set_up(&s);
        Banyan__Pb__LayoutChunk again = s.chunks[3], wrong = s.chunks[1];
        again.compute = false;
        s.pointers[10] = &again;
        if (messages == 2)
            assert_int_equal(layout(&s, 1, 0, 10, 1, true), COMMON_OK);
        assert_int_equal(layout(&s, 1, messages == 2 ? 10 : 0, messages == 2 ? 1 : 11, messages == 2 ? 11 : 0,
                                false),
                         COMMON_OK);
        is_whole(&s, 10);
        const struct worker_session *session = worker_map_get(&s.sessions, SESSION);
        assert_false(session->chunks[3].compute);
        assert_true(session->chunks[2].compute);
        wrong.first = 20 * TOKENS;
        s.pointers[10] = &wrong;
        assert_int_equal(layout(&s, 2, 0, 11, 0, false), COMMON_INVALID_ARGUMENT);
        is_whole(&s, 10);
        tear_down(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_any_order),
        cmocka_unit_test(in_many_messages),
        cmocka_unit_test(what_comes_twice),
    };
    return cmocka_run_group_tests_name("sessions of a worker", tests, NULL, NULL);
}
