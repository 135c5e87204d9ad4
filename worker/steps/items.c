// SPDX-License-Identifier: Apache-2.0
#include "worker/steps/items.h"

#include "proto/model/spec.h"
#include "worker/core/compute.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/store/cold.h"

const char *worker_item_problem(const struct worker_session *session, const struct proto_step_item *item)
{
    const struct worker_kind *kind = worker_spec_kind(session->spec, item->layer);
    if (!kind)
        return "no such layer, or it holds nothing";
    const struct kernels_spec *spec = &kind->kernels;
    const struct worker_form *form = worker_shape_form(session->spec->shape, item->layer);
    if (item->n_append > 0 && !form)
        return "the layer has no rows of its own";
    if (item->first >= WORKER_POSITIONS_MAX || item->visible > WORKER_POSITIONS_MAX)
        return "no such position";
    if (item->kv_heads < 1 || item->kv_head >= spec->kv_heads ||
        item->kv_heads > spec->kv_heads - item->kv_head ||
        item->q_heads != item->kv_heads * kernels_spec_group(spec) || item->v_dim != spec->v_dim)
        return "the slab does not fit the session's heads";
    if (item->q_offset % sizeof(float) != 0 ||
        item->q_bytes != (uint64_t)item->rows * item->q_heads * spec->k_dim * sizeof(float))
        return "q does not have the slab's size";
    if (item->k_bytes == 0 && item->v_bytes == 0)
        return NULL;
    if (!form || item->k_bytes != item->append_rows * form->k_wire ||
        item->v_bytes != item->append_rows * form->v_wire)
        return "k or v does not have the item's size";
    return NULL;
}

// What an item reads. False: it will be refused, and reads nothing.
static bool item_reads(const struct worker *worker, const struct proto_step_item *item,
                       struct worker_compute_item *out)
{
    const struct worker_session *session = worker_map_get(&worker->sessions, item->session);
    if (!session || session->incarnation != item->incarnation || session->epoch != item->epoch ||
        session->short_of_rows || worker_item_problem(session, item))
        return false;
    *out = (struct worker_compute_item){.session = session,
                                        .layer = item->layer,
                                        .source = proto_spec_source(session->spec->pb, item->layer),
                                        .rows = item->rows,
                                        .first = item->first,
                                        .visible = item->visible,
                                        .block_first = item->block_first,
                                        .block_end = item->block_first + item->block_count};
    return true;
}

void worker_item_wants(const struct worker *worker, const struct proto_step *step,
                       const struct proto_step_item *item, struct worker_wants *wants)
{
    struct worker_compute_item reads;
    if (!item_reads(worker, item, &reads))
        return;
    worker_compute_wants(&reads, wants);
    for (uint32_t i = 0; i < item->n_append; i++) {
        struct worker_chunk *chunk =
            worker_store_find(worker->store, step->appends[item->append_first + i].chunk);
        if (chunk && worker_chunk_any_cold(chunk))
            worker_wants_add_chunk(wants, chunk);
    }
}

bool worker_any_cold(const struct worker *worker)
{
    struct worker_cold_stats cold;
    worker_store_get_cold(worker->store, &cold);
    return cold.bytes > 0;
}

void worker_item_ahead(struct worker *worker, const struct proto_step_item *item)
{
    struct worker_compute_item reads;
    if (item_reads(worker, item, &reads))
        worker_warm_ahead(worker->warm, &reads);
}

bool worker_item_cold(struct worker *worker, const struct proto_step *step,
                      const struct proto_step_item *item)
{
    struct worker_wants wants = {0};
    worker_item_wants(worker, step, item, &wants);
    bool cold = wants.cold;
    worker_warm_begin(worker->warm, &wants);
    return cold;
}

bool worker_step_has_room(struct worker *worker, const struct proto_step *step)
{
    enum { PAGES = 64 };
    struct worker_store *store = worker->store;
    uint8_t *pages[PAGES];
    uint32_t n = 0;
    bool room = true;
    if (worker_store_used(store) < worker_store_limit(store) / 8 * 7)
        return true;
    for (uint32_t i = 0; i < step->n_items && room; i++) {
        const struct proto_step_item *item = &step->items[i];
        const struct worker_session *session = worker_map_get(&worker->sessions, item->session);
        if (item->n_append == 0 || item->k_bytes == 0 || !session || worker_item_problem(session, item))
            continue;
        uint64_t bytes = worker_shape_form(session->spec->shape, item->layer)->page_bytes;
        for (uint32_t row = 0; row < item->append_rows && n < PAGES && room; row += WORKER_PAGE_TOKENS) {
            pages[n] = worker_store_alloc(store, bytes, NULL);
            room = pages[n] != NULL;
            n += room;
        }
    }
    while (n > 0)
        worker_store_dealloc(store, pages[--n]);
    return room;
}
