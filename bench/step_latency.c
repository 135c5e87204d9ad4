// SPDX-License-Identifier: Apache-2.0
// How long a step takes, beside what its round trips cost at the least, in one run. A step appends one token
// and attends it: one layer, 32 query heads, 8 KV heads × 128, bfloat16, over one plan of all workers.
// ratio_to_floor: for raw round trips, to the plain unix socket at the same payload; for steps, to the sum of
// round trips that their path cannot avoid (see --help).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/harness/cluster.h"

#define CYCLE 16

static bool json, want_traces;
static uint64_t workers = 4, rounds = 2000;
static const char *only, *engine = "stream", *device = "auto"; // only NULL: all

static void report(const char *what, const struct common_histogram *h, double floor_us)
{
    double p50 = (double)common_histogram_quantile(h, 0.5) / 1e3,
           p99 = (double)common_histogram_quantile(h, 0.99) / 1e3;
    const struct report_field fields[] = {{"bench", "step_latency", 0},
                                          {"what", what, 0},
                                          {"workers", NULL, (double)workers},
                                          {"p50_us", NULL, p50},
                                          {"p99_us", NULL, p99},
                                          {"ratio_to_floor", NULL, p50 / floor_us},
                                          {0}};
    report_line(json, fields);
}

static const char *const names[] = {"null_rpc_unix",   "null_rpc_tcp", "null_rpc_nng",
                                    "step_min",        "step_spread",  "step_spread_stream",
                                    "step_min_stream", "step_32k",     "step_32k_stream"};

static bool known(const char *what)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], what) == 0)
            return true;
    fprintf(stderr, "step_latency: --only: '%.40s' is none of", what);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        fprintf(stderr, "%s %s", i ? "," : "", names[i]);
    fputc('\n', stderr);
    return false;
}

static bool wanted(const char *what)
{
    return !only || strcmp(only, what) == 0;
}

static double p50(const struct common_histogram *h)
{
    return (double)common_histogram_quantile(h, 0.5) / 1e3;
}

static bool ping(const char *endpoint, struct common_histogram *out)
{
    banyan_client *client;
    banyan_error error = {0};
    uint64_t ns;
    if (banyan_connect(endpoint, NULL, &client, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    bool ok = true;
    common_histogram_reset(out);
    for (uint64_t i = 0; ok && i < rounds + 200; i++) {
        ok = banyan_ping(client, &ns, &error) == BANYAN_OK;
        if (ok && i >= 200)
            common_histogram_add(out, ns);
    }
    banyan_disconnect(client);
    return ok || service_failed("ping", &error);
}

// Steps one after the other at the end of a session of `tokens` tokens: CYCLE new positions, then the same
// again, so that the session stays as long as it is.
static bool steps(const char *endpoint, uint64_t tokens, uint32_t chunk_tokens, uint64_t n,
                  struct common_histogram *out, bool traced)
{
    banyan_client *client;
    banyan_error error = {0}, item_error = {0};
    struct service_step step;
    if (!service_step_init(&step, &service_large))
        return false;
    if (banyan_connect(endpoint, NULL, &client, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    banyan_session *session =
        service_session(client, &service_large, (uint32_t)workers, chunk_tokens, tokens);
    bool ok = session != NULL;
    common_histogram_reset(out);
    static struct common_histogram compute, tree, coordinator;
    common_histogram_reset(&compute);
    common_histogram_reset(&tree);
    common_histogram_reset(&coordinator);
    for (uint64_t i = 0; ok && i < n + 100; i++) {
        banyan_item item = service_item(session, &step, tokens + i % CYCLE);
        banyan_trace trace = {0};
        item.error = &item_error;
        uint64_t start = common_clock_ns();
        ok = banyan_attend(client, &item, 1, 0, traced ? &trace : NULL, &error) == BANYAN_OK;
        uint64_t end = common_clock_ns();
        if (ok && item.code != BANYAN_OK) {
            error = item_error;
            ok = false;
        }
        if (i >= 100)
            common_histogram_add(out, end - start);
        uint64_t computed = 0;
        for (uint32_t w = 0; w < trace.n_workers; w++)
            computed += trace.workers[w].compute_ns;
        if (i >= 100 && traced) {
            common_histogram_add(&compute, computed);
            common_histogram_add(&tree, trace.tree_ns);
            common_histogram_add(&coordinator, trace.coordinator_ns);
        }
        banyan_trace_free(&trace);
    }
    if (traced && ok)
        fprintf(
            stderr,
            "traced: p50 of the tree %.1f us, of the coordinator %.2f us, of all workers' compute %.1f us\n",
            p50(&tree), p50(&coordinator), p50(&compute));
    if (!ok)
        service_failed("step", &error);
    if (session)
        banyan_session_delete(session, NULL);
    banyan_session_close(session);
    banyan_disconnect(client);
    service_step_free(&step);
    return ok;
}

static bool run(void)
{
    static struct common_histogram h;
    const struct service_geometry *g = &service_large;
    size_t request = service_query_bytes(g) + 2 * service_kv_row_bytes(g), reply = service_query_bytes(g);
    double unix_small, unix_step, nng_step;
    uint32_t n = (uint32_t)rounds;

    if (!floor_pingpong(FLOOR_UNIX, 64, 64, n, &h))
        return false;
    unix_small = p50(&h);
    report("unix_64B", &h, unix_small);
    if (!floor_pingpong(FLOOR_TCP, 64, 64, n, &h))
        return false;
    report("tcp_64B", &h, unix_small);
    if (!floor_pingpong(FLOOR_UNIX, request, reply, n, &h))
        return false;
    unix_step = p50(&h);
    report("unix_step_payload", &h, unix_step);
    if (!floor_pingpong(FLOOR_TCP, request, reply, n, &h))
        return false;
    report("tcp_step_payload", &h, unix_step);
    if (!floor_nng(64, 64, n, &h))
        return false;
    report("nng_64B", &h, unix_small);
    if (!floor_nng(request, reply, n, &h))
        return false;
    nng_step = p50(&h);
    report("nng_step_payload", &h, unix_step);

    // The same processes, the same bytes and a star of edges, with plain sockets and nothing else: what no
    // service can beat here.
    static int32_t parent[HARNESS_WORKERS_MAX];
    struct floor_tree tree = {.client = FLOOR_UNIX,
                              .workers = (uint32_t)workers,
                              .parent = parent,
                              .request_bytes = request,
                              .partial_bytes = service_partial_bytes(g),
                              .reply_bytes = reply};
    parent[0] = -1;
    if (!floor_tree_rounds(&tree, n, &h))
        return false;
    report("socket_tree", &h, 3 * unix_step);

    struct harness_cluster *cluster = service_cluster_engine((uint32_t)workers, "1G", engine, device);
    if (!cluster)
        return false;
    const char *nng = harness_cluster_endpoint(cluster, "nng+tcp"),
               *local = harness_cluster_endpoint(cluster, "unix");
    bool ok = !wanted("null_rpc_unix") || ping(local, &h);
    if (ok && wanted("null_rpc_unix"))
        report("null_rpc_unix", &h, unix_small);
    if (ok && wanted("null_rpc_tcp") && (ok = ping(harness_cluster_endpoint(cluster, "tcp"), &h)))
        report("null_rpc_tcp", &h, unix_small);
    if (ok && wanted("null_rpc_nng") && (ok = ping(nng, &h)))
        report("null_rpc_nng", &h, unix_small);
    // A session of its first tokens, over a plan of all workers.
    if (ok && wanted("step_min") && (ok = steps(nng, 0, 0, rounds, &h, want_traces)))
        report("step_min", &h, nng_step + 2 * unix_step);
    if (ok && wanted("step_min_stream") && (ok = steps(local, 0, 0, rounds, &h, want_traces)))
        report("step_min_stream", &h, 3 * unix_step);
    // Every worker has a part, so every partial travels: a chunk of 16 tokens each.
    if (ok && wanted("step_spread") && (ok = steps(nng, 16 * workers, 16, rounds, &h, want_traces)))
        report("step_spread", &h, nng_step + 2 * unix_step);
    if (ok && wanted("step_spread_stream") && (ok = steps(local, 16 * workers, 16, rounds, &h, want_traces)))
        report("step_spread_stream", &h, 3 * unix_step);
    if (ok && wanted("step_32k") && (ok = steps(nng, 32768 - CYCLE, 0, rounds / 4, &h, want_traces)))
        report("step_32k", &h, nng_step + 2 * unix_step);
    if (ok && wanted("step_32k_stream") && (ok = steps(local, 32768 - CYCLE, 0, rounds / 4, &h, want_traces)))
        report("step_32k_stream", &h, 3 * unix_step);
    return harness_cluster_stop(cluster) == 0 && ok;
}

static bool only_is_known(void)
{
    return !only || known(only);
}

int main(int argc, char **argv)
{
    floor_peer_main(argc, argv);
    const struct common_option options[] = {
        {"workers", 'w', COMMON_OPTION_U64, &workers, "P", "workers, all in one plan (default 4)", 1,
         HARNESS_WORKERS_MAX},
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "round trips of each kind (default 2000)", 4,
         1000000},
        {"only", 'o', COMMON_OPTION_STRING, &only, "WHAT",
         "of the service, measure only this: null_rpc_unix, null_rpc_tcp, null_rpc_nng, "
         "step_min,\nstep_min_stream, step_32k, step_32k_stream",
         0, 0},
        {"engine", 'e', COMMON_OPTION_STRING, &engine, "NAME", "stream (default), mpi, or nccl on GPUs", 0,
         0},
        {"device", 'd', COMMON_OPTION_STRING, &device, "WHAT",
         "where workers compute: auto (default: GPUs are divided between them), cpu, cuda:N", 0, 0},
        {"traced", 't', COMMON_OPTION_FLAG, &want_traces, NULL,
         "request traces and print where the time went", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "step_latency",
        .about =
            "Latency of a one-token step beside the round trips that it cannot avoid, in one run.\n"
            "ratio_to_floor is to: one nng round trip + two plain unix round trips at the step's payload\n"
            "(step_min, step_32k); three plain unix round trips at that payload (…_stream: the client on\n"
            "unix://); a plain unix round trip (the rest).",
        .options = options,
        .json = &json,
        .check = only_is_known,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
