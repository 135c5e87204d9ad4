// SPDX-License-Identifier: Apache-2.0
#include "reduce/mpi/requests.h"

#include <limits.h>
#include <stdlib.h>

// One array after the other grows; n does not pass the smallest.
bool mpi_requests_reserve(struct mpi_requests *all)
{
    if (all->n < all->cap)
        return true;
    if (all->cap > INT_MAX / 64)
        return false;
    int cap = all->cap ? 2 * all->cap : 16;
    void *requests = realloc(all->requests, (size_t)cap * sizeof(MPI_Request));
    if (requests)
        all->requests = requests;
    void *items = realloc(all->items, (size_t)cap * sizeof(void *));
    if (items)
        all->items = items;
    void *statuses = realloc(all->statuses, (size_t)cap * sizeof(MPI_Status));
    if (statuses)
        all->statuses = statuses;
    void *done = realloc(all->done, (size_t)cap * sizeof(int));
    if (done)
        all->done = done;
    if (!requests || !items || !statuses || !done)
        return false;
    all->cap = cap;
    return true;
}

void mpi_requests_add(struct mpi_requests *all, MPI_Request request, void *item)
{
    all->requests[all->n] = request;
    all->items[all->n++] = item;
}

int mpi_requests_find(const struct mpi_requests *all, const void *item)
{
    for (int i = 0; i < all->n; i++)
        if (all->items[i] == item)
            return i;
    return -1;
}

int mpi_requests_test(struct mpi_requests *all, void (*ended)(void *item, const MPI_Status *status))
{
    int count = 0;
    if (all->n == 0)
        return MPI_SUCCESS;
    int code = MPI_Testsome(all->n, all->requests, &count, all->done, all->statuses);
    if (code != MPI_SUCCESS || count == MPI_UNDEFINED || count == 0)
        return code;
    for (int i = 0; i < count; i++)
        ended(all->items[all->done[i]], &all->statuses[i]);
    int kept = 0;
    for (int i = 0; i < all->n; i++) {
        if (all->requests[i] == MPI_REQUEST_NULL)
            continue;
        all->requests[kept] = all->requests[i];
        all->items[kept++] = all->items[i];
    }
    all->n = kept;
    return MPI_SUCCESS;
}
