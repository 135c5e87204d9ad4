// SPDX-License-Identifier: Apache-2.0
// Where a worker's threads run and where its memory lies: what the process may use of the machine (affinity
// and cgroup), seen through hwloc, and a choice made from that at start.
//
//     one NUMA node, or all of a worker's processors on one: no choice to make, memory is near anyway
//     several: the worker takes one (`numa`), its threads and its memory stay there; of several workers that
//         choose by themselves (WORKER_NUMA_AUTO) each takes the node that the fewest others have taken
//     more threads than any node has cores, or WORKER_NUMA_NONE: threads everywhere, memory interleaved
//
// Workers of one host tell each other what they took by names of abstract unix sockets
// (`banyan-worker/SLOT/WHAT`), which the kernel drops with the process; a network namespace is a world of its
// own.
#ifndef WORKER_PLACE_H
#define WORKER_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct worker_place; // opaque

enum worker_bind {
    WORKER_BIND_AUTO,  // as many threads as cores: as CORES; else each anywhere on the NUMA node
    WORKER_BIND_NONE,  // nothing is bound
    WORKER_BIND_CORES, // each compute thread to one core, cores that no other worker took first
};

enum { WORKER_NUMA_AUTO = -1, WORKER_NUMA_NONE = -2 };

#define WORKER_PLACE_TEXT 160

struct worker_place_options {
    enum worker_bind bind;
    int32_t numa;     // WORKER_NUMA_*, or the number that the system gives a node
    uint32_t threads; // 0: one per core, no more than the cgroup's processor time serves; --threads
    // For tests. A machine that hwloc makes up ("node:2 core:4 pu:2") in place of this one: nothing is bound.
    const char *synthetic;
    const char *cpuset; // the part of it that may be used, as hwloc writes it; NULL: all
    uint32_t quota;     // processors' worth of time; 0: no limit
    // Whether a name could be taken; NULL: of this host.
    bool (*claim)(void *arg, const char *name);
    void *claim_arg;
};

// INVALID_ARGUMENT: no such node, or none of its processors may be used; FAILED_PRECONDITION: hwloc cannot
// see this machine; RESOURCE_EXHAUSTED.
enum common_code worker_place_new(const struct worker_place_options *options, struct worker_place **out,
                                  struct common_error *err);
void worker_place_free(struct worker_place *place); // gives back what was taken. NULL is allowed

uint32_t worker_place_threads(const struct worker_place *place);    // compute threads to start
uint32_t worker_place_processors(const struct worker_place *place); // of the host, that the process may use
// Of the node that the worker prefers, or of the machine. 0: unknown.
uint64_t worker_place_memory(const struct worker_place *place);
// "cores=4 node=1 bind=cores:4,5": for the log. Returns out.
const char *worker_place_text(const struct worker_place *place, char out[WORKER_PLACE_TEXT]);
// Where a thread may run, as hwloc writes it ("0x3"), and where memory goes ("0x1", or "interleave:0x3", or
// "" for anywhere). Return out.
const char *worker_place_thread_text(const struct worker_place *place, uint32_t thread,
                                     char out[WORKER_PLACE_TEXT]);
const char *worker_place_memory_text(const struct worker_place *place, char out[WORKER_PLACE_TEXT]);

// Takes slot `slot` of thing `index` for as long as the place lives. False: another worker of this host has
// it, or this one.
bool worker_place_take(const struct worker_place *place, uint32_t slot, const char *what, uint32_t index);

// Binds the calling thread: as compute thread `thread`, or as any other thread of the worker (threads that it
// makes later inherit that). A system that refuses is not an error: a thread anywhere gives the same bits.
void worker_place_bind_compute(const struct worker_place *place, uint32_t thread);
void worker_place_bind_other(const struct worker_place *place);
// Fresh memory, before anybody touches it.
void worker_place_bind_memory(const struct worker_place *place, void *memory, size_t bytes);

#endif
