// SPDX-License-Identifier: Apache-2.0
// Tree against ring: one decode step of one layer over shards of keys on the ranks of an MPI job, by each of
// the algorithms of paper_algo.c and paper_ring.c. See --help, bench/README.md and docs/PAPER.md.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/paper_algo.h"
#include "bench/paper_check.h"
#include "common/clock.h"
#include "common/options.h"

#define SAMPLES_MOST   10000u
#define GROUP_MOST     8u // algorithms whose samples are taken in turn
#define REST_NS        (2 * COMMON_NS_PER_MS)
#define LONG_ENOUGH_NS (10 * COMMON_NS_PER_S) // a first call above it is a sample, too: it was checked

static const struct paper_geometry geometries[] = {
    {"16x128", 16, 16, 128}, // the paper's
    {"32/8x128", 32, 8, 128},
    {"4/2x64", 4, 2, 64}, // of the tests
};

struct options {
    const char *algos, *geometry, *tokens, *device, *note;
    uint64_t rounds, seconds, per_node, link_rate;
    bool json, samples, uneven, floors;
};

struct result {
    double samples[SAMPLES_MOST];
    uint32_t n, rounds; // samples; how many are to be taken
    struct paper_error error;
    double sent, sent_most, socket,
        wire; // bytes: mean a rank, most of a rank; mean a rank on sockets, on wires
    uint64_t kv_peak;
    struct paper_floor floor;
};

static struct options options = {.algos = "tree,allreduce1,allreduce3,gather,ring",
                                 .geometry = "16x128",
                                 .tokens = "1024",
                                 .device = "cpu",
                                 .rounds = 200,
                                 .seconds = 5};

// ---- one configuration ----------------------------------------------------------------------------------

// The reference of every shard, merged on rank 0. Collective.
static bool find_exact(struct paper_step *step, struct paper_exact *exact)
{
    struct paper_world *world = step->world;
    const struct paper_geometry *g = step->g;
    struct paper_exact own;
    int n_o = (int)(g->q_heads * g->dim), n_rows = (int)(g->q_heads * sizeof *own.rows);
    if (!paper_exact_init(exact, g) || !paper_exact_init(&own, g))
        return false;
    paper_data_query(g, step->q);
    paper_reference(&step->compute, step->kv, step->first[world->rank], step->tokens[world->rank],
                    step->total, step->q, own.o, own.rows);
    paper_barrier(world); // whoever is done early leaves the cores to the others
    if (world->rank > 0) {
        MPI_Send(own.o, n_o, MPI_DOUBLE, 0, 0, world->comm);
        MPI_Send(own.rows, n_rows, MPI_BYTE, 0, 0, world->comm);
    }
    for (uint32_t r = 0; world->rank == 0 && r < world->size; r++) {
        if (r > 0) {
            MPI_Recv(own.o, n_o, MPI_DOUBLE, (int)r, 0, world->comm, MPI_STATUS_IGNORE);
            MPI_Recv(own.rows, n_rows, MPI_BYTE, (int)r, 0, world->comm, MPI_STATUS_IGNORE);
        }
        paper_exact_merge(exact, &own, g);
    }
    paper_exact_fini(&own);
    return true;
}

static bool is_ring(const struct paper_algo *algo)
{
    return algo->form == PAPER_FORM_RING || algo->form == PAPER_FORM_RING_LEAN;
}

// One step; microseconds on rank 0 from q there to o there. All but the ring wait for q, so the others may
// first come to rest: what they still have to do in the barrier is no part of the step.
static double run_once(struct paper_step *step, const struct paper_algo *algo)
{
    size_t q = (size_t)step->g->q_heads * step->g->dim;
    if (step->world->rank > 0) // they have to be told
        memset(step->q, 0xff, q * sizeof(float));
    memset(step->o, 0xff, q * sizeof(float));
    paper_barrier(step->world);
    if (step->world->rank == 0 && !is_ring(algo))
        nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
    uint64_t start = common_clock_ns();
    algo->run(step);
    return (double)(common_clock_ns() - start) / 1e3;
}

static void worst(struct paper_error *most, struct paper_error e)
{
    most->rel = fmax(most->rel, e.rel);
    most->bound = fmax(most->bound, e.bound);
}

static void sum_bytes(struct paper_step *step, const struct paper_algo *algo, uint64_t socket, uint64_t wire,
                      struct result *result)
{
    struct paper_world *world = step->world;
    double own[3] = {algo->library ? (double)socket : (double)world->sent, (double)socket, (double)wire},
           all[3];
    MPI_Reduce(own, all, 3, MPI_DOUBLE, MPI_SUM, 0, world->comm);
    MPI_Reduce(own, &result->sent_most, 1, MPI_DOUBLE, MPI_MAX, 0, world->comm);
    result->sent = all[0] / world->size;
    result->socket = all[1] / world->size;
    result->wire = all[2] / world->size;
}

// Prepares an algorithm and makes the first call, which is checked and counted before time matters.
// Collective; false on every rank when memory is short or the answer is wrong.
static bool measure_begin(struct paper_step *step, const struct paper_algo *algo,
                          const struct paper_exact *exact, struct result *result)
{
    struct paper_world *world = step->world;
    bool root = world->rank == 0;
    *result = (struct result){0};
    int fine = !algo->init || algo->init(step);
    MPI_Allreduce(MPI_IN_PLACE, &fine, 1, MPI_INT, MPI_LAND, world->comm);
    if (!fine) {
        if (root)
            fprintf(stderr, "paper: %s: no memory\n", algo->name);
        return false;
    }
    if (root)
        paper_data_query(step->g, step->q);
    paper_kv_peak_reset();
    paper_barrier(world);
    uint64_t barrier = paper_socket_bytes(); // what two of them cost is no part of the step
    paper_barrier(world);
    paper_barrier(world);
    barrier = paper_socket_bytes() - barrier;
    world->sent = 0;
    uint64_t socket = paper_socket_bytes(), wire = paper_wire_bytes();
    double us = run_once(step, algo);
    paper_barrier(world); // everything has left
    socket = paper_socket_bytes() - socket;
    wire = paper_wire_bytes() - wire;
    sum_bytes(step, algo, socket > barrier ? socket - barrier : 0, wire, result);
    paper_sockets_find();

    double plan[2] = {0, 0};
    if (root) {
        result->error = paper_check(exact, step->g, step->o, step->lse);
        plan[0] = result->error.bound <= 1;
        plan[1] = fmax(1, fmin((double)options.rounds, (double)options.seconds * 1e6 / us));
        if (us * 1e3 > LONG_ENOUGH_NS) {
            result->samples[result->n++] = us;
            plan[1] -= 1;
        }
    }
    MPI_Bcast(plan, 2, MPI_DOUBLE, 0, world->comm);
    result->rounds = (uint32_t)plan[1];
    return plan[0] > 0;
}

static void measure_sample(struct paper_step *step, const struct paper_algo *algo,
                           const struct paper_exact *exact, struct result *result)
{
    double us = run_once(step, algo);
    if (step->world->rank == 0) {
        result->samples[result->n++] = us;
        worst(&result->error, paper_check(exact, step->g, step->o, step->lse));
    }
}

// Collective; false on every rank when an answer was wrong.
static bool measure_end(struct paper_step *step, const struct paper_algo *algo, struct result *result)
{
    struct paper_world *world = step->world;
    bool root = world->rank == 0;
    paper_barrier(world);
    result->kv_peak = paper_kv_peak();
    MPI_Allreduce(MPI_IN_PLACE, &result->kv_peak, 1, MPI_UINT64_T, MPI_MAX, world->comm);
    int fine = root ? result->error.bound <= 1 : 1;
    MPI_Bcast(&fine, 1, MPI_INT, 0, world->comm);
    if (is_ring(algo) && options.floors && fine)
        paper_ring_floor(step, algo->form == PAPER_FORM_RING_LEAN, &result->floor);
    if (algo->fini)
        algo->fini(step);
    if (!fine && root)
        fprintf(stderr, "paper: %s is wrong: %.3g of what the reference allows\n", algo->name,
                result->error.bound);
    return fine;
}

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

static void print_ring(const struct paper_step *step, const struct result *r, double median)
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

static void print_result(const struct paper_step *step, const struct paper_algo *algo, struct result *r)
{
    const struct paper_geometry *g = step->g;
    uint32_t p = step->world->size;
    double sorted[SAMPLES_MOST], t = (double)step->total / p;
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
    if (is_ring(algo) && options.floors)
        print_ring(step, r, median);
    if (options.json) {
        printf(", \"counted\": \"%s\", \"kernel\": \"%s\", \"network\": \"%s\"",
               algo->library ? "sockets" : "calls", step->compute.kernel->name,
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
    static struct result results[GROUP_MOST];
    uint32_t most = 0;
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = measure_begin(step, algos[i], exact, &results[i]);
        most = results[i].rounds > most ? results[i].rounds : most;
    }
    for (uint32_t round = 0; ok && round < most; round++) {
        for (uint32_t i = 0; i < n; i++)
            if (round < results[i].rounds)
                measure_sample(step, algos[i], exact, &results[i]);
    }
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = measure_end(step, algos[i], &results[i]);
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
        if (n > 0 && (is_ring(algo) || n == GROUP_MOST)) {
            ok = run_group(step, group, n, exact);
            n = 0;
        }
        group[n++] = algo;
        if (ok && is_ring(algo)) {
            ok = run_group(step, group, n, exact);
            n = 0;
        }
        name += len;
    }
    return ok && (n == 0 || run_group(step, group, n, exact));
}

static bool run_size(struct paper_world *world, const struct paper_geometry *g, uint64_t mean)
{
    if (world->size > PAPER_RANKS_MOST) {
        fprintf(stderr, "paper: at most %u ranks\n", PAPER_RANKS_MOST);
        return false;
    }
    uint64_t *tokens = calloc(world->size, sizeof *tokens), *first = calloc(world->size, sizeof *first);
    struct paper_step step = {.world = world, .g = g, .tokens = tokens, .first = first};
    struct paper_exact exact = {0};
    bool ok = tokens && first;
    for (uint32_t r = 0; ok && r < world->size; r++) {
        tokens[r] = tokens_of(mean, r, world->size);
        first[r] = step.total;
        step.total += tokens[r];
        step.most_tokens = tokens[r] > step.most_tokens ? tokens[r] : step.most_tokens;
    }
    size_t own = ok ? paper_shard_bytes(g, tokens[world->rank]) : 0;
    ok = ok && paper_step_init(&step) && (step.kv = paper_kv_alloc(own));
    if (!ok) {
        fprintf(stderr, "paper: rank %u: no memory for %zu bytes of keys and values\n", world->rank, own);
        MPI_Abort(world->comm, 1);
    }
    paper_shard_fill(g, step.kv, first[world->rank], tokens[world->rank]);
    ok = find_exact(&step, &exact) && run_algos(&step, &exact);
    paper_exact_fini(&exact);
    paper_kv_free(step.kv, own);
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
    if (!wrong && strcmp(options.device, "cpu") != 0)
        wrong = "--device: this program has the cpu's kernels only";
    if (wrong)
        fprintf(stderr, "paper: %s; try 'paper --help'\n", wrong);
    return !wrong;
}

static bool run_all(uint32_t per_node)
{
    struct paper_world world;
    const struct paper_geometry *g = find_geometry(options.geometry);
    bool ok = true;
    paper_world_init(&world, per_node);
    for (const char *at = options.tokens; ok && *at; at += strspn(at, ",")) {
        ok = run_size(&world, g, strtoull(at, NULL, 10));
        at += strcspn(at, ",");
    }
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
        {"rounds", 'n', COMMON_OPTION_U64, &options.rounds, "N", "at most so many samples (default 200)", 1,
         SAMPLES_MOST - 1},
        {"seconds", 's', COMMON_OPTION_U64, &options.seconds, "S",
         "and about so long for each algorithm, at least one sample (default 5)", 1, 3600},
        {"per-node", 0, COMMON_OPTION_U64, &options.per_node, "N",
         "ranks with fast links among them (default all); only reported", 0, 4096},
        {"link-rate", 0, COMMON_OPTION_SIZE, &options.link_rate, "BYTES",
         "a second of the slowest link: prints what the ring's bytes take on it", 0, UINT64_MAX},
        {"uneven", 0, COMMON_OPTION_FLAG, &options.uneven, NULL,
         "shards from a half to one and a half of --tokens, the last one empty", 0, 0},
        {"floors", 'f', COMMON_OPTION_FLAG, &options.floors, NULL,
         "of a ring, measure what its wire and its attention alone take", 0, 0},
        {"device", 'd', COMMON_OPTION_STRING, &options.device, "D", "cpu", 0, 0},
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
        "network namespace, only under netcluster.sh. kv_peak_bytes: most keys and values held\n"
        "by a rank. floor_fraction: floor over median, the floor being the larger of what the wire takes\n"
        "without attention (plain sockets or the library, whichever is faster) and the attention alone.",
        table};
    struct common_error err = {0};
    int rest;
    enum common_code code = common_options_parse(&command, argc, argv, &rest, &err);
    if (code == COMMON_CANCELLED)
        return 0;
    if (code != COMMON_OK || rest != argc) {
        fprintf(stderr, "paper: %s\n",
                code != COMMON_OK ? err.message : "no arguments are taken; try 'paper --help'");
        return 2;
    }
    if (!options_fine())
        return 2;
    paper_world_settings();
    MPI_Init(&argc, &argv);
    bool ok = run_all((uint32_t)options.per_node);
    MPI_Finalize();
    return ok ? 0 : 1;
}
