// SPDX-License-Identifier: Apache-2.0
#include "worker/processors/engine.h"

#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "worker/processors/module.h"

struct worker_engine {
    const struct reduce_module *module;
    struct reduce_module_group group;
};

static bool valid_name(const char *name)
{
    size_t len = strlen(name);
    return len >= 1 && len <= 15 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") == len;
}

static enum common_code engine_load(const struct worker_engine_options *options,
                                    const struct reduce_module **out, struct common_error *err)
{
    char path[4096];
    const void *symbol;
    if (!options->module && !worker_module_find(options->name, path, sizeof path))
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "there is no module banyan-%s.so beside the program: give --engine-module",
                                options->name);
    const char *from = options->module ? options->module : path;
    enum common_code code = worker_module_open(from, REDUCE_MODULE_SYMBOL, &symbol, err);
    if (code != COMMON_OK)
        return code;
    const struct reduce_module *module = symbol;
    if (module->abi != REDUCE_MODULE_ABI || module->size != sizeof *module ||
        strcmp(module->build, REDUCE_MODULE_BUILD) != 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "%.200s comes from another build", from);
    if (strcmp(module->ops->name, options->name) != 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the module is for the engine %.15s, not %s",
                                module->ops->name, options->name);
    *out = module;
    return COMMON_OK;
}

enum common_code worker_engine_open(const struct worker_engine_options *options, struct worker_engine **out,
                                    struct common_error *err)
{
    *out = NULL;
    if (strcmp(options->name, "stream") == 0)
        return COMMON_OK;
    if (!valid_name(options->name))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--engine must be stream, mpi or nccl; try 'banyan-worker --help'");
    struct worker_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory");
    enum common_code code = engine_load(options, &engine->module, err);
    if (code == COMMON_OK)
        code = engine->module->join(&(struct reduce_module_self){.worker = options->worker,
                                                                 .device = options->device},
                                    &engine->group, err);
    if (code == COMMON_OK && reduce_engine_register(engine->module->ops) != COMMON_OK)
        code = common_error_set(err, COMMON_INTERNAL, "the engine %s lacks a function", options->name);
    if (code != COMMON_OK) {
        free(engine);
        return code;
    }
    common_log_info("engine=%s algorithm=%s group=%s rank=%u size=%u", options->name, engine->group.algorithm,
                    engine->group.id, engine->group.rank, engine->group.size);
    *out = engine;
    return COMMON_OK;
}

// NCCL and the engine take some 64 to 192 MiB for each of up to 16 communicators (reduce/nccl/README.md).
#define NCCL_ROOM_MOST (UINT64_C(2) << 30)

uint64_t worker_engine_room(const char *name, uint64_t device_bytes)
{
    uint64_t share = device_bytes / 8;
    if (strcmp(name, "nccl") != 0)
        return 0;
    return share < NCCL_ROOM_MOST ? share : NCCL_ROOM_MOST;
}

const char *worker_engine_name(const struct worker_engine *engine)
{
    return engine ? engine->module->ops->name : "stream";
}

const struct reduce_module_group *worker_engine_group(const struct worker_engine *engine)
{
    return engine ? &engine->group : NULL;
}

bool worker_engine_lost(const struct worker_engine *engine, struct common_error *err)
{
    return engine && engine->module->lost(err);
}

void worker_engine_close(struct worker_engine *engine, int exit_code)
{
    if (engine)
        engine->module->leave(exit_code);
    free(engine);
}
