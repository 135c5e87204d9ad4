// SPDX-License-Identifier: Apache-2.0
// Command: probe. Asks a daemon's --http whether it is alive or ready, with an exit code for supervisors:
// what a container without a shell and without curl runs as its health check. It asks no coordinator.
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "common/base/clock.h"
#include "common/secure/tls.h"
#include "common/secure/tls_link.h"
#include "proto/rpc/endpoint.h"

#define ADDRESS    "127.0.0.1:7419"
#define HTTPS      "https://"
#define ANSWER_MAX 4096 // what is longer is cut: the status stands in front

static bool ready; // --ready

struct answer {
    int status;     // of HTTP
    char said[160]; // the line that says why
};

// Until it is ready for that or the deadline: false.
static bool wait_for(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    for (;;) {
        uint64_t now = common_clock_ns();
        uint64_t left_ms = now < deadline_ns ? (deadline_ns - now) / COMMON_NS_PER_MS + 1 : 0;
        int n = poll(&poll_fd, 1, left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
        if (n > 0)
            return true;
        if (n == 0 && left_ms == 0)
            return false;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

// The first of its addresses that takes the connection. −1, with errno: none.
static int dial(const struct proto_endpoint *endpoint, uint64_t deadline_ns)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[8];
    int fd = -1, error = EADDRNOTAVAIL;
    snprintf(port, sizeof port, "%u", endpoint->port);
    if (getaddrinfo(endpoint->host, port, &hints, &found) != 0)
        found = NULL;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            continue;
        socklen_t len = sizeof error;
        if (errno != EINPROGRESS)
            error = errno;
        else if (!wait_for(fd, POLLOUT, deadline_ns))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0)
            continue;
        close(fd);
        fd = -1;
    }
    if (found)
        freeaddrinfo(found);
    errno = error;
    return fd;
}

// Until it is all there, or there is no more room. False, with errno.
static bool exchange(int fd, const char *request, char answer[ANSWER_MAX + 1], uint64_t deadline_ns)
{
    size_t sent = 0, got = 0, len = strlen(request);
    while (sent < len) {
        ssize_t n = send(fd, request + sent, len - sent, MSG_NOSIGNAL);
        if (n > 0)
            sent += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            return false;
        else if (!wait_for(fd, POLLOUT, deadline_ns))
            return errno = ETIMEDOUT, false;
    }
    while (got < ANSWER_MAX) {
        ssize_t n = recv(fd, answer + got, ANSWER_MAX - got, 0);
        if (n == 0)
            break;
        if (n > 0)
            got += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            return false;
        else if (!wait_for(fd, POLLIN, deadline_ns))
            return errno = ETIMEDOUT, false;
    }
    answer[got] = '\0';
    return true;
}

// False: what answers there speaks no HTTP.
static bool read_answer(const char *text, struct answer *out)
{
    int minor, at = 0;
    if (sscanf(text, "HTTP/1.%1d %3d%n", &minor, &out->status, &at) != 2 || out->status < 100)
        return false;
    const char *body = strstr(text + at, "\r\n\r\n"), *why;
    body = body ? body + 4 : "";
    why = strstr(body, "[-]"); // of the checks, the one that fails
    snprintf(out->said, sizeof out->said, "%.*s", (int)strcspn(why ? why : body, "\r\n"), why ? why : body);
    for (char *c = out->said; *c; c++)
        *c = (unsigned char)*c < ' ' ? '?' : *c;
    return true;
}

// As exchange, over TLS. False, with why.
static bool exchange_tls(struct common_tls_link *link, int fd, const char *request,
                         char answer[ANSWER_MAX + 1], uint64_t deadline_ns)
{
    size_t sent = 0, got = 0, len = strlen(request);
    bool done = false;
    enum common_tls_state state = common_tls_link_shake(link, &done);
    while (state == COMMON_TLS_GOES_ON && !done) {
        if (!wait_for(fd, common_tls_link_unsent(link) ? POLLIN | POLLOUT : POLLIN, deadline_ns))
            return errno = ETIMEDOUT, false;
        state = common_tls_link_shake(link, &done);
    }
    while (state == COMMON_TLS_GOES_ON && (sent < len || common_tls_link_unsent(link))) {
        const struct iovec rest = {(void *)(request + sent), len - sent};
        if (sent < len)
            sent += common_tls_link_write(link, &rest, 1, &state);
        else
            state = common_tls_link_flush(link);
        bool waits = sent < len || common_tls_link_unsent(link);
        if (state == COMMON_TLS_GOES_ON && waits && !wait_for(fd, POLLOUT, deadline_ns))
            return errno = ETIMEDOUT, false;
    }
    while (state == COMMON_TLS_GOES_ON && got < ANSWER_MAX) {
        size_t n = common_tls_link_read(link, answer + got, ANSWER_MAX - got, &state);
        got += n;
        if (state == COMMON_TLS_GOES_ON && n == 0 && !common_tls_link_pending(link) &&
            !wait_for(fd, POLLIN, deadline_ns))
            return errno = ETIMEDOUT, false;
    }
    answer[got] = '\0';
    errno = EPROTO;
    return got > 0;
}

// Over https://. Its exit code and words are passed on.
static enum ctl_exit ask_tls(const struct ctl *ctl, const char *host, int fd, const char *request,
                             char text[ANSWER_MAX + 1], uint64_t deadline_ns)
{
    const struct common_tls_files files = {.cert = ctl->tls_cert, .key = ctl->tls_key, .ca = ctl->tls_ca};
    const struct common_tls_link_options options = {.end = COMMON_TLS_DIAL, .server = host};
    struct common_tls *tls = NULL;
    struct common_tls_link *link = NULL;
    struct common_error err;
    enum common_code code = common_tls_new(&files, &tls, &err);
    if (code == COMMON_OK)
        code = common_tls_link_new(tls, fd, &options, &link, &err);
    enum ctl_exit exit_code = CTL_OK;
    if (code != COMMON_OK)
        exit_code = ctl_say(code == COMMON_INVALID_ARGUMENT ? CTL_USAGE : CTL_FILE, "%s", err.message);
    else if (!exchange_tls(link, fd, request, text, deadline_ns))
        exit_code = errno == ETIMEDOUT
                        ? ctl_say(CTL_TIMEOUT, "no answer over https: %s", strerror(errno))
                        : ctl_say(CTL_UNAVAILABLE, "no answer over https: %s", common_tls_link_why(link));
    common_tls_link_free(link);
    common_tls_unref(tls);
    return exit_code;
}

static enum ctl_exit ask(const struct ctl *ctl, const char *address, struct answer *out)
{
    char request[400], text[ANSWER_MAX + 1], url[300];
    struct proto_endpoint endpoint;
    uint64_t deadline_ns = common_clock_ns() + ctl->timeout_ns;
    bool https = strncmp(address, HTTPS, strlen(HTTPS)) == 0;
    if (https)
        address += strlen(HTTPS);
    snprintf(url, sizeof url, "tcp://%.280s", address);
    if (proto_endpoint_parse(url, &endpoint, NULL) != COMMON_OK || !endpoint.port)
        return ctl_say(CTL_USAGE, "'%.100s' is not a HOST:PORT, as in %s", address, ADDRESS);
    snprintf(request, sizeof request, "GET /%s?verbose HTTP/1.1\r\nHost: %.280s\r\nConnection: close\r\n\r\n",
             ready ? "readyz" : "livez", address);
    int fd = dial(&endpoint, deadline_ns);
    bool heard = fd >= 0 && (https || exchange(fd, request, text, deadline_ns));
    int error = errno;
    enum ctl_exit exit_code =
        heard && https ? ask_tls(ctl, endpoint.host, fd, request, text, deadline_ns) : CTL_OK;
    if (fd >= 0)
        close(fd);
    if (!heard)
        return ctl_say(error == ETIMEDOUT ? CTL_TIMEOUT : CTL_UNAVAILABLE,
                       "no answer at %.100s: %s; is that the daemon's --http?", address, strerror(error));
    if (exit_code != CTL_OK)
        return exit_code;
    return read_answer(text, out)
               ? CTL_OK
               : ctl_say(CTL_UNAVAILABLE, "what answers at %.100s is not a Banyan daemon", address);
}

static enum ctl_exit run_probe(struct ctl *ctl, int n_args, char **args)
{
    const char *from_env = getenv("BANYAN_HTTP");
    const char *address = n_args ? args[0] : from_env && *from_env ? from_env : ADDRESS;
    struct answer answer;
    enum ctl_exit exit_code = ask(ctl, address, &answer);
    if (exit_code != CTL_OK)
        return exit_code;
    if (answer.status != 200)
        return ctl_say(CTL_UNAVAILABLE, "%.100s is not %s: %s (HTTP %d)", address, ready ? "ready" : "alive",
                       answer.said, answer.status);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:b}", "address", address, ready ? "ready" : "alive", 1));
    else
        printf("%s\n", ready ? "ready" : "alive");
    return CTL_OK;
}

static const struct common_option probe_options[] = {
    {"ready", 0, COMMON_OPTION_FLAG, &ready, NULL,
     "Check whether the daemon is ready, not just alive: /readyz instead of /livez.", 0, 0},
    {0},
};

const struct ctl_command ctl_probe_commands[] = {
    {"probe", "[HOST:PORT|https://HOST:PORT]",
     "check whether a daemon is alive, for supervisors and containers",
     "Asks the --http endpoint of a coordinator or worker whether it is alive. Exits with 0 if it is, with 5 "
     "if it is not\n"
     "or does not respond, and with 6 if no answer arrives within --timeout. Default: BANYAN_HTTP, "
     "else " ADDRESS ".\nUse https:// if the daemon does (--http-tls), with --tls-ca.",
     probe_options, 0, 1, run_probe, NULL},
    {0},
};
