// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/tracer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/tracing/trace_export.h"

#define BATCH_SPANS 512
#define BATCH_BYTES (1024 * 1024) // a batch leaves when it is near it
#define BATCH_FIRST (16 * 1024)
#define BATCH_NS    COMMON_NS_PER_S
#define CLOCK_SLACK COMMON_NS_PER_MS // the wall clock counts as moved beyond it

struct common_tracer {
    struct common_loop *loop;
    struct common_timer *timer; // the batch's time is over; at the end, the whole time
    bool on, running;
    double sample;
    uint64_t seed, drawn; // of ids
    uint64_t wall_ns;     // Unix time of common_clock_ns's zero
    struct common_trace_file *file;
    struct common_trace_otlp *otlp;
    char *file_path, *otlp_url;
    struct common_trace_batch *batch;                    // open; NULL: none
    size_t cap;                                          // of its text
    struct common_trace_counts file_before, otlp_before; // of those that there were
    uint64_t lost;                                       // no memory, no room
    common_loop_fn finished;
    void *finished_arg;
    uint64_t finish_by_ns;
    size_t head_len;
    char head[COMMON_SPAN_HEAD_MAX];
};

bool common_tracer_on(const struct common_tracer *tracer)
{
    return tracer && tracer->on;
}

// ---- ids ----------------------------------------------------------------------------------------

static uint64_t draw(struct common_tracer *tracer)
{
    uint64_t id;
    do { // a bijection of a counter: no id comes twice
        id = common_mix64(tracer->seed + ++tracer->drawn);
    } while (!id);
    return id;
}

void common_tracer_id(struct common_tracer *tracer, uint8_t out[COMMON_SPAN_ID_BYTES])
{
    uint64_t id = draw(tracer);
    memcpy(out, &id, sizeof id);
}

bool common_tracer_draw(struct common_tracer *tracer, struct common_trace *out)
{
    if (!common_tracer_on(tracer) || tracer->sample <= 0 ||
        (double)(draw(tracer) >> 11) * 0x1p-53 >= tracer->sample)
        return false;
    *out = (struct common_trace){.flags = COMMON_TRACE_SAMPLED};
    common_tracer_id(tracer, out->trace_id);
    common_tracer_id(tracer, out->trace_id + 8);
    return true;
}

// ---- batches ------------------------------------------------------------------------------------

static void batch_leave(struct common_tracer *tracer)
{
    struct common_trace_batch *batch = tracer->batch;
    if (!batch)
        return;
    memcpy(batch->text + batch->len, COMMON_SPAN_TAIL "\n", sizeof COMMON_SPAN_TAIL); // room is kept for it
    batch->len += sizeof COMMON_SPAN_TAIL;
    tracer->batch = NULL;
    if (tracer->file)
        common_trace_file_write(tracer->file, batch);
    if (tracer->otlp)
        common_trace_otlp_give(tracer->otlp, batch);
    common_trace_batch_unref(batch);
}

// Nothing is served any more: the loop waits for the file, within the end's time.
static void end(struct common_tracer *tracer, common_loop_fn finished)
{
    if (tracer->file && !common_trace_file_flush(tracer->file, tracer->finish_by_ns))
        common_log_warn("the file of spans is too slow: some spans are lost");
    finished(tracer->finished_arg);
}

static void on_timer(void *arg)
{
    struct common_tracer *tracer = arg;
    common_loop_fn finished = tracer->finished;
    tracer->running = false;
    tracer->finished = NULL;
    if (finished)
        end(tracer, finished); // the end's time is over
    else
        batch_leave(tracer);
}

// Room for `more` bytes and what ends a batch. False: no memory.
static bool batch_room(struct common_tracer *tracer, size_t more)
{
    struct common_trace_batch *batch = tracer->batch;
    size_t len = batch ? batch->len : 0, need = len + more + sizeof COMMON_SPAN_TAIL, cap = tracer->cap;
    if (batch && need <= cap)
        return true;
    for (cap = batch ? cap : BATCH_FIRST; cap < need;)
        cap *= 2;
    struct common_trace_batch *grown = realloc(batch, sizeof *grown + cap);
    if (!grown)
        return false;
    if (!batch)
        *grown = (struct common_trace_batch){.refs = 1};
    tracer->batch = grown;
    tracer->cap = cap;
    return true;
}

// The wall clock may be set while we run. Spans of one moment are to agree to the nanosecond, so that it
// counts as moved only beyond what reading two clocks takes.
static uint64_t wall_of(struct common_tracer *tracer)
{
    uint64_t now = common_clock_wall_ns() - common_clock_ns();
    uint64_t off = now > tracer->wall_ns ? now - tracer->wall_ns : tracer->wall_ns - now;
    if (off > CLOCK_SLACK)
        tracer->wall_ns = now;
    return tracer->wall_ns;
}

void common_tracer_add(struct common_tracer *tracer, const struct common_span *span)
{
    char text[COMMON_SPAN_JSON_MAX];
    if (!common_tracer_on(tracer))
        return;
    size_t len = common_span_json(span, wall_of(tracer), text, sizeof text);
    bool first = !tracer->batch;
    if (!len || !batch_room(tracer, len + (first ? tracer->head_len : 1))) {
        tracer->lost++;
        return;
    }
    struct common_trace_batch *batch = tracer->batch;
    memcpy(batch->text + batch->len, first ? tracer->head : ",", first ? tracer->head_len : 1);
    batch->len += first ? tracer->head_len : 1;
    memcpy(batch->text + batch->len, text, len);
    batch->len += len;
    if (++batch->spans >= BATCH_SPANS || batch->len >= BATCH_BYTES - COMMON_SPAN_JSON_MAX) {
        batch_leave(tracer);
    } else if (!tracer->running) { // one that runs for a batch that has left is early for this one
        tracer->running = true;
        common_timer_start(tracer->timer, BATCH_NS, false);
    }
}

// ---- where they go ------------------------------------------------------------------------------

static void count_more(struct common_trace_counts *sum, const struct common_trace_counts *more)
{
    sum->sent += more->sent;
    sum->dropped += more->dropped + more->queued; // what waits goes with its exporter
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

enum common_code common_tracer_set(struct common_tracer *tracer, const struct common_tracer_options *options,
                                   struct common_error *err)
{
    bool new_file = !same(options->file, tracer->file_path),
         new_otlp = !same(options->otlp, tracer->otlp_url);
    struct common_trace_file *file = NULL;
    struct common_trace_otlp *otlp = NULL;
    char *path = options->file ? strdup(options->file) : NULL,
         *url = options->otlp ? strdup(options->otlp) : NULL;
    enum common_code code = COMMON_OK;
    if ((options->file && !path) || (options->otlp && !url))
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for spans");
    if (code == COMMON_OK && new_otlp && url)
        code = common_trace_otlp_new(tracer->loop, url, &otlp, err);
    if (code == COMMON_OK && new_file && path)
        code = common_trace_file_new(path, &file, err);
    if (code != COMMON_OK) {
        common_trace_otlp_free(otlp);
        free(path);
        free(url);
        return code;
    }
    batch_leave(tracer); // to where it was meant for
    if (new_file) {
        if (tracer->file) {
            struct common_trace_counts counts;
            common_trace_file_counts(tracer->file, &counts);
            counts.sent += counts.queued; // its thread writes them yet
            counts.queued = 0;
            count_more(&tracer->file_before, &counts);
        }
        common_trace_file_free(tracer->file);
        tracer->file = file;
    } else if (tracer->file) {
        common_trace_file_reopen(tracer->file);
    }
    if (new_otlp) {
        if (tracer->otlp)
            count_more(&tracer->otlp_before, common_trace_otlp_counts(tracer->otlp));
        common_trace_otlp_free(tracer->otlp);
        tracer->otlp = otlp;
    }
    free(tracer->file_path);
    free(tracer->otlp_url);
    tracer->file_path = path;
    tracer->otlp_url = url;
    tracer->sample = options->sample;
    tracer->on = tracer->file || tracer->otlp;
    return COMMON_OK;
}

void common_tracer_reopen(struct common_tracer *tracer)
{
    if (tracer && tracer->file)
        common_trace_file_reopen(tracer->file);
}

// ---- metrics ------------------------------------------------------------------------------------

bool common_tracer_put(const struct common_tracer *tracer, struct common_metrics *table)
{
    static const char exported[] = "Spans of steps exported.",
                      dropped[] =
                          "Spans of steps not exported: no memory, a full queue, refused, or a full disk.";
    struct common_trace_counts none = {0}, file = {0};
    if (!tracer)
        return true;
    if (tracer->file)
        common_trace_file_counts(tracer->file, &file);
    for (int i = 0; i < 2; i++) {
        const struct common_trace_counts *now = i == 0 ? &file
                                                : i == 1 && tracer->otlp
                                                    ? common_trace_otlp_counts(tracer->otlp)
                                                    : &none;
        const struct common_trace_counts *before = i == 0 ? &tracer->file_before : &tracer->otlp_before;
        const char *to = i == 0 ? "file" : "otlp";
        const struct common_metric_spec specs[] = {
            {COMMON_METRIC_COUNTER, "banyan_trace_exported_spans_total", exported, "to", NULL, to, NULL},
            {COMMON_METRIC_COUNTER, "banyan_trace_dropped_spans_total", dropped, "to", NULL, to, NULL},
            {COMMON_METRIC_GAUGE, "banyan_trace_queued_spans", "Spans waiting for the collector.", NULL, NULL,
             NULL, NULL}};
        if (!common_metrics_put(table, &specs[0], (double)(before->sent + now->sent)) ||
            !common_metrics_put(table, &specs[1], (double)(before->dropped + now->dropped + tracer->lost)) ||
            (i == 1 && !common_metrics_put(table, &specs[2], (double)now->queued)))
            return false;
    }
    return true;
}

// ---- life ---------------------------------------------------------------------------------------

static void on_finished(void *arg)
{
    struct common_tracer *tracer = arg;
    common_loop_fn finished = tracer->finished;
    tracer->finished = NULL;
    common_timer_stop(tracer->timer);
    if (finished)
        end(tracer, finished);
}

void common_tracer_finish(struct common_tracer *tracer, uint64_t limit_ns, common_loop_fn done, void *arg)
{
    if (!tracer) {
        done(arg);
        return;
    }
    batch_leave(tracer);
    tracer->on = false;
    tracer->finished = done;
    tracer->finished_arg = arg;
    tracer->finish_by_ns = common_clock_after(limit_ns);
    common_timer_start(tracer->timer, limit_ns, false);
    if (tracer->otlp)
        common_trace_otlp_finish(tracer->otlp, on_finished, tracer);
    else
        on_finished(tracer);
}

enum common_code common_tracer_new(struct common_loop *loop, const struct common_span_attribute *resource,
                                   uint32_t n, struct common_tracer **out, struct common_error *err)
{
    struct common_tracer *tracer = calloc(1, sizeof *tracer);
    if (!tracer || common_timer_new(loop, on_timer, tracer, &tracer->timer) != COMMON_OK) {
        free(tracer);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for spans");
    }
    tracer->loop = loop;
    tracer->wall_ns = common_clock_wall_ns() - common_clock_ns();
    tracer->head_len = common_span_head(resource, n, tracer->head, sizeof tracer->head);
    if (!tracer->head_len || !common_random(&tracer->seed, sizeof tracer->seed)) {
        common_tracer_free(tracer);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "cannot get random bytes for spans");
    }
    *out = tracer;
    return COMMON_OK;
}

void common_tracer_free(struct common_tracer *tracer)
{
    if (!tracer)
        return;
    batch_leave(tracer);
    common_trace_file_free(tracer->file);
    common_trace_otlp_free(tracer->otlp);
    common_timer_free(tracer->timer);
    free(tracer->file_path);
    free(tracer->otlp_url);
    free(tracer);
}
