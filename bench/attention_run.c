// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_run.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/blob.h"
#include "kernels/reference.h"

bool attention_call_init(struct attention_call *call, const struct attention_data *data,
                         const struct kernels_attention *kernel, struct attention_team *team)
{
    *call = (struct attention_call){.data = data, .team = team};
    attention_data_item(data, kernel, &call->spec, &call->item);
    const struct attention_shape *s = &data->shape;
    uint32_t heads = call->spec.q_heads;
    uint64_t workspace = kernels_split_bytes(&call->item),
             block = kernels_partial_bytes(s->rows, heads, s->v_dim);
    call->scratch_stride = common_align64(kernels_split_scratch(&call->item) + 64);
    if (workspace && block) {
        call->workspace = aligned_alloc(KERNELS_ALIGN, common_align64(workspace));
        call->block = aligned_alloc(KERNELS_ALIGN, common_align64(block));
        call->scratch = aligned_alloc(KERNELS_ALIGN, call->scratch_stride * attention_team_threads(team));
        call->o = malloc((uint64_t)s->rows * heads * s->v_dim * sizeof(float));
        call->lse = malloc((uint64_t)s->rows * heads * sizeof(float));
    }
    if (!call->workspace || !call->block || !call->scratch || !call->o || !call->lse) {
        fprintf(stderr, "attention: no memory for partial results\n");
        return false;
    }
    kernels_partial_view(call->block, s->rows, heads, s->v_dim, &call->out);
    return true;
}

void attention_call_fini(struct attention_call *call)
{
    free(call->workspace);
    free(call->block);
    free(call->scratch);
    free(call->o);
    free(call->lse);
    *call = (struct attention_call){0};
}

struct calling {
    struct attention_call *call;
    atomic_uint next;
};

static void take_tasks(void *arg, uint32_t thread)
{
    struct calling *calling = arg;
    struct attention_call *call = calling->call;
    char *scratch = call->scratch + thread * call->scratch_stride;
    for (uint32_t task; (task = atomic_fetch_add(&calling->next, 1)) < call->split.tasks;)
        kernels_split_run(&call->split, task, scratch);
}

uint64_t attention_call_run(struct attention_call *call)
{
    struct calling calling = {.call = call};
    uint64_t start = common_clock_ns();
    kernels_split_init(&call->split, &call->item, call->workspace);
    uint64_t ns = common_clock_ns() - start;
    ns += attention_team_run(call->team, take_tasks, &calling);
    start = common_clock_ns();
    kernels_split_merge(&call->split, &call->out);
    return ns + (common_clock_ns() - start);
}

void attention_call_finish(struct attention_call *call)
{
    kernels_partial_finish(&call->out, NULL, call->o, call->lse);
}

struct checking {
    const struct attention_call *call;
    double worst[ATTENTION_TEAM_MOST];
};

// One query row and head against the reference.
static double check(const struct attention_call *call, uint32_t row, uint32_t head)
{
    const struct attention_shape *s = &call->data->shape;
    struct kernels_spec spec = call->spec;
    spec.q_heads = spec.kv_heads; // a group of one: the head alone
    uint32_t kv_head = head / s->group;
    struct kernels_job job = {.spec = &spec,
                              .kv_head = kv_head,
                              .rows = 1,
                              .q_first = call->item.q_first + row,
                              .visible = call->item.visible,
                              .block_first = call->item.block_first,
                              .block_end = call->item.block_end,
                              .q = call->item.q + row * call->item.q_row_stride +
                                   head * call->item.q_head_stride,
                              .q_row_stride = call->item.q_row_stride,
                              .q_head_stride = call->item.q_head_stride,
                              .runs = call->item.runs + (uint64_t)kv_head * call->item.run_count,
                              .run_count = call->item.run_count};
    double *exact = malloc(s->v_dim * sizeof *exact);
    if (!exact)
        return NAN;
    struct kernels_reference_row reference;
    kernels_reference(&job, NULL, exact, &reference);
    uint64_t at = (uint64_t)row * call->spec.q_heads + head;
    double worst = fabs(call->lse[at] - reference.lse) / kernels_reference_bound_lse(&reference);
    for (uint32_t d = 0; d < s->v_dim; d++) {
        double error = fabs(call->o[at * s->v_dim + d] - exact[d]) / kernels_reference_bound_o(&reference);
        if (!(error <= worst))
            worst = error;
    }
    free(exact);
    return worst;
}

static void check_some(void *arg, uint32_t thread)
{
    struct checking *checking = arg;
    const struct attention_shape *s = &checking->call->data->shape;
    uint32_t pairs = s->rows * s->kv_heads * s->group;
    uint32_t row = thread % 2 ? s->rows - 1 : 0, head = checking->call->spec.q_heads - 1 - thread % 8;
    checking->worst[thread] = check(checking->call, row, head % checking->call->spec.q_heads);
    uint64_t pair = (thread + 1) * 2654435761u % pairs;
    double second = check(checking->call, (uint32_t)(pair / (s->kv_heads * s->group)),
                          (uint32_t)(pair % (s->kv_heads * s->group)));
    if (!(second <= checking->worst[thread]))
        checking->worst[thread] = second;
}

double attention_call_error(struct attention_call *call)
{
    attention_call_finish(call);
    struct checking checking = {.call = call};
    attention_team_run(call->team, check_some, &checking);
    double worst = 0;
    for (uint32_t i = 0; i < attention_team_threads(call->team); i++) {
        if (!(checking.worst[i] <= worst))
            worst = checking.worst[i];
    }
    return worst;
}

// ---- the plain read

struct reading {
    const char *memory;
    uint64_t bytes, pieces;
    const struct attention_reading *how;
    atomic_uint_fast64_t next, sum;
};

static void read_pieces(void *arg, uint32_t thread)
{
    struct reading *reading = arg;
    uint64_t sum = 0, size = reading->how->piece;
    (void)thread;
    for (uint64_t i; (i = atomic_fetch_add(&reading->next, 1)) < reading->pieces;) {
        uint64_t left = reading->bytes - i * size;
        sum ^= reading->how->reader->read(reading->memory + i * size, left < size ? left : size);
    }
    atomic_fetch_add(&reading->sum, sum);
}

uint64_t attention_read_run(struct attention_team *team, const char *memory, uint64_t bytes,
                            const struct attention_reading *how)
{
    struct reading reading = {
        .memory = memory, .bytes = bytes, .pieces = (bytes + how->piece - 1) / how->piece, .how = how};
    return attention_team_run(team, read_pieces, &reading);
}

enum { TRIES_MOST = 128, FINALISTS = 4, FINAL_ROUNDS = 5 };
#define MOST_TRIED ((uint64_t)512 << 20) // beyond any cache, more would tell nothing

struct attention_reading attention_read_choose(struct attention_team *team, const char *memory,
                                               uint64_t bytes, enum reader_isa isa)
{
    if (bytes > MOST_TRIED)
        bytes = MOST_TRIED;
    // Threads take pieces as they come, so that one that is held up does not hold up the rest; or equal
    // shares.
    uint64_t share = (bytes / attention_team_threads(team) + 4095) / 4096 * 4096;
    const uint64_t pieces[] = {(uint64_t)256 << 10, (uint64_t)2 << 20, share};
    struct {
        struct attention_reading how;
        uint64_t ns;
    } tries[TRIES_MOST] = {0}, swap;
    uint32_t n = 0;
    for (uint32_t i = 0; i < reader_count; i++) {
        for (uint32_t p = 0; p < sizeof pieces / sizeof *pieces && n < TRIES_MOST; p++) {
            if (reader_list[i].isa > isa ||
                (reader_list[i].isa == READER_PORTABLE && isa != READER_PORTABLE) ||
                !reader_isa_usable(reader_list[i].isa) || (p < 2 && pieces[p] >= share))
                continue;
            tries[n].how = (struct attention_reading){&reader_list[i], pieces[p]};
            tries[n].ns = attention_read_run(team, memory, bytes, &tries[n].how);
            n++;
        }
    }
    for (uint32_t round = 0; round <= FINAL_ROUNDS; round++) {
        uint32_t finalists = n < FINALISTS ? n : FINALISTS;
        for (uint32_t i = 0; i < finalists; i++) { // the best so far to the front
            uint32_t best = i;
            for (uint32_t j = i; j < n; j++)
                best = tries[j].ns < tries[best].ns ? j : best;
            swap = tries[i];
            tries[i] = tries[best];
            tries[best] = swap;
        }
        for (uint32_t i = 0; i < finalists && round < FINAL_ROUNDS; i++) {
            uint64_t ns = attention_read_run(team, memory, bytes, &tries[i].how);
            tries[i].ns = ns < tries[i].ns ? ns : tries[i].ns;
        }
    }
    return tries[0].how;
}

// ---- the FMA units

struct fma {
    enum reader_isa isa;
    atomic_uint_fast64_t flops;
    atomic_uint sink;
};

static void fma_rounds(void *arg, uint32_t thread)
{
    enum { ROUNDS = 300000 }; // 6 cycles each
    struct fma *fma = arg;
    float sink = (float)thread;
    atomic_fetch_add(&fma->flops, reader_fma(fma->isa, ROUNDS, &sink));
    atomic_fetch_add(&fma->sink, sink > 0);
}

double attention_fma_run(struct attention_team *team, enum reader_isa isa)
{
    struct fma fma = {.isa = isa};
    uint64_t ns = attention_team_run(team, fma_rounds, &fma);
    return (double)fma.flops * 1e9 / (double)ns;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double attention_median(const double *samples, uint32_t n)
{
    double sorted[64];
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}
