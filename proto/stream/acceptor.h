// SPDX-License-Identifier: Apache-2.0
// A socket that is listened on, TCP or unix, for the serving ends of both transports. All on the loop's
// thread. Private to proto/.
#ifndef PROTO_ACCEPTOR_H
#define PROTO_ACCEPTOR_H

#include <stdbool.h>
#include <sys/socket.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "proto/rpc/endpoint.h"

struct proto_acceptor;

// Neither may close the acceptor.
struct proto_acceptor_ops {
    // A connection: fd (non-blocking, of TCP: without delay, with keepalive) is the owner's.
    void (*accepted)(void *owner, int fd, const struct sockaddr *address);
    // There is no descriptor for a new one. true: the owner has closed an old one. NULL: never.
    bool (*make_room)(void *owner);
};

// Listens. `name` is for logs and must last. A port of 0 becomes the real one. ALREADY_EXISTS when the
// address is taken; a host's name is looked up, which may block.
enum common_code proto_acceptor_open(struct common_loop *loop, const char *name,
                                     struct proto_endpoint *endpoint, const struct proto_acceptor_ops *ops,
                                     void *owner, struct proto_acceptor **out, struct common_error *err);
void proto_acceptor_close(struct proto_acceptor *acceptor);

#endif
