// SPDX-License-Identifier: Apache-2.0
// Crowds at the coordinator's endpoints: connections without a token, and clients whose steps get no answer.
// Others are served as if they were not there.
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "proto/rpc/endpoint.h"
#include "tests/e2e/context.h"
#include "tests/e2e/support.h"
#include "tests/e2e/wire.h"

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 16,
                                 .members = 1};

static unsigned descriptors(int pid)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void ping_over(const struct harness_cluster *cluster, const char *transport)
{
    banyan_client *client = support_connect(cluster, transport);
    OK(banyan_ping(client, NULL, ERR));
    banyan_disconnect(client);
}

// nng's handshake and five messages of a byte, 73 bytes in all, then a reset.
static void connections_that_reset(void **state)
{
    (void)state;
    enum { CROWD = 1100, MESSAGES = 5 };
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .token = "e2e-crowds-token"});
    ping_over(cluster, "nng+tcp");
    int pid = harness_cluster_pid(cluster, HARNESS_COORDINATOR);
    unsigned before = descriptors(pid);
    uint8_t hello[8 + MESSAGES * 13] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    for (uint8_t i = 0; i < MESSAGES; i++) {
        uint8_t message[13] = {0, 0, 0, 0, 0, 0, 0, 5, 0x80, 0, 0, i, 'x'};
        memcpy(hello + 8 + i * sizeof message, message, sizeof message);
    }
    for (int i = 0; i < CROWD; i++) {
        int fd = wire_dial(harness_cluster_endpoint(cluster, "nng+tcp"));
        assert_true(wire_send(fd, hello, sizeof hello));
        support_sleep_ms(i % 2); // some are reset while they are read, some while they are answered
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        close(fd);
    }
    ping_over(cluster, "nng+tcp");
    ping_over(cluster, "tcp");
    EVENTUALLY(20, descriptors(pid) <= before + 2); // clients take a moment to go
    support_stop(cluster);
}

static void one_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                     size_t n_items)
{
    (void)code;
    (void)error;
    (void)items;
    (void)n_items;
    atomic_fetch_sub((atomic_uint *)arg, 1);
}

// Steps on a worker that is stopped. Who asks for something else has the answer before any of them.
static void steps_that_are_held(void **state)
{
    (void)state;
    enum { CLIENTS = 10, EACH = 20 };
    static const char *const slow_hearts[] = {"--heartbeat", "10s", NULL};
    static struct step steps[CLIENTS][EACH];
    static banyan_item items[CLIENTS][EACH];
    static banyan_error errors[CLIENTS][EACH];
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .coordinator_args = slow_hearts});
    banyan_client *clients[CLIENTS];
    banyan_session *sessions[CLIENTS];
    struct context context;
    atomic_uint left = CLIENTS * EACH;
    context_init(&context, &spec, 100);
    context_random(&context, 0, 100, 4);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = support_connect(cluster, "nng+tcp");
        OK(banyan_session_create(clients[i], &spec, NULL, &sessions[i], ERR));
        support_fill(sessions[i], &context, 0, 100);
    }
    harness_cluster_signal(cluster, 0, SIGSTOP);
    for (int i = 0; i < CLIENTS; i++)
        for (int k = 0; k < EACH; k++) {
            steps[i][k] = (struct step){.session = sessions[i], .first = 99, .rows = 1, .seed = 1};
            items[i][k] = step_item(&steps[i][k]);
            items[i][k].error = &errors[i][k];
            OK(banyan_attend_async(clients[i], &items[i][k], 1, 60 * COMMON_NS_PER_S, one_done, &left, ERR));
        }
    support_sleep_ms(500); // they are there now
    ping_over(cluster, "nng+tcp");
    OK(banyan_ping(clients[0], NULL, ERR)); // over the connection of some of them
    assert_int_equal(atomic_load(&left), CLIENTS * EACH);
    harness_cluster_signal(cluster, 0, SIGCONT);
    EVENTUALLY(60, atomic_load(&left) == 0);
    for (int i = 0; i < CLIENTS; i++) {
        for (int k = 0; k < EACH; k++) {
            assert_int_equal(items[i][k].code, BANYAN_OK);
            context_check(&context, 0, 99, 1, 0, steps[i][k].made_q, steps[i][k].o, steps[i][k].lse, NULL,
                          "held");
            step_free(&steps[i][k]);
        }
        banyan_session_close(sessions[i]);
        banyan_disconnect(clients[i]);
    }
    context_free(&context);
    support_stop(cluster);
}

// Silent connections, in a process of their own: all of them are dialled again every 4 s.
static pid_t flood(const char *endpoint)
{
    enum { CROWD = 1100 };
    struct proto_endpoint parsed;
    struct sockaddr_storage address;
    socklen_t len;
    assert_int_equal(proto_endpoint_parse(endpoint, &parsed, NULL), COMMON_OK);
    assert_true(proto_endpoint_address(&parsed, &address, &len));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit files;
    int fd[CROWD];
    memset(fd, -1, sizeof fd);
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || (files.rlim_cur = files.rlim_max) < CROWD + 64 ||
        setrlimit(RLIMIT_NOFILE, &files) != 0)
        _exit(1);
    for (;;) {
        uint64_t from_ns = common_clock_ns();
        for (int i = 0; i < CROWD; i++) {
            if (fd[i] >= 0)
                close(fd[i]);
            fd[i] = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
            (void)connect(fd[i], (struct sockaddr *)&address, len);
        }
        while (common_clock_ns() - from_ns < 4 * COMMON_NS_PER_S)
            support_sleep_ms(10);
    }
}

static void connect_within(const struct harness_cluster *cluster, const char *transport, uint64_t most_ns)
{
    uint64_t from_ns = common_clock_ns();
    ping_over(cluster, transport);
    assert_in_range(common_clock_ns() - from_ns, 0, most_ns);
}

static unsigned active_workers(banyan_client *client)
{
    banyan_cluster_info info;
    unsigned n = 0;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        n += strcmp(info.workers[i].state, "active") == 0;
    banyan_cluster_info_free(&info);
    return n;
}

// Whatever endpoint they crowd: clients come in over each of them, and a worker that is started again joins.
static void connections_that_are_silent(void **state)
{
    (void)state;
    static const char *const transports[] = {"tcp", "unix", "nng+tcp"};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .token = "e2e-crowds-token"});
    banyan_client *watcher = support_connect(cluster, "tcp");
    for (int t = 0; t < 3; t++) {
        pid_t pid = flood(harness_cluster_endpoint(cluster, transports[t]));
        support_sleep_ms(1000);
        harness_cluster_signal(cluster, 0, SIGKILL);
        connect_within(cluster, transports[t], 2 * COMMON_NS_PER_S);
        EVENTUALLY(10, active_workers(watcher) == 1);
        uint64_t from_ns = common_clock_ns();
        assert_true(harness_cluster_restart(cluster, 0));
        EVENTUALLY(5, active_workers(watcher) == 2);
        assert_in_range(common_clock_ns() - from_ns, 0, 8 * COMMON_NS_PER_S);
        while (common_clock_ns() - from_ns < 5 * COMMON_NS_PER_S) { // beyond the next time that they come
            for (int k = 0; k < 3; k++)
                connect_within(cluster, transports[k], 2 * COMMON_NS_PER_S);
            support_sleep_ms(50);
        }
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); // it has been there all the time
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    banyan_disconnect(watcher);
    support_stop(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_that_reset),
        cmocka_unit_test(steps_that_are_held),
        cmocka_unit_test(connections_that_are_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
