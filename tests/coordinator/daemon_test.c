// SPDX-License-Identifier: Apache-2.0
// The coordinator as a program: its command line, exit codes, ready file, lock and HTTP.
#include "tests/coordinator/helper.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LONG UINT64_C(60000000000)

static char folder[64], program[256], secret[128], store[128], ready[128], listen_on[160];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/banyan-daemon-XXXXXX");
    if (!mkdtemp(folder) || !harness_program_path("banyan-coordinator", program, sizeof(program)))
        return 1;
    snprintf(secret, sizeof(secret), "%s/secret", folder);
    snprintf(store, sizeof(store), "%s/store.db", folder);
    snprintf(ready, sizeof(ready), "%s/ready", folder);
    snprintf(listen_on, sizeof(listen_on), "tcp://127.0.0.1:0,unix://%s/c.sock", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

// Runs it with these arguments to its end.
static int run(char *const *args, char *said, size_t len)
{
    char *argv[24] = {program};
    struct harness_output out;
    for (int i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    assert_true(harness_run(argv, NULL, LONG, &out));
    snprintf(said, len, "%s%s", out.out, out.err);
    int code = out.exit_code;
    harness_output_free(&out);
    return code;
}

#define ARGS(...) ((char *[]){__VA_ARGS__, NULL})

static pid_t start(char *const *more)
{
    char *argv[24] = {program, "--listen",     listen_on, "--secret-file", secret, "--store",
                      store,   "--ready-file", ready};
    char log[128];
    snprintf(log, sizeof(log), "%s/log", folder);
    for (int i = 0; more && more[i]; i++)
        argv[9 + i] = more[i];
    unlink(ready); // one that was killed leaves it
    pid_t pid = harness_process_start(argv, log);
    assert_true(pid > 0);
    for (int i = 0; access(ready, R_OK) && i < 30000; i++)
        usleep(1000);
    assert_int_equal(access(ready, R_OK), 0);
    return pid;
}

static void end(pid_t pid, int sig)
{
    int status;
    kill(pid, sig);
    assert_true(harness_process_wait(pid, LONG, &status));
    assert_true(sig == SIGKILL ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void usage(void **state)
{
    (void)state;
    char said[8192];
    assert_int_equal(run(ARGS("--help"), said, sizeof(said)), 0);
    assert_non_null(strstr(said, "--listen"));
    assert_int_equal(run(ARGS("--version"), said, sizeof(said)), 0);
    assert_int_equal(run(ARGS("--wrong"), said, sizeof(said)), 2);
    assert_non_null(strstr(said, "wrong"));
    assert_int_equal(run(ARGS("extra"), said, sizeof(said)), 2);
    assert_int_equal(run(ARGS("--listen", ","), said, sizeof(said)), 2);
    assert_int_equal(run(ARGS("--heartbeat", "1ms"), said, sizeof(said)), 2);
    assert_int_equal(run(ARGS("--log-level", "loud"), said, sizeof(said)), 2);
    static char *const bad[][2] = {{"--audit", "often"},
                                   {"--audit", "-1"},
                                   {"--audit", "1.5"},
                                   {"--audit", ""},
                                   {"--audit", "9999999999999999"},
                                   {"--keep-steps", "-1"},
                                   {"--keep-steps", "64X"},
                                   {"--keep-steps", ""}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(run(ARGS(bad[i][0], bad[i][1]), said, sizeof(said)), 2);
        assert_non_null(strstr(said, bad[i][0] + 2)); // it says which
    }
    assert_int_equal(run(ARGS("--max-sessions", "0"), said, sizeof(said)), 2);
}

static void cannot_start(void **state)
{
    (void)state;
    char said[4096];
#define RUN(listen, ...)                                                                                     \
    run(ARGS("--secret-file", secret, "--store", store, "--listen", listen, ##__VA_ARGS__), said,            \
        sizeof(said))
    assert_int_equal(RUN("tcp://0.0.0.0:0"), 3); // anybody could come
    assert_non_null(strstr(said, "without TLS and without a client token"));
    char token[300];
    snprintf(token, sizeof token, "%s.token", secret);
    FILE *file = fopen(token, "w");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_true(fputs("a token for a test\n", file) >= 0 && fclose(file) == 0);
    assert_int_equal(RUN("tcp://0.0.0.0:0", "--token-file", token), 3); // anybody could listen
    assert_non_null(strstr(said, "without TLS: give a tls://"));
    unlink(token);
    assert_int_equal(RUN("carrier-pigeon://here"), 3);
    assert_int_equal(RUN("tcp://127.0.0.1:0", "--token-file", "/nonexistent/token"), 3);
    assert_int_equal(RUN("tcp://127.0.0.1:0", "--store", "/proc/no/store.db"), 3);
    assert_int_equal(chmod(secret, 0644), 0);
    assert_int_equal(RUN("tcp://127.0.0.1:0"), 3); // a secret that others can read is none
    assert_int_equal(chmod(secret, 0600), 0);
#undef RUN
}

static void ready_file_and_lock(void **state)
{
    (void)state;
    char said[4096], line[1024] = "";
    pid_t pid = start(NULL);
    FILE *file = fopen(ready, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    assert_true(line[0] == '{' && strstr(line, "\"endpoints\":[\"tcp://127.0.0.1:") &&
                strstr(line, "unix://") && strstr(line, "\"pid\":"));
    assert_null(strstr(line, ":0\"")); // the real port
    struct stat info;
    assert_int_equal(stat(secret, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(run(ARGS("--secret-file", secret, "--store", store, "--listen", "tcp://127.0.0.1:0",
                              "--ready-file", ready),
                         said, sizeof(said)),
                     3);
    snprintf(line, sizeof(line), "is in use by a coordinator (process %d on host ", (int)pid);
    assert_non_null(strstr(said, line));
    assert_int_equal(access(ready, R_OK), 0); // it is the other one's
    end(pid, SIGKILL);
    pid = start(NULL); // a killed one leaves no lock
    end(pid, SIGTERM);
    assert_int_not_equal(access(ready, R_OK), 0); // it has stopped serving
    pid = start(ARGS("--fsync", "--cluster", "named"));
    end(pid, SIGINT);
}

// ---- HTTP ---------------------------------------------------------------------------------------

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (void *)&address, len), 0);
    assert_int_equal(getsockname(fd, (void *)&address, &len), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void get(uint16_t port, const char *request, char *said, size_t len)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t n = 0;
    ssize_t got;
    assert_int_equal(connect(fd, (void *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    while (n + 1 < len && (got = read(fd, said + n, len - n - 1)) > 0)
        n += (size_t)got;
    said[n] = 0;
    close(fd);
}

static void http(void **state)
{
    (void)state;
    static char said[65536], huge[32 << 10];
    char address[32];
    uint16_t port = free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    pid_t pid = start(ARGS("--http", address, "--max-clients", "77", "--max-client-bytes", "1M"));
    get(port, "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "200 OK"));
    get(port, "GET /livez?verbose HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "200 OK"));
    assert_non_null(strstr(said, "[+]shutdown ok\nok\n"));
    get(port, "GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "503"));
    assert_non_null(strstr(said, "no worker is active"));
    get(port, "GET /readyz?verbose HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "503"));
    assert_non_null(strstr(said, "[+]shutdown ok\n[+]store ok\n[+]writes ok\n[-]workers failed: "));
    get(port, "GET /readyz?exclude=workers&verbose HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said,
        sizeof(said));
    assert_non_null(strstr(said, "200 OK"));
    assert_non_null(strstr(said, "[+]workers excluded\nok\n"));
    get(port, "GET /readyz?exclude=nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said,
        sizeof(said));
    assert_non_null(strstr(said, "503"));
    get(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "200 OK"));
    assert_non_null(strstr(said, "\nbanyan_term 1\n"));
    assert_non_null(strstr(said, "# TYPE banyan_frames_total counter"));
    assert_non_null(strstr(said, "# TYPE banyan_moved_bytes_total counter"));
    assert_non_null(strstr(said, "\nbanyan_struck_copies_total 0\n"));
    assert_non_null(strstr(said, "\nbanyan_thin_chunks 0\n"));
    assert_non_null(strstr(said, "\nbanyan_moves 0\n"));
    assert_non_null(strstr(said, "\nbanyan_audited_total 0\n"));
    assert_non_null(strstr(said, "\nbanyan_audit_differences_total 0\n"));
    assert_non_null(strstr(said, "\nbanyan_audit_skipped_total 0\n"));
    assert_non_null(strstr(said, "\nbanyan_kept_steps 0\n"));
    assert_non_null(strstr(said, "\nbanyan_limit_max{limit=\"clients\"} 77\n"));
    assert_non_null(strstr(said, "\nbanyan_limit_max{limit=\"bytes_of_a_client\"} 1048576\n"));
    assert_non_null(strstr(said, "\nbanyan_limit_used{limit=\"sessions\"} 0\n"));
    assert_non_null(strstr(said, "\nbanyan_limit_refused_total{limit=\"strangers\"} 0\n"));
    get(port, "GET /else HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "404"));
    get(port, "GET /else HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "421"));
    get(port, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", said, sizeof(said));
    assert_non_null(strstr(said, "421")); // another site's name that was made to point here
    get(port, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", said,
        sizeof(said));
    assert_null(strstr(said, "200 OK"));
    int n = snprintf(huge, sizeof(huge), "GET /healthz HTTP/1.1\r\nHost: a\r\nX: ");
    memset(huge + n, 'x', sizeof(huge) - (size_t)n - 5);
    memcpy(huge + sizeof(huge) - 5, "\r\n\r\n", 5);
    get(port, huge, said, sizeof(said));
    assert_null(strstr(said, "200 OK"));
    end(pid, SIGTERM);
    char why[4096];
    assert_int_equal(run(ARGS("--secret-file", secret, "--store", store, "--listen", "tcp://127.0.0.1:0",
                              "--http", "0.0.0.0:0"),
                         why, sizeof(why)),
                     3);
    assert_non_null(strstr(why, "--http-insecure"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage),
        cmocka_unit_test_setup_teardown(cannot_start, setup, teardown),
        cmocka_unit_test_setup_teardown(ready_file_and_lock, setup, teardown),
        cmocka_unit_test_setup_teardown(http, setup, teardown),
    };
    setup(NULL); // for the program's path
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed;
}
