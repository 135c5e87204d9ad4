// SPDX-License-Identifier: Apache-2.0
// --http over real sockets: a crowd of connections takes neither the daemon's descriptors nor others' place,
// and silent ones end.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "common/log/log.h"
#include "common/secure/tls.h"
#include "tests/common/scratch.h"
#include "tests/common/test_pki.h"

enum { CROWD = 600, MOST = 2 * COMMON_HTTP_CONNECTIONS };

static struct common_loop *loop;
static struct common_http *http;
static struct sockaddr_in address;

static int metrics(void *daemon, const struct common_http_request *request, struct common_metrics *table)
{
    (void)daemon, (void)request, (void)table;
    return 200;
}

static int begin(void **state)
{
    static const struct common_health_check none[] = {{0}};
    struct common_error err;
    (void)state;
    common_log_set_level(COMMON_LOG_ERROR);
    signal(SIGPIPE, SIG_IGN); // as in a daemon
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    if (common_http_new(loop, "0.0.0.0:0", &http, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    common_http_serve(http, &(struct common_http_pages){.live = none, .ready = none, .metrics = metrics});
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(strrchr(common_http_address(http), ':') + 1));
    return 0;
}

static int end(void **state)
{
    (void)state;
    common_http_free(http);
    common_loop_free(loop);
    return 0;
}

static void turn(void)
{
    struct timeval soon = {0, 2000};
    event_base_loopexit(common_loop_base(loop), &soon);
    event_base_loop(common_loop_base(loop), 0);
}

// From 127.0.0.`host`.
static int dial(uint32_t host)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u + host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof from), 0);
    assert_true(connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS);
    return fd;
}

static uint32_t open_files(void)
{
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static bool has_ended(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

static uint32_t living(const int *fds, uint32_t n)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < n; i++)
        alive += !has_ended(fds[i]);
    return alive;
}

// The body's text, NUL-terminated, of an answer 200.
static void get(int fd, const char *path, char *out, size_t room)
{
    char ask[128];
    size_t len = 0;
    int n =
        snprintf(ask, sizeof ask, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    uint64_t since = common_clock_ns();
    while (send(fd, ask, (size_t)n, MSG_NOSIGNAL) != n) { // it is not connected yet
        assert_true(errno == EAGAIN || errno == ENOTCONN);
        assert_true(common_clock_ns() - since < 30 * COMMON_NS_PER_S);
        turn();
    }
    for (;;) {
        ssize_t got = recv(fd, out + len, room - 1 - len, MSG_DONTWAIT);
        if (got == 0)
            break;
        if (got < 0)
            assert_int_equal(errno, EAGAIN);
        else
            len += (size_t)got;
        assert_true(common_clock_ns() - since < 30 * COMMON_NS_PER_S);
        turn();
    }
    out[len] = 0;
    assert_non_null(strstr(out, " 200 OK"));
}

static double metric(uint32_t host, const char *name)
{
    char text[4096], line[64];
    int fd = dial(host);
    get(fd, "/metrics", text, sizeof text);
    close(fd);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(text, line);
    assert_non_null(at);
    return strtod(at + strlen(line), NULL);
}

// Descriptors that the server has, of those of this process, which has `mine` of its own.
static uint32_t taken(uint32_t before, uint32_t mine)
{
    uint32_t n = open_files();
    assert_true(n >= before + mine);
    return n - before - mine;
}

static void each_of_a_few_stays(void **state)
{
    int fds[COMMON_HTTP_CONNECTIONS - 1];
    const uint32_t n = COMMON_HTTP_CONNECTIONS - 1;
    (void)state;
    for (uint32_t i = 0; i < n; i++)
        fds[i] = dial(1);
    assert_true(metric(1, "banyan_http_connections") == COMMON_HTTP_CONNECTIONS); // with the one that asks
    assert_int_equal(living(fds, n), n);
    assert_true(metric(1, "banyan_http_dropped_total") == 0);
    assert_true(metric(1, "banyan_http_connections_max") == COMMON_HTTP_CONNECTIONS);
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
    while (metric(1, "banyan_http_connections") > 1) // they are seen to go
        turn();
}

// One address opens hundreds, a little or all at once; another one has some that are idle, and asks
// meanwhile.
static void a_crowd(void **state)
{
    static int fds[CROWD];
    uint32_t before = open_files();
    char text[4096];
    int others[4];
    (void)state;
    for (int step = 7; step <= CROWD; step += CROWD - 7) {
        uint32_t n = 0;
        for (int i = 0; i < 4; i++)
            others[i] = dial(2);
        while (n < CROWD) {
            for (int i = 0; i < step && n < CROWD; i++)
                fds[n++] = dial(1);
            int prober = dial(3);
            get(prober, "/livez", text, sizeof text);
            close(prober);
            double now = metric(3, "banyan_http_connections");
            assert_true(now <= MOST);
            assert_true(taken(before, n + 4) <= MOST);
            assert_int_equal(living(others, 4), 4);
        }
        assert_true(metric(3, "banyan_http_dropped_total") > 0);
        for (uint32_t i = 0; i < n; i++)
            close(fds[i]);
        for (int i = 0; i < 4; i++)
            close(others[i]);
        while (metric(3, "banyan_http_connections") > 1)
            turn();
    }
}

// In the middle of a handshake, too.
static void a_crowd_over_tls(void **state)
{
    static int fds[CROWD];
    uint32_t before = open_files(), most = 0;
    (void)state;
    struct scratch scratch;
    assert_int_equal(scratch_init(&scratch), 0);
    struct test_pki *pki = test_pki_new(scratch.dir, "http");
    struct common_tls *tls =
        test_pki_tls(pki,
                     &(struct test_pki_ask){.name = "c", .uris = "banyan:coordinator", .hosts = "localhost"});
    common_http_secure(http, tls, false);
    for (uint32_t n = 0; n < CROWD; n++) {
        fds[n] = dial(1);
        (void)send(fds[n], "\x16\x03\x01", 3, MSG_NOSIGNAL);
        if (n % 50 == 0)
            turn();
        uint32_t now = taken(before, n + 1);
        most = now > most ? now : most;
    }
    assert_true(most <= MOST);
    assert_true(most > COMMON_HTTP_CONNECTIONS / 2); // else none came
    for (uint32_t i = 0; i < CROWD; i++)
        close(fds[i]);
    for (int i = 0; i < 10; i++)
        turn();
    common_tls_unref(tls);
    test_pki_free(pki);
    scratch_remove(&scratch);
}

// A connection that sends nothing, or half of something, ends.
static void idle_ones_end(void **state)
{
    int silent = dial(1), half = dial(1);
    uint64_t since = common_clock_ns();
    (void)state;
    while (send(half, "GET /li", 7, MSG_NOSIGNAL) != 7)
        turn();
    while (!has_ended(silent) || !has_ended(half)) {
        assert_true(common_clock_ns() - since < 60 * COMMON_NS_PER_S);
        turn();
    }
    close(silent);
    close(half);
}

// One that sends a byte now and then does not end by evhttp's time, which begins with each byte.
static void dripping_ones_end(void **state)
{
    int fd = dial(1);
    const char *ask = "GET /livez HTTP/1.1\r\nX: ";
    uint64_t since = common_clock_ns(), next = 0;
    (void)state;
    while (!has_ended(fd)) {
        assert_true(common_clock_ns() - since < 60 * COMMON_NS_PER_S);
        if (common_clock_ns() >= next) {
            (void)send(fd, *ask ? ask : "x", *ask ? strlen(ask) : 1, MSG_NOSIGNAL);
            ask = "";
            next = common_clock_after(COMMON_NS_PER_S);
        }
        turn();
    }
    assert_true(common_clock_ns() - since > 5 * COMMON_NS_PER_S); // not by evhttp
    close(fd);
}

// The first line of what is answered to this request.
static const char *answer_of(const char *ask)
{
    static char out[512];
    int fd = dial(1);
    size_t len = 0;
    uint64_t since = common_clock_ns();
    while (send(fd, ask, strlen(ask), MSG_NOSIGNAL) < 0) { // it is not connected yet
        assert_true(errno == EAGAIN || errno == ENOTCONN);
        turn();
    }
    while (len + 1 < sizeof out) {
        ssize_t got = recv(fd, out + len, sizeof out - 1 - len, MSG_DONTWAIT);
        if (got == 0)
            break;
        len += got > 0 ? (size_t)got : 0;
        assert_true(common_clock_ns() - since < 30 * COMMON_NS_PER_S);
        turn();
    }
    close(fd);
    out[len] = '\0';
    return out;
}

#define END "Connection: close\r\n\r\n"
static void test_what_is_improper(void **state)
{
    (void)state;
    static const struct {
        const char *ask, *says;
    } rows[] = {
        {"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" END, " 200 "},
        {"GET /metrics HTTP/1.1\r\nHost: 10.1.2.3:7419\r\nUser-Agent: Mozilla/5.0\r\n" END, " 200 "},
        {"GET /metrics HTTP/1.1\r\nHost: node-1.example:7419\r\nUser-Agent: Prometheus/2.42\r\n" END,
         " 200 "},
        {"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\nUser-Agent: Mozilla/5.0\r\n" END, " 421 "},
        {"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\nAccept-Language: en\r\n" END, " 421 "},
        {"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: rebound.example\r\n" END, " 400 "},
        {"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n" END, " 400 "},
        {"GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n" END, " 400 "},
        {"GET http://rebound.example/livez HTTP/1.1\r\nHost: localhost\r\n" END, " 400 "},
        {"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n" END "{}", " 405 "},
        {"PUT /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" END, " 405 "},
        {"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n" END, " 413 "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *got = answer_of(rows[i].ask);
        if (!strstr(got, rows[i].says))
            fail_msg("%s gives %s, not %s", rows[i].ask, got, rows[i].says);
    }
    assert_non_null(strstr(answer_of(rows[9].ask), "Allow: GET, HEAD"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_of_a_few_stays, begin, end),
        cmocka_unit_test_setup_teardown(a_crowd, begin, end),
        cmocka_unit_test_setup_teardown(a_crowd_over_tls, begin, end),
        cmocka_unit_test_setup_teardown(idle_ones_end, begin, end),
        cmocka_unit_test_setup_teardown(dripping_ones_end, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_improper, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
