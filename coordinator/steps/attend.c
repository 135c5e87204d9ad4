// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/attend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/block.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/answer.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/run.h"
#include "coordinator/steps/spans.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/mass.h"
#include "proto/model/spec.h"

#define ROWS_MAX      4096
#define DEADLINE_MOST (3600 * COMMON_NS_PER_S) // a call that would wait longer waits this long
#define DEADLINE_TICK (10 * COMMON_NS_PER_MS)

// ---- its end ------------------------------------------------------------------------------------

// Items that are not done yet say `unfinished` and `text`. Nothing when it has been answered.
static void end_call(struct coordinator_call *call, enum common_code unfinished, const char *text)
{
    struct proto_request *request = coordinator_call_take_request(call);
    if (!request)
        return;
    for (uint32_t i = 0; i < call->n_items && call->left; i++)
        coordinator_item_stop(&call->items[i], unfinished, text);
    coordinator_answer_send(call, request, unfinished, text);
}

static void call_cancelled(void *arg)
{
    end_call(arg, COMMON_CANCELLED, "the caller has disconnected");
}

static void deadline_timer(void *arg)
{
    struct coordinator_steps *steps = arg;
    uint64_t now = common_clock_ns();
    // Ending one call frees that call at most: what its items held is let go at the end of the turn.
    for (struct common_list *link = steps->calls.next, *next; link != &steps->calls; link = next) {
        struct coordinator_call *call = common_list_entry(link, struct coordinator_call, link);
        next = link->next;
        if (call->deadline_ns <= now)
            end_call(call, COMMON_DEADLINE_EXCEEDED, "the deadline has passed");
    }
    if (common_list_empty(&steps->calls)) {
        common_timer_stop(steps->deadlines);
        steps->deadlines_run = false;
    }
}

enum common_code coordinator_calls_init(struct coordinator_steps *steps)
{
    return common_timer_new(steps->core->loop, deadline_timer, steps, &steps->deadlines);
}

void coordinator_calls_stop(struct coordinator_steps *steps)
{
    while (!common_list_empty(&steps->calls))
        end_call(common_list_entry(steps->calls.next, struct coordinator_call, link), COMMON_UNAVAILABLE,
                 "the coordinator is stopping");
    common_timer_stop(steps->deadlines);
}

// ---- taking apart -------------------------------------------------------------------------------

static bool bad_item(struct coordinator_item *item, const char *fmt, uint64_t got, uint64_t wanted)
{
    proto_status_set(coordinator_item_failure(item), COMMON_INVALID_ARGUMENT, "", fmt, got, wanted);
    item->failure->session = item->ask.session;
    item->failure->layer = item->ask.layer;
    return false;
}

// The shape of an item's layer, as far as it has one. Where layers are alike, one that does not exist has theirs.
static struct proto_layer layer_of(const struct coordinator_session *s, uint32_t layer)
{
    bool shaped = s && (layer < s->spec->layers || !s->spec->n_kinds);
    return shaped ? proto_spec_layer(s->spec, layer) : (struct proto_layer){0};
}

// What can be said about an item without knowing how far the session has come.
static bool check_shape(struct coordinator_item *item, const struct coordinator_session *s)
{
    struct proto_layer layer = layer_of(s, item->ask.layer);
    uint64_t rows = item->ask.rows, most = coordinator_item_steps(item)->core->options.max_session_tokens;
    uint64_t q = rows * layer.q_heads * layer.k_dim * sizeof(float);
    uint64_t k = item->ask.append ? rows * layer.k_row : 0, v = item->ask.append ? rows * layer.v_row : 0;
    if (item->ask.mass_bins > PROTO_MASS_BINS_MAX)
        return bad_item(item, "masses of %" PRIu64 " bins: at most %" PRIu64 " are allowed",
                        item->ask.mass_bins, PROTO_MASS_BINS_MAX);
    if (rows * layer.q_heads * item->ask.mass_bins > PROTO_MASS_VALUES_MAX)
        return bad_item(item,
                        "rows, query heads and bins of masses make %" PRIu64 " values, at most %" PRIu64
                        " are allowed: ask for fewer bins, or fewer rows at a time",
                        rows * layer.q_heads * item->ask.mass_bins, PROTO_MASS_VALUES_MAX);
    if (rows < 1 || rows > ROWS_MAX)
        return bad_item(item, "an item has %" PRIu64 " rows: 1 to %" PRIu64 " are allowed", rows, ROWS_MAX);
    if (item->ask.layer >= s->spec->layers)
        return bad_item(item, "layer %" PRIu64 " does not exist: the session has %" PRIu64, item->ask.layer,
                        s->spec->layers);
    if (proto_layer_local(&layer))
        return bad_item(item, "layer %" PRIu64 " of %" PRIu64 " holds nothing: it cannot be attended",
                        item->ask.layer, s->spec->layers);
    if (item->ask.append && layer.source != item->ask.layer)
        return bad_item(item, "layer %" PRIu64 " reads K and V of layer %" PRIu64 ": append to that one",
                        item->ask.layer, layer.source);
    if (item->ask.q_heads != layer.q_heads)
        return bad_item(item, "the item has %" PRIu64 " query heads, the session has %" PRIu64,
                        item->ask.q_heads, layer.q_heads);
    if (item->ask.v_dim != layer.v_dim)
        return bad_item(item, "the item says V has dimension %" PRIu64 ", the session's has %" PRIu64,
                        item->ask.v_dim, layer.v_dim);
    if (item->ask.q_bytes != q)
        return bad_item(item, "q has %" PRIu64 " bytes, the session's shape needs %" PRIu64,
                        item->ask.q_bytes, q);
    if (item->ask.k_bytes != k)
        return bad_item(item, "k has %" PRIu64 " bytes, the session's shape needs %" PRIu64,
                        item->ask.k_bytes, k);
    if (item->ask.v_bytes != v)
        return bad_item(item, "v has %" PRIu64 " bytes, the session's shape needs %" PRIu64,
                        item->ask.v_bytes, v);
    if (k + v > COORDINATOR_APPEND_BYTES)
        return bad_item(item, "an append of %" PRIu64 " bytes is too large (%" PRIu64 " at most): attach it",
                        k + v, COORDINATOR_APPEND_BYTES);
    if (item->ask.block_first > most || item->ask.block_count > most - item->ask.block_first)
        return bad_item(item,
                        "a block of %" PRIu64 " positions is past the limit of %" PRIu64 " tokens a session",
                        item->ask.block_count, most);
    if (item->ask.visible && item->ask.block_count &&
        item->ask.block_first + item->ask.block_count > item->ask.visible)
        return bad_item(item, "the block ends at %" PRIu64 ", where keys below %" PRIu64 " are visible",
                        item->ask.block_first + item->ask.block_count, item->ask.visible);
    if (item->ask.first >= most || rows > most - item->ask.first) {
        bad_item(item, "position %" PRIu64 " is past the limit of %" PRIu64 " tokens a session",
                 item->ask.first, most);
        item->failure->code = COMMON_OUT_OF_RANGE; // as for an attach
        snprintf(item->failure->reason, sizeof(item->failure->reason), "LIMIT");
        return false;
    }
    return true;
}

struct sizes { // sums over the items, checked for wrapping
    size_t q, k, v, o, lse;
};

static bool sum(size_t *total, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    size_t n;
    return common_size_mul(a, b, &n) && common_size_mul(n, c, &n) && common_size_mul(n, d, &n) &&
           common_size_add(*total, n, total);
}

// Lays the item's parts of the tensors behind those of the items before it.
static bool measure(struct coordinator_item *item, const Banyan__Pb__AttendItem *m,
                    const struct proto_layer *layer, struct sizes *at)
{
    struct sizes next = *at;
    bool ok = true;
    item->ask.q_heads = m->q_heads ? m->q_heads : layer->q_heads;
    item->ask.v_dim = m->v_dim ? m->v_dim : layer->v_dim;
    ok = ok && (m->q_bytes ? sum(&next.q, m->q_bytes, 1, 1, 1)
                           : sum(&next.q, m->rows, layer->q_heads, layer->k_dim, 4));
    ok = ok && (m->k_bytes || !m->append ? sum(&next.k, m->k_bytes, 1, 1, 1)
                                         : sum(&next.k, m->rows, layer->k_row, 1, 1));
    ok = ok && (m->v_bytes || !m->append ? sum(&next.v, m->v_bytes, 1, 1, 1)
                                         : sum(&next.v, m->rows, layer->v_row, 1, 1));
    ok = ok && sum(&next.o, m->rows, item->ask.q_heads, item->ask.v_dim, 4) &&
         sum(&next.lse, m->rows, item->ask.q_heads, 1, 4);
    if (!ok)
        return false;
    item->ask.q_bytes = next.q - at->q;
    item->ask.k_bytes = next.k - at->k;
    item->ask.v_bytes = next.v - at->v;
    item->reply.o_offset = at->o, item->reply.o_bytes = next.o - at->o;
    item->reply.lse_offset = at->lse, item->reply.lse_bytes = next.lse - at->lse;
    *at = next;
    return true;
}

static void take_item(struct coordinator_item *item, struct coordinator_call *call, uint32_t index,
                      const Banyan__Pb__AttendItem *m)
{
    item->call = call;
    common_list_init(&item->link);
    item->index = index;
    item->ask.session = m->session;
    item->ask.layer = m->layer;
    item->ask.rows = m->rows;
    item->ask.first = m->first;
    item->ask.append = m->append;
    item->ask.visible = m->visible;
    item->ask.block_first = m->block_first;
    item->ask.block_count = m->block_count;
    item->ask.incarnation = m->incarnation;
    item->ask.mass_bins = m->mass_bins;
    item->ask.mass_heads = m->mass_heads;
    item->ask.partial = m->allow_partial;
    call->want_mass = call->want_mass || m->mass_bins;
}

static enum common_code take_all(struct coordinator_call *call, const struct proto_request *request,
                                 struct common_error *err)
{
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__AttendRequest *m = (const void *)message->body;
    struct sizes at = {0};
    bool append = false, shaped = true;
    for (uint32_t i = 0; i < call->n_items; i++) {
        const struct coordinator_session *s =
            coordinator_session_asked(call->steps->sessions, request, m->items[i]->session);
        const struct proto_layer layer = layer_of(s, m->items[i]->layer);
        take_item(&call->items[i], call, i, m->items[i]);
        append = append || m->items[i]->append;
        shaped = shaped && !proto_layer_local(&layer);
        if (!coordinator_spans_take(&call->items[i], m->items[i]->trace.data, m->items[i]->trace.len))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "item %u: its trace is malformed", i);
        if (!measure(&call->items[i], m->items[i], &layer, &at))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "item %u: invalid sizes", i);
    }
    // A lone item of an unknown session or layer may have any size: it is refused for what it is.
    bool lone = call->n_items == 1 && !shaped;
    size_t n = message->n_tensors;
    if (!lone && (n != 1 && n != 3))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "expected the tensors q, or q, k and v; got %zu", n);
    if (!lone && append && n != 3)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "an item appends, but k and v are missing");
    if (!lone && (message->tensors[0].bytes != at.q ||
                  (n == 3 && (message->tensors[1].bytes != at.k || message->tensors[2].bytes != at.v))))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "the tensors' sizes are not the sum of the items': q %zu (items: %zu), k %zu (%zu), v %zu (%zu)",
            message->tensors[0].bytes, at.q, n == 3 ? message->tensors[1].bytes : 0, at.k,
            n == 3 ? message->tensors[2].bytes : 0, at.v);
    if (at.o > PROTO_PAYLOAD_MAX || at.lse > PROTO_PAYLOAD_MAX - at.o)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the answer would have %zu bytes: ask for fewer rows at a time", at.o);
    call->o_bytes = at.o;
    call->lse_bytes = at.lse;
    at = (struct sizes){0};
    for (uint32_t i = 0; i < call->n_items && !lone; i++) {
        struct coordinator_item *item = &call->items[i];
        item->ask.q = (const uint8_t *)message->tensors[0].data + at.q;
        if (n == 3) {
            item->ask.k = (const uint8_t *)message->tensors[1].data + at.k;
            item->ask.v = (const uint8_t *)message->tensors[2].data + at.v;
        }
        at.q += item->ask.q_bytes, at.k += item->ask.k_bytes, at.v += item->ask.v_bytes;
    }
    return COMMON_OK;
}

// ---- the call -----------------------------------------------------------------------------------

static void start_item(struct coordinator_item *item)
{
    const struct coordinator_session *s = coordinator_call_session(item->call, item->ask.session);
    if (s && !check_shape(item, s))
        coordinator_item_finish(item);
    else
        coordinator_item_enter(item); // says NOT_FOUND for an unknown session
}

// From now on it is ended by end_call.
static void enter_call(struct coordinator_call *call, struct proto_request *request)
{
    struct coordinator_steps *steps = call->steps;
    uint64_t arrived = proto_request_arrived(request), deadline = proto_request_deadline(request);
    uint64_t latest = arrived + DEADLINE_MOST;
    call->arrived_ns = arrived;
    call->deadline_ns = deadline < latest ? deadline : latest;
    call->blob = common_blob_ref(proto_request_message(request)->blob);
    call->request = request;
    call->left = call->n_items;
    call->refs = call->n_items;
    common_list_push(&steps->calls, &call->link);
    steps->items += call->n_items;
    steps->bytes += call->o_bytes + call->lse_bytes;
    proto_request_charge(request, call->o_bytes + call->lse_bytes);
    if (!steps->deadlines_run)
        common_timer_start(steps->deadlines, DEADLINE_TICK, true);
    steps->deadlines_run = true;
}

void coordinator_handle_attend(struct coordinator_steps *steps, struct proto_request *request)
{
    const struct coordinator_options *options = &steps->core->options;
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__AttendRequest *m = (const void *)message->body;
    struct common_error err = {0};
    if (!m->n_items || m->n_items > PROTO_STEP_ITEMS_MAX) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "an attend call has 1 to 4096 items", NULL, 0);
        return;
    }
    if (m->n_items > options->max_steps - steps->items) {
        steps->core->reached[COORDINATOR_LIMIT_STEPS]++;
        snprintf(err.message, sizeof err.message,
                 "the limit of %" PRIu32 " steps at once is reached: try again, or raise --max-steps",
                 options->max_steps);
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, err.message, NULL, 0);
        return;
    }
    struct coordinator_use *use =
        coordinator_use_of(steps->sessions->quotas, proto_request_identity(request)->tenant);
    struct proto_status status;
    if (coordinator_quota_take_steps(use, m->n_items, proto_request_arrived(request), &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    struct coordinator_call *call = common_block_zeros(sizeof(*call) + m->n_items * sizeof(call->items[0]));
    if (!call) {
        coordinator_quota_give(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, m->n_items);
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
        return;
    }
    call->steps = steps;
    call->n_items = (uint32_t)m->n_items;
    call->who = *proto_request_identity(request);
    call->use = use;
    call->want_lse = m->want_lse;
    call->want_trace = m->want_trace;
    call->aside = m->aside;
    enum common_code code = take_all(call, request, &err);
    if (code == COMMON_OK && call->o_bytes + call->lse_bytes > options->max_bytes - steps->bytes) {
        steps->core->reached[COORDINATOR_LIMIT_ANSWERS]++;
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED,
                                "the limit of %" PRIu64
                                " bytes of answers at once is reached: try again, or raise --max-bytes",
                                options->max_bytes);
    }
    if (code != COMMON_OK) {
        coordinator_quota_give(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, m->n_items);
        common_block_give(call);
        proto_request_fail(request, code, err.message, NULL, 0);
        return;
    }
    enter_call(call, request);
    call->refs++; // one for this function
    proto_request_on_cancel(request, call_cancelled, call);
    for (uint32_t i = 0; i < call->n_items && call->request; i++) // not cancelled at once
        start_item(&call->items[i]);
    coordinator_call_unref(call);
}
