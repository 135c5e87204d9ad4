// SPDX-License-Identifier: Apache-2.0
// What OpenSSL says, in sentences that say what to do; and what a certificate says. Private to common/tls*.c.
#ifndef COMMON_TLS_WORDS_H
#define COMMON_TLS_WORDS_H

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stddef.h>

// The reason of the last error on OpenSSL's queue, which is emptied. Static storage.
const char *common_tls_reason(void);

// For readers of PEM: encrypted keys are rejected, without a prompt at a terminal.
int common_tls_no_password(char *buf, int size, int writes, void *arg);

// "2026-11-25 20:40:00 UTC". Returns buf.
const char *common_tls_date(const ASN1_TIME *when, char buf[64]);

// Whether subjectAltName holds this URI. cert may be NULL: false.
bool common_tls_cert_says(const X509 *cert, const char *uri);
bool common_tls_cert_says_some(const X509 *cert, const char *prefix); // one that begins so

// Why a handshake, a read or a write came to nothing, from the connection and OpenSSL's queue, which is
// emptied. `refused`: the certificate that was rejected, `server`: the name that was dialled, or NULL.
void common_tls_explain(const SSL *ssl, const X509 *refused, const char *server, char *out, size_t len);

#endif
