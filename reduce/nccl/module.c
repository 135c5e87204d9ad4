// SPDX-License-Identifier: Apache-2.0
// The engine `nccl`: steps' partials as operations of an NCCL communicator of the plan's members.
#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "reduce/module.h"
#include "reduce/nccl/group.h"
#include "reduce/nccl/library.h"

#define LEAVE_NS (5 * COMMON_NS_PER_S)

static enum common_code set_algorithm(const char **name, struct common_error *err)
{
    static const char *const names[] = {"gather", "sum", "auto"};
    const char *wanted = getenv("BANYAN_NCCL_ALGORITHM");
    for (int i = 0; i < 3; i++) {
        if (strcmp(wanted && *wanted ? wanted : names[0], names[i]) == 0) {
            nccl_setting.algorithm = (enum nccl_algorithm)i;
            *name = names[i];
            return COMMON_OK;
        }
    }
    return common_error_set(err, COMMON_FAILED_PRECONDITION, "BANYAN_NCCL_ALGORITHM is gather, sum or auto");
}

static enum common_code set_patience(struct common_error *err)
{
    const char *text = getenv("BANYAN_NCCL_PATIENCE_MS");
    char *end;
    if (!text || !*text)
        return COMMON_OK;
    unsigned long long ms = strtoull(text, &end, 10);
    if (*end || ms < 10 || ms > 3600000)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "BANYAN_NCCL_PATIENCE_MS is 10 to 3600000 milliseconds");
    nccl_setting.patience_ns = ms * COMMON_NS_PER_MS;
    return COMMON_OK;
}

// What users set for other programs, and this one cannot work with.
static void claim_environment(void)
{
    static const struct {
        const char *name, *value, *why;
    } ours[] = {
        {"NCCL_LAUNCH_ORDER_IMPLICIT", "0", "operations come from a thread a plan, which NCCL would refuse"},
        {"NCCL_COMM_BLOCKING", "0", "a call that waits for a peer that is gone could not be aborted"},
        {"NCCL_GRAPH_MIXING_SUPPORT", "1", "an operation may come as a graph or not"},
        {"NCCL_COMM_ID", NULL, "each communicator has its own"},
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        const char *is = getenv(ours[i].name);
        if (is && (!ours[i].value || strcmp(is, ours[i].value) != 0))
            common_log_warn("nccl: %s=%.40s is set to %s here: %s", ours[i].name, is,
                            ours[i].value ? ours[i].value : "nothing", ours[i].why);
        if (ours[i].value)
            setenv(ours[i].name, ours[i].value, 1); // or NCCL's configuration files say otherwise
        else
            unsetenv(ours[i].name);
    }
}

// Both ends of a connection choose by these what they send and expect: where they differ, operations hang.
static uint64_t settings_hash(void)
{
    static const char *const names[] = {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_NTHREADS",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_MIN_CTAS",
        "NCCL_LL128_NTHREADS",
        "NCCL_MAX_CTAS",
        "NCCL_P2P_LL_THRESHOLD",
        "NCCL_NET",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_LEVEL",
        "NCCL_P2P_PCI_CHUNKSIZE",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_SHM_DISABLE",
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_PXN_DISABLE",
        "NCCL_MAX_P2P_NCHANNELS",
        "NCCL_NVLS_ENABLE",
        "NCCL_NCHANNELS_PER_NET_PEER",
        "NCCL_CUMEM_ENABLE",
        "NCCL_P2P_SCHEDULE_GROUP_SIZE",
        "NCCL_PAT_ENABLE",
        "NCCL_GRAPH_REGISTER",
        "NCCL_RUNTIME_CONNECT",
        "NCCL_P2P_DIRECT_DISABLE",
        "NCCL_CHUNK_SIZE",
    };
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            hash = common_xxh3(value, strlen(value), common_mix64(hash ^ (i + 1)));
    }
    return hash;
}

// NCCL reads these once. What is set already stays.
static void set_environment(const char *worker)
{
    const char *share = getenv("BANYAN_NCCL_SHARE_GPU");
    if (share && strcmp(share, "1") == 0)
        setenv("NCCL_HOSTID", worker,
               0); // several ranks may use one device where they seem to be on several hosts
    // Sums of all-reduce in the order of its tree: the same bits each time
    setenv("NCCL_ALGO", nccl.version >= 22400 ? "allreduce:tree" : "Tree", 0);
    setenv("NCCL_RAS_ENABLE", "0", 0); // a listener that was not requested
    // Buffers of a graph would be made known to the peers, who must take part in that, for nothing at these
    // sizes
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

static enum common_code check_device(const struct reduce_module_self *self, struct common_error *err)
{
    int count = 0;
    unsigned index;
    if (!self->device || sscanf(self->device, "cuda:%u", &index) != 1)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the engine nccl needs a CUDA device, and this worker computes on %.32s: "
                                "start it with --device cuda:N, or another engine",
                                self->device ? self->device : "the processor");
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || index >= (unsigned)count) {
        (void)cudaGetLastError();
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "no CUDA device %u for NCCL: %s", index,
                                error == cudaSuccess ? "there are fewer" : cudaGetErrorString(error));
    }
    nccl_setting.device = index;
    return COMMON_OK;
}

static enum common_code module_join(const struct reduce_module_self *self, struct reduce_module_group *out,
                                    struct common_error *err)
{
    const char *algorithm = "";
    claim_environment();
    enum common_code code = nccl_library_open(err);
    if (code == COMMON_OK)
        code = check_device(self, err);
    if (code == COMMON_OK)
        code = set_algorithm(&algorithm, err);
    if (code == COMMON_OK)
        code = set_patience(err);
    if (code != COMMON_OK)
        return code;
    set_environment(self->worker);
    // Any workers with the same library, algorithm and settings may make a plan; its communicator is formed
    // with the first steps.
    *out = (struct reduce_module_group){.size = 0};
    const char *by = nccl_setting.algorithm == NCCL_ALGORITHM_GATHER ? "" : getenv("NCCL_ALGO");
    snprintf(out->algorithm, sizeof out->algorithm, "%s-1%s%.20s", algorithm, *by ? "-" : "", by);
    snprintf(out->id, sizeof out->id, "nccl-%d-%s-%08x", nccl.version, out->algorithm,
             (unsigned)settings_hash());
    nccl_engine.repeatable = nccl_setting.algorithm == NCCL_ALGORITHM_GATHER;
    return COMMON_OK;
}

static void module_leave(int exit_code)
{
    if (nccl_comm_drain(LEAVE_NS))
        return;
    common_log_warn("nccl: a communicator does not finish: leaving without it");
    _exit(exit_code); // its thread is inside CUDA, which what runs at exit takes down
}

extern const struct reduce_module reduce_engine_module_2;
__attribute__((visibility("default"))) const struct reduce_module reduce_engine_module_2 = {
    .abi = REDUCE_MODULE_ABI,
    .size = sizeof(struct reduce_module),
    .build = REDUCE_MODULE_BUILD,
    .ops = &nccl_engine,
    .join = module_join,
    .lost = nccl_engine_lost,
    .leave = module_leave,
};
