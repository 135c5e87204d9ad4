// SPDX-License-Identifier: Apache-2.0
#include "research/paper_measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "research/paper_shard.h"

#define REST_NS        (2 * COMMON_NS_PER_MS)
#define LONG_ENOUGH_NS (10 * COMMON_NS_PER_S) // a first call above it is a sample, too: it was checked

bool paper_measure_exact(struct paper_step *step, struct paper_exact *exact)
{
    struct paper_world *world = step->world;
    const struct paper_geometry *g = step->g;
    struct paper_exact own;
    int n_o = (int)(g->q_heads * g->dim), n_rows = (int)(g->q_heads * sizeof *own.rows);
    uint64_t first = step->first[world->rank], tokens = step->tokens[world->rank];
    void *kv = paper_kv_alloc(paper_shard_bytes(g, tokens));
    if (!kv || !paper_exact_init(exact, g) || !paper_exact_init(&own, g))
        return false;
    paper_data_query(g, step->q);
    paper_shard_fill(g, kv, first, tokens);
    paper_reference(g, kv, first, tokens, step->total, step->q, own.o, own.rows);
    paper_kv_free(kv);
    paper_barrier(world); // one that finishes early leaves the cores to the others
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

bool paper_is_ring(const struct paper_algo *algo)
{
    return algo->form == PAPER_FORM_RING || algo->form == PAPER_FORM_RING_LEAN;
}

// One step; microseconds on rank 0 from q there to o there. All but the ring wait for q, so the others may
// first come to rest: what they still have to do in the barrier is no part of the step.
static double run_once(struct paper_step *step, const struct paper_algo *algo)
{
    size_t q = (size_t)step->g->q_heads * step->g->dim;
    if (step->world->rank > 0) // they must be notified
        memset(step->q, 0xff, q * sizeof(float));
    memset(step->o, 0xff, q * sizeof(float));
    paper_barrier(step->world);
    if (step->world->rank == 0 && !paper_is_ring(algo))
        nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
    uint64_t start = common_clock_ns();
    step->local->staged_bytes = step->local->staged_ns = 0;
    algo->run(step);
    return (double)(common_clock_ns() - start) / 1e3;
}

static void add_sample(const struct paper_step *step, struct paper_result *result, double us)
{
    result->samples[result->n++] = us;
    result->staging_us += (double)step->local->staged_ns / 1e3;
}

static void worst(struct paper_error *most, struct paper_error e)
{
    most->rel = fmax(most->rel, e.rel);
    most->bound = fmax(most->bound, e.bound);
}

static void sum_bytes(struct paper_step *step, const struct paper_algo *algo, uint64_t socket, uint64_t wire,
                      struct paper_result *result)
{
    struct paper_world *world = step->world;
    double own[4] = {algo->library ? (double)socket : (double)world->sent, (double)socket, (double)wire,
                     (double)step->local->staged_bytes},
           all[4];
    MPI_Reduce(own, all, 4, MPI_DOUBLE, MPI_SUM, 0, world->comm);
    MPI_Reduce(own, &result->sent_most, 1, MPI_DOUBLE, MPI_MAX, 0, world->comm);
    result->sent = all[0] / world->size;
    result->socket = all[1] / world->size;
    result->wire = all[2] / world->size;
    result->staged = all[3] / world->size;
}

static void tell_wrong(const struct paper_algo *algo, const struct paper_result *result)
{
    fprintf(stderr, "paper: %s is wrong: %.3g of what the reference allows\n", algo->name,
            result->error.bound);
}

bool paper_measure_begin(struct paper_step *step, const struct paper_algo *algo,
                         const struct paper_exact *exact, const struct paper_limits *limits,
                         struct paper_result *result)
{
    struct paper_world *world = step->world;
    bool root = world->rank == 0;
    *result = (struct paper_result){0};
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
        plan[1] = fmax(1, fmin((double)limits->rounds, (double)limits->seconds * 1e6 / us));
        if (us * 1e3 > LONG_ENOUGH_NS) {
            add_sample(step, result, us);
            plan[1] -= 1;
        }
    }
    MPI_Bcast(plan, 2, MPI_DOUBLE, 0, world->comm);
    result->rounds = (uint32_t)plan[1];
    if (root && plan[0] <= 0)
        tell_wrong(algo, result);
    return plan[0] > 0;
}

void paper_measure_sample(struct paper_step *step, const struct paper_algo *algo,
                          const struct paper_exact *exact, struct paper_result *result)
{
    double us = run_once(step, algo);
    if (step->world->rank == 0) {
        add_sample(step, result, us);
        worst(&result->error, paper_check(exact, step->g, step->o, step->lse));
    }
}

bool paper_measure_end(struct paper_step *step, const struct paper_algo *algo, bool floors,
                       struct paper_result *result)
{
    struct paper_world *world = step->world;
    bool root = world->rank == 0;
    paper_barrier(world);
    result->kv_peak = paper_kv_peak();
    MPI_Allreduce(MPI_IN_PLACE, &result->kv_peak, 1, MPI_UINT64_T, MPI_MAX, world->comm);
    int fine = root ? result->error.bound <= 1 : 1;
    MPI_Bcast(&fine, 1, MPI_INT, 0, world->comm);
    if (paper_is_ring(algo) && floors && fine)
        paper_ring_floor(step, algo->form == PAPER_FORM_RING_LEAN, &result->floor);
    if (algo->fini)
        algo->fini(step);
    if (!fine && root)
        tell_wrong(algo, result);
    return fine;
}
