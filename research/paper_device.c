// SPDX-License-Identifier: Apache-2.0
// Local attention by a device: its module is loaded as the worker does it (kernels/device.h), keys and values
// stay in its pool.
//
// A block of the pool has room for so many tokens, so one of ours is cut into parts of that many:
//
//     part p, of n tokens: for each KV head K[n][dim], then V[n][dim]     one run for the kernel
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kernels/device.h"
#include "research/paper_local.h"
#include "research/paper_shard.h"
#include "worker/processors/module.h"

#define NAME     "cuda"
#define PIECE    ((uint64_t)4 << 20)      // bytes of one call of up or down
#define SPIN_NS  (60 * COMMON_NS_PER_US)  // then a waiter sleeps
#define SLEEP_NS (200 * COMMON_NS_PER_US) // at most; `done` ends it

struct device {
    struct paper_local local;
    const struct kernels_device_ops *ops;
    struct kernels_device *handle;
    uint64_t part_tokens;
    struct kernels_device_run *runs; // of the attention that is under way
    uint64_t most_runs;
    struct kernels_partial out;
    uint64_t begun_ns;
    bool failed;
    int doorbell; // an eventfd that done() rings
    // Written by the module's thread before `ended`
    enum common_code code;
    struct common_error err;
    atomic_bool ended;
};

static void fail(struct device *d, const struct common_error *err)
{
    if (!d->failed)
        fprintf(stderr, "paper: %s: %s\n", d->local.device, err->message);
    d->failed = true;
}

// ---- open -----------------------------------------------------------------------------------------------

static bool device_means(const char *device)
{
    size_t name = strlen(NAME);
    if (strncmp(device, NAME, name) != 0)
        return false;
    size_t digits = device[name] ? strspn(device + name + 1, "0123456789") : 0;
    return !device[name] || (device[name] == ':' && digits > 0 && digits < 5 && !device[name + 1 + digits]);
}

static enum common_code load(const char *wanted, const struct kernels_device_ops **out,
                             struct common_error *err)
{
    char found[4096];
    const void *symbol;
    if (!wanted && !worker_module_find(NAME, found, sizeof found))
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "there is no banyan-" NAME
                                ".so beside the program or in ../lib: give --device-module");
    const char *path = wanted ? wanted : found;
    enum common_code code = worker_module_open(path, KERNELS_DEVICE_SYMBOL, &symbol, err);
    if (code != COMMON_OK)
        return code;
    const struct kernels_device_ops *ops = symbol;
    if (ops->abi != KERNELS_DEVICE_ABI || ops->size != sizeof *ops || strcmp(ops->name, NAME) != 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "%.200s is no module for " NAME " devices of this version", path);
    *out = ops;
    return COMMON_OK;
}

static void device_close(struct paper_local *local)
{
    struct device *d = (struct device *)local;
    if (d->handle)
        d->ops->close(d->handle);
    if (d->doorbell >= 0)
        close(d->doorbell);
    free(d->runs);
    free(d);
}

static enum common_code device_open(const struct paper_local_options *options, struct paper_local **out,
                                    struct common_error *err)
{
    const char *colon = strchr(options->device, ':'), *problem;
    struct kernels_device_info info;
    struct common_error why = {.message = ""};
    uint32_t index = 0, count;
    enum common_code code;
    struct device *d = calloc(1, sizeof *d);

    if (!d)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory");
    d->local = (struct paper_local){.ops = &paper_device, .g = options->g, .spec = paper_spec(options->g)};
    d->part_tokens = KERNELS_DEVICE_BLOCK / paper_shard_bytes(options->g, 1) / PAPER_CHUNK * PAPER_CHUNK;
    d->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    code = d->doorbell < 0 ? common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no eventfd: errno %d", errno)
                           : load(options->module, &d->ops, err);
    if (code != COMMON_OK)
        goto drop;
    count = d->ops->count(&why);
    if (count == 0) {
        code = common_error_set(err, COMMON_UNAVAILABLE, "%.300s",
                                why.message[0] ? why.message : "the module sees no device");
        goto drop;
    }
    index = colon ? (uint32_t)strtoul(colon + 1, NULL, 10) : options->neighbour % count;
    code = d->ops->open(index, 0, &d->handle, err);
    if (code != COMMON_OK)
        goto drop;
    problem = d->ops->spec_problem(&d->local.spec);
    if (problem) {
        code = common_error_set(err, COMMON_UNIMPLEMENTED, "%.300s", problem);
        goto drop;
    }
    d->ops->info(d->handle, &info);
    snprintf(d->local.device, sizeof d->local.device, NAME ":%u (%.96s)", index, info.name);
    memcpy(d->local.kernel, info.kernel, sizeof d->local.kernel);
    *out = &d->local;
    return COMMON_OK;

drop:
    device_close(&d->local);
    return code;
}

// ---- blocks ---------------------------------------------------------------------------------------------

static uint64_t part_count(const struct device *d, size_t bytes)
{
    uint64_t most = paper_shard_bytes(d->local.g, d->part_tokens);
    return (bytes + most - 1) / most;
}

static void device_block_fini(struct paper_local *local, struct paper_block *block)
{
    struct device *d = (struct device *)local;
    for (uint64_t p = 0; block->parts && p < part_count(d, block->bytes); p++)
        d->ops->free(d->handle, block->parts[p]);
    paper_kv_count(-(int64_t)block->bytes);
    paper_kv_free(block->host);
    free(block->parts);
}

static bool device_block_init(struct paper_local *local, struct paper_block *block, size_t bytes,
                              bool travels)
{
    struct device *d = (struct device *)local;
    uint64_t n = part_count(d, bytes), most = paper_shard_bytes(d->local.g, d->part_tokens);
    struct common_error err = {.message = ""};
    *block = (struct paper_block){.bytes = bytes, .parts = calloc(n + 1, sizeof *block->parts)};
    paper_kv_count((int64_t)bytes);
    bool ok = block->parts;
    if (ok && travels)
        ok = (block->host = paper_kv_alloc(bytes));
    for (uint64_t p = 0; ok && p < n; p++) {
        uint64_t size = bytes - p * most < most ? bytes - p * most : most;
        ok = d->ops->alloc(d->handle, size, &block->parts[p], &err) == COMMON_OK;
    }
    if (ok)
        return true;
    if (err.message[0])
        fprintf(stderr, "paper: %s\n", err.message);
    device_block_fini(local, block);
    *block = (struct paper_block){0};
    return false;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// A part is a rectangle on the host, a row for each head's K and V; *at counts rows of all parts.
static bool copy_some(struct device *d, struct paper_block *block, char *host, uint64_t tokens, uint64_t *at,
                      enum common_code (*of)(struct kernels_device *, const struct kernels_device_piece *,
                                             uint32_t, struct common_error *))
{
    uint64_t row_bytes = (uint64_t)d->local.g->dim * 2, rows = 2 * (uint64_t)d->local.g->kv_heads;
    uint64_t part = *at / rows, row = *at % rows, first = part * d->part_tokens;
    struct common_error err;
    if (first >= tokens || d->failed)
        return false;
    uint64_t width = min_u64(d->part_tokens, tokens - first) * row_bytes;
    uint64_t height = min_u64(rows - row, width < PIECE ? PIECE / width : 1);
    struct kernels_device_piece piece = {.device = block->parts[part] + row * width,
                                         .device_pitch = width,
                                         .host = host + (row * tokens + first) * row_bytes,
                                         .host_pitch = tokens * row_bytes,
                                         .width = width,
                                         .height = height};
    uint64_t start = common_clock_ns();
    enum common_code code = of(d->handle, &piece, 1, &err);
    d->local.staged_ns += common_clock_ns() - start;
    d->local.staged_bytes += width * height;
    if (code != COMMON_OK)
        fail(d, &err);
    *at += height;
    return true;
}

static bool device_up(struct paper_local *local, struct paper_block *block, const void *kv, uint64_t tokens,
                      uint64_t *at)
{
    struct device *d = (struct device *)local;
    return copy_some(d, block, (char *)(uintptr_t)kv, tokens, at, d->ops->write);
}

static bool device_down(struct paper_local *local, struct paper_block *block, uint64_t tokens, uint64_t *at)
{
    struct device *d = (struct device *)local;
    return copy_some(d, block, block->host, tokens, at, d->ops->read);
}

// ---- attention ------------------------------------------------------------------------------------------

static void done(void *arg, enum common_code code, const struct common_error *err) // on the module's thread
{
    struct device *d = arg;
    const uint64_t one = 1;
    d->code = code;
    if (code != COMMON_OK)
        d->err = *err;
    int doorbell = d->doorbell;
    atomic_store_explicit(&d->ended, true, memory_order_release);
    // Late at worst: a waiter looks again by itself
    if (write(doorbell, &one, sizeof one) < 0)
        return;
}

// One run a part. Their number.
static uint32_t lay_runs(struct device *d, const struct paper_block *block, uint64_t first, uint64_t tokens)
{
    uint64_t row_bytes = (uint64_t)d->local.g->dim * 2, n = (tokens + d->part_tokens - 1) / d->part_tokens;
    if (n > d->most_runs) { // in the first, untimed call
        free(d->runs);
        d->runs = calloc(n, sizeof *d->runs);
        d->most_runs = n;
        if (!d->runs)
            abort();
    }
    for (uint64_t p = 0; p < n; p++) {
        uint64_t at = p * d->part_tokens, rows = min_u64(d->part_tokens, tokens - at);
        d->runs[p] = (struct kernels_device_run){.k = block->parts[p],
                                                 .v = block->parts[p] + rows * row_bytes,
                                                 .head_stride = 2 * rows * row_bytes,
                                                 .first = first + at,
                                                 .rows = (uint32_t)rows};
    }
    return (uint32_t)n;
}

static void device_begin(struct paper_local *local, const struct paper_block *block, uint64_t first,
                         uint64_t tokens, uint64_t total, const float *q, const struct kernels_partial *out)
{
    struct device *d = (struct device *)local;
    const struct paper_geometry *g = local->g;
    struct kernels_device_item item = {.spec = &local->spec,
                                       .rows = 1,
                                       .q_first = total - 1,
                                       .visible = total,
                                       .q = q,
                                       .q_row_stride = (uint64_t)g->q_heads * g->dim,
                                       .q_head_stride = g->dim,
                                       .run_count = lay_runs(d, block, first, tokens),
                                       .runs = d->runs,
                                       .out = *out};
    d->out = *out;
    d->begun_ns = common_clock_ns();
    atomic_store_explicit(&d->ended, false, memory_order_relaxed);
    enum common_code code = d->ops->submit(d->handle, &item, 1, NULL, done, d, &d->err);
    if (code == COMMON_OK)
        return;
    d->code = code;
    atomic_store_explicit(&d->ended, true, memory_order_relaxed);
}

static bool device_step(struct paper_local *local)
{
    struct device *d = (struct device *)local;
    uint64_t rung;
    if (!atomic_load_explicit(&d->ended, memory_order_acquire)) {
        struct pollfd bell = {.fd = d->doorbell, .events = POLLIN};
        const struct timespec most = {.tv_nsec = (long)SLEEP_NS};
        if (common_clock_ns() - d->begun_ns < SPIN_NS)
            sched_yield();
        else if (ppoll(&bell, 1, &most, NULL) > 0 && read(d->doorbell, &rung, sizeof rung) < 0)
            return true;
        return true;
    }
    if (d->code != COMMON_OK || d->failed) {
        size_t n = (size_t)local->g->q_heads * local->g->dim;
        fail(d, &d->err);
        memset(d->out.m, 0xff, local->g->q_heads * sizeof(float));
        memset(d->out.s, 0xff, local->g->q_heads * sizeof(float));
        memset(d->out.o, 0xff, n * sizeof(float));
    }
    return false;
}

const struct paper_local_ops paper_device = {
    .means = device_means,
    .open = device_open,
    .close = device_close,
    .block_init = device_block_init,
    .block_fini = device_block_fini,
    .up = device_up,
    .down = device_down,
    .begin = device_begin,
    .step = device_step,
};
