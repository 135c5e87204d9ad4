// SPDX-License-Identifier: Apache-2.0
#include "common/secure/tls.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/secure/secret.h"
#include "common/secure/tls_words.h"

#define CIPHERS_13 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CIPHERS_12 "ECDHE+AESGCM:ECDHE+CHACHA20"
#define GROUPS     "X25519:P-256:P-384"

enum {
    FILE_MAX = 1 << 20,
    KEY_MAX = 64 << 10,
    CHAIN_MAX = 16, // certificates in one file of ours, or authorities: each handshake looks through them
    SECURITY_LEVEL = 2,
};

// What was read at one time. Never altered afterwards.
struct tls_set {
    char *text[3]; // cert, key, ca
    SSL_CTX *contexts[COMMON_TLS_ENDS];
    X509 *own; // NULL: none
    int64_t expires_s, ca_expires_s;
};

enum { CERT, KEY, CA };

struct common_tls {
    unsigned refs; // atomic
    char *files[3];
    struct tls_set *set;
};

// ---- files ----------------------------------------------------------------------------------------------

static void wipe(char *text)
{
    if (text)
        OPENSSL_cleanse(text, strlen(text));
    free(text);
}

// Reads a file that anybody may read.
static enum common_code read_file(const char *path, const char *what, char *buf, size_t cap, size_t *len,
                                  struct common_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return common_error_set(err, errno == ENOENT ? COMMON_NOT_FOUND : COMMON_PERMISSION_DENIED,
                                "%s file '%s' cannot be opened: %s", what, path, strerrordesc_np(errno));
    struct stat st;
    enum common_code code = COMMON_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        code =
            common_error_set(err, COMMON_INVALID_ARGUMENT, "%s file '%s' is not a regular file", what, path);
    size_t n = 0;
    ssize_t got = 1;
    while (code == COMMON_OK && n < cap && got > 0) {
        got = read(fd, buf + n, cap - n);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got < 0)
            code = common_error_set(err, COMMON_UNAVAILABLE, "%s file '%s': %s", what, path,
                                    strerrordesc_np(errno));
        else
            n += (size_t)got;
    }
    close(fd);
    if (code == COMMON_OK && n == cap)
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "%s file '%s' is larger than %zu bytes", what,
                                path, cap - 1);
    *len = n;
    return code;
}

static enum common_code load_text(const char *path, int which, char **out, struct common_error *err)
{
    static const char *const names[] = {"certificate", "key", "CA"};
    size_t cap = which == KEY ? KEY_MAX : FILE_MAX, len = 0;
    char *text = malloc(cap + 1);
    if (!text)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for '%s'", path);
    enum common_code code = which == KEY ? common_private_read(path, names[KEY], text, cap, &len, err)
                                         : read_file(path, names[which], text, cap, &len, err);
    if (code == COMMON_OK && memchr(text, '\0', len))
        code = common_error_set(err, COMMON_INVALID_ARGUMENT, "%s file '%s' is not PEM", names[which], path);
    if (code != COMMON_OK) {
        OPENSSL_cleanse(text, len);
        free(text);
        return code;
    }
    text[len] = '\0';
    char *fits = malloc(len + 1); // a key stays in one place only
    if (fits) {
        memcpy(fits, text, len + 1);
        *out = fits;
    } else {
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for '%s'", path);
    }
    OPENSSL_cleanse(text, len);
    free(text);
    return code;
}

// ---- certificates ---------------------------------------------------------------------------------------

static int64_t seconds_of(const ASN1_TIME *when)
{
    struct tm tm;
    return ASN1_TIME_to_tm(when, &tm) ? (int64_t)timegm(&tm) : 0;
}

static STACK_OF(X509_INFO) * parse(const char *text, const char *path, struct common_error *err)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    ERR_clear_error();
    STACK_OF(X509_INFO) *found = bio ? PEM_X509_INFO_read_bio(bio, NULL, common_tls_no_password, NULL) : NULL;
    BIO_free(bio);
    int certs = 0;
    for (int i = 0; i < sk_X509_INFO_num(found); i++)
        certs += sk_X509_INFO_value(found, i)->x509 != NULL;
    if (certs > 0 && sk_X509_INFO_num(found) <= CHAIN_MAX)
        return found;
    if (certs > 0)
        common_error_set(err, COMMON_INVALID_ARGUMENT, "'%s' holds more than %d certificates", path,
                         CHAIN_MAX);
    else
        common_error_set(err, COMMON_INVALID_ARGUMENT,
                         "'%s' holds no certificate in PEM (-----BEGIN CERTIFICATE-----)", path);
    sk_X509_INFO_pop_free(found, X509_INFO_free);
    ERR_clear_error();
    return NULL;
}

static enum common_code check_time(const X509 *cert, const char *path, struct common_error *err)
{
    char text[64];
    int before = X509_cmp_current_time(X509_get0_notBefore(cert));
    int after = X509_cmp_current_time(X509_get0_notAfter(cert));
    if (after < 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the certificate in '%s' expired on %s: replace it", path,
                                common_tls_date(X509_get0_notAfter(cert), text));
    if (before > 0)
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "the certificate in '%s' is not valid before %s: is this machine's clock right?", path,
            common_tls_date(X509_get0_notBefore(cert), text));
    return COMMON_OK;
}

// Our certificate, those behind it, and the key.
static enum common_code use_own(struct tls_set *set, char *const files[3], struct common_error *err)
{
    STACK_OF(X509_INFO) *chain = parse(set->text[CERT], files[CERT], err);
    if (!chain)
        return COMMON_INVALID_ARGUMENT;
    BIO *bio = BIO_new_mem_buf(set->text[KEY], -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, common_tls_no_password, NULL) : NULL;
    BIO_free(bio);
    enum common_code code = COMMON_INVALID_ARGUMENT;
    if (!key) {
        common_error_set(err, code, "'%s' holds no private key in PEM, or an encrypted one: %s", files[KEY],
                         common_tls_reason());
        goto free_chain;
    }
    for (int i = 0; i < sk_X509_INFO_num(chain); i++) {
        X509 *cert = sk_X509_INFO_value(chain, i)->x509;
        if (!cert)
            continue;
        bool first = !set->own;
        if (first) {
            X509_up_ref(cert);
            set->own = cert;
        }
        for (int end = 0; end < COMMON_TLS_ENDS; end++)
            if (!(first ? SSL_CTX_use_certificate(set->contexts[end], cert)
                        : SSL_CTX_add1_chain_cert(set->contexts[end], cert))) {
                common_error_set(err, code, "the certificate in '%s' cannot be used: %s", files[CERT],
                                 common_tls_reason());
                goto free_key;
            }
    }
    if (!X509_check_private_key(set->own, key)) {
        common_error_set(err, code, "the key in '%s' is not that of the certificate in '%s'", files[KEY],
                         files[CERT]);
        goto free_key;
    }
    for (int end = 0; end < COMMON_TLS_ENDS; end++)
        if (!SSL_CTX_use_PrivateKey(set->contexts[end], key)) {
            common_error_set(err, code, "the key in '%s' cannot be used: %s", files[KEY],
                             common_tls_reason());
            goto free_key;
        }
    set->expires_s = seconds_of(X509_get0_notAfter(set->own));
    code = check_time(set->own, files[CERT], err);

free_key:
    EVP_PKEY_free(key);
free_chain:
    sk_X509_INFO_pop_free(chain, X509_INFO_free);
    ERR_clear_error();
    return code;
}

// The authorities that we trust. The three ends share one store.
static enum common_code use_ca(struct tls_set *set, char *const files[3], struct common_error *err)
{
    STACK_OF(X509_INFO) *found = parse(set->text[CA], files[CA], err);
    if (!found)
        return COMMON_INVALID_ARGUMENT;
    X509_STORE *store = X509_STORE_new();
    bool ok = store != NULL, revokes = false;
    int64_t first_s = INT64_MAX, own_s = INT64_MIN;
    for (int i = 0; ok && i < sk_X509_INFO_num(found); i++) {
        const X509_INFO *info = sk_X509_INFO_value(found, i);
        if (info->x509) {
            int64_t ends_s = seconds_of(X509_get0_notAfter(info->x509));
            if (ends_s < first_s)
                first_s = ends_s;
            if (set->own && X509_check_issued(info->x509, set->own) == X509_V_OK && ends_s > own_s)
                own_s = ends_s;
            ok = X509_STORE_add_cert(store, info->x509);
        }
        if (ok && info->crl) {
            ok = X509_STORE_add_crl(store, info->crl);
            revokes = true;
        }
    }
    if (ok && revokes)
        ok = X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    for (int end = 0; ok && end < COMMON_TLS_ENDS; end++)
        SSL_CTX_set1_cert_store(set->contexts[end], store);
    if (!ok)
        common_error_set(err, COMMON_INVALID_ARGUMENT, "the certificates in '%s' cannot be used: %s",
                         files[CA], common_tls_reason());
    set->ca_expires_s = own_s != INT64_MIN ? own_s : first_s;
    X509_STORE_free(store);
    sk_X509_INFO_pop_free(found, X509_INFO_free);
    ERR_clear_error();
    return ok ? COMMON_OK : COMMON_INVALID_ARGUMENT;
}

// ---- sets -----------------------------------------------------------------------------------------------

static SSL_CTX *context_new(enum common_tls_end end)
{
    SSL_CTX *ctx = SSL_CTX_new(end == COMMON_TLS_DIAL ? TLS_client_method() : TLS_server_method());
    if (!ctx)
        return NULL;
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_security_level(ctx, SECURITY_LEVEL);
    int least = end == COMMON_TLS_ACCEPT_OLD ? TLS1_2_VERSION : TLS1_3_VERSION;
    if (SSL_CTX_set_min_proto_version(ctx, least) && SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) &&
        SSL_CTX_set_ciphersuites(ctx, CIPHERS_13) && SSL_CTX_set_cipher_list(ctx, CIPHERS_12) &&
        SSL_CTX_set1_groups_list(ctx, GROUPS) && SSL_CTX_set_num_tickets(ctx, 0))
        return ctx;
    SSL_CTX_free(ctx);
    return NULL;
}

static void set_free(struct tls_set *set)
{
    if (!set)
        return;
    for (int end = 0; end < COMMON_TLS_ENDS; end++)
        SSL_CTX_free(set->contexts[end]);
    X509_free(set->own);
    for (int i = 0; i < 3; i++)
        wipe(set->text[i]);
    free(set);
}

static enum common_code set_load(char *const files[3], struct tls_set **out, struct common_error *err)
{
    enum common_code code = COMMON_OK;
    struct tls_set *set = calloc(1, sizeof *set);
    if (!set)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for certificates");
    set->expires_s = INT64_MAX;
    for (int i = 0; code == COMMON_OK && i < 3; i++)
        if (files[i])
            code = load_text(files[i], i, &set->text[i], err);
    for (int end = 0; code == COMMON_OK && end < COMMON_TLS_ENDS; end++) {
        set->contexts[end] = context_new((enum common_tls_end)end);
        if (!set->contexts[end])
            code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "OpenSSL cannot create a context: %s",
                                    common_tls_reason());
    }
    if (code == COMMON_OK && files[CERT])
        code = use_own(set, files, err);
    if (code == COMMON_OK)
        code = use_ca(set, files, err);
    if (code == COMMON_OK)
        *out = set;
    else
        set_free(set);
    return code;
}

// ---- life -----------------------------------------------------------------------------------------------

enum common_code common_tls_new(const struct common_tls_files *files, struct common_tls **out,
                                struct common_error *err)
{
    const char *const names[] = {files->cert, files->key, files->ca};
    if (!files->ca || !files->cert != !files->key)
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "TLS needs --tls-ca FILE, and --tls-cert FILE and --tls-key FILE together or not at all");
    struct common_tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for TLS");
    tls->refs = 1;
    bool ok = true;
    for (int i = 0; ok && i < 3; i++)
        ok = !names[i] || (tls->files[i] = strdup(names[i]));
    enum common_code code = ok ? set_load(tls->files, &tls->set, err)
                               : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for TLS");
    if (code == COMMON_OK)
        *out = tls;
    else
        common_tls_unref(tls);
    return code;
}

enum common_code common_tls_reload(struct common_tls *tls, struct common_error *err)
{
    struct tls_set *fresh;
    enum common_code code = set_load(tls->files, &fresh, err);
    if (code != COMMON_OK)
        return code;
    set_free(tls->set);
    tls->set = fresh;
    return COMMON_OK;
}

struct common_tls *common_tls_ref(struct common_tls *tls)
{
    if (tls)
        __atomic_add_fetch(&tls->refs, 1, __ATOMIC_RELAXED);
    return tls;
}

void common_tls_unref(struct common_tls *tls)
{
    if (!tls || __atomic_sub_fetch(&tls->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    set_free(tls->set);
    for (int i = 0; i < 3; i++)
        free(tls->files[i]);
    free(tls);
}

// ---- what it says ---------------------------------------------------------------------------------------

int64_t common_tls_expires_s(const struct common_tls *tls)
{
    return tls->set->expires_s;
}

int64_t common_tls_ca_expires_s(const struct common_tls *tls)
{
    return tls->set->ca_expires_s;
}

bool common_tls_has_cert(const struct common_tls *tls)
{
    return tls->set->own != NULL;
}

bool common_tls_says(const struct common_tls *tls, const char *uri)
{
    return common_tls_cert_says(tls->set->own, uri);
}

void common_tls_text(const struct common_tls *tls, struct common_tls_text *out)
{
    *out = (struct common_tls_text){tls->set->text[CERT], tls->set->text[KEY], tls->set->text[CA]};
}

struct ssl_ctx_st *common_tls_context(const struct common_tls *tls, enum common_tls_end end)
{
    assert(end < COMMON_TLS_ENDS);
    return tls->set->contexts[end];
}
