// SPDX-License-Identifier: Apache-2.0
// Requests in progress, side by side as MPI_Testsome takes them.
#ifndef REDUCE_MPI_REQUESTS_H
#define REDUCE_MPI_REQUESTS_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

struct mpi_requests {
    MPI_Request *requests; // [cap], the first n in use
    void **items;          // [cap] what each is of
    MPI_Status *statuses;  // [cap] of the last test
    int *done;             // [cap] indices that the last test found completed
    int n, cap;
};

bool mpi_requests_reserve(struct mpi_requests *all);                              // room for one more
void mpi_requests_add(struct mpi_requests *all, MPI_Request request, void *item); // after reserve
int mpi_requests_find(const struct mpi_requests *all, const void *item);          // −1: it is not there

// Takes out what is completed and calls `ended` for each, which may not touch `all`. Returns MPI's code.
int mpi_requests_test(struct mpi_requests *all, void (*ended)(void *item, const MPI_Status *status));

#endif
