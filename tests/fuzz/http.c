// SPDX-License-Identifier: Apache-2.0
// A connection to --http: common/http/http.c over libevent's parser. Input: u8 how it is cut, then what is
// sent. However it is cut, the same is answered. Over loopback: libevent listens itself.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http/http.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/world.h"

static struct common_loop *loop;
static struct common_http *http;
static struct sockaddr_in address = {.sin_family = AF_INET};
static unsigned asked;

static void answer(void *arg, const struct common_http_request *request, struct common_http_answer *out)
{
    static const char *const words[] = {"watch", "after", "exclude"};
    char value[16];
    (void)arg;
    asked++;
    FUZZ_CHECK(request->path && request->query && request->peer);
    for (int i = 0; i < 3; i++)
        (void)common_http_query(request->query, words[i], value, sizeof value);
    if (request->host)
        (void)common_http_host_is_address(request->host);
    out->code = 200;
    out->body = "well\n";
    out->len = 5;
    out->headers[0].name = "Content-Type";
    out->headers[0].value = "text/plain";
    out->n_headers = 1;
}

static int metrics(void *daemon, const struct common_http_request *request, struct common_metrics *table)
{
    (void)daemon, (void)table;
    return request->authorization ? 401 : 200;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const struct common_health_check none[] = {{0}};
    static const struct common_http_pages pages = {
        .live = none, .ready = none, .metrics = metrics, .answer = answer};
    (void)argc, (void)argv;
    fuzz_quiet();
    FUZZ_CHECK(common_loop_new(&loop) == COMMON_OK);
    FUZZ_CHECK(common_http_new(loop, "127.0.0.1:0", &http, NULL) == COMMON_OK);
    common_http_serve(http, &pages);
    address.sin_port = htons((uint16_t)atoi(strrchr(common_http_address(http), ':') + 1));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return 0;
}

struct heard { // the first line of the first answer
    char line[13];
    size_t len;
};

static void hear(int fd, struct heard *heard)
{
    char bytes[4096];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        for (ssize_t i = 0; i < n && heard->len < sizeof heard->line - 1; i++)
            heard->line[heard->len++] = bytes[i];
}

static struct heard ask(const uint8_t *at, size_t left, uint8_t cut)
{
    struct heard heard = {0};
    const struct linger gone = {1, 0}; // no port is kept for a minute
    uint32_t draw = cut;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&address, sizeof address) == 0);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &gone, sizeof gone);
    fuzz_turn(loop);
    while (left > 0) {
        draw = draw * 1664525u + 1013904223u;
        size_t piece = cut == 0 ? left : 1 + (draw >> 16) % (1 + 16 * (size_t)cut);
        ssize_t sent = send(fd, at, piece < left ? piece : left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0)
            break;
        at += sent;
        left -= (size_t)sent;
        fuzz_turn(loop);
        hear(fd, &heard);
    }
    fuzz_turn(loop);
    hear(fd, &heard);
    close(fd);
    fuzz_turn(loop);
    return heard;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t cut = fuzz_u8(&in);
    struct heard whole = ask(in.at, in.left, 0);
    if (whole.len > 0)
        FUZZ_CHECK(memcmp(whole.line, "HTTP/", 5) == 0);
    if (cut > 0) {
        struct heard cuts = ask(in.at, in.left, cut);
        FUZZ_CHECK(strcmp(whole.line, cuts.line) == 0);
    }
    return 0;
}
