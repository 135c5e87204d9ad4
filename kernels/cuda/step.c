// SPDX-License-Identifier: Apache-2.0
// Steps: from items to launches, and from finished launches to done().
//
//     FREE ──submit──▶ QUEUED (on the compute stream) ──event, or the device is lost──▶ FREE, then done()
//
// A slot owns the buffers of one submission; the workspace for partials is shared, as the stream runs one
// step after the other. It shrinks again when many steps in a row asked for little of it. A shape that comes
// a second time in a slot is captured as a graph, and launched as one from then on: what differs between two
// steps of a shape is in the argument buffer alone. Grids are rounded up so that a session that grows keeps
// its shape for long. The argument buffer travels on a stream of its own, beside the step before; the merge
// writes its answer straight to the host.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/internal.h"

#define SPIN_NS      50000               // how long the waiter asks beyond what reading K and V takes
#define SPIN_MOST_NS 2000000             // of steps that take longer than this it asks for SPIN_NS alone
#define SHRINK_AFTER 64u                 // steps in a row that would do with a quarter
#define SHRINK_LEAST ((uint64_t)4 << 20) // bytes

static uint64_t round_pow2(uint64_t n, uint64_t least)
{
    uint64_t size = least;
    while (size < n)
        size *= 2;
    return size;
}

static uint64_t round_workspace(uint64_t bytes)
{
    uint64_t step = (uint64_t)64 << 10;
    while (step * 16 <= bytes)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static void graphs_forget(struct kernels_device *device)
{
    for (uint32_t s = 0; s < CUDA_SLOTS; s++) {
        for (uint32_t i = 0; i < CUDA_GRAPHS; i++) {
            if (device->slots[s].graphs[i].exec)
                cudaGraphExecDestroy(device->slots[s].graphs[i].exec);
            device->slots[s].graphs[i] = (struct cuda_graph){0};
        }
    }
}

// Freeing would wait for the device, and a communicator's operation on it may wait for another process. Sizes
// double, so what is kept is less than what is in use.
static bool put_away(struct kernels_device *device, void *memory, bool pinned)
{
    if (!memory)
        return true;
    struct cuda_old *old = malloc(sizeof(*old));
    if (!old)
        return false;
    *old = (struct cuda_old){.next = device->old, .memory = memory, .pinned = pinned};
    device->old = old;
    return true;
}

static enum common_code no_memory(struct common_error *err)
{
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
}

static enum common_code device_buffer(struct kernels_device *device, void **buffer, uint64_t bytes,
                                      struct common_error *err)
{
    void *fresh = NULL;
    enum common_code code = cuda_device_take(device, bytes, &fresh, err);
    if (code != COMMON_OK)
        return code;
    graphs_forget(device); // they name the old one
    device->steps += bytes;
    if (!put_away(device, *buffer, false)) {
        put_away(device, fresh, false);
        return no_memory(err);
    }
    *buffer = fresh;
    return COMMON_OK;
}

static enum common_code slot_buffer(struct kernels_device *device, struct cuda_buffer *buffer, uint64_t bytes,
                                    bool on_device, struct common_error *err)
{
    if (bytes <= buffer->bytes)
        return COMMON_OK;
    uint64_t size = round_pow2(bytes, 64 * 1024);
    void *host = NULL;
    // Any kernel can write to it, at the host's address
    cudaError_t error = cudaHostAlloc(&host, size, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error != cudaSuccess)
        return cuda_device_check(device, error, "a step's buffers", err);
    enum common_code code = COMMON_OK;
    if (on_device)
        code = device_buffer(device, &buffer->device, size, err);
    if (code == COMMON_OK && !put_away(device, buffer->host, true))
        code = no_memory(err);
    if (code != COMMON_OK) {
        put_away(device, host, true);
        return code;
    }
    graphs_forget(device);
    buffer->host = host;
    buffer->bytes = size;
    return COMMON_OK;
}

// The steps that were submitted go on with the old one: it is freed behind them.
static enum common_code workspace_replace(struct kernels_device *device, uint64_t bytes,
                                          struct common_error *err)
{
    if (!device->pooled) {
        enum common_code code = device_buffer(device, &device->workspace, bytes, err);
        if (code == COMMON_OK)
            device->workspace_bytes = bytes;
        return code;
    }
    cudaError_t error = cudaSuccess;
    graphs_forget(device);
    if (device->workspace)
        error = cudaFreeAsync(device->workspace, device->compute);
    device->workspace = NULL;
    device->taken -= device->workspace_bytes;
    device->steps -= device->workspace_bytes;
    device->workspace_bytes = 0;
    if (error == cudaSuccess && bytes > device->info.limit_bytes - device->taken)
        return cuda_device_check(device, cudaErrorMemoryAllocation, "a step's workspace", err);
    if (error == cudaSuccess)
        error = cudaMallocAsync(&device->workspace, bytes, device->compute);
    enum common_code code = cuda_device_check(device, error, "a step's workspace", err);
    if (code != COMMON_OK)
        return code;
    device->workspace_bytes = bytes;
    device->taken += bytes;
    device->steps += bytes;
    return COMMON_OK;
}

static enum common_code workspace_room(struct kernels_device *device, uint64_t bytes,
                                       struct common_error *err)
{
    if (bytes > device->workspace_most)
        device->workspace_most = bytes;
    uint64_t size = round_workspace(device->workspace_most);
    bool much = device->workspace_bytes > SHRINK_LEAST && size <= device->workspace_bytes / 4;
    if (bytes > device->workspace_bytes)
        return workspace_replace(device, round_workspace(bytes), err);
    if (++device->workspace_steps < SHRINK_AFTER)
        return COMMON_OK;
    device->workspace_steps = 0;
    device->workspace_most = bytes;
    return much && device->pooled ? workspace_replace(device, size, err) : COMMON_OK;
}

static enum common_code make_room(struct kernels_device *device, struct cuda_slot *slot, uint32_t n,
                                  struct common_error *err)
{
    if (n > slot->out_cap) {
        struct kernels_partial *grown = realloc(slot->outs, n * sizeof(*grown));
        if (!grown)
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
        slot->outs = grown;
        slot->out_cap = n;
    }
    const struct cuda_plan *plan = &device->plan;
    enum common_code code = slot_buffer(device, &slot->args, plan->args_bytes, true, err);
    if (code == COMMON_OK)
        code = slot_buffer(device, &slot->out, plan->out_floats * sizeof(float), false, err);
    if (code == COMMON_OK)
        code = workspace_room(device, plan->partial_floats * sizeof(float), err);
    return code;
}

// Every run lies in a block of the pool, for all heads.
static enum common_code check_runs(const struct kernels_device *device,
                                   const struct kernels_device_item *item, struct common_error *err)
{
    const struct kernels_spec *spec = item->spec;
    uint64_t element = cuda_plan_element(spec->kv_type), start = 0, end = 0;
    bool scaled = element == 1;
    for (uint32_t i = 0; i < item->run_count; i++) {
        const struct kernels_device_run *run = &item->runs[i];
        const uint64_t at[4] = {run->k, run->v, run->k_scale, run->v_scale};
        const uint64_t row[4] = {spec->k_dim * element, spec->v_dim * element, sizeof(float), sizeof(float)};
        for (int part = 0; part < (scaled ? 4 : 2); part++) {
            if (part % 2 && spec->v_in_k) // v and v_scale are not looked at
                continue;
            uint64_t heads = 0, bytes = row[part] * run->rows; // < 2^44
            bool fine = (at[part] >= start && at[part] < end) ||
                        cuda_pool_block(device->pool, at[part], &start, &end);
            fine = fine && at[part] % KERNELS_ALIGN == 0 && bytes <= end - at[part];
            if (fine && spec->kv_heads > 1)
                fine = run->head_stride % KERNELS_ALIGN == 0 &&
                       !__builtin_mul_overflow(run->head_stride, (uint64_t)spec->kv_heads - 1, &heads) &&
                       heads <= end - at[part] - bytes;
            if (!fine)
                return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                        "a run is not aligned or not inside one block of the pool");
        }
    }
    return COMMON_OK;
}

// The launches of a round: one a kernel, and the merge.
static cudaError_t issue_round(const struct kernels_device *device, const struct cuda_plan_pass *pass,
                               struct cuda_launch *launch)
{
    void *arguments[] = {launch};
    const struct dim3 block = {CUDA_THREADS, 1, 1};
    cudaError_t error = cudaSuccess;
    for (uint32_t c = 0; c < CUDA_CLASSES && error == cudaSuccess; c++) {
        if (pass->header.classes[c].tasks == 0)
            continue;
        const struct cuda_kernel *kernel = cuda_plan_kernel(c, device->wgmma);
        const struct dim3 grid = {cuda_plan_grid(pass, c, device->resident[c]), 1, 1};
        launch->class_index = c;
        error = cudaLaunchKernel(kernel->function, grid, block, arguments, cuda_device_shared(device, kernel),
                                 device->compute);
    }
    if (error != cudaSuccess)
        return error;
    const struct dim3 grid = {cuda_plan_round_grid(pass->header.merges), 1, 1};
    return cudaLaunchKernel(cuda_merge.function, grid, block, arguments, cuda_merge.shared_bytes,
                            device->compute);
}

// What the compute stream does for a step whose arguments are there.
static cudaError_t issue(struct kernels_device *device, struct cuda_slot *slot,
                         const struct kernels_device_sink *sink)
{
    const struct cuda_plan *plan = &device->plan;
    cudaError_t error = cudaSuccess;
    struct cuda_launch launch = {.args = (uint64_t)(uintptr_t)slot->args.device,
                                 .partials = (uint64_t)(uintptr_t)device->workspace,
                                 .out = sink ? sink->out : (uint64_t)(uintptr_t)slot->out.host};
    for (; launch.pass < plan->pass_count && error == cudaSuccess; launch.pass++) {
        for (launch.round = 0; launch.round < plan->passes[launch.pass].rounds && error == cudaSuccess;
             launch.round++)
            error = issue_round(device, &plan->passes[launch.pass], &launch);
    }
    return error;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15ULL;
    return h ^ (h >> 29);
}

// Names all that issue() passes on.
static uint64_t shape_key(const struct kernels_device *device, const struct kernels_device_sink *sink)
{
    const struct cuda_plan *plan = &device->plan;
    uint64_t h = mix(1, sink ? sink->out : 0);
    for (uint32_t p = 0; p < plan->pass_count; p++) {
        const struct cuda_header *pass = &plan->passes[p].header;
        h = mix(mix(h, plan->passes[p].rounds), cuda_plan_round_grid(pass->merges));
        for (uint32_t c = 0; c < CUDA_CLASSES; c++) {
            if (pass->classes[c].tasks > 0)
                h = mix(mix(h, c), cuda_plan_grid(&plan->passes[p], c, device->resident[c]));
        }
    }
    return h;
}

static cudaError_t capture(struct kernels_device *device, struct cuda_slot *slot,
                           const struct kernels_device_sink *sink, cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamBeginCapture(device->compute, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return error;
    cudaError_t issued = issue(device, slot, sink);
    error = cudaStreamEndCapture(device->compute, &graph);
    if (error == cudaSuccess)
        error = issued;
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    return error;
}

// Puts a step on the stream, as a graph where its shape has come before.
static cudaError_t slot_start(struct kernels_device *device, struct cuda_slot *slot,
                              const struct kernels_device_sink *sink)
{
    cudaError_t error = cudaMemcpyAsync(slot->args.device, slot->args.host, device->plan.args_bytes,
                                        cudaMemcpyHostToDevice, device->upload);
    if (error == cudaSuccess)
        error = cudaEventRecord(slot->uploaded, device->upload);
    if (error == cudaSuccess)
        error = cudaStreamWaitEvent(device->compute, slot->uploaded, 0);
    if (error != cudaSuccess)
        return error;
    if (device->fresh_writes) {
        error = cudaEventRecord(device->written, device->copy);
        if (error == cudaSuccess)
            error = cudaStreamWaitEvent(device->compute, device->written, 0);
        if (error != cudaSuccess)
            return error;
        device->fresh_writes = false;
    }
    if (sink && !sink->before(sink->arg, device->compute))
        return cudaErrorLaunchFailure;
    uint64_t key = shape_key(device, sink);
    struct cuda_graph *graph = NULL, *oldest = &slot->graphs[0];
    for (uint32_t i = 0; i < CUDA_GRAPHS; i++) {
        if (slot->graphs[i].used && slot->graphs[i].key == key)
            graph = &slot->graphs[i];
        if (slot->graphs[i].used < oldest->used)
            oldest = &slot->graphs[i];
    }
    if (graph) {
        graph->used = ++device->clock;
        if (!graph->exec)
            error = capture(device, slot, sink, &graph->exec);
        if (error == cudaErrorMemoryAllocation) { // no memory for a graph: nothing was started
            (void)cudaGetLastError();
            *graph = (struct cuda_graph){0};
            error = issue(device, slot, sink);
        } else if (error == cudaSuccess) {
            error = cudaGraphLaunch(graph->exec, device->compute);
        }
    } else {
        if (oldest->exec)
            cudaGraphExecDestroy(oldest->exec);
        *oldest = (struct cuda_graph){.key = key, .used = ++device->clock};
        error = issue(device, slot, sink);
    }
    if (error == cudaSuccess && sink && !sink->after(sink->arg, device->compute))
        return cudaErrorLaunchFailure;
    return error == cudaSuccess ? cudaEventRecord(slot->done_event, device->compute) : error;
}

enum common_code cuda_step_submit(struct kernels_device *device, const struct kernels_device_item *items,
                                  uint32_t n, const struct kernels_device_sink *sink,
                                  kernels_device_done *done, void *arg, struct common_error *err)
{
    enum common_code code = cuda_device_enter(device, err);
    if (code != COMMON_OK)
        return code;
    struct cuda_slot *slot = NULL;
    uint32_t index = 0;
    pthread_mutex_lock(&device->lock);
    // The lowest that is free: it is the most likely to know the shape
    for (uint32_t i = CUDA_SLOTS; i-- > 0;) {
        if (!device->slots[i].busy) {
            index = i;
            slot = &device->slots[i];
        }
    }
    pthread_mutex_unlock(&device->lock);
    if (!slot)
        return common_error_set(err, COMMON_IN_PROGRESS, "as many steps as the device takes are in progress");
    code = cuda_plan_make(&device->plan, items, n, sink, err);
    for (uint32_t i = 0; i < n && code == COMMON_OK; i++)
        code = check_runs(device, &items[i], err);
    if (code == COMMON_OK)
        code = make_room(device, slot, n, err);
    if (code != COMMON_OK)
        return code;
    cuda_plan_fill(&device->plan, items, n, slot->args.host);
    for (uint32_t i = 0; i < n; i++)
        slot->outs[i] = items[i].out;
    slot->out_count = sink ? 0 : n;
    double reads_ns = device->bytes_per_ns > 0 ? (double)device->plan.read_bytes / device->bytes_per_ns : 0;
    slot->expected_ns = reads_ns < SPIN_MOST_NS ? (int64_t)reads_ns : 0;
    slot->done = done;
    slot->arg = arg;
    cudaError_t error = slot_start(device, slot, sink);
    if (error == cudaErrorMemoryAllocation) // half a step may be on the stream: its end is unknown
        error = cudaErrorLaunchFailure;
    code = cuda_device_check(device, error, "a step", err);
    if (code != COMMON_OK)
        return code;
    pthread_mutex_lock(&device->lock);
    slot->busy = true;
    device->queue[device->queued++] = index;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    return COMMON_OK;
}

// ---- the waiter ------------------------------------------------------------------------------------------

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// What the step reads takes expected_ns at least, so it asks until then and SPIN_NS more.
static cudaError_t wait_for(const struct cuda_slot *slot)
{
    int64_t until = now_ns() + slot->expected_ns + SPIN_NS;
    cudaError_t error;
    while ((error = cudaEventQuery(slot->done_event)) == cudaErrorNotReady && now_ns() < until)
        continue;
    return error == cudaErrorNotReady ? cudaEventSynchronize(slot->done_event) : error;
}

static void copy_out(const struct cuda_slot *slot)
{
    const float *from = slot->out.host;
    for (uint32_t i = 0; i < slot->out_count; i++) {
        const struct kernels_partial *p = &slot->outs[i];
        uint64_t n = (uint64_t)p->rows * p->heads, plane = (n + 15) / 16 * 16; // as plan.c lays them out
        memcpy(p->m, from, n * sizeof(float));
        memcpy(p->s, from + plane, n * sizeof(float));
        memcpy(p->o, from + 2 * plane, n * p->dv * sizeof(float));
        from += 2 * plane + (n * p->dv + 15) / 16 * 16;
    }
}

static void *wait_and_tell(void *arg)
{
    struct kernels_device *device = arg;
    cudaSetDevice(device->index);
    pthread_mutex_lock(&device->lock);
    for (;;) {
        while (device->queued == 0 && !device->stop)
            pthread_cond_wait(&device->changed, &device->lock);
        if (device->queued == 0)
            break;
        struct cuda_slot *slot = &device->slots[device->queue[0]];
        pthread_mutex_unlock(&device->lock);
        struct common_error err = {0};
        enum common_code code = cuda_device_check(device, wait_for(slot), "a step", &err);
        if (code == COMMON_OK)
            copy_out(slot);
        kernels_device_done *done = slot->done;
        void *done_arg = slot->arg;
        pthread_mutex_lock(&device->lock);
        if (device->lost) { // also one that ended just before: nothing is trusted any more
            code = COMMON_UNAVAILABLE;
            err = device->reason;
        }
        device->queued--;
        memmove(device->queue, device->queue + 1, device->queued * sizeof(device->queue[0]));
        slot->busy = false;
        pthread_mutex_unlock(&device->lock);
        done(done_arg, code, &err);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

// The driver loads a kernel when it is first used, which may wait for all that is on the device's streams. Those of the
// classes are loaded where their attributes are set.
static cudaError_t load_kernels(void)
{
    const struct cuda_kernel *const others[] = {&cuda_merge, &cuda_read, &cuda_copies};
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < sizeof(others) / sizeof(others[0]) && error == cudaSuccess; i++)
        error = cudaFuncGetAttributes(&attributes, others[i]->function);
    return error;
}

enum common_code cuda_step_init(struct kernels_device *device, struct common_error *err)
{
    enum common_code loaded = cuda_device_check(device, load_kernels(), "the kernels", err);
    if (loaded != COMMON_OK)
        return loaded;
    // 0: a block of threads a task, should a device show that going on is wrong; n: so many, for tests
    const char *blocks = getenv("BANYAN_CUDA_PERSISTENT");
    int multiprocessors = 0;
    if (!blocks) {
        cudaError_t error =
            cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device->index);
        if (error != cudaSuccess)
            return cuda_device_check(device, error, "opening it", err);
    }
    for (uint32_t c = 0; c < CUDA_CLASSES; c++) {
        const struct cuda_kernel *kernel = cuda_plan_kernel(c, device->wgmma);
        cudaError_t error =
            cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)cuda_device_shared(device, kernel));
        if (error == cudaSuccess) // L1 is not used; without it the driver may leave room for fewer blocks
            error = cudaFuncSetAttribute(kernel->function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared);
        int each = 0;
        if (error == cudaSuccess && kernel->goes_on != 0 && !blocks)
            error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel->function, CUDA_THREADS,
                                                                  cuda_device_shared(device, kernel));
        if (kernel->goes_on != 0)
            device->resident[c] =
                blocks ? (uint32_t)strtoul(blocks, NULL, 10) : (uint32_t)each * (uint32_t)multiprocessors;
        if (error != cudaSuccess)
            return cuda_device_check(device, error, "the kernels", err);
    }
    for (uint32_t i = 0; i < CUDA_SLOTS; i++) {
        cudaError_t error = cudaEventCreateWithFlags(&device->slots[i].done_event,
                                                     cudaEventDisableTiming | cudaEventBlockingSync);
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&device->slots[i].uploaded, cudaEventDisableTiming);
        if (error != cudaSuccess)
            return cuda_device_check(device, error, "an event", err);
    }
    if (pthread_create(&device->waiter, NULL, wait_and_tell, device) != 0)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no thread to wait for the device");
    device->has_waiter = true;
    return COMMON_OK;
}

void cuda_step_fini(struct kernels_device *device)
{
    if (device->has_waiter) {
        pthread_mutex_lock(&device->lock);
        device->stop = true;
        pthread_cond_broadcast(&device->changed);
        pthread_mutex_unlock(&device->lock);
        pthread_join(device->waiter, NULL);
    }
    graphs_forget(device);
    for (uint32_t i = 0; i < CUDA_SLOTS; i++) {
        struct cuda_slot *slot = &device->slots[i];
        if (slot->done_event)
            cudaEventDestroy(slot->done_event);
        if (slot->uploaded)
            cudaEventDestroy(slot->uploaded);
        cudaFree(slot->args.device);
        cudaFreeHost(slot->args.host);
        cudaFreeHost(slot->out.host);
        free(slot->outs);
    }
    cudaFree(device->workspace);
    while (device->old) {
        struct cuda_old *old = device->old;
        device->old = old->next;
        if (old->pinned)
            cudaFreeHost(old->memory);
        else
            cudaFree(old->memory);
        free(old);
    }
}
