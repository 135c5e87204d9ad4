// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/audit.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/audit_sum.h"
#include "proto/model/spec.h"
#include "proto/rpc/rpc.h"

#define STRETCHES     32u // that an audit has, at most: one is some 10 ms of a thread
#define CALL_NS       (10 * COMMON_NS_PER_S)
#define PAUSE_MOST_NS COMMON_NS_PER_S

struct part { // what one worker is asked for, of a stretch
    struct coordinator_auditing *a;
    struct coordinator_worker *w; // not owned: it may be gone when the answer comes
    Banyan__Pb__AuditChunk chunks[PROTO_AUDIT_CHUNKS_MAX], *pointers[PROTO_AUDIT_CHUNKS_MAX];
    uint32_t n;
};

struct coordinator_auditing {
    struct coordinator_steps *steps;
    struct common_timer *timer; // the next stretch
    struct coordinator_kept *waiting[COORDINATOR_AUDITS_WAITING];
    uint32_t n_waiting;
    uint64_t count; // of audits so far: draws
    // The one under way:
    struct coordinator_kept *kept;      // NULL: there is none
    uint32_t row, rows;                 // rows of `kept` that are looked at
    uint32_t q_head, q_heads;           // query heads, likewise
    uint64_t at, end;                   // keys still to be seen
    uint64_t madds;                     // of one key: all rows and heads
    struct coordinator_audit_sum *sums; // [rows][q_heads]
    double *o;                          // of all sums
    char by[160];                       // workers that were asked, for people
    // Its stretch:
    struct common_slice q[PROTO_KEPT_ROWS_MAX];
    struct part *parts;
    uint32_t n_parts, pending;
    uint64_t began_ns;
    const char *failed; // why it is skipped; NULL: it is not
};

bool coordinator_audit_picks(const struct coordinator_steps *steps, uint64_t nth)
{
    uint64_t n = steps->core->options.audit;
    return n && (nth - 1) % n == common_mix64((nth - 1) / n + 1) % n;
}

// ---- the end of one ------------------------------------------------------------------------------

static void audit_over(struct coordinator_auditing *a)
{
    coordinator_kept_unref(a->kept);
    free(a->sums);
    free(a->o);
    a->kept = NULL;
    a->sums = NULL;
    a->o = NULL;
    a->failed = NULL;
    a->by[0] = 0;
    if (a->n_waiting && !a->steps->core->stopping)
        common_timer_start(a->timer, 0, false);
}

static void audit_skip(struct coordinator_auditing *a, const char *why)
{
    a->steps->count_audit_skipped++;
    common_log_debug("audit skipped session=%016" PRIx64 " layer=%u first=%" PRIu64 " trace=%s: %s",
                     a->kept->session, a->kept->layer, a->kept->first, a->kept->trace, why);
    audit_over(a);
}

static void tell_difference(const struct coordinator_auditing *a, uint32_t row, uint32_t head,
                            const struct coordinator_audit_verdict *v)
{
    const struct coordinator_kept *kept = a->kept;
    char what[24] = "lse";
    if (v->dim >= 0)
        snprintf(what, sizeof(what), "o[%d]", v->dim);
    const struct coordinator_event event = {.kind = PROTO_EVENT_AUDIT_DIFFERENCE,
                                            .severity = PROTO_EVENT_ERROR,
                                            .session = kept->session};
    coordinator_events_tell(a->steps->core->events, &event,
                            "an answer is wrong: its rows give another one in float64 session=%016" PRIx64
                            " layer=%u first=%" PRIu64 " rows=%u visible=%" PRIu64 " position=%" PRIu64
                            " query_head=%u %s=%.9g exact=%.9g off=%.3g allowed=%.3g plan_digest=%016" PRIx64
                            " members=%s audited_by=%s trace=%s",
                            kept->session, kept->layer, kept->first, kept->step_rows, kept->visible,
                            kept->positions[row], head, what, v->got, v->want, fabs(v->got - v->want),
                            v->allowed, kept->plan_digest, kept->workers, a->by, kept->trace);
}

// All keys have been seen.
static void audit_judge(struct coordinator_auditing *a, const struct proto_layer *layer)
{
    struct coordinator_kept *kept = a->kept;
    struct coordinator_audit_verdict worst = {.error = 0};
    uint32_t worst_row = 0, worst_head = 0;
    for (uint32_t i = 0; i < a->rows * a->q_heads; i++) {
        uint32_t row = a->row + i / a->q_heads, head = a->q_head + i % a->q_heads;
        size_t pair = (size_t)row * kept->q_heads + head;
        uint64_t from, to;
        coordinator_kept_sees(kept, layer, row, &from, &to);
        if (a->sums[i].keys != (double)(to - from)) { // the masks of two of our own parts are not the same
            audit_skip(a, "the workers used other keys than the row");
            return;
        }
        struct coordinator_audit_verdict v =
            coordinator_audit_sum_judge(&a->sums[i], layer->sinks ? (double)layer->sinks[head] : -INFINITY,
                                        coordinator_kept_o(kept) + pair * kept->v_dim,
                                        coordinator_kept_lse(kept)[pair], kept->v_dim);
        if (v.error <= worst.error)
            continue;
        worst = v;
        worst_row = row;
        worst_head = head;
    }
    a->steps->count_audited++;
    if (worst.error > 1) {
        a->steps->count_audit_differences++;
        tell_difference(a, worst_row, worst_head, &worst);
        coordinator_kept_pin(a->steps, kept);
    } else if (kept->audited == COORDINATOR_AUDIT_NONE) {
        kept->audited = COORDINATOR_AUDIT_RIGHT;
    }
    audit_over(a);
}

// ---- a stretch -----------------------------------------------------------------------------------

static void stretch_over(struct coordinator_auditing *a)
{
    uint64_t took = common_clock_ns() - a->began_ns,
             pause = 3 * took < PAUSE_MOST_NS ? 3 * took : PAUSE_MOST_NS;
    free(a->parts);
    a->parts = NULL;
    a->n_parts = 0;
    if (a->failed || a->steps->core->stopping)
        audit_skip(a, a->failed ? a->failed : "the coordinator is stopping");
    else
        common_timer_start(a->timer, pause, false);
}

static void take_part(struct coordinator_auditing *a, const double *numbers)
{
    size_t each = PROTO_AUDIT_HEAD + a->kept->v_dim;
    for (uint32_t i = 0; i < a->rows * a->q_heads; i++)
        coordinator_audit_sum_add(&a->sums[i], numbers + i * each, a->kept->v_dim);
}

static void part_answered(void *arg, const struct proto_reply *reply)
{
    struct part *part = arg;
    struct coordinator_auditing *a = part->a;
    size_t want = (size_t)a->rows * a->q_heads * (PROTO_AUDIT_HEAD + a->kept->v_dim) * sizeof(double);
    if (reply->code != COMMON_OK) // a worker of an older build has no such call
        a->failed = reply->code == COMMON_UNIMPLEMENTED ? "a worker cannot audit" : "a worker has refused";
    else if (reply->message->n_tensors != 1 || reply->message->tensors[0].bytes != want)
        a->failed = "a worker answered with numbers of another size";
    else if (!a->failed)
        take_part(a, reply->message->tensors[0].data);
    if (!--a->pending)
        stretch_over(a);
}

static void ask_part(struct part *part)
{
    struct coordinator_auditing *a = part->a;
    const struct coordinator_core *core = a->steps->core;
    const struct coordinator_kept *kept = a->kept;
    size_t bytes = 0;
    for (uint32_t i = 0; i < a->rows; i++)
        bytes += a->q[i].len;
    const struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                            .n_dims = 1,
                                            .dims = {bytes},
                                            .pieces = a->q,
                                            .n_pieces = a->rows};
    Banyan__Pb__AuditRequest m = BANYAN__PB__AUDIT_REQUEST__INIT;
    m.term = core->term;
    m.session = kept->session;
    m.incarnation = kept->incarnation;
    m.layer = kept->layer;
    m.positions = (uint64_t *)kept->positions + a->row; // only read by packing
    m.n_positions = a->rows;
    m.visible = kept->visible;
    m.block_first = kept->block_first;
    m.block_count = kept->block_count;
    m.q_head = a->q_head;
    m.q_heads = a->q_heads;
    m.chunks = part->pointers;
    m.n_chunks = part->n;
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_AUDIT,
                              .body = &m.base,
                              .tensors = &tensor,
                              .n_tensors = 1,
                              .deadline_ns = common_clock_after(CALL_NS),
                              .done = part_answered,
                              .arg = part};
    struct common_error err = {.message = "no connection to the worker"};
    struct proto_channel *channel = part->w->channel;
    enum common_code code = channel ? proto_channel_call(channel, &call, NULL, &err) : COMMON_UNAVAILABLE;
    if (code != COMMON_OK)
        part_answered(part, &(struct proto_reply){.code = code, .text = err.message});
}

// Who is asked: a holder that follows rather than the one that serves, another one each time. NULL: none can be.
static struct coordinator_worker *holder_to_ask(const struct coordinator_auditing *a,
                                                const struct coordinator_chunk *chunk)
{
    uint32_t copies = coordinator_chunk_copies(chunk), followers = copies - 1;
    for (uint32_t i = 0; i < copies; i++) {
        uint32_t copy = i < followers ? 1 + (uint32_t)((a->count + i) % followers) : 0;
        if (coordinator_session_copy_usable(chunk, copy))
            return coordinator_chunk_holder(chunk, copy);
    }
    return NULL;
}

// NULL: there is no room for another one.
static struct part *part_of(struct coordinator_auditing *a, struct coordinator_worker *w, uint32_t room)
{
    for (uint32_t i = 0; i < a->n_parts; i++)
        if (a->parts[i].w == w)
            return &a->parts[i];
    if (a->n_parts == room)
        return NULL;
    a->parts[a->n_parts] = (struct part){.a = a, .w = w};
    size_t at = strlen(a->by);
    bool named = strstr(a->by, w->name) != NULL;
    if (!named && at + strlen(w->name) + 2 < sizeof(a->by))
        snprintf(a->by + at, sizeof(a->by) - at, "%s%s", at ? "," : "", w->name);
    return &a->parts[a->n_parts++];
}

// Of one audit, at most, unless one row and head has more.
static uint64_t madds_of(const struct coordinator_auditing *a)
{
    return a->steps->core->options.audit_madds;
}

// The chunks of the next stretch, by the worker that is asked for them. NULL, or why not.
static const char *stretch_plan(struct coordinator_auditing *a, const struct coordinator_session *s)
{
    uint64_t ct = s->layout.chunk_tokens, tokens = madds_of(a) / STRETCHES / a->madds,
             last = (a->end - 1) / ct;
    uint64_t chunks = tokens / ct ? tokens / ct : 1;
    chunks = chunks < PROTO_AUDIT_CHUNKS_MAX ? chunks : PROTO_AUDIT_CHUNKS_MAX;
    last = last < a->at / ct + chunks - 1 ? last : a->at / ct + chunks - 1;
    uint32_t room = s->n_members < chunks ? s->n_members + 1 : (uint32_t)chunks; // holders are members
    a->parts = calloc(room, sizeof(*a->parts));
    if (!a->parts)
        return "out of memory";
    for (uint64_t i = a->at / ct; i <= last; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, i);
        struct coordinator_worker *w = chunk ? holder_to_ask(a, chunk) : NULL;
        if (!w)
            return "a holder of its rows is not connected";
        struct part *part = part_of(a, w, room);
        if (!part)
            return "a holder is not a member";
        uint64_t rows = a->end - i * ct < ct ? a->end - i * ct : ct;
        Banyan__Pb__AuditChunk *to = &part->chunks[part->n];
        *to = (Banyan__Pb__AuditChunk)BANYAN__PB__AUDIT_CHUNK__INIT;
        to->chunk = chunk->id;
        to->first = i * ct;
        to->rows = (uint32_t)rows;
        part->pointers[part->n++] = to;
    }
    a->at = (last + 1) * ct;
    return NULL;
}

static void stretch_begin(struct coordinator_auditing *a, const struct coordinator_session *s)
{
    a->began_ns = common_clock_ns();
    a->pending = 1; // until all are asked
    a->failed = stretch_plan(a, s);
    for (uint32_t i = 0; i < a->n_parts && !a->failed; i++) {
        a->pending++;
        ask_part(&a->parts[i]);
    }
    if (!--a->pending)
        stretch_over(a);
}

// ---- the beginning of one ------------------------------------------------------------------------

// How much of it is looked at: all rows and heads where they are not too much work, else some of the heads, and at last
// one of one row. False: out of memory.
static bool choose_extent(struct coordinator_auditing *a, const struct proto_layer *layer)
{
    const struct coordinator_kept *kept = a->kept;
    uint64_t keys = 0, draw = common_mix64(a->count), dims = kept->k_dim + kept->v_dim, from, to;
    a->row = 0;
    a->rows = kept->rows;
    for (uint32_t i = 0; i < kept->rows; i++) {
        coordinator_kept_sees(kept, layer, i, &from, &to);
        keys += to - from;
    }
    if (keys * dims > madds_of(a)) {
        a->row = (uint32_t)(draw % kept->rows);
        a->rows = 1;
        coordinator_kept_sees(kept, layer, a->row, &from, &to);
        keys = to - from;
    }
    uint64_t heads = keys ? madds_of(a) / (keys * dims) : kept->q_heads;
    a->q_heads = heads < 1 ? 1 : heads < kept->q_heads ? (uint32_t)heads : kept->q_heads;
    a->q_head = (uint32_t)(draw / 64 % (kept->q_heads - a->q_heads + 1));
    a->madds = a->rows * a->q_heads * dims;
    a->at = UINT64_MAX;
    a->end = 0;
    for (uint32_t i = 0; i < a->rows; i++) {
        coordinator_kept_sees(kept, layer, a->row + i, &from, &to);
        a->at = from < to && from < a->at ? from : a->at;
        a->end = from < to && to > a->end ? to : a->end;
        const float *q =
            coordinator_kept_q(kept) + ((size_t)(a->row + i) * kept->q_heads + a->q_head) * kept->k_dim;
        a->q[i] = (struct common_slice){q, (size_t)a->q_heads * kept->k_dim * sizeof(float)};
    }
    size_t pairs = (size_t)a->rows * a->q_heads;
    a->sums = malloc(pairs * sizeof(*a->sums));
    a->o = malloc(pairs * kept->v_dim * sizeof(*a->o));
    for (size_t i = 0; i < pairs && a->sums && a->o; i++)
        coordinator_audit_sum_init(&a->sums[i], a->o + i * kept->v_dim, kept->v_dim);
    return a->sums && a->o;
}

static void take_next(struct coordinator_auditing *a)
{
    a->kept = a->waiting[0];
    a->n_waiting--;
    memmove(a->waiting, a->waiting + 1, a->n_waiting * sizeof(*a->waiting));
    a->count++;
}

static void go_on(void *arg)
{
    struct coordinator_auditing *a = arg;
    if (a->pending || a->steps->core->stopping || (!a->kept && !a->n_waiting))
        return;
    if (!a->kept)
        take_next(a);
    const struct coordinator_session *s = coordinator_session_find(a->steps->sessions, a->kept->session);
    if (!s || !coordinator_kept_stands(a->kept, s)) {
        audit_skip(a, "its rows no longer belong to the session");
        return;
    }
    const struct proto_layer layer = proto_spec_layer(s->spec, a->kept->layer);
    if (!a->sums && !choose_extent(a, &layer))
        audit_skip(a, "out of memory");
    else if (a->at < a->end)
        stretch_begin(a, s);
    else
        audit_judge(a, &layer);
}

void coordinator_audit_add(struct coordinator_steps *steps, struct coordinator_kept *kept)
{
    struct coordinator_auditing *a = steps->auditing;
    if (a->n_waiting == COORDINATOR_AUDITS_WAITING || steps->core->stopping) {
        steps->count_audit_skipped++;
        return;
    }
    kept->refs++;
    a->waiting[a->n_waiting++] = kept;
    if (!a->kept)
        common_timer_start(a->timer, 0, false); // not now: steps go first
}

enum common_code coordinator_audits_init(struct coordinator_steps *steps)
{
    steps->auditing = coordinator_alloc(sizeof(*steps->auditing));
    steps->auditing->steps = steps;
    return common_timer_new(steps->core->loop, go_on, steps->auditing, &steps->auditing->timer);
}

void coordinator_audits_stop(struct coordinator_steps *steps)
{
    struct coordinator_auditing *a = steps->auditing;
    if (!a || !a->timer)
        return;
    common_timer_stop(a->timer);
    while (a->n_waiting)
        coordinator_kept_unref(a->waiting[--a->n_waiting]);
    if (a->kept && !a->pending)
        audit_over(a);
}

void coordinator_audits_free(struct coordinator_steps *steps)
{
    struct coordinator_auditing *a = steps->auditing;
    steps->auditing = NULL;
    if (!a)
        return;
    assert(!a->pending && !a->kept);
    common_timer_free(a->timer);
    free(a);
}
