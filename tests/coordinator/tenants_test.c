// SPDX-License-Identifier: Apache-2.0
// Tokens, passes, the table of accesses against docs/operating/tenants.md, and words without workers' names.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/secure/secret.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/state.h"
#include "coordinator/tenants/access.h"
#include "proto/rights/pass.h"
#include "proto/wire/codec.h"

// ---- the table --------------------------------------------------------------------------------------

static bool served_to_clients(uint32_t method)
{
    for (const struct proto_method *m = coordinator_methods; m->method; m++)
        if (m->method == method)
            return m->roles >> BANYAN__PB__ROLE__ROLE_CLIENT & 1;
    return false;
}

// What the guide says: bits of 1 << access. 0: it has no such method.
static unsigned documented(const char *text, const char *verb)
{
    char row[64], cells[4][4];
    snprintf(row, sizeof row, "\n| %s |", verb);
    const char *at = strstr(text, row);
    if (!at ||
        sscanf(at + strlen(row), " %3s | %3s | %3s | %3s |", cells[0], cells[1], cells[2], cells[3]) != 4)
        return 0;
    unsigned bits = 0;
    for (int i = 0; i < 4; i++) {
        assert_true(!strcmp(cells[i], "yes") || !strcmp(cells[i], "no"));
        bits |= (unsigned)!strcmp(cells[i], "yes") << (PROTO_ACCESS_READ_ONLY + i);
    }
    return bits;
}

// Each method of clients with each access: a new method that is in no row of the table, or of the guide,
// fails here.
static void every_method_and_access(void **state)
{
    (void)state;
    FILE *file = fopen(TENANTS_GUIDE, "r");
    assert_non_null(file);
    static char text[32768];
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    uint32_t served = 0;
    for (uint32_t method = 0; method < PROTO_METHOD_LIMIT; method++) {
        const struct proto_method_info *info = proto_codec_method(method);
        bool clients = info && served_to_clients(method);
        assert_int_equal(coordinator_access_known(method), clients);
        for (int access = PROTO_ACCESS_NONE; access <= PROTO_ACCESSES; access++) {
            const char *verb = clients ? strchr(info->name, '.') + 1 : "";
            unsigned bits =
                clients ? documented(text,
                                     method == BANYAN__PB__METHOD__METHOD_HEALTH_CHECK ? "HealthCheck" : verb)
                        : 0;
            if (clients && !bits)
                fail_msg("docs/operating/tenants.md has no row for %s", info->name);
            if (coordinator_access_allows((enum proto_access)access, method) != (bits >> access & 1))
                fail_msg("%s with access %d: the table and docs/operating/tenants.md differ", info->name,
                         access);
        }
        served += clients;
    }
    assert_true(served >= 29);
    assert_false(coordinator_access_allows(PROTO_ACCESS_ADMIN, PROTO_METHOD_LIMIT));
}

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "team-a", "0.x_y-z"}, *const bad[] = {"",        ".a",  "-a",
                                                                                  "A",       "a b", "a/b",
                                                                                  "\xc3\xa4"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(proto_tenant_name_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(proto_tenant_name_ok(bad[i]));
    char longest[PROTO_TENANT_NAME_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[PROTO_TENANT_NAME_MAX + 1] = '\0';
    assert_false(proto_tenant_name_ok(longest));
    longest[PROTO_TENANT_NAME_MAX] = '\0';
    assert_true(proto_tenant_name_ok(longest));
    for (int access = PROTO_ACCESS_READ_ONLY; access < PROTO_ACCESSES; access++) {
        enum proto_access parsed;
        assert_true(proto_access_parse(proto_access_name((enum proto_access)access), &parsed));
        assert_int_equal(parsed, access);
    }
    enum proto_access none = PROTO_ACCESS_USER;
    assert_false(proto_access_parse("none", &none));
    assert_int_equal(none, PROTO_ACCESS_USER);
}

// ---- tokens -----------------------------------------------------------------------------------------

static void tokens_are_found_by_themselves(void **state)
{
    (void)state;
    enum { N = 300 };
    struct coordinator_tokens tokens;
    char shown[N][COORDINATOR_TOKEN_CHARS + 1];
    coordinator_tokens_init(&tokens);
    for (uint32_t i = 0; i < N; i++) {
        struct coordinator_token_row row = {.tenant = i,
                                            .access = PROTO_ACCESS_USER,
                                            .expires_s = i % 2 ? 1000 : 0};
        assert_true(coordinator_token_make(shown[i], &row));
        assert_int_equal(strlen(shown[i]), COORDINATOR_TOKEN_CHARS);
        assert_int_equal(
            strspn(shown[i] + 3, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), 43);
        assert_non_null(coordinator_tokens_add(&tokens, &row));
        assert_null(memmem(&row, sizeof row, shown[i] + 3, 8)); // what is kept has nothing of it
    }
    for (uint32_t i = 0; i < N; i++) {
        const struct coordinator_token *t =
            coordinator_token_presented(&tokens, shown[i], COORDINATOR_TOKEN_CHARS, 999);
        assert_non_null(t);
        assert_int_equal(t->row.tenant, i);
        t = coordinator_token_presented(&tokens, shown[i], COORDINATOR_TOKEN_CHARS, 1000); // its end
        assert_int_equal(t == NULL, i % 2);
        char other[COORDINATOR_TOKEN_CHARS + 1];
        memcpy(other, shown[i], sizeof other);
        other[3 + i % 43] ^= 1;
        assert_null(coordinator_token_presented(&tokens, other, COORDINATOR_TOKEN_CHARS, 0));
        assert_null(coordinator_token_presented(&tokens, shown[i], COORDINATOR_TOKEN_CHARS - 1, 0));
    }
    uint32_t n = 0;
    for (const struct coordinator_token *t = NULL; (t = coordinator_token_next(&tokens, t)); n++)
        assert_ptr_equal(coordinator_token_of(&tokens, t->row.id), t);
    assert_int_equal(n, N);
    struct coordinator_token *t = coordinator_token_presented(&tokens, shown[0], COORDINATOR_TOKEN_CHARS, 0);
    t->ready = false; // being revoked
    assert_null(coordinator_token_presented(&tokens, shown[0], COORDINATOR_TOKEN_CHARS, 0));
    coordinator_tokens_remove(&tokens, t->row.id);
    assert_int_equal(tokens.n, N - 1);
    assert_non_null(coordinator_token_presented(&tokens, shown[2], COORDINATOR_TOKEN_CHARS, 0));
    coordinator_tokens_fini(&tokens);
}

static void sha256_is_what_it_is(void **state)
{
    (void)state;
    static const uint8_t abc[] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40,
                                  0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17,
                                  0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    uint8_t out[COMMON_SHA256_BYTES];
    assert_true(common_sha256("abc", 3, out)); // FIPS 180-2, B.1
    assert_memory_equal(out, abc, sizeof abc);
}

static void passes(void **state)
{
    (void)state;
    const struct common_secret secret = {{1, 2, 3}}, other = {{1, 2, 4}};
    const struct proto_identity who = {.tenant = 0x01020304,
                                       .access = PROTO_ACCESS_USER,
                                       .token = UINT64_C(0x1122334455667788)};
    struct proto_identity got;
    char pass[PROTO_PASS_CHARS + 1];
    assert_true(proto_pass_make(&secret, &who, 5000, pass));
    assert_int_equal(strlen(pass), PROTO_PASS_CHARS);
    assert_true(PROTO_PASS_CHARS <= COMMON_TOKEN_MAX);
    assert_true(proto_pass_check(&secret, pass, PROTO_PASS_CHARS, 4999, &got));
    assert_int_equal(got.tenant, who.tenant);
    assert_int_equal(got.access, who.access);
    assert_int_equal(got.token, who.token);
    assert_null(strstr(pass, "01020304")); // who holds it cannot read whose it is
    assert_null(strstr(pass, "1122334455667788"));
    assert_false(proto_pass_check(&secret, pass, PROTO_PASS_CHARS, 5000, &got)); // expired
    assert_false(proto_pass_check(&other, pass, PROTO_PASS_CHARS, 0, &got));     // another cluster's
    assert_false(proto_pass_check(&secret, pass, PROTO_PASS_CHARS - 1, 0, &got));
    for (size_t i = 0; i < PROTO_PASS_CHARS; i++) { // each character counts
        char altered[PROTO_PASS_CHARS + 1];
        memcpy(altered, pass, sizeof altered);
        altered[i] = altered[i] == 'a' ? 'b' : 'a';
        assert_false(proto_pass_check(&secret, altered, PROTO_PASS_CHARS, 0, &got));
    }
}

// ---- words ------------------------------------------------------------------------------------------

// No text of a failure has a worker's name: one called like a word of it changes nothing, and what a tenant
// reads does not depend on what workers are called.
static void workers_are_hidden(void **state)
{
    (void)state;
    static const char *const called[] = {"a", "token", "rack1/gpu:0"};
    for (size_t i = 0; i < 3; i++) {
        struct proto_status status, theirs;
        proto_status_set(&status, COMMON_UNAVAILABLE, PROTO_REASON_MISSING_RANGE, "a token is on a worker");
        proto_status_add_worker(&status, called[i]);
        theirs = status;
        coordinator_status_for(false, &theirs);
        assert_string_equal(theirs.message, "a token is on a worker");
        assert_int_equal(theirs.n_workers, 0);
        char want[96];
        snprintf(want, sizeof want, "a token is on a worker (worker %s)", called[i]);
        coordinator_status_for(true, &status);
        assert_string_equal(status.message, want);
        assert_int_equal(status.n_workers, 1);
    }
}

static void workers_are_named(void **state)
{
    (void)state;
    const char *const names[] = {"w1", "", "gpu.a"};
    char text[64] = "lost";
    coordinator_name_workers(text, sizeof text, names, 0);
    assert_string_equal(text, "lost");
    coordinator_name_workers(text, sizeof text, names, 3);
    assert_string_equal(text, "lost (workers w1, gpu.a)");
    strcpy(text, "lost");
    coordinator_name_workers(text, sizeof "lost (workers w1)", names, 3); // room for one
    assert_string_equal(text, "lost (workers w1)");
    strcpy(text, "lost");
    coordinator_name_workers(text, 10, names, 3); // for none
    assert_string_equal(text, "lost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_and_access),
        cmocka_unit_test(names),
        cmocka_unit_test(tokens_are_found_by_themselves),
        cmocka_unit_test(sha256_is_what_it_is),
        cmocka_unit_test(passes),
        cmocka_unit_test(workers_are_hidden),
        cmocka_unit_test(workers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
