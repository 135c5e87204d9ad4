// SPDX-License-Identifier: Apache-2.0
// Reading rows: from the workers that hold them straight into the caller's buffers.
//
// A range is cut into pieces of one chunk each, READ_BYTES at most; up to READS_MAX are under way. A piece
// that failed goes again: to the chunk's next holder, after a rest, with a new ticket, until nothing has
// arrived for the client's timeout.
//
//     todo ranges ──ticket there──▶ pieces ──all come, todo empty──▶ done
//        │  ▲  └─no ticket──▶ ReadOpen ──┘│   a second time after a rest, unless rows have arrived
//        │  └──────── failed piece ◀──────┘
#include "client/lib/rows/read.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/wait.h"
#include "client/lib/rows/peer.h"
#include "client/lib/rows/seals.h"
#include "client/lib/rows/ticket.h"
#include "proto/sums/rows_sum.h"

#define READ_BYTES       (UINT64_C(256) << 10) // of K and V, or one row: a worker's loop copies them in some 50 us
#define READS_MAX        32
#define READ_TIMEOUT_NS  (5 * COMMON_NS_PER_S)
#define BACKOFF_FIRST_NS (20 * COMMON_NS_PER_MS)
#define BACKOFF_MAX_NS   (500 * COMMON_NS_PER_MS)

struct span {
    uint64_t first, count;
    uint32_t tries; // that have failed
};

struct reading;

struct piece {
    struct client_put put; // first: on_piece_done
    struct reading *reading;
    struct piece *next, **at;
    struct span span;
    uint64_t seal; // of its chunk, as the ticket says
    Banyan__Pb__ChunkReadRequest request;
};

struct reading {
    struct banyan_session *session;
    uint32_t layer;
    uint64_t first, count;
    uint8_t *k, *v;           // rows, without scales
    float *k_scale, *v_scale; // NULL: a type without
    uint32_t copy;            // CLIENT_ANY_COPY, or of each chunk this one of its holders alone
    struct client_wait wait;
    struct common_mail mail; // to the I/O thread
    banyan_code code;
    banyan_error error;
    // I/O thread only
    struct client_op op;
    struct client_ticket *ticket; // a reference; NULL: to be asked for
    struct span
        todo[READS_MAX + 1]; // a stack: the rest of the range at the bottom, pieces that failed above it
    uint32_t n_todo, n_pieces;
    struct piece *pieces; // under way
    uint64_t deadline_ns, backoff_ns;
    struct common_timer *pause;
    bool paused, asking;
    bool asked;       // since rows have arrived, or since the last rest
    banyan_error why; // the last piece that failed, or a code of OK
    uint64_t asked_ns;
    bool ending; // pieces are being cancelled on this stack
    struct client_call ask;
    Banyan__Pb__ReadOpenRequest ask_request;
};

static void read_pump(struct reading *r);

static const struct client_layer *layer_of(const struct reading *r)
{
    return &r->session->layers[r->layer];
}

static void touch_deadline(struct reading *r)
{
    r->deadline_ns = common_clock_after(r->session->client->timeout_ns);
    r->backoff_ns = BACKOFF_FIRST_NS;
}

static void read_fail(struct reading *r, const banyan_error *error)
{
    if (r->code != BANYAN_OK)
        return; // the first failure counts
    r->code = error->code;
    r->error = *error;
    bool nested = r->ending;
    r->ending = true;
    // What waits goes first, so that nothing of it is sent any more.
    for (enum client_put_state state = CLIENT_PUT_WAITING; state <= CLIENT_PUT_SENT; state++) {
        struct piece *piece = r->pieces, *next;
        for (; piece; piece = next) { // cancelling one ends at most that one
            next = piece->next;
            if (piece->put.state == state)
                client_peer_cancel(&piece->put);
        }
    }
    client_call_cancel(&r->ask);
    r->ending = nested;
}

// ---- tickets ----------------------------------------------------------------------------------------------

static void drop_ticket(struct reading *r)
{
    client_ticket_unref(r->ticket);
    r->ticket = NULL;
}

static void on_rested(void *arg)
{
    struct reading *r = arg;
    r->paused = false;
    r->asked = false;
    read_pump(r);
}

static void rest(struct reading *r)
{
    if (r->paused)
        return;
    r->paused = true;
    common_timer_start(r->pause, r->backoff_ns, false);
    r->backoff_ns = r->backoff_ns * 2 < BACKOFF_MAX_NS ? r->backoff_ns * 2 : BACKOFF_MAX_NS;
}

static void on_asked(struct client_call *call, banyan_code code, const struct proto_message *message,
                     const banyan_error *error)
{
    struct reading *r = (struct reading *)((char *)call - offsetof(struct reading, ask));
    uint64_t ct = r->session->spec.chunk_tokens, first = r->ask_request.first / ct * ct;
    uint64_t end = (r->ask_request.first + r->ask_request.count + ct - 1) / ct * ct;
    banyan_error wrong;
    r->asking = false;
    if (code == BANYAN_UNAVAILABLE && r->code == BANYAN_OK && common_clock_left(r->deadline_ns) > 0) {
        rest(r); // a worker is away, or is being removed
    } else if (code == BANYAN_DEADLINE_EXCEEDED && r->why.code != BANYAN_OK) {
        read_fail(r, &r->why); // what has kept the rows from arriving
    } else if (code != BANYAN_OK) {
        read_fail(r, error);
    } else if (!message || !message->body) {
        client_error_set(&wrong, BANYAN_INTERNAL, "the coordinator's answer is empty");
        read_fail(r, &wrong);
    } else if (client_ticket_read((const Banyan__Pb__AttachOpenReply *)message->body, first, end - first,
                                  (uint32_t)ct, r->asked_ns, &r->ticket, &wrong) != BANYAN_OK) {
        read_fail(r, &wrong);
    } else if (r->ticket->incarnation != atomic_load(&r->session->incarnation)) {
        client_error_set(&wrong, BANYAN_ABORTED,
                         "the session was truncated by another client: read its state "
                         "(banyan_session_get_info) and read again");
        read_fail(r, &wrong);
    } else {
        client_peers_pass(r->session->client->peers,
                          ((const Banyan__Pb__AttachOpenReply *)message->body)->pass);
    }
    if (!r->ending)
        read_pump(r);
}

// For as much of the range from the span on as a ticket may cover.
static void ask_ticket(struct reading *r, const struct span *need)
{
    uint64_t ct = r->session->spec.chunk_tokens, end = r->first + r->count;
    uint64_t most = (need->first / ct + CLIENT_TICKET_CHUNKS_MAX) * ct;
    banyan__pb__read_open_request__init(&r->ask_request);
    r->ask_request.session = r->session->id;
    r->ask_request.first = need->first;
    r->ask_request.count = (end < most ? end : most) - need->first;
    r->ask = (struct client_call){
        .client = r->session->client,
        .method = BANYAN__PB__METHOD__METHOD_READ_OPEN,
        .body = &r->ask_request.base,
        .deadline_ns = r->deadline_ns,
        .idempotent = true,
        .done = on_asked,
    };
    r->asking = true;
    r->asked = true;
    r->asked_ns = common_clock_ns();
    client_call_start(&r->ask);
}

// Whether a ticket for this position has been asked for, and has brought nothing yet.
static bool asks_again(const struct reading *r, uint64_t position)
{
    return r->asked && position >= r->ask_request.first &&
           position - r->ask_request.first < r->ask_request.count;
}

// Whether the ticket, where there is one, is for this position: it covers what was asked for, whole chunks
// are named.
static bool ticket_covers(const struct reading *r, uint64_t position)
{
    return r->ticket && position >= r->ask_request.first &&
           position - r->ask_request.first < r->ask_request.count && r->ticket->stale_ns > common_clock_ns();
}

// ---- pieces -----------------------------------------------------------------------------------------------

// What the rows add to their sum, as they travel: codes of all heads, behind them their scales.
static uint64_t sum_part(const struct reading *r, const struct span *span, const void *rows, bool v)
{
    const struct client_layer *layer = layer_of(r);
    size_t pitch = v ? layer->v_row : layer->k_row, codes = pitch - layer->scale_row;
    struct proto_rows_piece piece = {.data = rows,
                                     .len = codes / layer->kv_heads,
                                     .row_pitch = pitch,
                                     .head_pitch = codes / layer->kv_heads,
                                     .part = v ? PROTO_ROWS_V : PROTO_ROWS_K,
                                     .heads = layer->kv_heads,
                                     .first = span->first,
                                     .count = span->count};
    uint64_t sum = proto_rows_sum(&piece);
    if (!layer->scale_row)
        return sum;
    piece.data = (const uint8_t *)rows + codes;
    piece.len = piece.head_pitch = layer->scale_row / layer->kv_heads;
    piece.part = v ? PROTO_ROWS_V_SCALE : PROTO_ROWS_K_SCALE;
    return sum + proto_rows_sum(&piece);
}

static void take_part(const struct reading *r, const struct span *span, const uint8_t *rows, bool v)
{
    const struct client_layer *layer = layer_of(r);
    size_t pitch = v ? layer->v_row : layer->k_row, scales = layer->scale_row, codes = pitch - scales;
    uint64_t at = span->first - r->first;
    uint8_t *to = (v ? r->v : r->k) + at * codes;
    if (!scales) {
        memcpy(to, rows, span->count * codes);
        return;
    }
    uint8_t *to_scales = (uint8_t *)(v ? r->v_scale : r->k_scale) + at * scales;
    for (uint64_t i = 0; i < span->count; i++) {
        memcpy(to + i * codes, rows + i * pitch, codes);
        memcpy(to_scales + i * scales, rows + i * pitch + codes, scales);
    }
}

static banyan_code take_rows(struct reading *r, const struct span *span, uint64_t seal,
                             const struct proto_message *message, banyan_error *error)
{
    const struct client_layer *layer = layer_of(r);
    uint64_t k_bytes = span->count * layer->k_row, v_bytes = span->count * layer->v_row;
    const Banyan__Pb__ChunkReadReply *body =
        message ? (const Banyan__Pb__ChunkReadReply *)message->body : NULL;
    if (!body || message->n_tensors != (v_bytes ? 2 : 1) || message->tensors[0].bytes != k_bytes ||
        (v_bytes && message->tensors[1].bytes != v_bytes))
        return client_error_set(error, BANYAN_INTERNAL, "a worker sent rows of another shape");
    const void *k = message->tensors[0].data, *v = v_bytes ? message->tensors[1].data : NULL;
    uint64_t sum = sum_part(r, span, k, false) + (v ? sum_part(r, span, v, true) : 0);
    if (sum != body->sum) {
        client_error_set(error, BANYAN_DATA_LOSS,
                         "rows from position %llu of layer %u differ from the worker's memory",
                         (unsigned long long)span->first, r->layer);
        client_copy_text(error->reason, sizeof error->reason, "HASH_MISMATCH");
        return BANYAN_DATA_LOSS;
    }
    client_seals_add(r->session->seals, r->layer, span->first, span->count, sum, seal);
    take_part(r, span, k, false);
    if (v)
        take_part(r, span, v, true);
    return BANYAN_OK;
}

// Whether another holder, or the same one a little later, may do.
static bool may_help(const banyan_error *error, const struct span *span)
{
    switch (error->code) {
    case BANYAN_UNAVAILABLE: // or the chunk has moved
    case BANYAN_DEADLINE_EXCEEDED:
    case BANYAN_DATA_LOSS:
        return true;
    case BANYAN_RESOURCE_EXHAUSTED: // there, or here
        return span->tries == 0;
    case BANYAN_FAILED_PRECONDITION:
        return strcmp(error->reason, "FORGOTTEN") != 0;
    default:
        return false;
    }
}

static void on_piece_done(struct client_put *put, banyan_code code, const struct proto_message *message,
                          const banyan_error *error)
{
    struct piece *piece = (struct piece *)put;
    struct reading *r = piece->reading;
    struct span span = piece->span;
    uint64_t seal = piece->seal;
    banyan_error wrong = {0};
    *piece->at = piece->next;
    if (piece->next)
        piece->next->at = piece->at;
    r->n_pieces--;
    free(piece);
    if (code == BANYAN_OK)
        code = take_rows(r, &span, seal, message, &wrong);
    else
        wrong = *error;
    r->why = wrong;
    if (code == BANYAN_OK) {
        touch_deadline(r);
        r->asked = false;
    } else if (r->code == BANYAN_OK && may_help(&wrong, &span) && common_clock_left(r->deadline_ns) > 0) {
        span.tries++;
        r->todo[r->n_todo++] = span; // room: of READS_MAX pieces and the bottom
        drop_ticket(r);
        rest(r);
    } else if (r->code == BANYAN_OK) {
        read_fail(r, &wrong);
    }
    if (!r->ending)
        read_pump(r);
}

static banyan_code send_piece(struct reading *r, const struct span *span, banyan_error *error)
{
    uint64_t ct = r->session->spec.chunk_tokens;
    uint32_t n = client_ticket_holders(r->ticket, span->first);
    uint32_t nth =
        r->copy == CLIENT_ANY_COPY ? (uint32_t)((span->first / ct + span->tries) % n) : r->copy % n;
    struct client_peer *peer;
    banyan_code code = client_peer_find(r->session->client->peers,
                                        client_ticket_endpoint(r->ticket, span->first, nth), &peer, error);
    if (code != BANYAN_OK)
        return code;
    struct piece *piece = calloc(1, sizeof *piece + r->ticket->proof_len);
    if (!piece)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    piece->reading = r;
    piece->span = *span;
    piece->seal = client_ticket_seal(r->ticket, span->first);
    piece->next = r->pieces;
    piece->at = &r->pieces;
    if (r->pieces)
        r->pieces->at = &piece->next;
    r->pieces = piece;
    r->n_pieces++;
    banyan__pb__chunk_read_request__init(&piece->request);
    piece->request.ticket.data = memcpy(piece + 1, r->ticket->proof, r->ticket->proof_len);
    piece->request.ticket.len = r->ticket->proof_len;
    piece->request.session = r->session->id;
    piece->request.chunk = client_ticket_chunk(r->ticket, span->first);
    piece->request.layer = r->layer;
    piece->request.first = span->first;
    piece->request.count = (uint32_t)span->count;
    piece->put.call.method = BANYAN__PB__METHOD__METHOD_CHUNK_READ;
    piece->put.call.body = &piece->request.base;
    piece->put.done = on_piece_done;
    uint64_t left = common_clock_left(r->deadline_ns);
    piece->put.timeout_ns = left < READ_TIMEOUT_NS ? left : READ_TIMEOUT_NS;
    client_peer_put(peer, &piece->put);
    return BANYAN_OK;
}

// The front of the span on top: rows of one chunk. The span goes when nothing of it is left.
static struct span take_piece(struct reading *r)
{
    const struct client_layer *layer = layer_of(r);
    struct span *top = &r->todo[r->n_todo - 1], piece = *top;
    uint64_t ct = r->session->spec.chunk_tokens, room = ct - top->first % ct;
    uint64_t most = READ_BYTES / (layer->k_row + layer->v_row);
    most = most > 0 ? most : 1;
    piece.count = piece.count < room ? piece.count : room;
    piece.count = piece.count < most ? piece.count : most;
    top->first += piece.count;
    top->count -= piece.count;
    r->n_todo -= top->count == 0;
    return piece;
}

static void read_end(struct reading *r)
{
    common_timer_free(r->pause);
    drop_ticket(r);
    client_op_remove(&r->op);
    client_wait_signal(&r->wait); // the reading is on the waiter's stack
}

static void read_pump(struct reading *r)
{
    // A span above the bottom is a piece that failed, and goes as one: only the bottom adds to what is under
    // way.
    while (r->code == BANYAN_OK && !r->paused && !r->asking && r->n_todo > 0 &&
           (r->n_todo > 1 || r->n_pieces < READS_MAX)) {
        banyan_error error;
        if (!ticket_covers(r, r->todo[r->n_todo - 1].first)) {
            drop_ticket(r);
            if (asks_again(r, r->todo[r->n_todo - 1].first))
                rest(r);
            else
                ask_ticket(r, &r->todo[r->n_todo - 1]);
            break;
        }
        struct span piece = take_piece(r);
        if (send_piece(r, &piece, &error) != BANYAN_OK)
            read_fail(r, &error);
    }
    if (r->n_pieces == 0 && !r->asking && (r->code != BANYAN_OK || r->n_todo == 0))
        read_end(r);
}

// The client disconnects.
static void read_cancel(struct client_op *op)
{
    struct reading *r = (struct reading *)((char *)op - offsetof(struct reading, op));
    banyan_error error;
    client_error_set(&error, BANYAN_CANCELLED, "the read was cancelled: its client disconnects");
    read_fail(r, &error);
    read_pump(r);
}

static void read_start(void *arg)
{
    struct reading *r = arg;
    banyan_error error;
    touch_deadline(r);
    client_op_add(r->session->client, &r->op, read_cancel);
    r->todo[r->n_todo++] = (struct span){.first = r->first, .count = r->count};
    if (common_timer_new(r->session->client->loop, on_rested, r, &r->pause) != COMMON_OK) {
        client_error_set(&error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
        read_fail(r, &error);
    }
    read_pump(r);
}

static banyan_code check(const struct banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                         const void *k, const float *k_scale, const void *v, const float *v_scale,
                         banyan_error *error)
{
    if (!session || !k)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "session or k is NULL");
    if (layer >= session->spec.layers)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "layer %u: the session has layers 0 to %u",
                                layer, session->spec.layers - 1);
    const struct client_layer *of = &session->layers[layer];
    if (of->q_heads == 0 || of->source != layer)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "layer %u has no K and V of its own: there is nothing to read", layer);
    if (!v != (of->v_row == 0))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                of->v_row ? "v is NULL" : "values are part of the keys: v must be NULL");
    if (!k_scale != !of->scale_row || !v_scale != !(of->scale_row && of->v_row))
        return client_error_set(
            error, BANYAN_INVALID_ARGUMENT,
            "k_scale and v_scale are required for KV types that have scales, and only for them");
    if (count == 0 || first > UINT64_MAX / 4 || count > UINT64_MAX / 4)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "the range is empty or exceeds the largest position");
    return client_check_blocking(session->client, error);
}

banyan_code client_read_copy(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                             uint32_t copy, void *k, float *k_scale, void *v, float *v_scale,
                             banyan_error *error)
{
    banyan_code code = check(session, layer, first, count, k, k_scale, v, v_scale, error);
    if (code != BANYAN_OK)
        return code;
    struct reading r = {.session = session,
                        .layer = layer,
                        .first = first,
                        .count = count,
                        .copy = copy,
                        .k = k,
                        .v = v,
                        .k_scale = k_scale,
                        .v_scale = v_scale};
    common_loop_mail(session->client->loop, &r.mail, read_start, &r);
    client_wait_for(&r.wait);
    if (r.code != BANYAN_OK && error)
        *error = r.error;
    return r.code;
}

banyan_code banyan_read_rows(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count, void *k,
                             float *k_scale, void *v, float *v_scale, banyan_error *error)
{
    return client_read_copy(session, layer, first, count, CLIENT_ANY_COPY, k, k_scale, v, v_scale, error);
}
