// SPDX-License-Identifier: Apache-2.0
// Workers whose K and V are on a device: beside one on the processor in one session, out of memory, and lost.
// The device is the CUDA module's own code on an emulated runtime (tests/emulation), or a GPU where there is
// one.
#include "tests/e2e/support.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/device.h"

static const char *module; // path of banyan-cuda-emulated.so, or of banyan-cuda.so

static const char *const on_cpu[] = {"--device", "cpu", NULL};
static const char *on_device[] = {"--device", "cuda:0", "--device-module", NULL, "--bandwidth", "1G", NULL};

static struct harness_cluster *start(const char *const *const *each, uint32_t workers, const char *memory)
{
    on_device[3] = module;
    return support_start(&(struct harness_options){.workers = workers, .each_args = each, .memory = memory});
}

static banyan_spec spec_of(banyan_kv_type type, uint32_t members)
{
    return (banyan_spec){.layers = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .k_dim = 64,
                         .v_dim = 64,
                         .kv_type = type,
                         .chunk_tokens = 64,
                         .members = members};
}

static void append_and_check(banyan_client *client, banyan_session *session, const struct context *context,
                             uint64_t first, uint32_t rows, struct worst *worst, uint64_t *digest)
{
    for (uint32_t layer = 0; layer < context->spec.layers; layer++) {
        struct step step = {.session = session, .layer = layer, .first = first, .rows = rows, .seed = first};
        step_append(&step, context);
        OK(step_run(client, &step));
        context_check(context, layer, first, rows, 0, step.made_q, step.o, step.lse, worst, "appended");
        struct step again = {.session = session, .layer = layer, .first = first, .rows = rows, .seed = first};
        step_append(&again, context);
        OK(step_run(client, &again)); // the same bytes once more: compared, not stored; the same bits
        assert_true(step_same_bits(&step, &again));
        assert_int_equal(step.digest, again.digest);
        *digest = step.digest;
        step_free(&step);
        step_free(&again);
    }
}

// Each stretch's share, computed partly here and partly there; o keeps its bits.
static void check_masses(banyan_client *client, banyan_session *session, const struct context *context,
                         uint64_t first, uint32_t rows)
{
    struct step step = {.session = session, .first = first, .rows = rows, .seed = first}, plain = step;
    banyan_mass mass = {.bins = 8, .per_head = true};
    banyan_item item = step_item(&step);
    item.mass = &mass;
    OK(banyan_attend(client, &item, 1, 0, NULL, ERR));
    assert_int_equal(item.code, BANYAN_OK);
    assert_int_equal(mass.n_workers, 2);
    context_check_mass(context, 0, first, 0, step.made_q, &mass, NULL, "masses");
    OK(step_run(client, &plain));
    assert_true(step_same_bits(&step, &plain));
    banyan_mass_free(&mass);
    step_free(&step);
    step_free(&plain);
}

// Whether both workers hold a part, each where it computes.
static bool both_hold(banyan_client *client)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    bool both = info.n_workers == 2;
    for (uint32_t i = 0; i < info.n_workers; i++) {
        assert_int_equal(strncmp(info.workers[i].kernel, "cuda", 4) == 0,
                         strcmp(info.workers[i].name, "w1") == 0);
        both = both && info.workers[i].chunks > 0;
    }
    banyan_cluster_info_free(&info);
    return both;
}

// A worker that a busy machine has kept from sending heartbeats gets nothing: then once more.
static banyan_session *session_over_both(banyan_client *client, const banyan_spec *spec,
                                         const struct context *context, uint64_t tokens)
{
    for (uint32_t tries = 0; tries < 10; tries++) {
        banyan_session *session;
        EVENTUALLY(30, support_used_bytes(client) == 0);
        OK(banyan_session_create(client, spec, NULL, &session, ERR));
        support_fill(session, context, 0, tokens);
        if (both_hold(client))
            return session;
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
    }
    fail_msg("one worker has no chunk of any of ten sessions");
    return NULL;
}

static void processor_and_device_serve_one_session(void **state)
{
    (void)state;
    enum { ATTACHED = 300, TOKENS = 340 };
    static const banyan_kv_type types[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_INT8, BANYAN_FP8};
    static const char *const *const each[] = {on_cpu, on_device};
    struct harness_cluster *cluster = start(each, 2, "64M");
    banyan_client *client = support_connect(cluster, "unix");
    struct worst worst = {0};
    uint64_t digest;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        banyan_spec spec = spec_of(types[t], 2);
        struct context context;
        banyan_session *session, *fork;
        context_init(&context, &spec, TOKENS);
        context_random(&context, 0, TOKENS, 10 + t);
        session = session_over_both(client, &spec, &context, ATTACHED);
        support_check_step(client, session, &context, 0, ATTACHED - 1, 1, 0, &worst, "the last row");
        support_check_step(client, session, &context, 1, 17, 200, 0, &worst, "many rows");
        check_masses(client, session, &context, ATTACHED - 1, 1);
        check_masses(client, session, &context, 200, 9);
        uint64_t at = ATTACHED;
        for (uint32_t rows = 1; at + rows <= TOKENS; at += rows, rows += 7) // pages become blocks
            append_and_check(client, session, &context, at, rows, &worst, &digest);
        OK(banyan_session_fork(session, 290, NULL, &fork, ERR));
        OK(banyan_session_truncate(session, 100, ERR));
        support_check_step(client, fork, &context, 1, 289, 1, 0, &worst, "a fork");
        support_check_step(client, session, &context, 0, 99, 1, 0, &worst, "truncated");
        append_and_check(client, session, &context, 100, 1, &worst, &digest);
        OK(banyan_session_delete(fork, ERR));
        banyan_session_close(fork);
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
        context_free(&context);
    }
    printf("largest error %.3f of the bound (o), %.3f (lse)\n", worst.o, worst.lse);
    EVENTUALLY(30, support_used_bytes(client) == 0);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Layers of other shapes, one of which reads the rows of another, and each mask, on the device.
static void layers_may_differ(void **state)
{
    (void)state;
    enum { TOKENS = 150 };
    static const char *const *const each[] = {on_device};
    static const banyan_kind kinds[] = {
        {.q_heads = 4, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .window = 50},
        {.q_heads = 4, .kv_heads = 1, .k_dim = 128, .v_dim = 128},
        {.q_heads = 2, .kv_heads = 2, .k_dim = 64, .v_dim = 64},
    };
    static const uint32_t layer_kind[] = {0, 1, BANYAN_LAYER_LOCAL, 2},
                          shares[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 0};
    struct harness_cluster *cluster = start(each, 1, "64M");
    banyan_client *client = support_connect(cluster, "unix");
    const banyan_spec spec = {.layers = 4,
                              .kv_type = BANYAN_BF16,
                              .chunk_tokens = 64,
                              .n_kinds = 3,
                              .kinds = kinds,
                              .layer_kind = layer_kind,
                              .shares = shares};
    struct context own[2];
    banyan_session *session;
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    for (uint32_t l = 0; l < 4; l++) {
        if (layer_kind[l] == BANYAN_LAYER_LOCAL)
            continue;
        const banyan_kind *kind = &kinds[layer_kind[l]];
        const banyan_spec alike = {.layers = 1,
                                   .q_heads = kind->q_heads,
                                   .kv_heads = kind->kv_heads,
                                   .k_dim = kind->k_dim,
                                   .v_dim = kind->v_dim,
                                   .window = kind->window,
                                   .kv_type = BANYAN_BF16};
        struct context view = own[0]; // what layer 3 reads
        if (l < 2) {
            context_init(&own[l], &alike, TOKENS);
            context_random(&own[l], 0, TOKENS, 70 + l);
            OK(banyan_attach(session, l, 0, TOKENS, context_k(&own[l], 0, 0), context_v(&own[l], 0, 0), ERR));
            OK(banyan_commit(session, l, 0, TOKENS, ERR));
            view = own[l];
        }
        view.spec = alike;
        struct step step = {.session = session, .layer = l, .first = 100, .rows = 50, .seed = l};
        OK(step_run(client, &step));
        context_check(&view, 0, 100, 50, 0, step.made_q, step.o, step.lse, NULL, "a layer on a device");
        step.block_first = view.block_first = 90;
        step.block_count = 40;
        view.block_end = 130;
        OK(step_run(client, &step));
        context_check(&view, 0, 100, 50, 0, step.made_q, step.o, step.lse, NULL, "a block on a device");
        step_free(&step);
    }
    for (uint32_t l = 0; l < 2; l++)
        context_free(&own[l]);
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    for (int i = 0; i < 3; i++) {
        banyan_spec masked = {.layers = 1,
                              .q_heads = 4,
                              .kv_heads = 1,
                              .k_dim = 72,
                              .v_dim = 64,
                              .kv_type = i == 1 ? BANYAN_INT8 : BANYAN_BF16,
                              .v_in_k = i < 2,
                              .mask_chunk = i == 0 ? 48 : 0,
                              .not_causal = i == 2};
        context_init(&own[0], &masked, TOKENS);
        context_random(&own[0], 0, TOKENS, 80 + (uint64_t)i);
        OK(banyan_session_create(client, &masked, NULL, &session, ERR));
        support_fill(session, &own[0], 0, 100);
        struct step step = {.session = session, .first = 100, .rows = 50, .seed = 1};
        step_append(&step, &own[0]);
        OK(step_run(client, &step));
        context_check(&own[0], 0, 100, 50, 150, step.made_q, step.o, step.lse, NULL, "a mask on a device");
        step_free(&step);
        context_free(&own[0]);
        OK(banyan_session_delete(session, ERR));
        banyan_session_close(session);
    }
    banyan_disconnect(client);
    support_stop(cluster);
}

// What does not fit is refused, what is there stays exact, and what is deleted can be used again.
static void a_full_device_refuses(void **state)
{
    (void)state;
    enum { TOKENS = 4096 }; // 1 KiB each and layer
    static const char *const *const each[] = {on_device};
    struct harness_cluster *cluster = start(each, 1, "64M");
    banyan_client *client = support_connect(cluster, "unix");
    banyan_spec spec = spec_of(BANYAN_F32, 1);
    struct context context;
    banyan_session *sessions[32];
    uint32_t n = 0;
    banyan_code code = BANYAN_OK;
    context_init(&context, &spec, TOKENS);
    context_random(&context, 0, TOKENS, 3);
    while (code == BANYAN_OK && n < 32) {
        OK(banyan_session_create(client, &spec, NULL, &sessions[n], ERR));
        for (uint32_t layer = 0; code == BANYAN_OK && layer < spec.layers; layer++) {
            code = context_attach(sessions[n], &context, layer, 0, TOKENS, ERR);
            if (code == BANYAN_OK)
                code = banyan_commit(sessions[n], layer, 0, TOKENS, ERR);
        }
        n++;
    }
    assert_int_equal(code, BANYAN_RESOURCE_EXHAUSTED);
    assert_int_equal(code, BANYAN_RESOURCE_EXHAUSTED);
    assert_in_range(n, 5, 8); // 56 MiB, 8 MiB each
    for (uint32_t i = 0; i + 1 < n; i++)
        support_check_step(client, sessions[i], &context, 1, TOKENS - 1, 1, 0, NULL, "beside a refusal");
    for (uint32_t i = 0; i < n; i++) {
        OK(banyan_session_delete(sessions[i], ERR));
        banyan_session_close(sessions[i]);
    }
    EVENTUALLY(30, support_used_bytes(client) == 0);
    OK(banyan_session_create(client, &spec, NULL, &sessions[0], ERR));
    support_fill(sessions[0], &context, 0, TOKENS);
    support_check_step(client, sessions[0], &context, 0, TOKENS - 1, 1, 0, NULL, "once more");
    banyan_session_close(sessions[0]);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A collector that takes connections, and neither reads nor answers. Its URL, and its socket.
static int silent_collector(char *url, size_t bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    snprintf(url, bytes, "http://127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

// A kernel faults: every answer before it is exact, none comes after it, the process ends with its own code,
// and one that is started again serves. A collector that does not answer delays the end, and changes nothing
// of it.
static void a_lost_device_gives_no_numbers(void **state)
{
    (void)state;
    enum { TOKENS = 200 };
    char url[64];
    int collector = silent_collector(url, sizeof url);
    const char *const args[] = {"--device",     "cuda:0",      "--device-module",
                                module,         "--bandwidth", "1G",
                                "--trace-otlp", url,           NULL};
    const char *const *const each[] = {args};
    setenv("BANYAN_EMULATED_FAULT", "40", 1);
    struct harness_cluster *cluster = start(each, 1, "64M");
    unsetenv("BANYAN_EMULATED_FAULT");
    harness_cluster_allow_error(cluster, "is lost");
    banyan_client *client = support_connect(cluster, "unix");
    banyan_spec spec = spec_of(BANYAN_BF16, 1);
    struct context context;
    banyan_session *session;
    context_init(&context, &spec, TOKENS);
    context_random(&context, 0, TOKENS, 4);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &context, 0, TOKENS);
    banyan_code code = BANYAN_OK;
    uint32_t answered = 0;
    while (code == BANYAN_OK && answered < 1000) {
        struct step step = {.session = session, .first = answered % TOKENS, .rows = 1, .seed = answered};
        banyan_item item = step_item(&step); // o and lse are written when it does not fail
        item.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        code = banyan_attend(client, &item, 1, 0, NULL, ERR);
        code = code == BANYAN_OK ? item.code : code;
        if (code == BANYAN_OK) {
            context_check(&context, 0, step.first, 1, 0, step.made_q, step.o, step.lse, NULL,
                          "before the fault");
            answered++;
        }
        step_free(&step);
    }
    assert_true(code == BANYAN_UNAVAILABLE || code == BANYAN_DATA_LOSS);
    assert_in_range(answered, 5, 40);
    int exit_code = 0;
    EVENTUALLY(30, harness_cluster_ended(cluster, 0, &exit_code));
    assert_int_equal(exit_code, 4);
    assert_true(harness_cluster_restart(cluster, 0));
    banyan_session *fresh;
    OK(banyan_session_create(client, &spec, NULL, &fresh, ERR));
    support_fill(fresh, &context, 0, TOKENS);
    support_check_step(client, fresh, &context, 1, TOKENS - 1, 1, 0, NULL, "after the restart");
    char *log = harness_cluster_log(cluster, 0);
    assert_non_null(strstr(log, "spans are dropped at the end")); // it had some, and waited for the collector
    free(log);
    banyan_session_close(fresh);
    banyan_session_close(session);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster); // which looks for unexpected lines of the log
    close(collector);
}

// A driver that is too old for the module: the worker serves on its processor, and says so wherever an
// operator looks.
static void an_old_driver_is_reported(void **state)
{
    (void)state;
    const char *const args[] = {"--device", "auto", "--device-module", module, "--bandwidth", "1G", NULL};
    const char *const *const each[] = {args, on_cpu};
    setenv("BANYAN_EMULATED_DRIVER", "12040", 1);
    struct harness_cluster *cluster = start(each, 2, "64M");
    unsetenv("BANYAN_EMULATED_DRIVER");
    banyan_client *client = support_connect(cluster, "unix");
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    assert_int_equal(info.n_workers, 2);
    for (uint32_t i = 0; i < 2; i++) {
        bool looked = strcmp(info.workers[i].name, "w0") == 0;
        assert_int_equal(strstr(info.workers[i].no_device, "CUDA 12.4") != NULL, looked);
        assert_int_equal(info.workers[i].no_device[0] != '\0', looked);
        assert_int_not_equal(strncmp(info.workers[i].kernel, "cuda", 4), 0);
    }
    banyan_cluster_info_free(&info);
    banyan_disconnect(client);
    support_stop(cluster);
}

static bool sees_a_device(void)
{
    void *handle = dlopen(module, RTLD_NOW | RTLD_LOCAL);
    const struct kernels_device_ops *ops = handle ? dlsym(handle, KERNELS_DEVICE_SYMBOL) : NULL;
    struct common_error err;
    return ops && ops->count(&err) > 0;
}

// MODULE: that the workers use. A second argument: it is of a real GPU, or else the test is skipped; faults
// cannot be had there.
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processor_and_device_serve_one_session),
        cmocka_unit_test(layers_may_differ),
        cmocka_unit_test(a_full_device_refuses),
        cmocka_unit_test(a_lost_device_gives_no_numbers),
        cmocka_unit_test(an_old_driver_is_reported),
    };
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(processor_and_device_serve_one_session),
        cmocka_unit_test(layers_may_differ),
        cmocka_unit_test(a_full_device_refuses),
    };
    if (argc < 2)
        return 2;
    module = argv[1];
    if (argc > 2 && !sees_a_device())
        return 77;
    return argc > 2 ? cmocka_run_group_tests_name("gpu", on_gpu, NULL, NULL)
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
