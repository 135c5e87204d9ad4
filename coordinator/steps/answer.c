// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/answer.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/steps/mass.h"
#include "coordinator/steps/mass_message.h"
#include "coordinator/steps/spans.h"

static void answer_sent(void *arg)
{
    coordinator_call_unref(arg);
}

static void zero_failed(struct coordinator_call *call)
{
    for (uint32_t i = 0; i < call->n_items && call->out; i++) {
        const struct coordinator_item *item = &call->items[i];
        if (item->state == COORDINATOR_ITEM_DONE && !item->failure)
            continue;
        memset(call->out + item->reply.o_offset, 0,
               item->reply.o_bytes); // some of its slabs may have come back
        if (call->want_lse)
            memset(call->out + call->o_bytes + item->reply.lse_offset, 0, item->reply.lse_bytes);
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

static bool pack_masses(const struct coordinator_call *call, struct coordinator_mass_message *out)
{
    struct coordinator_masses **list = calloc(call->n_items, sizeof(struct coordinator_masses *));
    for (uint32_t i = 0; list && i < call->n_items; i++)
        if (call->items[i].state == COORDINATOR_ITEM_DONE && !call->items[i].failure)
            list[i] = call->items[i].look.masses;
    bool ok = list &&
              coordinator_mass_message_init(out, list, call->n_items, coordinator_shows_workers(&call->who));
    free(list);
    return ok;
}

// The item's ranges as they are sent: struct proto_range is two words of 64 bits, the host's bytes little endian.
static void add_missing(const struct coordinator_item *item, Banyan__Pb__AttendItemResult *out,
                        struct proto_tensor_out *tensor, struct common_slice *pieces)
{
    const struct coordinator_missing *missing = &item->way.missing;
    size_t bytes = missing->n * sizeof(*missing->ranges);
    out->seen = item->seen;
    out->missing = missing->n;
    if (!bytes)
        return;
    pieces[tensor->n_pieces++] = (struct common_slice){missing->ranges, bytes};
    tensor->dims[0] += bytes;
}

// There is no memory for what has been done.
static void fail_answer(struct coordinator_call *call, struct proto_request *request)
{
    struct proto_status status;
    bool appended = false;
    for (uint32_t i = 0; i < call->n_items; i++)
        appended = appended || call->items[i].sent;
    proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED,
                     appended ? PROTO_REASON_UNCONFIRMED : PROTO_REASON_NONE,
                     "the coordinator is out of memory");
    proto_request_fail_status(request, &status);
    coordinator_call_unref(call);
}

void coordinator_answer_send(struct coordinator_call *call, struct proto_request *request,
                             enum common_code unfinished, const char *text)
{
    size_t n = call->n_items, t = call->want_trace ? call->n_traces : 0;
    size_t bytes = n * (sizeof(Banyan__Pb__AttendItemResult) + sizeof(void *) + sizeof(struct common_slice)) +
                   t * (sizeof(Banyan__Pb__WorkerTrace) + sizeof(void *));
    uint8_t *scratch = coordinator_scratch(call->steps->core, bytes + 1);
    if (!scratch || (!call->result && !coordinator_call_room(call))) {
        fail_answer(call, request);
        return;
    }
    struct coordinator_mass_message masses = {0};
    if (call->want_mass && !pack_masses(call, &masses)) {
        coordinator_mass_message_fini(&masses);
        fail_answer(call, request);
        return;
    }
    zero_failed(call);
    Banyan__Pb__AttendItemResult *items = (void *)scratch;
    Banyan__Pb__WorkerTrace *traces = (void *)(items + n);
    Banyan__Pb__AttendItemResult **item_pointers = (void *)(traces + t);
    Banyan__Pb__WorkerTrace **trace_pointers = (void *)(item_pointers + n);
    struct common_slice *missing = (void *)(trace_pointers + t);
    struct proto_tensor_out ranges = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .pieces = missing};
    struct proto_status status;
    for (size_t i = 0; i < n; i++) {
        const struct coordinator_item *item = &call->items[i];
        const struct proto_status *failure = item->failure;
        items[i] = (Banyan__Pb__AttendItemResult)BANYAN__PB__ATTEND_ITEM_RESULT__INIT;
        if (item->state != COORDINATOR_ITEM_DONE) {
            enum proto_reason reason = item->sent ? PROTO_REASON_UNCONFIRMED
                                       : failure  ? failure->reason
                                                  : PROTO_REASON_NONE;
            proto_status_set(&status, unfinished, reason, "%s%s%.200s", text,
                             failure ? "; before that: " : "", failure ? failure->message : "");
            for (uint32_t w = 0; failure && w < failure->n_workers; w++)
                proto_status_add_worker(&status, failure->workers[w]);
            failure = &status;
        } else if (failure) {
            status = *failure;
            failure = &status;
        }
        if (failure)
            coordinator_status_for(coordinator_shows_workers(&call->who), &status);
        call->steps->failures[failure ? failure->code : COMMON_OK]++;
        items[i].status = failure ? proto_status_to_pb(failure) : NULL;
        items[i].length = failure ? 0 : item->length;
        items[i].plan_digest = failure ? 0 : item->plan_digest;
        items[i].mass = masses.n ? masses.infos[i] : NULL;
        if (!failure)
            add_missing(item, &items[i], &ranges, missing);
        item_pointers[i] = &items[i];
    }
    for (size_t i = 0; i < t; i++) {
        coordinator_trace_message(&call->traces[i], &traces[i]);
        if (!coordinator_shows_workers(&call->who))
            traces[i].worker = (char *)"";
        trace_pointers[i] = &traces[i];
    }
    Banyan__Pb__AttendReply m = BANYAN__PB__ATTEND_REPLY__INIT;
    uint64_t now = common_clock_ns(), inside = now - call->arrived_ns;
    m.n_items = n;
    m.items = item_pointers;
    m.n_traces = t;
    m.traces = trace_pointers;
    m.n_workers = masses.n_names;
    m.workers = masses.names;
    m.tree_ns = call->tree_ns;
    m.mass_ns = call->mass_ns;
    m.coordinator_ns = coordinator_own_ns(inside, call->tree_ns, call->mass_ns);
    common_buckets_add(&call->steps->took, inside);
    common_buckets_add(&call->steps->tree, call->tree_ns);
    common_buckets_add(&call->steps->own, m.coordinator_ns);
    struct common_slice o = {call->result ? call->result->tensors[0] : call->out, call->o_bytes};
    struct common_slice lse = {call->result ? call->result->tensors[1] : call->out + call->o_bytes,
                               call->lse_bytes};
    struct proto_tensor_out tensors[4] = {
        {.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
         .n_dims = 1,
         .dims = {call->o_bytes / sizeof(float)},
         .pieces = &o,
         .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
         .n_dims = 1,
         .dims = {call->lse_bytes / sizeof(float)},
         .pieces = &lse,
         .n_pieces = 1},
    };
    // `items` is in the scratch memory: nothing between here and its last use may build another message.
    size_t n_tensors = call->want_lse ? 2 : 1;
    if (masses.tensor.n_pieces)
        tensors[n_tensors++] = masses.tensor;
    if (ranges.n_pieces)
        tensors[n_tensors++] = ranges;
    COMMON_FAILPOINT("step_answered");
    bool traced = call->traced;
    call->refs += traced; // for what is said of it once the answer is on its way
    proto_request_ends(request, now);
    proto_request_reply(request, &m.base, tensors, n_tensors, answer_sent, call);
    coordinator_mass_message_fini(&masses);
    for (size_t i = 0; i < n; i++)
        proto_status_pb_free(items[i].status);
    if (traced) {
        coordinator_spans_answered(call, unfinished, text, now);
        coordinator_call_unref(call);
    }
}

void coordinator_call_item_done(struct coordinator_call *call)
{
    struct proto_request *request = --call->left ? NULL : coordinator_call_take_request(call);
    if (request)
        coordinator_answer_send(call, request, COMMON_INTERNAL, "");
    coordinator_call_unref(call);
}
