// SPDX-License-Identifier: Apache-2.0
// common/secure/tls.c and tls_words.c: files of certificates, keys and authorities, and what a certificate
// says of its owner. Input: u8 what, then records | kind u8 | bytes u16 | bytes |: kind's bits 0-1 the file
// (certificate, key, authority; 3: the certificate is looked at by itself), bits 2-4 how it stands there.
// What has no record is what is right.
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "common/secure/tls.h"
#include "common/secure/tls_words.h"
#include "tests/fuzz/certificates.h"
#include "tests/fuzz/fuzz.h"

enum { FILES = 3, ALONE = 3, TEXT_MAX = 64 << 10, NO_CERT = 1, RELOAD = 2 };
enum { CERTIFICATE, PRIVATE, REVOKED, TRUSTED, OLD_KEY, CURVE, GARBAGE, BARE }; // how it stands there

struct file {
    char text[TEXT_MAX];
    size_t len;
    bool given;
};

static struct file files[FILES];
static const char *const names[FILES] = {"cert", "key", "ca"};
static const char *const uris[] = {"banyan:worker", "banyan:coordinator", "banyan:client"};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    return 0;
}

static void append(struct file *file, const void *bytes, size_t len)
{
    if (len > TEXT_MAX - file->len)
        return;
    memcpy(file->text + file->len, bytes, len);
    file->len += len;
}

static void append_text(struct file *file, const char *text)
{
    append(file, text, strlen(text));
}

// What is PEM of these bytes, or the bytes.
static void put(struct file *file, unsigned how, const uint8_t *bytes, size_t len)
{
    static const char *const labels[] = {"CERTIFICATE",    "PRIVATE KEY",   "X509 CRL", "TRUSTED CERTIFICATE",
                                         "EC PRIVATE KEY", "EC PARAMETERS", "GARBAGE"};
    uint8_t line[80];
    char edge[64];
    file->given = true;
    if (how == BARE) {
        if (len > 0)
            append(file, bytes, len);
        return;
    }
    snprintf(edge, sizeof edge, "-----BEGIN %s-----\n", labels[how]);
    append_text(file, edge);
    for (size_t at = 0; at < len; at += 48) {
        int n = EVP_EncodeBlock(line, bytes + at, (int)(len - at < 48 ? len - at : 48));
        append(file, line, (size_t)n);
        append_text(file, "\n");
    }
    snprintf(edge, sizeof edge, "-----END %s-----\n", labels[how]);
    append_text(file, edge);
}

static bool holds(const uint8_t *bytes, size_t len, const char *text)
{
    return memmem(bytes, len, text, strlen(text)) != NULL;
}

// A certificate says only what stands in it, and is for no host that does not stand in it.
static void look(const uint8_t *bytes, size_t len)
{
    const unsigned char *at = bytes;
    char text[64];
    X509 *cert = len > 0 ? d2i_X509(NULL, &at, (long)len) : NULL;
    for (size_t i = 0; i < sizeof uris / sizeof *uris; i++)
        FUZZ_CHECK(!common_tls_cert_says(cert, uris[i]) || holds(bytes, len, uris[i]));
    FUZZ_CHECK(!common_tls_cert_says(cert, "banyan:"));
    if (cert) {
        const unsigned flags = X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT;
        FUZZ_CHECK(strlen(common_tls_date(X509_get0_notAfter(cert), text)) < sizeof text);
        X509_check_host(cert, "host.example", 0, flags, NULL);
        FUZZ_CHECK(X509_check_ip_asc(cert, "127.0.0.1", 0) != 1 || holds(bytes, len, "\x7f"));
    }
    X509_free(cert);
    ERR_clear_error();
}

static void check(struct common_tls *tls, bool shows)
{
    struct common_tls_text text;
    common_tls_text(tls, &text);
    FUZZ_CHECK(common_tls_has_cert(tls) == shows && (text.cert != NULL) == shows && text.ca);
    FUZZ_CHECK((common_tls_expires_s(tls) == INT64_MAX) == !shows);
    common_tls_ca_expires_s(tls);
    for (size_t i = 0; i < sizeof uris / sizeof *uris; i++)
        FUZZ_CHECK(!common_tls_says(tls, uris[i]) || shows);
    for (int end = 0; end < COMMON_TLS_ENDS; end++) {
        SSL *ssl = SSL_new(common_tls_context(tls, (enum common_tls_end)end));
        FUZZ_CHECK(ssl);
        SSL_free(ssl);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        const uint8_t *bytes;
        size_t len;
        unsigned how;
    } right[FILES] = {{fuzz_cert, sizeof fuzz_cert, CERTIFICATE},
                      {fuzz_key, sizeof fuzz_key, PRIVATE},
                      {fuzz_ca, sizeof fuzz_ca, CERTIFICATE}};
    struct fuzz_input in = {data, size};
    uint8_t what = fuzz_u8(&in);
    bool shows = !(what & NO_CERT);
    for (int i = 0; i < FILES; i++)
        files[i].len = files[i].given = 0;
    while (in.left > 0) {
        uint8_t kind = fuzz_u8(&in);
        size_t len = fuzz_u16(&in);
        const uint8_t *bytes = fuzz_bytes(&in, len, &len);
        if ((kind & 3) == ALONE)
            look(bytes, len);
        else
            put(&files[kind & 3], kind >> 2 & 7, bytes, len);
    }
    bool altered = false;
    for (int i = 0; i < FILES; i++) {
        altered |= files[i].given;
        if (!files[i].given)
            put(&files[i], right[i].how, right[i].bytes, right[i].len);
        fuzz_write_file(names[i], files[i].text, files[i].len);
    }
    const struct common_tls_files paths = {shows ? names[0] : NULL, shows ? names[1] : NULL, names[2]};
    struct common_tls *tls;
    struct common_error err;
    enum common_code code = common_tls_new(&paths, &tls, &err);
    FUZZ_CHECK(code == COMMON_OK || err.message[0]);
    FUZZ_CHECK(code == COMMON_OK || altered);
    FUZZ_CHECK(ERR_peek_error() == 0);
    if (code != COMMON_OK)
        return 0;
    check(tls, shows);
    if (what & RELOAD) { // a file that is no good leaves what was there
        fuzz_write_file("ca", "none", 4);
        FUZZ_CHECK(common_tls_reload(tls, &err) != COMMON_OK && err.message[0]);
        check(tls, shows);
    }
    common_tls_unref(tls);
    return 0;
}
