// SPDX-License-Identifier: Apache-2.0
// One life of a cluster with one failpoint armed (common/base/failpoint.h):
//   failpoint_life --point NAME [--action kill|error|delay:MS] [--nth N] [--replicas R] [--before POINT] [--lose]
//       [--stores] [--act NAME]
// A client, in a process of its own, does the script (script.h). A process that dies is restarted. Then every
// acknowledged row is compared with float64, the coordinator is killed once more, and again. --before: this
// point fails (error) first, and only then the other one is armed. --lose: a worker is killed in the middle,
// and the point is armed then.
// --stores: workers keep what they hold in files, and nothing that is killed may lose anything.
// --act: the point is armed after the script, in an act (act.h).
// Exit status: 0 all holds and the point was hit, 1 something does not hold, 3 the point was never hit, 77
// the system does not let the act be done.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/trail/trail_chain.h"
#include "tests/e2e/support.h"
#include "tests/failpoints/act.h"
#include "tests/failpoints/script.h"

enum {
    WORKERS = 3,
    NOT_HIT = 3,
    IMPOSSIBLE = 77,
    SEAL_MS = 4000 // a chunk is sealed when it is full and not written to
};

#define LIFE_NS (150 * COMMON_NS_PER_S)

static struct options {
    const char *point, *action, *before, *act;
    unsigned nth, replicas;
    bool lose, stores;
} options = {.action = "kill", .nth = 1, .replicas = 2};

static struct shared { // between this process and the client's
    int done;          // operations of the script
    int mark;          // 1: the client waits in the middle; 2: it goes on
    int lost;          // copies that may have gone
    char wrong[900];
} * shared;

static bool (*run_act)(struct act *); // NULL: none
static bool impossible;
static struct harness_cluster *cluster;
static char armed[300], hit[320], trail[320];

static void arm(void)
{
    char tmp[320];
    snprintf(tmp, sizeof(tmp), "%s.tmp", armed);
    FILE *file = fopen(tmp, "we");
    assert_non_null(file);
    if (options.before)
        fprintf(file, "%s error 1\n", options.before);
    fprintf(file, "%s %s %u\n", options.point, options.action, options.nth);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(tmp, armed), 0);
}

static bool was_hit(void)
{
    return access(hit, F_OK) == 0;
}

// Starts what has ended. False: it cannot be started.
static bool mend(void)
{
    for (uint32_t i = 0; i < WORKERS + 1u; i++) {
        uint32_t who = i < WORKERS ? i : HARNESS_COORDINATOR;
        int code;
        if (harness_cluster_ended(cluster, who, &code) && who < WORKERS && !options.stores)
            shared->lost++;
        if (!harness_cluster_pid(cluster, who) && !harness_cluster_launch(cluster, who))
            return false;
    }
    return true;
}

// ---- the client -------------------------------------------------------------------------------------------

static void tell_wrong(const char *what)
{
    snprintf(shared->wrong, sizeof(shared->wrong), "%s", what);
}

// What a command of an act has said last.
static void show(const char *log)
{
    char line[400];
    FILE *file = fopen(log, "re");
    while (file && fgets(line, sizeof(line), file))
        fprintf(stderr, "act.log: %s", line);
    if (file)
        fclose(file);
}

static int client(void)
{
    struct script *s = script_new(options.replicas, &shared->lost);
    bool ok = script_connect(s, harness_cluster_endpoint(cluster, "tcp"));
    for (int i = 0; ok && i < script_length(); i++) {
        if (options.lose && i == script_mark()) {
            __atomic_store_n(&shared->mark, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&shared->mark, __ATOMIC_SEQ_CST) != 2)
                support_sleep_ms(1);
        }
        ok = script_do(s, i);
        if (ok)
            __atomic_store_n(&shared->done, i + 1, __ATOMIC_SEQ_CST);
    }
    if (options.stores && strncmp(options.point, "disk_seal", 9) == 0)
        support_sleep_ms(SEAL_MS);
    ok = ok && (!options.lose || script_wait_whole(s)); // copies are made again, while the point is armed
    if (!ok)
        tell_wrong(script_wrong(s));
    script_free(s);
    return ok ? 0 : 1;
}

// One worker goes in the middle of the script; the point is armed before it comes back.
static void lose_one(void)
{
    if (__atomic_load_n(&shared->mark, __ATOMIC_SEQ_CST) != 1)
        return;
    shared->lost += !options.stores;
    harness_cluster_signal(cluster, 0, SIGKILL);
    arm();
    __atomic_store_n(&shared->mark, 2, __ATOMIC_SEQ_CST);
    support_sleep_ms(300); // the others have to do without it
}

// Runs the client and restarts any process that dies. 0: it has come to its end; 1: something is wrong; else
// it was killed.
static int supervise(void)
{
    uint64_t until = common_clock_after(LIFE_NS);
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGSEGV, SIG_DFL); // else cmocka would take it for this process's test
        signal(SIGABRT, SIG_DFL);
        _exit(client());
    }
    while (waitpid(pid, &status, WNOHANG) == 0) {
        lose_one();
        if (!mend() || common_clock_left(until) == 0) {
            tell_wrong("a daemon does not come back, or the client does not come to its end");
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            return 1;
        }
        support_sleep_ms(2);
    }
    if (!mend()) {
        tell_wrong("a daemon does not come back");
        return 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) == SIGKILL && was_hit() ? 2 : 1;
}

// ---- afterwards -------------------------------------------------------------------------------------------

static bool act(struct script *s)
{
    struct act a = {.cluster = cluster,
                    .script = s,
                    .arm = arm,
                    .mend = mend,
                    .was_hit = was_hit,
                    .lost = &shared->lost,
                    .replicas = options.replicas,
                    .stores = options.stores,
                    .heals_fail = strcmp(options.action, "error") == 0};
    script_set_idle(s, mend);
    bool ok = run_act(&a) && mend();
    unlink(armed);
    impossible = a.impossible;
    if (!ok) {
        char log[400];
        snprintf(log, sizeof(log), "%s/act.log", harness_cluster_dir(cluster));
        tell_wrong(a.wrong[0] ? a.wrong : script_wrong(s));
        show(log);
    }
    return ok;
}

// The audit log of a coordinator that was killed, or whose disk was full: its chain is whole.
static bool is_chained(void)
{
    struct common_trail_chain chain;
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(trail, "re");
    common_trail_chain_init(&chain);
    for (ssize_t n; file && (n = getline(&line, &room, file)) > 0;) {
        bool ended = line[n - 1] == '\n';
        common_trail_chain_take(&chain, line, (size_t)n - ended, ended);
    }
    common_trail_chain_end(&chain);
    bool whole = chain.records > 0 && !chain.bad;
    if (!whole)
        fprintf(stderr, "the audit log: line %d: %s\n", (int)chain.first_line, chain.why);
    common_trail_chain_fini(&chain);
    if (file)
        fclose(file);
    free(line);
    return whole;
}

// What the client has left: as the model says, also after one more death of the coordinator.
static bool look(struct script *s, bool died)
{
    bool ok = script_connect(s, harness_cluster_endpoint(cluster, "unix"));
    if (died) {
        ok = ok && script_recover(s, shared->done);
        for (int i = shared->done; ok && i < script_length(); i++)
            ok = script_do(s, i);
    }
    if (ok && run_act && !act(s))
        return false;
    ok = ok && script_check(s);
    if (ok) {
        harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
        ok = harness_cluster_restart(cluster, HARNESS_COORDINATOR) && script_check(s) && script_delete_all(s);
    }
    if (!ok)
        tell_wrong(script_wrong(s));
    return ok;
}

static bool is_act(const char *name)
{
    return options.act && strcmp(options.act, name) == 0;
}

static void add_worker(int i)
{
    static char dirs[WORKERS][320];
    static const char *args[WORKERS][5];
    if (options.stores) {
        snprintf(dirs[i], sizeof(dirs[i]), "%s/w%d.store", harness_cluster_dir(cluster), i);
        args[i][0] = "--store";
        args[i][1] = dirs[i];
        args[i][2] = is_act("cold") ? "--store-limit" : NULL;
        args[i][3] = "64M";
    }
    assert_int_equal(harness_cluster_add(cluster, &(struct harness_worker){.args = args[i]}), i);
}

static void life(void **state)
{
    (void)state;
    // A chunk gets no new copy while a client has a ticket for positions in it that are not committed
    static const char *beats[] = {"--heartbeat", "500ms", "--ticket-life", "1s", "--audit-log", trail, NULL};
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    char base[] = "/tmp/banyan-failpoint-XXXXXX";
    assert_non_null(mkdtemp(base));
    snprintf(armed, sizeof(armed), "%s/armed", base);
    snprintf(hit, sizeof(hit), "%s.hit", armed);
    snprintf(trail, sizeof(trail), "%s/audit.log", base);
    setenv("BANYAN_FAILPOINT_FILE", armed, 1);
    cluster = support_start(&(struct harness_options){
        .coordinator_args = beats, .worker_args = same_speed, .memory = is_act("cold") ? "2M" : "64M"});
    for (int i = 0; i < WORKERS; i++)
        add_worker(i);
    harness_cluster_allow_error(cluster, ""); // what daemons say of each other's deaths
    if (!options.lose && !run_act)
        arm();
    int how = supervise();
    if (!run_act)
        unlink(armed);
    if (how == 1)
        fail_msg("%s", shared->wrong);
    struct script *s = script_new(options.replicas, &shared->lost);
    for (int i = 0; i < shared->done; i++)
        script_pretend(s, i);
    if (!look(s, how == 2))
        fail_msg("afterwards: %s", shared->wrong);
    script_free(s);
    assert_true(is_chained());
    banyan_client *last = support_connect(cluster, "unix");
    EVENTUALLY(60, support_used_bytes(last) == 0);
    banyan_disconnect(last);
    support_stop(cluster);
}

static bool take_option(const char *name, const char *value)
{
    if (strcmp(name, "--point") == 0)
        options.point = value;
    else if (strcmp(name, "--action") == 0)
        options.action = value;
    else if (strcmp(name, "--before") == 0)
        options.before = value;
    else if (strcmp(name, "--act") == 0)
        options.act = value;
    else if (strcmp(name, "--nth") == 0)
        options.nth = (unsigned)strtoul(value, NULL, 10);
    else if (strcmp(name, "--replicas") == 0)
        options.replicas = (unsigned)strtoul(value, NULL, 10);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--lose") == 0) {
            options.lose = true;
        } else if (strcmp(argv[i], "--stores") == 0) {
            options.stores = true;
        } else if (i + 1 == argc || !take_option(argv[i], argv[i + 1])) {
            fprintf(stderr, "failpoint_life: '%s' makes no sense; see tests/failpoints/README.md\n", argv[i]);
            return 2;
        } else {
            i++;
        }
    }
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!options.point || shared == MAP_FAILED || (options.act && !act_find(options.act, &run_act)))
        return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(life)};
    if (cmocka_run_group_tests_name("life", tests, NULL, NULL) != 0)
        return impossible ? IMPOSSIBLE : 1;
    bool reached = was_hit();
    unlink(hit);
    *strrchr(hit, '/') = '\0';
    rmdir(hit);
    return reached ? 0 : NOT_HIT;
}
