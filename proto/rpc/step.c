// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/step.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/block.h"
#include "proto/rpc/status.h"

enum { WORKER_NAME_MAX = 64 };
_Static_assert(PROTO_TRACE_BYTES == COMMON_TRACE_BYTES, "a trace as messages have it");

static enum common_code bad_item(struct common_error *err, size_t item, const char *what)
{
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "step item %zu: %s", item, what);
}

// ---- fields of the same name on both sides, once: as they are read, so they are written -----------------

#define REQUEST_FIELDS(X) X(term) X(plan) X(plan_epoch) X(step) X(attempt) X(want_trace) X(quick)
#define ITEM_FIELDS(X)                                                                                       \
    X(session)                                                                                               \
    X(incarnation)                                                                                           \
    X(epoch)                                                                                                 \
    X(layer)                                                                                                 \
    X(first)                                                                                                 \
    X(rows)                                                                                                  \
    X(visible)                                                                                               \
    X(kv_head)                                                                                               \
    X(kv_heads)                                                                                              \
    X(write)                                                                                                 \
    X(cover_tokens)                                                                                          \
    X(cover_sum)                                                                                             \
    X(cover_appends)                                                                                         \
    X(q_heads)                                                                                               \
    X(v_dim)                                                                                                 \
    X(length)                                                                                                \
    X(write_end)                                                                                             \
    X(block_first)                                                                                           \
    X(block_count)
#define RUN_FIELDS(X)         X(chunk) X(first) X(rows)
#define COLLECTIVE_FIELDS(X)  X(generation) X(sequence) X(variant)
#define RESULT_FIELDS(X)      X(generation) X(joined)
#define RESULT_ITEM_FIELDS(X) X(cover_tokens) X(cover_sum) X(appends) X(digest)
#define TRACE_FIELDS(X)       X(rank) X(queue_ns) X(compute_ns) X(wait_ns) X(tokens)

#define COPY(field) to->field = from->field;

// ---- steps ----------------------------------------------------------------------------------------------

// The next `bytes` of a tensor belong to an item.
static bool take_bytes(size_t *used, size_t total, uint64_t bytes, size_t *offset, size_t *len)
{
    if (bytes > total - *used)
        return false;
    *offset = *used;
    *len = (size_t)bytes;
    *used += (size_t)bytes;
    return true;
}

static void copy_run(const Banyan__Pb__AppendRun *from, struct proto_append_run *to)
{
    RUN_FIELDS(COPY)
}

static void copy_item(const Banyan__Pb__StepItem *from, struct proto_step_item *to)
{
    ITEM_FIELDS(COPY)
}

static enum common_code decode_runs(const Banyan__Pb__StepItem *from, size_t index, struct proto_step *step,
                                    struct proto_step_item *item, struct common_error *err)
{
    uint64_t rows = 0;
    item->append_first = step->n_appends;
    item->n_append = (uint32_t)from->n_append;
    for (size_t i = 0; i < from->n_append; i++) {
        const Banyan__Pb__AppendRun *run = from->append[i];
        struct proto_append_run *to = &step->appends[step->n_appends++];
        if (run->chunk == 0 || run->rows == 0 || run->first != item->first + rows ||
            run->rows > PROTO_STEP_ROWS_MAX - rows)
            return bad_item(err, index, "the appended runs do not cover its rows in order");
        if (run->n_holders < 1 || run->n_holders > PROTO_STEP_HOLDERS_MAX)
            return bad_item(err, index, "an appended run has no holders, or too many");
        *to = (struct proto_append_run){.n_holders = (uint32_t)run->n_holders};
        copy_run(run, to);
        for (size_t k = 0; k < run->n_holders; k++)
            to->holders[k] = run->holders[k];
        rows += run->rows;
    }
    if (from->n_append > 0 && (rows < item->rows || item->first > UINT64_MAX - rows))
        return bad_item(err, index, "the appended runs do not cover its rows");
    item->append_rows = (uint32_t)rows;
    if ((from->n_append > 0) != (from->write > 0))
        return bad_item(err, index, "an append needs a write sequence, and only an append");
    return COMMON_OK;
}

static enum common_code decode_items(const Banyan__Pb__StepRequest *from, struct proto_step *step,
                                     struct common_error *err)
{
    size_t q_used = 0, k_used = 0, v_used = 0;
    for (size_t i = 0; i < from->n_items; i++) {
        const Banyan__Pb__StepItem *it = from->items[i];
        struct proto_step_item *item = &step->items[i];
        *item = (struct proto_step_item){0};
        copy_item(it, item);
        if (it->session == 0)
            return bad_item(err, i, "session 0 does not exist");
        if (it->rows < 1 || it->rows > PROTO_STEP_ROWS_MAX || it->first > UINT64_MAX - it->rows)
            return bad_item(err, i, "rows out of range");
        if (it->block_first > UINT64_MAX - it->block_count)
            return bad_item(err, i, "its block is out of range");
        if (it->kv_heads < 1 || it->kv_head > UINT32_MAX - it->kv_heads)
            return bad_item(err, i, "KV heads out of range");
        if (it->q_bytes == 0 ||
            !take_bytes(&q_used, step->q_bytes, it->q_bytes, &item->q_offset, &item->q_bytes))
            return bad_item(err, i, "its q is missing or beyond the tensor");
        if (!take_bytes(&k_used, step->k_bytes, it->k_bytes, &item->k_offset, &item->k_bytes) ||
            !take_bytes(&v_used, step->v_bytes, it->v_bytes, &item->v_offset, &item->v_bytes))
            return bad_item(err, i, "its k or v is beyond the tensor");
        enum common_code code = decode_runs(it, i, step, item, err);
        if (code != COMMON_OK)
            return code;
        if (item->k_bytes > 0 && item->n_append == 0)
            return bad_item(err, i, "k without an append");
        if (item->k_bytes == 0 && item->v_bytes > 0) // v may be missing: it may lie in k
            return bad_item(err, i, "v without k");
        if (step->has_kv && item->n_append > 0 && item->k_bytes == 0)
            return bad_item(err, i, "an append without k and v in a frame that carries them");
        if (it->trace.len > 0 && (!common_trace_take(it->trace.data, it->trace.len, &item->trace) ||
                                  !common_trace_sampled(&item->trace)))
            return bad_item(err, i, "its trace is malformed, or not sampled");
        step->n_items++;
    }
    if (q_used != step->q_bytes || k_used != step->k_bytes || v_used != step->v_bytes)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the items of a step do not fill its tensors");
    return COMMON_OK;
}

static void copy_collective(const Banyan__Pb__Collective *from, struct proto_collective *to)
{
    COLLECTIVE_FIELDS(COPY)
    to->id_bytes = (uint32_t)from->id.len; // at most PROTO_COLLECTIVE_ID_MAX: codec_scan.c
    if (from->id.len > 0)
        memcpy(to->id, from->id.data, from->id.len);
}

static void copy_request(const Banyan__Pb__StepRequest *from, struct proto_step *to)
{
    REQUEST_FIELDS(COPY)
}

enum common_code proto_step_decode(const struct proto_message *message, uint64_t deadline_ns,
                                   struct proto_step **out, struct common_error *err)
{
    if (!message->body || message->body->descriptor != &banyan__pb__step_request__descriptor)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "not a step");
    const Banyan__Pb__StepRequest *from = (const Banyan__Pb__StepRequest *)(const void *)message->body;
    if (from->n_items < 1 || from->n_items > PROTO_STEP_ITEMS_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "a step of %zu items: 1 to %d", from->n_items,
                                PROTO_STEP_ITEMS_MAX);
    if (message->n_tensors != 1 && message->n_tensors != 3)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "a step has one tensor (q) or three (q, k, v), not %zu", message->n_tensors);
    for (size_t i = 0; i < message->n_tensors; i++)
        if (message->tensors[i].dtype != BANYAN__PB__DTYPE__DTYPE_U8)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the tensors of a step must be raw bytes");
    size_t n_runs = 0; // each list is at most 4097 long, and all of them lie in one header: no wrap
    for (size_t i = 0; i < from->n_items; i++)
        n_runs += from->items[i]->n_append;
    // One allocation: step, items, runs.
    size_t items_at = sizeof(struct proto_step),
           runs_at = items_at + from->n_items * sizeof(struct proto_step_item);
    struct proto_step *step =
        common_block_take(runs_at + n_runs * sizeof(struct proto_append_run), COMMON_BLOCK_DAEMONS);
    if (!step)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a step");
    bool kv = message->n_tensors == 3;
    *step = (struct proto_step){
        .has_kv = kv,
        .deadline_ns = deadline_ns,
        .items = (struct proto_step_item *)(void *)((char *)step + items_at),
        .appends = (struct proto_append_run *)(void *)((char *)step + runs_at),
        .q = message->tensors[0].data,
        .k = kv ? message->tensors[1].data : NULL,
        .v = kv ? message->tensors[2].data : NULL,
        .q_bytes = message->tensors[0].bytes,
        .k_bytes = kv ? message->tensors[1].bytes : 0,
        .v_bytes = kv ? message->tensors[2].bytes : 0,
    };
    copy_request(from, step);
    enum common_code code = decode_items(from, step, err);
    if (code != COMMON_OK) {
        common_block_give(step);
        return code;
    }
    if (from->collective) {
        copy_collective(from->collective, &step->collective);
    }
    step->blob = common_blob_ref(message->blob);
    *out = step;
    return COMMON_OK;
}

void proto_step_free(struct proto_step *step)
{
    if (!step)
        return;
    common_blob_unref(step->blob);
    // A step built by hand owns its arrays one by one; a decoded one is a single allocation.
    if (step->items == (struct proto_step_item *)(void *)(step + 1)) {
        common_block_give(step);
        return;
    }
    free(step->items);
    free(step->appends);
    free(step);
}

// ---- sending --------------------------------------------------------------------------------------------

struct step_messages { // the packed form of a step, in one allocation
    Banyan__Pb__StepRequest request;
    Banyan__Pb__StepItem *items, **item_list;
    Banyan__Pb__AppendRun *runs, **run_list;
    Banyan__Pb__Collective collective;
};

static void pack_request(const struct proto_step *from, Banyan__Pb__StepRequest *to)
{
    REQUEST_FIELDS(COPY)
}

static void pack_collective(const struct proto_collective *from, Banyan__Pb__Collective *to)
{
    banyan__pb__collective__init(to);
    COLLECTIVE_FIELDS(COPY)
    to->id.len = from->id_bytes;
    to->id.data = (uint8_t *)from->id; // only read by packing
}

static struct step_messages *messages_of(const struct proto_step *step, bool with_kv)
{
    size_t bytes = sizeof(struct step_messages) +
                   step->n_items * (sizeof(Banyan__Pb__StepItem) + sizeof(void *)) +
                   step->n_appends * (sizeof(Banyan__Pb__AppendRun) + sizeof(void *));
    struct step_messages *m = common_block_take(bytes, COMMON_BLOCK_DAEMONS);
    if (!m)
        return NULL;
    m->items = (Banyan__Pb__StepItem *)(void *)(m + 1);
    m->runs = (Banyan__Pb__AppendRun *)(void *)(m->items + step->n_items);
    m->item_list = (Banyan__Pb__StepItem **)(void *)(m->runs + step->n_appends);
    m->run_list = (Banyan__Pb__AppendRun **)(void *)(m->item_list + step->n_items);
    for (uint32_t i = 0; i < step->n_appends; i++) {
        const struct proto_append_run *from = &step->appends[i];
        Banyan__Pb__AppendRun *to = m->run_list[i] = &m->runs[i];
        banyan__pb__append_run__init(to);
        RUN_FIELDS(COPY)
        to->n_holders = from->n_holders;
        to->holders = (uint32_t *)from->holders; // only read by packing
    }
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *from = &step->items[i];
        Banyan__Pb__StepItem *to = m->item_list[i] = &m->items[i];
        banyan__pb__step_item__init(to);
        ITEM_FIELDS(COPY)
        to->n_append = from->n_append;
        to->append = from->n_append ? m->run_list + from->append_first : NULL;
        to->q_bytes = from->q_bytes;
        to->k_bytes = with_kv ? from->k_bytes : 0;
        to->v_bytes = with_kv ? from->v_bytes : 0;
        if (common_trace_sampled(&from->trace)) {
            to->trace.len = sizeof from->trace;
            to->trace.data = (uint8_t *)&from->trace; // only read by packing
        }
    }
    banyan__pb__step_request__init(&m->request);
    pack_request(step, &m->request);
    m->request.n_items = step->n_items;
    m->request.items = m->item_list;
    if (step->collective.generation > 0) {
        pack_collective(&step->collective, &m->collective);
        m->request.collective = &m->collective;
    }
    return m;
}

struct step_call {
    proto_step_done_fn done;
    void *arg;
    uint32_t n_items;
};

static void on_reply(void *arg, const struct proto_reply *reply)
{
    struct step_call call = *(struct step_call *)arg;
    free(arg);
    struct proto_step_result *result = NULL;
    struct common_error err;
    enum common_code code = reply->code;
    const char *text = reply->text;
    if (code == COMMON_OK) {
        code = proto_step_result_decode(reply->message, call.n_items, &result, &err);
        if (code != COMMON_OK) {
            text = err.message;
            if (code == COMMON_INVALID_ARGUMENT)
                code = COMMON_INTERNAL; // the peer's answer is wrong, not the caller's question
        }
    }
    call.done(call.arg, code, text, result);
}

enum common_code proto_step_send(struct proto_channel *channel, const struct proto_step *step, bool with_kv,
                                 proto_step_done_fn done, void *arg, uint64_t *id, struct common_error *err)
{
    with_kv = with_kv && step->has_kv;
    struct step_call *call = malloc(sizeof *call);
    struct step_messages *messages = messages_of(step, with_kv);
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    if (!call || !messages) {
        common_error_set(err, code, "out of memory for a step");
        goto free_both;
    }
    *call = (struct step_call){done, arg, step->n_items};
    const struct common_slice slices[3] = {{step->q, step->q_bytes},
                                           {step->k, step->k_bytes},
                                           {step->v, step->v_bytes}};
    struct proto_tensor_out tensors[3];
    for (int i = 0; i < 3; i++)
        tensors[i] =
            (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {slices[i].len}, &slices[i], 1};
    code = proto_channel_call(channel,
                              &(struct proto_call){.method = BANYAN__PB__METHOD__METHOD_STEP,
                                                   .body = &messages->request.base,
                                                   .tensors = tensors,
                                                   .n_tensors = with_kv ? 3 : 1,
                                                   .deadline_ns = step->deadline_ns,
                                                   .done = on_reply,
                                                   .arg = call},
                              id, err);
    if (code == COMMON_OK)
        call = NULL; // the reply has it

free_both:
    free(call);
    common_block_give(messages);
    return code;
}

// ---- results --------------------------------------------------------------------------------------------

struct proto_step_result *proto_step_result_new(uint32_t n_items, uint32_t max_traces)
{
    if (n_items > PROTO_STEP_ITEMS_MAX || max_traces > 4096)
        return NULL;
    // One allocation: result, items, traces.
    size_t items = n_items * sizeof(struct proto_step_result_item),
           traces = max_traces * sizeof(struct proto_trace);
    struct proto_step_result *result = common_block_zeros(sizeof *result + items + traces);
    if (!result)
        return NULL;
    result->n_items = n_items;
    result->items = (struct proto_step_result_item *)(void *)(result + 1);
    result->traces = (struct proto_trace *)(void *)(result->items + n_items);
    return result;
}

void proto_step_result_free(struct proto_step_result *result)
{
    if (!result)
        return;
    common_blob_unref(result->blob);
    common_block_give(result);
}

static bool copy_name(char to[WORKER_NAME_MAX + 1], const char *from)
{
    size_t n = strnlen(from, WORKER_NAME_MAX + 1);
    if (n > WORKER_NAME_MAX)
        return false;
    memcpy(to, from, n + 1);
    return true;
}

static void copy_result(const Banyan__Pb__StepReply *from, struct proto_step_result *to)
{
    RESULT_FIELDS(COPY)
}

static void copy_result_item(const Banyan__Pb__StepItemResult *from, struct proto_step_result_item *to)
{
    RESULT_ITEM_FIELDS(COPY)
}

static void copy_trace(const Banyan__Pb__WorkerTrace *from, struct proto_trace *to)
{
    TRACE_FIELDS(COPY)
}

enum common_code proto_step_result_decode(const struct proto_message *message, uint32_t n_items,
                                          struct proto_step_result **out, struct common_error *err)
{
    if (!message->body || message->body->descriptor != &banyan__pb__step_reply__descriptor)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "not the answer to a step");
    const Banyan__Pb__StepReply *from = (const Banyan__Pb__StepReply *)(const void *)message->body;
    if (from->n_items != n_items)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the answer to a step of %u items has %zu",
                                n_items, from->n_items);
    if (message->n_tensors > 2)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the answer to a step has %zu tensors: 2 at most", message->n_tensors);
    struct proto_step_result *result = proto_step_result_new(n_items, (uint32_t)from->n_traces);
    if (!result)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for the answer to a step");
    for (uint32_t i = 0; i < n_items; i++) {
        const Banyan__Pb__StepItemResult *it = from->items[i];
        struct proto_step_result_item *item = &result->items[i];
        if (it->status && !common_code_valid((int)it->status->code)) {
            proto_step_result_free(result);
            return bad_item(err, i, "unknown status code");
        }
        if (it->status && it->status->code != COMMON_OK) {
            item->code = (enum common_code)it->status->code;
            snprintf(item->message, sizeof item->message, "%s", it->status->message);
            const Banyan__Pb__Detail *detail = it->status->n_details > 0 ? it->status->details[0] : NULL;
            if (detail)
                snprintf(item->reason, sizeof item->reason, "%s", detail->reason);
            if (detail && detail->n_workers > 0)
                snprintf(item->worker, sizeof item->worker, "%s", detail->workers[0]);
        }
        copy_result_item(it, item);
    }
    for (size_t i = 0; i < from->n_traces; i++) {
        const Banyan__Pb__WorkerTrace *it = from->traces[i];
        struct proto_trace *trace = &result->traces[result->n_traces++];
        copy_trace(it, trace);
        if (!copy_name(trace->worker, it->worker)) {
            proto_step_result_free(result);
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "a trace names a worker with more than %d characters", WORKER_NAME_MAX);
        }
    }
    for (size_t i = 0; i < message->n_tensors; i++) {
        result->tensors[i] = message->tensors[i].data;
        result->tensor_bytes[i] = message->tensors[i].bytes;
    }
    result->n_tensors = (uint32_t)message->n_tensors;
    copy_result(from, result);
    result->blob = common_blob_ref(message->blob);
    *out = result;
    return COMMON_OK;
}

struct item_messages {
    Banyan__Pb__StepItemResult result;
    Banyan__Pb__Status status;
    Banyan__Pb__Detail detail, *detail_list[1];
    char *worker_list[1];
};

static void pack_result(const struct proto_step_result *from, Banyan__Pb__StepReply *to)
{
    RESULT_FIELDS(COPY)
}

static void pack_result_item(const struct proto_step_result_item *from, Banyan__Pb__StepItemResult *to)
{
    RESULT_ITEM_FIELDS(COPY)
}

void proto_step_reply(struct proto_request *request, const struct proto_step_result *result,
                      proto_done_fn sent, void *sent_arg)
{
    uint32_t n = result->n_items, n_traces = result->n_traces;
    size_t bytes = n * (sizeof(struct item_messages) + sizeof(void *)) +
                   n_traces * (sizeof(Banyan__Pb__WorkerTrace) + sizeof(void *));
    struct item_messages *items = common_block_take(bytes, COMMON_BLOCK_DAEMONS);
    if (!items) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "out of memory for the answer to a step", NULL,
                           0);
        if (sent)
            sent(sent_arg);
        return;
    }
    Banyan__Pb__WorkerTrace *traces = (Banyan__Pb__WorkerTrace *)(void *)(items + n);
    Banyan__Pb__StepItemResult **item_list = (Banyan__Pb__StepItemResult **)(void *)(traces + n_traces);
    Banyan__Pb__WorkerTrace **trace_list = (Banyan__Pb__WorkerTrace **)(void *)(item_list + n);
    for (uint32_t i = 0; i < n; i++) {
        const struct proto_step_result_item *from = &result->items[i];
        struct item_messages *to = &items[i];
        item_list[i] = &to->result;
        banyan__pb__step_item_result__init(&to->result);
        pack_result_item(from, &to->result);
        if (from->code == COMMON_OK)
            continue;
        banyan__pb__status__init(&to->status);
        to->status.code = (uint32_t)from->code;
        to->status.message = (char *)from->message;
        to->result.status = &to->status;
        if (!from->reason[0] && !from->worker[0])
            continue;
        banyan__pb__detail__init(&to->detail);
        to->detail.reason = (char *)from->reason;
        to->worker_list[0] = (char *)from->worker;
        to->detail.workers = to->worker_list;
        to->detail.n_workers = from->worker[0] != 0;
        to->detail_list[0] = &to->detail;
        to->status.details = to->detail_list;
        to->status.n_details = 1;
    }
    for (uint32_t i = 0; i < n_traces; i++) {
        const struct proto_trace *from = &result->traces[i];
        Banyan__Pb__WorkerTrace *to = trace_list[i] = &traces[i];
        banyan__pb__worker_trace__init(to);
        to->worker = (char *)from->worker;
        TRACE_FIELDS(COPY)
    }
    Banyan__Pb__StepReply reply = BANYAN__PB__STEP_REPLY__INIT;
    reply.n_items = n;
    reply.items = item_list;
    reply.n_traces = n_traces;
    reply.traces = trace_list;
    pack_result(result, &reply);
    struct common_slice slices[2];
    struct proto_tensor_out tensors[2];
    assert(result->n_tensors <= 2);
    for (uint32_t i = 0; i < result->n_tensors; i++) {
        slices[i] = (struct common_slice){result->tensors[i], result->tensor_bytes[i]};
        tensors[i] =
            (struct proto_tensor_out){BANYAN__PB__DTYPE__DTYPE_U8, 1, {slices[i].len}, &slices[i], 1};
    }
    proto_request_reply(request, &reply.base, tensors, result->n_tensors, sent, sent_arg);
    common_block_give(items);
}
