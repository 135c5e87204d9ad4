// SPDX-License-Identifier: Apache-2.0
#include "research/paper_world.h"

#include <dirent.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include "common/base/clock.h"

#define SPIN_NS      (60 * COMMON_NS_PER_US)
#define SLEEP_MOST   (400 * COMMON_NS_PER_US)
#define BULK_SLEEP   (150 * COMMON_NS_PER_US)
#define SOCKETS_MOST 2048u
#define BLOCK        64u
#define PLAIN_MOST   ((size_t)1 << 30)
#define TAG_BARRIER  1000

static MPI_Datatype block_type = MPI_DATATYPE_NULL;

void paper_world_settings(void)
{
    // Recursive doubling for every all-reduce, so that one formula holds for all sizes; linear gather.
    setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0);
    setenv("OMPI_MCA_coll_tuned_allreduce_algorithm", "3", 0);
    setenv("OMPI_MCA_coll_tuned_gather_algorithm", "1", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

void paper_world_init(struct paper_world *world, uint32_t per_node)
{
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    *world = (struct paper_world){.comm = MPI_COMM_WORLD,
                                  .rank = (uint32_t)rank,
                                  .size = (uint32_t)size,
                                  .per_node = per_node ? per_node : (uint32_t)size};
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    world->neighbour = (uint32_t)rank;
    MPI_Type_contiguous(BLOCK, MPI_BYTE, &block_type);
    MPI_Type_commit(&block_type);
    prctl(PR_SET_TIMERSLACK, 1000);
}

void paper_isend(struct paper_world *world, const void *data, size_t bytes, uint32_t to, int tag,
                 MPI_Request *out)
{
    world->sent += bytes;
    if (bytes < PLAIN_MOST)
        MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, tag, world->comm, out);
    else
        MPI_Isend(data, (int)(bytes / BLOCK), block_type, (int)to, tag, world->comm, out);
}

void paper_irecv(struct paper_world *world, void *data, size_t bytes, uint32_t from, int tag,
                 MPI_Request *out)
{
    if (bytes < PLAIN_MOST)
        MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)from, tag, world->comm, out);
    else
        MPI_Irecv(data, (int)(bytes / BLOCK), block_type, (int)from, tag, world->comm, out);
}

bool paper_test(MPI_Request *requests, int n)
{
    int done = 0;
    MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE);
    return done;
}

// One by one: MPI_Test looks again after it made progress, MPI_Testall does not, and who sleeps upon what was
// seen before may sleep on a message that is there.
static bool next_done(MPI_Request *requests, int n, int *at)
{
    for (int done = 1; *at < n; ++*at) {
        MPI_Test(&requests[*at], &done, MPI_STATUS_IGNORE);
        if (!done)
            return false;
    }
    return true;
}

// The process's tcp sockets, to sleep on: the library itself only polls. Descriptors are looked up again by
// paper_sockets_find, so one that was closed since then is at worst a wake-up too many.
static struct pollfd sockets[SOCKETS_MOST];
static nfds_t n_sockets;

void paper_sockets_find(void)
{
    n_sockets = 0;
    DIR *dir = opendir("/proc/self/fd");
    // cppcheck-suppress readdirCalled ; nothing else reads this folder
    for (struct dirent *entry; dir && (entry = readdir(dir)) && n_sockets < SOCKETS_MOST;) {
        struct tcp_info info = {0};
        socklen_t len = sizeof info;
        int fd = atoi(entry->d_name);
        if (fd > 2 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == 1)
            sockets[n_sockets++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    if (dir)
        closedir(dir);
}

static void sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_nsec = (long)ns};
    nanosleep(&t, NULL);
}

void paper_wait(MPI_Request *requests, int n)
{
    uint64_t start = 0;
    int at = 0;
    while (!next_done(requests, n, &at)) {
        if (n_sockets > 0) {
            const struct timespec most = {.tv_nsec = (long)COMMON_NS_PER_MS};
            ppoll(sockets, n_sockets, &most, NULL);
            continue;
        }
        uint64_t now = common_clock_ns();
        start = start ? start : now;
        if (now - start < SPIN_NS)
            sched_yield();
        else
            sleep_ns((now - start) / 16 < SLEEP_MOST ? (now - start) / 16 : SLEEP_MOST);
    }
}

void paper_wait_bulk(MPI_Request *requests, int n)
{
    int at = 0;
    while (!next_done(requests, n, &at)) {
        if (n_sockets > 0)
            sleep_ns(BULK_SLEEP);
        else
            sched_yield();
    }
}

void paper_barrier(struct paper_world *world)
{
    MPI_Request requests[2];
    uint64_t sent = world->sent;
    for (uint32_t step = 1; step < world->size; step *= 2) {
        paper_irecv(world, NULL, 0, (world->rank + world->size - step) % world->size, TAG_BARRIER,
                    &requests[0]);
        paper_isend(world, NULL, 0, (world->rank + step) % world->size, TAG_BARRIER, &requests[1]);
        paper_wait(requests, 2);
    }
    world->sent = sent;
}

uint32_t paper_tree(uint32_t rank, uint32_t size, uint32_t *parent, uint32_t *children)
{
    uint32_t low = rank & (0u - rank), n = 0; // lowest bit set: the size of the subtree
    *parent = rank - low;
    for (uint32_t bit = 1; (rank == 0 || bit < low) && rank + bit < size; bit *= 2)
        children[n++] = rank + bit;
    return n;
}

uint64_t paper_socket_bytes(void)
{
    uint64_t total = 0;
    DIR *dir = opendir("/proc/self/fd");
    // cppcheck-suppress readdirCalled ; nothing else reads this folder
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct tcp_info info = {0};
        socklen_t len = sizeof info;
        int fd = atoi(entry->d_name);
        if (fd > 2 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
            total += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    }
    if (dir)
        closedir(dir);
    return total;
}

uint64_t paper_wire_bytes(void)
{
    char line[512], name[64];
    uint64_t total = 0, sent;
    FILE *file = fopen("/proc/self/net/dev", "r");
    while (file && fgets(line, sizeof line, file)) {
        // "eth0: rx bytes packets errs drop fifo frame compressed multicast tx bytes ..."
        if (sscanf(line, " %63[^:]: %*u %*u %*u %*u %*u %*u %*u %*u %" SCNu64, name, &sent) == 2 &&
            strcmp(name, "lo") != 0)
            total += sent;
    }
    if (file)
        fclose(file);
    return total;
}
