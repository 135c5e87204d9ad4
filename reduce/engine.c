// SPDX-License-Identifier: Apache-2.0
#include "reduce/engine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/hash/hash.h"

// ---- registry -----------------------------------------------------------------------------------

#define ENGINES_MAX 8

// Filled before threads start; modules register from main, too.
static const struct reduce_engine_ops *engines[ENGINES_MAX] = {&reduce_engine_stream};
static unsigned n_engines = 1;

enum common_code reduce_engine_register(const struct reduce_engine_ops *ops)
{
    if (!ops || !ops->name || ops->name[0] == 0 || !ops->open || !ops->close || !ops->begin ||
        !ops->contribute || !ops->cancel)
        return COMMON_INVALID_ARGUMENT;
    if (reduce_engine_find(ops->name))
        return COMMON_ALREADY_EXISTS;
    if (n_engines == ENGINES_MAX)
        return COMMON_RESOURCE_EXHAUSTED;
    engines[n_engines++] = ops;
    return COMMON_OK;
}

const struct reduce_engine_ops *reduce_engine_find(const char *name)
{
    for (unsigned i = 0; i < n_engines; i++) {
        if (strcmp(engines[i]->name, name) == 0)
            return engines[i];
    }
    return NULL;
}

const struct reduce_engine_ops *reduce_engine_at(unsigned index)
{
    return index < n_engines ? engines[index] : NULL;
}

// ---- merging ------------------------------------------------------------------------------------

bool reduce_partials_bytes(const struct proto_step *step, size_t limit, size_t *out)
{
    size_t total = 0;
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        uint64_t bytes = kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
        if (bytes == 0 || bytes > limit - total)
            return false;
        total += bytes;
    }
    *out = total;
    return true;
}

// Merging is a fold in rank order, and so is the digest: neither is commutative.
static uint64_t fold_digest(uint64_t into, uint64_t child)
{
    return common_mix64(common_mix64(into) + child);
}

static void merge_item(struct proto_step_result_item *into, const struct proto_step_result_item *child)
{
    if (into->code == COMMON_OK && child->code != COMMON_OK) {
        into->code = child->code;
        memcpy(into->message, child->message, sizeof into->message);
        memcpy(into->reason, child->reason, sizeof into->reason);
        memcpy(into->worker, child->worker, sizeof into->worker);
    }
    into->cover_tokens += child->cover_tokens;
    into->cover_sum += child->cover_sum;
    into->appends += child->appends;
    into->digest = fold_digest(into->digest, child->digest);
}

bool reduce_result_empty(const struct proto_step_result *result)
{
    for (uint32_t i = 0; i < result->n_items; i++)
        if (result->items[i].code == COMMON_OK && result->items[i].cover_tokens > 0)
            return false;
    return true;
}

void reduce_clear_failed(const struct proto_step *step, const struct proto_step_result *result,
                         struct common_blob *partials)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        if (result->items[i].code != COMMON_OK) {
            struct kernels_partial view;
            kernels_partial_view(partials->data + offset, item->rows, item->q_heads, item->v_dim, &view);
            kernels_partial_reset(&view);
            kernels_partial_pad(partials->data + offset, item->rows, item->q_heads, item->v_dim);
        }
        offset += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
}

void reduce_merge(const struct proto_step *step, struct common_blob *into, struct proto_step_result *result,
                  const void *child_partials, const struct proto_step_result *child)
{
    assert(result->n_items == step->n_items && child->n_items == step->n_items);
    size_t offset = 0;
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        if (into && result->items[i].code == COMMON_OK && child->items[i].code == COMMON_OK &&
            child->items[i].cover_tokens > 0) {
            struct kernels_partial ours, theirs;
            kernels_partial_view(into->data + offset, item->rows, item->q_heads, item->v_dim, &ours);
            // A view has no const form; a merge does not write to its second argument.
            kernels_partial_view((uint8_t *)child_partials + offset, item->rows, item->q_heads, item->v_dim,
                                 &theirs);
            kernels_partial_merge(&ours, &theirs);
        }
        merge_item(&result->items[i], &child->items[i]);
        offset += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
    result->joined += child->joined;
    if (child->generation != result->generation)
        result->generation = 0;
}
