// SPDX-License-Identifier: Apache-2.0
// From a process that mpirun or srun started to a member of a group, and back.
#ifndef REDUCE_MPI_LAUNCH_H
#define REDUCE_MPI_LAUNCH_H

#include <mpi.h>
#include <stdbool.h>

#include "common/base/status.h"

struct mpi_launch {
    MPI_Comm comm; // of our own; errors are returned
    int rank, size;
    char id[65];
    bool crowded;      // more ranks on this host than processors for them
    char (*names)[65]; // [size] of workers, by rank
};

// Blocks until all processes of the job are here. FAILED_PRECONDITION: no launcher, an MPI without
// MPI_THREAD_SERIALIZED, two workers of one name, processes of different builds. UNAVAILABLE: MPI's reason.
enum common_code mpi_launch_join(const char *worker, struct mpi_launch *out, struct common_error *err);

// Waits for the others to leave, too, for seven seconds at most; a process that has waited in vain, or whose
// MPI is `lost`, ends here.
void mpi_launch_leave(struct mpi_launch *launch, bool lost, int exit_code);

#endif
