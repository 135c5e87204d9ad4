// SPDX-License-Identifier: Apache-2.0
// What the audit log records: every call has its line in the table, what changes nothing is not taken for a
// change, and a flood of tries does not fill the disk and hides no other host.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/trail/calls.h"
#include "coordinator/trail/flood.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

// ---- calls --------------------------------------------------------------------------------------

// A new call of the coordinator's must say here whether it changes something.
static void every_call_has_a_line(void **state)
{
    (void)state;
    enum { FROM = 32, UNTIL = 80 }; // of service Coordinator
    unsigned n = 0;
    for (unsigned i = 0; i < banyan__pb__method__descriptor.n_values; i++) {
        const ProtobufCEnumValue *value = &banyan__pb__method__descriptor.values[i];
        if (value->value < FROM || value->value >= UNTIL)
            continue;
        n++;
        if (!coordinator_trail_knows((uint32_t)value->value))
            fail_msg("coordinator/trail/calls.c does not say what becomes of %s", value->name);
    }
    assert_true(n >= 27);
    assert_false(coordinator_trail_knows(METHOD(LINK_HELLO)));
    assert_false(coordinator_trail_knows(100000));
}

static struct coordinator_trail_call look(uint32_t method, const void *asked, const void *reply)
{
    return coordinator_trail_call(method, asked, reply);
}

static void expect(struct coordinator_trail_call call, enum coordinator_trail_kind kind, const char *what,
                   uint64_t session)
{
    assert_int_equal(call.kind, kind);
    if (what)
        assert_string_equal(call.what, what);
    else
        assert_null(call.what);
    assert_int_equal(call.session, session);
}

static void what_only_asks_is_no_change(void **state)
{
    (void)state;
    Banyan__Pb__WorkerDrainRequest drain = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    expect(look(METHOD(WORKER_DRAIN), &drain, NULL), COORDINATOR_TRAIL_CHANGES, "worker.drain", 0);
    drain.resume = true;
    expect(look(METHOD(WORKER_DRAIN), &drain, NULL), COORDINATOR_TRAIL_CHANGES, "worker.resume", 0);
    drain.ask = true;
    expect(look(METHOD(WORKER_DRAIN), &drain, NULL), COORDINATOR_TRAIL_NOT, NULL, 0);
    Banyan__Pb__RebalanceRequest rebalance = BANYAN__PB__REBALANCE_REQUEST__INIT;
    expect(look(METHOD(REBALANCE), &rebalance, NULL), COORDINATOR_TRAIL_CHANGES, "rebalance", 0);
    rebalance.dry_run = true;
    expect(look(METHOD(REBALANCE), &rebalance, NULL), COORDINATOR_TRAIL_NOT, NULL, 0);
    Banyan__Pb__ScrubRequest scrub = BANYAN__PB__SCRUB_REQUEST__INIT;
    scrub.session = 7;
    expect(look(METHOD(SCRUB), &scrub, NULL), COORDINATOR_TRAIL_CHANGES, "scrub", 7);
    scrub.ask = true;
    expect(look(METHOD(SCRUB), &scrub, NULL), COORDINATOR_TRAIL_NOT, NULL, 0);
    Banyan__Pb__BackupRequest backup = BANYAN__PB__BACKUP_REQUEST__INIT;
    expect(look(METHOD(BACKUP), &backup, NULL), COORDINATOR_TRAIL_READS, "backup", 0);
    backup.accept = true;
    expect(look(METHOD(BACKUP), &backup, NULL), COORDINATOR_TRAIL_CHANGES, "backup.accept", 0);
    backup.accept = false;
    backup.end = 3;
    expect(look(METHOD(BACKUP), &backup, NULL), COORDINATOR_TRAIL_NOT, NULL, 0);
    Banyan__Pb__SessionListRequest list = BANYAN__PB__SESSION_LIST_REQUEST__INIT;
    expect(look(METHOD(SESSION_LIST), &list, NULL), COORDINATOR_TRAIL_NOT, NULL, 0);
}

static void the_session_is_the_one_that_is_meant(void **state)
{
    (void)state;
    Banyan__Pb__SessionCreateRequest create = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    Banyan__Pb__SessionCreateReply created = BANYAN__PB__SESSION_CREATE_REPLY__INIT;
    created.session = 11;
    expect(look(METHOD(SESSION_CREATE), &create, &created), COORDINATOR_TRAIL_CHANGES, "session.create", 11);
    expect(look(METHOD(SESSION_CREATE), &create, NULL), COORDINATOR_TRAIL_CHANGES, "session.create", 0);
    Banyan__Pb__SessionForkRequest fork = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    Banyan__Pb__SessionForkReply forked = BANYAN__PB__SESSION_FORK_REPLY__INIT;
    fork.session = 11;
    forked.session = 12;
    expect(look(METHOD(SESSION_FORK), &fork, &forked), COORDINATOR_TRAIL_CHANGES, "session.fork", 12);
    Banyan__Pb__SessionDeleteRequest gone = BANYAN__PB__SESSION_DELETE_REQUEST__INIT;
    gone.session = 12;
    expect(look(METHOD(SESSION_DELETE), &gone, NULL), COORDINATOR_TRAIL_CHANGES, "session.delete", 12);
    Banyan__Pb__ReadOpenRequest read = BANYAN__PB__READ_OPEN_REQUEST__INIT;
    read.session = 13;
    expect(look(METHOD(READ_OPEN), &read, NULL), COORDINATOR_TRAIL_READS, "read.open", 13);
    struct common_trail_body args = {.len = 0};
    coordinator_trail_call_args(METHOD(SESSION_FORK), &fork.base, &args);
    args.text[args.len] = '\0';
    assert_string_equal(args.text, "\"of\":\"0x000000000000000b\",\"length\":0");
}

static void failures_that_say_that_nothing_happened(void **state)
{
    (void)state;
    static const enum common_code perhaps[] = {COMMON_OK,       COMMON_CANCELLED,   COMMON_UNKNOWN,
                                               COMMON_INTERNAL, COMMON_UNAVAILABLE, COMMON_DEADLINE_EXCEEDED,
                                               COMMON_DATA_LOSS};
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof perhaps / sizeof *perhaps; i++)
        bits |= 1u << perhaps[i];
    for (int code = 0; code < COMMON_CODE_COUNT; code++)
        assert_int_equal(coordinator_trail_may_have_changed((enum common_code)code), bits >> code & 1);
}

// ---- floods -------------------------------------------------------------------------------------

static void a_flood_is_counted(void **state)
{
    (void)state;
    struct coordinator_trail_flood flood = {0};
    uint64_t now = 5 * COMMON_NS_PER_S, told = 0, counted = 0, tries = 0;
    for (; now < 3605 * COMMON_NS_PER_S; now += 10 * COMMON_NS_PER_MS) { // an hour, 100 tries a second
        char peer[64];                                                   // each from another port
        snprintf(peer, sizeof peer, "name@192.0.2.1:%d", (int)(tries % 60000));
        told += coordinator_trail_flood_admits(&flood, peer, now);
        tries++;
        uint64_t over = coordinator_trail_flood_over(&flood, now, false);
        counted += over;
        told += over > 0;
    }
    counted += coordinator_trail_flood_over(&flood, now, true);
    assert_int_equal(coordinator_trail_flood_over(&flood, now, true), 0);
    assert_true(told <= 9 * (7 + 3600 / 64 + 1)); // windows of 1, 2, 4 … 64 s
    assert_true(told + counted >= tries);         // each is there, or counted
    // Quiet again: the next one stands for itself.
    assert_true(coordinator_trail_flood_admits(&flood, "x@192.0.2.1:5", now + 100 * COMMON_NS_PER_S));
    assert_int_equal(coordinator_trail_flood_over(&flood, now + 200 * COMMON_NS_PER_S, false), 0);
}

static void a_flood_hides_no_other_host(void **state)
{
    (void)state;
    struct coordinator_trail_flood flood = {0};
    uint64_t now = COMMON_NS_PER_S;
    unsigned told = 0;
    for (int i = 0; i < 1000; i++)
        told += coordinator_trail_flood_admits(&flood, "a@192.0.2.1:5", now);
    assert_int_equal(told, COORDINATOR_TRAIL_FLOOD_HOST);
    assert_true(coordinator_trail_flood_admits(&flood, "b@[2001:db8::1]:7", now));
    assert_true(coordinator_trail_flood_admits(&flood, "192.0.2.2:7", now));
    for (int i = 0; i < 1000; i++) { // from everywhere
        char peer[64];
        snprintf(peer, sizeof peer, "10.%d.%d.1:5", i / 256, i % 256);
        told += coordinator_trail_flood_admits(&flood, peer, now);
    }
    assert_int_equal(told + 2, COORDINATOR_TRAIL_FLOOD_MOST);
}

// A name with an '@' of its own is not taken for an address.
static void an_address_is_what_follows_the_name(void **state)
{
    (void)state;
    assert_string_equal(coordinator_trail_address("a@b@192.0.2.1:5"), "192.0.2.1:5");
    assert_string_equal(coordinator_trail_address("192.0.2.1:5"), "192.0.2.1:5");
    assert_string_equal(coordinator_trail_address(""), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_has_a_line),
        cmocka_unit_test(what_only_asks_is_no_change),
        cmocka_unit_test(the_session_is_the_one_that_is_meant),
        cmocka_unit_test(failures_that_say_that_nothing_happened),
        cmocka_unit_test(a_flood_is_counted),
        cmocka_unit_test(a_flood_hides_no_other_host),
        cmocka_unit_test(an_address_is_what_follows_the_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
