// SPDX-License-Identifier: Apache-2.0
// Frames: what waits on a plan is put together, sent to the root, and taken apart again. The hot path: no
// allocation once frames have grown, no copy of q, k, v or o when a frame is exactly what one client sent.
#include <assert.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "coordinator/membership.h"
#include "coordinator/scheduler.h"
#include "coordinator/session.h"

#define SPARE_FRAMES 32
#define SPARE_BYTES  (4 * 1024 * 1024) // of a spare frame's buffer

struct coordinator_frame {
    struct coordinator_frame *next; // spare
    struct coordinator_plan *plan;
    bool big;
    struct proto_step step;           // items and appends are ours
    struct coordinator_item **owners; // [step.n_items]
    uint32_t *nth;                    // [step.n_items] which slab of its owner
    uint32_t cap_items, cap_appends;
    uint8_t *buffer; // q, k and v when they had to be copied
    size_t buffer_bytes;
    uint64_t sent_ns;
};

static void frame_free(struct coordinator_frame *f)
{
    free(f->step.items);
    free(f->step.appends);
    free(f->owners);
    free(f->nth);
    free(f->buffer);
    free(f);
}

static struct coordinator_frame *frame_new(struct coordinator *c)
{
    struct coordinator_frame *f = c->frames;
    if (!f)
        return coordinator_alloc(sizeof(*f));
    c->frames = f->next;
    c->n_frames--;
    return f;
}

static void frame_recycle(struct coordinator *c, struct coordinator_frame *f)
{
    if (c->n_frames >= SPARE_FRAMES || f->buffer_bytes > SPARE_BYTES) {
        frame_free(f);
        return;
    }
    f->next = c->frames;
    c->frames = f;
    c->n_frames++;
}

void coordinator_frames_free(struct coordinator *c)
{
    for (struct coordinator_frame *f; (f = c->frames);) {
        c->frames = f->next;
        frame_free(f);
    }
}

static void *grown(void *array, uint32_t cap, size_t each)
{
    void *p = realloc(array, cap * each);
    if (!p)
        abort();
    return p;
}

// ---- batches ------------------------------------------------------------------------------------

void coordinator_items_batch_begin(struct coordinator *c)
{
    c->batches++;
}

void coordinator_items_batch_end(struct coordinator *c)
{
    assert(c->batches > 0);
    if (c->batches == 1) {
        for (struct coordinator_plan *plan; (plan = c->dirty);) {
            c->dirty = plan->dirty_next;
            plan->dirty = false;
            coordinator_plan_pump(plan);
            coordinator_plan_landed(plan);
        }
    }
    c->batches--;
}

void coordinator_plan_enqueue(struct coordinator_plan *plan, struct coordinator_item *item)
{
    coordinator_list_push(item->slabs.n > 1 ? &plan->big : &plan->small, item);
    if (!plan->c->batches) {
        coordinator_plan_pump(plan);
    } else if (!plan->dirty) {
        plan->dirty = true;
        plan->in_flight++; // so that it stays until the batch ends
        plan->dirty_next = plan->c->dirty;
        plan->c->dirty = plan;
    }
}

// ---- putting together ---------------------------------------------------------------------------

// Appended rows travel with the first slab of their band of rows: the order of frames on an edge is the order
// of sending, so the band's other slabs find them stored.
static bool appends(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    return item->append && slab->kv_head == 0;
}

static uint32_t runs_of(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    uint64_t ct = item->s->layout.chunk_tokens, first = item->first + slab->row;
    return (uint32_t)((first + slab->rows - 1) / ct - first / ct + 1);
}

struct load { // of a frame
    uint64_t partial_bytes, header_bytes, bytes;
};

static struct load load_of(const struct coordinator_item *item, const struct coordinator_slab *slab)
{
    const Banyan__Pb__Spec *spec = item->s->spec;
    uint64_t heads = (uint64_t)slab->kv_heads * (spec->q_heads / spec->kv_heads);
    struct load load = {.partial_bytes = coordinator_slab_partial_bytes(slab->rows, heads, spec->v_dim),
                        .header_bytes = 160 + (appends(item, slab) ? 48 * (uint64_t)runs_of(item, slab)
                                                                   : 0), // fields at their largest
                        .bytes = slab->rows * heads * spec->k_dim * sizeof(float)};
    load.bytes += appends(item, slab) ? (item->k_bytes + item->v_bytes) / item->rows * slab->rows : 0;
    return load;
}

static void add_appends(struct coordinator_frame *f, const struct coordinator_item *item,
                        const struct coordinator_slab *slab, struct proto_step_item *out)
{
    const struct coordinator_session *s = item->s;
    uint64_t ct = s->layout.chunk_tokens, at = item->first + slab->row, end = at + slab->rows;
    out->append_first = f->step.n_appends;
    out->n_append = runs_of(item, slab);
    if (f->step.n_appends + out->n_append > f->cap_appends) {
        f->cap_appends = (f->step.n_appends + out->n_append) * 2;
        f->step.appends = grown(f->step.appends, f->cap_appends, sizeof(*f->step.appends));
    }
    while (at < end) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, at / ct);
        struct proto_append_run *run = &f->step.appends[f->step.n_appends++];
        uint64_t stop = (at / ct + 1) * ct;
        run->chunk = chunk->id;
        run->first = at;
        run->rows = (uint32_t)((stop < end ? stop : end) - at);
        run->n_holders = 1;
        run->holders[0] = coordinator_plan_rank(f->plan, chunk->holder);
        at += run->rows;
    }
    out->write = item->write;
    out->cover_appends = slab->rows; // one holder a chunk
    out->k_offset = f->step.k_bytes;
    out->v_offset = f->step.v_bytes;
    out->k_bytes = item->k_bytes / item->rows * slab->rows;
    out->v_bytes = item->v_bytes / item->rows * slab->rows;
    f->step.k_bytes += out->k_bytes;
    f->step.v_bytes += out->v_bytes;
    f->step.has_kv = true;
}

static void add_slab(struct coordinator_frame *f, struct coordinator_item *item,
                     const struct coordinator_slab *slab)
{
    struct coordinator_session *s = item->s;
    const Banyan__Pb__Spec *spec = s->spec;
    uint32_t group = spec->q_heads / spec->kv_heads;
    if (f->step.n_items == f->cap_items) {
        f->cap_items = f->cap_items ? f->cap_items * 2 : 8;
        f->step.items = grown(f->step.items, f->cap_items, sizeof(*f->step.items));
        f->owners = grown(f->owners, f->cap_items, sizeof(struct coordinator_item *));
        f->nth = grown(f->nth, f->cap_items, sizeof(*f->nth));
    }
    // Rows of a later band may not be stored yet; rows of this one do not see them anyway.
    uint64_t band_end = item->first + slab->row + slab->rows;
    uint64_t visible =
        item->append && item->visible > band_end && slab->rows < item->rows ? band_end : item->visible;
    uint32_t at = f->step.n_items++;
    f->owners[at] = item;
    f->nth[at] = item->next_slab++;
    struct proto_step_item *out = &f->step.items[at];
    *out = (struct proto_step_item){.session = s->id,
                                    .incarnation = s->incarnation,
                                    .epoch = s->layout.epoch,
                                    .layer = item->layer,
                                    .first = item->first + slab->row,
                                    .rows = slab->rows,
                                    .visible = visible,
                                    .kv_head = slab->kv_head,
                                    .kv_heads = slab->kv_heads,
                                    .q_heads = slab->kv_heads * group,
                                    .v_dim = spec->v_dim,
                                    .length = item->length_before};
    bool placed = coordinator_layout_cover(&s->layout, visible, &out->cover_tokens, &out->cover_sum);
    assert(placed); // checked before it was queued; a layout is not altered under a queued item
    (void)placed;
    out->q_offset = f->step.q_bytes;
    out->q_bytes = (size_t)slab->rows * out->q_heads * spec->k_dim * sizeof(float);
    f->step.q_bytes += out->q_bytes;
    if (appends(item, slab))
        add_appends(f, item, slab, out);
    item->in_frames++;
    item->attempt = item->attempt ? item->attempt : 1;
    if (item->attempt > f->step.attempt)
        f->step.attempt = item->attempt;
    if (item->attend->deadline_ns > f->step.deadline_ns)
        f->step.deadline_ns = item->attend->deadline_ns;
    f->step.want_trace = f->step.want_trace || item->attend->want_trace || item->look;
}

// Whether the client's own bytes are the frame's: whole items that lie one behind the other in a request.
static bool in_place(const struct coordinator_frame *f)
{
    const struct coordinator_item *before = NULL;
    const uint8_t *k = NULL, *v = NULL; // where the next appended rows would have to lie
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct coordinator_item *item = f->owners[i];
        if (item->slabs.n > 1 || (before && before->q + before->q_bytes != item->q))
            return false;
        if (item->append && ((k && item->k != k) || (v && item->v != v)))
            return false;
        if (item->append) {
            k = item->k + item->k_bytes;
            v = item->v + item->v_bytes;
        }
        before = item;
    }
    return true;
}

static void point(struct coordinator_frame *f)
{
    f->step.q = f->owners[0]->q;
    for (uint32_t i = 0; i < f->step.n_items && !f->step.k; i++) {
        if (f->owners[i]->append) {
            f->step.k = f->owners[i]->k;
            f->step.v = f->owners[i]->v;
        }
    }
}

static void copy_q(const struct coordinator_item *item, uint32_t nth, uint8_t *to)
{
    const Banyan__Pb__Spec *spec = item->s->spec;
    struct coordinator_slab slab;
    coordinator_slabs_at(&item->slabs, nth, &slab);
    size_t head = spec->k_dim * sizeof(float), group = spec->q_heads / spec->kv_heads;
    size_t row = spec->q_heads * head, take = slab.kv_heads * group * head;
    const uint8_t *from = item->q + slab.row * row + slab.kv_head * group * head;
    if (take == row) {
        memcpy(to, from, slab.rows * row);
        return;
    }
    for (uint32_t r = 0; r < slab.rows; r++)
        memcpy(to + r * take, from + r * row, take);
}

static void copy(struct coordinator_frame *f)
{
    size_t k_at = common_align64(f->step.q_bytes), v_at = k_at + common_align64(f->step.k_bytes),
           all = v_at + f->step.v_bytes;
    if (all > f->buffer_bytes) {
        free(f->buffer);
        f->buffer = coordinator_alloc(all); // at most COORDINATOR_FRAME_BYTES and one slab
        f->buffer_bytes = all;
    }
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct coordinator_item *item = f->owners[i];
        const struct proto_step_item *out = &f->step.items[i];
        copy_q(item, f->nth[i], f->buffer + out->q_offset);
        if (out->k_bytes) {
            uint64_t row = out->first - item->first;
            memcpy(f->buffer + k_at + out->k_offset, item->k + row * (item->k_bytes / item->rows),
                   out->k_bytes);
            memcpy(f->buffer + v_at + out->v_offset, item->v + row * (item->v_bytes / item->rows),
                   out->v_bytes);
        }
    }
    f->step.q = f->buffer;
    f->step.k = f->step.has_kv ? f->buffer + k_at : NULL;
    f->step.v = f->step.has_kv ? f->buffer + v_at : NULL;
}

static void landed(void *arg, enum common_code code, const char *text, struct proto_step_result *result);

static void send(struct coordinator_frame *f)
{
    struct coordinator_plan *plan = f->plan;
    struct coordinator *c = plan->c;
    struct common_error err = {.message = "there is no link to the root"};
    if (in_place(f))
        point(f);
    else
        copy(f);
    f->step.term = c->term;
    f->step.plan = plan->id;
    f->step.plan_epoch = plan->epoch;
    f->step.step = ++c->step_ids;
    f->sent_ns = common_clock_ns();
    plan->in_flight++;
    *(f->big ? &plan->big_in_flight : &plan->small_in_flight) += 1;
    c->count_frames++;
    struct proto_channel *root = plan->workers[0]->channel;
    enum common_code code =
        root ? proto_step_send(root, &f->step, f->step.has_kv, landed, f, NULL, &err) : COMMON_UNAVAILABLE;
    if (code != COMMON_OK)
        landed(f, code, err.message, NULL);
}

static struct coordinator_frame *begin(struct coordinator_plan *plan, bool big)
{
    struct coordinator_frame *f = frame_new(plan->c);
    struct proto_step_item *items = f->step.items;
    struct proto_append_run *appends = f->step.appends;
    f->plan = plan;
    f->big = big;
    f->step = (struct proto_step){.items = items, .appends = appends};
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

static void send_small(struct coordinator_plan *plan)
{
    struct coordinator_frame *f = begin(plan, false);
    struct load load = {0};
    for (struct coordinator_item *item; (item = plan->small.head);) {
        struct coordinator_slab slab;
        coordinator_slabs_at(&item->slabs, 0, &slab);
        struct load more = load_of(item, &slab);
        if (f->step.n_items && !fits(&load, &more, f->step.n_items))
            break;
        add_load(&load, &more);
        coordinator_list_pop(&plan->small);
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
        add_slab(f, item, &slab);
    }
    send(f);
}

// One slab (or as many small ones of one item as fit), of the item whose turn it is: cut items take turns.
static void send_big(struct coordinator_plan *plan)
{
    struct coordinator_frame *f = begin(plan, true);
    struct coordinator_item *item = coordinator_list_pop(&plan->big);
    struct load load = {0};
    while (item->next_slab < item->slabs.n) {
        struct coordinator_slab slab;
        coordinator_slabs_at(&item->slabs, item->next_slab, &slab);
        struct load more = load_of(item, &slab);
        if (f->step.n_items && !fits(&load, &more, f->step.n_items))
            break;
        add_load(&load, &more);
        add_slab(f, item, &slab);
    }
    if (item->next_slab < item->slabs.n)
        coordinator_list_push(&plan->big, item);
    else
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
    send(f);
}

void coordinator_plan_pump(struct coordinator_plan *plan)
{
    plan->in_flight++;
    while (plan->state == COORDINATOR_PLAN_READY && plan->small.head && !plan->small_in_flight)
        send_small(plan);
    while (plan->state == COORDINATOR_PLAN_READY && plan->big.head &&
           plan->big_in_flight < COORDINATOR_BIG_FRAMES)
        send_big(plan);
    coordinator_plan_landed(plan);
}

// ---- taking apart -------------------------------------------------------------------------------

static void take_traces(struct proto_trace **traces, uint32_t *n, const struct coordinator_frame *f,
                        const struct proto_step_result *result)
{
    for (uint32_t i = 0; i < result->n_traces; i++) {
        const struct proto_trace *t = &result->traces[i];
        uint32_t at = 0;
        while (at < *n && strcmp((*traces)[at].worker, t->worker))
            at++;
        if (at < *n) { // several frames: the parts add up
            (*traces)[at].queue_ns += t->queue_ns;
            (*traces)[at].compute_ns += t->compute_ns;
            (*traces)[at].wait_ns += t->wait_ns;
            (*traces)[at].tokens += t->tokens;
            continue;
        }
        if (at >= 1024 || t->rank >= f->plan->n)
            continue;
        *traces = grown(*traces, at + 1, sizeof(**traces));
        (*traces)[at] = *t;
        (*traces)[at].parent = f->plan->tree->nodes[t->rank].parent;
        *n = at + 1;
    }
}

// Copies a slab's rows to their place among all query heads.
static void scatter(const struct coordinator_item *item, const struct coordinator_slab *slab,
                    const uint8_t *from, uint8_t *to, size_t head_bytes)
{
    const Banyan__Pb__Spec *spec = item->s->spec;
    size_t group = spec->q_heads / spec->kv_heads, row = spec->q_heads * head_bytes,
           part = slab->kv_heads * group * head_bytes;
    to += slab->row * row + slab->kv_head * group * head_bytes;
    if (part == row) {
        memcpy(to, from, slab->rows * row);
        return;
    }
    for (uint32_t r = 0; r < slab->rows; r++)
        memcpy(to + r * row, from + r * part, part);
}

static void slab_failed(struct coordinator_item *item, enum common_code code, const char *reason,
                        const char *text, const char *worker, bool again)
{
    if (item->failure && !item->again)
        return; // an earlier slab has decided
    proto_status_set(coordinator_item_fail(item), code, reason, "%s", text);
    if (worker[0])
        proto_status_add_worker(item->failure, worker);
    item->failure->session = item->session;
    item->failure->layer = item->layer;
    item->again = again;
    if (item->state == COORDINATOR_ITEM_QUEUED) { // its other slabs need not go
        coordinator_list_remove(&item->plan->big, item);
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
    }
}

static bool may_mend(enum common_code code)
{
    return code == COMMON_UNAVAILABLE || code == COMMON_ABORTED || code == COMMON_CANCELLED ||
           code == COMMON_NOT_FOUND;
}

static void frame_failed(struct coordinator_frame *f, enum common_code code, const char *text)
{
    bool ours = code == COMMON_RESOURCE_EXHAUSTED || code == COMMON_DEADLINE_EXCEEDED || may_mend(code);
    enum common_code told = code == COMMON_NOT_FOUND || code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code;
    for (uint32_t i = 0; i < f->step.n_items; i++)
        slab_failed(f->owners[i], ours ? told : COMMON_INTERNAL, "", text, "", may_mend(code));
    if (code == COMMON_NOT_FOUND) // the root does not know the plan
        coordinator_plan_retire(f->plan);
}

static void slab_back(struct coordinator_item *item, const struct coordinator_frame *f, uint32_t at,
                      const struct proto_step_result_item *r)
{
    const struct proto_step_item *sent = &f->step.items[at];
    if (r->code != COMMON_OK) {
        // A member that lost its layout is not a session that does not exist: our caller knows better.
        enum common_code told = r->code == COMMON_NOT_FOUND ? COMMON_UNAVAILABLE : r->code;
        if (may_mend(r->code) && item->attempt > 3 && r->worker[0]) {
            struct coordinator_worker *w = coordinator_worker_find(f->plan->c, r->worker);
            if (w)
                coordinator_worker_doubt(w);
        }
        slab_failed(item, told, r->reason, r->message, r->worker,
                    may_mend(r->code) && strcmp(r->reason, "OLD_WRITE"));
        return;
    }
    if (r->cover_tokens != sent->cover_tokens || r->cover_sum != sent->cover_sum ||
        r->appends < sent->cover_appends) {
        slab_failed(item, COMMON_DATA_LOSS, "COVERAGE", "the answer does not cover what it must", "", false);
        return;
    }
    item->digest += common_mix64(r->digest + f->nth[at]);
    item->slabs_left--;
    if (sent->n_append && --item->bands_left == 0)
        coordinator_item_acknowledge(
            item); // all its rows: a part of them would be a length that nobody asked for
}

// A call whose only frame this was can be answered from the result as it is.
static bool is_whole(const struct coordinator_frame *f, const struct proto_step_result *result)
{
    const struct coordinator_attend *a = f->owners[0]->attend;
    if (!a->request || a->out || a->n_items != f->step.n_items)
        return false;
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct coordinator_item *item = f->owners[i];
        if (item->attend != a || item->index != i || item->slabs.n > 1 ||
            result->items[i].code != COMMON_OK || item->failure)
            return false;
    }
    return true;
}

static void copy_out(const struct coordinator_frame *f, const struct proto_step_result *result)
{
    const uint8_t *o = result->tensors[0], *lse = result->tensors[1];
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        struct coordinator_item *item = f->owners[i];
        struct coordinator_attend *a = item->attend;
        const struct proto_step_item *sent = &f->step.items[i];
        size_t pairs = (size_t)sent->rows * sent->q_heads, o_bytes = pairs * sent->v_dim * sizeof(float);
        struct coordinator_slab slab;
        if (result->items[i].code == COMMON_OK && !item->failure && a->request) {
            if (coordinator_attend_room(a)) {
                coordinator_slabs_at(&item->slabs, f->nth[i], &slab);
                scatter(item, &slab, o, a->out + item->o_offset, sent->v_dim * sizeof(float));
                if (a->want_lse || item->mass_bins || item->look)
                    scatter(item, &slab, lse, a->out + a->o_bytes + item->lse_offset, sizeof(float));
            } else {
                slab_failed(item, COMMON_RESOURCE_EXHAUSTED, "", "the coordinator is out of memory", "",
                            false);
            }
        }
        o += o_bytes;
        lse += pairs * sizeof(float);
    }
}

static bool right_size(const struct coordinator_frame *f, const struct proto_step_result *result)
{
    size_t o_bytes = 0, lse_bytes = 0;
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        const struct proto_step_item *sent = &f->step.items[i];
        size_t pairs = (size_t)sent->rows * sent->q_heads;
        o_bytes += pairs * sent->v_dim * sizeof(float);
        lse_bytes += pairs * sizeof(float);
    }
    return result->n_tensors == 2 && result->tensor_bytes[0] == o_bytes &&
           result->tensor_bytes[1] == lse_bytes;
}

static void landed(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct coordinator_frame *f = arg;
    struct coordinator_plan *plan = f->plan;
    struct coordinator *c = plan->c;
    uint64_t tree_ns = common_clock_ns() - f->sent_ns;
    coordinator_items_batch_begin(c);
    *(f->big ? &plan->big_in_flight : &plan->small_in_flight) -= 1;
    if (code == COMMON_OK && (result->n_items != f->step.n_items || !right_size(f, result))) {
        code = COMMON_INTERNAL;
        text = "a root answered a step with tensors of another size";
    }
    for (uint32_t i = 0; i < f->step.n_items; i++) {
        struct coordinator_attend *a = f->owners[i]->attend;
        if (tree_ns > a->tree_ns)
            a->tree_ns = tree_ns;
        if (code == COMMON_OK && a->want_trace && (i == 0 || f->owners[i - 1]->attend != a))
            take_traces(&a->traces, &a->n_traces, f, result);
        struct coordinator_item *item = f->owners[i];
        if (code == COMMON_OK && item->look && (i == 0 || f->owners[i - 1] != item))
            take_traces(&item->traces, &item->n_traces, f, result);
    }
    if (code != COMMON_OK) {
        frame_failed(f, code, text);
    } else {
        c->count_collective += result->joined > 0;
        bool whole = is_whole(f, result);
        for (uint32_t i = 0; i < f->step.n_items; i++)
            slab_back(f->owners[i], f, i, &result->items[i]);
        if (whole && is_whole(f, result)) { // still: coverage was right too
            f->owners[0]->attend->result = result;
            result = NULL;
        } else {
            copy_out(f, result);
        }
    }
    proto_step_result_free(result);
    for (uint32_t i = 0; i < f->step.n_items; i++)
        coordinator_item_landed(f->owners[i]); // may free it and what belongs to it
    frame_recycle(c, f);
    if (!c->stopping)
        coordinator_plan_pump(plan);
    coordinator_plan_landed(plan);
    coordinator_items_batch_end(c);
}
