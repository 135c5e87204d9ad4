// SPDX-License-Identifier: Apache-2.0
#include "tests/common/test_pki.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct test_pki {
    char dir[PATH_MAX / 2], ca[PATH_MAX];
    EVP_PKEY *key;
    X509 *cert;
    long serial;
};

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "test_pki: %s\n", what);
    abort();
}

static void extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    must(extension && X509_add_ext(cert, extension, -1), value);
    X509_EXTENSION_free(extension);
}

static X509 *certify(struct test_pki *pki, EVP_PKEY *key, const char *name, int64_t from_s, int64_t to_s)
{
    X509 *cert = X509_new();
    must(cert && X509_set_version(cert, 2), "certificate");
    ASN1_INTEGER_set(X509_get_serialNumber(cert), ++pki->serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), from_s);
    X509_gmtime_adj(X509_getm_notAfter(cert), to_s);
    X509_NAME *subject = X509_get_subject_name(cert);
    must(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0),
         name);
    must(X509_set_pubkey(cert, key), "public key");
    return cert;
}

static void write_certs(const struct test_pki *pki, const char *path, X509 *cert, X509_CRL *crl)
{
    (void)pki;
    FILE *file = fopen(path, "w");
    must(file && PEM_write_X509(file, cert) && (!crl || PEM_write_X509_CRL(file, crl)), path);
    must(fclose(file) == 0, path);
}

struct test_pki *test_pki_new(const char *dir, const char *name)
{
    struct test_pki *pki = calloc(1, sizeof *pki);
    must(pki != NULL, "memory");
    snprintf(pki->dir, sizeof pki->dir, "%s", dir);
    snprintf(pki->ca, sizeof pki->ca, "%s/%s-ca.pem", dir, name);
    pki->key = EVP_EC_gen("P-256");
    must(pki->key != NULL, "key");
    pki->cert = certify(pki, pki->key, name, -2 * 3600, 10 * 24 * 3600);
    must(X509_set_issuer_name(pki->cert, X509_get_subject_name(pki->cert)), "issuer");
    extend(pki->cert, pki->cert, NID_basic_constraints, "critical,CA:TRUE");
    extend(pki->cert, pki->cert, NID_key_usage, "critical,keyCertSign,cRLSign");
    extend(pki->cert, pki->cert, NID_subject_key_identifier, "hash");
    must(X509_sign(pki->cert, pki->key, EVP_sha256()) > 0, "signature");
    write_certs(pki, pki->ca, pki->cert, NULL);
    return pki;
}

void test_pki_free(struct test_pki *pki)
{
    if (!pki)
        return;
    EVP_PKEY_free(pki->key);
    X509_free(pki->cert);
    free(pki);
}

static void add_names(char *out, size_t len, const char *list, bool uris)
{
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", list ? list : "");
    for (char *one; (one = strsep(&rest, ",")) != NULL;) {
        struct in6_addr any;
        const char *kind = "DNS";
        if (!*one)
            continue;
        if (uris)
            kind = "URI";
        else if (inet_pton(AF_INET, one, &any) == 1 || inet_pton(AF_INET6, one, &any) == 1)
            kind = "IP";
        snprintf(out + strlen(out), len - strlen(out), "%s%s:%s", *out ? "," : "", kind, one);
    }
}

void test_pki_ca(const struct test_pki *pki, struct test_pki_files *out)
{
    *out = (struct test_pki_files){0};
    memcpy(out->ca, pki->ca, sizeof out->ca);
    out->files.ca = out->ca;
}

void test_pki_issue(struct test_pki *pki, const struct test_pki_ask *ask, struct test_pki_files *out)
{
    bool usual = ask->from_s == 0 && ask->to_s == 0;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    must(key != NULL, "key");
    X509 *cert = certify(pki, key, ask->name, usual ? -3600 : ask->from_s, usual ? 24 * 3600 : ask->to_s);
    char names[1024] = "";
    add_names(names, sizeof names, ask->uris, true);
    add_names(names, sizeof names, ask->hosts, false);
    must(X509_set_issuer_name(cert, X509_get_subject_name(pki->cert)), "issuer");
    extend(cert, pki->cert, NID_basic_constraints, "critical,CA:FALSE");
    extend(cert, pki->cert, NID_key_usage, "critical,digitalSignature");
    extend(cert, pki->cert, NID_ext_key_usage,
           ask->for_clients_only ? "clientAuth" : "serverAuth,clientAuth");
    extend(cert, pki->cert, NID_authority_key_identifier, "keyid");
    if (*names)
        extend(cert, pki->cert, NID_subject_alt_name, names);
    must(X509_sign(cert, pki->key, EVP_sha256()) > 0, "signature");
    test_pki_ca(pki, out);
    must(snprintf(out->cert, sizeof out->cert, "%s/%s.pem", pki->dir, ask->name) < (int)sizeof out->cert &&
             snprintf(out->key, sizeof out->key, "%s/%s.key", pki->dir, ask->name) < (int)sizeof out->key,
         "path");
    out->files = (struct common_tls_files){out->cert, out->key, out->ca};
    write_certs(pki, out->cert, cert, NULL);
    unlink(out->key);
    mode_t before = umask(077);
    FILE *file = fopen(out->key, "w");
    umask(before);
    must(file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) && fclose(file) == 0, out->key);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void test_pki_revoke(struct test_pki *pki, const char *cert_file)
{
    FILE *file = fopen(cert_file, "r");
    X509 *cert = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    must(cert && fclose(file) == 0, cert_file);
    X509_CRL *crl = X509_CRL_new();
    X509_REVOKED *revoked = X509_REVOKED_new();
    ASN1_TIME *now = X509_gmtime_adj(NULL, -60), *later = X509_gmtime_adj(NULL, 24 * 3600);
    must(crl && revoked && now && later, "memory");
    must(X509_CRL_set_version(crl, 1) && X509_CRL_set_issuer_name(crl, X509_get_subject_name(pki->cert)) &&
             X509_CRL_set1_lastUpdate(crl, now) && X509_CRL_set1_nextUpdate(crl, later) &&
             X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(cert)) &&
             X509_REVOKED_set_revocationDate(revoked, now) && X509_CRL_add0_revoked(crl, revoked) &&
             X509_CRL_sort(crl) && X509_CRL_sign(crl, pki->key, EVP_sha256()) > 0,
         "list of revoked certificates");
    write_certs(pki, pki->ca, pki->cert, crl);
    ASN1_TIME_free(now);
    ASN1_TIME_free(later);
    X509_CRL_free(crl);
    X509_free(cert);
}

struct common_tls *test_pki_tls(struct test_pki *pki, const struct test_pki_ask *ask)
{
    struct test_pki_files files;
    struct common_tls *tls;
    struct common_error err = {0};
    test_pki_issue(pki, ask, &files);
    must(common_tls_new(&files.files, &tls, &err) == COMMON_OK, err.message);
    return tls;
}
