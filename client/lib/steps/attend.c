// SPDX-License-Identifier: Apache-2.0
// Attend: items become pieces, pieces become RPCs, replies are scattered to the items' outputs.
//
// A caller's thread checks and packs everything into one struct client_attend; the I/O thread only sends and
// scatters. Most calls are one RPC. Of a larger call a few RPCs are in flight; if it appends, one, because
// rows must arrive in order and nng keeps none between calls.
#include "client/lib/steps/attend.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/rows.h"
#include "client/lib/core/spans.h"
#include "client/lib/core/wait.h"
#include "client/lib/session/truncate.h"
#include "client/lib/steps/mass.h"
#include "client/lib/steps/partial.h"
#include "client/lib/steps/split.h"
#include "common/hash/hash.h"
#include "proto/model/mass.h"

// 800 items of at most 104 bytes are a header of 82 KiB, far below its limit of 1 MiB. 16 MiB keep the
// pipeline of a large call busy at a quarter of what a frame may hold.
#define RPC_ITEMS_MAX 800
#define RPC_ROWS_MAX  4096
#define RPC_BYTES_MAX (UINT64_C(16) * 1024 * 1024)
#define RPC_WINDOW    4

struct rpc {
    struct client_call call; // first: on_rpc_done
    struct client_attend *attend;
    struct client_load load;
    Banyan__Pb__AttendRequest request;
    struct proto_tensor_out tensors[3];
    size_t o_bytes, lse_bytes; // of the reply
    bool ended;
};

struct client_attend {
    struct banyan_client *client;
    struct common_mail mail; // to the I/O thread
    banyan_item *items;
    size_t n_items;
    client_attend_done_fn done;
    void *arg;
    banyan_code code;
    banyan_error error;
    uint64_t started_ns;
    bool want_lse, appends;
    // I/O thread only
    banyan_trace *trace;
    struct client_item_trace
        *traced; // [n_items]; NULL: no item has a traceparent. Written before it is posted
    size_t next_rpc, n_in_flight, window;
    // packed
    struct client_split split;
    struct rpc *rpcs;           // [split.n_loads]
    Banyan__Pb__AttendItem *pb; // [split.n_pieces], as the rest
    Banyan__Pb__AttendItem **pb_items;
    struct common_slice *q;
    struct common_slice *k, *v; // filled without gaps, load by load
    size_t n_k, n_v;            // so far
};

banyan_code client_attend_code(const struct client_attend *attend)
{
    return attend->code;
}

const banyan_error *client_attend_error(const struct client_attend *attend)
{
    return &attend->error;
}

void *client_attend_arg(const struct client_attend *attend)
{
    return attend->arg;
}

banyan_item *client_attend_items(const struct client_attend *attend, size_t *n_items)
{
    *n_items = attend->n_items;
    return attend->items;
}

void client_attend_free(struct client_attend *attend)
{
    client_split_free(&attend->split);
    free(attend->rpcs);
    free(attend->pb);
    free(attend->pb_items);
    free(attend->q);
    free(attend->traced);
    free(attend);
}

// ---- packing ----------------------------------------------------------------------------------------------

static void set_item_error(banyan_item *item, const banyan_error *error)
{
    item->code = error->code;
    if (item->error)
        *item->error = *error;
}

static void fail_all(banyan_item *items, size_t n_items, const banyan_error *error)
{
    for (size_t i = 0; items && i < n_items; i++) {
        client_mass_clear(items[i].mass); // nothing that this call has made
        client_partial_clear(items[i].partial);
        set_item_error(&items[i], error);
    }
}

static const struct client_layer *layer_of(const banyan_item *item)
{
    return &item->session->layers[item->layer];
}

// Whether the item is sent in parts. A part's masses would have bins of their own.
static bool item_is_cut(const banyan_item *item)
{
    const struct client_layer *l = layer_of(item);
    uint64_t in = l->q_row + (item->k ? l->k_row + l->v_row : 0), out = l->o_row + l->lse_row;
    return item->rows > RPC_ROWS_MAX || item->rows * (in > out ? in : out) > RPC_BYTES_MAX;
}

// K and V of an item against its layer. NULL, or what is wrong.
static const char *wrong_kv(const banyan_item *item)
{
    const struct client_layer *l = layer_of(item);
    bool v = l->v_row > 0, scales = l->scale_row > 0 && item->k;
    if (item->k && l->source != item->layer)
        return "the layer reads another layer's K and V: append to that one";
    if (!v && (item->v || item->v_scale))
        return "values are part of the keys: v and v_scale must be NULL";
    if (v && !item->k != !item->v)
        return "k without v, or v without k";
    if (scales && (!item->k_scale || (v && !item->v_scale)))
        return "the session's KV type has scales: give k_scale and v_scale with k and v";
    if (!scales && (item->k_scale || item->v_scale))
        return "k_scale and v_scale are only for k and v of BANYAN_INT8 and BANYAN_FP8";
    return NULL;
}

// What does not need the coordinator's word. A bad item fails alone.
static banyan_code check_item(const struct banyan_client *client, const banyan_item *item,
                              banyan_error *error)
{
    const char *wrong = NULL;
    if (!item->session)
        wrong = "session is NULL";
    else if (item->session->client != client)
        wrong = "the session belongs to another client";
    else if (item->rows == 0)
        wrong = "rows is 0";
    else if (!item->q || !item->o)
        wrong = "q or o is NULL";
    if (wrong)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "item: %s", wrong);
    if (item->layer >= item->session->spec.layers)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "item: layer %u: the session has layers 0 to %u", item->layer,
                                item->session->spec.layers - 1);
    if (layer_of(item)->q_heads == 0)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "item: layer %u holds nothing in the session: it cannot be attended",
                                item->layer);
    wrong = wrong_kv(item);
    if (wrong)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "item: %s", wrong);
    if (item->first > UINT64_MAX - item->rows)
        wrong = "first + rows is beyond 64 bits";
    else if (item->block_first > UINT64_MAX - item->block_count)
        wrong = "block_first + block_count is beyond 64 bits";
    else if (item->k && (item->block_count || layer_of(item)->not_causal) && item_is_cut(item))
        wrong = "at most 4096 rows and 16 MiB may see later rows of their append: attach them first";
    else if (item->mass && (item->mass->bins < 1 || item->mass->bins > PROTO_MASS_BINS_MAX))
        wrong = "mass->bins must be 1 to 4096";
    else if (item->mass && item_is_cut(item))
        wrong = "an item with masses has at most 4096 rows and 16 MiB: ask for fewer rows at a time";
    else if (item->partial && item_is_cut(item))
        wrong = "an item with `partial` has at most 4096 rows and 16 MiB: ask for fewer rows at a time";
    if (wrong)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "item: %s", wrong);
    return item->k ? client_cuts_may_write(item->session, error) : BANYAN_OK;
}

static void pack_piece(struct client_attend *a, size_t nth)
{
    const struct client_piece *piece = &a->split.pieces[nth];
    const banyan_item *item = &a->items[piece->item];
    const struct banyan_session *session = item->session;
    const struct client_layer *layer = layer_of(item);
    Banyan__Pb__AttendItem *pb = &a->pb[nth];
    uint64_t end = item->first + piece->row + piece->rows;
    banyan__pb__attend_item__init(pb);
    pb->session = session->id;
    pb->layer = item->layer;
    pb->first = item->first + piece->row;
    pb->rows = piece->rows;
    pb->append = item->k != NULL;
    // The rows of later pieces are not there yet; no row of this one may see them anyway.
    pb->visible = item->k && piece->rows < item->rows && item->visible > end ? end : item->visible;
    pb->block_first = item->block_first;
    pb->block_count = item->block_count;
    pb->incarnation = atomic_load_explicit(&session->incarnation, memory_order_relaxed);
    pb->q_bytes = piece->rows * layer->q_row;
    pb->k_bytes = item->k ? piece->rows * layer->k_row : 0;
    pb->v_bytes = item->k ? piece->rows * layer->v_row : 0;
    pb->q_heads = layer->q_heads;
    pb->v_dim = layer->v_dim;
    pb->mass_bins = item->mass ? item->mass->bins : 0;
    pb->mass_heads = item->mass && item->mass->per_head;
    pb->allow_partial = item->partial != NULL;
    if (a->traced && a->traced[piece->item].there) {
        pb->trace.data = (uint8_t *)&a->traced[piece->item].trace; // only read by packing
        pb->trace.len = sizeof a->traced->trace;
    }
    a->pb_items[nth] = pb;
    a->q[nth] = (struct common_slice){(const uint8_t *)item->q + piece->row * layer->q_row,
                                      piece->rows * layer->q_row};
}

static struct proto_tensor_out bytes_tensor(const struct common_slice *pieces, size_t n_pieces)
{
    struct proto_tensor_out tensor = {
        .dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .pieces = pieces, .n_pieces = n_pieces};
    for (size_t i = 0; i < n_pieces; i++)
        tensor.dims[0] += pieces[i].len;
    return tensor;
}

static void on_rpc_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                        const banyan_error *error);

static void pack_rpc(struct client_attend *a, struct rpc *rpc, struct client_load load, uint64_t deadline_ns,
                     bool trace)
{
    rpc->attend = a;
    rpc->load = load;
    const size_t from_k = a->n_k, from_v = a->n_v;
    for (size_t i = load.first; i < load.first + load.count; i++) {
        const struct client_piece *piece = &a->split.pieces[i];
        const banyan_item *item = &a->items[piece->item];
        const struct client_layer *layer = layer_of(item);
        pack_piece(a, i);
        rpc->o_bytes += piece->rows * layer->o_row;
        rpc->lse_bytes += a->want_lse ? piece->rows * layer->lse_row : 0;
        if (!item->k)
            continue;
        size_t scales = layer->scale_row;
        const struct client_rows k = {item->k, item->k_scale, layer->k_row - scales, scales},
                                 v = {item->v, item->v_scale, layer->v_row - scales, scales};
        a->n_k += client_rows_gather(&k, piece->row, piece->rows, a->k + a->n_k);
        if (layer->v_row > 0)
            a->n_v += client_rows_gather(&v, piece->row, piece->rows, a->v + a->n_v);
    }
    const size_t n_k = a->n_k - from_k;
    banyan__pb__attend_request__init(&rpc->request);
    rpc->request.n_items = load.count;
    rpc->request.items = a->pb_items + load.first;
    rpc->request.want_lse = a->want_lse;
    rpc->request.want_trace = trace;
    rpc->request.aside = a->client->aside;
    rpc->tensors[0] = bytes_tensor(a->q + load.first, load.count);
    rpc->tensors[1] = bytes_tensor(a->k + from_k, n_k);
    rpc->tensors[2] = bytes_tensor(a->v + from_v, a->n_v - from_v);
    rpc->call = (struct client_call){
        .client = a->client,
        .method = BANYAN__PB__METHOD__METHOD_ATTEND,
        .body = &rpc->request.base,
        .tensors = rpc->tensors,
        .n_tensors = n_k > 0 ? 3 : 1,
        .deadline_ns = deadline_ns,
        .idempotent = true, // the same bytes at the same positions are a no-op
        .done = on_rpc_done,
    };
}

// False: out of memory.
static bool take_trace_of(struct client_attend *a, size_t i, banyan_error *wrong)
{
    banyan_item *item = &a->items[i];
    if (!a->traced)
        a->traced = calloc(a->n_items, sizeof *a->traced);
    if (a->traced)
        item->code = client_item_trace_take(a->client, item->traceparent, &a->traced[i], wrong);
    return a->traced != NULL;
}

static bool split_items(struct client_attend *a)
{
    static const struct client_split_limits limits = {.rows = RPC_ROWS_MAX,
                                                      .items = RPC_ITEMS_MAX,
                                                      .bytes = RPC_BYTES_MAX};
    struct client_split_item small[8];
    struct client_split_item *shapes = a->n_items <= 8 ? small : calloc(a->n_items, sizeof *shapes);
    bool ok = true;
    if (!shapes)
        return false;
    for (size_t i = 0; i < a->n_items; i++) {
        banyan_item *item = &a->items[i];
        banyan_error wrong;
        item->length = item->digest = 0;
        client_mass_clear(item->mass);
        client_partial_clear(item->partial);
        item->code = check_item(a->client, item, &wrong);
        if (item->traceparent && item->code == BANYAN_OK && !take_trace_of(a, i, &wrong)) {
            ok = false;
            break;
        }
        if (item->code != BANYAN_OK) {
            set_item_error(item, &wrong);
            shapes[i] = (struct client_split_item){0};
            continue;
        }
        const struct client_layer *l = layer_of(item);
        shapes[i] = (struct client_split_item){.rows = item->rows,
                                               .in_row = l->q_row + (item->k ? l->k_row + l->v_row : 0),
                                               .out_row = l->o_row + (item->lse ? l->lse_row : 0)};
        a->want_lse |= item->lse != NULL;
        a->appends |= item->k != NULL;
    }
    ok = ok && client_split_make(shapes, a->n_items, &limits, &a->split);
    if (shapes != small)
        free(shapes);
    return ok;
}

static bool attend_pack(struct client_attend *a, uint64_t deadline_ns, bool trace)
{
    if (!split_items(a))
        return false;
    size_t n = a->split.n_pieces, n_kv = 0; // n_kv at least the slices of K, and of V
    if (n == 0)
        return true;
    for (size_t i = 0; i < n; i++)
        n_kv += layer_of(&a->items[a->split.pieces[i].item])->scale_row ? 2 * a->split.pieces[i].rows : 1;
    a->rpcs = calloc(a->split.n_loads, sizeof *a->rpcs);
    a->pb = calloc(n, sizeof *a->pb);
    a->pb_items = calloc(n, sizeof(Banyan__Pb__AttendItem *));
    a->q = calloc(n + 2 * n_kv, sizeof *a->q);
    if (!a->rpcs || !a->pb || !a->pb_items || !a->q)
        return false;
    a->k = a->q + n;
    a->v = a->k + n_kv;
    for (size_t i = 0; i < a->split.n_loads; i++)
        pack_rpc(a, &a->rpcs[i], a->split.loads[i], deadline_ns, trace);
    return true;
}

// ---- the I/O thread ---------------------------------------------------------------------------------------

// The call has no answer: what it has appended may be there all the same.
static bool is_open(const struct client_attend *a)
{
    return a->next_rpc > 0 &&
           (a->split.n_loads > 1 || a->code == BANYAN_UNAVAILABLE || a->code == BANYAN_DEADLINE_EXCEEDED ||
            a->code == BANYAN_CANCELLED || a->code == BANYAN_INTERNAL);
}

static void fail_items(struct client_attend *a)
{
    for (size_t i = 0; i < a->n_items; i++) {
        banyan_mass_free(a->items[i].mass);
        banyan_partial_free(a->items[i].partial);
    }
    fail_all(a->items, a->n_items, &a->error);
    if (!a->appends || !is_open(a))
        return;
    client_copy_text(a->error.reason, sizeof a->error.reason, "UNCONFIRMED");
    for (size_t i = 0; i < a->n_items; i++)
        if (a->items[i].k)
            set_item_error(&a->items[i], &a->error);
}

static void attend_end(struct client_attend *a)
{
    if (a->code != BANYAN_OK)
        fail_items(a);
    if (a->traced && a->client->tracer)
        client_spans_add(a->client, a->traced, a->items, a->n_items, a->started_ns, common_clock_ns());
    if (a->trace) {
        a->trace->total_ns = common_clock_ns() - a->started_ns;
        if (a->code != BANYAN_OK)
            banyan_trace_free(a->trace);
    }
    a->done(a);
}

// Sends what the window allows. Ends the call when nothing is left.
static void attend_pump(struct client_attend *a)
{
    while (a->code == BANYAN_OK && a->next_rpc < a->split.n_loads && a->n_in_flight < a->window) {
        a->n_in_flight++;
        client_call_start(&a->rpcs[a->next_rpc++].call);
    }
    if (a->n_in_flight == 0)
        attend_end(a);
}

static void attend_start(void *arg)
{
    attend_pump(arg);
}

static void attend_fail(struct client_attend *a, const banyan_error *error)
{
    if (a->code != BANYAN_OK)
        return; // the first failure counts
    a->code = error->code;
    a->error = *error;
    for (size_t i = 0; i < a->next_rpc; i++) // these end on this stack, or soon
        if (!a->rpcs[i].ended)
            client_call_cancel(&a->rpcs[i].call);
}

static void take_trace(struct client_attend *a, const Banyan__Pb__AttendReply *reply)
{
    banyan_trace *trace = a->trace;
    trace->coordinator_ns += reply->coordinator_ns;
    trace->mass_ns += reply->mass_ns;
    if (reply->tree_ns > trace->tree_ns)
        trace->tree_ns = reply->tree_ns;
    if (reply->n_traces == 0 || reply->n_traces > CLIENT_WORKERS_MAX)
        return;
    banyan_worker_trace *workers =
        realloc(trace->workers, (trace->n_workers + reply->n_traces) * sizeof *trace->workers);
    if (!workers)
        return; // a trace is not worth an answer
    trace->workers = workers;
    for (size_t i = 0; i < reply->n_traces; i++) {
        banyan_worker_trace one;
        uint32_t at = 0;
        client_trace_from_pb(reply->traces[i], &one);
        while (at < trace->n_workers && strcmp(workers[at].worker, one.worker) != 0)
            at++;
        if (at == trace->n_workers) {
            workers[trace->n_workers++] = one;
            continue;
        }
        workers[at].queue_ns += one.queue_ns;
        workers[at].compute_ns += one.compute_ns;
        workers[at].wait_ns += one.wait_ns;
        workers[at].tokens += one.tokens;
    }
}

// Pieces of one item end in any order.
static void take_result(banyan_item *item, const struct client_piece *piece,
                        const Banyan__Pb__AttendItemResult *result)
{
    if (result->length > item->length)
        item->length = result->length;
    if (piece->rows == item->rows)
        item->digest = result->plan_digest;
    else
        item->digest += common_mix64(result->plan_digest ^ piece->row);
}

static bool any_missing(const Banyan__Pb__AttendReply *reply)
{
    for (size_t i = 0; i < reply->n_items; i++)
        if (reply->items[i]->missing)
            return true;
    return false;
}

static banyan_code scatter(struct rpc *rpc, const struct proto_message *message, banyan_error *error)
{
    struct client_attend *a = rpc->attend;
    const Banyan__Pb__AttendReply *reply = (const Banyan__Pb__AttendReply *)(message ? message->body : NULL);
    const size_t n = a->want_lse ? 2 : 1; // then masses, then missing ranges
    const size_t missing = reply && any_missing(reply) ? 1 : 0;
    if (!reply || reply->n_items != rpc->load.count ||
        (message->n_tensors != n + missing && message->n_tensors != n + missing + 1) ||
        message->tensors[0].bytes != rpc->o_bytes ||
        (a->want_lse && message->tensors[1].bytes != rpc->lse_bytes))
        return client_error_set(error, BANYAN_INTERNAL,
                                "the coordinator's answer does not match the request's shape");
    const uint8_t *o = message->tensors[0].data;
    const uint8_t *lse = a->want_lse ? message->tensors[1].data : NULL;
    struct client_mass_reader masses = {.names = reply->workers, .n_names = reply->n_workers};
    struct client_missing_reader ranges = {0};
    if (missing) {
        ranges.bytes = message->tensors[message->n_tensors - 1].data;
        ranges.left = message->tensors[message->n_tensors - 1].bytes;
    }
    if (message->n_tensors > n + missing) {
        masses.values = message->tensors[n].data;
        masses.left = message->tensors[n].bytes / sizeof(float);
    }
    for (size_t i = 0; i < rpc->load.count; i++) {
        const Banyan__Pb__AttendItemResult *result = reply->items[i];
        const struct client_piece *piece = &a->split.pieces[rpc->load.first + i];
        banyan_item *item = &a->items[piece->item];
        const struct client_layer *layer = layer_of(item);
        size_t o_bytes = piece->rows * layer->o_row, lse_bytes = piece->rows * layer->lse_row;
        if (result->status && result->status->code != BANYAN_OK) {
            if (item->code == BANYAN_OK) {
                banyan_error failure;
                client_error_from_pb(result->status, &failure);
                set_item_error(item, &failure);
            }
        } else {
            memcpy((uint8_t *)item->o + piece->row * layer->o_row, o, o_bytes);
            if (item->lse)
                memcpy((uint8_t *)item->lse + piece->row * layer->lse_row, lse, lse_bytes);
            take_result(item, piece, result);
            banyan_code code =
                item->mass ? client_mass_take(&masses, result->mass, item->mass, error) : BANYAN_OK;
            if (code == BANYAN_OK)
                code = client_partial_take(&ranges, result, item->partial, error);
            if (code != BANYAN_OK)
                return code;
        }
        o += o_bytes;
        if (lse)
            lse += lse_bytes;
    }
    if (ranges.left > 0)
        return client_error_set(error, BANYAN_INTERNAL,
                                "the coordinator declares missing ranges that belong to no item");
    if (a->trace)
        take_trace(a, reply);
    return BANYAN_OK;
}

static void on_rpc_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                        const banyan_error *error)
{
    struct rpc *rpc = (struct rpc *)call;
    struct client_attend *a = rpc->attend;
    banyan_error wrong;
    rpc->ended = true;
    if (code != BANYAN_OK)
        attend_fail(a, error);
    else if (a->code == BANYAN_OK && scatter(rpc, message, &wrong) != BANYAN_OK)
        attend_fail(a, &wrong);
    a->n_in_flight--; // not before: the others of a failed call end meanwhile, and this one ends it
    attend_pump(a);
}

// Checked and packed, and not started.
static banyan_code attend_new(struct banyan_client *client, banyan_item *items, size_t n_items,
                              uint64_t timeout_ns, banyan_trace *trace, client_attend_done_fn done, void *arg,
                              struct client_attend **out, banyan_error *error)
{
    banyan_error failure;
    banyan_code code;
    if (!client || !items || n_items == 0) {
        code = client_error_set(&failure, BANYAN_INVALID_ARGUMENT,
                                "client or items is NULL, or there are no items");
        goto refuse;
    }
    if (atomic_load(&client->closing)) {
        code = client_error_set(&failure, BANYAN_CANCELLED, "the client is disconnected");
        goto refuse;
    }
    struct client_attend *a = calloc(1, sizeof *a);
    if (!a) {
        code = client_error_set(&failure, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        goto refuse;
    }
    a->client = client;
    a->items = items;
    a->n_items = n_items;
    a->done = done;
    a->arg = arg;
    a->trace = trace;
    a->started_ns = common_clock_ns();
    if (!attend_pack(a, common_clock_after(timeout_ns ? timeout_ns : client->timeout_ns), trace != NULL)) {
        client_attend_free(a);
        code = client_error_set(&failure, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        goto refuse;
    }
    if (trace)
        memset(trace, 0, sizeof *trace);
    a->window = a->appends ? 1 : RPC_WINDOW;
    *out = a;
    return BANYAN_OK;

refuse:
    fail_all(items, n_items, &failure);
    if (error)
        *error = failure;
    return code;
}

banyan_code client_attend_submit(struct banyan_client *client, banyan_item *items, size_t n_items,
                                 uint64_t timeout_ns, banyan_trace *trace, client_attend_done_fn done,
                                 void *arg, banyan_error *error)
{
    struct client_attend *a;
    banyan_code code = attend_new(client, items, n_items, timeout_ns, trace, done, arg, &a, error);
    if (code != BANYAN_OK)
        return code;
    // From a callback a call starts at once; one without RPCs ends later, never on this stack.
    if (a->split.n_loads > 0 && common_loop_is_owner(client->loop))
        attend_start(a);
    else
        common_loop_mail(client->loop, &a->mail, attend_start, a);
    return BANYAN_OK;
}

// ---- blocking ---------------------------------------------------------------------------------------------

struct waiter {
    struct client_wait wait;
    struct client_attend *attend;
};

static void on_blocking_done(struct client_attend *attend)
{
    struct waiter *waiter = attend->arg;
    waiter->attend = attend; // the waiter frees it
    common_loop_answered(attend->client->loop);
    client_wait_signal(&waiter->wait);
}

banyan_code banyan_attend(banyan_client *client, banyan_item *items, size_t n_items, uint64_t timeout_ns,
                          banyan_trace *trace, banyan_error *error)
{
    banyan_error refused;
    banyan_code code = client_check_blocking(client, &refused);
    if (code != BANYAN_OK) {
        fail_all(items, n_items, &refused);
        if (error)
            *error = refused;
        return code;
    }
    struct waiter waiter = {0};
    struct client_attend *a;
    code = attend_new(client, items, n_items, timeout_ns, trace, on_blocking_done, &waiter, &a, error);
    if (code != BANYAN_OK)
        return code;
    client_run(client, &a->mail, attend_start, a, &waiter.wait);
    code = waiter.attend->code;
    if (code != BANYAN_OK && error)
        *error = waiter.attend->error;
    client_attend_free(waiter.attend);
    return code;
}

void banyan_trace_free(banyan_trace *trace)
{
    if (!trace)
        return;
    free(trace->workers);
    trace->workers = NULL;
    trace->n_workers = 0;
}
