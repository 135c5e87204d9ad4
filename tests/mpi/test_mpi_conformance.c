// SPDX-License-Identifier: Apache-2.0
// The conformance suite over the engine `mpi`: mpirun starts this program once a rank, rank 0 runs the tests.
// Argument: path of banyan-mpi.so.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "reduce/module.h"
#include "tests/reduce/engine_conformance.h"
#include "tests/reduce/ranks.h"

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    struct reduce_module_group group;
    struct common_error err;
    char path[96];
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct reduce_module *module = library ? dlsym(library, REDUCE_MODULE_SYMBOL) : NULL;
    if (!module || !rank || atoi(rank) >= RANKS_MAX) {
        fprintf(stderr, "test_mpi_conformance: mpirun -n 7 %s BANYAN-MPI.SO: %s\n", argv[0],
                library ? "not under mpirun" : dlerror());
        return 2;
    }
    const struct reduce_module_self self = {.worker = ranks_name((uint32_t)atoi(rank))};
    if (module->join(&self, &group, &err) != COMMON_OK) {
        fprintf(stderr, "test_mpi_conformance: %s\n", err.message);
        return 1;
    }
    snprintf(path, sizeof path, "/tmp/banyan-ranks-%s", group.id);
    int code;
    if (group.rank == 0) {
        ranks_processes_lead(path, group.size);
        code = engine_conformance_run(module->ops, false);
        ranks_processes_dismiss();
    } else {
        code = ranks_processes_serve(path, group.rank, module->ops);
    }
    module->leave(code);
    return code;
}
