// SPDX-License-Identifier: Apache-2.0
// The conformance suite over the engine `nccl`, a process a rank: this program starts itself for the others,
// rank 0 runs the tests. Arguments: the module, the number of processes; and what NCCL is
// (BANYAN_NCCL_LIBRARY) is in the environment. Exit code 77: there is no device.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reduce/module.h"
#include "tests/emulation/nccl/asked.h"
#include "tests/reduce/engine_conformance.h"
#include "tests/reduce/ranks.h"

#define SKIPPED   77
#define PROCESSES 7 // that the suite needs

extern char **environ;

static const struct reduce_module *load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct reduce_module *module = library ? dlsym(library, REDUCE_MODULE_SYMBOL) : NULL;
    if (!module)
        fprintf(stderr, "test_nccl_conformance: %s\n", dlerror());
    return module;
}

// What the engine has asked NCCL for, where it is the emulated one.
static int check_asked(void)
{
    const char *path = getenv("BANYAN_NCCL_LIBRARY");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void (*look)(struct emulated_nccl_asked_of *) = NULL;
    struct emulated_nccl_asked_of asked;
    if (library)
        *(void **)&look = dlsym(library, "emulated_nccl_asked");
    if (!look)
        return 0;
    look(&asked);
    if (asked.operations > 0 && asked.clustered == 0 && asked.late_operations == 0)
        return 0;
    fprintf(stderr,
            "test_nccl_conformance: of %u communicators %u launch clusters of blocks; of %u operations %u "
            "are not on "
            "a stream of the highest priority\n",
            asked.communicators, asked.clustered, asked.operations, asked.late_operations);
    return 1;
}

static int serve(const struct reduce_module *module, const char *path, uint32_t rank)
{
    struct reduce_module_group group;
    struct common_error err;
    const struct reduce_module_self self = {.worker = ranks_name(rank), .device = "cuda:0"};
    setenv("BANYAN_NCCL_SHARE_GPU", "1", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (module->join(&self, &group, &err) != COMMON_OK) {
        fprintf(stderr, "test_nccl_conformance: %s\n", err.message);
        return strstr(err.message, "no CUDA device") ? SKIPPED : 1;
    }
    int code;
    if (rank == 0) {
        ranks_processes_lead(path, (uint32_t)atoi(getenv("BANYAN_TEST_RANKS")));
        code = engine_conformance_run(module->ops, true);
        ranks_processes_dismiss();
        if (code == 0)
            code = check_asked();
    } else {
        code = ranks_processes_serve(path, rank, module->ops);
    }
    module->leave(code);
    return code;
}

static pid_t start_rank(char *program, char *module, char *n, const char *path, uint32_t rank)
{
    char number[16];
    char *argv[] = {program, module, n, (char *)path, number, NULL};
    pid_t pid;
    snprintf(number, sizeof number, "%u", rank);
    return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ) == 0 ? pid : -1;
}

int main(int argc, char **argv)
{
    if (argc < 3 || atoi(argv[2]) != PROCESSES) {
        fprintf(stderr,
                "usage: %s BANYAN-NCCL.SO %d\nThe suite makes plans of 1, 2, 3, 4 and %d of the processes.\n",
                argv[0], PROCESSES, PROCESSES);
        return 2;
    }
    const struct reduce_module *module = load(argv[1]);
    if (!module)
        return 1;
    if (argc == 5)
        return serve(module, argv[3], (uint32_t)atoi(argv[4]));
    char path[96];
    pid_t pids[PROCESSES] = {0};
    uint32_t n = (uint32_t)atoi(argv[2]);
    snprintf(path, sizeof path, "/tmp/banyan-nccl-ranks-%ld", (long)getpid());
    setenv("BANYAN_TEST_RANKS", argv[2], 1);
    for (uint32_t r = 1; r < n; r++) {
        pids[r] = start_rank(argv[0], argv[1], argv[2], path, r);
        if (pids[r] < 0)
            return 1;
    }
    int code = serve(module, path, 0);
    for (uint32_t r = 1; r < n; r++) {
        int status;
        if (code == SKIPPED)
            kill(pids[r], SIGKILL);
        if (waitpid(pids[r], &status, 0) == pids[r] && code == 0 && status != 0)
            code = 1;
    }
    return code;
}
