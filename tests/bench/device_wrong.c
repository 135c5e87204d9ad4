// SPDX-License-Identifier: Apache-2.0
// A device module for tests/bench/device_test.py whose answers are zeros: bench/device must not time it. Its
// device is host memory, and done() comes before submit returns.
#include <stdlib.h>
#include <string.h>

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
    *out = (struct kernels_device_info){
        .name = "zeros", .kernel = "zeros", .limit_bytes = (uint64_t)1 << 30, .in_flight = 2};
}

static const char *spec_problem(const struct kernels_spec *spec)
{
    return spec->k_dim > 512 ? "heads of more than 512 dims are not done here" : NULL;
}

static enum common_code alloc(struct kernels_device *device, uint64_t bytes, uint64_t *address,
                              struct common_error *err)
{
    (void)err;
    device->used += bytes;
    *address =
        (uintptr_t)aligned_alloc(KERNELS_DEVICE_ALIGN, (bytes + KERNELS_DEVICE_ALIGN - 1) /
                                                           KERNELS_DEVICE_ALIGN * KERNELS_DEVICE_ALIGN);
    return *address ? COMMON_OK : COMMON_RESOURCE_EXHAUSTED;
}

static void free_block(struct kernels_device *device, uint64_t address)
{
    (void)device;
    free((void *)(uintptr_t)address);
}

static enum common_code write_pieces(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                     uint32_t n, struct common_error *err)
{
    (void)device, (void)err;
    for (uint32_t i = 0; i < n; i++)
        memcpy((void *)(uintptr_t)pieces[i].device, pieces[i].host, pieces[i].width);
    return COMMON_OK;
}

static enum common_code submit(struct kernels_device *device, const struct kernels_device_item *items,
                               uint32_t n, const struct kernels_device_sink *sink, kernels_device_done *done,
                               void *arg, struct common_error *err)
{
    (void)device, (void)sink, (void)err;
    for (uint32_t i = 0; i < n; i++) {
        const struct kernels_partial *out = &items[i].out;
        for (uint64_t at = 0; at < (uint64_t)out->rows * out->heads; at++) {
            out->m[at] = 0;
            out->s[at] = 1;
        }
        memset(out->o, 0, (uint64_t)out->rows * out->heads * out->dv * sizeof(float));
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
    .spec_problem = spec_problem,
    .alloc = alloc,
    .free = free_block,
    .write = write_pieces,
    .submit = submit,
};
