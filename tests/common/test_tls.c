// SPDX-License-Identifier: Apache-2.0
// Files of certificates: what is taken, what is refused with which words, and reading them again.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/secure/tls.h"
#include "tests/common/scratch.h"
#include "tests/common/test_pki.h"

static struct scratch scratch;
static struct test_pki *pki;

static int setup(void **state)
{
    (void)state;
    if (scratch_init(&scratch) != 0)
        return -1;
    pki = test_pki_new(scratch.dir, "ours");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_pki_free(pki);
    scratch_remove(&scratch);
    return 0;
}

static void refused(const struct common_tls_files *files, enum common_code want, const char *words)
{
    struct common_tls *tls = NULL;
    struct common_error err = {0};
    assert_int_equal(common_tls_new(files, &tls, &err), want);
    assert_int_equal(err.code, want);
    assert_null(tls);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not say '%s'", err.message, words);
}

static void test_what_is_read(void **state)
{
    (void)state;
    struct test_pki_files files;
    struct common_tls *tls;
    int64_t now_s = (int64_t)time(NULL);
    test_pki_issue(pki, &(struct test_pki_ask){.name = "a", .uris = "banyan:worker,x:y", .to_s = 5000},
                   &files);
    assert_int_equal(common_tls_new(&files.files, &tls, NULL), COMMON_OK);
    assert_true(common_tls_has_cert(tls));
    assert_true(common_tls_says(tls, "banyan:worker"));
    assert_true(common_tls_says(tls, "x:y"));
    assert_false(common_tls_says(tls, "banyan:coordinator"));
    assert_false(common_tls_says(tls, "banyan:work")); // the whole of it
    assert_false(common_tls_says(tls, "banyan:workers"));
    assert_in_range(common_tls_expires_s(tls), now_s + 4990, now_s + 5010);
    assert_in_range(common_tls_ca_expires_s(tls), now_s + 9 * 86400, now_s + 11 * 86400);
    struct common_tls_text text;
    common_tls_text(tls, &text);
    assert_non_null(strstr(text.key, "PRIVATE KEY"));
    assert_ptr_equal(common_tls_ref(tls), tls);
    common_tls_unref(tls);
    common_tls_unref(tls);
    common_tls_unref(NULL);

    test_pki_ca(pki, &files); // a client
    assert_int_equal(common_tls_new(&files.files, &tls, NULL), COMMON_OK);
    assert_false(common_tls_has_cert(tls));
    assert_false(common_tls_says(tls, "banyan:worker"));
    assert_true(common_tls_expires_s(tls) == INT64_MAX);
    common_tls_text(tls, &text);
    assert_null(text.key);
    common_tls_unref(tls);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct test_pki_files a, b, past, coming;
    test_pki_issue(pki, &(struct test_pki_ask){.name = "a"}, &a);
    test_pki_issue(pki, &(struct test_pki_ask){.name = "b"}, &b);
    test_pki_issue(pki, &(struct test_pki_ask){.name = "past", .from_s = -100, .to_s = -10}, &past);
    test_pki_issue(pki, &(struct test_pki_ask){.name = "coming", .from_s = 100, .to_s = 1000}, &coming);
    refused(&(struct common_tls_files){a.cert, a.key, NULL}, COMMON_INVALID_ARGUMENT, "--tls-ca");
    refused(&(struct common_tls_files){a.cert, NULL, a.ca}, COMMON_INVALID_ARGUMENT, "--tls-key");
    refused(&(struct common_tls_files){NULL, a.key, a.ca}, COMMON_INVALID_ARGUMENT, "--tls-cert");
    refused(&(struct common_tls_files){a.cert, b.key, a.ca}, COMMON_INVALID_ARGUMENT, "is not that of");
    refused(&(struct common_tls_files){a.key, a.key, a.ca}, COMMON_INVALID_ARGUMENT, "no certificate");
    refused(&(struct common_tls_files){a.cert, a.key, a.key}, COMMON_INVALID_ARGUMENT, "no certificate");
    refused(&(struct common_tls_files){a.cert, a.cert, a.ca}, COMMON_PERMISSION_DENIED, "chmod 600");
    refused(&(struct common_tls_files){"/nowhere/x.pem", a.key, a.ca}, COMMON_NOT_FOUND, "/nowhere/x.pem");
    refused(&(struct common_tls_files){a.cert, a.key, scratch.dir}, COMMON_INVALID_ARGUMENT, "regular file");
    refused(&past.files, COMMON_FAILED_PRECONDITION, "expired on");
    refused(&coming.files, COMMON_FAILED_PRECONDITION, "clock");
    assert_int_equal(chmod(a.key, 0640), 0);
    refused(&a.files, COMMON_PERMISSION_DENIED, "chmod 600");
    assert_int_equal(chmod(a.cert, 0600), 0);
    refused(&(struct common_tls_files){b.cert, a.cert, a.ca}, COMMON_INVALID_ARGUMENT, "no private key");
    static const char encrypted[] =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    const char *path = scratch_write(&scratch, "locked.key", encrypted, sizeof encrypted - 1, 0600);
    refused(&(struct common_tls_files){b.cert, path, b.ca}, COMMON_INVALID_ARGUMENT, "encrypted");
}

static void test_reload(void **state)
{
    (void)state;
    struct test_pki_files files;
    struct common_tls *tls;
    struct common_error err;
    test_pki_issue(pki, &(struct test_pki_ask){.name = "a", .uris = "banyan:one"}, &files);
    assert_int_equal(common_tls_new(&files.files, &tls, NULL), COMMON_OK);
    test_pki_issue(pki, &(struct test_pki_ask){.name = "a", .uris = "banyan:two"}, &files);
    assert_true(common_tls_says(tls, "banyan:one"));
    assert_int_equal(common_tls_reload(tls, &err), COMMON_OK);
    assert_true(common_tls_says(tls, "banyan:two"));
    assert_false(common_tls_says(tls, "banyan:one"));
    // In the middle of a change: the new certificate is there, its key is not. What was there goes on.
    char kept[PATH_MAX + 8];
    snprintf(kept, sizeof kept, "%s.old", files.key);
    assert_int_equal(rename(files.key, kept), 0);
    struct ssl_ctx_st *before = common_tls_context(tls, COMMON_TLS_ACCEPT);
    assert_int_equal(common_tls_reload(tls, &err), COMMON_NOT_FOUND);
    assert_non_null(strstr(err.message, files.key));
    assert_ptr_equal(common_tls_context(tls, COMMON_TLS_ACCEPT), before);
    assert_true(common_tls_says(tls, "banyan:two"));
    common_tls_unref(tls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reload, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
