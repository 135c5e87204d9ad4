// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/sending.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/memory/block.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/frame.h"
#include "coordinator/steps/item.h"
#include "coordinator/steps/landing.h"
#include "coordinator/steps/sight.h"
#include "coordinator/steps/spans.h"
#include "proto/model/spec.h"

// ---- putting together ---------------------------------------------------------------------------

// How many rows a slab appends. They travel with the first slab of their band of rows, or all of them with the item's
// first slab where rows may see later ones: the order of frames on an edge is the order of sending, so the other slabs
// find them stored.
static uint32_t appends(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    if (!item->ask.append || slab->kv_head > 0)
        return 0;
    return !item->way.at_once ? slab->rows : slab->row == 0 ? item->ask.rows : 0;
}

static uint32_t runs_of(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    uint64_t ct = item->way.s->layout.chunk_tokens, first = item->ask.first + slab->row;
    return (uint32_t)((first + appends(item, slab) - 1) / ct - first / ct + 1);
}

static uint64_t run_bytes(const struct coordinator_item *item)
{
    return 48 + 6 * (uint64_t)(item->way.s->spec->replicas - 1);
}

struct load { // of a frame
    uint64_t partial_bytes, header_bytes, bytes;
};

static struct load load_of(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    const struct proto_layer layer = coordinator_item_layer(item);
    uint64_t heads = (uint64_t)slab->kv_heads * (layer.q_heads / layer.kv_heads);
    struct load load = {.partial_bytes = coordinator_slab_partial_bytes(slab->rows, heads, layer.v_dim),
                        .header_bytes = 160 + (item->ask.block_count ? 24 : 0) +
                                        (item->trace.sampled ? 32 : 0) +
                                        (appends(item, slab) > 0 ? 12 + run_bytes(item) * runs_of(item, slab)
                                                                 : 0), // fields at their largest
                        .bytes = slab->rows * heads * layer.k_dim * sizeof(float)};
    load.bytes += (item->ask.k_bytes + item->ask.v_bytes) / item->ask.rows * (uint64_t)appends(item, slab);
    return load;
}

static void add_appends(struct coordinator_frame *f, const struct coordinator_item *item,
                        const struct coordinator_slab *slab, struct proto_step_item *out)
{
    const struct coordinator_session *s = item->way.s;
    const uint32_t rows = appends(item, slab);
    uint64_t ct = s->layout.chunk_tokens, at = item->ask.first + slab->row, end = at + rows;
    out->append_first = f->step.n_appends;
    out->n_append = runs_of(item, slab);
    if (f->step.n_appends + out->n_append > f->cap_appends) {
        f->cap_appends = (f->step.n_appends + out->n_append) * 2;
        f->step.appends = coordinator_frame_grown(f->step.appends, f->cap_appends, sizeof(*f->step.appends));
    }
    while (at < end) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, at / ct);
        struct proto_append_run *run = &f->step.appends[f->step.n_appends++];
        uint64_t stop = (at / ct + 1) * ct;
        run->chunk = chunk->id;
        run->first = at;
        run->rows = (uint32_t)((stop < end ? stop : end) - at);
        run->n_holders = coordinator_chunk_copies(chunk);
        for (uint32_t i = 0; i < run->n_holders; i++) {
            run->holders[i] = coordinator_plan_rank(f->queue->plan, coordinator_chunk_holder(chunk, i));
            assert(run->holders[i] != UINT32_MAX); // ACTIVE when it was queued, else the plan has retired
        }
        out->cover_appends += run->n_holders * run->rows;
        at += run->rows;
    }
    out->write = item->write;
    out->write_end = item->ask.first + item->ask.rows;
    out->k_offset = f->step.k_bytes;
    out->v_offset = f->step.v_bytes;
    out->k_bytes = item->ask.k_bytes / item->ask.rows * rows;
    out->v_bytes = item->ask.v_bytes / item->ask.rows * rows;
    f->step.k_bytes += out->k_bytes;
    f->step.v_bytes += out->v_bytes;
    f->step.has_kv = true;
}

static void add_slab(struct coordinator_frame *f, struct coordinator_item *item,
                     const struct coordinator_slab *slab)
{
    struct coordinator_session *s = item->way.s;
    const struct proto_layer layer = coordinator_item_layer(item);
    uint32_t group = layer.q_heads / layer.kv_heads;
    if (f->step.n_items == f->cap_items) {
        f->cap_items = f->cap_items ? f->cap_items * 2 : 8;
        f->step.items = coordinator_frame_grown(f->step.items, f->cap_items, sizeof(*f->step.items));
        f->owners = coordinator_frame_grown(f->owners, f->cap_items, sizeof(struct coordinator_item *));
        f->nth = coordinator_frame_grown(f->nth, f->cap_items, sizeof(*f->nth));
    }
    // Rows of a later band may not be stored yet; rows of this one do not see them anyway.
    uint64_t band_end = item->ask.first + slab->row + slab->rows;
    bool later = item->ask.append && !item->way.at_once && slab->rows < item->ask.rows;
    uint64_t visible = later && item->way.visible > band_end ? band_end : item->way.visible;
    uint32_t at = f->step.n_items++;
    f->owners[at] = item;
    f->nth[at] = item->way.next_slab++;
    struct proto_step_item *out = &f->step.items[at];
    *out = (struct proto_step_item){.session = s->id,
                                    .incarnation = s->incarnation,
                                    .epoch = s->layout.epoch,
                                    .layer = item->ask.layer,
                                    .first = item->ask.first + slab->row,
                                    .rows = slab->rows,
                                    .visible = visible,
                                    .block_first = item->ask.block_first,
                                    .block_count = item->ask.block_count,
                                    .kv_head = slab->kv_head,
                                    .kv_heads = slab->kv_heads,
                                    .q_heads = slab->kv_heads * group,
                                    .v_dim = layer.v_dim,
                                    .length = item->way.length_before};
    bool placed = coordinator_missing_cover(&item->way.missing, &s->layout, visible, &out->cover_tokens,
                                            &out->cover_sum);
    assert(placed); // checked before it was queued; a layout is not altered under a queued item
    (void)placed;
    out->q_offset = f->step.q_bytes;
    out->q_bytes = (size_t)slab->rows * out->q_heads * layer.k_dim * sizeof(float);
    f->step.q_bytes += out->q_bytes;
    if (appends(item, slab) > 0) {
        add_appends(f, item, slab, out);
        item->sent = true;
    }
    item->way.in_frames++;
    item->attempt = item->attempt ? item->attempt : 1;
    if (item->trace.sampled && (at == 0 || f->owners[at - 1] != item))
        coordinator_spans_send(f, item, out);
    if (item->attempt > f->step.attempt)
        f->step.attempt = item->attempt;
    if (item->call->deadline_ns > f->step.deadline_ns)
        f->step.deadline_ns = item->call->deadline_ns;
    f->step.want_trace = f->step.want_trace || item->call->want_trace || item->look.watched;
}

// Whether the client's own bytes are the frame's: whole items that lie one behind the other in a request.
static bool in_place(const struct coordinator_frame *f)
{
    const struct coordinator_item *before = NULL;
    const uint8_t *k = NULL, *v = NULL; // where the next appended rows would have to lie
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct coordinator_item *item = f->owners[i];
        if (item->way.slabs.n > 1 || (before && before->ask.q + before->ask.q_bytes != item->ask.q))
            return false;
        if (item->ask.append && ((k && item->ask.k != k) || (v && item->ask.v != v)))
            return false;
        if (item->ask.append) {
            k = item->ask.k + item->ask.k_bytes;
            v = item->ask.v + item->ask.v_bytes;
        }
        before = item;
    }
    return true;
}

static void point(struct coordinator_frame *f)
{
    f->step.q = f->owners[0]->ask.q;
    for (uint32_t i = 0; i < f->step.n_items && !f->step.k; i++) {
        if (f->owners[i]->ask.append) {
            f->step.k = f->owners[i]->ask.k;
            f->step.v = f->owners[i]->ask.v;
        }
    }
}

static void copy_q(const struct coordinator_item *item, uint32_t nth, uint8_t *to)
{
    const struct proto_layer layer = coordinator_item_layer(item);
    struct coordinator_slab slab;
    coordinator_slabs_at(&item->way.slabs, nth, &slab);
    size_t head = layer.k_dim * sizeof(float), group = layer.q_heads / layer.kv_heads;
    size_t row = layer.q_heads * head, take = slab.kv_heads * group * head;
    const uint8_t *from = item->ask.q + slab.row * row + slab.kv_head * group * head;
    if (take == row) {
        memcpy(to, from, slab.rows * row);
        return;
    }
    for (uint32_t r = 0; r < slab.rows; r++)
        memcpy(to + r * take, from + r * row, take);
}

// False: out of memory.
static bool copy(struct coordinator_frame *f)
{
    size_t k_at = common_align64(f->step.q_bytes), v_at = k_at + common_align64(f->step.k_bytes),
           all = v_at + f->step.v_bytes;
    f->buffer = common_block_take(all, COMMON_BLOCK_DAEMONS); // at most COORDINATOR_FRAME_BYTES and one slab
    if (!f->buffer)
        return false;
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct coordinator_item *item = f->owners[i];
        const struct proto_step_item *out = &f->step.items[i];
        copy_q(item, f->nth[i], f->buffer + out->q_offset);
        if (out->k_bytes) {
            uint64_t row = out->first - item->ask.first;
            memcpy(f->buffer + k_at + out->k_offset, item->ask.k + row * (item->ask.k_bytes / item->ask.rows),
                   out->k_bytes);
            memcpy(f->buffer + v_at + out->v_offset, item->ask.v + row * (item->ask.v_bytes / item->ask.rows),
                   out->v_bytes);
        }
    }
    f->step.q = f->buffer;
    f->step.k = f->step.has_kv ? f->buffer + k_at : NULL;
    f->step.v = f->step.has_kv ? f->buffer + v_at : NULL;
    return true;
}

static void come_back_unsent(void *arg)
{
    struct coordinator_frame *f = arg;
    coordinator_frame_landed(f, f->unsent_code, f->unsent_text, NULL);
}

static void frame_send(struct coordinator_frame *f)
{
    COMMON_FAILPOINT("frame_sent");
    struct coordinator_queue *queue = f->queue;
    struct coordinator_steps *steps = queue->steps;
    struct coordinator_plan *plan = queue->plan;
    struct common_error err = {.message = "no connection to the root"};
    bool ready = in_place(f);
    if (ready)
        point(f);
    else if (!(ready = copy(f)))
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory");
    f->step.term = steps->core->term;
    f->step.plan = plan->id;
    f->step.plan_epoch = plan->epoch;
    f->step.step = ++steps->step_ids;
    f->sent_ns = common_clock_ns();
    f->call = 0;
    common_list_push(&steps->flying, &f->link);
    plan->in_flight++;
    *(f->big ? &queue->big_in_flight : &queue->small_in_flight) += 1;
    steps->count_frames++;
    struct proto_channel *root = plan->workers[0]->channel;
    enum common_code code =
        !ready ? COMMON_RESOURCE_EXHAUSTED
        : root ? proto_step_send(root, &f->step, f->step.has_kv, coordinator_frame_landed, f, &f->call, &err)
               : COMMON_UNAVAILABLE;
    if (code == COMMON_OK)
        return;
    f->unsent = (struct coordinator_completion){.fn = come_back_unsent, .arg = f};
    f->unsent_code = code;
    snprintf(f->unsent_text, sizeof(f->unsent_text), "%.120s", err.message);
    coordinator_turn_complete(&steps->core->turn, &f->unsent);
}

static bool somebody_waits(const struct coordinator_frame *f)
{
    for (uint32_t i = 0; i < f->step.n_items; i++)
        if (f->owners[i]->call->request)
            return true;
    return false;
}

void coordinator_frames_cancel(struct coordinator_steps *steps)
{
    if (!steps->some_over)
        return;
    steps->some_over = false;
    for (struct common_list *at = steps->flying.next, *next; at != &steps->flying; at = next) {
        struct coordinator_frame *f = common_list_entry(at, struct coordinator_frame, link);
        struct proto_channel *root = f->queue->plan->workers[0]->channel;
        next = at->next;
        if (f->call && root && !somebody_waits(f)) // without a link it is on its way back already
            proto_channel_cancel(root, f->call);
    }
}

static struct coordinator_frame *frame_begin(struct coordinator_queue *queue, bool big)
{
    struct coordinator_frame *f = coordinator_frame_new(queue->steps);
    struct proto_step_item *items = f->step.items;
    struct proto_append_run *appends = f->step.appends;
    f->queue = queue;
    f->big = big;
    f->traced = false;
    f->step = (struct proto_step){.items = items, .appends = appends, .quick = !big};
    return f;
}

static bool fits(const struct load *so_far, const struct load *more, uint32_t n)
{
    return n < COORDINATOR_FRAME_ITEMS &&
           so_far->partial_bytes + more->partial_bytes <= COORDINATOR_SLAB_BYTES &&
           so_far->header_bytes + more->header_bytes <= COORDINATOR_FRAME_HEADER &&
           so_far->bytes + more->bytes <= COORDINATOR_FRAME_BYTES;
}

static void add_load(struct load *load, const struct load *more)
{
    load->partial_bytes += more->partial_bytes;
    load->header_bytes += more->header_bytes;
    load->bytes += more->bytes;
}

// Of what a tenant has of the frames: what the slab's rows see.
static uint32_t cost_of(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    const struct proto_layer layer = coordinator_item_layer(item);
    uint64_t from, to;
    coordinator_item_sees(item, item->way.s, &from, &to);
    return coordinator_fair_cost(slab->rows, to - from,
                                 (layer.k_row + layer.v_row) / layer.kv_heads * slab->kv_heads);
}

void coordinator_frame_send_small(struct coordinator_queue *queue)
{
    struct coordinator_frame *f = frame_begin(queue, false);
    struct load load = {0};
    for (struct common_list *link; (link = coordinator_fair_next(&queue->small));) {
        struct coordinator_item *item = common_list_entry(link, struct coordinator_item, link);
        struct coordinator_slab slab;
        coordinator_slabs_at(&item->way.slabs, 0, &slab);
        struct load more = load_of(item, &slab);
        if (f->step.n_items && !fits(&load, &more, f->step.n_items))
            break;
        add_load(&load, &more);
        coordinator_fair_take(&queue->small, link, cost_of(item, &slab));
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
        add_slab(f, item, &slab);
    }
    frame_send(f);
}

// One slab (or as many small ones of one item as fit), of the item whose turn it is: tenants take turns, and so do the
// cut items of each.
void coordinator_frame_send_big(struct coordinator_queue *queue)
{
    struct coordinator_frame *f = frame_begin(queue, true);
    struct common_list *link = coordinator_fair_next(&queue->big);
    struct coordinator_item *item = common_list_entry(link, struct coordinator_item, link);
    struct load load = {0};
    uint32_t cost = 0;
    while (item->way.next_slab < item->way.slabs.n) {
        struct coordinator_slab slab;
        coordinator_slabs_at(&item->way.slabs, item->way.next_slab, &slab);
        struct load more = load_of(item, &slab);
        if (f->step.n_items && !fits(&load, &more, f->step.n_items))
            break;
        add_load(&load, &more);
        add_slab(f, item, &slab);
        cost += cost_of(item, &slab);
    }
    coordinator_fair_take(&queue->big, link, cost);
    if (item->way.next_slab < item->way.slabs.n)
        coordinator_queue_put(queue, item);
    else
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
    frame_send(f);
}
