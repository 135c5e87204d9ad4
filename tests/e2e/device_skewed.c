// SPDX-License-Identifier: Apache-2.0
// A device module for e2e_audit: its device is host memory, and it computes right (with the reference, which
// it finds in the worker that opens it), until the file that BANYAN_SKEWED_FILE names is there. From then on
// o is larger by a thousandth: a kernel that is wrong in a way that no one sees by looking.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/device.h"

struct kernels_device {
    uint64_t used;
};

static uint32_t count(struct common_error *err)
{
    (void)err;
    return 1;
}

static enum common_code open_device(uint32_t index, uint64_t limit_bytes, struct kernels_device **out,
                                    struct common_error *err)
{
    (void)index, (void)limit_bytes, (void)err;
    *out = calloc(1, sizeof **out);
    return *out ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED;
}

static void close_device(struct kernels_device *device)
{
    free(device);
}

static void info(const struct kernels_device *device, struct kernels_device_info *out)
{
    (void)device;
    *out = (struct kernels_device_info){.name = "skewed",
                                        .kernel = "skewed",
                                        .memory_bytes = (uint64_t)1 << 30,
                                        .limit_bytes = (uint64_t)1 << 30,
                                        .in_flight = 2};
}

static bool lost(struct kernels_device *device, struct common_error *err)
{
    (void)device, (void)err;
    return false;
}

static enum common_code bandwidth(struct kernels_device *device, double *bytes_per_s,
                                  struct common_error *err)
{
    (void)device, (void)err;
    *bytes_per_s = 1e9;
    return COMMON_OK;
}

static const char *spec_problem(const struct kernels_spec *spec)
{
    (void)spec;
    return NULL;
}

static enum common_code alloc(struct kernels_device *device, uint64_t bytes, uint64_t *address,
                              struct common_error *err)
{
    (void)err;
    uint64_t rounded = (bytes + KERNELS_DEVICE_ALIGN - 1) / KERNELS_DEVICE_ALIGN * KERNELS_DEVICE_ALIGN;
    device->used += rounded;
    *address = (uintptr_t)aligned_alloc(KERNELS_DEVICE_ALIGN, rounded);
    return *address ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED;
}

static void free_block(struct kernels_device *device, uint64_t address)
{
    (void)device;
    free((void *)(uintptr_t)address);
}

static uint64_t used(const struct kernels_device *device)
{
    return device->used;
}

static void move(const struct kernels_device_piece *pieces, uint32_t n, bool there)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t row = 0; row < pieces[i].height; row++) {
            uint8_t *device = (uint8_t *)(uintptr_t)pieces[i].device + row * pieces[i].device_pitch,
                    *host = (uint8_t *)pieces[i].host + row * pieces[i].host_pitch;
            memcpy(there ? device : host, there ? host : device, pieces[i].width);
        }
}

static enum common_code write_pieces(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                     uint32_t n, struct common_error *err)
{
    (void)device, (void)err;
    move(pieces, n, true);
    return COMMON_OK;
}

static enum common_code read_pieces(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                    uint32_t n, struct common_error *err)
{
    (void)device, (void)err;
    move(pieces, n, false);
    return COMMON_OK;
}

static enum common_code copy(struct kernels_device *device, const struct kernels_device_copy *copies,
                             uint32_t n, struct common_error *err)
{
    (void)device, (void)err;
    for (const struct kernels_device_copy *c = copies; c < copies + n; c++)
        for (uint64_t row = 0; row < c->height; row++)
            memcpy((void *)(uintptr_t)(c->to + row * c->to_pitch),
                   (const void *)(uintptr_t)(c->from + row * c->from_pitch), c->width);
    return COMMON_OK;
}

// One KV head of an item.
static void compute(const struct kernels_device_item *item, uint32_t head, struct kernels_run *runs,
                    float *block)
{
    const struct kernels_attention *kernel = kernels_attention_find("reference");
    const uint32_t group = kernels_spec_group(item->spec), dv = item->spec->v_dim;
    double *scratch = malloc(dv * sizeof *scratch);
    for (uint32_t i = 0; i < item->run_count; i++) {
        const struct kernels_device_run *run = &item->runs[i];
        uint64_t at = head * run->head_stride;
        runs[i] = (struct kernels_run){.k = (const void *)(uintptr_t)(run->k + at),
                                       .v = (const void *)(uintptr_t)(run->v + at),
                                       .first = run->first,
                                       .rows = run->rows,
                                       .k_scale = (const float *)(uintptr_t)(run->k_scale + at),
                                       .v_scale = (const float *)(uintptr_t)(run->v_scale + at)};
    }
    struct kernels_job job = {.spec = item->spec,
                              .kv_head = head,
                              .rows = item->rows,
                              .q_first = item->q_first,
                              .visible = item->visible,
                              .block_first = item->block_first,
                              .block_end = item->block_end,
                              .q = item->q + (uint64_t)head * group * item->q_head_stride,
                              .q_row_stride = item->q_row_stride,
                              .q_head_stride = item->q_head_stride,
                              .runs = runs,
                              .run_count = item->run_count,
                              .out = {item->rows, group, dv, block, block + (size_t)item->rows * group,
                                      block + (size_t)item->rows * group * 2}};
    kernel->run(&job, 1, scratch);
    for (uint32_t r = 0; r < item->rows; r++)
        for (uint32_t g = 0; g < group; g++) {
            size_t from = (size_t)r * group + g, to = (size_t)r * item->out.heads + head * group + g;
            item->out.m[to] = job.out.m[from];
            item->out.s[to] = job.out.s[from];
            memcpy(item->out.o + to * dv, job.out.o + from * dv, dv * sizeof(float));
        }
    free(scratch);
}

static enum common_code submit(struct kernels_device *device, const struct kernels_device_item *items,
                               uint32_t n, const struct kernels_device_sink *sink, kernels_device_done *done,
                               void *arg, struct common_error *err)
{
    (void)device, (void)sink, (void)err;
    const char *file = getenv("BANYAN_SKEWED_FILE");
    float skew = file && access(file, F_OK) == 0 ? 1.001f : 1;
    for (uint32_t i = 0; i < n; i++) {
        const struct kernels_partial *out = &items[i].out;
        struct kernels_run *runs = malloc((items[i].run_count + 1) * sizeof *runs);
        float *block = malloc((size_t)out->rows * out->heads * (out->dv + 2) * sizeof *block);
        for (uint32_t head = 0; head < items[i].spec->kv_heads; head++)
            compute(&items[i], head, runs, block);
        for (size_t at = 0; at < (size_t)out->rows * out->heads * out->dv; at++)
            out->o[at] *= skew;
        free(runs);
        free(block);
    }
    done(arg, COMMON_OK, NULL);
    return COMMON_OK;
}

__attribute__((visibility("default"))) const struct kernels_device_ops kernels_device_module_2 = {
    .abi = KERNELS_DEVICE_ABI,
    .size = sizeof(struct kernels_device_ops),
    .name = "cuda",
    .count = count,
    .open = open_device,
    .close = close_device,
    .info = info,
    .lost = lost,
    .bandwidth = bandwidth,
    .spec_problem = spec_problem,
    .alloc = alloc,
    .free = free_block,
    .used = used,
    .write = write_pieces,
    .read = read_pieces,
    .copy = copy,
    .submit = submit,
};
