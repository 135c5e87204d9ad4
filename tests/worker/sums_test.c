// SPDX-License-Identifier: Apache-2.0
// In which order a worker sums chunks up, and how fast. (What it answers, and what becomes of that:
// tests/coordinator/hermetic/seals_test.c.)
#include "tests/worker/service.h"

enum { SLOW = 1 }; // bytes a second: a chunk takes two hours

static const struct chunk_place both[2] = {{100, 0}, {101, TOKENS}};

static void begin_full(struct cluster *c)
{
    cluster_start(c, &(struct cluster_options){.memory_bytes = 1 << 20});
    cluster_layout_ok(c, 0, SESSION, both, 2);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        cluster_attach(c, 0, SESSION, layer, 0, 2 * TOKENS);
}

static void ask(struct cluster *c, uint32_t chunk, uint64_t bytes_per_s, struct answer *answer)
{
    Banyan__Pb__ChunkSumRequest m = BANYAN__PB__CHUNK_SUM_REQUEST__INIT;
    m.term = TERM;
    m.session = SESSION;
    m.incarnation = INCARNATION;
    m.chunk = both[chunk].chunk;
    m.first = both[chunk].first;
    m.bytes_per_s = bytes_per_s;
    *answer = (struct answer){0};
    cluster_call_begin(c, c->edges[0], BANYAN__PB__METHOD__METHOD_CHUNK_SUM, &m.base, answer);
}

static uint64_t answered(struct cluster *c, struct answer *answer)
{
    if (!cluster_wait(c, &answer->done))
        fail_msg("the sum does not come");
    if (answer->code != COMMON_OK)
        fail_msg("%s", answer->text);
    uint64_t seal = ((const Banyan__Pb__ChunkSumReply *)answer->body)->seal;
    answer_free(answer);
    return seal;
}

// A caller has the session alone while its sum is made: it waits neither for others nor at their rate, and
// they do not become faster by it.
static void what_is_in_haste_goes_first(void **state)
{
    (void)state;
    struct cluster c;
    struct answer slow[3], hasty;
    uint64_t seals[2];
    begin_full(&c);
    for (uint32_t i = 0; i < 3; i++)
        ask(&c, i % 2, SLOW, &slow[i]);
    for (uint32_t i = 0; i < 4; i++) {
        ask(&c, i % 2, 0, &hasty);
        uint64_t seal = answered(&c, &hasty);
        assert_true(seal == (i < 2 ? seals[i] = seal : seals[i % 2]));
    }
    assert_true(seals[0] != seals[1]);
    for (uint32_t i = 0; i < 3; i++)
        assert_false(slow[i].done);
    cluster_stop(&c);
}

// What had begun goes on where it was.
static void what_waited_goes_on(void **state)
{
    (void)state;
    struct cluster c;
    struct answer paced[2], hasty[2];
    begin_full(&c);
    for (uint32_t i = 0; i < 2; i++)
        ask(&c, i, 1 << 16, &paced[i]);
    for (uint32_t i = 0; i < 2; i++)
        ask(&c, 1 - i, 0, &hasty[i]);
    uint64_t second = answered(&c, &hasty[0]), first = answered(&c, &hasty[1]);
    assert_true(answered(&c, &paced[0]) == first && answered(&c, &paced[1]) == second);
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_in_haste_goes_first),
        cmocka_unit_test(what_waited_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
