// SPDX-License-Identifier: Apache-2.0
#include "reduce/mpi/launch.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "reduce/module.h"
#include "reduce/mpi/message.h"

#define LEAVE_S 7 // longer than a worker drains

struct card { // what each process says of itself
    char name[65], build[63];
    uint32_t version;
};

// Defaults for an MPI that shares its cores with computation and sends messages of one step; what mpirun or
// the environment say wins. Measured in reduce/mpi/README.md.
static void set_defaults(void)
{
    static const char *const defaults[][2] = {
        {"OMPI_MCA_mpi_yield_when_idle", "1"},         // ranks share cores: 26 us in place of 32 ms
        {"OMPI_MCA_btl_vader_eager_limit", "65536"},   // no handshake below: a sender need not stay awake
        {"OMPI_MCA_btl_vader_max_send_size", "65536"}, // at least as much
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        setenv(defaults[i][0], defaults[i][1], 0);
}

static bool launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return true;
    return false;
}

static enum common_code mpi_failed(int code, const char *what, struct common_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    MPI_Error_string(code, text, &len);
    return common_error_set(err, COMMON_UNAVAILABLE, "%s failed: %.200s", what, text);
}

static bool is_crowded(MPI_Comm comm)
{
    MPI_Comm host;
    cpu_set_t processors;
    int ranks = 1;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) != MPI_SUCCESS)
        return true;
    MPI_Comm_size(host, &ranks);
    MPI_Comm_free(&host);
    return sched_getaffinity(0, sizeof processors, &processors) != 0 || ranks > CPU_COUNT(&processors);
}

static enum common_code ranks_meet(const char *worker, struct mpi_launch *out, struct common_error *err)
{
    struct card own = {.version = MPI_MESSAGE_VERSION}, *cards;
    uint64_t id[2] = {0};
    int code;
    snprintf(own.name, sizeof own.name, "%s", worker);
    snprintf(own.build, sizeof own.build, "%s", REDUCE_MODULE_BUILD);
    if ((code = MPI_Comm_dup(MPI_COMM_WORLD, &out->comm)) != MPI_SUCCESS)
        return mpi_failed(code, "MPI_Comm_dup", err);
    MPI_Comm_set_errhandler(out->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(out->comm, &out->rank);
    MPI_Comm_size(out->comm, &out->size);
    out->crowded = is_crowded(out->comm);
    cards = calloc((size_t)out->size, sizeof *cards);
    out->names = calloc((size_t)out->size, sizeof *out->names);
    if (!cards || !out->names) {
        free(cards);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a group");
    }
    if (!common_random(id, sizeof id)) // rank 0's counts
        memset(id, 0, sizeof id);      // and if it has none, all ranks see that
    code = MPI_Bcast(id, sizeof id, MPI_BYTE, 0, out->comm);
    if (code == MPI_SUCCESS)
        code = MPI_Allgather(&own, sizeof own, MPI_BYTE, cards, sizeof own, MPI_BYTE, out->comm);
    enum common_code result = code == MPI_SUCCESS ? COMMON_OK : mpi_failed(code, "MPI_Allgather", err);
    if (result == COMMON_OK && id[0] == 0 && id[1] == 0)
        result = common_error_set(err, COMMON_UNAVAILABLE, "rank 0 cannot get random bytes for an id");
    snprintf(out->id, sizeof out->id, "%016llx%016llx", (unsigned long long)id[0], (unsigned long long)id[1]);
    for (int i = 0; i < out->size && result == COMMON_OK; i++) {
        memcpy(out->names[i], cards[i].name, sizeof out->names[i]);
        if (cards[i].version != own.version || strcmp(cards[i].build, own.build) != 0)
            result =
                common_error_set(err, COMMON_FAILED_PRECONDITION,
                                 "the workers of ranks %d and %d come from different builds", i, out->rank);
        for (int k = 0; k < i && result == COMMON_OK; k++)
            if (strcmp(out->names[i], out->names[k]) == 0)
                result = common_error_set(err, COMMON_FAILED_PRECONDITION,
                                          "ranks %d and %d have the same name '%s': leave --name out, or "
                                          "give each its own",
                                          k, i, out->names[i]);
    }
    free(cards);
    return result;
}

enum common_code mpi_launch_join(const char *worker, struct mpi_launch *out, struct common_error *err)
{
    int provided = MPI_THREAD_SINGLE;
    if (!launched())
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "--engine mpi is for workers started by mpirun or srun, for example: mpirun -n 4 "
            "--bind-to none banyan-worker --engine mpi --coordinator ENDPOINT");
    set_defaults();
    // The library's own plug-ins look for its symbols among the global ones.
    // cppcheck-suppress leakReturnValNotUsed ; it stays
    dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (code != MPI_SUCCESS)
        return common_error_set(err, COMMON_UNAVAILABLE, "MPI_Init_thread failed with code %d", code);
    if (provided < MPI_THREAD_SERIALIZED)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "this MPI library has no MPI_THREAD_SERIALIZED");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return ranks_meet(worker, out, err);
}

static void *lose_patience(void *arg)
{
    const int *exit_code = arg;
    sleep(LEAVE_S);
    _exit(*exit_code);
    return NULL;
}

void mpi_launch_leave(struct mpi_launch *launch, bool lost, int exit_code)
{
    static int code;
    pthread_t watchdog;
    code = exit_code;
    fflush(NULL);
    if (lost || pthread_create(&watchdog, NULL, lose_patience, &code) != 0)
        _exit(exit_code); // MPI_Finalize waits for everybody
    pthread_detach(watchdog);
    free(launch->names);
    launch->names = NULL;
    MPI_Finalize();
}
