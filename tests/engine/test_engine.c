// SPDX-License-Identifier: Apache-2.0
// Which engine a plan gets, and when it loses it: workers with an engine from a module made for tests.
// Arguments: the module, and the same of another build.
#include "tests/e2e/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/harness/process.h"

#define WORKERS 3
#define LONG_NS (UINT64_C(100) * COMMON_NS_PER_S)

static const char *module, *other_build;
static char dir[64], lost_file[96], refuse_file[96];
static const char *parrot[] = {"--engine", "parrot", "--engine-module", NULL, "--bandwidth", "8G", NULL};

static struct harness_cluster *start(const char *group)
{
    static const char *const beats[] = {"--heartbeat", "200ms", NULL};
    parrot[3] = module;
    setenv("BANYAN_TEST_GROUP", group, 1);
    unlink(lost_file);
    unlink(refuse_file);
    return support_start(
        &(struct harness_options){.workers = WORKERS, .worker_args = parrot, .coordinator_args = beats});
}

static void touch(const char *path)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fclose(file);
}

struct held { // a session and what it should hold
    banyan_session *session;
    struct context context;
};

static void make(banyan_client *client, struct held *h, uint32_t members)
{
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 32,
                              .v_dim = 32,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = 16,
                              .members = members};
    context_init(&h->context, &spec, 100);
    context_random(&h->context, 0, 100, members);
    OK(banyan_session_create(client, &spec, NULL, &h->session, ERR));
    support_fill(h->session, &h->context, 0, 100);
}

static void check(banyan_client *client, const struct held *h, uint64_t *digest)
{
    struct step step = {.session = h->session, .first = 99, .rows = 1, .seed = 5, .timeout_ns = LONG_NS};
    OK(step_run(client, &step));
    context_check(&h->context, 0, 99, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    *digest = step.digest;
    step_free(&step);
}

static bool engine_is(const struct held *h, const char *engine)
{
    banyan_plan_info plan;
    OK(banyan_session_get_plan(h->session, &plan, ERR));
    bool is = strcmp(plan.engine, engine) == 0;
    bool said = !is || strcmp(engine, "stream") == 0 || strstr(plan.why, "repeats-1 by parrot");
    banyan_plan_info_free(&plan);
    assert_true(said);
    return is;
}

// All members in one group: its engine. One worker: there is none to merge with. Workers say what they offer.
static void a_whole_group(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start("flock/3");
    banyan_client *client = support_connect(cluster, "unix");
    static const uint32_t members[] = {1, 2, 3};
    for (size_t m = 0; m < 3; m++) {
        struct held h;
        uint64_t digest;
        make(client, &h, members[m]);
        assert_true(engine_is(&h, members[m] > 1 ? "parrot" : "stream"));
        check(client, &h, &digest);
        support_drop(h.session, &h.context);
    }
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        assert_string_equal(info.workers[i].engine, "parrot");
    banyan_cluster_info_free(&info);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A group of four of which three are there; then the fourth comes, and plans that went by stream go by the
// engine.
static void a_group_becomes_whole(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start("flock/4");
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    uint64_t before, after;
    make(client, &h, 2);
    assert_true(engine_is(&h, "stream"));
    check(client, &h, &before);
    uint32_t fourth = harness_cluster_add_worker(cluster, NULL);
    assert_int_equal(fourth, 3);
    EVENTUALLY(30, engine_is(&h, "parrot"));
    check(client, &h, &after);
    assert_int_not_equal(before, after); // the digest names the engine
    harness_cluster_signal(cluster, fourth, SIGKILL);
    EVENTUALLY(30, engine_is(&h, "stream"));
    check(client, &h, &after);
    assert_int_equal(before, after);
    assert_true(harness_cluster_restart(cluster, fourth)); // here the new process is of the same group
    EVENTUALLY(30, engine_is(&h, "parrot"));
    check(client, &h, &after);
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A member says that the engine has failed: plans go by stream, and steps do not notice.
static void an_engine_is_lost(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start("flock/3");
    banyan_client *client = support_connect(cluster, "unix");
    struct held h, late;
    uint64_t digest;
    harness_cluster_allow_error(cluster, "engine=parrot has failed");
    make(client, &h, 3);
    assert_true(engine_is(&h, "parrot"));
    check(client, &h, &digest);
    touch(lost_file);
    EVENTUALLY(30, engine_is(&h, "stream"));
    check(client, &h, &digest);
    unlink(lost_file);     // it stays lost: this group is over
    support_sleep_ms(500); // some heartbeats that say so
    make(client, &late, 2);
    assert_true(engine_is(&late, "stream") && engine_is(&h, "stream"));
    check(client, &late, &digest);
    support_drop(late.session, &late.context);
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A member refuses to open a plan with it: no step fails for that.
static void an_engine_refuses(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start("flock/3");
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    uint64_t digest;
    touch(refuse_file);
    make(client, &h, 3);
    check(client, &h, &digest);
    assert_true(engine_is(&h, "stream"));
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

static void run_worker(const char *from, const char *group, const char *says)
{
    char program[4096];
    char *argv[] = {program,
                    (char *)"--coordinator",
                    (char *)"tcp://127.0.0.1:1",
                    (char *)"--name",
                    (char *)"w0",
                    (char *)"--engine",
                    (char *)"parrot",
                    (char *)"--engine-module",
                    (char *)from,
                    NULL};
    struct harness_output output;
    setenv("BANYAN_TEST_GROUP", group, 1);
    setenv("XDG_STATE_HOME", dir, 1);
    assert_true(harness_program_path("banyan-worker", program, sizeof program));
    assert_true(harness_run(argv, NULL, LONG_NS, &output));
    if (output.exit_code != 3 || !strstr(output.err, says))
        fail_msg("code %d, and not '%s': %s", output.exit_code, says, output.err);
    harness_output_free(&output);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    run_worker(other_build, "flock/3", "comes from another build");
    run_worker(module, "", "the parrot has no group");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_group),
        cmocka_unit_test(a_group_becomes_whole),
        cmocka_unit_test(an_engine_is_lost),
        cmocka_unit_test(an_engine_refuses),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    if (argc != 3)
        return 2;
    module = argv[1];
    other_build = argv[2];
    snprintf(dir, sizeof dir, "/tmp/banyan-engine-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    snprintf(lost_file, sizeof lost_file, "%s/lost", dir);
    snprintf(refuse_file, sizeof refuse_file, "%s/refuse", dir);
    setenv("BANYAN_TEST_LOST", lost_file, 1);
    setenv("BANYAN_TEST_REFUSE", refuse_file, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(lost_file);
    unlink(refuse_file);
    char rest[160];
    snprintf(rest, sizeof rest, "%s/banyan/cluster.secret", dir);
    unlink(rest);
    snprintf(rest, sizeof rest, "%s/banyan", dir);
    rmdir(rest);
    rmdir(dir);
    return failed;
}
