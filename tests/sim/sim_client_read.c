// SPDX-License-Identifier: Apache-2.0
// Reads of rows: from each chunk's holder, with a read ticket.
#include "tests/sim/sim_client_calls.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "proto/sums/rows_sum.h"

struct part { // of a read: rows of one chunk
    struct sim_call *call;
    uint64_t first;
    uint32_t at, count; // at: in call->rows
};

static void part_failed(struct sim_call *call, enum common_code code, const char *text)
{
    if (call->code != COMMON_OK)
        return; // the first failure counts
    call->code = code;
    snprintf(call->text, sizeof call->text, "%s", text);
}

static uint64_t sum_of_rows(const struct part *part, const void *rows, uint32_t dim,
                            enum proto_rows_part which)
{
    const size_t row = dim * sizeof(float);
    return proto_rows_sum(&(struct proto_rows_piece){.data = rows,
                                                     .len = row,
                                                     .row_pitch = row,
                                                     .head_pitch = row,
                                                     .part = which,
                                                     .heads = 1,
                                                     .first = part->first,
                                                     .count = part->count});
}

// All of a K are 1, all of a V alike, and the sum is theirs.
static void take_part(const struct part *part, const struct proto_message *message)
{
    struct sim_call *call = part->call;
    const uint32_t dim = call->client->dim;
    const float *k = message->tensors[0].data, *v = message->tensors[1].data;
    bool right = message->n_tensors == 2 && message->tensors[0].bytes == part->count * dim * sizeof *k &&
                 message->tensors[1].bytes == message->tensors[0].bytes;
    for (uint32_t i = 0; right && i < part->count * dim; i++) {
        right = k[i] == 1 && v[i] == v[i / dim * dim];
        call->rows[part->at + i / dim] = v[i];
    }
    if (!right || sum_of_rows(part, k, dim, PROTO_ROWS_K) + sum_of_rows(part, v, dim, PROTO_ROWS_V) !=
                      ((const Banyan__Pb__ChunkReadReply *)message->body)->sum)
        part_failed(call, COMMON_INTERNAL, "rows that nobody can have written");
}

static void read_ended(struct sim_call *call)
{
    if (--call->left > 0)
        return;
    call->times++;
    call->done = true;
    call->done_ns = common_clock_ns();
}

static void part_ended(void *arg, const struct proto_reply *reply)
{
    struct part *part = arg;
    struct sim_call *call = part->call;
    if (reply->code == COMMON_OK)
        take_part(part, reply->message);
    else if (call->code == COMMON_OK && reply->status)
        sim_call_failed(call, reply->status);
    part_failed(call, reply->code, reply->text);
    free(part);
    read_ended(call);
}

struct sim_call *sim_read_rows(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                               uint64_t first, uint64_t count, uint32_t copy)
{
    const struct sim_opened *o = opened->opened;
    struct sim_call *call = sim_call_new(client, METHOD(CHUNK_READ));
    assert(o && count > 0);
    call->left = 1;
    call->rows = calloc(count, sizeof *call->rows);
    for (uint32_t i = 0; i < o->n; i++) {
        uint64_t end = i + 1 < o->n ? o->first[i + 1] : UINT64_MAX,
                 from = first > o->first[i] ? first : o->first[i],
                 to = first + count < end ? first + count : end;
        if (from >= to)
            continue;
        struct common_error err;
        struct part *part = malloc(sizeof *part);
        if (!part || !call->rows)
            abort();
        *part = (struct part){call, from, (uint32_t)(from - first), (uint32_t)(to - from)};
        Banyan__Pb__ChunkReadRequest m = BANYAN__PB__CHUNK_READ_REQUEST__INIT;
        m.ticket = (ProtobufCBinaryData){o->ticket_bytes, (uint8_t *)o->ticket};
        m.session = opened->asked;
        m.chunk = o->chunk[i];
        m.layer = layer;
        m.first = from;
        m.count = part->count;
        struct proto_call made = {.method = METHOD(CHUNK_READ),
                                  .body = &m.base,
                                  .deadline_ns = common_clock_after(client->deadline_ns),
                                  .done = part_ended,
                                  .arg = part};
        call->left++;
        enum common_code code =
            proto_channel_call(o->channels[o->holders[i][copy % o->n_holders[i]]], &made, NULL, &err);
        if (code != COMMON_OK)
            part_ended(part, &(struct proto_reply){.code = code, .text = err.message});
    }
    read_ended(call);
    return call;
}
