// SPDX-License-Identifier: Apache-2.0
// An edge and its link:
//
//     acquire ──▶ DIALLING ──link──▶ UP ◀──link── DOWN
//                     │              └───lost────▶ ▲
//                     └──────── grace passed ──────┘
//
//     DIALLING   frames wait
//     UP         frames leave while there are credits, others wait
//     DOWN       frames are refused, those that wait fail: a dead worker fails steps at once, not at their
//                deadline. The channel goes on dialling.
//
// Frames that wait are failed, and credits that a cancelled call gave back are used, from the edge's timer
// and not where it happens: so no callback runs on the stack of a send, of a cancel, or of the transport.
#include "reduce/edge.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"

#define FRAMES_MAX 16
#define QUEUE_MAX  4096

// How long a new edge may take to link before its frames fail. A handshake takes about 0.2 ms; the rest is
// for a machine that is busy starting workers.
#define GRACE_NS (250 * COMMON_NS_PER_MS)

// A network that swallows frames: the child's host is asked after 1 s without a sign of it, and the edge is
// down when 2 s later there is none either.
#define QUIET_NS COMMON_NS_PER_S
// Something that acknowledges in the child's place and swallows: the child is asked likewise, and has to say
// something. Longer than it takes the coordinator to miss a process that is stopped, which is not the edge's
// to judge.
#define MUTE_NS (3 * COMMON_NS_PER_S)

// An edge is said to be down after as long as a channel may wait to dial again.
#define DOWN_NS COMMON_NS_PER_S
// After a silence it is said so at once, and for so long at least: it may link again and swallow again.
#define NAMED_NS (5 * COMMON_NS_PER_S)

enum edge_state { EDGE_DIALLING, EDGE_UP, EDGE_DOWN };

struct reduce_edges {
    const struct reduce_env *env;
    uint32_t frames_max, queue_max;
    struct reduce_edge *first;
};

struct reduce_edge {
    struct reduce_edges *edges;
    struct reduce_edge *prev, *next; // in the pool
    char *endpoint;
    uint32_t refs;
    enum edge_state state;
    struct proto_channel *channel;
    struct common_timer *timer; // armed for due_ns: end of grace, or the first deadline among those that wait
    uint64_t due_ns, grace_ends_ns, down_ns; // down_ns: since when it is DOWN
    uint64_t mute_ns;                        // when the child was last found silent; 0: never
    uint32_t mutes;                          // of the channel, as far as they are known here
    struct reduce_edge_call *head, *tail;    // waiting, in order
    struct reduce_edge_stats stats;
};

// ---- the pool -----------------------------------------------------------------------------------

enum common_code reduce_edges_new(const struct reduce_env *env, struct reduce_edges **out)
{
    struct reduce_edges *edges = calloc(1, sizeof *edges);
    if (!edges)
        return COMMON_RESOURCE_EXHAUSTED;
    edges->env = env;
    edges->frames_max = env->edge_frames_max ? env->edge_frames_max : FRAMES_MAX;
    edges->queue_max = env->edge_queue_max ? env->edge_queue_max : QUEUE_MAX;
    *out = edges;
    return COMMON_OK;
}

void reduce_edges_free(struct reduce_edges *edges)
{
    assert(!edges || !edges->first);
    free(edges);
}

const struct reduce_edge *reduce_edge_find(const struct reduce_edges *edges, const char *endpoint)
{
    for (const struct reduce_edge *edge = edges->first; edge; edge = edge->next) {
        if (strcmp(edge->endpoint, endpoint) == 0)
            return edge;
    }
    return NULL;
}

uint32_t reduce_edges_down(const struct reduce_edges *edges, char **endpoints, uint32_t most)
{
    uint64_t now = common_clock_ns();
    uint32_t n = 0;
    for (const struct reduce_edge *edge = edges->first; edge && n < most; edge = edge->next)
        if ((edge->state == EDGE_DOWN && now - edge->down_ns >= DOWN_NS) ||
            (edge->mute_ns && now - edge->mute_ns < NAMED_NS))
            endpoints[n++] = edge->endpoint;
    return n;
}

static void edge_set_down(struct reduce_edge *edge)
{
    edge->state = EDGE_DOWN;
    edge->down_ns = common_clock_ns();
}

// ---- the queue ----------------------------------------------------------------------------------

static void call_enqueue(struct reduce_edge *edge, struct reduce_edge_call *call)
{
    call->state = REDUCE_EDGE_CALL_WAITING;
    call->prev = edge->tail;
    call->next = NULL;
    if (edge->tail)
        edge->tail->next = call;
    else
        edge->head = call;
    edge->tail = call;
    edge->stats.waiting++;
}

static void call_dequeue(struct reduce_edge *edge, struct reduce_edge_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        edge->head = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        edge->tail = call->prev;
    call->prev = call->next = NULL;
    call->state = REDUCE_EDGE_CALL_IDLE;
    edge->stats.waiting--;
}

static void edge_arm(struct reduce_edge *edge, uint64_t due_ns)
{
    if (due_ns >= edge->due_ns)
        return;
    edge->due_ns = due_ns;
    common_timer_start(edge->timer, common_clock_left(due_ns), false);
}

static bool can_send(const struct reduce_edge *edge)
{
    return edge->state == EDGE_UP && edge->stats.outstanding < edge->edges->frames_max &&
           proto_channel_connected(edge->channel);
}

static void on_answer(void *arg, enum common_code code, const char *text, struct proto_step_result *result);

static enum common_code call_transmit(struct reduce_edge *edge, struct reduce_edge_call *call,
                                      struct common_error *err)
{
    enum common_code code =
        proto_step_send(edge->channel, call->step, call->with_kv, on_answer, call, &call->id, err);
    if (code != COMMON_OK)
        return code;
    COMMON_FAILPOINT("child_sent");
    call->state = REDUCE_EDGE_CALL_SENT;
    edge->stats.sent++;
    edge->stats.sent_with_kv += call->with_kv;
    if (++edge->stats.outstanding > edge->stats.outstanding_max)
        edge->stats.outstanding_max = edge->stats.outstanding;
    return COMMON_OK;
}

// Whether a waiting call has to end now, and how.
static bool is_over(const struct reduce_edge *edge, const struct reduce_edge_call *call,
                    struct common_error *err)
{
    if (edge->state == EDGE_DOWN)
        common_error_set(err, COMMON_UNAVAILABLE, "the link to %s is down", edge->endpoint);
    else if (common_clock_left(call->step->deadline_ns) == 0)
        common_error_set(err, COMMON_DEADLINE_EXCEEDED, "the deadline passed before the frame could be sent");
    else
        return false;
    return true;
}

// Callbacks may do anything to groups: after each of them the queue is looked at again, and the caller holds
// a reference.
static void call_fail(struct reduce_edge_call *call, const struct common_error *err)
{
    call->done(call->arg, err->code, err->message, NULL);
}

// Ends whatever waits and is over, wherever it stands.
static void edge_sweep(struct reduce_edge *edge)
{
    struct common_error err;
    for (struct reduce_edge_call *call = edge->head; call;) {
        if (is_over(edge, call, &err)) {
            call_dequeue(edge, call);
            call_fail(call, &err);
            call = edge->head;
        } else {
            call = call->next;
        }
    }
}

// Sends from the head while there are credits.
static void edge_pump(struct reduce_edge *edge)
{
    struct common_error err;
    while (edge->head && can_send(edge)) {
        struct reduce_edge_call *call = edge->head;
        call_dequeue(edge, call);
        if (is_over(edge, call, &err) || call_transmit(edge, call, &err) != COMMON_OK)
            call_fail(call, &err);
    }
}

static void on_timer(void *arg)
{
    struct reduce_edge *edge = arg;
    edge->refs++;
    edge->due_ns = COMMON_NO_DEADLINE;
    if (edge->state == EDGE_DIALLING) {
        if (common_clock_left(edge->grace_ends_ns) == 0)
            edge_set_down(edge);
        else
            edge_arm(edge, edge->grace_ends_ns);
    }
    edge_sweep(edge);
    edge_pump(edge);
    for (const struct reduce_edge_call *call = edge->head; call; call = call->next)
        edge_arm(edge, call->step->deadline_ns);
    reduce_edge_release(edge);
}

static void on_link(void *arg, bool connected)
{
    struct reduce_edge *edge = arg;
    if (connected)
        edge->state = EDGE_UP;
    else if (edge->state == EDGE_UP)
        edge_set_down(edge);
    if (!connected && edge->mutes != proto_channel_mutes(edge->channel)) {
        edge->mutes = proto_channel_mutes(edge->channel);
        edge->mute_ns = common_clock_ns();
    }
    edge_arm(edge, 0);
}

static void on_answer(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    COMMON_FAILPOINT("child_answered");
    struct reduce_edge_call *call = arg;
    struct reduce_edge *edge = call->edge;
    bool cancelled = call->state != REDUCE_EDGE_CALL_SENT;
    edge->stats.outstanding--;
    call->state = REDUCE_EDGE_CALL_IDLE;
    if (cancelled) {
        proto_step_result_free(result);
        if (edge->head)
            edge_arm(edge, 0);
        return;
    }
    edge->refs++;
    call->done(call->arg, code, text, result);
    edge_pump(edge);
    reduce_edge_release(edge);
}

// ---- edges --------------------------------------------------------------------------------------

enum common_code reduce_edge_acquire(struct reduce_edges *edges, const char *endpoint,
                                     struct reduce_edge **out, struct common_error *err)
{
    struct reduce_edge *edge = (struct reduce_edge *)reduce_edge_find(edges, endpoint);
    if (edge) {
        edge->refs++;
        *out = edge;
        return COMMON_OK;
    }

    const struct reduce_env *env = edges->env;
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    edge = calloc(1, sizeof *edge);
    if (!edge)
        return common_error_set(err, code, "out of memory for an edge");
    edge->edges = edges;
    edge->refs = 1;
    edge->due_ns = COMMON_NO_DEADLINE;
    edge->endpoint = strdup(endpoint);
    if (!edge->endpoint || common_timer_new(env->loop, on_timer, edge, &edge->timer) != COMMON_OK) {
        common_error_set(err, code, "out of memory for an edge");
        goto fail;
    }
    const struct proto_channel_options options = {
        .name = env->name,
        .role = BANYAN__PB__ROLE__ROLE_WORKER,
        .secret = env->secret,
        .tls = env->tls,
        .peer_role = BANYAN__PB__ROLE__ROLE_WORKER,
        .quiet_ns = QUIET_NS,
        .mute_ns = MUTE_NS,
        .state = on_link,
        .state_arg = edge,
    };
    code = proto_channel_open(env->loop, endpoint, &options, &edge->channel, err);
    if (code != COMMON_OK)
        goto fail;
    edge->grace_ends_ns = common_clock_after(GRACE_NS);
    edge_arm(edge, edge->grace_ends_ns);
    edge->next = edges->first;
    if (edge->next)
        edge->next->prev = edge;
    edges->first = edge;
    *out = edge;
    return COMMON_OK;

fail:
    common_timer_free(edge->timer);
    free(edge->endpoint);
    free(edge);
    return code;
}

void reduce_edge_release(struct reduce_edge *edge)
{
    if (!edge || --edge->refs > 0)
        return;
    assert(!edge->head && edge->stats.outstanding == 0);
    if (edge->prev)
        edge->prev->next = edge->next;
    else
        edge->edges->first = edge->next;
    if (edge->next)
        edge->next->prev = edge->prev;
    proto_channel_close(edge->channel);
    common_timer_free(edge->timer);
    free(edge->endpoint);
    free(edge);
}

enum common_code reduce_edge_send(struct reduce_edge *edge, struct reduce_edge_call *call,
                                  const struct proto_step *step, bool with_kv, proto_step_done_fn done,
                                  void *arg, struct common_error *err)
{
    struct common_error over;
    assert(call->state == REDUCE_EDGE_CALL_IDLE);
    call->edge = edge;
    call->step = step;
    call->with_kv = with_kv;
    call->done = done;
    call->arg = arg;
    if (edge->state == EDGE_UP && !proto_channel_connected(edge->channel))
        return common_error_set(err, COMMON_UNAVAILABLE, "the link to %s is down", edge->endpoint);
    if (is_over(edge, call, &over))
        return common_error_set(err, over.code, "%s", over.message);
    if (!edge->head && can_send(edge))
        return call_transmit(edge, call, err);
    if (edge->stats.waiting >= edge->edges->queue_max)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "%u frames wait for credits on one edge",
                                edge->stats.waiting);
    call_enqueue(edge, call);
    edge_arm(edge, step->deadline_ns);
    return COMMON_OK;
}

void reduce_edge_cancel(struct reduce_edge_call *call)
{
    if (call->state == REDUCE_EDGE_CALL_WAITING) {
        call_dequeue(call->edge, call);
    } else if (call->state == REDUCE_EDGE_CALL_SENT) {
        call->state = REDUCE_EDGE_CALL_IDLE; // on_answer runs on this stack and sees it
        proto_channel_cancel(call->edge->channel, call->id);
    }
}

void reduce_edge_stats_get(const struct reduce_edge *edge, struct reduce_edge_stats *out)
{
    *out = edge->stats;
}
