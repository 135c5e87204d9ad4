// SPDX-License-Identifier: Apache-2.0
// The step of research/paper through the whole service: a client asks a coordinator that is there already. See
// --help; paper_service.sh starts the daemons on the hosts of netcluster.sh.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/main.h"
#include "bench/service.h"
#include "client/banyan.h"
#include "common/base/clock.h"
#include "research/paper_check.h"
#include "research/paper_shard.h"

#define SAMPLES_MOST 10000u
#define PIECE        4096u // tokens of one attach

static const char *endpoint, *geometry = "16x128", *model, *engine = "stream", *token_file, *device = "cpu";
static uint64_t tokens = 1024, rounds = 200, seconds = 5, warm = 20, layers = 1;
static bool json, samples;

struct run {
    banyan_client *client;
    banyan_session *session;
    struct paper_geometry g;
    uint32_t workers, layers;
    uint64_t total;  // tokens of the context before the first step
    uint64_t append; // tokens that steps add: 0, or one each
    float *q, *o, *lse;
    uint16_t *k, *v; // of one new token
    double us[SAMPLES_MOST];
    uint32_t n;
    double attach_s, wire; // bytes a worker and step
    uint64_t kv_peak;
    struct paper_error error;
};

// Layers hold other tokens each: positions far apart in the data.
static uint64_t data_token(uint32_t layer, uint64_t position)
{
    return ((uint64_t)layer << 32) + position;
}

// ---- context --------------------------------------------------------------------------------------------

static bool attach_piece(struct run *run, uint32_t layer, uint64_t first, uint64_t count, uint16_t *k,
                         uint16_t *v, uint64_t *ns)
{
    banyan_error error = {0};
    uint16_t *at[2] = {k, v};
    for (uint64_t t = 0; t < count; t++) {
        for (uint32_t head = 0; head < run->g.kv_heads; head++) {
            for (uint32_t which = 0; which < 2; which++) {
                paper_data_row(&run->g, data_token(layer, first + t), head, which, at[which]);
                at[which] += run->g.dim;
            }
        }
    }
    uint64_t start = common_clock_ns();
    bool ok = banyan_attach(run->session, layer, first, count, k, v, &error) == BANYAN_OK &&
              banyan_commit(run->session, layer, first, count, &error) == BANYAN_OK;
    *ns += common_clock_ns() - start;
    return ok || service_failed("attach", &error);
}

static bool attach_all(struct run *run)
{
    size_t row = (size_t)run->g.kv_heads * run->g.dim;
    uint16_t *k = malloc(PIECE * row * 2), *v = malloc(PIECE * row * 2);
    uint64_t ns = 0;
    bool ok = k && v;
    for (uint32_t layer = 0; ok && layer < run->layers; layer++) {
        for (uint64_t first = 0; ok && first < run->total; first += PIECE) {
            uint64_t count = run->total - first < PIECE ? run->total - first : PIECE;
            ok = attach_piece(run, layer, first, count, k, v, &ns);
        }
    }
    run->attach_s = (double)ns / 1e9;
    free(k);
    free(v);
    return ok;
}

// Tokens of a worker fill whole chunks, as large as they may be and no larger than the usual.
static uint32_t chunk_tokens(void)
{
    uint32_t chunk = PAPER_CHUNK;
    while (chunk > 16 && tokens % chunk)
        chunk /= 2;
    return chunk;
}

static bool open_session(struct run *run)
{
    banyan_error error = {0};
    banyan_cluster_info info = {0};
    banyan_options options = {.token_file = token_file, .connect_timeout_ns = 10 * COMMON_NS_PER_S};
    if (banyan_connect(endpoint, &options, &run->client, &error) != BANYAN_OK ||
        banyan_cluster_get_info(run->client, &info, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    run->workers = info.n_workers;
    run->total = tokens * run->workers;
    banyan_cluster_info_free(&info);
    banyan_spec spec = {.layers = run->layers,
                        .q_heads = run->g.q_heads,
                        .kv_heads = run->g.kv_heads,
                        .k_dim = run->g.dim,
                        .v_dim = run->g.dim,
                        .kv_type = BANYAN_BF16,
                        .chunk_tokens = chunk_tokens(),
                        .members = run->workers};
    if (banyan_session_create(run->client, &spec, NULL, &run->session, &error) != BANYAN_OK)
        return service_failed("session", &error);
    return attach_all(run);
}

// Every worker holds its share, and the plan has the engine that is asked for.
static bool check_plan(struct run *run)
{
    banyan_error error = {0};
    banyan_plan_info plan = {0};
    if (banyan_session_get_plan(run->session, &plan, &error) != BANYAN_OK)
        return service_failed("plan", &error);
    bool ok = strcmp(plan.engine, engine) == 0 && plan.n_nodes == run->workers;
    if (!ok)
        fprintf(stderr, "paper_service: the plan has engine %s and %u workers: %s\n", plan.engine,
                plan.n_nodes, plan.why);
    uint64_t row = paper_shard_bytes(&run->g, 1) * run->layers;
    for (uint32_t i = 0; i < plan.n_nodes; i++)
        run->kv_peak = plan.nodes[i].tokens * row > run->kv_peak ? plan.nodes[i].tokens * row : run->kv_peak;
    if (ok && run->kv_peak != tokens * row)
        fprintf(stderr, "paper_service: note: a worker holds %" PRIu64 " bytes of %" PRIu64 "\n",
                run->kv_peak, tokens * row);
    banyan_plan_info_free(&plan);
    return ok;
}

// ---- steps ----------------------------------------------------------------------------------------------

// One layer's step at `position`; appends its token first where steps append.
static bool step(struct run *run, uint32_t layer, uint64_t position)
{
    banyan_error error = {0}, item_error = {0};
    banyan_item item = {.session = run->session,
                        .layer = layer,
                        .first = position,
                        .rows = 1,
                        .q = run->q,
                        .o = run->o,
                        .lse = run->lse,
                        .error = &item_error};
    if (run->append) {
        item.k = run->k;
        item.v = run->v;
    }
    if (banyan_attend(run->client, &item, 1, 0, NULL, &error) != BANYAN_OK)
        return service_failed("step", &error);
    return item.code == BANYAN_OK || service_failed("step", &item_error);
}

static void new_token(struct run *run, uint32_t layer, uint64_t position)
{
    for (uint32_t head = 0; run->append && head < run->g.kv_heads; head++) {
        paper_data_row(&run->g, data_token(layer, position), head, 0, run->k + (size_t)head * run->g.dim);
        paper_data_row(&run->g, data_token(layer, position), head, 1, run->v + (size_t)head * run->g.dim);
    }
}

static bool check(struct run *run, uint32_t layer, uint64_t seen)
{
    struct paper_exact exact;
    void *kv = paper_kv_alloc(paper_shard_bytes(&run->g, seen));
    bool ok = kv && paper_exact_init(&exact, &run->g);
    if (!ok)
        return false;
    paper_shard_fill(&run->g, kv, data_token(layer, 0), seen);
    paper_reference(&run->g, kv, 0, seen, seen, run->q, exact.o, exact.rows);
    struct paper_error e = paper_check(&exact, &run->g, run->o, run->lse);
    run->error.rel = fmax(run->error.rel, e.rel);
    run->error.bound = fmax(run->error.bound, e.bound);
    paper_kv_free(kv);
    paper_exact_fini(&exact);
    if (run->error.bound > 1)
        fprintf(stderr, "paper_service: layer %u is wrong: %.3g of what the reference allows\n", layer,
                run->error.bound);
    return run->error.bound <= 1;
}

// One layer; microseconds, or negative.
static double layer_step(struct run *run, uint32_t layer, uint64_t position, bool checked)
{
    new_token(run, layer, position);
    uint64_t start = common_clock_ns();
    if (!step(run, layer, position))
        return -1;
    double us = (double)(common_clock_ns() - start) / 1e3;
    return checked && !check(run, layer, position + 1) ? -1 : us;
}

// All layers in turn; microseconds, or negative.
static double token(struct run *run, uint64_t position, bool checked)
{
    double sum = 0;
    for (uint32_t layer = 0; layer < run->layers; layer++) {
        double us = layer_step(run, layer, position, checked);
        if (us < 0)
            return -1;
        sum += us;
    }
    return sum;
}

// Bytes that have left all hosts of netcluster.sh, headers included. 0 elsewhere.
static double wire_bytes(void)
{
    char command[256], line[512], name[64];
    const char *agent = getenv("NETCLUSTER_AGENT"), *hosts = getenv("NETCLUSTER_HOSTS");
    double total = 0;
    uint64_t sent;
    while (agent && hosts && *hosts) {
        size_t len = strcspn(hosts, " ");
        snprintf(command, sizeof command, "%s %.*s cat /proc/net/dev", agent, (int)len, hosts);
        FILE *file = popen(command, "r");
        while (file && fgets(line, sizeof line, file)) {
            if (sscanf(line, " %63[^:]: %*u %*u %*u %*u %*u %*u %*u %*u %" SCNu64, name, &sent) == 2 &&
                strcmp(name, "lo") != 0)
                total += (double)sent;
        }
        if (file)
            pclose(file);
        hosts += len + strspn(hosts + len, " ");
    }
    return total;
}

// A sample is a token of a model, else a step of one layer, the layers in turn.
static double sample(struct run *run, uint64_t i, uint64_t position)
{
    return model ? token(run, position, false)
                 : layer_step(run, (uint32_t)(i % run->layers), position, false);
}

static bool measure(struct run *run)
{
    uint64_t position = run->total - !run->append;
    double before, total = 0;
    if (token(run, position, true) < 0)
        return false;
    position += run->append;
    for (uint64_t i = 0; !run->append && i < warm; i++)
        if (sample(run, i, position) < 0)
            return false;
    before = wire_bytes();
    for (run->n = 0; run->n < rounds && (run->n == 0 || total < (double)seconds * 1e6); run->n++) {
        double us = sample(run, run->n, position);
        if (us < 0)
            return false;
        run->us[run->n] = us;
        total += us;
        position += run->append;
    }
    run->wire = (wire_bytes() - before) / run->n / run->workers / (model ? run->layers : 1);
    return run->append || (step(run, 0, position) && check(run, 0, run->total));
}

// ---- report ---------------------------------------------------------------------------------------------

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_number(const char *key, double value)
{
    if (isfinite(value))
        printf(json ? ", \"%s\": %.9g" : "  %s %.6g", key, value);
    else if (json)
        printf(", \"%s\": null", key);
}

static void print_result(const struct run *run)
{
    static double sorted[SAMPLES_MOST];
    uint32_t p = run->workers, n = run->n;
    const char *network = getenv("BANYAN_NETCLUSTER");
    double median, sum = 0;
    memcpy(sorted, run->us, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    median = sorted[(n + 1) / 2 - 1];
    for (uint32_t i = 0; i < n; i++)
        sum += sorted[i];
    printf(json ? "{\"bench\": \"paper\", \"algo\": \"service-%s\", \"geometry\": \"%s\""
                : "service-%-8s %-9s",
           engine, run->g.name);
    print_number("workers", p);
    print_number("tokens_per_worker", (double)tokens);
    print_number("q_heads", run->g.q_heads);
    print_number("kv_heads", run->g.kv_heads);
    print_number("dim", run->g.dim);
    print_number("layers", run->layers);
    print_number("median_us", median);
    print_number("p99_us", sorted[(uint32_t)ceil(0.99 * n) - 1]);
    print_number("rounds", n);
    print_number("bytes_sent_per_rank", run->wire > 0 ? run->wire : NAN);
    print_number("formula_bytes",
                 (p - 1.0) / p * (double)(paper_query_bytes(&run->g) + paper_partial_bytes(&run->g)));
    print_number("paper_bytes", paper_published_bytes(PAPER_FORM_TREE, &run->g, p, (double)tokens));
    print_number("kv_peak_bytes", (double)run->kv_peak);
    print_number("max_rel_err", run->error.rel);
    print_number("of_bound", run->error.bound);
    print_number("attach_s", run->attach_s);
    if (model) {
        print_number("decode_s", sum / 1e6);
        print_number("decode_tokens", n);
    }
    if (json) {
        printf(", \"counted\": \"wire\", \"device\": \"%s\", \"network\": \"%s\"", device,
               network ? network : "loopback");
        if (model)
            printf(", \"model\": \"%s\"", model);
        for (uint32_t i = 0; samples && i < n; i++)
            printf("%s%.1f", i ? ", " : ", \"samples_us\": [", run->us[i]);
        printf(samples && n ? "]}" : "}");
    }
    putchar('\n');
}

static bool run_all(void)
{
    static struct run run;
    const struct paper_geometry all[] = {{"16x128", 16, 16, 128},
                                         {"32/8x128", 32, 8, 128},
                                         {"4/2x64", 4, 2, 64}};
    run.layers = (uint32_t)layers;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(model ? "32/8x128" : geometry, all[i].name))
            run.g = all[i];
    if (!run.g.name || (model && strcmp(model, "llama-3.1-8b") != 0)) {
        fprintf(stderr, "paper_service: --geometry is 16x128, 32/8x128 or 4/2x64, --model llama-3.1-8b\n");
        return false;
    }
    if (model) {
        run.layers = 32;
        run.append = 1;
        rounds = 10;
        seconds = 3600;
    }
    size_t n_q = (size_t)run.g.q_heads * run.g.dim, n_kv = (size_t)run.g.kv_heads * run.g.dim;
    run.q = calloc(n_q, 4);
    run.o = calloc(n_q, 4);
    run.lse = calloc(run.g.q_heads, 4);
    run.k = calloc(n_kv, 2);
    run.v = calloc(n_kv, 2);
    bool ok = run.q && run.o && run.lse && run.k && run.v;
    if (ok) {
        paper_data_query(&run.g, run.q);
        ok = open_session(&run) && check_plan(&run) && measure(&run);
    }
    if (ok)
        print_result(&run);
    if (run.session)
        banyan_session_delete(run.session, NULL);
    banyan_session_close(run.session);
    banyan_disconnect(run.client);
    free(run.q);
    free(run.o);
    free(run.lse);
    free(run.k);
    free(run.v);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"endpoint", 'c', COMMON_OPTION_STRING, &endpoint, "ENDPOINT",
         "the coordinator (default as the library's)", 0, 0},
        {"token-file", 0, COMMON_OPTION_STRING, &token_file, "FILE", "token for the coordinator", 0, 0},
        {"geometry", 'g', COMMON_OPTION_STRING, &geometry, "G", "16x128 (default), 32/8x128 or 4/2x64", 0, 0},
        {"model", 'm', COMMON_OPTION_STRING, &model, "NAME",
         "llama-3.1-8b: 32 layers of 32/8x128 in turn; attaches the context, then decodes 10 tokens", 0, 0},
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N", "tokens a worker, at least 16 (default 1024)", 16,
         UINT32_MAX},
        {"layers", 'l', COMMON_OPTION_U64, &layers, "N",
         "layers of the session, stepped in turn (default 1): more than caches hold, and K and V come from "
         "memory",
         1, 1024},
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "at most so many samples (default 200)", 1,
         SAMPLES_MOST},
        {"seconds", 's', COMMON_OPTION_U64, &seconds, "S", "and about so long (default 5)", 1, 3600},
        {"engine", 'e', COMMON_OPTION_STRING, &engine, "NAME",
         "engine that the plan must have: stream (default), mpi or nccl", 0, 0},
        {"device", 'd', COMMON_OPTION_STRING, &device, "D",
         "what the workers were started with (default cpu); only reported", 0, 0},
        {"samples", 0, COMMON_OPTION_FLAG, &samples, NULL, "with --json, print all samples", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "paper_service",
        .about =
            "The step of research/paper through the whole service: one query row, sent by a client to a\n"
            "coordinator, over a session that is spread over all its workers. The first answer and the\n"
            "last are checked against the float64 reference. bytes_sent_per_rank: what left the hosts of\n"
            "netcluster.sh for a step, with all headers, a worker's share. attach_s: how long the context\n"
            "took to attach and commit.",
        .options = options,
        .json = &json,
        .measure = run_all,
    };
    return bench_main(&program, argc, argv);
}
