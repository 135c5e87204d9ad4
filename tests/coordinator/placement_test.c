// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "coordinator/session/placement.h"

#define CHUNK 256
#define BYTES 1000

static uint32_t choose(struct coordinator_candidate *c, uint32_t n, uint32_t width)
{
    return coordinator_placement_choose(c, n, width, CHUNK, BYTES);
}

static void nobody(void **state)
{
    (void)state;
    struct coordinator_candidate c[2] = {{.free_bytes = BYTES - 1, .bandwidth = 1, .member = true},
                                         {.free_bytes = 0, .bandwidth = 1}};
    assert_int_equal(choose(c, 0, 1), UINT32_MAX);
    assert_int_equal(choose(c, 2, 1), UINT32_MAX);
    assert_int_equal(choose(c, 2, 2), UINT32_MAX);
}

static void first_chunk_goes_where_it_is_done_first(void **state)
{
    (void)state;
    struct coordinator_candidate c[3] = {{.free_bytes = 1 << 20, .bandwidth = 10, .load_bytes = 0},
                                         {.free_bytes = 1 << 20, .bandwidth = 30, .load_bytes = 0},
                                         {.free_bytes = 1 << 20, .bandwidth = 30, .load_bytes = 0}};
    assert_int_equal(choose(c, 3, 1), 1); // fastest, then the lower index
    c[1].load_bytes = 5000;
    assert_int_equal(choose(c, 3, 1), 2); // sessions spread: the fastest one is busier
    c[2].load_bytes = 50000;
    c[1].load_bytes = 50000;
    assert_int_equal(choose(c, 3, 1), 0);
}

static void members_until_wide_enough(void **state)
{
    (void)state;
    struct coordinator_candidate c[3] = {{.free_bytes = 1 << 20, .bandwidth = 10, .member = true},
                                         {.free_bytes = 1 << 20, .bandwidth = 10},
                                         {.free_bytes = 1 << 20, .bandwidth = 20}};
    assert_int_equal(choose(c, 3, 1), 0); // wide enough: a member
    assert_int_equal(choose(c, 3, 2), 2); // not yet: the best of the others
    c[0].free_bytes = 0;
    assert_int_equal(choose(c, 3, 1), 2); // no member has memory: another worker joins
    c[1].free_bytes = c[2].free_bytes = 0;
    c[0].free_bytes = BYTES;
    assert_int_equal(choose(c, 3, 3), 0); // no worker can join: a member takes more
}

// What chunks that are there will take counts as taken while another worker has more; then it is given out
// again.
static void open_memory_goes_last(void **state)
{
    (void)state;
    struct coordinator_candidate c[3] = {
        {.free_bytes = 3 * BYTES, .open_bytes = 2 * BYTES + 1, .bandwidth = 90, .member = true},
        {.free_bytes = 2 * BYTES, .open_bytes = BYTES, .bandwidth = 10, .host = 1},
        {.free_bytes = BYTES, .bandwidth = 90, .host = 2, .apart = true}};
    const uint32_t has[1] = {2};
    assert_int_equal(choose(c, 3, 1), 1); // another worker joins rather
    c[0].open_bytes = 2 * BYTES;
    assert_int_equal(choose(c, 3, 1), 0);
    assert_int_equal(coordinator_placement_follow(c, 3, has, 1, CHUNK, BYTES), 0);
    c[0].open_bytes++;
    assert_int_equal(coordinator_placement_follow(c, 3, has, 1, CHUNK, BYTES), 1);
    c[1].open_bytes++; // no worker has more
    assert_int_equal(choose(c, 3, 1), 0);
    assert_int_equal(choose(c, 3, 2), 1);
    assert_int_equal(coordinator_placement_follow(c, 3, has, 1, CHUNK, BYTES), 0);
    c[0].free_bytes = c[1].free_bytes = BYTES - 1;
    assert_int_equal(choose(c, 3, 1), 2);
    // A member that gets no chunk needs none.
    c[0].free_bytes = c[1].free_bytes = 0;
    assert_int_equal(coordinator_placement_choose(c, 3, 2, CHUNK, 0), 1);
}

// Members finish together: over many chunks the tokens are as the speeds, within a chunk.
static void shares_follow_speed(void **state)
{
    (void)state;
    struct coordinator_candidate c[3] = {{.bandwidth = 10, .member = true},
                                         {.bandwidth = 20, .member = true},
                                         {.bandwidth = 50, .member = true}};
    for (int i = 0; i < 3; i++)
        c[i].free_bytes = UINT64_MAX;
    for (int i = 0; i < 800; i++)
        c[choose(c, 3, 3)].tokens += CHUNK;
    for (int i = 0; i < 3; i++) {
        double want = 800.0 * CHUNK * (double)c[i].bandwidth / 80.0;
        assert_true((double)c[i].tokens > want - 2 * CHUNK && (double)c[i].tokens < want + 2 * CHUNK);
    }
}

static uint32_t follow(struct coordinator_candidate *c, uint32_t n, const uint32_t *has, uint32_t n_has)
{
    return coordinator_placement_follow(c, n, has, n_has, CHUNK, BYTES);
}

static void copies_are_on_hosts_of_their_own(void **state)
{
    (void)state;
    struct coordinator_candidate c[4] = {
        {.free_bytes = 1 << 20, .bandwidth = 9, .host = 0, .member = true},
        {.free_bytes = 1 << 20, .bandwidth = 90, .host = 0, .member = true},
        {.free_bytes = 1 << 20, .bandwidth = 1, .host = 2},
        {.free_bytes = 1 << 20, .bandwidth = 2, .host = 2},
    };
    const uint32_t has[] = {0, 3, 1, 2};
    assert_int_equal(follow(c, 4, has, 1), 3); // another host, though a faster member is on the same
    assert_int_equal(follow(c, 4, has, 2), 1); // no host is left: a member goes first
    assert_int_equal(follow(c, 2, has, 1), 1); // there is no other host
    assert_int_equal(follow(c, 4, has, 4), UINT32_MAX);
    c[2].free_bytes = c[3].free_bytes = BYTES - 1;
    assert_int_equal(follow(c, 4, has, 1), UINT32_MAX); // rather one copy less than two on a host
    c[2].free_bytes = BYTES;
    assert_int_equal(follow(c, 4, has, 1), 2);
}

// Who does not reach a member, or is not reached by one, joins only for want of memory, and never to have one
// copy more.
static void who_is_apart_joins_last(void **state)
{
    (void)state;
    struct coordinator_candidate c[3] = {{.free_bytes = 1 << 20, .bandwidth = 10, .member = true},
                                         {.free_bytes = 1 << 20, .bandwidth = 90, .host = 1, .apart = true},
                                         {.free_bytes = 1 << 20, .bandwidth = 20, .host = 2}};
    const uint32_t has[1] = {0};
    assert_int_equal(choose(c, 3, 3), 2);
    assert_int_equal(follow(c, 3, has, 1), 2);
    c[2].free_bytes = 0;
    assert_int_equal(choose(c, 3, 3), 0); // rather fewer members
    assert_int_equal(follow(c, 3, has, 1), UINT32_MAX);
    c[0].free_bytes = 0;
    assert_int_equal(choose(c, 3, 3), 1);
}

// Who follows is who would be done first if it had to serve all that it has.
static void copies_follow_speed(void **state)
{
    (void)state;
    struct coordinator_candidate c[3] = {
        {.free_bytes = 1 << 20, .bandwidth = 10, .host = 0, .member = true, .tokens = CHUNK},
        {.free_bytes = 1 << 20, .bandwidth = 10, .host = 1, .member = true, .follows = 2 * CHUNK},
        {.free_bytes = 1 << 20, .bandwidth = 20, .host = 2, .member = true, .tokens = 3 * CHUNK},
    };
    const uint32_t has[] = {0};
    assert_int_equal(follow(c, 3, has, 1), 2); // 4 chunks at 20, not 3 at 10
    c[2].follows = 3 * CHUNK;
    assert_int_equal(follow(c, 3, has, 1), 1);
    c[2].member = false;
    c[2].tokens = c[2].follows = 0;
    assert_int_equal(follow(c, 3, has, 1), 1); // a member goes first, whatever it has
    c[1].member = false;
    c[1].load_bytes = 5 * BYTES;
    assert_int_equal(follow(c, 3, has, 1), 2);
}

// Eight chunks that two workers have, all served by the first.
static uint32_t spread(struct coordinator_spread_chunk *chunks, uint32_t n, const uint64_t *speeds,
                       uint32_t *first)
{
    uint64_t load[4];
    bool better = coordinator_placement_spread(chunks, n, speeds, load, 4);
    *first = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(chunks[i].serves < chunks[i].n);
        *first += chunks[i].holder[chunks[i].serves] == 0;
    }
    return better;
}

static void serving_follows_speed(void **state)
{
    (void)state;
    struct coordinator_spread_chunk chunks[8];
    uint32_t first;
    for (uint32_t i = 0; i < 8; i++)
        chunks[i] = (struct coordinator_spread_chunk){.n = 2, .holder = {0, 1}};
    assert_true(spread(chunks, 8, (uint64_t[]){10, 10, 10, 10}, &first));
    assert_int_equal(first, 4);
    assert_true(spread(chunks, 8, (uint64_t[]){10, 30, 10, 10}, &first));
    assert_int_equal(first, 2);
    assert_true(spread(chunks, 8, (uint64_t[]){1, 64, 10, 10}, &first));
    assert_int_equal(first, 0);
    for (uint32_t i = 0; i < 4; i++)
        chunks[i].holder[0] = 1, chunks[i].holder[1] = 0;
    assert_false(spread(chunks, 8, (uint64_t[]){10, 11, 10, 10}, &first)); // as it is, or nearly
    assert_int_equal(first, 4);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(chunks[i].serves, 0);
    assert_false(spread(chunks, 0, (uint64_t[]){10, 10, 10, 10}, &first));
}

// Those that one worker alone has count before the others are given away.
static void what_cannot_be_spread_counts(void **state)
{
    (void)state;
    struct coordinator_spread_chunk chunks[8];
    uint32_t first;
    for (uint32_t i = 0; i < 8; i++)
        chunks[i] = (struct coordinator_spread_chunk){.n = i < 4 ? 2 : 1, .holder = {0, 1}};
    assert_true(spread(chunks, 8, (uint64_t[]){10, 10, 10, 10}, &first));
    assert_int_equal(first, 4); // the four that it alone has
    for (uint32_t i = 0; i < 8; i++)
        chunks[i] = (struct coordinator_spread_chunk){.n = 1, .holder = {0}};
    assert_false(spread(chunks, 8, (uint64_t[]){1, 100, 10, 10}, &first));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_apart_joins_last),
        cmocka_unit_test(nobody),
        cmocka_unit_test(first_chunk_goes_where_it_is_done_first),
        cmocka_unit_test(members_until_wide_enough),
        cmocka_unit_test(open_memory_goes_last),
        cmocka_unit_test(shares_follow_speed),
        cmocka_unit_test(copies_are_on_hosts_of_their_own),
        cmocka_unit_test(copies_follow_speed),
        cmocka_unit_test(serving_follows_speed),
        cmocka_unit_test(what_cannot_be_spread_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
