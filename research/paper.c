// SPDX-License-Identifier: Apache-2.0
// Tree against ring: one decode step of one layer over shards of keys on the ranks of an MPI job, by each of
// the algorithms of paper_algo.c and paper_ring.c. See --help, research/README.md and research/PAPER.md.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/main.h"
#include "common/cli/options.h"
#include "research/paper_measure.h"

#define GROUP_MOST 8u // algorithms whose samples are taken in turn

static const struct paper_geometry geometries[] = {
    {"16x128", 16, 16, 128}, // the paper's
    {"32/8x128", 32, 8, 128},
    {"4/2x64", 4, 2, 64}, // of the tests
};

struct options {
    const char *algos, *geometry, *tokens, *device, *module, *note;
    struct paper_limits limits;
    uint64_t per_node, link_rate;
    bool json, samples, uneven, floors;
};

static struct options options = {.algos = "tree,allreduce1,allreduce3,gather,ring",
                                 .geometry = "16x128",
                                 .tokens = "1024",
                                 .device = "cpu",
                                 .limits = {.rounds = 200, .seconds = 5}};

// ---- report ---------------------------------------------------------------------------------------------

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, uint32_t n, double q)
{
    return n ? sorted[(uint32_t)ceil(q * n) - (q > 0 ? 1 : 0)] : NAN;
}

static void print_number(const char *key, double value)
{
    if (isfinite(value))
        printf(options.json ? ", \"%s\": %.9g" : "  %s %.6g", key, value);
    else if (options.json)
        printf(", \"%s\": null", key);
}

static void print_ring(const struct paper_step *step, const struct paper_result *r, double median)
{
    const struct paper_floor *f = &r->floor;
    double wire = f->socket_us > 0 ? fmin(f->socket_us, f->library_us) : f->library_us;
    double floor = fmax(wire, f->compute_us);
    print_number("floor_compute_us", f->compute_us);
    print_number("floor_socket_us", f->socket_us > 0 ? f->socket_us : NAN);
    print_number("floor_library_us", f->library_us);
    print_number("floor_us", floor);
    print_number("floor_fraction", floor / median);
    if (options.link_rate > 0) {
        double bytes = (double)paper_shard_bytes(step->g, step->most_tokens) * (step->world->size - 1);
        print_number("link_us", bytes / (double)options.link_rate * 1e6);
    }
}

static void print_result(const struct paper_step *step, const struct paper_algo *algo, struct paper_result *r)
{
    const struct paper_geometry *g = step->g;
    uint32_t p = step->world->size;
    double sorted[PAPER_SAMPLES_MOST], t = (double)step->total / p;
    memcpy(sorted, r->samples, r->n * sizeof *sorted);
    qsort(sorted, r->n, sizeof *sorted, ascending);
    double median = quantile(sorted, r->n, 0.5);
    printf(options.json ? "{\"bench\": \"paper\", \"algo\": \"%s\", \"geometry\": \"%s\"" : "%-12s %-9s",
           algo->name, g->name);
    print_number("workers", p);
    print_number("tokens_per_worker", t);
    print_number("q_heads", g->q_heads);
    print_number("kv_heads", g->kv_heads);
    print_number("dim", g->dim);
    print_number("per_node", step->world->per_node);
    print_number("median_us", median);
    print_number("p99_us", quantile(sorted, r->n, 0.99));
    print_number("rounds", r->n);
    bool unseen = algo->library && r->sent == 0; // the library did not use sockets
    print_number("bytes_sent_per_rank", unseen ? NAN : r->sent);
    print_number("formula_bytes", paper_formula_bytes(algo->form, g, p, step->tokens) / p);
    print_number("paper_bytes", paper_published_bytes(algo->form, g, p, t));
    print_number("bytes_sent_most", unseen ? NAN : r->sent_most);
    print_number("socket_bytes_per_rank", r->socket > 0 ? r->socket : NAN);
    print_number("wire_bytes_per_rank", getenv("BANYAN_NETCLUSTER") ? r->wire : NAN);
    print_number("kv_peak_bytes", (double)r->kv_peak);
    print_number("max_rel_err", r->error.rel);
    print_number("of_bound", r->error.bound);
    if (r->staged > 0) {
        print_number("staged_bytes_per_rank", r->staged);
        print_number("staging_us", r->staging_us / r->n);
    }
    if (paper_is_ring(algo) && options.floors)
        print_ring(step, r, median);
    if (options.json) {
        printf(", \"counted\": \"%s\", \"device\": \"%s\", \"kernel\": \"%s\", \"network\": \"%s\"",
               algo->library ? "sockets" : "calls", step->local->device, step->local->kernel,
               getenv("BANYAN_NETCLUSTER") ? getenv("BANYAN_NETCLUSTER") : "loopback");
        if (options.note)
            printf(", \"note\": \"%s\"", options.note);
        for (uint32_t i = 0; options.samples && i < r->n; i++)
            printf("%s%.1f", i ? ", " : ", \"samples_us\": [", r->samples[i]);
        printf(options.samples && r->n ? "]}" : "}");
    }
    putchar('\n');
    fflush(stdout);
}

// ---- all of them ----------------------------------------------------------------------------------------

static const struct paper_algo *find_algo(const char *name, size_t len)
{
    const struct paper_algo *rings[] = {&paper_ring, &paper_ring_lean};
    for (uint32_t i = 0; paper_algos[i].name; i++) {
        if (strlen(paper_algos[i].name) == len && !strncmp(paper_algos[i].name, name, len))
            return &paper_algos[i];
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (strlen(rings[i]->name) == len && !strncmp(rings[i]->name, name, len))
            return rings[i];
    }
    return NULL;
}

// The shard of rank r. Uneven: from a half to one and a half, none on the last of more than two.
static uint64_t tokens_of(uint64_t mean, uint32_t r, uint32_t p)
{
    if (!options.uneven || p < 2)
        return mean;
    return r + 1 == p && p > 2 ? 0 : mean / 2 + mean * r / (p - 1);
}

// Some algorithms, their samples taken in turn, so that a machine that is slow for a while is slow for all.
static bool run_group(struct paper_step *step, const struct paper_algo *const *algos, uint32_t n,
                      const struct paper_exact *exact)
{
    static struct paper_result results[GROUP_MOST];
    uint32_t most = 0;
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = paper_measure_begin(step, algos[i], exact, &options.limits, &results[i]);
        most = results[i].rounds > most ? results[i].rounds : most;
    }
    for (uint32_t round = 0; ok && round < most; round++) {
        for (uint32_t i = 0; i < n; i++)
            if (round < results[i].rounds)
                paper_measure_sample(step, algos[i], exact, &results[i]);
    }
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = paper_measure_end(step, algos[i], options.floors, &results[i]);
        if (ok && step->world->rank == 0)
            print_result(step, algos[i], &results[i]);
    }
    return ok;
}

// The algorithms asked for, a ring by itself: it has the keys and values elsewhere.
static bool run_algos(struct paper_step *step, const struct paper_exact *exact)
{
    const struct paper_algo *group[GROUP_MOST];
    uint32_t n = 0;
    bool ok = true;
    for (const char *name = options.algos; ok && *name; name += strspn(name, ",")) {
        size_t len = strcspn(name, ",");
        const struct paper_algo *algo = find_algo(name, len);
        if (n > 0 && (paper_is_ring(algo) || n == GROUP_MOST)) {
            ok = run_group(step, group, n, exact);
            n = 0;
        }
        group[n++] = algo;
        if (ok && paper_is_ring(algo)) {
            ok = run_group(step, group, n, exact);
            n = 0;
        }
        name += len;
    }
    return ok && (n == 0 || run_group(step, group, n, exact));
}

static bool run_size(struct paper_world *world, struct paper_local *local, uint64_t mean)
{
    if (world->size > PAPER_RANKS_MOST) {
        fprintf(stderr, "paper: at most %u ranks\n", PAPER_RANKS_MOST);
        return false;
    }
    const struct paper_geometry *g = local->g;
    uint64_t *tokens = calloc(world->size, sizeof *tokens), *first = calloc(world->size, sizeof *first);
    struct paper_step step = {.world = world, .g = g, .local = local, .tokens = tokens, .first = first};
    struct paper_exact exact = {0};
    bool ok = tokens && first;
    for (uint32_t r = 0; ok && r < world->size; r++) {
        tokens[r] = tokens_of(mean, r, world->size);
        first[r] = step.total;
        step.total += tokens[r];
        step.most_tokens = tokens[r] > step.most_tokens ? tokens[r] : step.most_tokens;
    }
    if (!ok || !paper_step_init(&step) || !paper_measure_exact(&step, &exact)) {
        fprintf(stderr, "paper: rank %u: no memory\n", world->rank);
        MPI_Abort(world->comm, 1);
    }
    paper_step_place(&step, &step.home, paper_shard_bytes(g, tokens[world->rank]), false);
    ok = run_algos(&step, &exact);
    paper_exact_fini(&exact);
    paper_block_free(local, &step.home);
    paper_step_fini(&step);
    free(tokens);
    free(first);
    return ok;
}

static const struct paper_geometry *find_geometry(const char *name)
{
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++)
        if (!strcmp(geometries[i].name, name))
            return &geometries[i];
    return NULL;
}

static bool options_fine(void)
{
    const char *wrong = NULL;
    uint64_t n;
    for (const char *name = options.algos; !wrong && *name; name += strspn(name, ",")) {
        size_t len = strcspn(name, ",");
        if (!find_algo(name, len))
            wrong = "--algo: tree, allreduce1, allreduce3 (each also with -library), gather, ring, ring-lean";
        name += len;
    }
    if (!find_geometry(options.geometry))
        wrong = "--geometry: 16x128, 32/8x128 or 4/2x64";
    for (const char *at = options.tokens; !wrong && *at; at += strspn(at, ",")) {
        char one[24];
        size_t len = strcspn(at, ",");
        snprintf(one, sizeof one, "%.*s", (int)(len < 23 ? len : 23), at);
        if (common_parse_u64(one, &n) != COMMON_OK || n == 0 || n > UINT32_MAX / 2)
            wrong = "--tokens: numbers of tokens a worker, with commas between them";
        at += len;
    }
    if (!paper_local_known(options.device))
        wrong = "--device: cpu, cuda or cuda:N";
    else if (options.module && !strcmp(options.device, "cpu"))
        wrong = "--device-module goes with --device cuda";
    if (wrong)
        fprintf(stderr, "paper: %s; try 'paper --help'\n", wrong);
    return !wrong;
}

// Collective; NULL on every rank when one has none: the first of them says why.
static struct paper_local *open_local(struct paper_world *world)
{
    struct paper_local_options wanted = {.device = options.device,
                                         .module = options.module,
                                         .g = find_geometry(options.geometry),
                                         .neighbour = world->neighbour};
    struct paper_local *local = NULL;
    struct common_error err;
    uint32_t first = paper_local_open(&wanted, &local, &err) == COMMON_OK ? UINT32_MAX : world->rank;
    uint32_t own = first;
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_UINT32_T, MPI_MIN, world->comm);
    if (first == UINT32_MAX)
        return local;
    if (first == own)
        fprintf(stderr, "paper: --device %s: %s\n", options.device, err.message);
    paper_local_close(local);
    return NULL;
}

static bool run_all(uint32_t per_node)
{
    struct paper_world world;
    paper_world_init(&world, per_node);
    struct paper_local *local = open_local(&world);
    bool ok = local;
    for (const char *at = options.tokens; ok && *at; at += strspn(at, ",")) {
        ok = run_size(&world, local, strtoull(at, NULL, 10));
        at += strcspn(at, ",");
    }
    paper_local_close(local);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option table[] = {
        {"algo", 'a', COMMON_OPTION_STRING, &options.algos, "LIST",
         "tree, allreduce1, allreduce3, gather, ring, ring-lean; tree-library, allreduce1-library and\n"
         "allreduce3-library: the same by the library's collectives\n"
         "(default tree,allreduce1,allreduce3,gather,ring)",
         0, 0},
        {"geometry", 'g', COMMON_OPTION_STRING, &options.geometry, "G",
         "16x128 (the paper's, default), 32/8x128 or 4/2x64", 0, 0},
        {"tokens", 't', COMMON_OPTION_STRING, &options.tokens, "LIST", "tokens a worker (default 1024)", 0,
         0},
        {"rounds", 'n', COMMON_OPTION_U64, &options.limits.rounds, "N",
         "at most so many samples (default 200)", 1, PAPER_SAMPLES_MOST - 1},
        {"seconds", 's', COMMON_OPTION_U64, &options.limits.seconds, "S",
         "and about so long for each algorithm, at least one sample (default 5)", 1, 3600},
        {"per-node", 0, COMMON_OPTION_U64, &options.per_node, "N",
         "ranks with fast links among them (default all); only reported", 0, 4096},
        {"link-rate", 0, COMMON_OPTION_SIZE, &options.link_rate, "BYTES",
         "a second of the slowest link: prints what the ring's bytes take on it", 0, UINT64_MAX},
        {"uneven", 0, COMMON_OPTION_FLAG, &options.uneven, NULL,
         "shards from a half to one and a half of --tokens, the last one empty", 0, 0},
        {"floors", 'f', COMMON_OPTION_FLAG, &options.floors, NULL,
         "of a ring, measure what its wire and its attention alone take", 0, 0},
        {"device", 'd', COMMON_OPTION_STRING, &options.device, "D",
         "what holds the keys and values and attends: cpu (default), cuda (the ranks of a host share\n"
         "its devices out in turn) or cuda:N; what a ring passes is then staged through the host",
         0, 0},
        {"device-module", 0, COMMON_OPTION_STRING, &options.module, "PATH",
         "its module (default: banyan-cuda.so beside this program or in ../lib)", 0, 0},
        {"note", 0, COMMON_OPTION_STRING, &options.note, "TEXT", "goes into each JSON object", 0, 0},
        {"samples", 0, COMMON_OPTION_FLAG, &options.samples, NULL, "with --json, print all samples", 0, 0},
        {"json", 'j', COMMON_OPTION_FLAG, &options.json, NULL, "one JSON object a line", 0, 0},
        {0},
    };
    const struct common_command command = {
        "paper", "[options]",
        "Start it with mpirun. One decode step of one layer over keys and values (bfloat16) that lie on the\n"
        "ranks, by each algorithm: q starts on rank 0, o ends there. Every answer is checked against the\n"
        "float64 reference, the first before anything is timed.\n"
        "bytes_sent_per_rank: mean over ranks of what is given to the library to send (of ...-library what\n"
        "its sockets sent), beside the formula of the algorithm (paper_formula.h) and that of the paper;\n"
        "socket_bytes: what the library's sockets sent, its headers included; wire_bytes: all that left the\n"
        "network namespace, only under netcluster.sh. kv_peak_bytes: most keys and values held by a rank,\n"
        "of a device in its memory. staged_bytes, staging_us: what a step of a ring copies between device\n"
        "and host, and how long the root was at it. floor_fraction: floor over median, the floor being the\n"
        "larger of what the wire takes without attention (plain sockets or the library, whichever is\n"
        "faster) and the attention alone (with a device: and what takes blocks up to it).",
        table};
    enum common_code code = bench_parse(&command, argc, argv);
    if (code != COMMON_OK)
        return bench_parse_status(code);
    if (!options_fine())
        return 2;
    paper_world_settings();
    MPI_Init(&argc, &argv);
    bool ok = run_all((uint32_t)options.per_node);
    MPI_Finalize();
    return ok ? 0 : 1;
}
