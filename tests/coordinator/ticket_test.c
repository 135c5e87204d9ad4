// SPDX-License-Identifier: Apache-2.0
// The coordinator answers when a ticket cannot be made: proto_ticket_make is the linker's (--wrap), and fails
// when the test says so.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "proto/rights/ticket.h"
#include "tests/sim/sim_cluster.h"

static bool ticket_fails;

size_t __real_proto_ticket_make(const struct common_secret *secret, const struct proto_ticket *ticket,
                                uint8_t out[PROTO_TICKET_MAX]);
size_t __wrap_proto_ticket_make(const struct common_secret *secret, const struct proto_ticket *ticket,
                                uint8_t out[PROTO_TICKET_MAX]);

size_t __wrap_proto_ticket_make(const struct common_secret *secret, const struct proto_ticket *ticket,
                                uint8_t out[PROTO_TICKET_MAX])
{
    return ticket_fails ? 0 : __real_proto_ticket_make(secret, ticket, out);
}

static void an_open_without_memory_for_its_ticket_is_refused(void **state)
{
    (void)state;
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 2});
    sim_cluster_start(cluster);
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.members = 2}, "");
    assert_int_equal(sim_wait(call), COMMON_OK);
    uint64_t session = call->session;
    ticket_fails = true;
    assert_int_equal(sim_wait(sim_open(cluster->client, session, 0, 40)), COMMON_RESOURCE_EXHAUSTED);
    ticket_fails = false;
    struct sim_call *opened = sim_open(cluster->client, session, 0, 40);
    assert_int_equal(sim_wait(opened), COMMON_OK);
    assert_int_equal(sim_wait(sim_put(cluster->client, opened, 0, 0, 40, 1)), COMMON_OK);
    assert_int_equal(sim_wait(sim_commit(cluster->client, session, 0, 0, 40)), COMMON_OK);
    sim_cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_open_without_memory_for_its_ticket_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
