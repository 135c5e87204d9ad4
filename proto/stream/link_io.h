// SPDX-License-Identifier: Apache-2.0
// The bytes of a link: a stream socket, plain or under TLS. Nothing here blocks or waits; stream_link.c does
// the waiting. Private to proto/.
#ifndef PROTO_LINK_IO_H
#define PROTO_LINK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "common/base/status.h"
#include "common/secure/tls_link.h"

struct proto_io {
    int fd;                      // owned
    struct common_tls_link *tls; // NULL: plain
    bool shaking; // the handshake of TLS is under way: nothing is read or written before its end
};

// Puts TLS on the socket. RESOURCE_EXHAUSTED.
enum common_code proto_io_secure(struct proto_io *io, const struct common_tls *tls,
                                 const struct common_tls_link_options *options, struct common_error *err);

// Takes the handshake as far as it goes. UNAVAILABLE: it was lost; UNAUTHENTICATED: one end does not trust
// the other; INVALID_ARGUMENT: the peer speaks something else.
enum common_code proto_io_shake(struct proto_io *io, struct common_error *err);

// Bytes read. 0 with err->code OK: nothing now. 0 otherwise: UNAVAILABLE, UNAUTHENTICATED (the peer does not
// trust us) or DATA_LOSS (altered on its way). err->code must be OK before.
size_t proto_io_read(struct proto_io *io, void *to, size_t len, struct common_error *err);

// Bytes taken of iov; fewer than all: no more now, or err->code is not OK. err->code must be OK before.
size_t proto_io_write(struct proto_io *io, struct iovec *iov, size_t n, struct common_error *err);

// Of TLS only: bytes to be read without waiting for the socket; bytes taken that wait for it; sends these.
static inline bool proto_io_pending(const struct proto_io *io)
{
    return io->tls && !io->shaking && common_tls_link_pending(io->tls);
}
static inline bool proto_io_unsent(const struct proto_io *io)
{
    return io->tls && common_tls_link_unsent(io->tls);
}
enum common_code proto_io_flush(struct proto_io *io, struct common_error *err);

void proto_io_close(struct proto_io *io);

// Whether bytes that are no frame are TLS.
bool proto_looks_like_tls(const void *bytes, size_t len);

#endif
