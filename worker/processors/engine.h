// SPDX-License-Identifier: Apache-2.0
// The engine that this worker offers beside `stream`: one that a loadable module brings (reduce/module.h),
// whose group this process has joined.
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "common/base/status.h"
#include "reduce/module.h"

struct worker_engine; // opaque

struct worker_engine_options {
    const char *name;   // "stream", or of a module
    const char *module; // path; NULL: banyan-NAME.so beside the program or in ../lib
    const char *worker; // name of this worker
    const char *device; // where it computes, "cuda:0"; NULL: on the processor
};

// Opens the module, joins its group (may block until the others do) and registers the engine. Before the loop
// runs, on the thread that will run it. *out is NULL for "stream". INVALID_ARGUMENT: a name that is none;
// FAILED_PRECONDITION: no such module, or of another build, or the module's reason; UNAVAILABLE: likewise.
enum common_code worker_engine_open(const struct worker_engine_options *options, struct worker_engine **out,
                                    struct common_error *err);
// Of so much memory of a device, what the engine may take beside K, V and workspaces. No module is opened.
uint64_t worker_engine_room(const char *name, uint64_t device_bytes);
const char *worker_engine_name(const struct worker_engine *engine);                        // NULL: "stream"
const struct reduce_module_group *worker_engine_group(const struct worker_engine *engine); // NULL: none
bool worker_engine_lost(const struct worker_engine *engine, struct common_error *err);     // NULL: false
// Last: the module may end the process, with this code. NULL is allowed.
void worker_engine_close(struct worker_engine *engine, int exit_code);

#endif
