// SPDX-License-Identifier: Apache-2.0
// Bytes between host and pool, by way of a ring of pinned segments, on the copy stream.
#include <string.h>

#include "kernels/cuda/internal.h"

enum common_code cuda_transfer_init(struct kernels_device *device, struct common_error *err)
{
    for (uint32_t i = 0; i < CUDA_SEGMENTS; i++) {
        struct cuda_segment *segment = &device->segments[i];
        void *host = NULL;
        cudaError_t error = cudaHostAlloc(&host, CUDA_SEGMENT, cudaHostAllocDefault);
        segment->host = host;
        if (error == cudaSuccess)
            error =
                cudaEventCreateWithFlags(&segment->copied, cudaEventDisableTiming | cudaEventBlockingSync);
        if (error != cudaSuccess)
            return cuda_device_check(device, error, "buffers for writing", err);
    }
    return COMMON_OK;
}

void cuda_transfer_fini(struct kernels_device *device)
{
    for (uint32_t i = 0; i < CUDA_SEGMENTS; i++) {
        if (device->segments[i].copied)
            cudaEventDestroy(device->segments[i].copied);
        if (device->segments[i].host)
            cudaFreeHost(device->segments[i].host);
        device->segments[i] = (struct cuda_segment){0};
    }
}

// The segment in use, with room for at least one byte; waits for the oldest where all are on their way.
static enum common_code segment_with_room(struct kernels_device *device, struct cuda_segment **out,
                                          struct common_error *err)
{
    struct cuda_segment *segment = &device->segments[device->segment];
    if (segment->filled == CUDA_SEGMENT) {
        device->segment = (device->segment + 1) % CUDA_SEGMENTS;
        segment = &device->segments[device->segment];
        if (segment->pending) {
            enum common_code code =
                cuda_device_check(device, cudaEventSynchronize(segment->copied), "a write", err);
            if (code != COMMON_OK)
                return code;
        }
        segment->pending = false;
        segment->filled = 0;
    }
    *out = segment;
    return COMMON_OK;
}

static enum common_code segment_sent(struct kernels_device *device, struct cuda_segment *segment,
                                     uint64_t bytes, cudaError_t error, struct common_error *err)
{
    segment->filled += (bytes + 63) & ~(uint64_t)63;
    if (segment->filled > CUDA_SEGMENT)
        segment->filled = CUDA_SEGMENT;
    segment->pending = true;
    if (error == cudaSuccess)
        error = cudaEventRecord(segment->copied, device->copy);
    return cuda_device_check(device, error, "a write", err);
}

static enum common_code write_piece(struct kernels_device *device, const struct kernels_device_piece *piece,
                                    struct common_error *err)
{
    const char *from = piece->host;
    uint64_t row = 0, column = 0;
    while (row < piece->height) {
        struct cuda_segment *segment;
        enum common_code code = segment_with_room(device, &segment, err);
        if (code != COMMON_OK)
            return code;
        uint64_t room = CUDA_SEGMENT - segment->filled, left = piece->width - column;
        char *to = segment->host + segment->filled,
             *target = (char *)piece->device + row * piece->device_pitch + column;
        cudaError_t error;
        if (column == 0 && piece->width <= room) { // whole rows
            uint64_t rows =
                room / piece->width < piece->height - row ? room / piece->width : piece->height - row;
            if (piece->host_pitch == piece->width || rows == 1) {
                memcpy(to, from + row * piece->host_pitch, rows * piece->width);
            } else {
                for (uint64_t i = 0; i < rows; i++)
                    memcpy(to + i * piece->width, from + (row + i) * piece->host_pitch, piece->width);
            }
            if (rows == 1 || piece->device_pitch == piece->width)
                error =
                    cudaMemcpyAsync(target, to, rows * piece->width, cudaMemcpyHostToDevice, device->copy);
            else
                error = cudaMemcpy2DAsync(target, piece->device_pitch, to, piece->width, piece->width, rows,
                                          cudaMemcpyHostToDevice, device->copy);
            row += rows;
            room = rows * piece->width;
        } else {
            room = room < left ? room : left;
            memcpy(to, from + row * piece->host_pitch + column, room);
            error = cudaMemcpyAsync(target, to, room, cudaMemcpyHostToDevice, device->copy);
            column += room;
            if (column == piece->width) {
                column = 0;
                row++;
            }
        }
        code = segment_sent(device, segment, room, error, err);
        if (code != COMMON_OK)
            return code;
    }
    return COMMON_OK;
}

// Whether all pieces lie in blocks; an empty one is nowhere.
static enum common_code check_pieces(const struct kernels_device *device,
                                     const struct kernels_device_piece *pieces, uint32_t count,
                                     struct common_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct kernels_device_piece *p = &pieces[i];
        uint64_t start, end, last = 0;
        bool fine = p->width > 0 && p->height > 0 && cuda_pool_block(device->pool, p->device, &start, &end) &&
                    p->width <= end - p->device;
        if (fine && p->height > 1)
            fine = p->device_pitch >= p->width && p->host_pitch >= p->width &&
                   !__builtin_mul_overflow(p->device_pitch, p->height - 1, &last) &&
                   last <= end - p->device - p->width;
        if (!fine)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "a piece is not inside one block of the pool");
    }
    return COMMON_OK;
}

enum common_code cuda_transfer_write(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                     uint32_t count, struct common_error *err)
{
    enum common_code code = cuda_device_enter(device, err);
    if (code == COMMON_OK)
        code = check_pieces(device, pieces, count, err);
    for (uint32_t i = 0; i < count && code == COMMON_OK; i++)
        code = write_piece(device, &pieces[i], err);
    device->fresh_writes = true;
    return code;
}

static enum common_code read_bytes(struct kernels_device *device, char *to, uint64_t from, uint64_t bytes,
                                   struct common_error *err)
{
    while (bytes > 0) {
        struct cuda_segment *segment;
        enum common_code code = segment_with_room(device, &segment, err);
        if (code != COMMON_OK)
            return code;
        uint64_t room = CUDA_SEGMENT - segment->filled, part = bytes < room ? bytes : room;
        char *at = segment->host + segment->filled;
        code = segment_sent(device, segment, part,
                            cudaMemcpyAsync(at, (const void *)(uintptr_t)from, part, cudaMemcpyDeviceToHost,
                                            device->copy),
                            err);
        if (code == COMMON_OK)
            code = cuda_device_check(device, cudaEventSynchronize(segment->copied), "a read", err);
        if (code != COMMON_OK)
            return code;
        memcpy(to, at, part);
        to += part;
        from += part;
        bytes -= part;
    }
    return COMMON_OK;
}

enum common_code cuda_transfer_read(struct kernels_device *device, const struct kernels_device_piece *pieces,
                                    uint32_t count, struct common_error *err)
{
    enum common_code code = cuda_device_enter(device, err);
    if (code == COMMON_OK)
        code = check_pieces(device, pieces, count, err);
    for (uint32_t i = 0; i < count && code == COMMON_OK; i++) {
        const struct kernels_device_piece *p = &pieces[i];
        bool whole = p->height == 1 || (p->device_pitch == p->width && p->host_pitch == p->width);
        if (whole) {
            code = read_bytes(device, p->host, p->device, p->width * p->height, err);
            continue;
        }
        for (uint64_t row = 0; row < p->height && code == COMMON_OK; row++)
            code = read_bytes(device, (char *)p->host + row * p->host_pitch,
                              p->device + row * p->device_pitch, p->width, err);
    }
    return code;
}

// All pieces in blocks, and none too large for a launch.
static enum common_code check_copies(const struct kernels_device *device,
                                     const struct kernels_device_copy *copies, uint32_t count,
                                     struct common_error *err)
{
    enum common_code code = COMMON_OK;
    for (uint32_t i = 0; i < count && code == COMMON_OK; i++) {
        const struct kernels_device_copy *c = &copies[i];
        const struct kernels_device_piece ends[2] = {{.device = c->to,
                                                      .device_pitch = c->to_pitch,
                                                      .host_pitch = c->width,
                                                      .width = c->width,
                                                      .height = c->height},
                                                     {.device = c->from,
                                                      .device_pitch = c->from_pitch,
                                                      .host_pitch = c->width,
                                                      .width = c->width,
                                                      .height = c->height}};
        code = check_pieces(device, ends, 2, err);
    }
    return code;
}

static cudaError_t copy_one(struct kernels_device *device, const struct kernels_device_copy *c)
{
    void *to = (void *)(uintptr_t)c->to;
    const void *from = (const void *)(uintptr_t)c->from;
    if (c->height == 1)
        return cudaMemcpyAsync(to, from, c->width, cudaMemcpyDeviceToDevice, device->copy);
    return cudaMemcpy2DAsync(to, c->to_pitch, from, c->from_pitch, c->width, c->height,
                             cudaMemcpyDeviceToDevice, device->copy);
}

// As many as the segment has room for, and a launch has tasks for, by one launch.
static enum common_code copy_some(struct kernels_device *device, const struct kernels_device_copy *copies,
                                  uint32_t count, uint32_t *done, struct common_error *err)
{
    struct cuda_segment *segment;
    enum common_code code = segment_with_room(device, &segment, err);
    if (code != COMMON_OK)
        return code;
    struct cuda_copy *table = (struct cuda_copy *)(segment->host + segment->filled);
    uint64_t room = (CUDA_SEGMENT - segment->filled) / sizeof(*table), tasks = 0;
    uint32_t n = 0;
    for (; n < count && n < room; n++) {
        const struct kernels_device_copy *c = &copies[n];
        uint64_t parts =
            (c->width + CUDA_COPY_PART - 1) / CUDA_COPY_PART; // <= 2^15, as a block has 2^28 bytes
        if (parts * c->height > INT32_MAX - tasks)
            break;
        table[n] = (struct cuda_copy){.to = c->to,
                                      .to_pitch = c->to_pitch,
                                      .from = c->from,
                                      .from_pitch = c->from_pitch,
                                      .width = c->width,
                                      .parts = (uint32_t)parts,
                                      .first_task = (uint32_t)tasks};
        tasks += parts * c->height;
    }
    *done = n;
    struct cuda_launch launch = {.args = (uint64_t)(uintptr_t)table, .partials = n};
    void *arguments[] = {&launch};
    const struct dim3 grid = {(uint32_t)tasks, 1, 1}, block = {CUDA_THREADS, 1, 1};
    cudaError_t error = cudaSuccess;
    if (n > 0)
        error = cudaLaunchKernel(cuda_copies.function, grid, block, arguments, 0, device->copy);
    return segment_sent(device, segment, n ? n * sizeof(*table) : CUDA_SEGMENT, error, err);
}

enum common_code cuda_transfer_copy(struct kernels_device *device, const struct kernels_device_copy *copies,
                                    uint32_t count, struct common_error *err)
{
    enum common_code code = cuda_device_enter(device, err);
    if (code == COMMON_OK)
        code = check_copies(device, copies, count, err);
    if (code != COMMON_OK)
        return code;
    device->fresh_writes = true;
    if (count == 1)
        return cuda_device_check(device, copy_one(device, copies), "a copy", err);
    for (uint32_t at = 0, some; at < count && code == COMMON_OK; at += some)
        code = copy_some(device, copies + at, count - at, &some, err);
    return code;
}
