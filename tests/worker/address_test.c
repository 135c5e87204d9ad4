// SPDX-License-Identifier: Apache-2.0
// Where a worker listens by default, what it refuses, and --advertise.
#include "worker/daemon/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/log/log.h"

#define FAR "tcp://192.0.2.7:7412" // of no machine: RFC 5737

static enum common_code settle(struct worker_config *config, struct common_error *err)
{
    common_log_set_level(COMMON_LOG_ERROR);
    return worker_address_settle(config, config->insecure, err);
}

static bool at_all(const char *endpoint)
{
    return strcmp(endpoint, "tcp://[::]:0") == 0 || strcmp(endpoint, "tcp://0.0.0.0:0") == 0;
}

static void defaults_follow_the_coordinator(void **state)
{
    (void)state;
    static const struct {
        const char *coordinator, *token;
        bool insecure, edge_at_all, public_at_all;
    } cases[] = {
        {"tcp://127.0.0.1:7412", NULL, false, false, false},
        {"tcp://localhost:7412", "a token", false, false, false},
        {"unix:///run/c.sock", NULL, false, false, false},
        {FAR, NULL, false, true,
         false}, // no other host may come to the public one; the edge is refused, see below
        {FAR, "a token", false, true, false},
        {FAR, NULL, true, true, true},
        {"tcp://127.0.0.1:7412," FAR, "a token", true, true, true},
        {"tcp://a.name:7412", "a token", true, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct common_error err;
        struct worker_config config = {.coordinator = cases[i].coordinator,
                                       .token = cases[i].token,
                                       .insecure = cases[i].insecure};
        assert_int_equal(settle(&config, &err), COMMON_OK);
        assert_int_equal(at_all(config.edge_listen), cases[i].edge_at_all);
        assert_int_equal(at_all(config.listen), cases[i].public_at_all);
        assert_true(config.listen_by_default);
    }
}

static void what_is_given_stays(void **state)
{
    (void)state;
    struct common_error err;
    struct worker_config config = {.coordinator = FAR,
                                   .listen = "nng+tcp://10.1.1.1:1",
                                   .edge_listen = "tcp://10.1.1.1:2"};
    assert_int_equal(settle(&config, &err), COMMON_OK);
    assert_string_equal(config.listen, "nng+tcp://10.1.1.1:1");
    assert_string_equal(config.edge_listen, "tcp://10.1.1.1:2");
    assert_false(config.listen_by_default);
}

static void an_edge_that_nobody_can_dial_is_refused(void **state)
{
    (void)state;
    static const char *const edges[] = {"tcp://127.0.0.1:0", "tcp://localhost:7", "unix:///run/w.sock"};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        struct common_error err;
        struct worker_config config = {.coordinator = FAR, .edge_listen = edges[i]};
        assert_int_equal(settle(&config, &err), COMMON_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "another host"));
        assert_non_null(strstr(err.message, "--edge-listen"));
        config.advertise = "proxy.example.org"; // it leads here
        assert_int_equal(settle(&config, &err), COMMON_OK);
        config = (struct worker_config){.coordinator = "tcp://127.0.0.2:7412", .edge_listen = edges[i]};
        assert_int_equal(settle(&config, &err), COMMON_OK); // that is here
    }
}

static void advertise_is_a_host(void **state)
{
    (void)state;
    static const char *const good[] = {"w1", "w1.example.org", "10.0.0.7", "fe80::1", "::1", "localhost"};
    static const char *const bad[] = {"",      " ",        "0.0.0.0", "::",  "w1:7500",
                                      "[::1]", "tcp://w1", "a b",     "w1/", "w1,w2"};
    struct common_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct worker_config config = {.coordinator = FAR, .advertise = good[i]};
        if (settle(&config, &err) != COMMON_OK)
            fail_msg("'%s' is refused: %s", good[i], err.message);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct worker_config config = {.coordinator = FAR, .advertise = bad[i]};
        if (settle(&config, &err) != COMMON_INVALID_ARGUMENT || !strstr(err.message, "--advertise"))
            fail_msg("'%s' is taken", bad[i]);
    }
}

static void others_do_not_reach_it_in_plain_tcp(void **state)
{
    (void)state;
    static const char here[] = "tcp://127.0.0.1:0", everywhere[] = "tcp://0.0.0.0:0";
    struct {
        const char *listen, *edge, *token, *lacks;
    } cases[] = {
        {everywhere, here, NULL, "without TLS: give"}, // its clients show passes of the coordinator's
        {everywhere, here, "a token", "without TLS: give"},
        {here, everywhere, NULL, "without TLS: give"}, // its peers show that they have the secret
        {here, "tcp://[::]:0", "a token", "without TLS: give"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct worker_config config = {.name = "w",
                                       .host = "h",
                                       .coordinator = FAR,
                                       .listen = cases[i].listen,
                                       .edge_listen = cases[i].edge,
                                       .token = cases[i].token};
        struct common_error err;
        struct worker *worker = NULL;
        assert_int_equal(worker_new(NULL, &config, &worker, &err), COMMON_PERMISSION_DENIED);
        assert_non_null(strstr(err.message, cases[i].lacks));
        assert_null(worker);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_follow_the_coordinator),         cmocka_unit_test(what_is_given_stays),
        cmocka_unit_test(an_edge_that_nobody_can_dial_is_refused), cmocka_unit_test(advertise_is_a_host),
        cmocka_unit_test(others_do_not_reach_it_in_plain_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
