// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log/log.h"
#include "proto/rpc/endpoint.h"

// Where nothing else is given it speaks as its coordinator does, over TLS or without.
static const char *here(bool tls)
{
    return tls ? "tls://127.0.0.1:0" : "tcp://127.0.0.1:0";
}

static bool can_bind(const struct sockaddr *address, socklen_t len)
{
    int fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool can = fd >= 0 && bind(fd, address, len) == 0;
    if (fd >= 0)
        close(fd);
    return can;
}

// Both families where there are both.
static const char *all_addresses(bool tls)
{
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    if (can_bind((const struct sockaddr *)&any, sizeof any))
        return tls ? "tls://[::]:0" : "tcp://[::]:0";
    return tls ? "tls://0.0.0.0:0" : "tcp://0.0.0.0:0";
}

// Whether an address of this machine's stands there: then loopback reaches its listener.
static bool is_ours(const struct proto_endpoint *endpoint)
{
    struct sockaddr_storage address;
    socklen_t len;
    if (proto_endpoint_is_loopback(endpoint))
        return true;
    struct proto_endpoint any_port = *endpoint;
    any_port.port = 0;
    if (proto_endpoint_address(&any_port, &address, &len))
        return can_bind((struct sockaddr *)&address, len);
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    if (getaddrinfo(endpoint->host, NULL, &hints, &found) != 0)
        return true; // not known yet
    bool ours = found && can_bind(found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return ours;
}

// The characters of names and addresses: no port, no scheme, no brackets.
static bool is_host(const char *host)
{
    return host[strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:")] == '\0' &&
           (!strchr(host, ':') || strchr(host, ':') != strrchr(host, ':'));
}

static enum common_code check_advertise(const char *host, struct common_error *err)
{
    struct proto_endpoint e = {.kind = PROTO_ENDPOINT_TCP, .port = 1};
    char text[PROTO_ENDPOINT_MAX];
    if (strlen(host) > 128)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "--advertise has at most 128 bytes");
    strcpy(e.host, host);
    proto_endpoint_format(&e, text);
    if (proto_endpoint_parse(text, &e, NULL) != COMMON_OK || !is_host(e.host) || proto_endpoint_is_any(&e))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "--advertise '%s': give a name or an address of this machine, without a port, as in "
            "--advertise 10.0.0.7; try 'banyan-worker --help'",
            host);
    return COMMON_OK;
}

static enum common_code check_edge(const struct worker_config *config,
                                   const struct proto_endpoint_list *coordinators, struct common_error *err)
{
    struct proto_endpoint edge, coordinator;
    enum common_code code = proto_endpoint_parse(config->edge_listen, &edge, err);
    if (code != COMMON_OK || config->advertise || !proto_endpoint_is_loopback(&edge))
        return code;
    for (uint32_t i = 0; i < coordinators->n; i++)
        if (proto_endpoint_parse(coordinators->endpoints[i], &coordinator, err) == COMMON_OK &&
            !is_ours(&coordinator))
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "the coordinator at %.100s is on another host and cannot dial "
                                    "--edge-listen %.100s: leave --edge-listen out, give an address that it "
                                    "can reach, or use --advertise HOST behind a proxy",
                                    coordinators->endpoints[i], config->edge_listen);
    return COMMON_OK;
}

enum common_code worker_address_settle(struct worker_config *config, bool guarded, struct common_error *err)
{
    struct proto_endpoint_list coordinators;
    struct proto_endpoint coordinator;
    bool far = false, tls = false;
    enum common_code code = proto_endpoint_list_parse(config->coordinator, &coordinators, err);
    if (code == COMMON_OK && config->advertise)
        code = check_advertise(config->advertise, err);
    if (code != COMMON_OK)
        return code;
    for (uint32_t i = 0; i < coordinators.n; i++) {
        if (proto_endpoint_parse(coordinators.endpoints[i], &coordinator, err) != COMMON_OK)
            continue; // was parsed
        far = far || !proto_endpoint_is_loopback(&coordinator);
        tls = tls || coordinator.tls;
    }
    if (config->edge_listen)
        code = check_edge(config, &coordinators, err);
    else
        config->edge_listen = far ? all_addresses(tls) : here(tls);
    if (code != COMMON_OK || config->listen)
        return code;
    config->listen = far && (guarded || tls) ? all_addresses(tls) : here(tls);
    config->listen_by_default = true;
    if (far && !guarded && !tls)
        common_log_warn(
            "clients on other hosts cannot put K and V here: --listen is %s; join the coordinator over "
            "tls:// with --tls-cert, or give --insecure if the network is trusted",
            config->listen);
    return COMMON_OK;
}
