// SPDX-License-Identifier: Apache-2.0
// Tree, gather and the all-reduces. The query goes down the same binomial tree in all of them.
//
//     tree            a partial climbs the binomial tree, merged at each rank in the order of ranks
//     tree-library    MPI_Reduce with our operator
//     gather          MPI_Gather of the partials, merged on the root in the order of ranks
//     allreduce1      MPI_Allreduce with our operator; one head is one element
//     allreduce3      the paper's Algorithm 3: MAX of lse, SUM of n = o exp(lse - max),
//                     SUM of d = exp(lse - max)
#include "research/paper_algo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_QUERY = 1, TAG_PARTIAL, TAG_DOUBLING };

static MPI_Datatype element_type = MPI_DATATYPE_NULL;
static MPI_Op merge_op = MPI_OP_NULL;
static uint32_t element_dim, operator_users;

#define DIM_MOST 1024u // of the geometries

// ---- common ---------------------------------------------------------------------------------------------

static size_t partial_floats(const struct paper_geometry *g)
{
    return (size_t)g->q_heads * (g->dim + 2);
}

static struct kernels_partial view(const struct paper_geometry *g, float *at)
{
    return (struct kernels_partial){.rows = 1,
                                    .heads = g->q_heads,
                                    .dv = g->dim,
                                    .m = at,
                                    .s = at + g->q_heads,
                                    .o = at + 2 * (size_t)g->q_heads};
}

bool paper_step_init(struct paper_step *step)
{
    size_t n = partial_floats(step->g);
    step->q = calloc((size_t)step->g->q_heads * step->g->dim, sizeof(float));
    step->o = calloc((size_t)step->g->q_heads * step->g->dim, sizeof(float));
    step->lse = calloc(step->g->q_heads, sizeof(float));
    step->partial = calloc(n, sizeof(float));
    step->elements = calloc(n, sizeof(float));
    step->inbox = calloc(n * step->world->size, sizeof(float));
    return step->q && step->o && step->lse && step->partial && step->elements && step->inbox;
}

void paper_step_fini(struct paper_step *step)
{
    free(step->q);
    free(step->o);
    free(step->lse);
    free(step->partial);
    free(step->elements);
    free(step->inbox);
}

void paper_step_place(struct paper_step *step, struct paper_block *block, size_t bytes, bool travels)
{
    uint32_t r = step->world->rank;
    if (paper_block_make(step->local, block, bytes, travels, step->first[r], step->tokens[r]))
        return;
    fprintf(stderr, "paper: rank %u: no memory for %zu bytes of keys and values\n", r, bytes);
    MPI_Abort(step->world->comm, 1);
}

// Receives the query from the parent and sends it on, the largest subtree first. Returns the number of sends.
static int spread_query(struct paper_step *step, uint32_t parent, const uint32_t *children, uint32_t n,
                        MPI_Request *sends)
{
    size_t bytes = paper_query_bytes(step->g);
    if (step->world->rank > 0) {
        MPI_Request request;
        paper_irecv(step->world, step->q, bytes, parent, TAG_QUERY, &request);
        paper_wait(&request, 1);
    }
    for (uint32_t i = 0; i < n; i++)
        paper_isend(step->world, step->q, bytes, children[n - 1 - i], TAG_QUERY, &sends[i]);
    return (int)n;
}

static void attend_shard(struct paper_step *step, const struct kernels_partial *out)
{
    struct paper_local *local = step->local;
    uint32_t r = step->world->rank;
    local->ops->begin(local, &step->home, step->first[r], step->tokens[r], step->total, step->q, out);
    while (local->ops->step(local))
        ;
}

// Query down, own partial computed: what all of them begin with.
static void begin(struct paper_step *step)
{
    uint32_t parent, children[32];
    MPI_Request sends[32];
    uint32_t n = paper_tree(step->world->rank, step->world->size, &parent, children);
    int sent = spread_query(step, parent, children, n, sends);
    struct kernels_partial own = view(step->g, step->partial);
    attend_shard(step, &own);
    paper_wait(sends, sent);
}

static void finish(struct paper_step *step, float *partial)
{
    struct kernels_partial p = view(step->g, partial);
    if (step->world->rank == 0)
        kernels_partial_finish(&p, NULL, step->o, step->lse);
}

// ---- tree -----------------------------------------------------------------------------------------------

static void tree_run(struct paper_step *step)
{
    struct paper_world *world = step->world;
    uint32_t parent, children[32];
    MPI_Request sends[32], answers[32];
    size_t n_floats = partial_floats(step->g);
    uint32_t n = paper_tree(world->rank, world->size, &parent, children);
    for (uint32_t i = 0; i < n; i++)
        paper_irecv(world, step->inbox + i * n_floats, n_floats * 4, children[i], TAG_PARTIAL, &answers[i]);
    int sent = spread_query(step, parent, children, n, sends);
    struct kernels_partial own = view(step->g, step->partial);
    attend_shard(step, &own);
    for (uint32_t i = 0; i < n; i++) {
        struct kernels_partial from = view(step->g, step->inbox + i * n_floats);
        paper_wait(&answers[i], 1);
        kernels_partial_merge(&own, &from);
    }
    if (world->rank > 0) {
        MPI_Request up;
        paper_isend(world, step->partial, n_floats * 4, parent, TAG_PARTIAL, &up);
        paper_wait(&up, 1);
    }
    paper_wait(sends, sent);
    finish(step, step->partial);
}

// ---- elements and our operator --------------------------------------------------------------------------

static struct kernels_partial element(float *at, uint32_t dim)
{
    return (struct kernels_partial){.rows = 1, .heads = 1, .dv = dim, .m = at, .s = at + 1, .o = at + 2};
}

// inout = in + inout: `in` comes from the lower ranks.
static void merge_elements(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    float *left = in, *right = inout;
    for (int i = 0; i < *n; i++, left += element_dim + 2, right += element_dim + 2) {
        struct kernels_partial a = element(left, element_dim), b = element(right, element_dim);
        float kept[DIM_MOST + 2];
        size_t bytes = (element_dim + 2) * sizeof(float);
        memcpy(kept, left, bytes); // the operator may not alter `in`
        kernels_partial_merge(&a, &b);
        memcpy(right, left, bytes);
        memcpy(left, kept, bytes);
    }
}

static bool operator_init(struct paper_step *step)
{
    if (operator_users++ > 0)
        return true;
    element_dim = step->g->dim;
    MPI_Type_contiguous((int)element_dim + 2, MPI_FLOAT, &element_type);
    MPI_Type_commit(&element_type);
    MPI_Op_create(merge_elements, 0, &merge_op); // not commutative: the order of ranks is kept
    return true;
}

static void operator_fini(struct paper_step *step)
{
    (void)step;
    if (--operator_users > 0)
        return;
    MPI_Op_free(&merge_op);
    MPI_Type_free(&element_type);
}

static void elements_pack(const struct paper_geometry *g, const struct kernels_partial *p, float *out)
{
    for (uint32_t h = 0; h < g->q_heads; h++, out += g->dim + 2) {
        out[0] = p->m[h];
        out[1] = p->s[h];
        memcpy(out + 2, p->o + (size_t)h * g->dim, g->dim * sizeof(float));
    }
}

static void elements_finish(struct paper_step *step)
{
    for (uint32_t h = 0; h < step->g->q_heads; h++) {
        struct kernels_partial p = element(step->elements + (size_t)h * (step->g->dim + 2), step->g->dim);
        kernels_partial_finish(&p, NULL, step->o + (size_t)h * step->g->dim, step->lse + h);
    }
}

static void tree_library_run(struct paper_step *step)
{
    struct kernels_partial own = view(step->g, step->partial);
    bool root = step->world->rank == 0;
    begin(step);
    elements_pack(step->g, &own, step->elements);
    MPI_Reduce(root ? MPI_IN_PLACE : step->elements, root ? step->elements : NULL, (int)step->g->q_heads,
               element_type, merge_op, 0, step->world->comm);
    if (root)
        elements_finish(step);
}

static void allreduce1_library_run(struct paper_step *step)
{
    struct kernels_partial own = view(step->g, step->partial);
    begin(step);
    elements_pack(step->g, &own, step->elements);
    MPI_Allreduce(MPI_IN_PLACE, step->elements, (int)step->g->q_heads, element_type, merge_op,
                  step->world->comm);
    elements_finish(step);
}

// ---- all-reduce by recursive doubling -------------------------------------------------------------------

// low = low op high; high's ranks follow low's.
typedef void reduce_op(const struct paper_geometry *g, float *low, const float *high, size_t n);

static void op_merge(const struct paper_geometry *g, float *low, const float *high, size_t n)
{
    struct kernels_partial a = view(g, low), b = view(g, (float *)(uintptr_t)high);
    (void)n;
    kernels_partial_merge(&a, &b);
}

static void op_sum(const struct paper_geometry *g, float *low, const float *high, size_t n)
{
    (void)g;
    for (size_t i = 0; i < n; i++)
        low[i] += high[i];
}

static void op_max(const struct paper_geometry *g, float *low, const float *high, size_t n)
{
    (void)g;
    for (size_t i = 0; i < n; i++)
        low[i] = low[i] > high[i] ? low[i] : high[i];
}

static void exchange(struct paper_world *world, const float *out, float *in, size_t n, uint32_t with)
{
    MPI_Request both[2];
    int count = 0;
    if (in)
        paper_irecv(world, in, n * 4, with, TAG_DOUBLING, &both[count++]);
    if (out)
        paper_isend(world, out, n * 4, with, TAG_DOUBLING, &both[count++]);
    paper_wait(both, count);
}

// data[n] becomes the reduction over all ranks. Of 2e ranks that are too many for a power of two the even
// ones hand theirs to the odd ones and are handed the result. Every exchange is between runs of ranks that
// follow each other, so the order of ranks is kept.
static void doubling(struct paper_step *step, float *data, size_t n, reduce_op *op)
{
    struct paper_world *world = step->world;
    uint32_t r = world->rank, whole = 1;
    while (whole <= world->size / 2)
        whole *= 2;
    uint32_t extra = world->size - whole;
    float *mine = data, *theirs = step->inbox;
    if (r < 2 * extra && r % 2 == 0) {
        exchange(world, data, NULL, n, r + 1);
        exchange(world, NULL, data, n, r + 1);
        return;
    }
    if (r < 2 * extra) {
        exchange(world, NULL, theirs, n, r - 1);
        op(step->g, theirs, mine, n);
        float *swap = mine;
        mine = theirs;
        theirs = swap;
    }
    uint32_t place = r < 2 * extra ? r / 2 : r - extra;
    for (uint32_t bit = 1; bit < whole; bit *= 2) {
        uint32_t other = place ^ bit;
        exchange(world, mine, theirs, n, other < extra ? 2 * other + 1 : other + extra);
        if (other > place) {
            op(step->g, mine, theirs, n);
            continue;
        }
        op(step->g, theirs, mine, n);
        float *swap = mine;
        mine = theirs;
        theirs = swap;
    }
    if (mine != data)
        memcpy(data, mine, n * sizeof *data);
    if (r < 2 * extra)
        exchange(world, data, NULL, n, r - 1);
}

static void allreduce1_run(struct paper_step *step)
{
    begin(step);
    doubling(step, step->partial, partial_floats(step->g), op_merge);
    finish(step, step->partial);
}

// ---- the paper's Algorithm 3 ----------------------------------------------------------------------------

static void reduce_by(struct paper_step *step, bool library, float *data, size_t n, reduce_op *op, MPI_Op mpi)
{
    if (library)
        MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_FLOAT, mpi, step->world->comm);
    else
        doubling(step, data, n, op);
}

static void algorithm3(struct paper_step *step, bool library)
{
    const struct paper_geometry *g = step->g;
    struct kernels_partial own = view(g, step->partial);
    float *n = step->elements, *d = n + (size_t)g->q_heads * g->dim, *m = d + g->q_heads, *lse = own.s;
    begin(step);
    kernels_partial_finish(&own, NULL, n, lse);
    memcpy(m, lse, g->q_heads * sizeof(float));
    reduce_by(step, library, m, g->q_heads, op_max, MPI_MAX);
    for (uint32_t h = 0; h < g->q_heads; h++) {
        d[h] = expf(lse[h] - m[h]);
        for (uint32_t i = 0; i < g->dim; i++)
            n[(size_t)h * g->dim + i] *= d[h];
    }
    reduce_by(step, library, n, (size_t)g->q_heads * g->dim, op_sum, MPI_SUM);
    reduce_by(step, library, d, g->q_heads, op_sum, MPI_SUM);
    for (uint32_t h = 0; h < g->q_heads; h++) {
        for (uint32_t i = 0; i < g->dim; i++)
            step->o[(size_t)h * g->dim + i] = n[(size_t)h * g->dim + i] / d[h];
        step->lse[h] = m[h] + logf(d[h]);
    }
}

static void allreduce3_run(struct paper_step *step)
{
    algorithm3(step, false);
}

static void allreduce3_library_run(struct paper_step *step)
{
    algorithm3(step, true);
}

// ---- gather ---------------------------------------------------------------------------------------------

static void gather_run(struct paper_step *step)
{
    struct paper_world *world = step->world;
    size_t n = partial_floats(step->g);
    MPI_Request requests[PAPER_RANKS_MOST];
    uint32_t p = world->size;
    for (uint32_t r = 1; world->rank == 0 && r < p; r++)
        paper_irecv(world, step->inbox + r * n, n * 4, r, TAG_PARTIAL, &requests[r - 1]);
    begin(step);
    if (world->rank > 0) {
        paper_isend(world, step->partial, n * 4, 0, TAG_PARTIAL, requests);
        paper_wait(requests, 1);
        return;
    }
    struct kernels_partial all = view(step->g, step->partial);
    for (uint32_t r = 1; r < p; r++) {
        struct kernels_partial from = view(step->g, step->inbox + r * n);
        paper_wait(&requests[r - 1], 1);
        kernels_partial_merge(&all, &from);
    }
    finish(step, step->partial);
}

const struct paper_algo paper_algos[] = {
    {.name = "tree", .form = PAPER_FORM_TREE, .run = tree_run},
    {.name = "tree-library",
     .form = PAPER_FORM_TREE_LIBRARY,
     .library = true,
     .init = operator_init,
     .run = tree_library_run,
     .fini = operator_fini},
    {.name = "gather", .form = PAPER_FORM_TREE, .run = gather_run},
    {.name = "allreduce1", .form = PAPER_FORM_ALLREDUCE, .run = allreduce1_run},
    {.name = "allreduce1-library",
     .form = PAPER_FORM_ALLREDUCE,
     .library = true,
     .init = operator_init,
     .run = allreduce1_library_run,
     .fini = operator_fini},
    {.name = "allreduce3", .form = PAPER_FORM_ALLREDUCE, .run = allreduce3_run},
    {.name = "allreduce3-library",
     .form = PAPER_FORM_ALLREDUCE,
     .library = true,
     .run = allreduce3_library_run},
    {0},
};
