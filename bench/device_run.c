// SPDX-License-Identifier: Apache-2.0
#include "bench/device_run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/processors/module.h"

enum common_code device_run_open(const char *name, uint32_t index, const char *module,
                                 const struct kernels_device_ops **out_ops, struct kernels_device **out,
                                 struct common_error *err)
{
    char path[4096];
    const void *symbol;
    struct common_error why = {.message = ""};
    if (!module && !worker_module_find(name, path, sizeof path))
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "there is no banyan-%s.so beside the program or in ../lib: give --module",
                                name);
    enum common_code code = worker_module_open(module ? module : path, KERNELS_DEVICE_SYMBOL, &symbol, err);
    if (code != COMMON_OK)
        return code;
    const struct kernels_device_ops *ops = symbol;
    if (ops->abi != KERNELS_DEVICE_ABI || ops->size != sizeof *ops)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "%.200s is not a device module of this version", module ? module : path);
    if (strcmp(ops->name, name) != 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the module serves devices named %.31s, not %.31s", ops->name, name);
    if (ops->count(&why) == 0)
        return common_error_set(err, COMMON_UNAVAILABLE, "%.300s",
                                why.message[0] ? why.message : "the module sees no device");
    code = ops->open(index, 0, out, err);
    if (code == COMMON_OK)
        *out_ops = ops;
    return code;
}

// ---- steps

enum common_code device_steps_init(struct device_steps *steps, const struct device_data *data,
                                   uint32_t in_flight, struct common_error *err)
{
    const struct device_shape *s = &data->shape;
    uint64_t n = (uint64_t)in_flight * s->batch;
    *steps = (struct device_steps){
        .data = data,
        .in_flight = in_flight,
        .item_bytes = kernels_partial_bytes(s->rows, data->spec.q_heads, data->spec.v_dim),
    };
    steps->items = calloc(n, sizeof *steps->items);
    steps->partials = steps->item_bytes ? aligned_alloc(KERNELS_ALIGN, n * steps->item_bytes) : NULL;
    sem_init(&steps->ended, 0, 0);
    if (!steps->items || !steps->partials)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for partials");
    memset(steps->partials, 0xff, n * steps->item_bytes); // NaN: cannot pass for an answer
    for (uint64_t i = 0; i < n; i++)
        kernels_partial_view((char *)steps->partials + i * steps->item_bytes, s->rows, data->spec.q_heads,
                             data->spec.v_dim, &steps->items[i].out);
    return COMMON_OK;
}

void device_steps_fini(struct device_steps *steps)
{
    if (steps->data)
        sem_destroy(&steps->ended);
    free(steps->items);
    free(steps->partials);
    *steps = (struct device_steps){0};
}

static void done(void *arg, enum common_code code, const struct common_error *err) // on the module's thread
{
    struct device_steps *steps = arg;
    steps->last_ns = common_clock_ns();
    if (steps->count++ == 0)
        steps->first_ns = steps->last_ns;
    if (code != COMMON_OK && steps->code == COMMON_OK) {
        steps->code = code;
        steps->err = *err;
    }
    sem_post(&steps->ended);
}

static enum common_code submit(struct device_steps *steps, uint32_t slot, uint32_t copy,
                               struct common_error *err)
{
    const struct device_data *data = steps->data;
    uint32_t batch = data->shape.batch;
    struct kernels_device_item *items = steps->items + (uint64_t)slot * batch;
    device_data_items(data, copy, items);
    return data->ops->submit(data->handle, items, batch, NULL, done, steps, err);
}

static void wait_one(struct device_steps *steps)
{
    while (sem_wait(&steps->ended) != 0 && errno == EINTR)
        ;
}

uint32_t device_steps_turn(struct device_steps *steps)
{
    uint32_t copy = steps->turn;
    steps->turn = (copy + 1) % steps->data->copies;
    return copy;
}

// Nothing may be under way.
static void begin(struct device_steps *steps)
{
    steps->count = 0;
    steps->code = COMMON_OK;
}

static enum common_code end(struct device_steps *steps, struct common_error *err)
{
    return steps->code == COMMON_OK ? COMMON_OK
                                    : common_error_set(err, steps->code, "%s", steps->err.message);
}

enum common_code device_steps_one(struct device_steps *steps, uint32_t copy, double *ns,
                                  struct kernels_partial *outs, struct common_error *err)
{
    begin(steps);
    uint64_t start = common_clock_ns();
    enum common_code code = submit(steps, 0, copy, err);
    if (code != COMMON_OK)
        return code;
    wait_one(steps);
    *ns = (double)(steps->last_ns - start);
    for (uint32_t b = 0; outs && b < steps->data->shape.batch; b++)
        outs[b] = steps->items[b].out;
    return end(steps, err);
}

enum common_code device_steps_rate(struct device_steps *steps, uint32_t n, double *ns_per_step,
                                   struct common_error *err)
{
    enum common_code code = COMMON_OK;
    uint32_t submitted = 0, ended = 0, copy = device_steps_turn(steps);
    begin(steps);
    while (code == COMMON_OK && ended < n) {
        while (code == COMMON_OK && submitted < n) {
            code = submit(steps, submitted % steps->in_flight, copy, err);
            if (code == COMMON_OK) {
                copy = device_steps_turn(steps);
                submitted++;
            }
        }
        if (code == COMMON_IN_PROGRESS)
            code = COMMON_OK;
        if (ended == submitted) // none is under way, and none can be
            break;
        wait_one(steps);
        ended++;
    }
    for (; ended < submitted; ended++) // after a failure
        wait_one(steps);
    if (code == COMMON_OK)
        code = end(steps, err);
    if (code == COMMON_OK && steps->count < n)
        code =
            common_error_set(err, COMMON_INTERNAL, "the device accepts no step although none is in progress");
    if (code == COMMON_OK)
        *ns_per_step = (double)(steps->last_ns - steps->first_ns) / (n - 1);
    return code;
}

enum common_code device_steps_copy(struct device_steps *steps, uint32_t n, double *bytes_per_s,
                                   struct common_error *err)
{
    const struct device_data *data = steps->data;
    uint64_t bytes = 0, all = 0, start = common_clock_ns();
    enum common_code code = COMMON_OK;
    for (uint32_t i = 0; code == COMMON_OK && i < n; i++, all += bytes)
        code = device_data_copy(data, device_steps_turn(steps), &bytes, err);
    if (code == COMMON_OK)
        code = device_data_wait(data, err);
    *bytes_per_s = 2 * (double)all * 1e9 / (double)(common_clock_ns() - start);
    return code;
}
