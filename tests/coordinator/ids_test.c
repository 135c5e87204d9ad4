// SPDX-License-Identifier: Apache-2.0
// Ids of sessions: the permutation, and that sessions are found, listed and kept by them.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "common/hash/hash.h"
#include "coordinator/session/ids.h"
#include "coordinator/session/sessions.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/store/store.h"
#include "tests/sim/sim_cluster.h"
#include "tests/sim/sim_store.h"

static const struct coordinator_ids paper = {
    .keyed = true,
    .key = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)},
};

static bool zero_next; // the next place comes out as 0

uint64_t __real_coordinator_ids_of(const struct coordinator_ids *ids, struct coordinator_place place);
uint64_t __wrap_coordinator_ids_of(const struct coordinator_ids *ids, struct coordinator_place place);

uint64_t __wrap_coordinator_ids_of(const struct coordinator_ids *ids, struct coordinator_place place)
{
    uint64_t id = zero_next ? 0 : __real_coordinator_ids_of(ids, place);
    zero_next = false;
    return id;
}

// Stores have ids that were made like this: another implementation has computed them.
static void known_ids(void **state)
{
    (void)state;
    static const struct {
        struct coordinator_place place;
        uint64_t id;
    } known[] = {
        {{1, 1}, UINT64_C(0xd00f3f8cec1c6482)},
        {{1, 2}, UINT64_C(0xd88b8c15a5fa5ba0)},
        {{2, 1}, UINT64_C(0x640ddd1145442fe4)},
        {{0, 0}, UINT64_C(0x4b67af5dc844c3cf)},
        {{UINT32_MAX, UINT32_MAX}, UINT64_C(0x168ed12b0eae2b4b)},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(coordinator_ids_of(&paper, known[i].place) == known[i].id);
    const struct coordinator_ids plain = {0};
    assert_true(coordinator_ids_of(&plain, (struct coordinator_place){7, 9}) == UINT64_C(0x700000009));
}

static bool is_same(struct coordinator_place a, struct coordinator_place b)
{
    return a.generation == b.generation && a.number == b.number;
}

// A map that has an inverse from both sides is a bijection.
static void there_and_back(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t x = i < 4 ? i - 2 : common_mix64(i);
        struct coordinator_ids ids = {.keyed = i % 8 != 0, .key = {common_mix64(~x), common_mix64(x + 1)}};
        struct coordinator_place place = {(uint32_t)(x >> 32), (uint32_t)x};
        assert_true(is_same(coordinator_ids_place(&ids, coordinator_ids_of(&ids, place)), place));
        assert_true(coordinator_ids_of(&ids, coordinator_ids_place(&ids, x)) == x);
    }
}

// The same key, but ids of chunks reveal nothing about those of sessions.
static void chunks_have_their_own(void **state)
{
    (void)state;
    const struct coordinator_ids plain = {0};
    uint64_t last = 0;
    for (uint64_t i = 1; i < 10000; i++) {
        uint64_t id = coordinator_ids_of_chunk(&paper, i);
        assert_true(id != last &&
                    id != coordinator_ids_of(&paper, (struct coordinator_place){0, (uint32_t)i}));
        assert_true(id >> 32 != last >> 32);
        last = id;
    }
    assert_true(coordinator_ids_of_chunk(&plain, UINT64_MAX - 1) == UINT64_MAX - 1);
}

// Of places that follow each other about half the bits change, whichever way they follow; and ids are in no
// order.
static void neighbours_have_nothing_in_common(void **state)
{
    (void)state;
    const uint32_t n = 10000;
    for (int way = 0; way < 2; way++) {
        uint32_t flips[64] = {0}, rises = 0;
        for (uint32_t i = 1; i <= n; i++) {
            struct coordinator_place place = {way ? i : 5, way ? 5 : i},
                                     after = {way ? i + 1 : 5, way ? 5 : i + 1};
            uint64_t a = coordinator_ids_of(&paper, place), b = coordinator_ids_of(&paper, after);
            assert_true(a >> 32 != b >> 32 && (uint32_t)a != (uint32_t)b);
            rises += b > a;
            for (int bit = 0; bit < 64; bit++)
                flips[bit] += (a ^ b) >> bit & 1;
        }
        assert_true(rises > n * 45 / 100 && rises < n * 55 / 100);
        for (int bit = 0; bit < 64; bit++)
            assert_true(flips[bit] > n * 45 / 100 && flips[bit] < n * 55 / 100);
    }
}

// ---- of a coordinator -----------------------------------------------------------------------------------

#define OK(made) assert_int_equal(sim_wait(made), COMMON_OK)

static struct sim_cluster *cluster_of(bool plain)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 1});
    if (plain)
        sim_disk_without_id_key(SIM_DISK_PATH);
    sim_cluster_start(cluster);
    return cluster;
}

static uint64_t session_of(struct sim_cluster *cluster)
{
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){0}, "");
    OK(call);
    OK(sim_append(cluster->client, call->session, 0, 0, 3, 1));
    return call->session;
}

static struct coordinator_place place_of(const struct sim_cluster *cluster, uint64_t id)
{
    return coordinator_ids_place(&cluster->coordinator->sessions.ids, id);
}

// The ids of a life are those of the next one, also of one whose store has no key; and its new sessions have
// none like them.
static void a_restart_keeps_ids(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct sim_cluster *cluster = cluster_of(plain);
        struct common_error err;
        uint64_t ids[8];
        for (int i = 0; i < 6; i++)
            ids[i] = session_of(cluster);
        sim_coordinator_kill(cluster);
        assert_int_equal(sim_coordinator_start(cluster, &err), COMMON_OK);
        assert_true(sim_wait_active(cluster, 1));
        assert_int_equal(cluster->coordinator->sessions.ids.keyed, !plain);
        for (int i = 6; i < 8; i++)
            ids[i] = session_of(cluster);
        for (uint32_t i = 0; i < 8; i++) {
            OK(sim_read(cluster->client, ids[i], 0, 2, 1));
            assert_int_equal(place_of(cluster, ids[i]).number, i + 1);
            assert_int_equal((uint32_t)ids[i] == i + 1, plain);
            for (uint32_t k = 0; k < i; k++)
                assert_true(ids[i] != ids[k]);
        }
        sim_cluster_free(cluster);
    }
}

static void zero_is_no_id(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(false);
    uint64_t first = session_of(cluster);
    zero_next = true;
    uint64_t second = session_of(cluster);
    assert_false(zero_next);
    assert_true(second != 0);
    assert_int_equal(place_of(cluster, second).generation, place_of(cluster, first).generation + 2);
    assert_int_equal(place_of(cluster, second).number,
                     place_of(cluster, first).number + 1); // no slot is lost
    OK(sim_delete(cluster->client, second));
    sim_cluster_free(cluster);
}

// A listing goes on behind a session that is gone; a guessed number finds out nothing.
static void lists_go_on(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct sim_cluster *cluster = cluster_of(plain);
        const struct coordinator_sessions *sessions = &cluster->coordinator->sessions;
        uint64_t first = session_of(cluster), second = session_of(cluster);
        assert_int_equal(coordinator_sessions_slot_after(sessions, 0), 0);
        assert_int_equal(coordinator_sessions_slot_after(sessions, first), 1);
        assert_int_equal(coordinator_sessions_slot_after(sessions, second), 2);
        OK(sim_delete(cluster->client, first));
        assert_int_equal(coordinator_sessions_slot_after(sessions, first), 1);
        struct coordinator_place far = place_of(cluster, second);
        far.generation += UINT32_C(1) << 25;
        uint64_t guessed = coordinator_ids_of(&sessions->ids, far);
        assert_true(coordinator_sessions_slot_after(sessions, guessed) == (plain ? far.number : UINT32_MAX));
        sim_cluster_free(cluster);
    }
}

// What a worker has of another store, or of this one's future, is not a new session's; another store's does
// not show how far this one has come.
static void numbers_of_others(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(false);
    struct coordinator_sessions *sessions = &cluster->coordinator->sessions;
    uint64_t mine = session_of(cluster), foreign = coordinator_ids_of(&paper, place_of(cluster, mine));
    uint64_t upcoming = coordinator_store_upcoming(sessions->store, COORDINATOR_COUNTER_GENERATION);
    coordinator_sessions_never_again(sessions, foreign);
    assert_true(coordinator_store_upcoming(sessions->store, COORDINATOR_COUNTER_GENERATION) == upcoming);
    struct coordinator_place ahead = {(uint32_t)upcoming + 3, 2};
    coordinator_sessions_never_again(sessions, coordinator_ids_of(&sessions->ids, ahead));
    assert_true(coordinator_store_upcoming(sessions->store, COORDINATOR_COUNTER_GENERATION) == upcoming + 4);
    assert_int_equal(place_of(cluster, session_of(cluster)).generation, ahead.generation + 1);
    sim_cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_ids),
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(chunks_have_their_own),
        cmocka_unit_test(neighbours_have_nothing_in_common),
        cmocka_unit_test(a_restart_keeps_ids),
        cmocka_unit_test(zero_is_no_id),
        cmocka_unit_test(lists_go_on),
        cmocka_unit_test(numbers_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
