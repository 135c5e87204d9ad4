// SPDX-License-Identifier: Apache-2.0
// The engine `mpi`, from mpirun to the client: exact answers, the same bits as ever, no processor time when
// idle, and ranks that die or hang in the middle of steps.
#include "tests/e2e/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/harness/process.h"

#define WORKERS 4
#define LONG_NS (UINT64_C(100) * COMMON_NS_PER_S) // who fails at once fails before

static const char *const ends_job[] = {"mpirun", "--oversubscribe", "--bind-to", "none", NULL};
static const char *const survivors[] = {"mpirun", "--oversubscribe",   "--bind-to",
                                        "none",   "--enable-recovery", NULL};
static const char *const by_mpi[] = {"--engine", "mpi", "--bandwidth", "8G", NULL};

static const banyan_spec spread = {.layers = 2,
                                   .q_heads = 8,
                                   .kv_heads = 2,
                                   .k_dim = 64,
                                   .v_dim = 64,
                                   .kv_type = BANYAN_BF16,
                                   .chunk_tokens = 32,
                                   .members = WORKERS};

struct held { // a session and what it should hold
    banyan_session *session;
    struct context context;
};

static struct harness_cluster *start(const char *const *launcher)
{
    return support_start(
        &(struct harness_options){.workers = WORKERS, .launcher = launcher, .worker_args = by_mpi});
}

static void make(banyan_client *client, struct held *h, uint32_t members, uint64_t tokens)
{
    banyan_spec spec = spread;
    spec.members = members;
    context_init(&h->context, &spec, tokens + 64);
    context_random(&h->context, 0, tokens + 64, tokens + members);
    OK(banyan_session_create(client, &spec, NULL, &h->session, ERR));
    support_fill(h->session, &h->context, 0, tokens);
}

static void drop(struct held *h)
{
    banyan_session_close(h->session);
    context_free(&h->context);
}

static bool engine_is(banyan_session *session, const char *engine)
{
    banyan_plan_info plan;
    OK(banyan_session_get_plan(session, &plan, ERR));
    bool is = strcmp(plan.engine, engine) == 0;
    banyan_plan_info_free(&plan);
    return is;
}

static bool has_member(banyan_session *session, const char *name)
{
    banyan_session_info info;
    bool has = false;
    OK(banyan_session_get_info(session, &info, ERR));
    for (uint32_t i = 0; i < info.n_members; i++)
        has |= strcmp(info.members[i], name) == 0;
    banyan_session_info_free(&info);
    return has;
}

static banyan_code step_on(banyan_client *client, const struct held *h, uint64_t first, uint32_t rows,
                           uint64_t timeout_ns)
{
    struct step step = {
        .session = h->session, .first = first, .rows = rows, .seed = first, .timeout_ns = timeout_ns};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, rows, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

// Steps of one row, of many (cut into slabs), and tokens that are appended, layer by layer.
static void exercise(banyan_client *client, struct held *h, uint64_t tokens, struct step *kept)
{
    struct worst worst = {0};
    support_check_step(client, h->session, &h->context, 0, tokens - 1, 1, 0, &worst, "the last row");
    support_check_step(client, h->session, &h->context, 1, 0, (uint32_t)tokens, 0, &worst, "all rows");
    for (uint64_t at = tokens; at < tokens + 8; at++)
        for (uint32_t layer = 0; layer < spread.layers; layer++) {
            struct step step = {.session = h->session, .layer = layer, .first = at, .rows = 1, .seed = at};
            step_append(&step, &h->context);
            OK(step_run(client, &step));
            context_check(&h->context, layer, at, 1, 0, step.made_q, step.o, step.lse, &worst, "appended");
            step_free(&step);
        }
    *kept = (struct step){.session = h->session, .first = tokens - 3, .rows = 3, .seed = 77};
    OK(step_run(client, kept));
}

static void exact_and_the_same_bits(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(ends_job);
    banyan_client *client = support_connect(cluster, "unix");
    static const uint32_t members[] = {WORKERS, 2, 1};
    for (size_t m = 0; m < sizeof members / sizeof *members; m++) {
        struct step kept;
        struct held h;
        make(client, &h, members[m], 300);
        assert_true(
            engine_is(h.session, members[m] > 1 ? "mpi" : "stream")); // alone there is nothing to merge
        exercise(client, &h, 300, &kept);
        for (int i = 0; i < 50; i++) {
            struct step again = {.session = h.session, .first = 297, .rows = 3, .seed = 77};
            OK(step_run(client, &again));
            assert_true(step_same_bits(&kept, &again));
            assert_int_equal(kept.digest, again.digest);
            step_free(&again);
        }
        step_free(&kept);
        drop(&h);
    }
    banyan_disconnect(client);
    support_stop(cluster);
}

// User and system time of a process, in ticks.
static unsigned long long ticks_of(int pid)
{
    char path[64], text[1024] = "";
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    const char *after = strrchr(text, ')');
    assert_non_null(after);
    assert_int_equal(
        sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system), 2);
    return user + system;
}

// A rank that sits in MPI would burn a core: a hundred ticks a second.
static void idle_workers_burn_nothing(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(ends_job);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    unsigned long long before[WORKERS];
    make(client, &h, WORKERS, 200);
    OK(step_on(client, &h, 199, 1, 0));
    assert_true(engine_is(h.session, "mpi"));
    support_sleep_ms(100);
    for (uint32_t i = 0; i < WORKERS; i++)
        before[i] = ticks_of(harness_cluster_pid(cluster, i));
    uint64_t started = support_now_ns();
    support_sleep_ms(1000);
    unsigned long long ticks =
        (unsigned long long)sysconf(_SC_CLK_TCK) * (support_now_ns() - started) / COMMON_NS_PER_S;
    for (uint32_t i = 0; i < WORKERS; i++) {
        unsigned long long used = ticks_of(harness_cluster_pid(cluster, i)) - before[i];
        if (used > ticks / 10)
            fail_msg("worker %u used %llu ticks of %llu", i, used, ticks);
    }
    OK(step_on(client, &h, 199, 1, 0));
    drop(&h);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- ranks that die -----------------------------------------------------------------------------

struct stepper { // steps without a pause, from a thread
    banyan_client *client;
    struct held *held;
    _Atomic bool stop;
    _Atomic unsigned done;
    banyan_code failed;
    char text[512];
};

static void *keep_stepping(void *arg)
{
    struct stepper *s = arg;
    while (!s->stop && s->failed == BANYAN_OK) {
        struct step step = {.session = s->held->session, .first = 199, .rows = 1, .timeout_ns = LONG_NS};
        s->failed = step_run(s->client, &step);
        if (s->failed != BANYAN_OK)
            snprintf(s->text, sizeof s->text, "%s", support_error.message);
        step_free(&step);
        s->done++;
    }
    return NULL;
}

static void await_steps(struct stepper *s, unsigned more)
{
    unsigned target = s->done + more;
    EVENTUALLY(60, s->done >= target || s->failed != BANYAN_OK);
    if (s->failed != BANYAN_OK)
        fail_msg("a step failed: %s", s->text);
}

static void survivors_go_on_by_stream(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(survivors);
    banyan_client *client = support_connect(cluster, "unix");
    struct held pair, wide;
    struct step by[2]; // engines
    pthread_t thread;
    uint32_t victim = 0;
    make(client, &pair, 2, 200);
    make(client, &wide, WORKERS, 200);
    assert_true(engine_is(pair.session, "mpi") && engine_is(wide.session, "mpi"));
    by[0] = (struct step){.session = pair.session, .first = 150, .rows = 5, .seed = 1};
    OK(step_run(client, &by[0]));
    while (has_member(pair.session, harness_cluster_worker_name(cluster, victim)))
        victim++;
    struct stepper stepper = {.client = client, .held = &pair};
    assert_int_equal(pthread_create(&thread, NULL, keep_stepping, &stepper), 0);
    await_steps(&stepper, 50);

    harness_cluster_signal(cluster, victim, SIGKILL);
    FAILS(BANYAN_UNAVAILABLE, "MISSING_RANGE", step_on(client, &wide, 199, 1, LONG_NS));
    assert_string_equal(ERR->worker, harness_cluster_worker_name(cluster, victim));
    EVENTUALLY(20, engine_is(pair.session, "stream"));
    await_steps(&stepper, 50);
    OK(step_on(client, &pair, 199, 1, LONG_NS));
    stepper.stop = true;
    pthread_join(thread, NULL);
    assert_int_equal(stepper.failed, BANYAN_OK);

    // The tree and its order of merging are the same: so are the bits. The digest names the engine.
    by[1] = (struct step){.session = pair.session, .first = 150, .rows = 5, .seed = 1};
    OK(step_run(client, &by[1]));
    assert_true(step_same_bits(&by[0], &by[1]));
    assert_int_not_equal(by[0].digest, by[1].digest);
    step_free(&by[0]);
    step_free(&by[1]);

    // New sessions of the survivors go by stream, too.
    struct held fresh;
    make(client, &fresh, 2, 100);
    assert_true(engine_is(fresh.session, "stream"));
    OK(step_on(client, &fresh, 0, 100, 0));
    drop(&fresh);
    drop(&wide);
    drop(&pair);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Without --enable-recovery the launcher ends the job with the rank: one failure domain. A supervisor starts
// it again, and the group is formed anew by itself.
static void the_job_ends_and_comes_back(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(ends_job);
    banyan_client *client = support_connect(cluster, "unix");
    struct held before, after;
    make(client, &before, WORKERS, 200);
    OK(step_on(client, &before, 199, 1, 0));
    harness_cluster_signal(cluster, 1, SIGKILL);
    FAILS(BANYAN_UNAVAILABLE, NULL, step_on(client, &before, 199, 1, LONG_NS));
    assert_true(harness_cluster_job_ended(cluster, 30 * COMMON_NS_PER_S));
    assert_true(harness_cluster_job_restart(cluster));
    make(client, &after, WORKERS, 200);
    EVENTUALLY(20, engine_is(after.session, "mpi"));
    OK(step_on(client, &after, 0, 200, 0));
    OK(step_on(client, &after, 199, 1, 0));
    drop(&after);
    drop(&before);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A rank that hangs delays its steps to their deadline, nothing else; when it goes on, so do they.
static void a_rank_that_hangs(void **state)
{
    (void)state;
    static const char *const patient[] = {"--heartbeat", "20s", NULL};
    struct harness_cluster *cluster = support_start(&(struct harness_options){
        .workers = WORKERS, .launcher = ends_job, .worker_args = by_mpi, .coordinator_args = patient});
    banyan_client *client = support_connect(cluster, "unix");
    struct held pair, wide;
    uint32_t hung = 0;
    make(client, &pair, 2, 200);
    make(client, &wide, WORKERS, 200);
    while (has_member(pair.session, harness_cluster_worker_name(cluster, hung)))
        hung++;
    OK(step_on(client, &wide, 199, 1, 0));
    harness_cluster_signal(cluster, hung, SIGSTOP);
    FAILS(BANYAN_DEADLINE_EXCEEDED, NULL, step_on(client, &wide, 199, 1, COMMON_NS_PER_S / 2));
    OK(step_on(client, &pair, 199, 1, 0));
    FAILS(BANYAN_DEADLINE_EXCEEDED, NULL, step_on(client, &wide, 0, 200, COMMON_NS_PER_S / 2));
    harness_cluster_signal(cluster, hung, SIGCONT);
    OK(step_on(client, &wide, 199, 1, LONG_NS));
    OK(step_on(client, &wide, 0, 200, LONG_NS));
    OK(step_on(client, &pair, 199, 1, 0));
    assert_true(engine_is(wide.session, "mpi"));
    drop(&wide);
    drop(&pair);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- starting wrongly ---------------------------------------------------------------------------

static void run_worker(char *const *more, int want, const char *says)
{
    char program[4096];
    char *argv[16] = {program, (char *)"--coordinator", (char *)"tcp://127.0.0.1:1"};
    size_t n = 3;
    struct harness_output output;
    assert_true(harness_program_path("banyan-worker", program, sizeof program));
    for (; *more; more++)
        argv[n++] = *more;
    assert_true(harness_run(argv, NULL, LONG_NS, &output));
    if (output.exit_code != want || !strstr(output.err, says))
        fail_msg("code %d, and not '%s': %s", output.exit_code, says, output.err);
    harness_output_free(&output);
}

static void what_is_missing_is_said(void **state)
{
    (void)state;
    char *const alone[] = {(char *)"--engine", (char *)"mpi", NULL};
    char *const unknown[] = {(char *)"--engine", (char *)"pigeon", NULL};
    char *const no_name[] = {(char *)"--engine", (char *)"../mpi", NULL};
    char *const no_module[] = {(char *)"--engine", (char *)"mpi", (char *)"--engine-module",
                               (char *)"/nonexistent/banyan-mpi.so", NULL};
    run_worker(alone, 3, "mpirun");
    run_worker(unknown, 3, "banyan-pigeon.so");
    run_worker(no_name, 2, "--help");
    run_worker(no_module, 3, "/nonexistent/banyan-mpi.so");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_said),     cmocka_unit_test(exact_and_the_same_bits),
        cmocka_unit_test(idle_workers_burn_nothing),   cmocka_unit_test(survivors_go_on_by_stream),
        cmocka_unit_test(the_job_ends_and_comes_back), cmocka_unit_test(a_rank_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
