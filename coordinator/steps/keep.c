// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/keep.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/audit.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/spans.h"
#include "proto/model/spec.h"

#define SESSION_NS                                                                                           \
    COMMON_NS_PER_S             // a session's kept step is this old at least when another one takes its place
#define ALL_NS COMMON_NS_PER_MS // between two that are kept, of any session
#define ONE_IN 4u               // of those that are due, so that it is not the first layer each time

// ---- which one -----------------------------------------------------------------------------------

static bool is_first(const struct coordinator_session *s)
{
    return !s->lane || !s->lane->kept_ns;
}

static bool is_due(const struct coordinator_steps *steps, const struct coordinator_session *s,
                   uint64_t now_ns)
{
    if (steps->keep.last_ns && now_ns < steps->keep.last_ns + ALL_NS)
        return false;
    return is_first(s) || now_ns >= s->lane->kept_ns + SESSION_NS;
}

enum coordinator_keep_wish coordinator_keep_wish(struct coordinator_steps *steps,
                                                 const struct coordinator_session *s, uint64_t arrived_ns)
{
    steps->keep.seen++;
    if (coordinator_audit_picks(steps, steps->keep.seen))
        return COORDINATOR_KEEP_AUDIT;
    if (!steps->core->options.keep_bytes || !is_due(steps, s, arrived_ns))
        return COORDINATOR_KEEP_NOT;
    return is_first(s) || common_mix64(steps->keep.seen) % ONE_IN == 0 ? COORDINATOR_KEEP_DUE
                                                                       : COORDINATOR_KEEP_NOT;
}

// ---- keeping -------------------------------------------------------------------------------------

void coordinator_kept_unref(struct coordinator_kept *kept)
{
    if (kept && !--kept->refs)
        free(kept);
}

// It is its session's no more.
static void let_go(struct coordinator_steps *steps, struct coordinator_kept *kept)
{
    common_list_remove(&kept->link);
    steps->keep.n--;
    steps->keep.bytes -= kept->bytes;
    kept->lane->kept = NULL;
    kept->lane = NULL;
    coordinator_kept_unref(kept);
}

void coordinator_keep_lane_gone(struct coordinator_steps *steps, struct coordinator_lane *lane)
{
    if (lane->kept)
        let_go(steps, lane->kept);
}

// The oldest that is not pinned; a pinned one if there is no other. NULL: there is none.
static struct coordinator_kept *oldest(const struct coordinator_steps *steps, bool pinned)
{
    for (struct common_list *at = steps->keep.all.next; at != &steps->keep.all; at = at->next) {
        struct coordinator_kept *kept = common_list_entry(at, struct coordinator_kept, link);
        if (pinned || kept->audited != COORDINATOR_AUDIT_WRONG)
            return kept;
    }
    return NULL;
}

// It becomes the session's, in the place of the one before. False: there is no room; pinned ones give way to pinned
// ones alone.
static bool make_the_sessions(struct coordinator_steps *steps, struct coordinator_lane *lane,
                              struct coordinator_kept *kept)
{
    uint64_t most = steps->core->options.keep_bytes;
    bool pinned = kept->audited == COORDINATOR_AUDIT_WRONG;
    if (kept->bytes > most)
        return false;
    if (lane->kept)
        let_go(steps, lane->kept);
    while (steps->keep.bytes > most - kept->bytes) {
        struct coordinator_kept *old = oldest(steps, pinned);
        if (!old)
            return false;
        let_go(steps, old);
    }
    kept->refs++;
    kept->lane = lane;
    lane->kept = kept;
    lane->s->cut_to = UINT64_MAX;
    common_list_push(&steps->keep.all, &kept->link);
    steps->keep.n++;
    steps->keep.bytes += kept->bytes;
    return true;
}

// Which rows: all, or the first, the last, and others anywhere.
static void choose_rows(struct coordinator_kept *kept, uint32_t most, uint64_t draw)
{
    uint64_t first = kept->first, n = kept->step_rows;
    kept->rows = 0;
    for (uint32_t i = 0; i < most; i++) {
        uint64_t at = most == n ? i : i + 1 == most ? n - 1 : i == 0 ? 0 : n * i / most + draw % (n / most);
        if (kept->rows && first + at <= kept->positions[kept->rows - 1])
            continue;
        kept->positions[kept->rows++] = first + at;
    }
}

static void copy_rows(struct coordinator_kept *kept, const struct coordinator_item *item, const float *o,
                      const float *lse)
{
    size_t q_row = (size_t)kept->q_heads * kept->k_dim, o_row = (size_t)kept->q_heads * kept->v_dim;
    const float *q = (const float *)(const void *)item->ask.q;
    for (uint32_t i = 0; i < kept->rows; i++) {
        size_t at = (size_t)(kept->positions[i] - kept->first);
        memcpy((float *)coordinator_kept_q(kept) + i * q_row, q + at * q_row, q_row * sizeof(float));
        memcpy((float *)coordinator_kept_o(kept) + i * o_row, o + at * o_row, o_row * sizeof(float));
        memcpy((float *)coordinator_kept_lse(kept) + (size_t)i * kept->q_heads, lse + at * kept->q_heads,
               kept->q_heads * sizeof(float));
    }
}

static void name_workers(struct coordinator_kept *kept, const struct coordinator_session *s)
{
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_members; i++) {
        const char *name = s->members[i]->name;
        if (at + strlen(name) + 5 > sizeof(kept->workers)) {
            snprintf(kept->workers + at, sizeof(kept->workers) - at, ",...");
            return;
        }
        at += (size_t)snprintf(kept->workers + at, sizeof(kept->workers) - at, "%s%s", i ? "," : "", name);
    }
}

// NULL: a row of it has more than is kept, or there is no memory.
static struct coordinator_kept *copy_step(const struct coordinator_item *item,
                                          const struct coordinator_session *s, const float *o,
                                          const float *lse)
{
    const struct coordinator_steps *steps = item->call->steps;
    const struct proto_layer layer = proto_spec_layer(s->spec, item->ask.layer);
    size_t row = (size_t)layer.q_heads * ((size_t)layer.k_dim + layer.v_dim + 1) * sizeof(float);
    uint32_t most = COORDINATOR_KEPT_BYTES / row < PROTO_KEPT_ROWS_MAX
                        ? (uint32_t)(COORDINATOR_KEPT_BYTES / row)
                        : PROTO_KEPT_ROWS_MAX;
    most = most < item->ask.rows ? most : item->ask.rows;
    struct coordinator_kept *kept = most ? malloc(sizeof(*kept) + most * row) : NULL;
    if (!kept)
        return NULL;
    *kept = (struct coordinator_kept){.refs = 1,
                                      .session = s->id,
                                      .incarnation = s->incarnation,
                                      .first = item->ask.first,
                                      .visible = item->way.visible,
                                      .block_first = item->ask.block_first,
                                      .block_count = item->ask.block_count,
                                      .plan_digest = item->plan_digest,
                                      .at_ns = common_clock_ns(),
                                      .layer = item->ask.layer,
                                      .step_rows = item->ask.rows,
                                      .q_heads = layer.q_heads,
                                      .k_dim = layer.k_dim,
                                      .v_dim = layer.v_dim,
                                      .append = item->ask.append,
                                      .bytes = sizeof(*kept) + most * row};
    common_list_init(&kept->link);
    coordinator_item_trace(item, kept->trace);
    choose_rows(kept, most, common_mix64(steps->keep.seen));
    copy_rows(kept, item, o, lse);
    if (item->look.keep == COORDINATOR_KEEP_AUDIT)
        name_workers(kept, s);
    return kept;
}

void coordinator_keep_step(struct coordinator_item *item, struct coordinator_session *s)
{
    struct coordinator_steps *steps = item->call->steps;
    bool audit = item->look.keep == COORDINATOR_KEEP_AUDIT;
    const float *o = coordinator_item_o(item), *lse = coordinator_item_lse(item);
    struct coordinator_kept *kept = NULL;
    if (!audit && !is_due(steps, s, steps->landed_ns)) // others of its call were, too
        return;
    if (item->call->request && o && lse) // else it was answered before all of it was there
        kept = copy_step(item, s, o, lse);
    if (!kept) {
        steps->count_audit_skipped += audit;
        return;
    }
    struct coordinator_lane *lane = coordinator_lane_of(steps, s);
    bool pinned = lane->kept && lane->kept->audited == COORDINATOR_AUDIT_WRONG;
    if (pinned && !coordinator_kept_stands(lane->kept, s)) {
        let_go(steps, lane->kept);
        pinned = false;
    }
    steps->keep.last_ns = lane->kept_ns = steps->landed_ns ? steps->landed_ns : 1;
    if (!pinned)
        make_the_sessions(steps, lane, kept);
    if (audit)
        coordinator_audit_add(steps, kept);
    coordinator_kept_unref(kept);
}

void coordinator_kept_pin(struct coordinator_steps *steps, struct coordinator_kept *kept)
{
    struct coordinator_session *s = coordinator_session_find(steps->sessions, kept->session);
    kept->audited = COORDINATOR_AUDIT_WRONG;
    if (kept->lane || !s || s->incarnation != kept->incarnation)
        return;
    struct coordinator_lane *lane = coordinator_lane_of(steps, s);
    if (!lane->kept || lane->kept->audited != COORDINATOR_AUDIT_WRONG) // the first one that was wrong stays
        make_the_sessions(steps, lane, kept);
}

// ---- whether it stands ---------------------------------------------------------------------------

void coordinator_kept_sees(const struct coordinator_kept *kept, const struct proto_layer *layer, uint32_t row,
                           uint64_t *from, uint64_t *to)
{
    uint64_t p = kept->positions[row], visible = kept->visible, end = kept->block_first + kept->block_count;
    uint64_t begin = proto_layer_from(layer, p), last = layer->not_causal || p >= visible ? visible : p + 1;
    if (p >= kept->block_first && p < end) { // rows of a block see each other
        begin = begin < kept->block_first ? begin : kept->block_first;
        last = last > end ? last : end;
    }
    *to = last < visible ? last : visible;
    *from = begin < *to ? begin : *to;
}

bool coordinator_kept_stands(struct coordinator_kept *kept, const struct coordinator_session *s)
{
    if (kept->incarnation != s->incarnation && (!kept->lane || kept->visible > s->cut_to))
        return false; // rows that it saw may have gone
    kept->incarnation = s->incarnation;
    const struct proto_layer layer = proto_spec_layer(s->spec, kept->layer);
    uint64_t forgotten = coordinator_session_forgotten(s, layer.source);
    for (uint32_t i = 0; i < kept->rows; i++) {
        uint64_t from, to;
        coordinator_kept_sees(kept, &layer, i, &from, &to);
        if (from < to && from < forgotten)
            return false;
    }
    return true;
}

// ---- SessionStep ---------------------------------------------------------------------------------

struct told {
    struct coordinator_kept *kept;
    struct common_slice pieces[3];
};

static void told_sent(void *arg)
{
    struct told *told = arg;
    coordinator_kept_unref(told->kept);
    free(told);
}

static void tell(struct proto_request *request, struct coordinator_kept *kept)
{
    Banyan__Pb__SessionStepReply m = BANYAN__PB__SESSION_STEP_REPLY__INIT;
    struct told *told = coordinator_alloc(sizeof(*told));
    size_t pairs = (size_t)kept->rows * kept->q_heads;
    const float *starts[3] = {coordinator_kept_q(kept), coordinator_kept_o(kept), coordinator_kept_lse(kept)};
    size_t values[3] = {pairs * kept->k_dim, pairs * kept->v_dim, pairs};
    struct proto_tensor_out tensors[3];
    told->kept = kept;
    kept->refs++;
    for (int i = 0; i < 3; i++) {
        told->pieces[i] = (struct common_slice){starts[i], values[i] * sizeof(float)};
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                               .n_dims = 1,
                                               .dims = {values[i]},
                                               .pieces = &told->pieces[i],
                                               .n_pieces = 1};
    }
    m.incarnation = kept->incarnation;
    m.layer = kept->layer;
    m.first = kept->first;
    m.rows = kept->step_rows;
    m.positions = kept->positions;
    m.n_positions = kept->rows;
    m.visible = kept->visible;
    m.block_first = kept->block_first;
    m.block_count = kept->block_count;
    m.append = kept->append;
    m.plan_digest = kept->plan_digest;
    m.age_ns = common_clock_ns() - kept->at_ns;
    m.audit = (uint32_t)kept->audited;
    if (coordinator_shows_workers(proto_request_identity(request)))
        m.workers = kept->workers;
    proto_request_reply(request, &m.base, tensors, 3, told_sent, told);
}

void coordinator_handle_session_step(struct coordinator_steps *steps, struct proto_request *request)
{
    const Banyan__Pb__SessionStepRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(steps->sessions, request, m->session);
    if (!s) {
        struct proto_status status;
        coordinator_session_unknown(m->session, &status);
        proto_request_fail_status(request, &status);
        return;
    }
    struct coordinator_kept *kept = s->lane ? s->lane->kept : NULL;
    if (kept && coordinator_kept_stands(kept, s)) {
        tell(request, kept);
        return;
    }
    Banyan__Pb__SessionStepReply none = BANYAN__PB__SESSION_STEP_REPLY__INIT;
    proto_request_reply(request, &none.base, NULL, 0, NULL, NULL);
}
