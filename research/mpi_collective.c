// SPDX-License-Identifier: Apache-2.0
// What the engine `mpi` chose from: ways to bring partials to rank 0 through Open MPI, timed on the root from
// a barrier to the merged result. Under mpirun, a process a rank.
//
//   reduce    MPI_Reduce with our operator (MPI_Op_create, not commutative) over a derived datatype: one head
//             is one element (m, s, o...), so that pipelined algorithms cut between heads
//   ireduce   the same with MPI_Ireduce and MPI_Test
//   tree      a binomial tree of MPI_Isend and MPI_Irecv of packed partials, children merged in rank order
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/main.h"
#include "bench/report.h"
#include "common/base/clock.h"
#include "common/cli/options.h"
#include "common/metrics/histogram.h"
#include "kernels/partial.h"

#define TAG 1

static uint64_t heads = 32, dim = 128, rounds = 2000;
static bool json;
static int rank, ranks;
static size_t floats;          // of all heads
static MPI_Datatype head_type; // 2 + dim floats
static MPI_Op merge_op;
static float *own, *result;       // heads one after the other
static uint8_t *packed, *fetched; // kernels/partial.h

// into = from + into: MPI hands the lower ranks' part in first.
static void merge_heads(void *from, void *into, int *count, MPI_Datatype *type)
{
    int bytes;
    MPI_Type_size(*type, &bytes);
    size_t each = (size_t)bytes / sizeof(float);
    float left[1024 + 2]; // the longest head
    for (int i = 0; i < *count; i++) {
        float *right = (float *)into + (size_t)i * each;
        memcpy(left, (float *)from + (size_t)i * each, (size_t)bytes);
        struct kernels_partial a = {1, 1, (uint32_t)each - 2, &left[0], &left[1], &left[2]},
                               b = {1, 1, (uint32_t)each - 2, &right[0], &right[1], &right[2]};
        kernels_partial_merge(&a, &b);
        memcpy(right, left, (size_t)bytes);
    }
}

static void view(uint8_t *block, struct kernels_partial *out)
{
    kernels_partial_view(block, 1, (uint32_t)heads, (uint32_t)dim, out);
}

static void by_reduce(void)
{
    MPI_Reduce(own, result, (int)heads, head_type, merge_op, 0, MPI_COMM_WORLD);
}

static void by_ireduce(void)
{
    MPI_Request request;
    int done = 0;
    MPI_Ireduce(own, result, (int)heads, head_type, merge_op, 0, MPI_COMM_WORLD, &request);
    while (!done)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

static void wait_for(MPI_Request *request)
{
    int done = 0;
    while (!done)
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
}

// Rank r's children are r + 1, r + 2, r + 4, ... below its own lowest bit; their ranks are contiguous.
static void by_tree(void)
{
    size_t bytes = kernels_partial_bytes(1, (uint32_t)heads, (uint32_t)dim);
    MPI_Request receives[32], send;
    struct kernels_partial ours, theirs;
    int n = 0;
    for (int bit = 1; rank + bit < ranks && !(rank & bit); bit <<= 1, n++)
        MPI_Irecv(fetched + (size_t)n * bytes, (int)bytes, MPI_BYTE, rank + bit, TAG, MPI_COMM_WORLD,
                  &receives[n]);
    view(packed, &ours);
    for (size_t h = 0; h < heads; h++) {
        ours.m[h] = own[h * (dim + 2)];
        ours.s[h] = own[h * (dim + 2) + 1];
        memcpy(ours.o + h * dim, own + h * (dim + 2) + 2, dim * sizeof(float));
    }
    for (int i = 0; i < n; i++) {
        wait_for(&receives[i]);
        view(fetched + (size_t)i * bytes, &theirs);
        kernels_partial_merge(&ours, &theirs);
    }
    if (rank == 0)
        return;
    MPI_Isend(packed, (int)bytes, MPI_BYTE, rank & (rank - 1), TAG, MPI_COMM_WORLD, &send);
    wait_for(&send);
}

static void fill(int of, float *out)
{
    for (size_t i = 0; i < floats; i++)
        out[i] = (float)((i * 7 + (size_t)of * 13) % 17) / 17.0f + (i % (dim + 2) == 1);
}

// Against all ranks merged one after the other, here.
static bool right(bool is_packed)
{
    float *want = malloc(floats * sizeof *want), *next = malloc(floats * sizeof *next);
    int count = (int)heads;
    double worst = 0;
    struct kernels_partial ours;
    if (!want || !next)
        abort();
    view(packed, &ours);
    fill(ranks - 1, want);
    for (int r = ranks - 1; r-- > 0;) {
        fill(r, next);
        merge_heads(next, want, &count, &head_type);
    }
    for (size_t i = 0; i < floats; i++) {
        size_t h = i / (dim + 2), d = i % (dim + 2);
        float got = !is_packed ? result[i]
                    : d == 0   ? ours.m[h]
                    : d == 1   ? ours.s[h]
                               : ours.o[h * dim + d - 2];
        double off = fabs((double)got - (double)want[i]) / (1 + fabs((double)want[i]));
        worst = off <= worst ? worst : off;
    }
    free(want);
    free(next);
    return worst < 1e-5;
}

static bool measure(const char *name, void (*run)(void), bool is_packed)
{
    static struct common_histogram times;
    bool ok = true;
    common_histogram_reset(&times);
    for (uint64_t i = 0; i < rounds + 50 && ok; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        uint64_t started = common_clock_ns();
        run();
        if (rank == 0 && i >= 50)
            common_histogram_add(&times, common_clock_ns() - started);
        if (rank == 0 && i == 0)
            ok = right(is_packed);
    }
    if (rank != 0)
        return true;
    if (!ok) {
        fprintf(stderr, "mpi_collective: %s: a wrong result\n", name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    report_line(json, (struct report_field[]){
                          {"bench", "mpi_collective", 0},
                          {"algo", name, 0},
                          {"ranks", NULL, ranks},
                          {"bytes", NULL, (double)kernels_partial_bytes(1, (uint32_t)heads, (uint32_t)dim)},
                          {"p50_us", NULL, (double)common_histogram_quantile(&times, 0.5) / 1e3},
                          {"p99_us", NULL, (double)common_histogram_quantile(&times, 0.99) / 1e3},
                          {NULL, NULL, 0}});
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"heads", 0, COMMON_OPTION_U64, &heads, "N", "heads of the partial (default 32)", 1, 4096},
        {"dim", 0, COMMON_OPTION_U64, &dim, "N", "of each (default 128)", 1, 1024},
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "of each algorithm (default 2000)", 1, 10000000},
        {"json", 'j', COMMON_OPTION_FLAG, &json, NULL, "one JSON object a line", 0, 0},
        {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL, NULL, 0, 0},
    };
    const struct common_command command = {
        .program = "mpi_collective",
        .synopsis = "[options]   (under mpirun)",
        .about = "Ways to bring partials to rank 0 through Open MPI, timed on the root from a barrier on.",
        .options = options};
    enum common_code code = bench_parse(&command, argc, argv);
    if (code != COMMON_OK)
        return bench_parse_status(code);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); // as the engine sets them (reduce/mpi/launch.c)
    setenv("OMPI_MCA_btl_vader_eager_limit", "65536", 0);
    setenv("OMPI_MCA_btl_vader_max_send_size", "65536", 0);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Type_contiguous((int)dim + 2, MPI_FLOAT, &head_type);
    MPI_Type_commit(&head_type);
    MPI_Op_create(merge_heads, 0, &merge_op);
    size_t bytes = kernels_partial_bytes(1, (uint32_t)heads, (uint32_t)dim);
    floats = heads * (dim + 2);
    own = malloc(floats * sizeof *own);
    result = malloc(floats * sizeof *result);
    packed = aligned_alloc(64, bytes);
    fetched = aligned_alloc(64, 32 * bytes);
    if (!own || !result || !packed || !fetched)
        abort();
    fill(rank, own);
    bool ok = measure("reduce", by_reduce, false) && measure("ireduce", by_ireduce, false) &&
              measure("tree", by_tree, true);
    free(own);
    free(result);
    free(packed);
    free(fetched);
    MPI_Op_free(&merge_op);
    MPI_Type_free(&head_type);
    MPI_Finalize();
    return ok ? 0 : 1;
}
