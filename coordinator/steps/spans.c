// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/spans.h"

#include <inttypes.h>
#include <string.h>

#include "common/log/log.h"
#include "common/tracing/tracer.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/frame.h"

static struct common_tracer *tracer_of(const struct coordinator_item *item)
{
    return coordinator_item_steps(item)->core->options.tracer;
}

const char *coordinator_item_trace(const struct coordinator_item *item, char buf[COMMON_TRACE_ID_TEXT])
{
    memcpy(buf, "-", 2);
    if (item->trace.known)
        common_trace_hex(item->trace.parent.trace_id, sizeof item->trace.parent.trace_id, buf);
    return buf;
}

bool coordinator_spans_take(struct coordinator_item *item, const uint8_t *bytes, size_t len)
{
    struct coordinator_item_trace *trace = &item->trace;
    struct common_tracer *tracer = tracer_of(item);
    if (len > 0 && !common_trace_take(bytes, len, &trace->parent))
        return false;
    trace->known = len > 0 || (!item->call->aside && common_tracer_draw(tracer, &trace->parent));
    trace->sampled = trace->known && common_trace_sampled(&trace->parent);
    if (!trace->sampled)
        return true;
    item->call->traced = true;
    trace->own = common_tracer_on(tracer);
    if (trace->own)
        common_tracer_id(tracer, trace->span_id);
    else
        memcpy(trace->span_id, trace->parent.span_id, sizeof trace->span_id);
    return true;
}

void coordinator_spans_send(struct coordinator_frame *f, struct coordinator_item *item,
                            struct proto_step_item *slab)
{
    f->traced = true;
    slab->trace = item->trace.parent;
    if (item->trace.own)
        common_tracer_id(tracer_of(item), slab->trace.span_id);
    else
        memcpy(slab->trace.span_id, item->trace.span_id, sizeof slab->trace.span_id);
}

// One below the step's own.
static struct common_span span_below(const struct coordinator_item *item, const char *name, uint64_t start_ns,
                                     uint64_t end_ns)
{
    struct common_span span = {.trace_id = item->trace.parent.trace_id,
                               .name = name,
                               .kind = COMMON_SPAN_INTERNAL,
                               .start_ns = start_ns,
                               .end_ns = end_ns};
    memcpy(span.parent_id, item->trace.span_id, sizeof span.parent_id);
    return span;
}

static void add_what(struct common_span *span, const struct coordinator_item *item)
{
    common_span_hex(span, "banyan.session", item->ask.session);
    common_span_number(span, "banyan.layer", item->ask.layer);
}

// ---- frames -------------------------------------------------------------------------------------

static void add_tree(const struct coordinator_frame *f, uint32_t at, enum common_code code, const char *text)
{
    const struct coordinator_item *item = f->owners[at];
    const struct coordinator_plan *plan = f->queue->plan;
    struct common_span span = span_below(item, "coordinator.tree", f->sent_ns, item->trace.landed_ns);
    memcpy(span.id, f->step.items[at].trace.span_id, sizeof span.id);
    span.kind = COMMON_SPAN_CLIENT;
    span.code = code;
    span.message = text;
    add_what(&span, item);
    common_span_number(&span, "banyan.epoch", f->step.items[at].epoch);
    common_span_number(&span, "banyan.attempt", item->attempt);
    common_span_hex(&span, "banyan.plan", plan->id);
    common_span_text(&span, "banyan.engine", plan->engine);
    common_span_number(&span, "banyan.workers", plan->n);
    common_span_text(&span, "banyan.root", plan->workers[0]->name);
    common_span_number(&span, "banyan.frame.slabs", f->step.n_items);
    common_span_number(&span, "banyan.frame.bytes", f->step.q_bytes + f->step.k_bytes + f->step.v_bytes);
    common_tracer_add(tracer_of(item), &span);
}

void coordinator_spans_landed(struct coordinator_frame *f, enum common_code code, const char *text,
                              const struct proto_step_result *result, uint64_t now_ns)
{
    for (uint32_t i = 0; f->traced && i < f->step.n_items; i++) {
        struct coordinator_item *item = f->owners[i];
        if (!common_trace_sampled(&f->step.items[i].trace))
            continue;
        item->trace.sent_ns = item->trace.sent_ns ? item->trace.sent_ns : f->sent_ns;
        item->trace.landed_ns = now_ns;
        if (!item->trace.own)
            continue;
        bool failed = result && result->items[i].code != COMMON_OK;
        add_tree(f, i, failed ? result->items[i].code : code, failed ? result->items[i].message : text);
    }
}

// ---- answers ------------------------------------------------------------------------------------

static void add_step(const struct coordinator_item *item, enum common_code code, const char *text,
                     uint64_t now_ns)
{
    const struct coordinator_item_ask *ask = &item->ask;
    struct common_span span = {.trace_id = item->trace.parent.trace_id,
                               .remote = true,
                               .name = "coordinator.step",
                               .kind = COMMON_SPAN_SERVER,
                               .start_ns = item->call->arrived_ns,
                               .end_ns = now_ns,
                               .code = code,
                               .message = text};
    memcpy(span.id, item->trace.span_id, sizeof span.id);
    memcpy(span.parent_id, item->trace.parent.span_id, sizeof span.parent_id);
    add_what(&span, item);
    common_span_number(&span, "banyan.position", ask->first);
    common_span_number(&span, "banyan.rows", ask->rows);
    common_span_number(&span, "banyan.bytes", ask->q_bytes + ask->k_bytes + ask->v_bytes);
    common_span_number(&span, "banyan.attempts", item->attempt);
    if (code == COMMON_OK) {
        common_span_number(&span, "banyan.length", item->length);
        common_span_hex(&span, "banyan.plan_digest", item->plan_digest);
    }
    common_tracer_add(tracer_of(item), &span);
}

static void add_parts(const struct coordinator_item *item, uint64_t now_ns)
{
    const struct coordinator_item_trace *trace = &item->trace;
    uint64_t sent_ns = trace->sent_ns ? trace->sent_ns : now_ns; // no frame has come back
    struct common_span queue = span_below(item, "coordinator.queue", item->call->arrived_ns, sent_ns);
    common_tracer_id(tracer_of(item), queue.id);
    common_tracer_add(tracer_of(item), &queue);
    if (!trace->landed_ns)
        return;
    struct common_span answer = span_below(item, "coordinator.answer", trace->landed_ns, now_ns);
    common_tracer_id(tracer_of(item), answer.id);
    common_tracer_add(tracer_of(item), &answer);
}

static void say(const struct coordinator_item *item, enum common_code code, const char *text, uint64_t now_ns)
{
    char trace[COMMON_TRACE_ID_TEXT];
    const struct coordinator_item_ask *ask = &item->ask;
    uint64_t took_us = (now_ns - item->call->arrived_ns) / 1000;
    coordinator_item_trace(item, trace);
    if (code == COMMON_OK)
        common_log_debug("step answered session=%016" PRIx64 " layer=%u first=%" PRIu64
                         " rows=%u took_us=%" PRIu64 " trace=%s",
                         ask->session, ask->layer, ask->first, ask->rows, took_us, trace);
    else
        common_log_info("traced step failed session=%016" PRIx64 " layer=%u first=%" PRIu64
                        " rows=%u took_us=%" PRIu64 " code=%s trace=%s: %s",
                        ask->session, ask->layer, ask->first, ask->rows, took_us, common_code_name(code),
                        trace, text);
}

static void note_exemplars(const struct coordinator_item *item, uint64_t now_ns)
{
    const struct coordinator_call *call = item->call;
    struct coordinator_steps *steps = call->steps;
    struct common_trace trace = item->trace.parent;
    uint64_t inside_ns = now_ns - call->arrived_ns;
    memcpy(trace.span_id, item->trace.span_id, sizeof trace.span_id);
    common_exemplars_note(&steps->took_last, inside_ns, &trace);
    common_exemplars_note(&steps->tree_last, call->tree_ns, &trace);
    common_exemplars_note(&steps->own_last, coordinator_own_ns(inside_ns, call->tree_ns, call->mass_ns),
                          &trace);
}

void coordinator_spans_answered(struct coordinator_call *call, enum common_code unfinished, const char *text,
                                uint64_t now_ns)
{
    bool first = true;
    for (uint32_t i = 0; i < call->n_items; i++) {
        const struct coordinator_item *item = &call->items[i];
        const struct proto_status *failure = item->failure;
        if (!item->trace.sampled)
            continue;
        if (first)
            note_exemplars(item, now_ns);
        first = false;
        bool done = item->state == COORDINATOR_ITEM_DONE;
        enum common_code code = !done ? unfinished : failure ? failure->code : COMMON_OK;
        const char *why = !done ? text : "";
        struct proto_status named;
        if (done && failure) { // for the operator, as all traces and logs are
            named = *failure;
            coordinator_status_for(true, &named);
            why = named.message;
        }
        say(item, code, why, now_ns);
        if (!item->trace.own)
            continue;
        add_step(item, code, why, now_ns);
        add_parts(item, now_ns);
    }
}
