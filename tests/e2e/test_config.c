// SPDX-License-Identifier: Apache-2.0
// Daemons that are started from a file, and what SIGHUP takes from it.
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/e2e/support.h"
#include "tests/harness/process.h"

static char folder[64], of_coordinator[128], of_worker[128];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/banyan-config-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(of_coordinator, sizeof of_coordinator, "%s/coordinator.conf", folder);
    snprintf(of_worker, sizeof of_worker, "%s/worker.conf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    support_remove_folder(folder);
    return 0;
}

// Whole or not at all, as an editor does.
static void write_file(const char *path, const char *text)
{
    char temporary[160];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(temporary, path), 0);
}

static bool log_has(const struct harness_cluster *cluster, uint32_t who, const char *text)
{
    char *log = harness_cluster_log(cluster, who);
    bool has = strstr(log, text) != NULL;
    free(log);
    return has;
}

static struct harness_cluster *start(void)
{
    static const char *coordinator_args[] = {"--config", of_coordinator, "--max-sessions", "100", NULL};
    static const char *worker_args[] = {"--config", of_worker, NULL};
    return support_start(&(struct harness_options){
        .workers = 1, .coordinator_args = coordinator_args, .worker_args = worker_args});
}

static uint64_t audits_every(banyan_client *client)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    uint64_t every = info.audit_every;
    banyan_cluster_info_free(&info);
    return every;
}

static void a_hangup_reads_it_again(void **state)
{
    (void)state;
    char names[400];
    write_file(of_coordinator, "# mine\naudit = 7\nmax-sessions = 200\nkeep-steps = 32M\n");
    write_file(of_worker, "attach-ttl = 1h\n");
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    assert_int_equal(audits_every(client), 7);

    write_file(of_coordinator, "audit = 9\nmax-sessions = 300\nkeep-steps = 16M\nlog-level = debug\n");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, audits_every(client) == 9);
    snprintf(names, sizeof names, "signal=HUP: reloaded file=%s: changed: audit, log-level", of_coordinator);
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR, names));
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR,
                           " WARN  banyan-coordinator: signal=HUP: needs a "
                           "restart: keep-steps\n")); // max-sessions: as given

    write_file(of_worker, "attach-ttl = 60m\nread-ahead = 5\nmax-clients = 7\n");
    harness_cluster_signal(cluster, 0, SIGHUP);
    EVENTUALLY(60, log_has(cluster, 0, "changed: read-ahead\n"));
    EVENTUALLY(60, log_has(cluster, 0, "signal=HUP: needs a restart: max-clients\n"));

    write_file(of_coordinator, "keep-steps = 32M\n"); // what is gone from it has its default again
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, audits_every(client) == 0);
    banyan_disconnect(client);
    support_stop(cluster);
}

static void a_wrong_file_changes_nothing(void **state)
{
    (void)state;
    char says[400];
    write_file(of_coordinator, "audit = 7\n");
    write_file(of_worker, "");
    struct harness_cluster *cluster = start();
    harness_cluster_allow_error(cluster, "nothing is changed");
    banyan_client *client = support_connect(cluster, "unix");
    write_file(of_coordinator, "audit = 9\nlog-level = debug\nmvoe-rate = 1M\n");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    snprintf(
        says, sizeof says,
        " ERROR banyan-coordinator: signal=HUP: nothing is changed: %s:3: mvoe-rate: unknown option: did "
        "you mean 'move-rate'?\n",
        of_coordinator);
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR, says));
    assert_int_equal(audits_every(client), 7);
    assert_int_equal(unlink(of_coordinator), 0);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR, "No such file or directory"));
    assert_int_equal(audits_every(client), 7);
    write_file(of_worker, "drain-timeout = 5s\n"); // goes with drain
    harness_cluster_signal(cluster, 0, SIGHUP);
    EVENTUALLY(60, log_has(cluster, 0, "nothing is changed: --drain-timeout needs --drain"));

    write_file(of_coordinator, "audit = 11\n"); // and it is none the worse for it
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, audits_every(client) == 11);
    banyan_disconnect(client);
    support_stop(cluster);
}

static uint64_t compared(banyan_client *client)
{
    banyan_scrub scrub;
    OK(banyan_get_scrub(client, 0, &scrub, ERR));
    assert_int_equal(scrub.corrupt + scrub.lost + scrub.disputed, 0);
    return scrub.compared;
}

// Chunks that were sealed when there were no scrubs have their turn, too.
static void scrubs_begin_with_a_hangup(void **state)
{
    (void)state;
    enum { LENGTH = 64, CHUNK = 32 };
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 2,
                              .kv_heads = 1,
                              .k_dim = 32,
                              .v_dim = 32,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = CHUNK,
                              .members = 1,
                              .replicas = 1};
    struct context c;
    banyan_session *session;
    write_file(of_coordinator, "scrub = 0\n");
    write_file(of_worker, "");
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    context_init(&c, &spec, LENGTH);
    context_random(&c, 0, LENGTH, 3);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &c, 0, LENGTH);
    support_wait_sealed(client, session, LENGTH / CHUNK);
    uint64_t before = compared(client);
    write_file(of_coordinator, "scrub = 100ms\n");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, compared(client) >= before + 3 * LENGTH / CHUNK); // again and again
    support_drop(session, &c);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Each line of the log from here on is an object that names its program.
static void json_lines(const struct harness_cluster *cluster, uint32_t who, const char *program)
{
    char *log = harness_cluster_log(cluster, who);
    unsigned n = 0;
    for (char *line = log, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (!root)
            fail_msg("no object: %s", line);
        assert_string_equal(json_string_value(json_object_get(root, "program")), program);
        assert_true(json_is_string(json_object_get(root, "ts")) &&
                    json_is_string(json_object_get(root, "message")));
        if (strstr(line, "\"message\":\"ready cluster=of us"))
            n += json_is_integer(json_object_get(root, "term")) &&
                 strcmp(json_string_value(json_object_get(root, "cluster")), "of us") == 0;
        json_decref(root);
    }
    assert_int_equal(n, who == HARNESS_COORDINATOR);
    free(log);
}

static void logs_of_objects(void **state)
{
    (void)state;
    write_file(of_coordinator, "cluster = of us\nlog-format = json\n");
    write_file(of_worker, "log-format = json\nlog-level = debug\n");
    struct harness_cluster *cluster = start();
    json_lines(cluster, HARNESS_COORDINATOR, "banyan-coordinator");
    json_lines(cluster, 0, "banyan-worker");
    write_file(of_coordinator, "cluster = of us\nlog-format = journald\n");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR, "\n<6>signal=HUP: reloaded"));
    write_file(of_coordinator, "cluster = of us\n");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGHUP);
    EVENTUALLY(60, log_has(cluster, HARNESS_COORDINATOR, "Z INFO  banyan-coordinator: signal=HUP: reloaded"));
    support_stop(cluster);
}

// ---- without a cluster --------------------------------------------------------------------------------------

static struct harness_output run(const char *name, char *const *more)
{
    char program[512], *argv[16] = {program};
    struct harness_output out;
    assert_true(harness_program_path(name, program, sizeof program));
    for (int i = 0; more[i]; i++)
        argv[i + 1] = more[i];
    assert_true(harness_run(argv, NULL, UINT64_C(60000000000), &out));
    return out;
}

// Without its comments, in place.
static char *settings(char *text)
{
    char *to = text;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (*line != '#' && *line != '\n') {
            memmove(to, line, (size_t)(end - line) + 1);
            to += end - line + 1;
        }
    *to = '\0';
    return text;
}

static void what_is_printed_gives_the_same(void **state)
{
    (void)state;
    static const char *const programs[] = {"banyan-coordinator", "banyan-worker"};
    char said[400];
    for (size_t i = 0; i < 2; i++) {
        write_file(of_coordinator, "log-level = debug\nmax-clients = 12\n");
        struct harness_output first = run(programs[i], (char *[]){"--config", of_coordinator, "--token-file",
                                                                  "/no/such #1", "--print-config", NULL});
        assert_int_equal(first.exit_code, 0);
        snprintf(said, sizeof said, "# %s:2\nmax-clients = 12\n", of_coordinator);
        assert_non_null(strstr(first.out, said));
        assert_non_null(strstr(first.out, "# command line\ntoken-file = \"/no/such #1\"\n"));
        assert_non_null(strstr(first.out, "# default\n#insecure = false\n"));
        write_file(of_worker, first.out);
        struct harness_output second =
            run(programs[i], (char *[]){"--config", of_worker, "--print-config", NULL});
        assert_int_equal(second.exit_code, 0);
        assert_string_equal(settings(first.out), settings(second.out));
        assert_non_null(strstr(first.out, "max-clients = 12\n"));
        harness_output_free(&first);
        harness_output_free(&second);
    }
}

static void a_mistake_is_exit_code_two(void **state)
{
    (void)state;
    write_file(of_coordinator, "\nheartbeat = 5ms\n");
    struct harness_output out = run("banyan-coordinator", (char *[]){"--config", of_coordinator, NULL});
    assert_int_equal(out.exit_code, 2);
    assert_non_null(strstr(out.err, ":2: heartbeat: '5ms' must be between 20ms and 1m"));
    harness_output_free(&out);
    out = run("banyan-worker", (char *[]){"--config", folder, NULL});
    assert_int_equal(out.exit_code, 3);
    assert_non_null(strstr(out.err, "it is a folder"));
    harness_output_free(&out);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_hangup_reads_it_again),        TEST(a_wrong_file_changes_nothing),
        TEST(scrubs_begin_with_a_hangup),     TEST(logs_of_objects),
        TEST(what_is_printed_gives_the_same), TEST(a_mistake_is_exit_code_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
