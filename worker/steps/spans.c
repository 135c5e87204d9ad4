// SPDX-License-Identifier: Apache-2.0
#include "worker/steps/spans.h"

#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "common/tracing/tracer.h"
#include "worker/core/state.h"

struct traced_item {
    uint32_t index; // in the step
    uint8_t parent_id[COMMON_SPAN_ID_BYTES];
    enum common_code code;
};

struct worker_spans {
    uint64_t tokens, answer_bytes;
    struct common_trace first; // of the first traced item
    bool own;                  // spans were exported here when the frame arrived
    bool answered;             // with a result
    uint32_t n;
    struct traced_item items[];
};

struct worker_spans *worker_spans_new(const struct worker *worker, struct proto_step *step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_items; i++)
        n += common_trace_sampled(&step->items[i].trace);
    struct worker_spans *spans = n ? calloc(1, sizeof *spans + n * sizeof spans->items[0]) : NULL;
    if (!spans)
        return NULL;
    spans->own = common_tracer_on(worker->tracer);
    for (uint32_t i = 0; i < step->n_items; i++) {
        struct common_trace *trace = &step->items[i].trace;
        if (!common_trace_sampled(trace))
            continue;
        struct traced_item *item = &spans->items[spans->n++];
        item->index = i;
        memcpy(item->parent_id, trace->span_id, sizeof item->parent_id);
        if (spans->own)
            common_tracer_id(worker->tracer, trace->span_id);
    }
    spans->first = step->items[spans->items[0].index].trace;
    return spans;
}

void worker_spans_free(struct worker_spans *spans)
{
    free(spans);
}

void worker_spans_ready(struct worker_spans *spans, struct worker *worker,
                        const struct worker_spans_times *times, uint64_t tokens)
{
    if (!spans)
        return;
    spans->tokens = tokens;
    common_exemplars_note(&worker->queue_last, times->started_ns - times->arrived_ns, &spans->first);
    common_exemplars_note(&worker->compute_last, times->ready_ns - times->started_ns, &spans->first);
}

void worker_spans_result(struct worker_spans *spans, enum common_code code,
                         const struct proto_step_result *result)
{
    for (uint32_t i = 0; spans && i < spans->n; i++)
        spans->items[i].code = result ? result->items[spans->items[i].index].code : code;
    if (spans)
        spans->answered = result != NULL;
    for (uint32_t i = 0; spans && result && i < result->n_tensors; i++)
        spans->answer_bytes += result->tensor_bytes[i];
}

static void add_part(struct worker *worker, const struct common_trace *own, const char *name,
                     uint64_t start_ns, uint64_t end_ns)
{
    struct common_span span = {.trace_id = own->trace_id,
                               .name = name,
                               .kind = COMMON_SPAN_INTERNAL,
                               .start_ns = start_ns,
                               .end_ns = end_ns};
    memcpy(span.parent_id, own->span_id, sizeof span.parent_id);
    common_tracer_id(worker->tracer, span.id);
    common_tracer_add(worker->tracer, &span);
}

static void add_item(const struct worker_spans *spans, const struct traced_item *item, struct worker *worker,
                     const struct proto_step *step, uint32_t rank, const struct worker_spans_times *times)
{
    const struct proto_step_item *slab = &step->items[item->index];
    struct common_span span = {.trace_id = slab->trace.trace_id,
                               .remote = true,
                               .name = "worker.step",
                               .kind = COMMON_SPAN_SERVER,
                               .start_ns = times->arrived_ns,
                               .end_ns = times->ended_ns,
                               .code = item->code};
    memcpy(span.id, slab->trace.span_id, sizeof span.id);
    memcpy(span.parent_id, item->parent_id, sizeof span.parent_id);
    common_span_text(&span, "banyan.worker", worker->name);
    common_span_number(&span, "banyan.rank", rank);
    common_span_hex(&span, "banyan.session", slab->session);
    common_span_number(&span, "banyan.layer", slab->layer);
    common_span_number(&span, "banyan.position", slab->first);
    common_span_number(&span, "banyan.rows", slab->rows);
    common_span_number(&span, "banyan.epoch", slab->epoch);
    common_span_hex(&span, "banyan.plan", step->plan);
    common_span_number(&span, "banyan.tokens", spans->tokens);
    common_span_number(&span, "banyan.frame.slabs", step->n_items);
    common_span_number(&span, "banyan.frame.bytes", step->q_bytes + step->k_bytes + step->v_bytes);
    common_span_number(&span, "banyan.answer.bytes", spans->answer_bytes);
    common_tracer_add(worker->tracer, &span);
    uint64_t started_ns = times->started_ns ? times->started_ns : times->ended_ns;
    uint64_t ready_ns = times->ready_ns ? times->ready_ns : times->ended_ns;
    add_part(worker, &slab->trace, "worker.queue", times->arrived_ns, started_ns);
    if (times->started_ns)
        add_part(worker, &slab->trace, "worker.compute", started_ns, ready_ns);
    if (times->ready_ns)
        add_part(worker, &slab->trace, "worker.merge", ready_ns, times->ended_ns);
}

void worker_spans_end(const struct worker_spans *spans, struct worker *worker, const struct proto_step *step,
                      uint32_t rank, const struct worker_spans_times *times)
{
    if (!spans)
        return;
    if (spans->answered && times->ready_ns)
        common_exemplars_note(&worker->tree_last, times->ended_ns - times->ready_ns, &spans->first);
    for (uint32_t i = 0; i < spans->n; i++) {
        const struct proto_step_item *slab = &step->items[spans->items[i].index];
        char trace[COMMON_TRACE_ID_TEXT];
        common_trace_hex(slab->trace.trace_id, sizeof slab->trace.trace_id, trace);
        common_log_debug("part answered session=%016" PRIx64 " layer=%u first=%" PRIu64 " step=%016" PRIx64
                         " took_us=%" PRIu64 " code=%s trace=%s",
                         slab->session, slab->layer, slab->first, step->step,
                         (times->ended_ns - times->arrived_ns) / 1000, common_code_name(spans->items[i].code),
                         trace);
        if (spans->own)
            add_item(spans, &spans->items[i], worker, step, rank, times);
    }
}
