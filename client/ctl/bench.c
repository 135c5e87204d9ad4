// SPDX-License-Identifier: Apache-2.0
// Command: bench. A session of its own with random K and V: how quick an attach, a step and an append are on
// this cluster, beside what they cannot be quicker than. The session goes with the command, and by itself
// where the command is killed.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench.h"
#include "client/ctl/spec.h"
#include "client/ctl/work.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/metrics/histogram.h"
#include "common/tensor/float16.h"

#define PIECE_BYTES (UINT64_C(16) << 20) // of K and V, sent in one attach
#define WARM_UP     10                   // steps that are not counted
#define IDLE_NS     (60 * COMMON_NS_PER_S)

static struct {
    uint64_t tokens, layers, q_heads, kv_heads, dim, members, replicas, steps;
    const char *type;
} bench = {.tokens = 32768,
           .layers = 1,
           .q_heads = 32,
           .kv_heads = 8,
           .dim = 128,
           .replicas = 1,
           .steps = 200,
           .type = "bf16"};

static const struct common_option bench_options[] = {
    {"tokens", 0, COMMON_OPTION_U64, &bench.tokens, "N", "Context of the session. Default: 32768.", 256,
     UINT64_C(1) << 32},
    {"layers", 0, COMMON_OPTION_U64, &bench.layers, "N",
     "Number of layers; steps use them in turn. Default: 1.", 1, 1024},
    {"q-heads", 0, COMMON_OPTION_U64, &bench.q_heads, "N", "Query heads. Default: 32.", 1, 1024},
    {"kv-heads", 0, COMMON_OPTION_U64, &bench.kv_heads, "N", "KV heads. Default: 8.", 1, 1024},
    {"dim", 0, COMMON_OPTION_U64, &bench.dim, "N", "Dimension of keys and values. Default: 128.", 1, 1024},
    {"kv-type", 0, COMMON_OPTION_STRING, &bench.type, "f32|f16|bf16|int8|fp8",
     "Type of the elements of K and V. Default: bf16.", 0, 0},
    {"members", 0, COMMON_OPTION_U64, &bench.members, "N",
     "Exactly N workers, or all if there are fewer. Default: chosen by the cost model.", 1, 4096},
    {"replicas", 0, COMMON_OPTION_U64, &bench.replicas, "N", "Workers that hold each part. Default: 1.", 1,
     3},
    {"steps", 'n', COMMON_OPTION_U64, &bench.steps, "N",
     "Number of steps, and of appends of one token. Default: 200.", 1, 1000000},
    {0},
};

// ---- random K, V and q ------------------------------------------------------------------------------------

struct rows { // of one token after the other; scales: NULL for types without
    uint64_t count;
    void *k, *v;
    float *k_scale, *v_scale;
};

struct run {
    struct ctl *ctl;
    banyan_session *session;
    uint64_t row_bytes; // of K and V of one token in one layer
    struct rows rows;   // random, attached again and again
    float *q, *o, *first_o;
    uint64_t first_digest;
    bool bits_differ;
    struct ctl_bench_figures figures;
};

static float random_float(uint64_t *state) // [-1, 1)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (float)(*state >> 40) * 0x1p-23f - 1.0f;
}

// `n` elements of the session's type, and their scales. False: out of memory.
static bool random_rows(banyan_kv_type type, uint64_t n_heads, uint32_t dim, uint64_t *state, void **out,
                        float **scales)
{
    static const size_t sizes[] = {
        [BANYAN_F32] = 4, [BANYAN_F16] = 2, [BANYAN_BF16] = 2, [BANYAN_INT8] = 1, [BANYAN_FP8] = 1};
    float *head = malloc(dim * sizeof *head);
    uint8_t *to = malloc(n_heads * dim * sizes[type]);
    *out = to;
    *scales = banyan_kv_scaled(type) ? malloc(n_heads * sizeof **scales) : NULL;
    bool ok = head && to && (*scales || !banyan_kv_scaled(type));
    for (uint64_t h = 0; ok && h < n_heads; h++, to += dim * sizes[type]) {
        for (uint32_t i = 0; i < dim; i++)
            head[i] = random_float(state);
        if (*scales)
            ok = banyan_quantise(type, head, 1, dim, to, *scales + h) == BANYAN_OK;
        else if (type == BANYAN_F32)
            memcpy(to, head, dim * sizeof *head);
        for (uint32_t i = 0; !*scales && type != BANYAN_F32 && i < dim; i++) {
            uint16_t half =
                type == BANYAN_F16 ? common_f16_from_float(head[i]) : common_bf16_from_float(head[i]);
            memcpy(to + 2 * (size_t)i, &half, sizeof half);
        }
    }
    free(head);
    return ok;
}

static void run_free(struct run *r)
{
    free(r->rows.k);
    free(r->rows.v);
    free(r->rows.k_scale);
    free(r->rows.v_scale);
    free(r->q);
    free(r->o);
    free(r->first_o);
}

static bool run_fill(struct run *r)
{
    uint64_t state = 1; // the same rows each time
    size_t elements = (size_t)r->figures.spec->q_heads * r->figures.spec->k_dim;
    uint64_t count = PIECE_BYTES / r->row_bytes;
    r->rows.count = count == 0 ? 1 : count < bench.tokens ? count : bench.tokens;
    r->q = malloc(elements * sizeof *r->q);
    r->o = malloc(elements * sizeof *r->o);
    r->first_o = malloc(elements * sizeof *r->first_o);
    uint64_t kv = r->rows.count * r->figures.spec->kv_heads;
    if (!r->q || !r->o || !r->first_o ||
        !random_rows(r->figures.spec->kv_type, kv, r->figures.spec->k_dim, &state, &r->rows.k,
                     &r->rows.k_scale) ||
        !random_rows(r->figures.spec->kv_type, kv, r->figures.spec->v_dim, &state, &r->rows.v,
                     &r->rows.v_scale))
        return false;
    for (size_t i = 0; i < elements; i++)
        r->q[i] = random_float(&state);
    return true;
}

// ---- what is measured -------------------------------------------------------------------------------------

static uint64_t pieces_of_layer(const struct run *r)
{
    return (bench.tokens + r->rows.count - 1) / r->rows.count;
}

static enum ctl_exit attach_piece(void *arg, size_t nth, uint64_t *bytes, struct ctl_problem *problem)
{
    struct run *r = arg;
    uint64_t first = nth % pieces_of_layer(r) * r->rows.count, left = bench.tokens - first;
    uint64_t count = left < r->rows.count ? left : r->rows.count;
    uint32_t layer = (uint32_t)(nth / pieces_of_layer(r));
    banyan_error error;
    banyan_code code = r->rows.k_scale
                           ? banyan_attach_scaled(r->session, layer, first, count, r->rows.k, r->rows.k_scale,
                                                  r->rows.v, r->rows.v_scale, &error)
                           : banyan_attach(r->session, layer, first, count, r->rows.k, r->rows.v, &error);
    *bytes = count * r->row_bytes;
    return code == BANYAN_OK ? CTL_OK : ctl_problem_cluster(problem, &error);
}

static enum ctl_exit bench_attach(struct run *r)
{
    struct ctl_problem problem;
    struct ctl_work work = {.what = "attaching",
                            .quiet = r->ctl->json,
                            .total_bytes = r->figures.bytes,
                            .n = pieces_of_layer(r) * bench.layers,
                            .run = attach_piece,
                            .arg = r};
    uint64_t began_ns = common_clock_ns();
    if (ctl_work_run(&work, 2, &problem) != CTL_OK)
        return ctl_problem_tell(&problem);
    for (uint32_t layer = 0; layer < bench.layers; layer++) {
        banyan_error error;
        if (banyan_commit(r->session, layer, 0, bench.tokens, &error) != BANYAN_OK)
            return ctl_fail(&error);
    }
    r->figures.attach_ns = common_clock_ns() - began_ns;
    return CTL_OK;
}

static void add_trace(struct run *r, const banyan_trace *trace)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < trace->n_workers; i++)
        most = trace->workers[i].compute_ns > most ? trace->workers[i].compute_ns : most;
    r->figures.total_ns += trace->total_ns;
    r->figures.coordinator_ns += trace->coordinator_ns;
    r->figures.tree_ns += trace->tree_ns;
    r->figures.compute_ns += most;
}

// The same question has the same answer, to the bit, for as long as the plan is the same.
static void compare_bits(struct run *r, uint32_t layer, uint64_t digest)
{
    size_t bytes = (size_t)r->figures.spec->q_heads * r->figures.spec->v_dim * sizeof *r->o;
    if (layer != 0)
        return;
    if (r->first_digest != digest)
        memcpy(r->first_o, r->o, bytes);
    else
        r->bits_differ = r->bits_differ || memcmp(r->first_o, r->o, bytes) != 0;
    r->first_digest = digest;
}

// One step, or an append of the random row `nth`.
static enum ctl_exit step(struct run *r, uint64_t nth, uint64_t position, bool append,
                          struct common_histogram *times)
{
    uint32_t layer = (uint32_t)(nth % bench.layers);
    banyan_error error = {0};
    banyan_trace trace = {0};
    banyan_item item = {.session = r->session,
                        .layer = layer,
                        .first = position,
                        .rows = 1,
                        .q = r->q,
                        .o = r->o,
                        .error = &error};
    if (append) {
        item.k = r->rows.k;
        item.v = r->rows.v;
        item.k_scale = r->rows.k_scale;
        item.v_scale = r->rows.v_scale;
    }
    if (ctl_work_ended())
        return ctl_say(CTL_TIMEOUT, "ended early");
    uint64_t began_ns = common_clock_ns();
    banyan_code code = banyan_attend(r->ctl->client, &item, 1, 0, append || !times ? NULL : &trace, NULL);
    uint64_t took_ns = common_clock_ns() - began_ns;
    if (code != BANYAN_OK || item.code != BANYAN_OK)
        return ctl_fail(&error);
    if (!append)
        compare_bits(r, layer, item.digest);
    if (times)
        common_histogram_add(times, took_ns);
    if (times && !append)
        add_trace(r, &trace);
    banyan_trace_free(&trace);
    return CTL_OK;
}

static enum ctl_exit bench_steps(struct run *r)
{
    enum ctl_exit exit_code = CTL_OK;
    for (uint64_t i = 0; i < WARM_UP && exit_code == CTL_OK; i++)
        exit_code = step(r, i, bench.tokens - 1, false, NULL);
    for (uint64_t i = 0; i < bench.steps && exit_code == CTL_OK; i++)
        exit_code = step(r, i, bench.tokens - 1, false, &r->figures.steps);
    for (uint64_t i = 0; i < bench.steps && exit_code == CTL_OK; i++)
        exit_code = step(r, i, bench.tokens + i / bench.layers, true, &r->figures.appends);
    if (exit_code == CTL_OK && r->bits_differ)
        return ctl_say(CTL_INTERNAL, "answers to the same query differ: run 'banyanctl doctor', and 'session "
                                     "verify' on your sessions");
    return exit_code;
}

// ---- the command ------------------------------------------------------------------------------------------

static enum ctl_exit run_all(struct run *r)
{
    struct ctl_bench_floor floor;
    if (!run_fill(r))
        return ctl_say(CTL_INTERNAL, "out of memory");
    common_histogram_reset(&r->figures.steps);
    common_histogram_reset(&r->figures.appends);
    enum ctl_exit exit_code = bench_attach(r);
    if (exit_code == CTL_OK)
        exit_code = ctl_bench_floor(r->ctl, r->session, r->row_bytes, &floor);
    if (exit_code == CTL_OK)
        exit_code = bench_steps(r);
    if (exit_code != CTL_OK)
        return exit_code;
    ctl_bench_tell(r->ctl, &r->figures, &floor);
    return CTL_OK;
}

// Before anything is sent: a cluster that is full to the brim cannot serve.
static enum ctl_exit check_room(struct ctl *ctl, uint64_t bytes)
{
    banyan_cluster_info info;
    banyan_error error;
    char need[32], have[32];
    uint64_t room = 0;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    for (uint32_t i = 0; i < info.n_workers; i++) {
        const banyan_worker_info *w = &info.workers[i];
        if (strcmp(w->state, "active") == 0 && !w->draining && w->capacity_bytes > w->used_bytes)
            room += w->capacity_bytes - w->used_bytes;
    }
    bool told = info.n_workers > 0 || strcmp(info.access, "user") != 0; // users see no workers
    banyan_cluster_info_free(&info);
    if (bytes <= room || !told)
        return CTL_OK;
    return ctl_say(CTL_EXHAUSTED,
                   "it needs %s in all copies, and the workers have %s left: give fewer --tokens or --layers",
                   common_format_bytes(bytes, need, sizeof need),
                   common_format_bytes(room, have, sizeof have));
}

static enum ctl_exit run_bench(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    static struct run r; // its histograms are large
    char name[64];
    uint32_t number = 0;
    banyan_error error;
    const banyan_spec spec = {
        .layers = (uint32_t)bench.layers,
        .q_heads = (uint32_t)bench.q_heads,
        .kv_heads = (uint32_t)bench.kv_heads,
        .k_dim = (uint32_t)bench.dim,
        .v_dim = (uint32_t)bench.dim,
        .kv_type = snapshot_type_parse(bench.type),
        .members = (uint32_t)bench.members,
        .replicas = (uint32_t)bench.replicas,
        .idle_ttl_ns = IDLE_NS,
    };
    if (!common_random(&number, sizeof number))
        return ctl_say(CTL_INTERNAL, "cannot get random bytes");
    snprintf(name, sizeof name, "banyanctl-bench-%08x", number);
    r.ctl = ctl;
    uint64_t element = spec.kv_type == BANYAN_F32 ? 4 : banyan_kv_scaled(spec.kv_type) ? 1 : 2;
    r.row_bytes = 2 * bench.kv_heads * (bench.dim * element + (banyan_kv_scaled(spec.kv_type) ? 4 : 0));
    r.figures.tokens = bench.tokens;
    r.figures.layers = bench.layers;
    r.figures.bytes = bench.tokens * bench.layers * r.row_bytes;
    enum ctl_exit exit_code = check_room(ctl, r.figures.bytes * bench.replicas);
    if (exit_code != CTL_OK)
        return exit_code;
    if (banyan_session_create(ctl->client, &spec, name, &r.session, &error) != BANYAN_OK)
        return ctl_fail(&error);
    r.figures.spec = banyan_session_spec(r.session);
    ctl_work_guard();
    exit_code = run_all(&r);
    if (banyan_session_delete(r.session, &error) != BANYAN_OK && exit_code == CTL_OK)
        exit_code = ctl_fail(&error);
    banyan_session_close(r.session);
    run_free(&r);
    return exit_code;
}

static enum ctl_exit check_bench(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    if (bench.q_heads % bench.kv_heads != 0)
        return ctl_say(CTL_USAGE,
                       "--q-heads must be a multiple of --kv-heads: %" PRIu64
                       " is not a multiple of %" PRIu64,
                       bench.q_heads, bench.kv_heads);
    return CTL_OK;
}

const struct ctl_command ctl_bench_commands[] = {
    {"bench", "", "measure attach and step times on this cluster",
     "Creates a session with random K and V, measures an attach, steps and appends of one token, one after "
     "the other,\n"
     "and deletes it. It uses the workers' memory and time, so other sessions' steps are slower meanwhile.\n"
     "Each step asks the same query, and all answers must have the same bits. Beside the measured times, the "
     "output shows\nthe shortest ones that this cluster's memory and network allow.",
     bench_options, 0, 0, run_bench, check_bench},
    {0},
};
