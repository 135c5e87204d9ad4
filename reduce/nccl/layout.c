// SPDX-License-Identifier: Apache-2.0
#include "reduce/nccl/layout.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "common/memory/blob.h"
#include "kernels/partial.h"

static size_t args_bytes(uint32_t items, uint32_t ranks, size_t *children_at)
{
    *children_at = sizeof(struct nccl_args) + items * sizeof(struct nccl_item);
    return common_align64(*children_at + 2 * (size_t)ranks * sizeof(uint32_t));
}

size_t nccl_layout_args_most(uint32_t ranks)
{
    size_t at;
    return args_bytes(PROTO_STEP_ITEMS_MAX, ranks, &at);
}

static uint64_t name_of(const struct proto_step *step)
{
    uint64_t h = common_mix64(step->term);
    h = common_mix64(h ^ step->plan);
    h = common_mix64(h ^ step->plan_epoch);
    h = common_mix64(h ^ step->step);
    return common_mix64(h ^ step->attempt);
}

// Children of each rank in ascending order.
static void list_children(const int32_t *parents, uint32_t ranks, uint32_t *first, uint32_t *child)
{
    for (uint32_t r = 1; r < ranks; r++)
        first[parents[r] + 1]++;
    for (uint32_t r = 0; r < ranks; r++)
        first[r + 1] += first[r];
    for (uint32_t r = 1; r < ranks; r++)
        child[first[parents[r]]++] = r;
    memmove(first + 1, first,
            ranks * sizeof *first); // each is where its own list ends: where the next begins
    first[0] = 0;
}

bool nccl_layout_make(struct nccl_layout *out, const struct proto_step *step, size_t bytes,
                      const int32_t *parents, uint32_t ranks)
{
    size_t children_at, size = args_bytes(step->n_items, ranks, &children_at);
    struct nccl_args *args = calloc(1, size);
    if (!args)
        return false;
    struct nccl_item *items = (struct nccl_item *)(args + 1);
    uint64_t at = 0, pairs = 0;
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        uint64_t n = (uint64_t)item->rows * item->q_heads;
        if (pairs + n > INT32_MAX) {
            free(args);
            return false;
        }
        items[i] = (struct nccl_item){.at = at,
                                      .first_pair = (uint32_t)pairs,
                                      .pairs = (uint32_t)n,
                                      .plane = (uint32_t)((n + 15) / 16 * 16),
                                      .dv = item->v_dim};
        pairs += n;
        at += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim) / sizeof(float);
    }
    uint32_t *first = (uint32_t *)((char *)args + children_at);
    if (ranks > 1)
        list_children(parents, ranks, first, first + ranks + 1);
    args->tag = (struct nccl_tag){.magic = NCCL_TAG_MAGIC,
                                  .generation = step->collective.generation,
                                  .sequence = step->collective.sequence,
                                  .step = name_of(step),
                                  .bytes = bytes};
    args->items = step->n_items;
    args->pairs = (uint32_t)pairs;
    args->ranks = ranks;
    args->items_at = sizeof *args;
    args->children_at = (uint32_t)children_at;
    *out = (struct nccl_layout){.bytes = bytes, .args_bytes = size, .pairs = (uint32_t)pairs, .args = args};
    return true;
}

void nccl_layout_free(struct nccl_layout *layout)
{
    free(layout->args);
    layout->args = NULL;
}
