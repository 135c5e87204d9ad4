// SPDX-License-Identifier: Apache-2.0
#include "proto/nng_probe.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

static int left_ms(uint64_t deadline_ns)
{
    return (int)(common_clock_left(deadline_ns) / COMMON_NS_PER_MS) + 1;
}

// A look-up that glibc does on a thread of its own.
struct lookup {
    struct gaicb request;
    struct addrinfo hints;
    char host[256];
};

static bool look_up(const struct proto_endpoint *endpoint, uint64_t deadline_ns, struct sockaddr_storage *out,
                    socklen_t *len, char text[COMMON_ERROR_BYTES])
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    if (!lookup) {
        snprintf(text, COMMON_ERROR_BYTES, "out of memory");
        return false;
    }
    lookup->hints.ai_socktype = SOCK_STREAM;
    memcpy(lookup->host, endpoint->host, sizeof lookup->host);
    lookup->request.ar_name = lookup->host;
    lookup->request.ar_request = &lookup->hints;
    struct gaicb *list[] = {&lookup->request};
    uint64_t left = common_clock_left(deadline_ns);
    const struct timespec time = {.tv_sec = (time_t)(left / COMMON_NS_PER_S),
                                  .tv_nsec = (long)(left % COMMON_NS_PER_S)};
    int result = getaddrinfo_a(GAI_NOWAIT, list, 1, NULL);
    if (result == 0) {
        gai_suspend((const struct gaicb *const *)list, 1, &time);
        result = gai_error(list[0]);
    }
    if (result == EAI_INPROGRESS && gai_cancel(list[0]) == EAI_NOTCANCELED) {
        snprintf(text, COMMON_ERROR_BYTES, "no answer from the name server yet");
        return false; // glibc writes to it when the answer comes: it stays
    }
    bool found = result == 0 && list[0]->ar_result && list[0]->ar_result->ai_addrlen <= sizeof *out;
    if (found) {
        memcpy(out, list[0]->ar_result->ai_addr, list[0]->ar_result->ai_addrlen);
        *len = list[0]->ar_result->ai_addrlen;
        ((struct sockaddr_in *)out)->sin_port = htons(endpoint->port); // where an IPv6 address has it, too
    } else {
        snprintf(text, COMMON_ERROR_BYTES, "cannot find the address of '%.150s': %s", endpoint->host,
                 gai_strerror(result));
    }
    if (list[0]->ar_result)
        freeaddrinfo(list[0]->ar_result);
    free(lookup);
    return found;
}

// A descriptor, or -1.
static int connect_to(const struct sockaddr_storage *address, socklen_t len, uint64_t deadline_ns,
                      char text[COMMON_ERROR_BYTES])
{
    int error = 0, fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof error;
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (fd < 0 || (connect(fd, (const struct sockaddr *)address, len) != 0 && errno != EINPROGRESS))
        error = errno;
    else if (poll(&wait, 1, left_ms(deadline_ns)) != 1)
        error = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    snprintf(text, COMMON_ERROR_BYTES, "cannot connect: %s", strerrordesc_np(error));
    return -1;
}

// Who speaks nng says first which of its protocols: 0 S P 0, the number, 0 0.
static bool greets(int fd, uint64_t deadline_ns)
{
    uint8_t bytes[8];
    size_t have = 0;
    while (have < sizeof bytes) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ssize_t got =
            poll(&wait, 1, left_ms(deadline_ns)) == 1 ? read(fd, bytes + have, sizeof bytes - have) : 0;
        if (got <= 0)
            return false;
        have += (size_t)got;
    }
    return memcmp(bytes, "\0SP\0", 4) == 0;
}

void proto_nng_probe(const struct proto_endpoint *endpoint, uint64_t time_ns, char out[COMMON_ERROR_BYTES])
{
    struct sockaddr_storage address;
    socklen_t len;
    uint64_t deadline_ns = common_clock_after(time_ns);
    if (!proto_endpoint_address(endpoint, &address, &len) &&
        !look_up(endpoint, deadline_ns, &address, &len, out))
        return;
    int fd = connect_to(&address, len, deadline_ns, out);
    if (fd < 0)
        return;
    snprintf(out, COMMON_ERROR_BYTES, "%s",
             greets(fd, deadline_ns) ? "it uses nng, and has not answered in time"
                                     : "what listens there does not use nng: another program, or an endpoint "
                                       "of another kind (tcp://, tls://)");
    close(fd);
}
