// SPDX-License-Identifier: Apache-2.0
// Endpoints as text and as parts: nng+tcp://HOST:PORT, tcp://HOST:PORT, unix:///PATH; under TLS
// nng+tls://HOST:PORT and tls://HOST:PORT. An IPv6 host stands in brackets.
#ifndef PROTO_ENDPOINT_H
#define PROTO_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/status.h"

#define PROTO_ENDPOINT_MAX 300

enum proto_endpoint_kind { PROTO_ENDPOINT_NNG_TCP, PROTO_ENDPOINT_TCP, PROTO_ENDPOINT_UNIX };

struct proto_endpoint {
    enum proto_endpoint_kind kind;
    bool tls;       // NNG_TCP and TCP
    char host[256]; // without brackets
    uint16_t port;
    char path[108]; // unix
};

// INVALID_ARGUMENT with a sentence.
enum common_code proto_endpoint_parse(const char *text, struct proto_endpoint *out, struct common_error *err);

// The text again. Returns buf.
const char *proto_endpoint_format(const struct proto_endpoint *endpoint, char buf[PROTO_ENDPOINT_MAX]);

// Coordinators on one store, of which one is active: A,B,...; each an endpoint.
#define PROTO_ENDPOINTS_MAX 4
struct proto_endpoint_list {
    uint32_t n;
    char endpoints[PROTO_ENDPOINTS_MAX][PROTO_ENDPOINT_MAX];
};
// INVALID_ARGUMENT with a sentence: none, too many, or one that is invalid.
enum common_code proto_endpoint_list_parse(const char *text, struct proto_endpoint_list *out,
                                           struct common_error *err);

// Numeric host or unix path to a socket address; false: the host is a name that must be looked up.
bool proto_endpoint_address(const struct proto_endpoint *endpoint, struct sockaddr_storage *out,
                            socklen_t *len);

// A loopback address, "localhost" or a unix socket: other hosts cannot dial it.
bool proto_endpoint_is_loopback(const struct proto_endpoint *endpoint);
// By its scheme, tls:// or nng+tls://: what goes over it is encrypted.
bool proto_endpoint_has_tls(const char *text);
// 0.0.0.0 or [::]: to listen at all addresses, of IPv4 or IPv6; [::] with port 0: of both. It cannot be
// dialled.
bool proto_endpoint_is_any(const struct proto_endpoint *endpoint);

// "127.0.0.1:4711", "[::1]:4711" or "unix". Returns buf.
const char *proto_address_format(const struct sockaddr *address, char buf[80]);

#endif
