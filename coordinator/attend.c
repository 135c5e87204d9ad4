// SPDX-License-Identifier: Apache-2.0
// The client's side of a step: taking an Attend call apart into items, and putting its answer together.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "coordinator/scheduler.h"
#include "coordinator/session.h"
#include "proto/kv.h"
#include "proto/mass.h"

#define ROWS_MAX      4096
#define DEADLINE_MOST (3600 * COMMON_NS_PER_S) // a call that would wait longer waits this long
#define DEADLINE_TICK (10 * COMMON_NS_PER_MS)

void coordinator_attend_unref(struct coordinator_attend *a)
{
    if (--a->refs)
        return;
    a->c->bytes -= a->o_bytes + a->lse_bytes;
    for (uint32_t i = 0; i < a->n_items; i++) {
        free(a->items[i].failure);
        free(a->items[i].traces);
        coordinator_masses_free(a->items[i].masses);
    }
    proto_step_result_free(a->result);
    common_blob_unref(a->blob);
    free(a->traces);
    free(a->out);
    free(a);
}

bool coordinator_attend_room(struct coordinator_attend *a)
{
    if (!a->out)
        a->out = calloc(1, a->o_bytes + a->lse_bytes + 1); // zeros where an item fails
    return a->out != NULL;
}

const float *coordinator_item_lse(const struct coordinator_item *item)
{
    const struct coordinator_attend *a = item->attend;
    const uint8_t *lse = a->result ? a->result->tensors[1] : a->out ? a->out + a->o_bytes : NULL;
    return lse ? (const float *)(const void *)(lse + item->lse_offset) : NULL;
}

// ---- the answer ---------------------------------------------------------------------------------

static void sent(void *arg)
{
    coordinator_attend_unref(arg);
}

static void zero_failed(struct coordinator_attend *a)
{
    for (uint32_t i = 0; i < a->n_items && a->out; i++) {
        const struct coordinator_item *item = &a->items[i];
        if (item->state == COORDINATOR_ITEM_DONE && !item->failure)
            continue;
        memset(a->out + item->o_offset, 0, item->o_bytes); // some of its slabs may have come back
        if (a->want_lse)
            memset(a->out + a->o_bytes + item->lse_offset, 0, item->lse_bytes);
    }
}

void coordinator_trace_message(const struct proto_trace *trace, Banyan__Pb__WorkerTrace *out)
{
    *out = (Banyan__Pb__WorkerTrace)BANYAN__PB__WORKER_TRACE__INIT;
    out->worker = (char *)trace->worker;
    out->queue_ns = trace->queue_ns;
    out->compute_ns = trace->compute_ns;
    out->wait_ns = trace->wait_ns;
    out->tokens = trace->tokens;
    out->rank = trace->rank;
    out->parent = trace->parent;
}

static bool pack_masses(const struct coordinator_attend *a, struct coordinator_mass_message *out)
{
    struct coordinator_masses **list = calloc(a->n_items, sizeof(struct coordinator_masses *));
    for (uint32_t i = 0; list && i < a->n_items; i++)
        if (a->items[i].state == COORDINATOR_ITEM_DONE && !a->items[i].failure)
            list[i] = a->items[i].masses;
    bool ok = list && coordinator_mass_message_init(out, list, a->n_items);
    free(list);
    return ok;
}

static void reply(struct coordinator_attend *a, struct proto_request *request, enum common_code unfinished,
                  const char *text)
{
    size_t n = a->n_items, t = a->want_trace ? a->n_traces : 0;
    size_t bytes = n * (sizeof(Banyan__Pb__AttendItemResult) + sizeof(void *)) +
                   t * (sizeof(Banyan__Pb__WorkerTrace) + sizeof(void *));
    uint8_t *scratch = coordinator_scratch(a->c, bytes + 1);
    if (!scratch || (!a->result && !coordinator_attend_room(a))) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
        coordinator_attend_unref(a);
        return;
    }
    struct coordinator_mass_message masses = {0};
    if (a->want_mass && !pack_masses(a, &masses)) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
        coordinator_attend_unref(a);
        return;
    }
    zero_failed(a);
    Banyan__Pb__AttendItemResult *items = (void *)scratch;
    Banyan__Pb__WorkerTrace *traces = (void *)(items + n);
    Banyan__Pb__AttendItemResult **item_pointers = (void *)(traces + t);
    Banyan__Pb__WorkerTrace **trace_pointers = (void *)(item_pointers + n);
    struct proto_status status;
    for (size_t i = 0; i < n; i++) {
        const struct coordinator_item *item = &a->items[i];
        const struct proto_status *failure = item->failure;
        items[i] = (Banyan__Pb__AttendItemResult)BANYAN__PB__ATTEND_ITEM_RESULT__INIT;
        if (item->state != COORDINATOR_ITEM_DONE) {
            if (failure)
                proto_status_set(&status, unfinished, failure->reason, "%s; before that: %.200s", text,
                                 failure->message);
            else
                proto_status_set(&status, unfinished, "", "%s", text);
            failure = &status;
        }
        items[i].status = failure ? proto_status_to_pb(failure) : NULL;
        items[i].length = failure ? 0 : item->length;
        items[i].plan_digest = failure ? 0 : item->plan_digest;
        items[i].mass = masses.n ? masses.infos[i] : NULL;
        item_pointers[i] = &items[i];
    }
    for (size_t i = 0; i < t; i++) {
        coordinator_trace_message(&a->traces[i], &traces[i]);
        trace_pointers[i] = &traces[i];
    }
    Banyan__Pb__AttendReply m = BANYAN__PB__ATTEND_REPLY__INIT;
    uint64_t inside = common_clock_ns() - a->arrived_ns;
    m.n_items = n;
    m.items = item_pointers;
    m.n_traces = t;
    m.traces = trace_pointers;
    m.n_workers = masses.n_names;
    m.workers = masses.names;
    m.tree_ns = a->tree_ns;
    m.mass_ns = a->mass_ns;
    m.coordinator_ns = coordinator_own_ns(inside, a->tree_ns, a->mass_ns);
    struct common_slice o = {a->result ? a->result->tensors[0] : a->out, a->o_bytes};
    struct common_slice lse = {a->result ? a->result->tensors[1] : a->out + a->o_bytes, a->lse_bytes};
    struct proto_tensor_out tensors[3] = {
        {.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
         .n_dims = 1,
         .dims = {a->o_bytes / sizeof(float)},
         .pieces = &o,
         .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
         .n_dims = 1,
         .dims = {a->lse_bytes / sizeof(float)},
         .pieces = &lse,
         .n_pieces = 1},
    };
    // `items` is in the scratch memory: nothing between here and its last use may build another message.
    size_t n_tensors = a->want_lse ? 2 : 1;
    if (masses.tensor.n_pieces)
        tensors[n_tensors++] = masses.tensor;
    proto_request_reply(request, &m.base, tensors, n_tensors, sent, a);
    coordinator_mass_message_fini(&masses);
    for (size_t i = 0; i < n; i++)
        proto_status_pb_free(items[i].status);
}

void coordinator_attend_answer(struct coordinator_attend *a, enum common_code unfinished, const char *text)
{
    struct coordinator *c = a->c;
    struct proto_request *request = a->request;
    if (!request)
        return;
    a->request = NULL;
    if (a->prev)
        a->prev->next = a->next;
    else
        c->attends = a->next;
    if (a->next)
        a->next->prev = a->prev;
    a->refs++; // until the answer is sent
    for (uint32_t i = 0; i < a->n_items && a->left; i++)
        coordinator_item_stop(&a->items[i], unfinished, text);
    reply(a, request, unfinished, text);
}

static void cancelled(void *arg)
{
    coordinator_attend_answer(arg, COMMON_CANCELLED, "the caller is gone");
}

// ---- the call -----------------------------------------------------------------------------------

static bool bad_item(struct coordinator_item *item, const char *fmt, uint64_t got, uint64_t wanted)
{
    proto_status_set(coordinator_item_fail(item), COMMON_INVALID_ARGUMENT, "", fmt, got, wanted);
    item->failure->session = item->session;
    item->failure->layer = item->layer;
    return false;
}

// What can be said about an item without knowing how far the session has come.
static bool check_shape(struct coordinator_item *item, const struct coordinator_session *s)
{
    const Banyan__Pb__Spec *spec = s->spec;
    uint64_t rows = item->rows, most = s->c->options.max_session_tokens;
    uint64_t q = rows * spec->q_heads * spec->k_dim * sizeof(float);
    uint64_t k = item->append ? rows * proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->k_dim) : 0;
    uint64_t v = item->append ? rows * proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->v_dim) : 0;
    if (item->mass_bins > PROTO_MASS_BINS_MAX)
        return bad_item(item, "masses of %" PRIu64 " bins: at most %" PRIu64 " are allowed", item->mass_bins,
                        PROTO_MASS_BINS_MAX);
    if (rows * spec->q_heads * item->mass_bins > PROTO_MASS_VALUES_MAX)
        return bad_item(item,
                        "rows, query heads and bins of masses make %" PRIu64 " values, at most %" PRIu64
                        " are allowed: ask for fewer bins, or fewer rows at a time",
                        rows * spec->q_heads * item->mass_bins, PROTO_MASS_VALUES_MAX);
    if (rows < 1 || rows > ROWS_MAX)
        return bad_item(item, "an item has %" PRIu64 " rows: 1 to %" PRIu64 " are allowed", rows, ROWS_MAX);
    if (item->layer >= spec->layers)
        return bad_item(item, "layer %" PRIu64 " does not exist: the session has %" PRIu64, item->layer,
                        spec->layers);
    if (item->q_heads != spec->q_heads)
        return bad_item(item, "the item says %" PRIu64 " query heads, the session has %" PRIu64,
                        item->q_heads, spec->q_heads);
    if (item->v_dim != spec->v_dim)
        return bad_item(item, "the item says V has dimension %" PRIu64 ", the session's has %" PRIu64,
                        item->v_dim, spec->v_dim);
    if (item->q_bytes != q)
        return bad_item(item, "q has %" PRIu64 " bytes, the session's shape makes %" PRIu64, item->q_bytes,
                        q);
    if (item->k_bytes != k)
        return bad_item(item, "k has %" PRIu64 " bytes, the session's shape makes %" PRIu64, item->k_bytes,
                        k);
    if (item->v_bytes != v)
        return bad_item(item, "v has %" PRIu64 " bytes, the session's shape makes %" PRIu64, item->v_bytes,
                        v);
    if (k + v > COORDINATOR_APPEND_BYTES)
        return bad_item(item, "an append of %" PRIu64 " bytes is too large (%" PRIu64 " at most): attach it",
                        k + v, COORDINATOR_APPEND_BYTES);
    if (item->first >= most || rows > most - item->first) {
        bad_item(item, "position %" PRIu64 " is past the limit of %" PRIu64 " tokens a session", item->first,
                 most);
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
                    const struct coordinator_session *s, struct sizes *at)
{
    const Banyan__Pb__Spec *spec = s ? s->spec : NULL;
    size_t k_row = s ? proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->k_dim) : 0,
           v_row = s ? proto_kv_row_bytes(spec->kv_type, spec->kv_heads, spec->v_dim) : 0;
    struct sizes next = *at;
    bool ok = true;
    item->q_heads = m->q_heads ? m->q_heads : s ? spec->q_heads : 0;
    item->v_dim = m->v_dim ? m->v_dim : s ? spec->v_dim : 0;
    ok = ok && (m->q_bytes || !s ? sum(&next.q, m->q_bytes, 1, 1, 1)
                                 : sum(&next.q, m->rows, spec->q_heads, spec->k_dim, 4));
    ok = ok && (m->k_bytes || !s || !m->append ? sum(&next.k, m->k_bytes, 1, 1, 1)
                                               : sum(&next.k, m->rows, k_row, 1, 1));
    ok = ok && (m->v_bytes || !s || !m->append ? sum(&next.v, m->v_bytes, 1, 1, 1)
                                               : sum(&next.v, m->rows, v_row, 1, 1));
    ok = ok && sum(&next.o, m->rows, item->q_heads, item->v_dim, 4) &&
         sum(&next.lse, m->rows, item->q_heads, 1, 4);
    if (!ok)
        return false;
    item->q_bytes = next.q - at->q;
    item->k_bytes = next.k - at->k;
    item->v_bytes = next.v - at->v;
    item->o_offset = at->o, item->o_bytes = next.o - at->o;
    item->lse_offset = at->lse, item->lse_bytes = next.lse - at->lse;
    *at = next;
    return true;
}

static void take_item(struct coordinator_item *item, struct coordinator_attend *a, uint32_t index,
                      const Banyan__Pb__AttendItem *m)
{
    item->attend = a;
    item->index = index;
    item->session = m->session;
    item->layer = m->layer;
    item->rows = m->rows;
    item->first = m->first;
    item->append = m->append;
    item->asked_visible = m->visible;
    item->incarnation = m->incarnation;
    item->mass_bins = m->mass_bins;
    item->mass_heads = m->mass_heads;
    a->want_mass = a->want_mass || m->mass_bins;
}

static enum common_code take_all(struct coordinator_attend *a, const struct proto_message *message,
                                 struct common_error *err)
{
    const Banyan__Pb__AttendRequest *m = (const void *)message->body;
    struct sizes at = {0};
    bool append = false;
    for (uint32_t i = 0; i < a->n_items; i++) {
        const struct coordinator_session *s = coordinator_session_find(a->c, m->items[i]->session);
        take_item(&a->items[i], a, i, m->items[i]);
        append = append || m->items[i]->append;
        if (!measure(&a->items[i], m->items[i], s, &at))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "item %u: its sizes cannot be", i);
    }
    // A lone item of an unknown session may have any size: it is refused for what it is.
    bool lone = a->n_items == 1 && !coordinator_session_find(a->c, a->items[0].session);
    size_t n = message->n_tensors;
    if (!lone && (n != 1 && n != 3))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "an attend call has the tensors q, or q, k and v: %zu came", n);
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
    a->o_bytes = at.o;
    a->lse_bytes = at.lse;
    at = (struct sizes){0};
    for (uint32_t i = 0; i < a->n_items && !lone; i++) {
        struct coordinator_item *item = &a->items[i];
        item->q = (const uint8_t *)message->tensors[0].data + at.q;
        if (n == 3) {
            item->k = (const uint8_t *)message->tensors[1].data + at.k;
            item->v = (const uint8_t *)message->tensors[2].data + at.v;
        }
        at.q += item->q_bytes, at.k += item->k_bytes, at.v += item->v_bytes;
    }
    return COMMON_OK;
}

static void start_item(struct coordinator_item *item)
{
    const struct coordinator_session *s = coordinator_session_find(item->attend->c, item->session);
    if (s && !check_shape(item, s))
        coordinator_item_finish(item);
    else
        coordinator_item_run(item); // says NOT_FOUND for an unknown session
}

void coordinator_handle_attend(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__AttendRequest *m = (const void *)message->body;
    struct common_error err = {0};
    enum common_code code = COMMON_OK;
    if (!m->n_items || m->n_items > PROTO_STEP_ITEMS_MAX) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "an attend call has 1 to 4096 items", NULL, 0);
        return;
    }
    if (m->n_items > c->options.max_items - c->items) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "too many steps are under way: try again",
                           NULL, 0);
        return;
    }
    struct coordinator_attend *a = calloc(1, sizeof(*a) + m->n_items * sizeof(a->items[0]));
    if (!a) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
        return;
    }
    a->c = c;
    a->n_items = (uint32_t)m->n_items;
    a->want_lse = m->want_lse;
    a->want_trace = m->want_trace;
    code = take_all(a, message, &err);
    if (code == COMMON_OK && a->o_bytes + a->lse_bytes > c->options.max_bytes - c->bytes)
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED,
                                "too many answers are being put together: try again");
    if (code != COMMON_OK) {
        free(a);
        proto_request_fail(request, code, err.message, NULL, 0);
        return;
    }
    uint64_t latest = common_clock_after(DEADLINE_MOST);
    a->arrived_ns = proto_request_arrived(request);
    a->deadline_ns = proto_request_deadline(request) < latest ? proto_request_deadline(request) : latest;
    a->blob = common_blob_ref(message->blob);
    a->request = request;
    a->left = a->n_items;
    a->refs = a->n_items + 1; // one for this function
    a->next = c->attends;
    if (a->next)
        a->next->prev = a;
    c->attends = a;
    c->items += a->n_items;
    c->bytes += a->o_bytes + a->lse_bytes;
    if (!c->deadlines_run)
        common_timer_start(c->deadlines, DEADLINE_TICK, true);
    c->deadlines_run = true;
    proto_request_on_cancel(request, cancelled, a);
    coordinator_items_batch_begin(c);
    for (uint32_t i = 0; i < a->n_items; i++)
        if (a->request) // not cancelled at once
            start_item(&a->items[i]);
    coordinator_items_batch_end(c);
    coordinator_attend_unref(a);
}
