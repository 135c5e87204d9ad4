// SPDX-License-Identifier: Apache-2.0
#include "common/secure/tls_words.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *common_tls_reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return text ? text : "no reason given";
}

int common_tls_no_password(char *buf, int size, int writes, void *arg)
{
    (void)buf, (void)size, (void)writes, (void)arg;
    return 0;
}

const char *common_tls_date(const ASN1_TIME *when, char buf[64])
{
    struct tm tm;
    if (!ASN1_TIME_to_tm(when, &tm) || strftime(buf, 64, "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
        snprintf(buf, 64, "an unreadable date");
    return buf;
}

// ---- certificates ---------------------------------------------------------------------------------------

static GENERAL_NAMES *names_of(const X509 *cert)
{
    return cert ? X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL) : NULL;
}

static bool has_uri(const X509 *cert, const char *uri, bool as_prefix)
{
    GENERAL_NAMES *names = names_of(cert);
    bool found = false;
    size_t len = strlen(uri);
    for (int i = 0; !found && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_URI)
            continue;
        const ASN1_IA5STRING *text = name->d.uniformResourceIdentifier;
        size_t has = (size_t)ASN1_STRING_length(text);
        found = (as_prefix ? has >= len : has == len) && memcmp(ASN1_STRING_get0_data(text), uri, len) == 0;
    }
    GENERAL_NAMES_free(names);
    return found;
}

bool common_tls_cert_says(const X509 *cert, const char *uri)
{
    return has_uri(cert, uri, false);
}

bool common_tls_cert_says_some(const X509 *cert, const char *prefix)
{
    return has_uri(cert, prefix, true);
}

static size_t put(char *out, size_t len, size_t at, const char *text, size_t n)
{
    for (size_t i = 0; i < n && at + 1 < len; i++)
        out[at++] = text[i] > ' ' && text[i] < 0x7f ? text[i] : '?';
    if (len > 0)
        out[at < len ? at : len - 1] = '\0';
    return at;
}

// "a.example, 10.0.0.7"
static void list_hosts(const X509 *cert, char *out, size_t len)
{
    GENERAL_NAMES *names = names_of(cert);
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && at + 48 < len; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_DNS && name->type != GEN_IPADD)
            continue;
        if (at > 0)
            at += (size_t)snprintf(out + at, len - at, ", ");
        const ASN1_STRING *data = name->type == GEN_DNS ? name->d.dNSName : name->d.iPAddress;
        const unsigned char *bytes = ASN1_STRING_get0_data(data);
        int n = ASN1_STRING_length(data);
        char ip[48] = "";
        if (name->type == GEN_IPADD && n == 4)
            snprintf(ip, sizeof ip, "%u.%u.%u.%u", bytes[0], bytes[1], bytes[2], bytes[3]);
        for (int b = 0; name->type == GEN_IPADD && n == 16 && b < 16; b += 2)
            snprintf(ip + strlen(ip), sizeof ip - strlen(ip), "%s%x", b ? ":" : "",
                     bytes[b] << 8 | bytes[b + 1]);
        at = ip[0] ? put(out, len, at, ip, strlen(ip)) : put(out, len, at, (const char *)bytes, (size_t)n);
    }
    if (at == 0)
        snprintf(out, len, "no host");
    GENERAL_NAMES_free(names);
}

// ---- sentences ------------------------------------------------------------------------------------------

// We do not trust the peer's certificate.
static bool explain_verify(const SSL *ssl, const X509 *cert, const char *server, char *out, size_t len)
{
    long why = SSL_get_verify_result(ssl);
    char text[200];
    switch (why) {
    case X509_V_OK:
        return false;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        if (cert && X509_cmp_current_time(X509_get0_notAfter(cert)) < 0)
            snprintf(out, len, "the peer's certificate expired on %s: issue another for it",
                     common_tls_date(X509_get0_notAfter(cert), text));
        else if (cert)
            snprintf(out, len, "the authority of the peer's certificate has expired: renew the CA");
        else // OpenSSL keeps no certificate that it does not trust
            snprintf(out, len,
                     "the peer's certificate, or that of its authority, has expired: issue another");
        return true;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        snprintf(out, len, "the peer's certificate is not valid yet: are both machines' clocks right?");
        return true;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        list_hosts(cert, text, sizeof text);
        snprintf(
            out, len,
            "the server's certificate is not for '%.100s' but for %s: dial that, or issue one for this host",
            server ? server : "", text);
        return true;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        snprintf(
            out, len,
            "the peer's certificate is not from an authority in our --tls-ca: give both ends the same CA");
        return true;
    case X509_V_ERR_CERT_REVOKED:
        snprintf(out, len, "the peer's certificate has been revoked: issue another for it");
        return true;
    case X509_V_ERR_INVALID_PURPOSE:
        snprintf(out, len,
                 "the peer's certificate is not for this purpose (extended key usage): issue another");
        return true;
    default:
        snprintf(out, len, "the peer's certificate is refused: %s", X509_verify_cert_error_string(why));
        return true;
    }
}

// The peer refuses ours, or what we speak: its alert.
static const char *explain_alert(int alert)
{
    switch (alert) {
    case SSL_AD_UNKNOWN_CA:
        return "the peer does not trust our certificate: its authority is not in the peer's --tls-ca";
    case SSL_AD_CERTIFICATE_EXPIRED:
        return "the peer says that our certificate has expired: issue another";
    case SSL_AD_CERTIFICATE_REVOKED:
        return "the peer says that our certificate has been revoked: issue another";
    case SSL_AD_CERTIFICATE_REQUIRED:
        return "the peer requires a certificate: give --tls-cert and --tls-key";
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
        return "the peer refuses our certificate: its log says why";
    case SSL_AD_PROTOCOL_VERSION:
        return "the peer does not support TLS 1.3";
    case SSL_AD_HANDSHAKE_FAILURE:
        return "the two ends have no cipher in common, or the peer requires a certificate (--tls-cert, "
               "--tls-key)";
    default:
        return NULL;
    }
}

void common_tls_explain(const SSL *ssl, const X509 *refused, const char *server, char *out, size_t len)
{
    unsigned long error = ERR_peek_error();
    int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
    const char *alert = reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256
                            ? explain_alert(reason - SSL_AD_REASON_OFFSET)
                            : NULL;
    if (explain_verify(ssl, refused, server, out, len)) {
        ERR_clear_error();
        return;
    }
    switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        snprintf(out, len,
                 "it shows no certificate, but this end requires one: give it --tls-cert and --tls-key");
        break;
    case SSL_R_UNSUPPORTED_PROTOCOL:
        snprintf(out, len, "the peer does not support TLS 1.3");
        break;
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
        snprintf(out, len, "the link was cut off without TLS's closing message");
        break;
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
        snprintf(out, len, "data was altered in transit (TLS)");
        break;
    default:
        if (alert)
            snprintf(out, len, "%s", alert);
        else
            snprintf(out, len, "TLS: %s",
                     error ? ERR_reason_error_string(error) ? ERR_reason_error_string(error) : "it failed"
                           : "it failed");
    }
    ERR_clear_error();
}
