// SPDX-License-Identifier: Apache-2.0
// As much of NCCL 2.28 as Banyan's modules use, for a machine without a GPU: libbanyan-emulated-nccl.so
// (tests/emulation/nccl/) runs it over shared memory between processes of one host, on streams of the
// emulated CUDA runtime. Names, values and meanings are NCCL's.
//
// As in NCCL, and easily missed:
// - Each group, and each call outside of a group, on a non-blocking communicator answers ncclInProgress and
//   is put on its stream by a thread of the library: nothing may be put behind it, and the communicator not
//   be called, before ncclCommGetAsyncError says ncclSuccess. A capture stays open until then.
// - ncclCommAbort and ncclCommDestroy wait until all graphs that captured from the communicator are
//   destroyed. Here they end the process after 10 s.
// - A peer that died, or never calls, leaves an operation unfinished forever; ncclCommAbort ends it.
// - Ranks of a non-blocking communicator connect within their first calls: until the peers have made theirs,
//   the state stays ncclInProgress, forever if a peer never does.
// - A communicator takes memory of the device. Forming and ending one frees some, which waits for all that is
//   on streams (shim/cuda_runtime.h), operations of other communicators included.
// - From the environment, over the configuration or against the caller: NCCL_COMM_BLOCKING,
//   NCCL_LAUNCH_ORDER_IMPLICIT (operations of a second thread are invalid usage), NCCL_COMM_ID (here: no id).
//
// What NCCL punishes with wrong numbers, hangs or crashes ends the process here, with a sentence: a handle
// used after its end; two threads at once in calls on one communicator; ranks whose calls do not match;
// buffers that are not the device's, or pinned.
//
// Faults on request, from the environment at the first call. Operations are counted when they start, each
// communicator's for itself, a group as one, each launch of a graph again. A fault comes once a process, in
// the communicator that first gets so far: how many were given up before, and when, does not move it.
//     BANYAN_EMULATED_NCCL_INIT_FAILS=1     each init ends with ncclSystemError
//     BANYAN_EMULATED_NCCL_SLOW_INIT_MS=n   each init takes that much longer
//     BANYAN_EMULATED_NCCL_CONNECT_STOPS=1  the first call that has to connect never does, once a process
//     BANYAN_EMULATED_NCCL_MEMORY=n         bytes of the device that a communicator takes (4 MiB)
//     BANYAN_EMULATED_NCCL_HANG=n           the n-th operation (from 1) neither sends nor receives, forever
//     BANYAN_EMULATED_NCCL_CORRUPT=n        the n-th operation sends wrong bytes; if it sends nothing, it
//                                           delivers wrong bytes
#pragma once

#include <limits.h>
#include <stddef.h>

#include <cuda_runtime.h>

#define NCCL_MAJOR            2
#define NCCL_MINOR            28
#define NCCL_PATCH            9
#define NCCL_VERSION_CODE     22809
#define NCCL_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define NCCL_UNIQUE_ID_BYTES  128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8
} ncclResult_t;

typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9
} ncclDataType_t;

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                              \
    {                                                                                                        \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,   \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,      \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,      \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT       \
    }

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
// Reductions: of float, sum, max and min. A sum's order is a binary tree over the ranks, the same on each.
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
