// SPDX-License-Identifier: Apache-2.0
// Our identity and the authorities that we trust, for TLS: a certificate with its key, and the certificates
// of authorities. Connections take it from here (tls_link.h); reloaded ones apply to new connections, the
// others keep theirs.
//
// TLS 1.3 alone, AES-GCM or ChaCha20-Poly1305, X25519 or P-256; no compression, no tickets, no early data, no
// renegotiation. For peers of nng's TLS, which has no 1.3: 1.2 as well, with ephemeral keys and the same
// ciphers only.
//
// A certificate may say in subjectAltName, as URIs, what its owner may be. Which URIs mean what is the
// caller's.
//
// On the thread of a loop; references may be taken and given back on any.
#ifndef COMMON_TLS_H
#define COMMON_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct common_tls;
struct ssl_ctx_st; // OpenSSL's SSL_CTX

// PEM files; strings are copied.
struct common_tls_files {
    const char *cert; // ours, first, and those between it and the authority's. NULL: we show none (a client)
    const char
        *key; // of `cert`, not encrypted; its file is guarded as secrets are (secret.h). NULL like `cert`
    // Trusted authorities: one or several. Lists of revoked certificates (CRL) in it are heeded: then there
    // must be one, not outdated, of every authority
    const char *ca;
};

// Reads the files; may block on them. INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED or FAILED_PRECONDITION
// (our certificate has expired, or is not valid yet) with a sentence that names the file. One reference.
enum common_code common_tls_new(const struct common_tls_files *files, struct common_tls **out,
                                struct common_error *err);

// Reads the same files again. On an error what was read before stays in use, whole.
enum common_code common_tls_reload(struct common_tls *tls, struct common_error *err);

struct common_tls *common_tls_ref(struct common_tls *tls); // returns it; NULL passes through
void common_tls_unref(struct common_tls *tls);             // NULL is allowed

// The end of our certificate, in seconds of the wall clock. INT64_MAX: we have none.
int64_t common_tls_expires_s(const struct common_tls *tls);
// That of the authority of our certificate; without one, or when it is not in `ca`: of the one there that
// ends first.
int64_t common_tls_ca_expires_s(const struct common_tls *tls);

bool common_tls_has_cert(const struct common_tls *tls);
// Whether our own certificate says this URI: a program finds out at its start that it was given another's.
bool common_tls_says(const struct common_tls *tls, const char *uri);

// The files' text as last read, for a TLS that is not OpenSSL's (nng's). cert and key are NULL when there are
// none. Borrowed until the next reload.
struct common_tls_text {
    const char *cert, *key, *ca;
};
void common_tls_text(const struct common_tls *tls, struct common_tls_text *out);

// What a connection is made from, for code that drives OpenSSL itself (HTTP). Borrowed until the next reload:
// a connection has a reference of its own. It asks for no peer's certificate unless the connection says so.
enum common_tls_end { COMMON_TLS_DIAL, COMMON_TLS_ACCEPT, COMMON_TLS_ACCEPT_OLD, COMMON_TLS_ENDS };
struct ssl_ctx_st *common_tls_context(const struct common_tls *tls, enum common_tls_end end);

#endif
