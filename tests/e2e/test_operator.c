// SPDX-License-Identifier: Apache-2.0
// What an operator sees of the daemons: signals, what a worker that cannot join says, what their logs tell.
#include "tests/e2e/support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/e2e/banyanctl.h"

static bool log_has(const struct harness_cluster *cluster, uint32_t who, const char *text)
{
    char *log = harness_cluster_log(cluster, who);
    bool has = strstr(log, text) != NULL;
    free(log);
    return has;
}

// ---- a worker by itself ---------------------------------------------------------------------------------

struct lone { // that may never join
    pid_t pid;
    char log[512];
};

#define ARGS(...) ((char *[]){__VA_ARGS__, NULL})

// With the cluster's secret, and a small memory, beside these arguments.
static struct lone lone_start(const struct harness_cluster *cluster, const char *name, char *const *more)
{
    struct lone lone;
    char program[4096], *argv[32] = {program,       (char *)"--secret-file", NULL,        (char *)"--memory",
                                     (char *)"64M", (char *)"--bandwidth",   (char *)"1G"};
    size_t n = 7;
    argv[2] = (char *)harness_cluster_secret_file(cluster);
    assert_true(harness_program_path("banyan-worker", program, sizeof program));
    snprintf(lone.log, sizeof lone.log, "%s/%s.log", harness_cluster_dir(cluster), name);
    for (; *more; more++)
        argv[n++] = *more;
    lone.pid = harness_process_start(argv, lone.log);
    assert_true(lone.pid > 0);
    return lone;
}

static bool lone_says(const struct lone *lone, const char *text)
{
    char log[65536] = "";
    FILE *file = fopen(lone->log, "re");
    size_t len = file ? fread(log, 1, sizeof log - 1, file) : 0;
    if (file)
        fclose(file);
    log[len] = '\0';
    return strstr(log, text) != NULL;
}

static void lone_end(const struct lone *lone)
{
    int status;
    kill(lone->pid, SIGTERM);
    assert_true(harness_process_wait(lone->pid, 60 * COMMON_NS_PER_S, &status));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A port at which no process listens, and none can: keep the descriptor.
static int silent_port(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (void *)&address, len), 0);
    assert_int_equal(getsockname(fd, (void *)&address, &len), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void a_worker_says_why_it_cannot_join(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 0});
    uint16_t port;
    int fd = silent_port(&port);
    char nobody[64], foreign[300];
    snprintf(nobody, sizeof nobody, "tcp://127.0.0.1:%u", port);
    // nng's port as if it were one of streams
    snprintf(foreign, sizeof foreign, "%s", harness_cluster_endpoint(cluster, "nng+tcp") + strlen("nng+"));
    struct {
        char *coordinator;
        const char *says;
    } cases[] = {
        {nobody, "cannot join: cannot connect: Connection refused"},
        {(char *)"unix:///nonexistent/socket", "cannot join: cannot connect: No such file"},
        {(char *)"tcp://no-such-host.invalid:7412",
         "cannot join: cannot find the address of 'no-such-host.invalid'"},
        {foreign, "endpoint of another kind"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        snprintf(name, sizeof name, "lone%zu", i);
        struct lone lone =
            lone_start(cluster, name,
                       ARGS("--coordinator", cases[i].coordinator, "--edge-listen", "tcp://127.0.0.1:0"));
        EVENTUALLY(60, lone_says(&lone, cases[i].says));
        lone_end(&lone);
    }
    close(fd);
    support_stop(cluster);
}

static void another_secret_is_reported_on_both_sides(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 0});
    char coordinator[300], secret[512];
    snprintf(coordinator, sizeof coordinator, "%s", harness_cluster_endpoint(cluster, "tcp"));
    snprintf(secret, sizeof secret, "%s/no-secret-yet", harness_cluster_dir(cluster));
    struct lone lone =
        lone_start(cluster, "stranger", ARGS("--coordinator", coordinator, "--secret-file", secret));
    EVENTUALLY(60, lone_says(&lone, "there was no cluster secret, and a new one was created file="));
    EVENTUALLY(60, lone_says(&lone, "cannot join: the server has another cluster secret"));
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR, "as a peer with another cluster secret does"));
    lone_end(&lone);
    lone = lone_start(cluster, "again", ARGS("--coordinator", coordinator, "--secret-file", secret));
    EVENTUALLY(60, lone_says(&lone, "cannot join: the server has another cluster secret"));
    assert_false(lone_says(&lone, "a new one was created")); // it is there now
    lone_end(&lone);
    support_stop(cluster);
}

// ---- addresses ------------------------------------------------------------------------------------------

// What the ready file of a worker says, with a newline at its end once it is whole.
static bool ready_says(const char *path, const char *text)
{
    char line[2048] = "";
    FILE *file = fopen(path, "re");
    if (file && !fgets(line, sizeof line, file))
        line[0] = '\0';
    if (file)
        fclose(file);
    return strstr(line, text) && strchr(line, '\n');
}

static void all_addresses_are_not_advertised(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 0});
    char coordinator[300], ready[512];
    struct {
        char *advertise;
        const char *edge, *public;
    } cases[] = {
        {NULL, "\"edge_endpoint\":\"tcp://127.0.0.1:", "\"endpoint\":\"tcp://127.0.0.1:"},
        {(char *)"localhost", "\"edge_endpoint\":\"tcp://localhost:", "\"endpoint\":\"tcp://localhost:"},
    };
    snprintf(coordinator, sizeof coordinator, "%s", harness_cluster_endpoint(cluster, "tcp"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[16];
        snprintf(name, sizeof name, "all%zu", i);
        snprintf(ready, sizeof ready, "%s/%s.ready", harness_cluster_dir(cluster), name);
        struct lone lone =
            lone_start(cluster, name,
                       ARGS("--coordinator", coordinator, "--name", name, "--ready-file", ready, "--insecure",
                            "--listen", "tcp://0.0.0.0:0", "--edge-listen", "tcp://0.0.0.0:0",
                            cases[i].advertise ? "--advertise" : NULL, cases[i].advertise));
        EVENTUALLY(60, ready_says(ready, cases[i].edge)); // it is active: the coordinator has dialled it
        assert_true(ready_says(ready, cases[i].public));
        assert_false(lone_says(&lone, "cannot join"));
        lone_end(&lone);
    }
    support_stop(cluster);
}

static void an_edge_that_cannot_be_dialled_is_named(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 0});
    char coordinator[300];
    snprintf(coordinator, sizeof coordinator, "%s", harness_cluster_endpoint(cluster, "tcp"));
    struct lone lone = lone_start(cluster, "lost",
                                  ARGS("--coordinator", coordinator, "--edge-listen", "tcp://127.0.0.1:0",
                                       "--advertise", "127.0.0.9")); // no process listens at that one
    EVENTUALLY(60, lone_says(&lone, "could not reach the worker's edge endpoint tcp://127.0.0.9:"));
    assert_true(lone_says(&lone, "Connection refused"));
    assert_true(log_has(cluster, HARNESS_COORDINATOR, "edge connection lost: cannot connect"));
    lone_end(&lone);
    support_stop(cluster);
}

// ---- mistakes on the command line -----------------------------------------------------------------------

static void a_worker_refuses_what_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value, *says;
    } cases[] = {
        {"--memory", "1024T", "more than the"},
        {"--name", "", "must not be empty"},
        {"--name", "  ", "contain spaces"},
        {"--name", "a b", "contain spaces"},
        {"--host", " ", "contain spaces"},
        {"--advertise", "", "--advertise"},
        {"--edge-listen", "unix://relative", "absolute path"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char program[4096];
        struct harness_output out;
        char *argv[] = {program,
                        (char *)"--coordinator",
                        (char *)"tcp://127.0.0.1:1",
                        (char *)"--secret-file",
                        (char *)"/nonexistent/secret",
                        (char *)"--device",
                        (char *)"cpu",
                        (char *)cases[i].option,
                        (char *)cases[i].value,
                        NULL};
        assert_true(harness_program_path("banyan-worker", program, sizeof program));
        assert_true(harness_run(argv, NULL, 60 * COMMON_NS_PER_S, &out));
        if (out.exit_code != 2 || !strstr(out.err, cases[i].says))
            fail_msg("%s '%s': exit code %d: %s", cases[i].option, cases[i].value, out.exit_code, out.err);
        harness_output_free(&out);
    }
}

// A worker that holds the only copy is not there: no other --endpoint helps.
static void a_missing_range_speaks_of_workers(void **state)
{
    (void)state;
    static const banyan_spec spec = {
        .layers = 1, .q_heads = 2, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_F32};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    banyan_client *client = support_connect(cluster, "unix");
    struct context context;
    banyan_session *session;
    context_init(&context, &spec, 32);
    context_random(&context, 0, 32, 1);
    OK(banyan_session_create(client, &spec, "held", &session, ERR));
    support_fill(session, &context, 0, 32);
    harness_cluster_signal(cluster, 0, SIGKILL);
    struct harness_output out = banyanctl_run(cluster, "--timeout 2s session fork held 20 %s", "forked");
    if (out.exit_code != 5 || !strstr(out.err, "MISSING_RANGE") || !strstr(out.err, "'banyanctl workers'") ||
        strstr(out.err, "--endpoint"))
        fail_msg("exit code %d: %s", out.exit_code, out.err);
    harness_output_free(&out);
    assert_true(harness_cluster_restart(cluster, 0));
    banyan_session_close(session);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- memory ---------------------------------------------------------------------------------------------

#define MIB (UINT64_C(1) << 20)

static const banyan_spec wide = { // 512 KiB a chunk
    .layers = 1, .q_heads = 8,           .kv_heads = 8, .k_dim = 64,
    .v_dim = 64, .kv_type = BANYAN_BF16, .replicas = 1};
enum { WIDE_ROW = 8 * 64, WIDE_CHUNK = 256, WIDE_BLOCK = 8 * WIDE_CHUNK };

// Of the worker that has most. Workers say it with their heartbeats.
static uint64_t most_left(banyan_client *client)
{
    uint64_t most = 0;
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++) {
        const banyan_worker_info *w = &info.workers[i];
        assert_int_equal(w->capacity_bytes, 172 * MIB);
        if (w->capacity_bytes - w->used_bytes > most)
            most = w->capacity_bytes - w->used_bytes;
    }
    banyan_cluster_info_free(&info);
    return most;
}

// 172 MiB of K and V each: 273 MiB go into two of them, and so does the rest, until none has room for a chunk
// more. What is refused names a worker.
static void an_attach_fills_all_workers(void **state)
{
    (void)state;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .memory = "300M"});
    banyan_client *client = support_connect(cluster, "unix");
    uint16_t *rows = calloc(WIDE_BLOCK * WIDE_ROW, sizeof *rows);
    banyan_session *session;
    uint64_t at = 0, chunk = WIDE_CHUNK * 2 * WIDE_ROW * sizeof *rows;
    assert_non_null(rows);
    assert_int_equal(chunk, 512 << 10);
    OK(banyan_session_create(client, &wide, "wide", &session, ERR));
    for (; at < 273 * MIB / chunk * WIDE_CHUNK; at += WIDE_BLOCK)
        OK(banyan_attach(session, 0, at, WIDE_BLOCK, rows, rows, ERR));
    OK(banyan_commit(session, 0, 0, at, ERR));
    while (banyan_attach(session, 0, at, WIDE_CHUNK, rows, rows, ERR) == BANYAN_OK)
        at += WIDE_CHUNK;
    assert_int_equal(support_error.code, BANYAN_RESOURCE_EXHAUSTED);
    if (strcmp(support_error.worker, "w0") != 0 && strcmp(support_error.worker, "w1") != 0)
        fail_msg("no worker is named: %s", support_error.message);
    assert_non_null(strstr(support_error.message, support_error.worker));
    assert_null(strstr(support_error.message, "has no memory for these rows")); // the coordinator knew it
    EVENTUALLY(30,
               most_left(client) <= chunk + 3 * MIB); // a chunk, an extent, and tables of hundreds of chunks
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    free(rows);
    banyan_disconnect(client);
    support_stop(cluster);
}

// What --memory is for is said in the log, and is what the cluster counts.
static void what_memory_is_for_is_reported(void **state)
{
    (void)state;
    static const struct {
        const char *memory, *says;
        uint64_t kv;
    } cases[] = {
        {"64M", "memory divided memory=64.0 MiB kv=32.0 MiB: keys and values get kv", 32 * MIB},
        {"256M", "memory divided memory=256.0 MiB kv=128.0 MiB: keys and values get kv", 128 * MIB},
        {"2G", "memory divided memory=2.0 GiB kv=1.8 GiB: keys and values get kv", 1792 * MIB},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct harness_cluster *cluster =
            support_start(&(struct harness_options){.workers = 1, .memory = cases[i].memory});
        banyan_client *client = support_connect(cluster, "unix");
        banyan_cluster_info info;
        assert_true(log_has(cluster, 0, cases[i].says));
        OK(banyan_cluster_get_info(client, &info, ERR));
        assert_int_equal(info.workers[0].capacity_bytes, cases[i].kv);
        banyan_cluster_info_free(&info);
        banyan_disconnect(client);
        support_stop(cluster);
    }
}

// ---- workers that do not come back ----------------------------------------------------------------------

static bool ctl_says(const struct harness_cluster *cluster, int code, const char *says, const char *line,
                     const char *word)
{
    struct harness_output out = banyanctl_run(cluster, line, word);
    bool said = out.exit_code == code && (strstr(out.out, says) || strstr(out.err, says));
    harness_output_free(&out);
    return said;
}

static void a_lost_worker_is_forgotten(void **state)
{
    (void)state;
    static const banyan_spec spec = {.layers = 1,
                                     .q_heads = 2,
                                     .kv_heads = 1,
                                     .k_dim = 16,
                                     .v_dim = 16,
                                     .kv_type = BANYAN_F32,
                                     .members = 1,
                                     .replicas = 1};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    banyan_client *client = support_connect(cluster, "unix");
    struct context context;
    banyan_session *session;
    context_init(&context, &spec, 32);
    context_random(&context, 0, 32, 1);
    OK(banyan_session_create(client, &spec, "held", &session, ERR));
    support_fill(session, &context, 0, 32); // at w0, there is no other
    uint32_t empty = harness_cluster_add_worker(cluster, NULL);
    const char *name = harness_cluster_worker_name(cluster, empty);
    banyanctl_expect(cluster, 9, "is active: drain it first", "worker forget %s", name);
    banyanctl_expect(cluster, 3, "there is no worker 'nobody'", "worker forget %s", "nobody");
    harness_cluster_signal(cluster, empty, SIGKILL);
    harness_cluster_signal(cluster, 0, SIGKILL);
    EVENTUALLY(60, ctl_says(cluster, 0, "is forgotten", "worker forget %s", name));
    banyanctl_expect(cluster, 3, "there is no worker", "worker forget %s", name);
    EVENTUALLY(60, ctl_says(cluster, 9, "have their only copy on w0", "worker forget %s", "w0"));
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL); // the store has forgotten it, too
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    banyanctl_expect(cluster, 3, "there is no worker", "worker forget %s", name);
    banyanctl_expect(cluster, 0, "w0", "workers", NULL);
    assert_true(harness_cluster_restart(cluster, empty)); // as a new one
    assert_true(harness_cluster_restart(cluster, 0));
    EVENTUALLY(60, ctl_says(cluster, 0, "deleted", "session delete held", NULL));
    harness_cluster_signal(cluster, 0, SIGKILL);
    EVENTUALLY(60, ctl_says(cluster, 0, "is forgotten", "worker forget %s", "w0"));
    banyan_session_close(session);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- health ---------------------------------------------------------------------------------------------

// Whether GET of this path is answered with these words.
static bool http_says(uint16_t port, const char *path, const char *words)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[4096] = "";
    size_t len = 0;
    ssize_t got;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (void *)&address, sizeof address), 0);
    dprintf(fd, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", path);
    while (len + 1 < sizeof text && (got = read(fd, text + len, sizeof text - len - 1)) > 0)
        len += (size_t)got;
    text[len] = '\0';
    close(fd);
    return strstr(text, words) != NULL;
}

static void it_is_ready_with_a_worker(void **state)
{
    (void)state;
    uint16_t port;
    char address[32];
    close(silent_port(&port));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    const char *const http[] = {"--http", address, NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .coordinator_args = http});
    assert_true(http_says(port, "/readyz", " 200 "));
    assert_true(http_says(port, "/readyz?verbose", "[+]workers ok"));
    harness_cluster_signal(cluster, 0, SIGKILL);
    EVENTUALLY(60, http_says(port, "/readyz", " 503 "));
    assert_true(http_says(port, "/healthz", " 200 ")); // the process lives
    assert_true(http_says(port, "/readyz?exclude=workers", " 200 "));
    assert_true(harness_cluster_restart(cluster, 0));
    assert_true(http_says(port, "/readyz", " 200 "));
    support_stop(cluster);
}

// ---- signals --------------------------------------------------------------------------------------------

static void a_hangup_ends_nothing(void **state)
{
    (void)state;
    static const uint32_t all[] = {HARNESS_COORDINATOR, 0};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        harness_cluster_signal(cluster, all[i], SIGHUP);
        EVENTUALLY(60,
                   log_has(cluster, all[i], "signal=HUP: nothing is reloaded: this process has no --config"));
    }
    banyanctl_expect(cluster, 0, "active", "workers", NULL);
    support_stop(cluster); // both are there, and end as asked
}

// Before a worker ends that has keys and values, and no files, its operator reads what is lost with it.
static void what_goes_with_a_worker_is_reported(void **state)
{
    (void)state;
    static const banyan_spec spec = {
        .layers = 1, .q_heads = 2, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_F32};
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    banyan_client *client = support_connect(cluster, "unix");
    struct context context;
    banyan_session *session;
    uint32_t empty = harness_cluster_add_worker(cluster, NULL);
    context_init(&context, &spec, 32);
    context_random(&context, 0, 32, 1);
    harness_cluster_signal(cluster, empty, SIGTERM);
    EVENTUALLY(60, log_has(cluster, empty, "leaving signal=TERM"));
    EVENTUALLY(60,
               !ctl_says(cluster, 0, "w1", "workers", NULL)); // it held nothing, and has said that it ends
    OK(banyan_session_create(client, &spec, "", &session, ERR));
    support_fill(session, &context, 0, 32); // at w0
    harness_cluster_signal(cluster, 0, SIGTERM);
    EVENTUALLY(60, log_has(cluster, 0, "of keys and values end with this process"));
    assert_false(log_has(cluster, empty, "of keys and values"));
    assert_true(harness_cluster_restart(cluster, 0)); // as a new one: there is nothing left to report
    support_drop(session, &context);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_hangup_ends_nothing),
                                       cmocka_unit_test(what_goes_with_a_worker_is_reported),
                                       cmocka_unit_test(a_worker_says_why_it_cannot_join),
                                       cmocka_unit_test(another_secret_is_reported_on_both_sides),
                                       cmocka_unit_test(a_worker_refuses_what_cannot_be),
                                       cmocka_unit_test(a_missing_range_speaks_of_workers),
                                       cmocka_unit_test(an_attach_fills_all_workers),
                                       cmocka_unit_test(what_memory_is_for_is_reported),
                                       cmocka_unit_test(a_lost_worker_is_forgotten),
                                       cmocka_unit_test(it_is_ready_with_a_worker),
                                       cmocka_unit_test(all_addresses_are_not_advertised),
                                       cmocka_unit_test(an_edge_that_cannot_be_dialled_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
