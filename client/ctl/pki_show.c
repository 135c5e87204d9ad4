// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/pki.h"

#define FILE_BYTES (256 * 1024) // that a file of certificates may have

// ---- one certificate --------------------------------------------------------------------------------------

static bool write_name(X509_NAME *name, char *out, size_t size)
{
    BIO *bio = BIO_new(BIO_s_mem());
    bool good = bio && name && X509_NAME_print_ex(bio, name, 0, XN_FLAG_RFC2253) >= 0;
    int n = good ? BIO_read(bio, out, (int)size - 1) : 0;
    out[n > 0 ? n : 0] = '\0';
    BIO_free(bio);
    return good;
}

static bool read_time(const ASN1_TIME *from, int64_t *out)
{
    struct tm parts = {0};
    if (!from || ASN1_TIME_to_tm(from, &parts) != 1)
        return false;
    *out = (int64_t)timegm(&parts);
    return true;
}

// The string's bytes as they stand in the certificate, those that could upset a terminal as '?'.
static void take_text(const ASN1_STRING *from, char *out, size_t size)
{
    const unsigned char *data = ASN1_STRING_get0_data(from);
    size_t len = (size_t)ASN1_STRING_length(from), n = 0;
    for (; n < len && n + 1 < size; n++)
        out[n] = data[n] > ' ' && data[n] < 0x7f && data[n] != ',' ? (char)data[n] : '?';
    out[n] = '\0';
}

static void take_address(const ASN1_STRING *from, char *out, size_t size)
{
    int len = ASN1_STRING_length(from);
    if ((len != 4 && len != 16) ||
        !inet_ntop(len == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(from), out, (socklen_t)size))
        snprintf(out, size, "?");
}

struct words {  // separated by commas
    char *text; // [CTL_PKI_TEXT]
    size_t used, left_out;
};

static void add_word(struct words *to, const char *word)
{
    size_t len = strlen(word) + (to->used > 0);
    if (!*word)
        return;
    if (to->left_out || to->used + len + 16 > CTL_PKI_TEXT) // there is room to say how many
        to->left_out++;
    else
        to->used +=
            (size_t)snprintf(to->text + to->used, CTL_PKI_TEXT - to->used, "%s%s", to->used ? "," : "", word);
}

static void end_words(struct words *to)
{
    if (to->left_out)
        snprintf(to->text + to->used, CTL_PKI_TEXT - to->used, ",+%zu", to->left_out);
}

static void take_uri(const char *uri, struct ctl_pki_facts *out, struct words *workers)
{
    unsigned role = 0;
    size_t len = strlen(CTL_PKI_WORKER_URI);
    if (strncmp(uri, CTL_PKI_WORKER_URI, len) == 0)
        add_word(workers, uri + len);
    else if (strncmp(uri, "banyan:", 7) == 0 && ctl_pki_roles_parse(uri + 7, &role, NULL) == COMMON_OK)
        out->roles |= role;
}

static void take_names(const X509 *cert, struct ctl_pki_facts *out)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    struct words hosts = {.text = out->hosts}, workers = {.text = out->workers};
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        int type;
        char text[256] = "";
        const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        if (type == GEN_DNS)
            take_text(value, text, sizeof text);
        else if (type == GEN_IPADD)
            take_address(value, text, sizeof text);
        else if (type == GEN_URI) {
            take_text(value, text, sizeof text);
            take_uri(text, out, &workers);
            continue;
        }
        add_word(&hosts, text);
    }
    end_words(&hosts);
    end_words(&workers);
    GENERAL_NAMES_free(names);
}

static bool take_fingerprint(const X509 *cert, char *out, size_t size)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    size_t used = 0;
    if (X509_digest(cert, EVP_sha256(), digest, &len) != 1 || 3 * (size_t)len > size)
        return false;
    for (unsigned i = 0; i < len; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%02X", i ? ":" : "", digest[i]);
    return true;
}

static bool take_serial(const X509 *cert, char *out, size_t size)
{
    BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
    char *text = number ? BN_bn2hex(number) : NULL;
    bool good = text && strlen(text) < size;
    if (good)
        memcpy(out, text, strlen(text) + 1);
    OPENSSL_free(text);
    BN_free(number);
    return good;
}

static bool take_key(const X509 *cert, char *out, size_t size)
{
    EVP_PKEY *key = X509_get0_pubkey(cert);
    char group[24] = "";
    const char *type = key ? EVP_PKEY_get0_type_name(key) : NULL;
    if (!type)
        return false;
    if (EVP_PKEY_get_group_name(key, group, sizeof group, NULL) == 1)
        snprintf(out, size, "%s %s", type, strcmp(group, "prime256v1") == 0 ? "P-256" : group);
    else
        snprintf(out, size, "%s %d", type, EVP_PKEY_get_bits(key));
    return true;
}

enum common_code ctl_pki_read_facts(const X509 *cert, struct ctl_pki_facts *out, struct common_error *err)
{
    struct ctl_pki_facts facts = {.authority = X509_check_ca((X509 *)cert) == 1}; // it caches what it reads
    if (!write_name(X509_get_subject_name(cert), facts.subject, sizeof facts.subject) ||
        !write_name(X509_get_issuer_name(cert), facts.issuer, sizeof facts.issuer) ||
        !read_time(X509_get0_notBefore(cert), &facts.from_s) ||
        !read_time(X509_get0_notAfter(cert), &facts.till_s) ||
        !take_serial(cert, facts.serial, sizeof facts.serial) ||
        !take_fingerprint(cert, facts.fingerprint, sizeof facts.fingerprint) ||
        !take_key(cert, facts.key, sizeof facts.key)) {
        ERR_clear_error();
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the certificate's names, times or key cannot be read");
    }
    take_names(cert, &facts);
    ERR_clear_error();
    *out = facts;
    return COMMON_OK;
}

// ---- files of them ----------------------------------------------------------------------------------------

static enum common_code read_all(BIO *bio, const char *path, X509 *out[CTL_PKI_CERTS], size_t *n,
                                 struct common_error *err)
{
    X509 *cert;
    while ((cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        if (*n == CTL_PKI_CERTS) {
            X509_free(cert);
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' has more than %d certificates",
                                    path, CTL_PKI_CERTS);
        }
        out[(*n)++] = cert;
    }
    bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    if (!at_end)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s': certificate %zu is broken", path,
                                *n + 1);
    if (*n == 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "'%.200s' has no certificate (a line '-----BEGIN CERTIFICATE-----')", path);
    return COMMON_OK;
}

static enum common_code read_bytes(const char *path, char *text, size_t *len, struct common_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return common_error_set(err, errno == ENOENT ? COMMON_NOT_FOUND : COMMON_UNAVAILABLE, "'%.200s': %s",
                                path, strerror(errno));
    *len = fread(text, 1, FILE_BYTES + 1, file);
    int why = ferror(file) ? errno : 0;
    fclose(file);
    if (why)
        return common_error_set(err, COMMON_UNAVAILABLE, "'%.200s': %s", path, strerror(why));
    if (*len > FILE_BYTES)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "'%.200s' is longer than 256 KiB", path);
    return COMMON_OK;
}

enum common_code ctl_pki_read_file(const char *path, X509 *out[CTL_PKI_CERTS], size_t *n,
                                   struct common_error *err)
{
    char *text = malloc(FILE_BYTES + 1);
    size_t len = 0;
    *n = 0;
    if (!text)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for certificates");
    ERR_clear_error();
    enum common_code code = read_bytes(path, text, &len, err);
    BIO *bio = code == COMMON_OK ? BIO_new_mem_buf(text, (int)len) : NULL;
    if (code == COMMON_OK)
        code = bio ? read_all(bio, path, out, n, err)
                   : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for certificates");
    BIO_free(bio);
    free(text);
    for (; code != COMMON_OK && *n > 0; (*n)--)
        X509_free(out[*n - 1]);
    return code;
}
