// SPDX-License-Identifier: Apache-2.0
// The seam to an engine in a loadable module (banyan-mpi.so, banyan-nccl.so): how the worker opens it, and
// how its process becomes a member of a group whose collectives the engine uses.
//
//     worker --engine NAME
//        ──dlopen, dlsym(REDUCE_MODULE_SYMBOL)──▶ struct reduce_module ──join()──▶ a group
//        ──Register{engine, algorithm, group, rank, size}──▶ coordinator ──PlanInstall{engine}──▶ ops->open
//
// The symbol is a `const struct reduce_module`. The opener of the module compares abi and size before
// anything else, and never unloads it. A module takes the functions of common/, proto/, kernels/partial.h and
// reduce/ from the program that opens it (which exports them), so both are of one build: `build` is compared,
// too.
//
// All functions are called by the worker's loop thread; before the loop runs, by the thread that will run it.
#ifndef REDUCE_MODULE_H
#define REDUCE_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "reduce/engine.h"

#define REDUCE_MODULE_ABI    2u
#define REDUCE_MODULE_SYMBOL "reduce_engine_module_2" // a const struct reduce_module
#define REDUCE_MODULE_BUILD  __VERSION__ "/" BANYAN_VERSION

// The group that this process is a member of: what the worker sends the coordinator when it registers. The
// coordinator gives a plan this engine where all its members are of one group that is whole.
struct reduce_module_group {
    char id[65];        // another one each time that the group is formed; equal on all its members
    char algorithm[33]; // names what decides the order of merging, equal on all members: in the plan digest
    uint32_t rank;      // < size
    // Members; the group is whole while all are ACTIVE. 0: any of its members may make a plan, and the engine
    // forms what it needs when the plan is opened.
    uint32_t size;
};

// Who asks.
struct reduce_module_self {
    const char *worker; // the name that plans will know this process by
    const char *device; // where it computes, "cuda:0"; NULL: on the processor
};

struct reduce_module {
    uint32_t abi;      // REDUCE_MODULE_ABI
    uint32_t size;     // sizeof(struct reduce_module)
    const char *build; // REDUCE_MODULE_BUILD
    const struct reduce_engine_ops *ops;

    // Once, before the loop runs; may block until the other members do the same. FAILED_PRECONDITION: the
    // process was not started as the engine needs it, the library or its driver is missing; the text says
    // what to do. UNAVAILABLE: the group could not be formed.
    enum common_code (*join)(const struct reduce_module_self *self, struct reduce_module_group *out,
                             struct common_error *err);
    // Whether the engine has failed for good in this process, and why: heartbeats tell the coordinator, which
    // falls back to `stream`. Cheap. From then on open fails with FAILED_PRECONDITION.
    bool (*lost)(struct common_error *err);
    // After the last group is closed and the loop has ended. May wait for the other members for a few
    // seconds; may be the last thing that the process does.
    void (*leave)(int exit_code);
};

#endif
