// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/endpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proto/rpc/rpc.h"

static void test_parse_and_format(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum proto_endpoint_kind kind;
        const char *host;
        uint16_t port;
        bool tls;
    } good[] = {
        {"tcp://127.0.0.1:7400", PROTO_ENDPOINT_TCP, "127.0.0.1", 7400, false},
        {"nng+tcp://localhost:0", PROTO_ENDPOINT_NNG_TCP, "localhost", 0, false},
        {"tcp://[::1]:65535", PROTO_ENDPOINT_TCP, "::1", 65535, false},
        {"unix:///run/banyan.sock", PROTO_ENDPOINT_UNIX, "", 0, false},
        {"tls://[::1]:7413", PROTO_ENDPOINT_TCP, "::1", 7413, true},
        {"nng+tls://localhost:7414", PROTO_ENDPOINT_NNG_TCP, "localhost", 7414, true},
    };
    struct proto_endpoint e;
    struct common_error err;
    char buf[PROTO_ENDPOINT_MAX];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(proto_endpoint_parse(good[i].text, &e, &err), COMMON_OK);
        assert_int_equal(e.kind, good[i].kind);
        assert_int_equal(e.tls, good[i].tls);
        assert_string_equal(e.host, good[i].host);
        assert_int_equal(e.port, good[i].port);
        assert_string_equal(proto_endpoint_format(&e, buf), good[i].text);
    }
    char long_path[200] = "unix:///";
    memset(long_path + 8, 'x', 120);
    const char *const bad[] = {"",
                               "tcp://",
                               "127.0.0.1:7400",
                               "tcp://127.0.0.1",
                               "tcp://:7400",
                               "tcp://host:",
                               "tcp://host:65536",
                               "tcp://host:-1",
                               "tcp://host:12x",
                               "tcp://::1:7400",
                               "tcp://[[]]:0",
                               "tcp://[a:1",
                               "http://host:80",
                               "ipc:///tmp/x",
                               "tls+tcp://host:80",
                               "tls://host",
                               "unix://relative",
                               long_path};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(proto_endpoint_parse(bad[i], &e, &err), COMMON_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "endpoint"));
    }
}

static void test_lists(void **state)
{
    (void)state;
    struct proto_endpoint_list list;
    struct common_error err;
    static const char *const bad[] = {"",
                                      ",",
                                      "tcp://a:1,",
                                      ",tcp://a:1",
                                      "tcp://a:1,,tcp://b:1",
                                      "tcp://a:1;tcp://b:1",
                                      "tcp://a:1,tcp://b:1,tcp://c:1,tcp://d:1,tcp://e:1"};
    assert_int_equal(proto_endpoint_list_parse("tcp://a:1", &list, &err), COMMON_OK);
    assert_int_equal(list.n, 1);
    assert_string_equal(list.endpoints[0], "tcp://a:1");
    assert_int_equal(proto_endpoint_list_parse("tcp://a:1,unix:///b,nng+tcp://[::1]:3", &list, &err),
                     COMMON_OK);
    assert_int_equal(list.n, 3);
    assert_string_equal(list.endpoints[0], "tcp://a:1");
    assert_string_equal(list.endpoints[1], "unix:///b");
    assert_string_equal(list.endpoints[2], "nng+tcp://[::1]:3");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(proto_endpoint_list_parse(bad[i], &list, &err), COMMON_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "endpoint"));
    }
    assert_int_equal(list.n, 3); // written on success only
}

// The longest path comes back whole; one byte more is refused, not cut.
static void test_the_longest_path(void **state)
{
    (void)state;
    struct proto_endpoint e;
    char text[16 + sizeof e.path] = "unix:///", buf[PROTO_ENDPOINT_MAX];
    memset(text + strlen(text), 'x', sizeof e.path - 2);
    assert_int_equal(proto_endpoint_parse(text, &e, NULL), COMMON_OK);
    assert_string_equal(proto_endpoint_format(&e, buf), text);
    strcat(text, "y");
    assert_int_equal(proto_endpoint_parse(text, &e, NULL), COMMON_INVALID_ARGUMENT);
}

static void test_listen_allowed(void **state)
{
    (void)state;
    static const char *const loopback[] = {"tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "nng+tcp://[::1]:1",
                                           "tcp://localhost:1", "unix:///tmp/x"};
    static const char *const open[] = {"tcp://0.0.0.0:1", "nng+tcp://10.0.0.1:1", "tcp://[::]:1",
                                       "tcp://example.org:1", "tcp://128.0.0.1:1"};
    struct common_error err;
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        assert_int_equal(proto_listen_allowed(loopback[i], false, false, false, &err), COMMON_OK);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        // The sentence says what is missing, and nothing else.
        assert_int_equal(proto_listen_allowed(open[i], false, false, false, &err), COMMON_PERMISSION_DENIED);
        assert_non_null(strstr(err.message, "without TLS and without a client token: give a tls://"));
        assert_non_null(strstr(err.message, "--token-file"));
        assert_int_equal(proto_listen_allowed(open[i], true, false, false, &err), COMMON_PERMISSION_DENIED);
        assert_non_null(strstr(err.message, "without TLS: give a tls://"));
        assert_null(strstr(err.message, "token"));
        assert_int_equal(proto_listen_allowed(open[i], false, true, false, &err), COMMON_PERMISSION_DENIED);
        assert_non_null(strstr(err.message, "without a client token: give --token-file FILE, or --insecure"));
        assert_null(strstr(err.message, "tls"));
        assert_int_equal(proto_listen_allowed(open[i], true, true, false, &err), COMMON_OK);
        assert_int_equal(proto_listen_allowed(open[i], false, false, true, &err), COMMON_OK);
    }
    assert_int_equal(proto_listen_allowed("nonsense", true, true, true, &err), COMMON_INVALID_ARGUMENT);
}

static void test_has_tls(void **state)
{
    (void)state;
    assert_true(proto_endpoint_has_tls("tls://10.0.0.1:1"));
    assert_true(proto_endpoint_has_tls("nng+tls://a.example:1"));
    static const char *const plain[] = {"tcp://10.0.0.1:1", "nng+tcp://tls:1", "unix:///tls://", "tls:/a", "",
                                        "TLS://a:1"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_false(proto_endpoint_has_tls(plain[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_and_format),
        cmocka_unit_test(test_the_longest_path),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_listen_allowed),
        cmocka_unit_test(test_has_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
