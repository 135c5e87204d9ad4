// SPDX-License-Identifier: Apache-2.0
// Measures the terms of the planner's cost model (reduce/cost.c): step frames and their answers between two
// threads over stream edges, and merges. Prints what reduce_cost_default should say.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/main.h"
#include "bench/report.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/metrics/histogram.h"
#include "kernels/partial.h"
#include "proto/rpc/step.h"
#include "reduce/engine.h"

#define WARM_UP 200

// ---- the child: answers every step with partials of its size ------------------------------------

static struct common_blob *answer; // large enough for any step here

static void free_result(void *arg)
{
    proto_step_result_free(arg);
}

static void handle_step(void *arg, struct proto_request *request)
{
    (void)arg;
    struct proto_step *step;
    struct proto_step_result *result = proto_step_result_new(1, 0);
    size_t bytes;
    if (!result ||
        proto_step_decode(proto_request_message(request), proto_request_deadline(request), &step, NULL) ||
        !reduce_partials_bytes(step, answer->len, &bytes)) {
        fprintf(stderr, "bench: a step was refused\n");
        exit(1);
    }
    proto_step_free(step);
    result->n_tensors = 1;
    result->tensors[0] = answer->data;
    result->tensor_bytes[0] = bytes;
    proto_step_reply(request, result, free_result, result);
}

static const struct proto_method methods[] = {
    {BANYAN__PB__METHOD__METHOD_STEP, 1 << BANYAN__PB__ROLE__ROLE_WORKER, handle_step},
    {0, 0, NULL},
};

struct child {
    struct common_loop *loop;
    struct proto_server *server;
    struct common_secret secret;
    const char *listen;
    char endpoint[128];
    bool ok;
};

static void child_listen(void *arg)
{
    struct child *child = arg;
    const struct proto_server_options options = {
        .name = "child", .role = BANYAN__PB__ROLE__ROLE_WORKER, .secret = &child->secret, .methods = methods};
    child->ok = proto_server_new(child->loop, &options, &child->server, NULL) == COMMON_OK &&
                proto_server_listen(child->server, child->listen, NULL) == COMMON_OK;
    if (child->ok)
        snprintf(child->endpoint, sizeof child->endpoint, "%s", proto_server_endpoint(child->server, 0));
}

static void child_close(void *arg)
{
    struct child *child = arg;
    proto_server_close(child->server);
}

// ---- the parent: one step after the other -------------------------------------------------------

struct parent {
    struct common_loop *loop;
    struct proto_channel *channel;
    struct proto_step step;
    struct proto_step_item item;
    uint32_t left, warm_up;
    uint64_t sent_ns, cpu_from_ns, cpu_ns, wall_from_ns;
    uint32_t rounds;
    struct common_histogram times;
};

static uint64_t cpu_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * COMMON_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void send_step(struct parent *parent);

static void on_answer(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct parent *parent = arg;
    if (code != COMMON_OK) {
        fprintf(stderr, "bench: %s\n", text);
        exit(1);
    }
    proto_step_result_free(result);
    if (parent->warm_up > 0) {
        if (--parent->warm_up == 0)
            parent->cpu_from_ns = cpu_clock_ns();
    } else {
        common_histogram_add(&parent->times, common_clock_ns() - parent->sent_ns);
        parent->left--;
    }
    if (parent->left > 0) {
        send_step(parent);
        return;
    }
    parent->cpu_ns = cpu_clock_ns() - parent->cpu_from_ns;
    common_loop_stop(parent->loop);
}

static void send_step(struct parent *parent)
{
    struct common_error err;
    parent->sent_ns = common_clock_ns();
    parent->step.deadline_ns = common_clock_after(10 * COMMON_NS_PER_S);
    if (proto_step_send(parent->channel, &parent->step, false, on_answer, parent, NULL, &err)) {
        fprintf(stderr, "bench: %s\n", err.message);
        exit(1);
    }
}

struct round_trip {
    double p50_ns, cpu_ns; // cpu: of a round, both sides
};

static bool round_trips(const char *listen, uint32_t heads, uint32_t dim, size_t query_bytes, uint32_t rounds,
                        struct round_trip *out)
{
    struct child child = {.listen = listen};
    struct parent parent = {.left = rounds, .warm_up = WARM_UP};
    uint8_t *q = calloc(1, query_bytes);
    common_histogram_reset(&parent.times);
    if (!q || !common_random(child.secret.bytes, sizeof child.secret.bytes) || common_loop_new(&child.loop) ||
        common_loop_new(&parent.loop) || common_loop_start_thread(child.loop, "child"))
        return false;
    common_loop_call(child.loop, child_listen, &child);
    parent.item = (struct proto_step_item){
        .session = 1, .rows = 1, .kv_heads = 1, .q_heads = heads, .v_dim = dim, .q_bytes = query_bytes};
    parent.step = (struct proto_step){
        .plan = 1, .step = 1, .n_items = 1, .items = &parent.item, .q = q, .q_bytes = query_bytes};
    const struct proto_channel_options options = {.name = "parent",
                                                  .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                  .secret = &child.secret};
    bool ok = child.ok &&
              proto_channel_open(parent.loop, child.endpoint, &options, &parent.channel, NULL) == COMMON_OK;
    if (ok) {
        send_step(&parent);
        common_loop_run(parent.loop);
        out->p50_ns = (double)common_histogram_quantile(&parent.times, 0.5);
        out->cpu_ns = (double)parent.cpu_ns / rounds;
    }
    proto_channel_close(parent.channel);
    common_loop_free(parent.loop);
    common_loop_call(child.loop, child_close, &child);
    common_loop_stop(child.loop);
    common_loop_join(child.loop);
    common_loop_free(child.loop);
    free(q);
    return ok;
}

static double merge_bytes_per_s(uint32_t heads, uint32_t dim)
{
    enum { ROUNDS = 20000 };
    uint64_t bytes = kernels_partial_bytes(1, heads, dim);
    struct common_blob *a = common_blob_new(bytes), *b = common_blob_new(bytes);
    struct kernels_partial into, from;
    if (!a || !b)
        return 0;
    kernels_partial_view(a->data, 1, heads, dim, &into);
    kernels_partial_view(b->data, 1, heads, dim, &from);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)(void *)a->data)[i] = ((float *)(void *)b->data)[i] = 1;
    uint64_t start = common_clock_ns();
    for (int i = 0; i < ROUNDS; i++) {
        for (uint32_t h = 0; h < heads; h++)
            into.s[h] = 1; // as in a tree, sums stay small
        kernels_partial_merge(&into, &from);
    }
    double seconds = (double)(common_clock_ns() - start) / 1e9;
    common_blob_unref(a);
    common_blob_unref(b);
    return (double)bytes * ROUNDS / seconds;
}

static bool json;
static uint64_t rounds = 20000;

static bool measure_all(void)
{
    char dir[] = "/tmp/reduce_cost.XXXXXX", unix_endpoint[64];
    answer = common_blob_new((size_t)2 << 20);
    if (!answer || !mkdtemp(dir))
        return false;
    memset(answer->data, 0, answer->len);
    snprintf(unix_endpoint, sizeof unix_endpoint, "unix://%s/child", dir);
    const char *const listen[] = {unix_endpoint, "tcp://127.0.0.1:0"}, *const names[] = {"unix", "tcp"};
    bool ok = true;
    for (int t = 0; t < 2; t++) {
        struct round_trip small, step, large;
        // Partials of one head of 16, of 32 heads of 128, and of 1 MiB; the last goes with a small query.
        if (!round_trips(listen[t], 1, 16, 64, (uint32_t)rounds, &small) ||
            !round_trips(listen[t], 32, 128, 16384, (uint32_t)rounds, &step) ||
            !round_trips(listen[t], 64, 4096, 64, (uint32_t)rounds / 20, &large)) {
            ok = false;
            break;
        }
        double frame = small.cpu_ns / 4; // two frames, two sides
        double latency = (small.p50_ns - small.cpu_ns) / 2;
        double bandwidth = (double)kernels_partial_bytes(1, 64, 4096) * 1e9 / (large.p50_ns - small.p50_ns);
        report_line(json, (const struct report_field[]){{"bench", "reduce_cost", 0},
                                                        {"transport", names[t], 0},
                                                        {"small_p50_us", NULL, small.p50_ns / 1e3},
                                                        {"step_p50_us", NULL, step.p50_ns / 1e3},
                                                        {"step_cpu_us", NULL, step.cpu_ns / 1e3},
                                                        {"frame_cpu_ns", NULL, frame},
                                                        {"latency_ns", NULL, latency > 0 ? latency : 0},
                                                        {"bandwidth", NULL, bandwidth},
                                                        {NULL, NULL, 0}});
    }
    report_line(json, (const struct report_field[]){{"bench", "reduce_cost", 0},
                                                    {"merge_bandwidth", NULL, merge_bytes_per_s(32, 128)},
                                                    {NULL, NULL, 0}});
    common_blob_unref(answer);
    rmdir(dir);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {.name = "rounds",
         .type = COMMON_OPTION_U64,
         .out = &rounds,
         .arg = "N",
         .help = "round trips of small frames",
         .min = 100,
         .max = 10000000},
        {0},
    };
    const struct bench_program program = {
        .name = "reduce_cost",
        .about = "Measures the terms of the planner's cost model: a step frame to a child thread and its\n"
                 "answer, over a unix socket and tcp on loopback, and merges.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
