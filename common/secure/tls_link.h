// SPDX-License-Identifier: Apache-2.0
// One connection's TLS over a stream socket that the caller owns, waits for and closes. Nothing here blocks.
//
//   reading   Into the caller's memory. What is left of a record stays here and does not make the socket readable
//             again: after a read that filled all it was given, common_tls_link_pending says whether to read on.
//   writing   What is taken is taken: its bytes are not needed any more. What the socket does not take of a record, 17 KB
//             at most, waits here and goes first with the next write or flush; meanwhile nothing more is taken.
//
// On one thread.
#ifndef COMMON_TLS_LINK_H
#define COMMON_TLS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/status.h"
#include "common/secure/tls.h"

#define COMMON_TLS_BINDING_BYTES 32

struct common_tls_link;

struct common_tls_link_options {
    enum common_tls_end end;
    // Accepts: without a trusted certificate there is no connection. Otherwise the peer may show none; one
    // that it shows must be trusted.
    bool demands;
    // Dials: whom the peer's certificate must be for, a host's name or a numeric address. NULL: for anybody
    // (the caller looks at what else it says).
    const char *server;
};

enum common_tls_state {
    COMMON_TLS_GOES_ON, // later there may be more
    COMMON_TLS_ENDED,   // the peer has said that it sends no more
    COMMON_TLS_LOST,    // the socket came to its end, or failed: common_tls_link_why
    COMMON_TLS_REFUSED, // one end does not trust the other, or they have no TLS in common: likewise
    COMMON_TLS_BROKEN,  // what came is not right: likewise
};

// fd: connected, non-blocking, TCP. RESOURCE_EXHAUSTED.
enum common_code common_tls_link_new(const struct common_tls *tls, int fd,
                                     const struct common_tls_link_options *options,
                                     struct common_tls_link **out, struct common_error *err);

// Before the socket is closed: says the end to the peer, as far as the socket takes it at once. NULL is
// allowed.
void common_tls_link_free(struct common_tls_link *link);

// Takes the handshake as far as it goes now; to be called first, and whenever the socket is readable, until
// *done.
enum common_tls_state common_tls_link_shake(struct common_tls_link *link, bool *done);

// After the handshake. Bytes read; fewer than len: there is nothing more now, and *state says whether ever.
size_t common_tls_link_read(struct common_tls_link *link, void *to, size_t len, enum common_tls_state *state);
bool common_tls_link_pending(const struct common_tls_link *link); // to be read without waiting for the socket

// After the handshake. Bytes of iov taken; fewer than all: the socket is full, or *state says more.
size_t common_tls_link_write(struct common_tls_link *link, const struct iovec *iov, size_t n,
                             enum common_tls_state *state);
bool common_tls_link_unsent(const struct common_tls_link *link); // something waits for the socket
enum common_tls_state common_tls_link_flush(struct common_tls_link *link);

// Why it was lost, refused or broken: a sentence. Lasts as long as the link.
const char *common_tls_link_why(const struct common_tls_link *link);

// Of the peer, after the handshake.
bool common_tls_link_shows(const struct common_tls_link *link); // a certificate, which is trusted
bool common_tls_link_says(const struct common_tls_link *link, const char *uri);
bool common_tls_link_says_some(const struct common_tls_link *link, const char *prefix); // one that begins so

// 32 bytes that only both ends of this connection share (RFC 5705, RFC 9266): what is proved over them
// is proved for this connection alone. false: no memory.
__attribute__((warn_unused_result)) bool common_tls_link_binding(const struct common_tls_link *link,
                                                                 const char *label,
                                                                 uint8_t out[COMMON_TLS_BINDING_BYTES]);

#endif
