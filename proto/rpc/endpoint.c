// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "common/cli/options.h"
#include "proto/rpc/rpc.h"

static const char *after(const char *text, const char *scheme)
{
    size_t n = strlen(scheme);
    return strncmp(text, scheme, n) == 0 ? text + n : NULL;
}

static const struct {
    const char *text;
    enum proto_endpoint_kind kind;
    bool tls;
} schemes[] = {
    {"nng+tcp://", PROTO_ENDPOINT_NNG_TCP, false},
    {"nng+tls://", PROTO_ENDPOINT_NNG_TCP, true},
    {"tcp://", PROTO_ENDPOINT_TCP, false},
    {"tls://", PROTO_ENDPOINT_TCP, true},
};

enum common_code proto_endpoint_parse(const char *text, struct proto_endpoint *out, struct common_error *err)
{
    struct proto_endpoint e = {0};
    const char *rest = after(text, "unix://");
    if (rest) {
        e.kind = PROTO_ENDPOINT_UNIX;
        if (rest[0] != '/' || strlen(rest) >= sizeof e.path)
            return common_error_set(
                err, COMMON_INVALID_ARGUMENT,
                "endpoint '%s': give an absolute path of at most %zu bytes, as in unix:///run/banyan.sock",
                text, sizeof e.path - 1);
        snprintf(e.path, sizeof e.path, "%s", rest);
        *out = e;
        return COMMON_OK;
    }
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes && !rest; i++) {
        rest = after(text, schemes[i].text);
        e.kind = schemes[i].kind;
        e.tls = schemes[i].tls;
    }
    if (!rest)
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "endpoint '%s': it must start with tls://, nng+tls://, tcp://, nng+tcp:// or unix://", text);
    const char *colon = strrchr(rest, ':');
    const char *host = rest;
    size_t host_len = colon ? (size_t)(colon - rest) : 0;
    bool brackets = host_len >= 2 && host[0] == '[' && host[host_len - 1] == ']';
    if (brackets) {
        host++;
        host_len -= 2;
    }
    uint64_t port;
    if (!colon || host_len == 0 || host_len >= sizeof e.host || (!brackets && memchr(host, ':', host_len)) ||
        memchr(host, '[', host_len) || memchr(host, ']', host_len) ||
        common_parse_u64(colon + 1, &port) != COMMON_OK || port > 65535)
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "endpoint '%s': give HOST:PORT, as in tcp://127.0.0.1:7400 or tcp://[::1]:7400", text);
    memcpy(e.host, host, host_len);
    e.port = (uint16_t)port;
    *out = e;
    return COMMON_OK;
}

const char *proto_endpoint_format(const struct proto_endpoint *endpoint, char buf[PROTO_ENDPOINT_MAX])
{
    if (endpoint->kind == PROTO_ENDPOINT_UNIX) {
        snprintf(buf, PROTO_ENDPOINT_MAX, "unix://%s", endpoint->path);
    } else {
        bool v6 = strchr(endpoint->host, ':') != NULL;
        snprintf(buf, PROTO_ENDPOINT_MAX, "%s%s://%s%s%s:%u",
                 endpoint->kind == PROTO_ENDPOINT_TCP ? "" : "nng+", endpoint->tls ? "tls" : "tcp",
                 v6 ? "[" : "", endpoint->host, v6 ? "]" : "", endpoint->port);
    }
    return buf;
}

enum common_code proto_endpoint_list_parse(const char *text, struct proto_endpoint_list *out,
                                           struct common_error *err)
{
    struct proto_endpoint_list list = {0};
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        struct proto_endpoint parsed;
        if (list.n == PROTO_ENDPOINTS_MAX)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "at most %d endpoints: '%.200s'",
                                    PROTO_ENDPOINTS_MAX, text);
        size_t len = strcspn(at, ",");
        char *one = list.endpoints[list.n++];
        if (len >= PROTO_ENDPOINT_MAX)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "an endpoint is longer than %d bytes",
                                    PROTO_ENDPOINT_MAX - 1);
        memcpy(one, at, len);
        enum common_code code = proto_endpoint_parse(one, &parsed, err);
        if (code != COMMON_OK)
            return code;
    }
    *out = list;
    return COMMON_OK;
}

bool proto_endpoint_address(const struct proto_endpoint *endpoint, struct sockaddr_storage *out,
                            socklen_t *len)
{
    memset(out, 0, sizeof *out);
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    if (endpoint->kind == PROTO_ENDPOINT_UNIX) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, endpoint->path, sizeof un->sun_path);
        *len = sizeof *un;
    } else if (inet_pton(AF_INET, endpoint->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(endpoint->port);
        *len = sizeof *v4;
    } else if (inet_pton(AF_INET6, endpoint->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(endpoint->port);
        *len = sizeof *v6;
    } else {
        return false;
    }
    return true;
}

const char *proto_address_format(const struct sockaddr *address, char buf[80])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(buf, 80, "%s:%u", host, ntohs(v4->sin_port));
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(buf, 80, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        snprintf(buf, 80, "unix");
    }
    return buf;
}

bool proto_endpoint_is_loopback(const struct proto_endpoint *endpoint)
{
    struct sockaddr_storage address;
    socklen_t len;
    if (endpoint->kind == PROTO_ENDPOINT_UNIX || strcmp(endpoint->host, "localhost") == 0)
        return true;
    if (!proto_endpoint_address(endpoint, &address, &len))
        return false;
    if (address.ss_family == AF_INET)
        return ntohl(((struct sockaddr_in *)&address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&address)->sin6_addr);
}

bool proto_endpoint_is_any(const struct proto_endpoint *endpoint)
{
    struct sockaddr_storage address;
    socklen_t len;
    if (endpoint->kind == PROTO_ENDPOINT_UNIX || !proto_endpoint_address(endpoint, &address, &len))
        return false;
    if (address.ss_family == AF_INET)
        return ((struct sockaddr_in *)&address)->sin_addr.s_addr == INADDR_ANY;
    return IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)&address)->sin6_addr);
}

bool proto_endpoint_has_tls(const char *text)
{
    return after(text, "tls://") || after(text, "nng+tls://");
}

enum common_code proto_listen_allowed(const char *text, bool has_token, bool has_tls, bool insecure,
                                      struct common_error *err)
{
    static const char tls[] = "a tls:// or nng+tls:// endpoint with --tls-cert, --tls-key and --tls-ca";
    struct proto_endpoint endpoint;
    enum common_code code = proto_endpoint_parse(text, &endpoint, err);
    if (code != COMMON_OK)
        return code;
    if ((has_token && has_tls) || insecure || proto_endpoint_is_loopback(&endpoint))
        return COMMON_OK;
    return common_error_set(
        err, COMMON_PERMISSION_DENIED,
        "refusing to listen on '%.100s', which others can reach, without %s%s%s: give %s%s%s, "
        "or --insecure if the network is trusted",
        text, has_tls ? "" : "TLS", has_tls || has_token ? "" : " and without ",
        has_token ? "" : "a client token", has_tls ? "" : tls, has_tls || has_token ? "" : ", and ",
        has_token ? "" : "--token-file FILE");
}
