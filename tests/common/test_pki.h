// SPDX-License-Identifier: Apache-2.0
// Certificates of a test's own, made by OpenSSL's library when it runs: an authority, and what it issues. EC
// P-256. Every failure here ends the program.
#ifndef TESTS_COMMON_TEST_PKI_H
#define TESTS_COMMON_TEST_PKI_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/secure/tls.h"

struct test_pki; // an authority

// Writes DIR/NAME-ca.pem.
struct test_pki *test_pki_new(const char *dir, const char *name);
void test_pki_free(struct test_pki *pki); // the files stay

struct test_pki_ask {
    const char *name;      // writes DIR/NAME.pem and DIR/NAME.key (0600)
    const char *uris;      // of subjectAltName, with commas: "banyan:worker,banyan:client"; NULL: none
    const char *hosts;     // likewise, names and addresses: "localhost,127.0.0.1"; NULL: none
    int64_t from_s, to_s;  // from now; both 0: from an hour ago to tomorrow
    bool for_clients_only; // extended key usage: clientAuth alone; else both
};

struct test_pki_files {
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    struct common_tls_files files; // of these
};

void test_pki_issue(struct test_pki *pki, const struct test_pki_ask *ask, struct test_pki_files *out);

// The authority alone, for peers without a certificate.
void test_pki_ca(const struct test_pki *pki, struct test_pki_files *out);

// Rewrites the authority's file, with a list of revoked certificates behind it: the one in this file is on
// it.
void test_pki_revoke(struct test_pki *pki, const char *cert_file);

// As test_pki_issue, and common_tls_new of it.
struct common_tls *test_pki_tls(struct test_pki *pki, const struct test_pki_ask *ask);

#endif
