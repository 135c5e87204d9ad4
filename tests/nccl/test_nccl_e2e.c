// SPDX-License-Identifier: Apache-2.0
// The engine `nccl` from worker to client: exact answers, the bits of `stream`, communicators that form,
// break and form again under steps, ranks that die or hang. The device and NCCL are emulated
// (tests/emulation), or real where there is a GPU. Arguments: the device's module, the engine's, and "gpu"
// for real ones.
#include "tests/e2e/engines.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kernels/device.h"

#define WORKERS 4
#define LONG_NS (UINT64_C(100) * COMMON_NS_PER_S)

static const char *device_module, *engine_module;
static const char *by_nccl[] = {"--device",        "cuda:0", "--device-module", NULL, "--engine", "nccl",
                                "--engine-module", NULL,     "--bandwidth",     "8G", NULL};
static char http[32];
// No test waits for a worker that is silent: slow beats, as emulated communicators take whole cores.
static const char *const with_metrics[] = {"--http", http, "--heartbeat", "6s", NULL};
static uint16_t port;

static void choose_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    port = ntohs(at.sin_port);
    snprintf(http, sizeof http, "127.0.0.1:%u", port);
}

// The environment is the workers'. NULL: not set.
static void environment(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static struct harness_cluster *start(void)
{
    by_nccl[3] = device_module;
    by_nccl[7] = engine_module;
    choose_port();
    return support_start(&(struct harness_options){
        .workers = WORKERS, .worker_args = by_nccl, .coordinator_args = with_metrics, .memory = "64M"});
}

// Frames whose partials a communicator has carried.
static uint64_t carried(void)
{
    static const char name[] = "\nbanyan_collective_frames_total ";
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char text[65536];
    size_t used = 0;
    ssize_t got;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    assert_int_equal(write(fd, get, sizeof get - 1), sizeof get - 1);
    while ((got = read(fd, text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    text[used] = '\0';
    const char *line = strstr(text, name);
    assert_non_null(line);
    return strtoull(line + sizeof name - 1, NULL, 10);
}

// Steps until a communicator carries them.
static void await_carried(banyan_client *client, const struct held *h)
{
    uint64_t before = carried();
    uint64_t until = support_now_ns() + 60 * COMMON_NS_PER_S;
    while (carried() == before) {
        OK(held_step(client, h, 150, 1, LONG_NS));
        if (support_now_ns() > until)
            fail_msg("no communicator was formed");
        support_sleep_ms(10);
    }
}

// The first step goes by stream, as nothing is formed yet; later ones by the communicator, with the same bits
// and the same digest.
static void exact_and_the_bits_of_stream(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    static const uint32_t members[] = {WORKERS, 2, 1};
    enum { N = sizeof members / sizeof *members };
    struct held held[N];
    for (size_t m = 0; m < N; m++) {
        struct held h;
        held_make(client, &h, members[m], 300);
        assert_true(
            engine_is(h.session, members[m] > 1 ? "nccl" : "stream")); // alone there is nothing to merge
        struct step kept = {.session = h.session, .first = 297, .rows = 3, .seed = 77};
        uint64_t before = carried();
        OK(step_run(client, &kept));
        assert_int_equal(carried(), before);
        if (members[m] > 1) {
            await_carried(client, &h);
            before = carried();
            held_same_bits(client, &h, &kept, 50);
            assert_int_equal(carried(), before + 50);
        }
        held_exercise(client, &h, 300);
        step_free(&kept);
        held[m] = h;
    }
    for (size_t m = 0; m < N; m++) // now: steps go by stream while a communicator is aborted
        support_drop(held[m].session, &held[m].context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Max-then-sum: other bits than stream's, and the digest says so; the same ones each time.
static void exact_by_sums(void **state)
{
    (void)state;
    environment("BANYAN_NCCL_ALGORITHM", "sum");
    struct harness_cluster *cluster = start();
    environment("BANYAN_NCCL_ALGORITHM", NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    held_make(client, &h, WORKERS, 300);
    struct step by_stream = {.session = h.session, .first = 250, .rows = 3, .seed = 77}, kept = by_stream;
    OK(step_run(client, &by_stream));
    await_carried(client, &h);
    OK(step_run(client, &kept));
    assert_int_not_equal(kept.digest, by_stream.digest);
    held_same_bits(client, &h, &kept, 30);
    held_exercise(client, &h, 300);
    step_free(&kept);
    step_free(&by_stream);
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

static void idle_workers_burn_nothing(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    held_make(client, &h, WORKERS, 200);
    await_carried(client, &h);
    workers_are_idle(cluster, WORKERS);
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- what goes wrong ----------------------------------------------------------------------------

static void print_logs(struct harness_cluster *cluster)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        char *log = harness_cluster_log(cluster, i);
        print_error("%s:\n%s\n", harness_cluster_worker_name(cluster, i), log ? log : "");
        free(log);
    }
}

// A worker dies under steps: those that need it fail and say so, those of other members go on by their own
// communicator; a session of its successor and the survivors forms another.
static void a_worker_dies(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    struct held pair, wide, fresh;
    pthread_t thread;
    uint32_t victim;
    held_make(client, &pair, 2, 200);
    held_make(client, &wide, WORKERS, 200);
    await_carried(client, &pair);
    await_carried(client, &wide);
    victim = no_member(cluster, pair.session);
    struct stepper stepper = {.client = client, .held = &pair};
    assert_int_equal(pthread_create(&thread, NULL, stepper_run, &stepper), 0);
    stepper_await(&stepper, 50);
    harness_cluster_signal(cluster, victim, SIGKILL);
    FAILS(BANYAN_UNAVAILABLE, "MISSING_RANGE", held_step(client, &wide, 199, 1, LONG_NS));
    assert_string_equal(ERR->worker, harness_cluster_worker_name(cluster, victim));
    uint64_t before = carried();
    stepper_await(&stepper, 50);
    if (carried() == before) { // the death of a worker that is none of theirs must not disturb them
        print_logs(cluster);
        fail_msg("fifty steps beside a worker's death went by stream");
    }
    assert_true(harness_cluster_restart(cluster, victim));
    held_make(client, &fresh, WORKERS, 200);
    EVENTUALLY(30, engine_is(fresh.session, "nccl"));
    stepper_await(&stepper, 50);
    stepper.stop = true;
    pthread_join(thread, NULL);
    assert_int_equal(stepper.failed, BANYAN_OK);
    await_carried(client, &fresh); // by itself: no one else steps
    support_drop(fresh.session, &fresh.context);
    support_drop(wide.session, &wide.context);
    support_drop(pair.session, &pair.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A rank that hangs delays its steps to their deadline, nothing else; when it goes on, so do they.
static void a_worker_hangs(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    struct held pair, wide;
    uint32_t hung;
    held_make(client, &pair, 2, 200);
    held_make(client, &wide, WORKERS, 200);
    await_carried(client, &pair);
    await_carried(client, &wide);
    hung = no_member(cluster, pair.session);
    harness_cluster_signal(cluster, hung, SIGSTOP);
    FAILS(BANYAN_DEADLINE_EXCEEDED, NULL, held_step(client, &wide, 199, 1, COMMON_NS_PER_S / 2));
    OK(held_step(client, &pair, 199, 1, 0));
    FAILS(BANYAN_DEADLINE_EXCEEDED, NULL, held_step(client, &wide, 0, 200, COMMON_NS_PER_S / 2));
    harness_cluster_signal(cluster, hung, SIGCONT);
    OK(held_step(client, &wide, 199, 1, LONG_NS));
    OK(held_step(client, &wide, 0, 200, LONG_NS));
    OK(held_step(client, &pair, 199, 1, 0));
    await_carried(client, &wide);
    support_drop(wide.session, &wide.context);
    support_drop(pair.session, &pair.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

static bool some_log_has(struct harness_cluster *cluster, const char *text)
{
    bool has = false;
    for (uint32_t i = 0; i < WORKERS; i++) {
        char *log = harness_cluster_log(cluster, i);
        has |= log && strstr(log, text);
        free(log);
    }
    return has;
}

// With one fault of NCCL, whenever it comes: every step is answered, exactly; the fault is named; and a
// communicator carries steps again.
static void one_fault(const char *name, const char *value, const char *says)
{
    environment(name, value);
    environment("BANYAN_NCCL_PATIENCE_MS", "500");
    struct harness_cluster *cluster = start();
    environment("BANYAN_NCCL_PATIENCE_MS", NULL);
    environment(name, NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    held_make(client, &h, WORKERS, 200);
    uint64_t until = support_now_ns() + 60 * COMMON_NS_PER_S;
    while (!some_log_has(cluster, says)) {
        for (int i = 0; i < 10; i++)
            OK(held_step(client, &h, 199, 1, LONG_NS));
        if (support_now_ns() > until)
            fail_msg("no log says '%s'", says);
    }
    await_carried(client, &h);
    OK(held_step(client, &h, 0, 200, LONG_NS));
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

static void an_operation_that_never_ends(void **state)
{
    (void)state;
    one_fault("BANYAN_EMULATED_NCCL_HANG", "70", "an operation is stuck");
}

static void numbers_that_do_not_belong_here(void **state)
{
    (void)state;
    one_fault("BANYAN_EMULATED_NCCL_CORRUPT", "70", "numbers of another step");
}

// NCCL connects ranks within their first calls: one that has joined and does not connect is given up, too.
static void a_member_that_does_not_connect(void **state)
{
    (void)state;
    one_fault("BANYAN_EMULATED_NCCL_CONNECT_STOPS", "1", "does not connect");
}

// The first operation of all has kernels behind it that were never used before.
static void a_first_operation_that_never_ends(void **state)
{
    (void)state;
    one_fault("BANYAN_EMULATED_NCCL_HANG", "1", "an operation does not finish");
}

// Where none can be formed, all goes by stream, and after some tries the engine is given up.
static void no_communicator_at_all(void **state)
{
    (void)state;
    environment("BANYAN_EMULATED_NCCL_INIT_FAILS", "1");
    environment("BANYAN_NCCL_PATIENCE_MS", "500");
    struct harness_cluster *cluster = start();
    environment("BANYAN_EMULATED_NCCL_INIT_FAILS", NULL);
    environment("BANYAN_NCCL_PATIENCE_MS", NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    harness_cluster_allow_error(cluster, "engine=nccl has failed");
    held_make(client, &h, WORKERS, 200);
    uint64_t until = support_now_ns() + 60 * COMMON_NS_PER_S;
    while (!engine_is(h.session, "stream")) {
        OK(held_step(client, &h, 199, 1, LONG_NS));
        if (support_now_ns() > until)
            fail_msg("the engine is not given up");
    }
    assert_int_equal(carried(), 0);
    OK(held_step(client, &h, 199, 1, LONG_NS));

    // Started again without the fault, the workers have the engine again.
    struct held fresh;
    for (uint32_t i = 0; i < WORKERS; i++)
        harness_cluster_signal(cluster, i, SIGKILL);
    for (uint32_t i = 0; i < WORKERS; i++)
        assert_true(harness_cluster_restart(cluster, i));
    held_make(client, &fresh, WORKERS, 200);
    EVENTUALLY(30, engine_is(fresh.session, "nccl"));
    await_carried(client, &fresh);
    support_drop(fresh.session, &fresh.context);
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// What is missing is memory of the device, not NCCL: the engine is kept, and steps go by stream.
static void a_device_without_room(void **state)
{
    (void)state;
    environment("BANYAN_EMULATED_MEMORY", "100000000");
    environment("BANYAN_EMULATED_NCCL_MEMORY", "200000000");
    environment("BANYAN_NCCL_PATIENCE_MS", "500");
    struct harness_cluster *cluster = start();
    environment("BANYAN_EMULATED_MEMORY", NULL);
    environment("BANYAN_EMULATED_NCCL_MEMORY", NULL);
    environment("BANYAN_NCCL_PATIENCE_MS", NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    held_make(client, &h, WORKERS, 200);
    uint64_t until = support_now_ns() + 60 * COMMON_NS_PER_S;
    while (!some_log_has(cluster, "of the device's memory are free")) {
        OK(held_step(client, &h, 199, 1, LONG_NS));
        if (support_now_ns() > until)
            fail_msg("no log says what is missing");
    }
    OK(held_step(client, &h, 0, 200, LONG_NS));
    assert_true(engine_is(h.session, "nccl"));
    assert_int_equal(carried(), 0);
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Workers whose environment has NCCL send and expect in different ways make no communicator.
static void workers_with_other_settings(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start();
    banyan_client *client = support_connect(cluster, "unix");
    struct held before, after;
    held_make(client, &before, WORKERS, 200);
    assert_true(engine_is(before.session, "nccl"));
    support_drop(before.session, &before.context);
    harness_cluster_signal(cluster, 0, SIGKILL);
    environment("NCCL_P2P_LL_THRESHOLD", "0");
    assert_true(harness_cluster_restart(cluster, 0));
    environment("NCCL_P2P_LL_THRESHOLD", NULL);
    held_make(client, &after, WORKERS, 200);
    assert_true(engine_is(after.session, "stream"));
    OK(held_step(client, &after, 199, 1, LONG_NS));
    support_drop(after.session, &after.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A communicator is formed by steps that come more rarely than its patience lasts, too.
static void steps_that_come_one_by_one(void **state)
{
    (void)state;
    environment("BANYAN_NCCL_PATIENCE_MS", "1000");
    struct harness_cluster *cluster = start();
    environment("BANYAN_NCCL_PATIENCE_MS", NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    held_make(client, &h, WORKERS, 200);
    for (int i = 0; i < 6; i++) {
        OK(held_step(client, &h, 199, 1, LONG_NS));
        support_sleep_ms(1500);
    }
    assert_true(carried() > 0);
    assert_true(engine_is(h.session, "nccl"));
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// While an operation of one plan is stuck, steps of another do not wait for it, neither those that need more
// memory than any before nor those that form a communicator, for which NCCL frees some; and workers end in
// order.
static void a_stuck_plan_holds_up_no_other(void **state)
{
    (void)state;
    environment("BANYAN_EMULATED_NCCL_HANG", "70");
    environment("BANYAN_NCCL_PATIENCE_MS", "3600000");
    struct harness_cluster *cluster = start();
    environment("BANYAN_EMULATED_NCCL_HANG", NULL);
    environment("BANYAN_NCCL_PATIENCE_MS", NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held wide, pair;
    held_make(client, &wide, WORKERS, 200);
    held_make(client, &pair, 2, 2000);
    banyan_code code = BANYAN_OK;
    for (int i = 0; i < 1000 && code == BANYAN_OK; i++)
        code = held_step(client, &wide, 199, 1, 2 * COMMON_NS_PER_S);
    assert_int_equal(code, BANYAN_DEADLINE_EXCEEDED);
    for (uint32_t rows = 1; rows <= 1024; rows *= 4)
        OK(held_step(client, &pair, 0, rows, LONG_NS));
    for (int i = 0; i < 100; i++) { // and its communicator would be formed
        OK(held_step(client, &pair, 199, 1, LONG_NS));
        support_sleep_ms(10);
    }
    support_drop(pair.session, &pair.context);
    banyan_session_close(wide.session);
    context_free(&wide.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// While NCCL forms a communicator, it and operations of others would hold each other up: steps go by stream.
static void forming_beside_another_plan(void **state)
{
    (void)state;
    environment("BANYAN_EMULATED_NCCL_SLOW_INIT_MS", "5000");
    struct harness_cluster *cluster = start();
    environment("BANYAN_EMULATED_NCCL_SLOW_INIT_MS", NULL);
    banyan_client *client = support_connect(cluster, "unix");
    struct held wide, pair;
    held_make(client, &wide, WORKERS, 200);
    held_make(client, &pair, 2, 200);
    await_carried(client, &pair);
    uint64_t until = support_now_ns() + 60 * COMMON_NS_PER_S;
    for (int by_stream = 0; by_stream < 8;) {
        OK(held_step(client, &wide, 199, 1, LONG_NS)); // has its communicator formed
        uint64_t before = carried();
        OK(held_step(client, &pair, 199, 1, LONG_NS));
        by_stream = carried() == before ? by_stream + 1 : 0;
        if (support_now_ns() > until)
            fail_msg("operations went on while another communicator was formed");
    }
    await_carried(client, &pair);
    support_drop(pair.session, &pair.context);
    support_drop(wide.session, &wide.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- starting wrongly ---------------------------------------------------------------------------

static void run_worker(const char *device, const char *says)
{
    const char *const arguments[] = {"--device",        device,        "--device-module",
                                     device_module,     "--engine",    "nccl",
                                     "--engine-module", engine_module, NULL};
    worker_refuses(arguments, 3, says);
}

static void what_is_missing_is_said(void **state)
{
    (void)state;
    const char *library = getenv("BANYAN_NCCL_LIBRARY");
    char *kept = library ? strdup(library) : NULL;
    run_worker("cpu", "--device cuda:N");
    environment("BANYAN_NCCL_ALGORITHM", "fastest");
    run_worker("cuda:0", "gather, sum or auto");
    environment("BANYAN_NCCL_ALGORITHM", NULL);
    environment("BANYAN_NCCL_PATIENCE_MS", "soon");
    run_worker("cuda:0", "milliseconds");
    environment("BANYAN_NCCL_PATIENCE_MS", NULL);
    environment("BANYAN_NCCL_LIBRARY", "/nonexistent/libnccl.so");
    run_worker("cuda:0", "install libnccl2");
    environment("BANYAN_NCCL_LIBRARY", kept);
    free(kept);
}

static bool has_device(void)
{
    struct common_error err = {0};
    void *library = dlopen(device_module, RTLD_NOW | RTLD_LOCAL);
    const struct kernels_device_ops *ops = library ? dlsym(library, KERNELS_DEVICE_SYMBOL) : NULL;
    bool has = ops && ops->count(&err) > 0;
    if (!has)
        printf("skipped: %s\n", ops ? err.message : "no module");
    return has;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_said),
        cmocka_unit_test(exact_and_the_bits_of_stream),
        cmocka_unit_test(exact_by_sums),
        cmocka_unit_test(idle_workers_burn_nothing),
        cmocka_unit_test(a_worker_dies),
        cmocka_unit_test(a_worker_hangs),
        cmocka_unit_test(an_operation_that_never_ends),
        cmocka_unit_test(a_first_operation_that_never_ends),
        cmocka_unit_test(a_member_that_does_not_connect),
        cmocka_unit_test(numbers_that_do_not_belong_here),
        cmocka_unit_test(no_communicator_at_all),
        cmocka_unit_test(a_device_without_room),
        cmocka_unit_test(workers_with_other_settings),
        cmocka_unit_test(steps_that_come_one_by_one),
        cmocka_unit_test(a_stuck_plan_holds_up_no_other),
        cmocka_unit_test(forming_beside_another_plan),
    };
    const struct CMUnitTest real[] = {
        cmocka_unit_test(exact_and_the_bits_of_stream),
        cmocka_unit_test(exact_by_sums),
        cmocka_unit_test(idle_workers_burn_nothing),
        cmocka_unit_test(a_worker_dies),
        cmocka_unit_test(a_worker_hangs),
    };
    if (argc < 3)
        return 2;
    device_module = argv[1];
    engine_module = argv[2];
    if (argc == 4 && !has_device())
        return 77;
    if (argc == 4)
        return cmocka_run_group_tests(real, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
