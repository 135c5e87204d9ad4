// SPDX-License-Identifier: Apache-2.0
// Tickets to read rows: for what is committed, naming holders that are there; and forks that go by
// themselves.
#include "tests/coordinator/hermetic/hermetic.h"

// What the coordinator answers for rows [first, first + count).
#define OPENS(cluster, session, first, count) OK(sim_read_open((cluster)->client, session, first, count))

static void rows_are(struct sim_cluster *cluster, uint64_t session, uint64_t first, uint32_t count,
                     uint32_t copy)
{
    struct sim_call *opened = sim_read_open(cluster->client, session, first, count);
    OK(opened);
    struct sim_call *rows = sim_read_rows(cluster->client, opened, 0, first, count, copy);
    OK(rows);
    for (uint32_t i = 0; i < count; i++)
        assert_float_equal(rows->rows[i], 1, 0);
}

static void committed_rows_are_read_from_any_holder(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(3);
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.replicas = 2}, "");
    OK(call);
    uint64_t session = call->session;
    for (uint32_t at = 0; at < 50; at += 10)
        OK(sim_append(cluster->client, session, 0, at, 10, 1));
    for (uint32_t copy = 0; copy < 2; copy++) {
        rows_are(cluster, session, 0, 50, copy);
        rows_are(cluster, session, 15, 2, copy);
        rows_are(cluster, session, 49, 1, copy);
    }
    sim_cluster_free(cluster);
}

static void only_what_all_layers_have(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.layers = 2}, "");
    OK(call);
    uint64_t session = call->session;
    OK(sim_append(cluster->client, session, 0, 0, 16, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read_open(cluster->client, session, 0, 1)); // layer 1 has none
    OK(sim_append(cluster->client, session, 1, 0, 12, 1));
    OPENS(cluster, session, 0, 12);
    OPENS(cluster, session, 11, 1);
    ENDS(COMMON_OUT_OF_RANGE, sim_read_open(cluster->client, session, 0, 13));
    ENDS(COMMON_OUT_OF_RANGE, sim_read_open(cluster->client, session, 12, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read_open(cluster->client, session, UINT64_MAX, 2));
    ENDS(COMMON_OUT_OF_RANGE, sim_read_open(cluster->client, session, 1, UINT64_MAX));
    ENDS(COMMON_INVALID_ARGUMENT, sim_read_open(cluster->client, session, 0, 0));
    ENDS(COMMON_NOT_FOUND, sim_read_open(cluster->client, session + 1, 0, 1));
    // Rows that are put, and not committed, cannot be read.
    struct sim_call *opened = sim_open(cluster->client, session, 16, 16);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 16, 16, 1));
    ENDS(COMMON_OUT_OF_RANGE, sim_read_open(cluster->client, session, 16, 1));
    // And the ticket to put them reads nothing.
    ENDS(COMMON_PERMISSION_DENIED, sim_read_rows(cluster->client, opened, 0, 16, 1, 0));
    sim_cluster_free(cluster);
}

static void a_truncate_ends_a_ticket(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    uint64_t session = session_of(cluster, 32);
    struct sim_call *opened = sim_read_open(cluster->client, session, 0, 32);
    OK(opened);
    OK(sim_read_rows(cluster->client, opened, 0, 0, 32, 0));
    OK(sim_truncate(cluster->client, session, 20));
    ENDS(COMMON_ABORTED, sim_read_rows(cluster->client, opened, 0, 0, 16, 0));
    OK(sim_append(cluster->client, session, 0, 20, 12, 2)); // other rows
    ENDS(COMMON_ABORTED, sim_read_rows(cluster->client, opened, 0, 0, 32, 0));
    OPENS(cluster, session, 0, 32);
    sim_cluster_free(cluster);
}

static void the_dead_are_not_named(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct sim_cluster *cluster = cluster_of(2);
        struct sim_call *call =
            sim_create(cluster->client, (struct sim_shape){.replicas = replicas, .members = 2}, "");
        OK(call);
        uint64_t session = call->session;
        for (uint32_t at = 0; at < 48; at += 16)
            OK(sim_append(cluster->client, session, 0, at, 16, 1));
        struct sim_worker *victim = NULL;
        for (uint32_t w = 0; w < 2; w++)
            if (sim_worker_holds(cluster->workers[w], session, 16))
                victim = cluster->workers[w];
        sim_worker_kill(victim);
        sim_run_until_idle();
        if (replicas == 2) {
            for (uint32_t copy = 0; copy < 2; copy++) // of one that is left, whichever is asked for
                rows_are(cluster, session, 0, 48, copy);
        } else {
            struct sim_call *refused = sim_read_open(cluster->client, session, 0, 48);
            ENDS(COMMON_UNAVAILABLE, refused);
            assert_string_equal(refused->reason, "MISSING_RANGE");
            assert_true(refused->n_missing > 0);
        }
        sim_cluster_free(cluster);
    }
}

// While a holder is being removed, what was appended may be about to count: a read past the end waits. What
// is committed needs only the other holder.
static void rows_that_may_turn_up_are_waited_for(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = filled_of(cluster, 2, 20);
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_worker_kill(copy_of(cluster, session, 0, 0));
    sim_advance(COMMON_NS_PER_S);
    struct sim_call *past = sim_read_open(cluster->client, session, 10, 20);
    OPENS(cluster, session, 0, 20);
    sim_advance(COMMON_NS_PER_S);
    assert_false(past->done);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    ENDS(COMMON_OUT_OF_RANGE, past);
    sim_cluster_free(cluster);
}

// A session that goes from memory because the coordinator stops is not deleted: who waits for it tries again.
static void who_waits_while_it_stops_may_try_again(void **state)
{
    (void)state;
    for (int stopping = 0; stopping < 2; stopping++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = filled_of(cluster, 2, 20);
        struct coordinator_core *core = &cluster->coordinator->core;
        sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
        sim_worker_kill(copy_of(cluster, session, 0, 0));
        sim_advance(COMMON_NS_PER_S);
        struct sim_call *calls[] = {sim_read_open(cluster->client, session, 10, 20),
                                    sim_commit(cluster->client, session, 0, 0, 20),
                                    sim_append(cluster->client, session, 0, 20, 1, 1),
                                    sim_truncate(cluster->client, session, 10)};
        sim_advance(COMMON_NS_PER_S);
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            assert_false(calls[i]->done);
        core->stopping = stopping;
        coordinator_session_destroy(kept_of(cluster, session));
        coordinator_turn_drain(&core->turn);
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            ENDS(stopping ? COMMON_UNAVAILABLE : COMMON_NOT_FOUND, calls[i]);
        core->stopping = false;
        sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
        sim_cluster_free(cluster);
    }
}

// In small steps: a coordinator that was away judges no worker.
static void pass(uint64_t ns)
{
    for (uint64_t passed = 0; passed < ns; passed += 100 * COMMON_NS_PER_MS)
        sim_advance(100 * COMMON_NS_PER_MS);
}

static void take_nothing(struct sim_call *call, const struct proto_message *message)
{
    (void)call;
    (void)message;
}

enum { PIN_KEY = 77 };

static enum common_code fork_for(struct sim_cluster *cluster, uint64_t session, uint64_t ttl_ns,
                                 uint64_t *fork)
{
    Banyan__Pb__SessionForkRequest m = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    m.session = session;
    m.length = 20;
    m.name = (char *)(ttl_ns ? "pin" : "fork");
    m.idle_ttl_ns = ttl_ns;
    m.key = ttl_ns ? PIN_KEY : 0;
    struct sim_call *call =
        sim_call_start(cluster->client, METHOD(SESSION_FORK), &m.base, NULL, 0, take_nothing);
    enum common_code code = sim_wait(call);
    struct sim_call *found = code == COMMON_OK ? sim_find(cluster->client, m.name) : NULL;
    if (found)
        OK(found);
    *fork = found ? found->session : 0;
    return code;
}

// It is being deleted as idle when it is opened, by its name, for reading, and by the call that made it: no
// client gets OK for a session that goes. If the store refuses the deletion it is there as before.
static void an_idle_session_that_goes_is_not_opened(void **state)
{
    (void)state;
    for (uint32_t refused = 0; refused < 2; refused++) {
        struct sim_cluster *cluster = cluster_of(2);
        uint64_t session = session_of(cluster, 40), pin;
        assert_int_equal(fork_for(cluster, session, 5 * COMMON_NS_PER_S, &pin), COMMON_OK);
        sim_disk_stall(SIM_DISK_PATH, true);
        pass(6 * COMMON_NS_PER_S);
        assert_int_equal(kept_of(cluster, pin)->state, COORDINATOR_SESSION_DELETING);
        struct sim_call *find = sim_find(cluster->client, "pin"),
                        *read = sim_read_open(cluster->client, pin, 0, 20),
                        *again = sim_fork_as(cluster->client, session, 20, "pin", PIN_KEY);
        sim_advance(100 * COMMON_NS_PER_MS);
        assert_true(!find->done && !read->done && !again->done);
        sim_disk_fail(SIM_DISK_PATH, refused ? (uint32_t)sim_disk_waiting(SIM_DISK_PATH) : 0,
                      COMMON_RESOURCE_EXHAUSTED);
        sim_disk_stall(SIM_DISK_PATH, false);
        ENDS(refused ? COMMON_OK : COMMON_NOT_FOUND, find);
        ENDS(refused ? COMMON_OK : COMMON_NOT_FOUND, read);
        ENDS(refused ? COMMON_OK : COMMON_UNAVAILABLE, again);
        if (refused)
            rows_are(cluster, pin, 0, 20, 0);
        else
            assert_null(kept_of(cluster, pin));
        sim_cluster_free(cluster);
    }
}

// The time to live of a fork is its own, also after a restart; a ticket keeps it alive.
static void a_pin_goes_by_itself(void **state)
{
    (void)state;
    const uint64_t ttl_ns = 5 * COMMON_NS_PER_S;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 40), pin, fork,
             ticket_ns = cluster->coordinator->core.options.ticket_ns;
    assert_int_equal(fork_for(cluster, session, ttl_ns, &pin), COMMON_OK);
    assert_int_equal(fork_for(cluster, session, 0, &fork), COMMON_OK);
    OPENS(cluster, pin, 0, 20);
    pass(ticket_ns - COMMON_NS_PER_S); // it is read with the ticket, as far as the coordinator can tell
    rows_are(cluster, pin, 0, 20, 0);  // another ticket
    pass(ticket_ns);
    sim_coordinator_kill(cluster);
    restart(cluster);
    const struct coordinator_session *kept = coordinator_session_find(&cluster->coordinator->sessions, pin);
    assert_true(kept && kept->spec->idle_ttl_ns == ttl_ns);
    pass(ticket_ns + 2 * ttl_ns); // after a restart a client may still have a ticket
    ENDS(COMMON_NOT_FOUND, sim_info(cluster->client, pin));
    OK(sim_info(cluster->client, fork));
    READS(cluster, session, 40, 40);
    sim_cluster_free(cluster);
}

// Wall clocks that differ by an hour, and one that is set meanwhile: a ticket lives as long as the
// coordinator says.
static void lives_of_tickets_need_no_common_clock(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.replicas = 2}, "");
    OK(call);
    uint64_t session = call->session, ticket_ns = cluster->coordinator->core.options.ticket_ns;
    int64_t hour = 3600 * (int64_t)COMMON_NS_PER_S;
    for (int turn = 0; turn < 3; turn++) {
        uint64_t first = (uint64_t)turn * 16;
        sim_loop_skew(cluster->workers[0]->loop, hour * (turn - 1));
        sim_loop_skew(cluster->workers[1]->loop, -hour * (turn - 1));
        struct sim_call *opened = sim_open(cluster->client, session, first, 16);
        OK(opened);
        sim_loop_skew(cluster->loop, turn == 2 ? hour : 0);
        pass(ticket_ns - COMMON_NS_PER_S);
        OK(sim_put(cluster->client, opened, 0, first, 16, 1));
        OK(sim_commit(cluster->client, session, 0, first, 16));
        struct sim_call *read = sim_read_open(cluster->client, session, first, 16);
        OK(read);
        pass(ticket_ns - COMMON_NS_PER_S);
        for (uint32_t copy = 0; copy < 2; copy++)
            OK(sim_read_rows(cluster->client, read, 0, first, 16, copy));
        pass(2 * COMMON_NS_PER_S);
        ENDS(COMMON_FAILED_PRECONDITION, sim_put(cluster->client, opened, 0, first, 16, 1));
        for (uint32_t copy = 0; copy < 2; copy++)
            ENDS(COMMON_FAILED_PRECONDITION, sim_read_rows(cluster->client, read, 0, first, 16, copy));
    }
    sim_cluster_free(cluster);
}

int hermetic_reading(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_rows_are_read_from_any_holder),
        cmocka_unit_test(only_what_all_layers_have),
        cmocka_unit_test(a_truncate_ends_a_ticket),
        cmocka_unit_test(the_dead_are_not_named),
        cmocka_unit_test(rows_that_may_turn_up_are_waited_for),
        cmocka_unit_test(who_waits_while_it_stops_may_try_again),
        cmocka_unit_test(a_pin_goes_by_itself),
        cmocka_unit_test(lives_of_tickets_need_no_common_clock),
        cmocka_unit_test(an_idle_session_that_goes_is_not_opened),
    };
    return cmocka_run_group_tests_name("reading", tests, NULL, NULL);
}
