// SPDX-License-Identifier: Apache-2.0
#include "proto/stream/link_io.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum common_code proto_io_secure(struct proto_io *io, const struct common_tls *tls,
                                 const struct common_tls_link_options *options, struct common_error *err)
{
    enum common_code code = common_tls_link_new(tls, io->fd, options, &io->tls, err);
    io->shaking = code == COMMON_OK;
    return code;
}

static enum common_code take_state(const struct proto_io *io, enum common_tls_state state,
                                   struct common_error *err)
{
    switch (state) {
    case COMMON_TLS_GOES_ON:
        return COMMON_OK;
    case COMMON_TLS_ENDED:
        return common_error_set(err, COMMON_UNAVAILABLE, "the peer closed the link");
    case COMMON_TLS_LOST:
        return common_error_set(err, COMMON_UNAVAILABLE, "%s", common_tls_link_why(io->tls));
    case COMMON_TLS_REFUSED:
        return common_error_set(err, COMMON_UNAUTHENTICATED, "%s", common_tls_link_why(io->tls));
    case COMMON_TLS_BROKEN:
        break;
    }
    return common_error_set(err, io->shaking ? COMMON_INVALID_ARGUMENT : COMMON_DATA_LOSS, "%s",
                            common_tls_link_why(io->tls));
}

enum common_code proto_io_shake(struct proto_io *io, struct common_error *err)
{
    bool done = false;
    enum common_code code = take_state(io, common_tls_link_shake(io->tls, &done), err);
    io->shaking = !done;
    return code;
}

enum common_code proto_io_flush(struct proto_io *io, struct common_error *err)
{
    return take_state(io, common_tls_link_flush(io->tls), err);
}

static size_t lost(struct common_error *err, const char *when)
{
    common_error_set(err, COMMON_UNAVAILABLE, "the link was lost%s: %s", when, strerrordesc_np(errno));
    return 0;
}

size_t proto_io_read(struct proto_io *io, void *to, size_t len, struct common_error *err)
{
    if (io->tls) {
        enum common_tls_state state;
        size_t got = common_tls_link_read(io->tls, to, len, &state);
        if (got == 0 && state != COMMON_TLS_GOES_ON)
            take_state(io, state, err);
        return got;
    }
    ssize_t got;
    do
        got = recv(io->fd, to, len, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        return (size_t)got;
    if (got == 0)
        common_error_set(err, COMMON_UNAVAILABLE, "the peer closed the link");
    else if (errno != EAGAIN && errno != EWOULDBLOCK)
        lost(err, "");
    return 0;
}

size_t proto_io_write(struct proto_io *io, struct iovec *iov, size_t n, struct common_error *err)
{
    if (io->tls) {
        enum common_tls_state state;
        size_t took = common_tls_link_write(io->tls, iov, n, &state);
        if (state != COMMON_TLS_GOES_ON)
            take_state(io, state, err);
        return took;
    }
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t wrote;
    do
        wrote = sendmsg(io->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (wrote < 0 && errno == EINTR);
    if (wrote >= 0)
        return (size_t)wrote;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : lost(err, " while sending");
}

void proto_io_close(struct proto_io *io)
{
    common_tls_link_free(io->tls);
    io->tls = NULL;
    close(io->fd);
}

bool proto_looks_like_tls(const void *bytes, size_t len)
{
    const uint8_t *at = bytes; // a record of a handshake, or an alert
    return len >= 3 && (at[0] == 22 || at[0] == 21) && at[1] == 3 && at[2] <= 4;
}
