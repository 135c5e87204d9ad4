// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <ctype.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/pki.h"

#define SERIAL_BITS 127 // positive, and below the 20 bytes that X.509 allows

static const struct {
    const char *name;
    unsigned role;
} roles[] = {
    {"coordinator", CTL_PKI_COORDINATOR},
    {"worker", CTL_PKI_WORKER},
    {"client", CTL_PKI_CLIENT},
};
#define N_ROLES (sizeof roles / sizeof *roles)

void ctl_pki_free(struct ctl_pki_pair *pair)
{
    X509_free(pair->cert);
    EVP_PKEY_free(pair->key);
    *pair = (struct ctl_pki_pair){0};
}

enum common_code ctl_pki_roles_parse(const char *text, unsigned *out, struct common_error *err)
{
    unsigned found = 0;
    for (const char *word = text;; word++) {
        size_t len = strcspn(word, ","), i = 0;
        while (i < N_ROLES && (strlen(roles[i].name) != len || strncmp(word, roles[i].name, len) != 0))
            i++;
        if (i == N_ROLES)
            return common_error_set(
                err, COMMON_INVALID_ARGUMENT,
                "'%.*s' is not a role: use coordinator, worker or client, or several, separated by commas",
                (int)(len < 40 ? len : 40), word);
        found |= roles[i].role;
        word += len;
        if (!*word)
            break;
    }
    *out = found;
    return COMMON_OK;
}

// ---- what stands in it ------------------------------------------------------------------------------------

static enum common_code failed(const char *what, struct common_error *err)
{
    char why[120];
    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    ERR_clear_error();
    return common_error_set(err, COMMON_INTERNAL, "OpenSSL cannot create %s: %s", what, why);
}

static enum common_code check_name(const char *name, struct common_error *err)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < len; i++)
        if (!isprint((unsigned char)name[i]))
            len = 0;
    if (len > 0 && len <= CTL_PKI_NAME)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT,
                            "the name of a certificate has 1 to %d printable ASCII characters", CTL_PKI_NAME);
}

static bool add_general(GENERAL_NAMES *names, int type, const void *data, size_t len)
{
    bool ip = type == GEN_IPADD;
    ASN1_STRING *string = ip ? ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
    GENERAL_NAME *name = GENERAL_NAME_new();
    if (string && name && ASN1_STRING_set(string, data, (int)len) == 1) {
        GENERAL_NAME_set0_value(name, type, string); // the name's from now on
        string = NULL;
        if (sk_GENERAL_NAME_push(names, name) > 0)
            return true;
    }
    ASN1_STRING_free(string);
    GENERAL_NAME_free(name);
    return false;
}

static bool is_dns_name(const char *host)
{
    size_t len = strlen(host);
    bool good = len > 0 && len <= 253 && host[0] != '.' && host[0] != '-';
    for (size_t i = 0; good && i < len; i++)
        good = isalnum((unsigned char)host[i]) || host[i] == '-' || host[i] == '_' ||
               (host[i] == '.' && host[i + 1] != '.') || (host[i] == '*' && i == 0 && host[1] == '.');
    return good;
}

static enum common_code add_hosts(GENERAL_NAMES *names, const char *hosts, struct common_error *err)
{
    size_t n = 0;
    for (const char *at = hosts; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char host[256];
        uint8_t address[16];
        size_t len = strcspn(at, ","), width = 0;
        snprintf(host, sizeof host, "%.*s", (int)(len < sizeof host ? len : 0), at);
        if (inet_pton(AF_INET, host, address) == 1)
            width = 4;
        else if (inet_pton(AF_INET6, host, address) == 1)
            width = 16;
        else if (!is_dns_name(host))
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "--host '%.*s' is not a name or an address, as in --host a,10.0.0.5",
                                    (int)(len < 100 ? len : 100), at);
        if (++n > CTL_PKI_HOSTS)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "--host: at most %d names and addresses",
                                    CTL_PKI_HOSTS);
        if (!(width ? add_general(names, GEN_IPADD, address, width)
                    : add_general(names, GEN_DNS, host, strlen(host))))
            return failed("a list of hosts", err);
    }
    return COMMON_OK;
}

static enum common_code add_workers(GENERAL_NAMES *names, const char *workers, struct common_error *err)
{
    size_t n = 0;
    for (const char *at = workers; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char uri[sizeof CTL_PKI_WORKER_URI + CTL_PKI_NAME];
        size_t len = strcspn(at, ",");
        bool good = len > 0 && len <= CTL_PKI_NAME && ++n <= CTL_PKI_HOSTS;
        for (size_t i = 0; good && i < len; i++)
            good = isgraph((unsigned char)at[i]);
        if (!good)
            return common_error_set(
                err, COMMON_INVALID_ARGUMENT,
                "--worker: 1 to %d names of workers, each of 1 to %d printable ASCII characters",
                CTL_PKI_HOSTS, CTL_PKI_NAME);
        int size = snprintf(uri, sizeof uri, "%s%.*s", CTL_PKI_WORKER_URI, (int)len, at);
        if (!add_general(names, GEN_URI, uri, (size_t)size))
            return failed("a list of workers", err);
    }
    return COMMON_OK;
}

static enum common_code add_names(X509 *cert, const struct ctl_pki_wish *wish, struct common_error *err)
{
    GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
    bool good = names != NULL;
    for (size_t i = 0; good && i < N_ROLES; i++) {
        char uri[32];
        int len = snprintf(uri, sizeof uri, "banyan:%s", roles[i].name);
        if (wish->roles & roles[i].role)
            good = add_general(names, GEN_URI, uri, (size_t)len);
    }
    enum common_code code = good ? add_workers(names, wish->workers, err) : failed("a list of names", err);
    if (code == COMMON_OK)
        code = add_hosts(names, wish->hosts, err);
    if (code == COMMON_OK && X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, 0) != 1)
        code = failed("a list of names", err);
    GENERAL_NAMES_free(names);
    return code;
}

static bool add_extension(X509 *cert, X509 *by, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, by, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool good = extension && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return good;
}

// What its key may be used for. Daemons dial each other: theirs serve at both ends of a connection.
static bool add_usage(X509 *cert, X509 *by, unsigned wanted)
{
    const char *constraints = wanted ? "critical,CA:FALSE" : "critical,CA:TRUE,pathlen:0";
    const char *usage = wanted ? "critical,digitalSignature" : "critical,keyCertSign,cRLSign";
    const char *purpose = wanted == CTL_PKI_CLIENT ? "clientAuth" : "serverAuth,clientAuth";
    return add_extension(cert, by, NID_basic_constraints, constraints) &&
           add_extension(cert, by, NID_key_usage, usage) &&
           (!wanted || add_extension(cert, by, NID_ext_key_usage, purpose)) &&
           add_extension(cert, by, NID_subject_key_identifier, "hash") &&
           add_extension(cert, by, NID_authority_key_identifier, "keyid:always");
}

static bool add_serial(X509 *cert)
{
    BIGNUM *serial = BN_new();
    bool good = serial && BN_rand(serial, SERIAL_BITS, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
                BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(cert)) != NULL;
    BN_free(serial);
    return good;
}

static bool add_subject(X509 *cert, const char *name)
{
    return X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "O", MBSTRING_UTF8, (const void *)"Banyan",
                                      -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8, (const void *)name,
                                      -1, -1, 0) == 1;
}

// ---- making one -------------------------------------------------------------------------------------------

static enum common_code fill_in(const struct ctl_pki_wish *wish, const struct ctl_pki_pair *by,
                                const struct ctl_pki_pair *own, struct common_error *err)
{
    X509 *signer = by ? by->cert : own->cert;
    bool good = X509_set_version(own->cert, X509_VERSION_3) == 1 && add_serial(own->cert) &&
                ASN1_TIME_set(X509_getm_notBefore(own->cert), (time_t)wish->from_s) &&
                ASN1_TIME_set(X509_getm_notAfter(own->cert), (time_t)wish->till_s) &&
                add_subject(own->cert, wish->name) &&
                X509_set_issuer_name(own->cert, X509_get_subject_name(signer)) == 1 &&
                X509_set_pubkey(own->cert, own->key) == 1 && add_usage(own->cert, signer, wish->roles);
    if (!good)
        return failed("a certificate", err);
    enum common_code code = wish->roles ? add_names(own->cert, wish, err) : COMMON_OK;
    if (code == COMMON_OK && X509_sign(own->cert, by ? by->key : own->key, EVP_sha256()) == 0)
        code = failed("a signature", err);
    return code;
}

static enum common_code check_wish(const struct ctl_pki_wish *wish, const struct ctl_pki_pair *by,
                                   struct common_error *err)
{
    struct ctl_pki_facts signer = {0};
    enum common_code code = check_name(wish->name, err);
    if (code == COMMON_OK && wish->till_s <= wish->from_s)
        code = common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a certificate that ends before it begins is never valid");
    if (code == COMMON_OK && by)
        code = ctl_pki_read_facts(by->cert, &signer, err);
    if (code == COMMON_OK && by && wish->till_s > signer.till_s)
        code = common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "it would outlive its CA, which expires in %lld days: give fewer --days, or create a new CA",
            (long long)((signer.till_s - wish->from_s) / 86400));
    return code;
}

enum common_code ctl_pki_make(const struct ctl_pki_wish *wish, const struct ctl_pki_pair *by,
                              struct ctl_pki_pair *out, struct common_error *err)
{
    enum common_code code = check_wish(wish, by, err);
    if (code != COMMON_OK)
        return code;
    struct ctl_pki_pair own = {.cert = X509_new(), .key = wish->key};
    if (!own.key)
        own.key = EVP_EC_gen("P-256");
    else if (!EVP_PKEY_up_ref(own.key))
        own.key = NULL;
    code = own.cert && own.key ? fill_in(wish, by, &own, err) : failed("a key", err);
    if (code == COMMON_OK)
        *out = own;
    else
        ctl_pki_free(&own);
    return code;
}
