// SPDX-License-Identifier: Apache-2.0
// This process among those that mpirun or srun started with it, and the messages between them. One a process:
// an MPI library is. After mpi_world_join everything is the loop thread's, and nothing here waits for another
// process; MPI is entered from this thread alone (MPI_THREAD_SERIALIZED).
//
// When MPI is looked at. With nothing under way, and while others still compute: never, and nothing burns.
// When a child has said on its edge that its result is on its way: at once, in every turn of the loop for a
// short while, then once a millisecond. When a rank has nothing left to do but to take results, and the host
// has a processor for each rank: in every turn of the loop for a short while.
#ifndef REDUCE_MPI_WORLD_H
#define REDUCE_MPI_WORLD_H

#include "common/loop/loop.h"
#include "reduce/carrier.h"
#include "reduce/module.h"

enum common_code mpi_world_join(const char *worker, struct reduce_module_group *out,
                                struct common_error *err);
bool mpi_world_lost(struct common_error *err);
void mpi_world_leave(int exit_code);

int mpi_world_rank_of(const char *worker); // −1: it is not of this group

// Groups of the engine: the first one gives the loop on which MPI is looked at. RESOURCE_EXHAUSTED.
enum common_code mpi_world_acquire(struct common_loop *loop);
void mpi_world_release(void);

struct mpi_expected { // a result
    const struct proto_step *step;
    int source; // MPI rank
    size_t bytes;
    uint32_t traces;
    proto_step_done_fn arrived; // as in reduce/carrier.h
    void *arg;
};
enum common_code mpi_world_expect(const struct mpi_expected *what, struct reduce_parcel **out,
                                  struct common_error *err);
void mpi_world_forget(struct reduce_parcel *parcel);
void mpi_world_look(void);
void mpi_world_ring(struct reduce_parcel *parcel);
enum common_code mpi_world_send(const struct proto_step *step, int to, const struct proto_step_result *result,
                                const struct common_blob *partials, struct common_error *err);

#endif
