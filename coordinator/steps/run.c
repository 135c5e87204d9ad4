// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/place/forget.h"
#include "coordinator/place/placing.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/admit.h"
#include "coordinator/steps/answer.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/keep.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/mass.h"
#include "coordinator/steps/queue.h"
#include "coordinator/steps/sight.h"
#include "coordinator/steps/spans.h"
#include "coordinator/steps/undo.h"
#include "coordinator/steps/watch.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/tenants/quota.h"

#define MASS_SPARE_NS  (100 * COMMON_NS_PER_MS)
#define RETRY_FIRST_NS COMMON_NS_PER_MS
#define RETRY_MOST_NS  (50 * COMMON_NS_PER_MS)

static struct coordinator_session *session_of(const struct coordinator_item *item)
{
    return item->way.s ? item->way.s : coordinator_call_session(item->call, item->ask.session);
}

// It leaves its session and its plan. False: it had none.
static void way_over(struct coordinator_item *item)
{
    struct coordinator_session *s = item->way.s;
    item->way.s = NULL;
    item->way.plan = NULL;
    if (!s)
        return;
    s->writing -= item->ask.append;
    coordinator_session_unshare(s);
}

// ---- what it leaves out -------------------------------------------------------------------------

// What its rows, and nobody else's, would have seen is declared.
static void declare_missing(struct coordinator_item *item, struct coordinator_session *s)
{
    char trace[COMMON_TRACE_ID_TEXT];
    uint64_t from, to;
    coordinator_item_sees(item, s, &from, &to);
    item->left_out = coordinator_missing_within(&item->way.missing, from, to);
    item->seen = to - from - item->left_out;
    if (!item->left_out)
        return;
    coordinator_item_steps(item)->count_partial++;
    if (s->declared == s->layout.epoch + 1)
        return;
    s->declared = s->layout.epoch + 1;
    coordinator_session_tell(
        s, SESSION_PARTIAL, WARN,
        "answers are partial, as their clients allow: tokens are missing session=%016" PRIx64
        " layer=%u missing=%" PRIu64 " seen=%" PRIu64 " epoch=%" PRIu64 " trace=%s",
        s->id, item->ask.layer, item->left_out, item->seen, s->layout.epoch,
        coordinator_item_trace(item, trace));
}

static void clip_missing(struct coordinator_item *item, const struct coordinator_session *s)
{
    uint64_t from, to;
    coordinator_item_sees(item, s, &from, &to);
    coordinator_item_clip_missing(item, from, to);
}

// ---- the end ------------------------------------------------------------------------------------

static void count_success(struct coordinator_item *item, struct coordinator_session *s)
{
    struct coordinator_steps *steps = coordinator_item_steps(item);
    item->length = coordinator_session_layer_length(s, item->ask.layer);
    item->plan_digest = common_mix64(item->way.digest ^ item->way.plan_digest);
    s->steps++;
    if (steps->landed_ns > s->last_used_ns)
        s->last_used_ns = steps->landed_ns;
    steps->count_steps++;
    if (item->ask.partial)
        declare_missing(item, s);
    if (item->look.watched || item->look.masses || item->call->want_trace)
        coordinator_watch_step(item, s);
    if (item->ask.partial)
        clip_missing(item, s);
    if (item->look.keep && !item->left_out)
        coordinator_keep_step(item, s);
}

static void item_over(struct coordinator_item *item)
{
    struct coordinator_call *call = item->call;
    struct coordinator_steps *steps = call->steps;
    struct coordinator_session *s = session_of(item);
    coordinator_item_set_state(item, COORDINATOR_ITEM_DONE);
    if (s)
        coordinator_lane_append_over(steps, s->lane, item);
    if (s && item->write && s->open_write == item->write)
        s->open_write = 0;
    if (!item->failure && s)
        count_success(item, s);
    steps->items--;
    coordinator_quota_give(call->use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 1);
    way_over(item);
    coordinator_call_item_done(call);
}

static void item_unconfirmed(struct coordinator_item *item)
{
    struct proto_status *failure = item->failure;
    char before[sizeof(failure->message)];
    snprintf(before, sizeof(before), "%s", failure->message);
    snprintf(failure->reason, sizeof(failure->reason), "UNCONFIRMED");
    snprintf(failure->message, sizeof(failure->message),
             "%.300s; the rows may or may not have been appended: append them again", before);
}

static void retry_later(struct coordinator_item *item);

// Nobody has any of its rows: it begins again as an append of its own, and its chunk goes to another worker.
static void go_elsewhere(struct coordinator_item *item, struct coordinator_session *s)
{
    if (s->open_write == item->write)
        s->open_write = 0;
    item->write = 0;
    item->sent = item->elsewhere = false;
    retry_later(item);
}

static void item_undone(void *arg, enum common_code code, const char *text)
{
    struct coordinator_item *item = arg;
    struct coordinator_session *s = session_of(item);
    (void)text;
    bool over = !item->call->request || coordinator_item_steps(item)->core->stopping;
    if (code == COMMON_OK && s && item->elsewhere && !over) {
        go_elsewhere(item, s);
        return;
    }
    if (code != COMMON_OK)
        item_unconfirmed(item);
    if (s && code != COMMON_OK)
        s->untidy = true;
    item_over(item);
}

void coordinator_item_finish(struct coordinator_item *item)
{
    struct coordinator_session *s = session_of(item);
    bool stopping = coordinator_item_steps(item)->core->stopping;
    if (item->failure && item->sent && s && !item->stored && !stopping) {
        coordinator_item_set_state(item, COORDINATOR_ITEM_UNDOING);
        coordinator_undo(s, item, item_undone);
        return;
    }
    if (item->failure && item->sent && (item->stored || stopping))
        item_unconfirmed(item);
    item_over(item);
}

void coordinator_item_stop(struct coordinator_item *item, enum common_code code, const char *text)
{
    const struct coordinator_session *s = session_of(item);
    bool lane_ends = item->state == COORDINATOR_ITEM_WAITING && !s; // deleted in this turn
    if (item->state == COORDINATOR_ITEM_DONE || item->state == COORDINATOR_ITEM_PLACING ||
        item->state == COORDINATOR_ITEM_UNDOING || item->way.in_frames || lane_ends) {
        item->again = false; // it ends when what it waits for comes back, or with its lane
        if (item->way.in_frames) {
            struct coordinator_steps *steps = coordinator_item_steps(item);
            steps->some_over = true;
            coordinator_turn_mark(&steps->core->turn, COORDINATOR_PHASE_FRAMES);
        }
        return;
    }
    if (item->state == COORDINATOR_ITEM_WAITING)
        coordinator_lane_leave(s->lane, item);
    else if (item->state == COORDINATOR_ITEM_QUEUED)
        coordinator_queue_leave(item);
    else
        common_list_remove(&item->link);
    proto_status_set(coordinator_item_failure(item), code, "", "%s", text);
    coordinator_item_finish(item);
}

// ---- trying again -------------------------------------------------------------------------------

static void retry_later(struct coordinator_item *item)
{
    struct coordinator_steps *steps = coordinator_item_steps(item);
    uint32_t shift = item->attempt < 6 ? item->attempt : 6;
    bool cold =
        item->failure && !strcmp(item->failure->reason, "COLD"); // in a frame of its own it waits there
    uint64_t delay = cold ? 0 : RETRY_FIRST_NS << shift;
    coordinator_item_set_state(item, COORDINATOR_ITEM_RETRYING);
    item->attempt++;
    item->again = false;
    item->retry_at_ns = common_clock_after(delay < RETRY_MOST_NS ? delay : RETRY_MOST_NS);
    common_list_push(&steps->retries, &item->link);
    steps->count_retries++;
    if (!steps->retry_runs || cold)
        common_timer_start(steps->retry, cold ? 0 : RETRY_FIRST_NS, false);
    steps->retry_runs = true;
    way_over(item);
}

static void retry_timer(void *arg)
{
    struct coordinator_steps *steps = arg;
    uint64_t now = common_clock_ns();
    struct common_list all;
    common_list_move(&steps->retries, &all);
    while (!common_list_empty(&all)) {
        struct coordinator_item *item = common_list_entry(all.next, struct coordinator_item, link);
        common_list_remove(&item->link);
        if (item->retry_at_ns > now && !steps->core->stopping) {
            common_list_push(&steps->retries, &item->link);
            continue;
        }
        coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
        coordinator_item_enter(item);
    }
    steps->retry_runs = !common_list_empty(&steps->retries);
    if (steps->retry_runs)
        common_timer_start(steps->retry, RETRY_FIRST_NS, false);
}

void coordinator_item_reroute(struct coordinator_item *item)
{
    coordinator_item_refuse(item, COMMON_UNAVAILABLE, "WORKER_LOST", "a worker was lost meanwhile");
    item->again = true;
    if (item->way.in_frames)
        coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING); // goes again when they are back
    else
        retry_later(item);
}

// ---- its way ------------------------------------------------------------------------------------

// A completion of the placing, on an empty stack.
static void item_placed(void *arg, struct coordinator_session *s, const struct proto_status *failure)
{
    struct coordinator_item *item = arg;
    (void)s;
    bool waits = failure && item->call->request &&
                 coordinator_placing_waits(coordinator_item_steps(item)->sessions, failure);
    if (waits) {
        *coordinator_item_failure(item) = *failure;
        coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
        retry_later(item);
        return;
    }
    if (failure || !item->call->request) { // the call was answered meanwhile
        if (failure)
            *coordinator_item_failure(item) = *failure;
        else
            coordinator_item_refuse(item, COMMON_CANCELLED, "", "the caller has disconnected");
        coordinator_item_finish(item);
        return;
    }
    coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
    coordinator_item_enter(item);
}

static void place_chunks(struct coordinator_item *item, struct coordinator_session *s)
{
    uint64_t ct = s->layout.chunk_tokens, last = item->ask.first + item->ask.rows - 1;
    coordinator_item_set_state(item, COORDINATOR_ITEM_PLACING);
    coordinator_place(s, item->ask.first / ct, last / ct, false, item_placed, item);
}

static void wait_in_lane(struct coordinator_item *item, struct coordinator_session *s)
{
    if (coordinator_lane_wait(coordinator_lane_of(coordinator_item_steps(item), s), item))
        return;
    proto_status_set(coordinator_item_failure(item), COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                     "%u steps already wait for this session: try again", s->n_waiting);
    coordinator_item_finish(item);
}

// All that its rows might see is missing: what the algebra says of no keys, without asking anybody.
static void answer_nothing(struct coordinator_item *item, struct coordinator_session *s)
{
    struct coordinator_item_way *way = &item->way;
    struct coordinator_call *call = item->call;
    if (!coordinator_call_room(call)) {
        coordinator_item_refuse(item, COMMON_RESOURCE_EXHAUSTED, "", "the coordinator is out of memory");
        coordinator_item_finish(item);
        return;
    }
    coordinator_session_share(s);
    way->s = s;
    way->slabs_left = 0;
    way->digest = common_xxh3(way->missing.ranges, way->missing.n * sizeof(*way->missing.ranges), 0);
    way->plan_digest = 0;
    item->look.watched = false;
    const struct proto_layer layer = coordinator_item_layer(item);
    float *lse = (float *)(void *)(call->out + call->o_bytes + item->reply.lse_offset);
    memset(call->out + item->reply.o_offset, 0, item->reply.o_bytes);
    for (size_t i = 0; i < (size_t)item->ask.rows * layer.q_heads; i++)
        lse[i] = layer.sinks ? layer.sinks[i % layer.q_heads] : -INFINITY;
    coordinator_item_set_state(item, COORDINATOR_ITEM_QUEUED);
    coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING);
    way->in_frames = 1;
    coordinator_item_landed(item);
}

static void enqueue(struct coordinator_item *item, struct coordinator_session *s)
{
    struct coordinator_item_way *way = &item->way;
    struct coordinator_steps *steps = coordinator_item_steps(item);
    struct proto_status status;
    if (way->missing.tokens == way->visible) {
        free(item->failure); // of an earlier attempt
        item->failure = NULL;
        answer_nothing(item, s);
        return;
    }
    struct coordinator_plan *plan = coordinator_session_plan(s, &status);
    if (!plan) {
        *coordinator_item_failure(item) = status;
        coordinator_item_finish(item);
        return;
    }
    free(item->failure); // of an earlier attempt
    item->failure = NULL;
    coordinator_session_share(s);
    way->s = s;
    way->plan = plan;
    item->look.watched = s->lane && coordinator_watch_wants(s->lane->watch, item->ask.layer);
    if (!item->look.counted && !item->call->aside)
        item->look.keep = (uint8_t)coordinator_keep_wish(steps, s, item->call->arrived_ns);
    item->look.counted = true;
    s->writing += item->ask.append;
    if (item->ask.append && !item->write)
        item->write = coordinator_session_next_write(s);
    if (item->ask.append)
        s->open_write = item->write;
    const struct proto_layer layer = coordinator_item_layer(item);
    coordinator_slabs_cut(item->ask.rows, layer.kv_heads, layer.q_heads / layer.kv_heads, layer.v_dim,
                          COORDINATOR_SLAB_BYTES, &way->slabs);
    way->next_slab = 0;
    way->slabs_left = way->slabs.n;
    way->at_once = item->ask.append && (layer.not_causal || item->ask.block_count);
    way->bands_left = way->at_once ? 1 : item->ask.append ? way->slabs.n / way->slabs.across : 0;
    way->apart = way->slabs.n > 1 || item->apart;
    way->digest = 0;
    way->plan_digest = plan->digest;
    item->blind = false;
    coordinator_item_set_state(item, COORDINATOR_ITEM_QUEUED);
    coordinator_queue_push(steps, plan, item);
}

static void item_run(struct coordinator_item *item, bool pumped)
{
    struct coordinator_steps *steps = coordinator_item_steps(item);
    struct coordinator_session *s = coordinator_call_session(item->call, item->ask.session);
    if (!s) {
        coordinator_session_unknown(item->ask.session, coordinator_item_failure(item));
        item->failure->session = item->ask.session;
        coordinator_item_finish(item);
        return;
    }
    enum coordinator_verdict verdict = coordinator_item_admit(item, s, pumped);
    // One that is to try again keeps its turn: those behind it try at times of their own, and would overtake it.
    if (item->ask.append && (verdict == COORDINATOR_ADMIT_GO || verdict == COORDINATOR_ADMIT_PLACE ||
                             verdict == COORDINATOR_ADMIT_RETRY))
        coordinator_lane_of(steps, s)->appending = item;
    switch (verdict) {
    case COORDINATOR_ADMIT_GO:
        enqueue(item, s);
        break;
    case COORDINATOR_ADMIT_REFUSED:
        coordinator_item_finish(item);
        break;
    case COORDINATOR_ADMIT_WAIT:
        wait_in_lane(item, s);
        break;
    case COORDINATOR_ADMIT_PLACE:
        place_chunks(item, s);
        break;
    case COORDINATOR_ADMIT_RETRY:
        retry_later(item);
        break;
    }
}

void coordinator_item_go(struct coordinator_item *item)
{
    item_run(item, true);
}

void coordinator_items_drain(struct coordinator_steps *steps)
{
    while (!common_list_empty(&steps->fresh)) {
        struct coordinator_item *item = common_list_entry(steps->fresh.next, struct coordinator_item, link);
        common_list_remove(&item->link);
        item_run(item, false);
    }
}

// ---- what comes back ----------------------------------------------------------------------------

void coordinator_item_acknowledge(struct coordinator_item *item)
{
    struct coordinator_session *s = item->way.s;
    const struct coordinator_item_ask *ask = &item->ask;
    if (!coordinator_rangeset_add(&s->layers[ask->layer], ask->first, ask->rows, NULL)) {
        coordinator_item_refuse(item, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                                "the layer has too many separate ranges: fill its holes first");
        return;
    }
    coordinator_session_count_tokens(s);
    item->stored = true;
    s->open_write = 0;
    coordinator_lane_append_over(coordinator_item_steps(item), s->lane, item);
    coordinator_forget_wrote(s, ask->layer, ask->first);
    coordinator_place_ahead(s, ask->first + ask->rows);
}

static void weighed(void *arg, struct coordinator_masses *masses)
{
    struct coordinator_item *item = arg;
    struct coordinator_call *call = item->call;
    uint64_t took_ns = common_clock_ns() - item->look.weighed_ns;
    item->look.masses = masses;
    call->mass_ns = took_ns > call->mass_ns ? took_ns : call->mass_ns;
    coordinator_call_take_masses(call, masses);
    coordinator_item_landed(item);
}

// All of it has been answered but for where its rows looked: a computation beside it, for which it stays in
// flight. A little time is left for the answer, which stands without masses, too.
static void weigh(struct coordinator_item *item)
{
    uint64_t left = common_clock_left(item->call->deadline_ns),
             spare = left / 8 < MASS_SPARE_NS ? left / 8 : MASS_SPARE_NS;
    struct coordinator_mass_ask ask = {.s = item->way.s,
                                       .layer = item->ask.layer,
                                       .rows = item->ask.rows,
                                       .bins = item->ask.mass_bins,
                                       .heads = item->ask.mass_heads,
                                       .first = item->ask.first,
                                       .visible = item->way.visible,
                                       .block_first = item->ask.block_first,
                                       .block_count = item->ask.block_count,
                                       .deadline_ns = common_clock_after(left - spare),
                                       .missing = &item->way.missing,
                                       .q = item->ask.q,
                                       .lse = coordinator_item_lse(item)};
    coordinator_item_trace(item, ask.trace);
    item->way.in_frames++;
    item->look.weighed_ns = common_clock_ns();
    coordinator_mass_start(coordinator_item_steps(item), &ask, weighed, item);
}

void coordinator_item_landed(struct coordinator_item *item)
{
    if (--item->way.in_frames)
        return;
    bool over = !item->call->request; // answered: its deadline passed, or its caller is gone
    bool all = !item->way.slabs_left;
    if (item->ask.mass_bins && !item->look.masses && all && !item->failure && !over) {
        weigh(item);
        return;
    }
    if (!item->failure && !over && !all)
        return; // its other slabs are still to go
    if (item->state == COORDINATOR_ITEM_QUEUED)
        coordinator_queue_leave(item);
    if (item->failure && item->again && !over) {
        retry_later(item);
        return;
    }
    if (over && !all)
        coordinator_item_refuse(item, COMMON_DEADLINE_EXCEEDED, "", "the deadline has passed");
    coordinator_item_finish(item);
}

enum common_code coordinator_items_init(struct coordinator_steps *steps)
{
    return common_timer_new(steps->core->loop, retry_timer, steps, &steps->retry);
}

void coordinator_items_stop(struct coordinator_steps *steps)
{
    common_timer_stop(steps->retry);
}
