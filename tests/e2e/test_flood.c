// SPDX-License-Identifier: Apache-2.0
// A flood from one client, in a process of its own: what it could do to another client, and what it could
// not. Whatever it sends, the other client's steps go on and are right, the coordinator's memory stays below
// what its limits allow, and when the flood is over everything is as it was. Nothing is judged by time.
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/rpc/endpoint.h"
#include "tests/common/sanitized.h"
#include "tests/e2e/context.h"
#include "tests/e2e/support.h"
#include "tests/e2e/wire.h"

#define MIB      (UINT64_C(1) << 20)
#define MAX_TEXT "32M"
#define MAX_MIB  32
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOWED (UINT64_C(900) * MIB) // freed memory is kept in quarantine
#else
// Requests, and as much again of answers (--max-bytes); half of that unread; room for links and what malloc
// keeps.
#define ALLOWED (UINT64_C(128) * MIB)
#endif

enum { CROWD = 300, STEPS = SANITIZED(60, 20, 20), AGAIN = 6, HUGE_LINKS = 24, HUGE_MIB = 10 };

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 16,
                                 .members = 1};

// ---- the attacker ---------------------------------------------------------------------------------

struct attacker { // what its process has from before it was made
    struct sockaddr_storage address;
    socklen_t len;
    struct wire_frame hello, ask; // a hello without a proof; a request with a long answer
    uint8_t promise[PROTO_PREFIX_BYTES], lie[PROTO_PREFIX_BYTES];
    int fd[CROWD];
    size_t sent[CROWD];
};

static struct attacker a;
static uint8_t noise[1 << 20];

// Connected, and known as a client, or not. -1: no.
static int dial(bool known)
{
    int fd = socket(a.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a.address, a.len) == 0 && (!known || wire_hello(fd))) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool is_gone(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

static void renew(int i, bool known)
{
    if (a.fd[i] >= 0 && is_gone(a.fd[i])) {
        close(a.fd[i]);
        a.fd[i] = -1;
    }
    if (a.fd[i] >= 0)
        return;
    a.fd[i] = dial(known);
    a.sent[i] = 0;
}

// As much of it as the socket takes; then the rest, over and over.
static void push(int i, const uint8_t *bytes, size_t len)
{
    size_t at = a.sent[i] % len;
    ssize_t n = a.fd[i] < 0 ? -1 : send(a.fd[i], bytes + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        a.sent[i] += (size_t)n;
}

static void connections(int i) // that are clients, more than there are places
{
    renew(i, true);
}

static void half_hellos(int i)
{
    bool fresh = a.fd[i] < 0;
    renew(i, false);
    if (fresh)
        push(i, a.hello.bytes, a.hello.len);
}

static void
huge_frames(int i) // that are announced, begun and never ended; every third is larger than any may be
{
    if (i >= HUGE_LINKS)
        return;
    renew(i, true);
    if (a.sent[i] < PROTO_PREFIX_BYTES)
        push(i, i % 3 ? a.promise : a.lie, PROTO_PREFIX_BYTES);
    else if (a.sent[i] < HUGE_MIB * MIB)
        push(i, noise, sizeof noise);
}

static void slow_readers(int i) // that ask, and never read an answer
{
    if (i >= 32)
        return;
    renew(i, true);
    for (int k = 0; k < 200; k++)
        push(i, a.ask.bytes, a.ask.len);
}

static void requests(int i) // as many as go, with answers that are read
{
    if (i >= 16)
        return;
    renew(i, true);
    for (int k = 0; k < 200; k++)
        push(i, a.ask.bytes, a.ask.len);
    while (a.fd[i] >= 0 && recv(a.fd[i], noise, sizeof noise, MSG_DONTWAIT) > 0)
        continue;
}

static const struct flood {
    const char *name;
    void (*run)(int i);
    // What it could do: MiB that it made the coordinator hold beside what the limits allow. Frames that have
    // begun have as many bytes for themselves as requests have (--max-bytes).
    uint64_t more_mib;
} floods[] = {
    {"connections", connections, 0},   {"half hellos", half_hellos, 0}, {"huge frames", huge_frames, MAX_MIB},
    {"slow readers", slow_readers, 0}, {"requests", requests, 0},
};

// It goes on until it is killed.
static pid_t attack(const struct flood *flood)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(a.fd, -1, sizeof a.fd);
    for (;;)
        for (int i = 0; i < CROWD; i++) {
            flood->run(i);
            if (i % 16 == 0)
                usleep(200); // the machine is the test's, too
        }
}

static void prepare(const char *endpoint)
{
    struct proto_endpoint parsed;
    assert_int_equal(proto_endpoint_parse(endpoint, &parsed, NULL), COMMON_OK);
    assert_true(proto_endpoint_address(&parsed, &a.address, &a.len));
    static uint8_t nonce[32];
    Banyan__Pb__LinkHelloRequest hello = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    hello.version = 1;
    hello.role = BANYAN__PB__ROLE__ROLE_CLIENT;
    hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    a.hello = wire_request(BANYAN__PB__METHOD__METHOD_LINK_HELLO, 1, &hello.base, NULL, 0);
    Banyan__Pb__ClusterInfoRequest ask = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    a.ask = wire_request(BANYAN__PB__METHOD__METHOD_CLUSTER_INFO, 7, &ask.base, NULL, 0);
    struct proto_prefix prefix = {
        .version = PROTO_VERSION, .kind = PROTO_FRAME_REQUEST, .header_len = 64, .payload_len = 60 * MIB};
    proto_prefix_encode(&prefix, a.promise);
    prefix.payload_len = UINT64_C(1) << 45;
    proto_prefix_encode(&prefix, a.lie);
}

// ---- the other client -----------------------------------------------------------------------------

struct victim {
    banyan_client *client;
    banyan_session *session;
    struct context context;
};

static void step_once(struct victim *v, const char *flood)
{
    support_check_step(v->client, v->session, &v->context, 0, 99, 1, 0, NULL, flood);
}

// Steps, and appends, while the flood is there. The most memory that the coordinator had meanwhile.
static uint64_t live_with(struct victim *v, const struct harness_cluster *cluster, const char *flood)
{
    uint64_t most = 0;
    int pid = harness_cluster_pid(cluster, HARNESS_COORDINATOR);
    for (int i = 0; i < STEPS; i++) {
        step_once(v, flood);
        uint64_t now = support_resident_bytes(pid);
        most = now > most ? now : most;
        support_sleep_ms(20);
    }
    banyan_session *other; // what changes something goes on, too
    OK(banyan_session_create(v->client, &spec, NULL, &other, ERR));
    OK(banyan_session_delete(other, ERR));
    banyan_session_close(other);
    return most;
}

static void one_client_floods(void **state)
{
    (void)state;
    static const char *const limits[] = {"--max-bytes", MAX_TEXT, "--max-clients", "64", "--max-requests",
                                         "512",         NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .coordinator_args = limits});
    int coordinator = harness_cluster_pid(cluster, HARNESS_COORDINATOR);
    struct victim v = {.client = support_connect(cluster, "tcp")};
    context_init(&v.context, &spec, 100);
    context_random(&v.context, 0, 100, 4);
    OK(banyan_session_create(v.client, &spec, NULL, &v.session, ERR));
    support_fill(v.session, &v.context, 0, 100);
    step_once(&v, "before");
    prepare(harness_cluster_endpoint(cluster, "tcp"));
    uint64_t before = support_resident_bytes(coordinator);
    printf("%-14s %12s %s\n", "flood", "memory, MiB", "the other client");
    for (size_t f = 0; f < sizeof floods / sizeof *floods; f++) {
        pid_t pid = attack(&floods[f]);
        uint64_t most = live_with(&v, cluster, floods[f].name);
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); // it has been there all the time
        if (most > before + ALLOWED + floods[f].more_mib * MIB)
            fail_msg("%s: the coordinator grew from %" PRIu64 " to %" PRIu64 " MiB", floods[f].name,
                     before / MIB, most / MIB);
        // Over another endpoint there are places of their own: a new client comes in while the flood is
        // there.
        banyan_client *fresh = support_connect(cluster, "nng+tcp");
        OK(banyan_ping(fresh, NULL, ERR));
        banyan_disconnect(fresh);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        for (int i = 0; i < AGAIN; i++) { // and when it is over, over the same one
            fresh = support_connect(cluster, "tcp");
            OK(banyan_ping(fresh, NULL, ERR));
            banyan_disconnect(fresh);
        }
        printf("%-14s %12" PRIu64 " %d steps, none failed\n", floods[f].name, (most - before) / MIB, STEPS);
    }
    assert_true(support_alive(cluster));
    support_drop(v.session, &v.context);
    banyan_disconnect(v.client);
    free(a.hello.bytes);
    free(a.ask.bytes);
    support_stop(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_client_floods)};
    return cmocka_run_group_tests_name("flood", tests, NULL, NULL);
}
