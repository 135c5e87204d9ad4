// SPDX-License-Identifier: Apache-2.0
// Attach: bulk K and V from the caller's buffers straight to the workers, and its commit.
//
// A range is cut into puts of at most 4 MiB (client_ticket_cut); a few dozen of them are on their way at a
// time. A put that was refused because its ticket is old goes again once with a fresh one; a put whose
// connection failed goes again, after asking the coordinator where, until nothing has arrived for the
// client's timeout.
//
//     todo ranges ──ticket there──▶ puts ──all answered, todo empty──▶ done
//        │  ▲  └─no ticket─▶ AttachOpen ─┘│   a second time for the same rows after a rest, unless rows have arrived
//        │  └──────── failed put ◀────────┘
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/rows.h"
#include "client/lib/core/wait.h"
#include "client/lib/rows/peer.h"
#include "client/lib/rows/ticket.h"
#include "client/lib/session/truncate.h"
#include "common/base/failpoint.h"
#include "proto/model/kv.h"
#include "proto/sums/rows_sum.h"

#define PUTS_MAX         64   // of one attach, waiting or in flight
#define SCALED_ROWS_MAX  8192 // of one put where a row is two slices: their lists stay below 32 MiB in all
#define PUT_TIMEOUT_NS   (10 * COMMON_NS_PER_S)
#define BACKOFF_FIRST_NS (20 * COMMON_NS_PER_MS)
#define BACKOFF_MAX_NS   (500 * COMMON_NS_PER_MS)

struct range {
    uint64_t first, count;
    bool again; // its ticket was refused before
};

struct attach_put;

struct attach {
    struct banyan_session *session;
    uint32_t layer;
    uint64_t first, count;
    struct client_rows k, v;
    struct client_wait wait;
    struct common_mail mail; // to the I/O thread
    banyan_code code;
    banyan_error error;
    // I/O thread only
    struct client_op op;
    struct range *todo; // a stack: the rest of the range, and puts that failed
    size_t n_todo, todo_room;
    struct attach_put *puts; // on their way
    uint32_t n_puts;
    uint64_t deadline_ns, backoff_ns;
    struct common_timer *pause;
    bool paused, asking, exactly;
    bool asked;       // since rows have arrived, or since the last rest
    banyan_error why; // the last put that failed, or a code of OK
    uint64_t asked_ns;
    bool ending; // puts are being cancelled on this stack
    struct client_call ask;
    Banyan__Pb__AttachOpenRequest ask_request;
};

struct attach_put {
    struct client_put put; // first: on_put_done
    struct attach *attach;
    struct attach_put *next, **at;
    struct client_ticket *ticket;
    struct range range;
    Banyan__Pb__ChunkPutRequest request;
    struct proto_tensor_out tensors[2];
    struct common_slice slices[]; // of K, then of V
};

static void attach_pump(struct attach *a);

static const struct client_layer *layer_of(const struct attach *a)
{
    return &a->session->layers[a->layer];
}

static void touch_deadline(struct attach *a)
{
    a->deadline_ns = common_clock_after(a->session->client->timeout_ns);
}

static void attach_fail(struct attach *a, const banyan_error *error)
{
    if (a->code != BANYAN_OK)
        return; // the first failure counts
    a->code = error->code;
    a->error = *error;
    bool nested = a->ending;
    a->ending = true;
    // What waits goes first, so that nothing of it is sent any more.
    for (enum client_put_state state = CLIENT_PUT_WAITING; state <= CLIENT_PUT_SENT; state++) {
        struct attach_put *put = a->puts, *next;
        for (; put; put = next) { // cancelling one ends at most that one
            next = put->next;
            if (put->put.state == state)
                client_peer_cancel(&put->put);
        }
    }
    client_call_cancel(&a->ask);
    a->ending = nested;
}

static void push_todo(struct attach *a, struct range range)
{
    if (a->n_todo == a->todo_room) {
        size_t room = a->todo_room * 2 + PUTS_MAX;
        struct range *grown = realloc(a->todo, room * sizeof *grown);
        if (!grown) {
            banyan_error error;
            client_error_set(&error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
            attach_fail(a, &error);
            return;
        }
        a->todo = grown;
        a->todo_room = room;
    }
    a->todo[a->n_todo++] = range;
}

// ---- tickets ----------------------------------------------------------------------------------------------

static void on_asked(struct client_call *call, banyan_code code, const struct proto_message *message,
                     const banyan_error *error)
{
    struct attach *a = (struct attach *)((char *)call - offsetof(struct attach, ask));
    banyan_error wrong;
    struct client_ticket *ticket;
    a->asking = false;
    if (a->code == BANYAN_OK && code == BANYAN_RESOURCE_EXHAUSTED && !a->exactly) {
        a->exactly = true; // there may be room for the need, if not for more
        a->asked = false;
    } else if (code == BANYAN_DEADLINE_EXCEEDED && a->why.code != BANYAN_OK) {
        attach_fail(a, &a->why); // what has kept the rows from arriving
    } else if (code != BANYAN_OK) {
        attach_fail(a, error);
    } else if (!message || !message->body) {
        client_error_set(&wrong, BANYAN_INTERNAL, "the coordinator's answer is empty");
        attach_fail(a, &wrong);
    } else if (client_ticket_read((const Banyan__Pb__AttachOpenReply *)message->body, a->ask_request.first,
                                  a->ask_request.count, a->session->spec.chunk_tokens, a->asked_ns, &ticket,
                                  &wrong) != BANYAN_OK) {
        attach_fail(a, &wrong);
    } else if (ticket->incarnation != atomic_load(&a->session->incarnation)) {
        client_ticket_unref(ticket);
        client_error_set(&wrong, BANYAN_ABORTED,
                         "the session was truncated by another client: read its state "
                         "(banyan_session_get_info) and attach again");
        attach_fail(a, &wrong);
    } else {
        client_peers_pass(a->session->client->peers,
                          ((const Banyan__Pb__AttachOpenReply *)message->body)->pass);
        client_ticket_keep(a->session, ticket);
    }
    if (!a->ending)
        attach_pump(a);
}

static void ask_ticket(struct attach *a, const struct range *need)
{
    uint64_t first, count;
    client_ticket_range(a->session, need->first, need->count, a->exactly, &first, &count);
    banyan__pb__attach_open_request__init(&a->ask_request);
    a->ask_request.session = a->session->id;
    a->ask_request.first = first;
    a->ask_request.count = count;
    a->ask = (struct client_call){
        .client = a->session->client,
        .method = BANYAN__PB__METHOD__METHOD_ATTACH_OPEN,
        .body = &a->ask_request.base,
        .deadline_ns = a->deadline_ns,
        .idempotent = true,
        .done = on_asked,
    };
    a->asking = true;
    a->asked = true;
    a->asked_ns = common_clock_ns();
    client_call_start(&a->ask);
}

// Whether a ticket for these rows has been asked for, and has brought nothing yet.
static bool asks_again(const struct attach *a, const struct range *need)
{
    return a->asked && need->first >= a->ask_request.first &&
           need->first - a->ask_request.first < a->ask_request.count;
}

// ---- puts -------------------------------------------------------------------------------------------------

static void on_pause_over(void *arg)
{
    struct attach *a = arg;
    a->paused = false;
    a->asked = false;
    attach_pump(a);
}

// A short rest before the coordinator is asked where the rows should go now.
static void pause_attach(struct attach *a)
{
    if (a->paused)
        return;
    a->paused = true;
    common_timer_start(a->pause, a->backoff_ns, false);
    a->backoff_ns = a->backoff_ns * 2 < BACKOFF_MAX_NS ? a->backoff_ns * 2 : BACKOFF_MAX_NS;
}

static bool ticket_refused(const banyan_error *error)
{
    return error->code == BANYAN_ABORTED || error->code == BANYAN_PERMISSION_DENIED ||
           strcmp(error->reason, "OLD_TICKET") == 0;
}

static void judge_failure(struct attach *a, struct attach_put *put, banyan_code code, bool lost,
                          const banyan_error *error)
{
    if (a->code != BANYAN_OK)
        return; // it was cancelled
    client_ticket_drop(a->session, put->ticket);
    a->why = *error;
    struct range again = put->range;
    again.again = true;
    bool late = common_clock_left(a->deadline_ns) == 0;
    bool moved = strcmp(error->reason, "OLD_TICKET") == 0; // while holders come and go, more than once
    if (ticket_refused(error) && !put->range.again && !late) {
        push_todo(a, again);
    } else if ((moved || lost || code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED) && !late) {
        again.again = put->range.again;
        push_todo(a, again);
        pause_attach(a);
    } else {
        attach_fail(a, error);
    }
}

static void on_put_done(struct client_put *client_put, banyan_code code, const struct proto_message *message,
                        const banyan_error *error)
{
    (void)message;
    COMMON_FAILPOINT("put_read");
    struct attach_put *put = (struct attach_put *)client_put;
    struct attach *a = put->attach;
    *put->at = put->next;
    if (put->next)
        put->next->at = put->at;
    a->n_puts--;
    if (code == BANYAN_OK) {
        touch_deadline(a);
        a->backoff_ns = BACKOFF_FIRST_NS;
        a->asked = false;
        a->why.code = BANYAN_OK;
    } else {
        judge_failure(a, put, code, client_call_lost(&put->put.call), error);
    }
    client_ticket_unref(put->ticket);
    free(put);
    if (!a->ending)
        attach_pump(a);
}

static struct proto_tensor_out rows_tensor(uint64_t bytes, const struct common_slice *slices, size_t n_slices)
{
    return (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                     .n_dims = 1,
                                     .dims = {bytes},
                                     .pieces = slices,
                                     .n_pieces = n_slices};
}

static banyan_code send_put(struct attach *a, struct client_ticket *ticket, const struct range *range,
                            uint32_t holder, banyan_error *error)
{
    struct banyan_session *session = a->session;
    struct client_peer *peer;
    banyan_code code = client_peer_find(session->client->peers,
                                        client_ticket_endpoint(ticket, range->first, holder), &peer, error);
    if (code != BANYAN_OK)
        return code;
    const struct client_layer *layer = layer_of(a);
    size_t n_slices = client_rows_slices(&a->k, range->count), n_v = layer->v_row > 0 ? n_slices : 0;
    struct attach_put *put = calloc(1, sizeof *put + 2 * n_slices * sizeof *put->slices);
    if (!put)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    put->attach = a;
    put->range = *range;
    put->ticket = ticket;
    ticket->refs++;
    put->next = a->puts;
    put->at = &a->puts;
    if (a->puts)
        a->puts->at = &put->next;
    a->puts = put;
    a->n_puts++;
    banyan__pb__chunk_put_request__init(&put->request);
    put->request.ticket.data = ticket->proof;
    put->request.ticket.len = ticket->proof_len;
    put->request.session = session->id;
    put->request.layer = a->layer;
    put->request.first = range->first;
    put->request.count = range->count;
    uint64_t row = range->first - a->first;
    client_rows_gather(&a->k, row, range->count, put->slices);
    if (n_v > 0)
        client_rows_gather(&a->v, row, range->count, put->slices + n_slices);
    put->tensors[0] = rows_tensor(range->count * layer->k_row, put->slices, n_slices);
    put->tensors[1] = rows_tensor(range->count * layer->v_row, put->slices + n_slices, n_v);
    put->put.call.method = BANYAN__PB__METHOD__METHOD_CHUNK_PUT;
    put->put.call.body = &put->request.base;
    put->put.call.tensors = put->tensors;
    put->put.call.n_tensors = 2;
    put->put.done = on_put_done;
    uint64_t left = common_clock_left(a->deadline_ns);
    put->put.timeout_ns = left < PUT_TIMEOUT_NS ? left : PUT_TIMEOUT_NS;
    client_peer_put(peer, &put->put);
    return BANYAN_OK;
}

// Sends the front of the range on top. False when a ticket must be asked for first.
static bool send_next(struct attach *a)
{
    struct range *top = &a->todo[a->n_todo - 1];
    struct client_ticket *ticket = client_ticket_find(a->session, top->first);
    if (!ticket)
        return false;
    size_t row_bytes = layer_of(a)->k_row + layer_of(a)->v_row;
    if (layer_of(a)->scale_row && row_bytes < CLIENT_PUT_BYTES / SCALED_ROWS_MAX)
        row_bytes = CLIENT_PUT_BYTES / SCALED_ROWS_MAX;
    struct range piece = *top;
    piece.count = client_ticket_cut(ticket, top->first, top->count, row_bytes);
    top->first += piece.count;
    top->count -= piece.count;
    if (top->count == 0)
        a->n_todo--;
    uint32_t n = client_ticket_holders(ticket, piece.first);
    ticket->refs++;
    for (uint32_t i = 0; i < n; i++) {
        banyan_error error;
        if (send_put(a, ticket, &piece, i, &error) != BANYAN_OK) {
            attach_fail(a, &error);
            break;
        }
    }
    client_ticket_unref(ticket);
    return true;
}

static void attach_end(struct attach *a)
{
    common_timer_free(a->pause);
    free(a->todo);
    client_op_remove(&a->op);
    client_wait_signal(&a->wait); // the attach is on the waiter's stack
}

static void attach_pump(struct attach *a)
{
    while (a->code == BANYAN_OK && !a->paused && !a->asking && a->n_todo > 0 &&
           a->n_puts + CLIENT_TICKET_HOLDERS <= PUTS_MAX) {
        if (send_next(a))
            continue;
        if (asks_again(a, &a->todo[a->n_todo - 1]))
            pause_attach(a);
        else
            ask_ticket(a, &a->todo[a->n_todo - 1]);
    }
    if (a->n_puts == 0 && !a->asking && (a->code != BANYAN_OK || a->n_todo == 0))
        attach_end(a);
}

// The client disconnects.
static void attach_cancel(struct client_op *op)
{
    struct attach *a = (struct attach *)((char *)op - offsetof(struct attach, op));
    banyan_error error;
    client_error_set(&error, BANYAN_CANCELLED, "the attach was cancelled: its client disconnects");
    attach_fail(a, &error);
    attach_pump(a);
}

static void attach_start(void *arg)
{
    struct attach *a = arg;
    banyan_error error;
    touch_deadline(a);
    client_op_add(a->session->client, &a->op, attach_cancel);
    push_todo(a, (struct range){.first = a->first, .count = a->count});
    if (common_timer_new(a->session->client->loop, on_pause_over, a, &a->pause) != COMMON_OK) {
        client_error_set(&error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        attach_fail(a, &error);
    }
    attach_pump(a);
}

static banyan_code check_range(const struct banyan_session *session, uint32_t layer, uint64_t first,
                               uint64_t count, banyan_error *error)
{
    if (!session)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the session is NULL");
    if (layer >= session->spec.layers)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "layer %u: the session has layers 0 to %u",
                                layer, session->spec.layers - 1);
    if (session->layers[layer].q_heads == 0 || session->layers[layer].source != layer)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "layer %u has no K and V of its own: nothing can be attached to it", layer);
    // Ends far below 2^64, so that no arithmetic on positions wraps.
    if (count == 0 || first > UINT64_MAX / 4 || count > UINT64_MAX / 4)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "the range is empty or exceeds the largest position");
    return BANYAN_OK;
}

// ---- sums -------------------------------------------------------------------------------------------------

static uint64_t sum_rows(const struct attach *a, const struct client_rows *rows, bool v, uint64_t row,
                         uint64_t count)
{
    uint32_t heads = layer_of(a)->kv_heads;
    struct proto_rows_piece piece = {
        .data = (const uint8_t *)rows->codes + row * rows->code_bytes,
        .len = rows->code_bytes / heads,
        .row_pitch = rows->code_bytes,
        .head_pitch = rows->code_bytes / heads,
        .part = v ? PROTO_ROWS_V : PROTO_ROWS_K,
        .heads = heads,
        .first = a->first + row,
        .count = count,
    };
    uint64_t sum = proto_rows_sum(&piece);
    if (!rows->scale_bytes)
        return sum;
    piece.data = (const uint8_t *)rows->scales + row * rows->scale_bytes;
    piece.len = piece.head_pitch = rows->scale_bytes / heads;
    piece.row_pitch = rows->scale_bytes;
    piece.part = v ? PROTO_ROWS_V_SCALE : PROTO_ROWS_K_SCALE;
    return sum + proto_rows_sum(&piece);
}

// On the caller's thread, which has nothing else to do while the I/O thread sends. Stretches end where chunks
// do.
static void keep_sums(const struct attach *a)
{
    uint64_t ct = a->session->spec.chunk_tokens, n;
    for (uint64_t row = 0; row < a->count; row += n) {
        n = ct - (a->first + row) % ct < a->count - row ? ct - (a->first + row) % ct : a->count - row;
        client_sums_keep(&a->session->sums, a->layer,
                         (struct client_sum){a->first + row, n,
                                             sum_rows(a, &a->k, false, row, n) +
                                                 (layer_of(a)->v_row > 0 ? sum_rows(a, &a->v, true, row, n)
                                                                         : 0)});
    }
}

// The range and the session have been checked.
static banyan_code attach(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                          const void *k, const float *k_scale, const void *v, const float *v_scale,
                          banyan_error *error)
{
    const struct client_layer *of = &session->layers[layer];
    if (!k || (!v && of->v_row > 0))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "k or v is NULL");
    if (of->v_row == 0 && (v || v_scale))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "values are part of the keys: v and v_scale must be NULL");
    banyan_code code = client_check_blocking(session->client, error);
    if (code == BANYAN_OK)
        code = client_cuts_may_write(session, error);
    if (code != BANYAN_OK)
        return code;
    size_t scales = of->scale_row;
    struct attach a = {
        .session = session,
        .layer = layer,
        .first = first,
        .k = {k, k_scale, of->k_row - scales, scales},
        .v = {v, v_scale, of->v_row - scales, scales},
        .count = count,
        .backoff_ns = BACKOFF_FIRST_NS,
    };
    common_loop_mail(session->client->loop, &a.mail, attach_start, &a);
    keep_sums(&a);
    client_wait_for(&a.wait);
    if (a.code != BANYAN_OK) // what of it has arrived is unknown
        client_sums_forget(&session->sums, layer, first, count);
    if (a.code != BANYAN_OK && error)
        *error = a.error;
    return a.code;
}

banyan_code banyan_attach(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                          const void *k, const void *v, banyan_error *error)
{
    banyan_code code = check_range(session, layer, first, count, error);
    if (code != BANYAN_OK)
        return code;
    if (session->layers[layer].scale_row)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "the session's KV type has scales: use banyan_attach_scaled");
    return attach(session, layer, first, count, k, NULL, v, NULL, error);
}

banyan_code banyan_attach_scaled(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                                 const void *k, const float *k_scale, const void *v, const float *v_scale,
                                 banyan_error *error)
{
    banyan_code code = check_range(session, layer, first, count, error);
    if (code != BANYAN_OK)
        return code;
    if (!session->layers[layer].scale_row)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "the session's KV type has no scales: use banyan_attach");
    if (!k_scale || (!v_scale && session->layers[layer].v_row > 0))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "k_scale or v_scale is NULL");
    return attach(session, layer, first, count, k, k_scale, v, v_scale, error);
}

struct commit_sums {
    size_t n;
    Banyan__Pb__RowsSum *pointers[PROTO_COMMIT_CHUNKS_MAX], sums[PROTO_COMMIT_CHUNKS_MAX];
};

// What was attached of the range, where a chunk's rows are all known. NULL: none, or no memory, or the range
// is longer than any commit may be.
static struct commit_sums *take_sums(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count)
{
    uint64_t ct = session->spec.chunk_tokens, end = first + count;
    if ((end - 1) / ct - first / ct >= PROTO_COMMIT_CHUNKS_MAX)
        return NULL;
    struct commit_sums *out = malloc(sizeof *out);
    if (!out)
        return NULL;
    out->n = 0;
    for (uint64_t at = first, n; at < end; at += n) {
        n = ct - at % ct < end - at ? ct - at % ct : end - at;
        Banyan__Pb__RowsSum *sum = &out->sums[out->n];
        banyan__pb__rows_sum__init(sum);
        sum->first = at;
        sum->count = n;
        out->pointers[out->n] = sum;
        out->n += client_sums_of(&session->sums, layer, at, n, &sum->sum);
    }
    return out;
}

banyan_code banyan_commit(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                          banyan_error *error)
{
    banyan_code code = check_range(session, layer, first, count, error);
    if (code == BANYAN_OK)
        code = client_cuts_may_write(session, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__AttachCommitRequest request = BANYAN__PB__ATTACH_COMMIT_REQUEST__INIT;
    request.session = session->id;
    request.layer = layer;
    request.first = first;
    request.count = count;
    struct commit_sums *sums = take_sums(session, layer, first, count);
    if (sums) {
        request.n_sums = sums->n;
        request.sums = sums->pointers;
    }
    code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_ATTACH_COMMIT, &request.base, true, 0,
                        NULL, NULL, error);
    free(sums);
    if (code == BANYAN_OK)
        client_sums_forget(&session->sums, layer, first, count);
    return code;
}
