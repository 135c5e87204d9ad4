// SPDX-License-Identifier: Apache-2.0
// NCCL, found when an engine is asked for: a machine without it runs everything else.
#ifndef REDUCE_NCCL_LIBRARY_H
#define REDUCE_NCCL_LIBRARY_H

#include <nccl.h>

#include "common/base/status.h"

// Name without "nccl", result, parameters.
#define NCCL_FUNCTIONS(X)                                                                                    \
    X(GetVersion, ncclResult_t, (int *version))                                                              \
    X(GetUniqueId, ncclResult_t, (ncclUniqueId * id))                                                        \
    X(GetErrorString, const char *, (ncclResult_t result))                                                   \
    X(GetLastError, const char *, (ncclComm_t comm))                                                         \
    X(CommInitRankConfig, ncclResult_t,                                                                      \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))                       \
    X(CommGetAsyncError, ncclResult_t, (ncclComm_t comm, ncclResult_t * error))                              \
    X(CommAbort, ncclResult_t, (ncclComm_t comm))                                                            \
    X(Send, ncclResult_t,                                                                                    \
      (const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))     \
    X(Recv, ncclResult_t,                                                                                    \
      (void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))             \
    X(AllReduce, ncclResult_t,                                                                               \
      (const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,           \
       cudaStream_t stream))                                                                                 \
    X(GroupStart, ncclResult_t, (void))                                                                      \
    X(GroupEnd, ncclResult_t, (void))

struct nccl_library {
#define X(name, result, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(X)
#undef X
    int version; // 22809: 2.28.9
};

// Once, before any other thread uses it. BANYAN_NCCL_LIBRARY names another file than libnccl.so.2.
// FAILED_PRECONDITION: not found, or too old; the text says what to do.
enum common_code nccl_library_open(struct common_error *err);
extern struct nccl_library nccl; // after nccl_library_open

#endif
