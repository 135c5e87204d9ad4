// SPDX-License-Identifier: Apache-2.0
#include "worker/core/compute.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "common/memory/blob.h"
#include "common/memory/block.h"
#include "kernels/device.h"
#include "kernels/split.h"
#include "worker/core/pace.h"
#include "worker/store/cold.h"
#include "worker/store/wants.h"

struct item {
    struct worker_spec *spec;
    struct kernels_spec slab; // the spec, of the slab's heads only
    struct kernels_item item;
    struct kernels_split split;
    struct kernels_partial out;
    void *runs; // of the kernels, or of a device
    void *workspace;
    uint32_t first_task;
    atomic_uint left; // tasks; the one that brings it to 0 merges
};

struct pin { // a chunk that is read, and how many rows of it
    struct worker_chunk *chunk;
    uint32_t seen;
};

struct worker_compute {
    struct worker_store *store;
    uint64_t budget, bytes, madds, tokens, scratch;
    double work;
    uint64_t kind; // of all items; 0: they are of several, or there are none
    uint32_t tasks, n_items;
    struct pin *pins;
    size_t n_pins, cap_pins;
    struct kernels_device_item *device_items; // [n_items]; NULL: this process computes
    struct item items[];
};

struct worker_compute *worker_compute_new(struct worker_store *store, uint32_t max_items,
                                          uint64_t budget_bytes)
{
    struct worker_compute *compute =
        common_block_take(sizeof *compute + max_items * sizeof *compute->items, COMMON_BLOCK_DAEMONS);
    if (!compute)
        return NULL;
    *compute = (struct worker_compute){0}; // items are set one by one
    compute->budget = budget_bytes;
    compute->store = store;
    compute->bytes = sizeof *compute + max_items * sizeof *compute->items;
    if (!worker_store_device(store))
        return compute;
    compute->device_items = calloc(max_items, sizeof *compute->device_items);
    compute->bytes += max_items * sizeof *compute->device_items;
    if (!compute->device_items) {
        common_block_give(compute);
        return NULL;
    }
    return compute;
}

// Which keys of a chunk an item has to do with.
struct share {
    uint32_t covered; // below visible: counted
    uint32_t seen;    // some row may see them: computed
};

// The keys that some row of an item may see: the ends of rows' intervals do not fall from one row to the next.
static struct kernels_interval sees_of(const struct worker_compute_item *item)
{
    const struct kernels_spec *spec = &worker_spec_kind(item->session->spec, item->layer)->kernels;
    const struct kernels_mask mask = {.visible = item->visible,
                                      .window = spec->window,
                                      .mask_chunk = spec->mask_chunk,
                                      .block_first = item->block_first,
                                      .block_end = item->block_end,
                                      .not_causal = spec->not_causal};
    return (struct kernels_interval){.from = kernels_row_interval(&mask, item->first).from,
                                     .to = kernels_row_interval(&mask, item->first + item->rows - 1).to};
}

static struct share share_of(const struct worker_compute_item *item, const struct kernels_interval *sees,
                             const struct worker_session_chunk *entry)
{
    struct share share = {0, 0};
    uint64_t first = worker_chunk_first(entry->chunk);
    if (!entry->compute || first >= item->visible)
        return share;
    uint32_t ready = worker_session_gave_back(item->session, item->source, entry->chunk)
                         ? worker_chunk_shape(entry->chunk)->chunk_tokens
                         : worker_chunk_ready(entry->chunk, item->source);
    uint64_t below = item->visible - first;
    share.covered = below < ready ? (uint32_t)below : ready;
    if (first < sees->to)
        share.seen = sees->to - first < share.covered ? (uint32_t)(sees->to - first) : share.covered;
    if (first + share.seen <= sees->from)
        share.seen = 0; // before what any row sees
    return share;
}

static bool grow_pins(struct worker_compute *compute, size_t n)
{
    if (n <= compute->cap_pins - compute->n_pins)
        return true;
    size_t cap = compute->n_pins + n;
    cap += cap / 2;
    struct pin *pins = common_block_take(cap * sizeof *pins, COMMON_BLOCK_DAEMONS);
    if (!pins)
        return false;
    if (compute->pins)
        memcpy(pins, compute->pins, compute->n_pins * sizeof *pins);
    common_block_give(compute->pins);
    compute->bytes += (cap - compute->cap_pins) * sizeof *pins;
    compute->pins = pins;
    compute->cap_pins = cap;
    return true;
}

// The spec of the item's heads alone.
static void cut_slab(struct item *to, const struct worker_compute_item *item)
{
    to->slab = worker_spec_kind(item->session->spec, item->layer)->kernels;
    uint32_t group = kernels_spec_group(&to->slab);
    to->slab.kv_heads = item->kv_heads;
    to->slab.q_heads = item->kv_heads * group;
    if (to->slab.alibi)
        to->slab.alibi += item->kv_head * group;
}

// The same as lay_out, for a device: it cuts the item up by itself.
static bool lay_out_there(uint64_t budget, struct item *to, struct kernels_device_item *there,
                          const struct worker_compute_item *item, const struct pin *pins, uint32_t n,
                          uint32_t run_count, uint64_t *bytes)
{
    *bytes = (uint64_t)run_count * sizeof(struct kernels_device_run);
    struct kernels_device_run *run =
        *bytes <= budget ? common_block_take(*bytes, COMMON_BLOCK_DAEMONS) : NULL;
    if (!run)
        return false;
    to->runs = run;
    cut_slab(to, item);
    *there = (struct kernels_device_item){.spec = &to->slab,
                                          .rows = item->rows,
                                          .q_first = item->first,
                                          .visible = item->visible,
                                          .block_first = item->block_first,
                                          .block_end = item->block_end,
                                          .q = item->q,
                                          .q_row_stride = (uint64_t)to->slab.q_heads * to->slab.k_dim,
                                          .q_head_stride = to->slab.k_dim,
                                          .run_count = run_count,
                                          .runs = run,
                                          .out = item->out};
    for (uint32_t i = 0; i < n; i++)
        run += worker_chunk_device_runs(pins[i].chunk, item->source, item->kv_head, pins[i].seen, run);
    return true;
}

// Runs, workspace and the split, for the chunks of `pins`. False: out of memory.
static bool lay_out(uint64_t budget, struct item *to, const struct worker_compute_item *item,
                    const struct pin *pins, uint32_t n, uint32_t run_count, uint64_t *bytes)
{
    struct kernels_run *runs = common_block_take((size_t)item->kv_heads * run_count * sizeof *runs,
                                                 COMMON_BLOCK_DAEMONS),
                       *run = runs;
    if (!runs)
        return false;
    for (uint32_t i = 0; i < n; i++)
        run += worker_chunk_runs(pins[i].chunk, item->source, item->kv_head, item->kv_heads, pins[i].seen,
                                 run_count, run);
    assert(run == runs + run_count);
    to->runs = runs;
    cut_slab(to, item);
    uint64_t k_dim = to->slab.k_dim;
    to->item = (struct kernels_item){.spec = &to->slab,
                                     .kernel = worker_spec_kind(item->session->spec, item->layer)->kernel,
                                     .rows = item->rows,
                                     .q_first = item->first,
                                     .visible = item->visible,
                                     .block_first = item->block_first,
                                     .block_end = item->block_end,
                                     .q = item->q,
                                     .q_row_stride = to->slab.q_heads * k_dim,
                                     .q_head_stride = k_dim,
                                     .chunk_tokens = item->session->spec->shape->chunk_tokens,
                                     .run_count = run_count,
                                     .runs = runs};
    uint64_t workspace = kernels_split_bytes(&to->item);
    *bytes = workspace + (uint64_t)item->kv_heads * run_count * sizeof *runs;
    if (workspace > 0 && *bytes <= budget)
        to->workspace = common_block_take(workspace, COMMON_BLOCK_DAEMONS);
    if (!to->workspace) {
        common_block_give(runs);
        return false;
    }
    kernels_split_init(&to->split, &to->item, to->workspace);
    return true;
}

// Rows of a chunk are read once for all query rows of an item. What few and many rows take is not alike.
static void count_work(struct worker_compute *compute, const struct worker_kind *kind,
                       const struct worker_compute_item *item, uint64_t seen, uint64_t madds)
{
    const struct worker_form *form = worker_shape_form(item->session->spec->shape, item->source);
    const struct kernels_spec *spec = &kind->kernels;
    uint64_t row = form->kv_heads ? (form->k_wire + form->v_wire) / form->kv_heads * item->kv_heads : 0;
    uint32_t bits = 0;
    while (item->rows >> bits > 1)
        bits++;
    uint64_t of = common_mix64(kind->kernel_digest ^ bits ^ (uint64_t)spec->kv_type << 8 ^
                               (uint64_t)kernels_spec_group(spec) << 16);
    of = common_mix64(of ^ spec->k_dim ^ (uint64_t)spec->v_dim << 16 ^ (uint64_t)item->kv_heads << 32) | 1;
    compute->kind = compute->work <= 0 || compute->kind == of ? of : 0;
    compute->work += worker_pace_work((double)(seen * row), (double)madds);
}

void worker_compute_wants(const struct worker_compute_item *item, struct worker_wants *wants)
{
    const struct worker_session *session = item->session;
    uint32_t n, from = worker_session_span(session, item->from, item->visible - item->from, &n);
    const struct kernels_interval sees = sees_of(item);
    for (uint32_t i = from; i < from + n; i++)
        if (share_of(item, &sees, &session->chunks[i]).seen > 0)
            worker_wants_add(wants, session->chunks[i].chunk, item->source);
}

enum common_code worker_compute_add(struct worker_compute *compute, const struct worker_compute_item *item,
                                    struct kernels_coverage *coverage, uint64_t *digest,
                                    struct common_error *err)
{
    const struct worker_session *session = item->session;
    struct item *to = &compute->items[compute->n_items];
    struct kernels_coverage cover = {0, 0};
    uint64_t seen = 0, bytes = 0;
    uint32_t n, from = worker_session_span(session, item->from, item->visible - item->from, &n),
                run_count = 0, n_pins = 0;
    const struct worker_kind *kind = worker_spec_kind(session->spec, item->layer);
    uint64_t trail = common_mix64(kind->kernel_digest ^ ((uint64_t)item->rows << 32 | item->kv_heads));
    const struct kernels_interval sees = sees_of(item);
    if (!grow_pins(compute, n))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a step");
    for (uint32_t i = from; i < from + n; i++) {
        const struct worker_session_chunk *entry = &session->chunks[i];
        struct share share = share_of(item, &sees, entry);
        kernels_coverage_count(&cover, worker_chunk_id(entry->chunk), share.covered, session->epoch);
        if (share.seen == 0)
            continue;
        if (worker_chunk_forgotten(entry->chunk, item->source) ||
            worker_chunk_ready(entry->chunk, item->source) < share.seen)
            return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "the row at position %" PRIu64
                                    " of layer %u sees keys from position %" PRIu64
                                    " on, and those of the chunk at %" PRIu64 " are forgotten",
                                    item->first, item->layer, sees.from, worker_chunk_first(entry->chunk));
        if (worker_chunk_cold(entry->chunk, item->source))
            return common_error_set(
                err, COMMON_RESOURCE_EXHAUSTED,
                "rows of layer %u are not in memory and could not be read from --store: try again",
                item->source);
        worker_chunk_touch(compute->store, entry->chunk, item->source);
        run_count += worker_chunk_run_count(entry->chunk, item->source, share.seen);
        seen += share.seen;
        compute->pins[compute->n_pins + n_pins++] = (struct pin){entry->chunk, share.seen};
        // Where the rows stand, not the chunk's id: bits do not depend on it, and a fork may say that it has
        // its origin's
        trail = common_mix64(trail ^
                             common_mix64(worker_chunk_first(entry->chunk) ^ ((uint64_t)share.seen << 40)));
    }
    *to = (struct item){.out = item->out};
    if (run_count == 0) {
        kernels_partial_reset(&item->out);
    } else {
        uint64_t budget = compute->budget > compute->bytes ? compute->budget - compute->bytes : 0;
        const struct pin *pins = compute->pins + compute->n_pins;
        struct kernels_device_item *there =
            compute->device_items ? &compute->device_items[compute->n_items] : NULL;
        if (!(there ? lay_out_there(budget, to, there, item, pins, n_pins, run_count, &bytes)
                    : lay_out(budget, to, item, pins, n_pins, run_count, &bytes)))
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                    "no memory for the step: try again when less is in flight or with fewer "
                                    "rows, or raise the worker's --memory");
        for (uint32_t i = 0; i < n_pins; i++)
            worker_store_pin(pins[i].chunk);
        compute->n_pins += n_pins;
        to->spec = worker_spec_ref(session->spec);
        to->first_task = compute->tasks;
        atomic_init(&to->left, to->split.tasks);
        compute->n_items++;
        compute->tasks += to->split.tasks; // none on a device
        compute->bytes += bytes;
        uint64_t madds = seen * item->rows * to->slab.q_heads * (to->slab.k_dim + to->slab.v_dim);
        compute->madds += madds;
        count_work(compute, kind, item, seen, madds);
        uint64_t scratch = there ? 0 : kernels_split_scratch(&to->item);
        compute->scratch = scratch > compute->scratch ? scratch : compute->scratch;
    }
    compute->tokens += cover.tokens;
    *coverage = cover;
    *digest = trail;
    return COMMON_OK;
}

uint64_t worker_compute_madds(const struct worker_compute *compute)
{
    return compute->madds;
}

double worker_compute_work(const struct worker_compute *compute, uint64_t *kind)
{
    *kind = compute->kind;
    return compute->work;
}

uint64_t worker_compute_bytes(const struct worker_compute *compute)
{
    return compute->bytes;
}

uint64_t worker_compute_tokens(const struct worker_compute *compute)
{
    return compute->tokens;
}

uint32_t worker_compute_tasks(const struct worker_compute *compute)
{
    return compute->tasks;
}

uint64_t worker_compute_scratch(const struct worker_compute *compute)
{
    return compute->scratch;
}

const struct kernels_device_item *worker_compute_device_items(const struct worker_compute *compute,
                                                              uint32_t *n)
{
    *n = compute->n_items;
    return compute->n_items > 0 ? compute->device_items : NULL;
}

void worker_compute_run(void *arg, uint32_t task, void *scratch)
{
    struct worker_compute *compute = arg;
    uint32_t lo = 0, hi = compute->n_items;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (compute->items[mid].first_task <= task)
            lo = mid;
        else
            hi = mid;
    }
    struct item *item = &compute->items[lo];
    kernels_split_run(&item->split, task - item->first_task, scratch);
    // Acquire and release: the last one reads what all the others wrote.
    if (atomic_fetch_sub_explicit(&item->left, 1, memory_order_acq_rel) == 1)
        kernels_split_merge(&item->split, &item->out);
}

void worker_compute_free(struct worker_compute *compute)
{
    if (!compute)
        return;
    for (size_t i = 0; i < compute->n_pins; i++)
        worker_store_unpin(compute->store, compute->pins[i].chunk);
    for (uint32_t i = 0; i < compute->n_items; i++) {
        worker_spec_unref(compute->items[i].spec);
        common_block_give(compute->items[i].runs);
        common_block_give(compute->items[i].workspace);
    }
    free(compute->device_items);
    common_block_give(compute->pins);
    common_block_give(compute);
}
