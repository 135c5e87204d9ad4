// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "coordinator/relayout.h"
#include "coordinator/session.h"
#include "coordinator/watch.h"

#define DEADLINE_TICK_NS (10 * COMMON_NS_PER_MS)
#define MASS_SPARE_NS    (100 * COMMON_NS_PER_MS)
#define RETRY_FIRST_NS   COMMON_NS_PER_MS
#define RETRY_MOST_NS    (50 * COMMON_NS_PER_MS)

#define TO(state) (1u << COORDINATOR_ITEM_##state)
static const unsigned transitions[COORDINATOR_ITEM_STATES] = {
    [COORDINATOR_ITEM_NEW] = TO(WAITING) | TO(PLACING) | TO(QUEUED) | TO(RETRYING) | TO(DONE),
    [COORDINATOR_ITEM_WAITING] = TO(NEW) | TO(DONE),
    [COORDINATOR_ITEM_PLACING] = TO(NEW) | TO(DONE),
    [COORDINATOR_ITEM_QUEUED] = TO(FLYING) | TO(RETRYING) | TO(DONE),
    [COORDINATOR_ITEM_FLYING] = TO(QUEUED) | TO(RETRYING) | TO(DONE),
    [COORDINATOR_ITEM_RETRYING] = TO(NEW) | TO(DONE),
    [COORDINATOR_ITEM_DONE] = 0,
};

void coordinator_item_set_state(struct coordinator_item *item, enum coordinator_item_state state)
{
    assert(transitions[item->state] & (1u << state));
    item->state = state;
}

struct proto_status *coordinator_item_fail(struct coordinator_item *item)
{
    if (!item->failure)
        item->failure = coordinator_alloc(sizeof(*item->failure));
    return item->failure;
}

// ---- the end of an item -------------------------------------------------------------------------

static void stop_appending(struct coordinator_item *item, struct coordinator_session *s)
{
    if (s && s->appending == item)
        s->appending = NULL;
}

void coordinator_item_finish(struct coordinator_item *item)
{
    struct coordinator_attend *a = item->attend;
    struct coordinator *c = a->c;
    struct coordinator_session *s = item->s ? item->s : coordinator_session_find(c, item->session);
    bool shared = item->s != NULL, appended = s && s->appending == item;
    if (shared && item->append)
        s->writing--;
    coordinator_item_set_state(item, COORDINATOR_ITEM_DONE);
    item->s = NULL;
    item->plan = NULL;
    stop_appending(item, s);
    if (s && item->append && item->failure && item->write)
        s->untidy = true;
    if (!item->failure && s) {
        item->length = coordinator_session_layer_length(s, item->layer);
        item->plan_digest = common_mix64(item->digest ^ item->plan_digest);
        s->steps++;
        s->last_used_ns = common_clock_ns();
        c->count_steps++;
        if (item->look || item->masses || a->want_trace)
            coordinator_watch_step(item, s);
    }
    c->items--;
    if (!--a->left)
        coordinator_attend_answer(a, COMMON_INTERNAL, "");
    coordinator_attend_unref(a);
    if (shared)
        coordinator_session_unshare(s);
    else if (appended)
        coordinator_scheduler_pump(s);
}

void coordinator_item_stop(struct coordinator_item *item, enum common_code code, const char *text)
{
    struct coordinator *c = item->attend->c;
    struct coordinator_session *s = item->s ? item->s : coordinator_session_find(c, item->session);
    if (item->state == COORDINATOR_ITEM_DONE || item->state == COORDINATOR_ITEM_PLACING || item->in_frames) {
        item->again = false; // it ends when what it waits for comes back
        return;
    }
    if (item->state == COORDINATOR_ITEM_WAITING && coordinator_list_remove(&s->waiting, item))
        s->n_waiting--;
    else if (item->state == COORDINATOR_ITEM_RETRYING)
        coordinator_list_remove(&c->retries, item);
    else if (item->state == COORDINATOR_ITEM_QUEUED && !coordinator_list_remove(&item->plan->small, item))
        coordinator_list_remove(&item->plan->big, item);
    proto_status_set(coordinator_item_fail(item), code, "", "%s", text);
    coordinator_item_finish(item);
}

// ---- waiting and trying again -------------------------------------------------------------------

static void wait_in(struct coordinator_session *s, struct coordinator_item *item)
{
    if (s->n_waiting >= COORDINATOR_WAITING_MAX) {
        proto_status_set(coordinator_item_fail(item), COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                         "%u steps wait for this session already: try again", s->n_waiting);
        coordinator_item_finish(item);
        return;
    }
    coordinator_item_set_state(item, COORDINATOR_ITEM_WAITING);
    s->n_waiting++;
    if (s->appending == item && s->waiting.head) { // it has had its turn: the others wait for it
        item->next = s->waiting.head;
        s->waiting.head = item;
    } else {
        coordinator_list_push(&s->waiting, item);
    }
}

static void try_again(struct coordinator_item *item)
{
    struct coordinator *c = item->attend->c;
    struct coordinator_session *s = item->s;
    uint32_t shift = item->attempt < 6 ? item->attempt : 6;
    uint64_t delay = RETRY_FIRST_NS << shift;
    coordinator_item_set_state(item, COORDINATOR_ITEM_RETRYING);
    item->attempt++;
    item->again = false;
    item->plan = NULL;
    item->s = NULL;
    item->retry_at_ns = common_clock_after(delay < RETRY_MOST_NS ? delay : RETRY_MOST_NS);
    coordinator_list_push(&c->retries, item);
    c->count_retries++;
    if (!c->retry_runs)
        common_timer_start(c->retry, RETRY_FIRST_NS, false);
    c->retry_runs = true;
    if (s && item->append)
        s->writing--;
    if (s)
        coordinator_session_unshare(s);
}

static void retry_timer(void *arg)
{
    struct coordinator *c = arg;
    uint64_t now = common_clock_ns();
    struct coordinator_item_list all = c->retries;
    c->retries = (struct coordinator_item_list){0};
    coordinator_items_batch_begin(c);
    for (struct coordinator_item *item; (item = coordinator_list_pop(&all));) {
        if (item->retry_at_ns > now && !c->stopping) {
            coordinator_list_push(&c->retries, item);
            continue;
        }
        coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
        coordinator_item_run(item);
    }
    coordinator_items_batch_end(c);
    c->retry_runs = c->retries.head != NULL;
    if (c->retry_runs)
        common_timer_start(c->retry, RETRY_FIRST_NS, false);
}

// ---- may it go? ---------------------------------------------------------------------------------

static bool refuse(struct coordinator_item *item, enum common_code code, const char *reason, const char *text)
{
    proto_status_set(coordinator_item_fail(item), code, reason, "%s", text);
    item->failure->session = item->session;
    item->failure->layer = item->layer;
    return false;
}

// Something below `wanted` is not committed: says what, in the words that help.
static bool refuse_position(struct coordinator_item *item, struct coordinator_session *s, uint64_t length,
                            uint64_t wanted)
{
    const struct coordinator_rangeset *set = &s->layers[item->layer];
    struct proto_status status;
    if (s->missing &&
        coordinator_session_missing(s, length, wanted - length, item->layer, &status) != COMMON_OK) {
        *coordinator_item_fail(item) = status; // who is away may have more rows than we know
        return false;
    }
    char text[COMMON_ERROR_BYTES];
    if (coordinator_rangeset_end(set) >= wanted) {
        struct proto_range hole = {.first = length, .count = 0};
        coordinator_rangeset_missing(set, length, coordinator_rangeset_end(set) - length, &hole, 1);
        snprintf(text, sizeof(text),
                 "tokens [%" PRIu64 ", %" PRIu64
                 ") of layer %u are not committed: attach and commit them first",
                 hole.first, hole.first + hole.count, item->layer);
        refuse(item, COMMON_FAILED_PRECONDITION, "HOLE", text);
        proto_status_add_range(item->failure, hole.first, hole.count);
        return false;
    }
    if (item->append && wanted == item->first)
        snprintf(text, sizeof(text), "an append at %" PRIu64 " leaves a gap: layer %u has %" PRIu64 " tokens",
                 wanted, item->layer, length);
    else if (item->asked_visible)
        snprintf(text, sizeof(text), "keys below %" PRIu64 " were asked for: layer %u has %" PRIu64 " tokens",
                 wanted, item->layer, length);
    else
        snprintf(text, sizeof(text), "position %" PRIu64 " is past the end: layer %u has %" PRIu64 " tokens",
                 wanted - 1, item->layer, length);
    return refuse(item, COMMON_OUT_OF_RANGE, "", text);
}

static uint64_t visible_of(const struct coordinator_item *item)
{
    return item->asked_visible ? item->asked_visible : item->first + item->rows;
}

// Whether what it looks at may come to be by appends that are ahead of it.
static bool looks_ahead(const struct coordinator_item *item, const struct coordinator_session *s)
{
    return visible_of(item) > coordinator_session_layer_length(s, item->layer);
}

static bool check_positions(struct coordinator_item *item, struct coordinator_session *s)
{
    uint64_t length = coordinator_session_layer_length(s, item->layer), after = length;
    if (item->append) {
        if (item->first > length)
            return refuse_position(item, s, length, item->first);
        if (s->unknown && item->first + item->rows > length && s->missing)
            for (uint32_t i = coordinator_layout_lower(&s->layout, length / s->layout.chunk_tokens);
                 i < s->layout.n; i++)
                if (!s->layout.chunks[i].known) // its holder may have rows past what we know of
                    return refuse_position(
                        item, s, length, (uint64_t)(s->layout.chunks[i].index + 1) * s->layout.chunk_tokens);
        if (!coordinator_rangeset_room(&s->layers[item->layer], item->first, item->rows))
            return refuse(item, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                          "the layer has too many separate ranges: fill holes first");
        after = coordinator_rangeset_length_with(&s->layers[item->layer], item->first, item->rows);
    }
    item->visible = visible_of(item);
    item->length_before = length;
    return item->visible <= after || refuse_position(item, s, after, item->visible);
}

static void now_placed(void *arg, struct coordinator_session *s, const struct proto_status *failure)
{
    struct coordinator_item *item = arg;
    struct coordinator *c = item->attend->c;
    (void)s;
    if (failure || !item->attend->request) { // the call was answered meanwhile
        if (failure)
            *coordinator_item_fail(item) = *failure;
        else
            refuse(item, COMMON_CANCELLED, "", "the caller is gone");
        coordinator_item_finish(item);
        return;
    }
    coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
    coordinator_items_batch_begin(c);
    coordinator_item_run(item);
    coordinator_items_batch_end(c);
}

enum verdict { GO, REFUSED, ELSEWHERE }; // ELSEWHERE: it waits, or has ended already and is gone

// Everything that must hold before the item may be queued.
static enum verdict ready(struct coordinator_item *item, struct coordinator_session *s, bool pumped)
{
    if (item->incarnation && item->incarnation != s->incarnation) {
        refuse(item, COMMON_ABORTED, "OLD_INCARNATION",
               "the session was truncated meanwhile: ask for its state and try again");
        return REFUSED;
    }
    if (coordinator_recovering(s)) {
        refuse(item, COMMON_UNAVAILABLE, "MISSING_RANGE",
               "its workers have not come back yet after a restart of the coordinator");
        try_again(item);
        return ELSEWHERE;
    }
    bool behind = !pumped && s->appending != item && (s->appending || s->waiting.head) &&
                  (item->append || looks_ahead(item, s));
    if (behind || !coordinator_session_open(s)) {
        wait_in(s, item);
        return ELSEWHERE;
    }
    if (!check_positions(item, s))
        return REFUSED;
    if (item->append) {
        uint64_t ct = s->layout.chunk_tokens, from = item->first / ct,
                 to = (item->first + item->rows - 1) / ct;
        s->appending = item;
        if (!coordinator_placed(s, from, to)) {
            coordinator_item_set_state(item, COORDINATOR_ITEM_PLACING);
            coordinator_place(s, from, to, false, now_placed, item);
            return ELSEWHERE;
        }
    }
    if (s->missing && coordinator_session_missing(s, 0, item->visible, item->layer,
                                                  coordinator_item_fail(item)) != COMMON_OK)
        return REFUSED;
    free(item->failure); // of an earlier attempt, or "nothing is missing"
    item->failure = NULL;
    uint64_t tokens, sum;
    if (!coordinator_layout_cover(&s->layout, item->visible, &tokens, &sum)) {
        refuse(item, COMMON_INTERNAL, "", "committed tokens have no place");
        return REFUSED;
    }
    return GO;
}

static void queue(struct coordinator_item *item, struct coordinator_session *s)
{
    struct proto_status status;
    struct coordinator_plan *plan = coordinator_plan_of(s, &status);
    if (!plan) {
        *coordinator_item_fail(item) = status;
        coordinator_item_finish(item);
        return;
    }
    if (plan->state == COORDINATOR_PLAN_RETIRED) { // a member went at this moment
        proto_status_set(coordinator_item_fail(item), COMMON_UNAVAILABLE, "WORKER_LOST",
                         "a worker went away");
        try_again(item);
        return;
    }
    coordinator_session_share(s);
    item->s = s;
    item->plan = plan;
    item->look = coordinator_watch_wants(s->watch, item->layer);
    s->writing += item->append;
    if (item->append && !item->write)
        item->write = ++s->write;
    const Banyan__Pb__Spec *spec = s->spec;
    coordinator_slabs_cut(item->rows, spec->kv_heads, spec->q_heads / spec->kv_heads, spec->v_dim,
                          COORDINATOR_SLAB_BYTES, &item->slabs);
    item->next_slab = 0;
    item->slabs_left = item->slabs.n;
    item->bands_left = item->append ? item->slabs.n / item->slabs.across : 0;
    item->digest = 0;
    item->plan_digest = plan->digest;
    coordinator_item_set_state(item, COORDINATOR_ITEM_QUEUED);
    coordinator_plan_enqueue(plan, item);
}

static void run(struct coordinator_item *item, bool pumped)
{
    struct coordinator_session *s = coordinator_session_find(item->attend->c, item->session);
    if (!s) {
        coordinator_session_unknown(item->session, coordinator_item_fail(item));
        item->failure->session = item->session;
        coordinator_item_finish(item);
        return;
    }
    enum verdict verdict = ready(item, s, pumped);
    if (verdict == GO)
        queue(item, s);
    else if (verdict == REFUSED)
        coordinator_item_finish(item);
}

void coordinator_item_run(struct coordinator_item *item)
{
    run(item, false);
}

void coordinator_scheduler_pump(struct coordinator_session *s)
{
    if (s->pumping || !s->waiting.head)
        return;
    s->pumping = true;
    coordinator_items_batch_begin(s->c);
    while (s->waiting.head && coordinator_session_open(s)) {
        struct coordinator_item *item = s->waiting.head;
        if (s->appending && s->appending != item && (item->append || looks_ahead(item, s)))
            break;
        coordinator_list_pop(&s->waiting);
        s->n_waiting--;
        coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
        run(item, true);
    }
    s->pumping = false;
    coordinator_items_batch_end(s->c);
}

void coordinator_scheduler_session_gone(struct coordinator_session *s)
{
    s->appending = NULL;
    for (struct coordinator_item *item; (item = coordinator_list_pop(&s->waiting));) {
        s->n_waiting--;
        refuse(item, COMMON_NOT_FOUND, "", "the session was deleted");
        coordinator_item_finish(item);
    }
}

// ---- what comes back ----------------------------------------------------------------------------

void coordinator_item_acknowledge(struct coordinator_item *item)
{
    struct coordinator_session *s = item->s;
    if (!coordinator_rangeset_add(&s->layers[item->layer], item->first, item->rows, NULL)) {
        refuse(item, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
               "the layer has too many separate ranges: fill holes first");
        return;
    }
    stop_appending(item, s);
    coordinator_place_ahead(s, item->first + item->rows);
    coordinator_scheduler_pump(s);
}

static void weighed(void *arg, struct coordinator_masses *masses)
{
    struct coordinator_item *item = arg;
    struct coordinator_attend *a = item->attend;
    size_t values = masses->rows * masses->heads * coordinator_masses_columns(masses);
    uint64_t took_ns = common_clock_ns() - item->weighed_ns;
    item->masses = masses;
    a->mass_ns = took_ns > a->mass_ns ? took_ns : a->mass_ns;
    bool fits = a->mass_values + values <= PROTO_MASS_CALL_MAX &&
                a->o_bytes + a->lse_bytes + (a->mass_values + values) * sizeof(float) <= PROTO_PAYLOAD_MAX;
    if (masses->failure.code == COMMON_OK && !fits)
        proto_status_set(&masses->failure, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                         "the call asks for too many masses: ask for fewer bins, rows or items at a time");
    else if (masses->failure.code == COMMON_OK)
        a->mass_values += values;
    coordinator_item_landed(item);
}

// All of it has been answered but for where its rows looked: a computation beside it, for which it stays in
// flight. A little time is left for the answer, which stands without masses, too.
static void weigh(struct coordinator_item *item)
{
    uint64_t left = common_clock_left(item->attend->deadline_ns),
             spare = left / 8 < MASS_SPARE_NS ? left / 8 : MASS_SPARE_NS;
    struct coordinator_mass_ask ask = {.s = item->s,
                                       .layer = item->layer,
                                       .rows = item->rows,
                                       .bins = item->mass_bins,
                                       .heads = item->mass_heads,
                                       .first = item->first,
                                       .visible = item->visible,
                                       .deadline_ns = common_clock_after(left - spare),
                                       .q = item->q,
                                       .lse = coordinator_item_lse(item)};
    item->in_frames++;
    item->weighed_ns = common_clock_ns();
    coordinator_mass_start(&ask, weighed, item);
}

void coordinator_item_landed(struct coordinator_item *item)
{
    item->in_frames--;
    if (item->in_frames)
        return;
    bool over = !item->attend->request; // answered: its deadline passed, or its caller is gone
    if (item->mass_bins && !item->masses && !item->slabs_left && !item->failure && !over) {
        weigh(item);
        return;
    }
    if (item->failure && item->again && !over) {
        if (item->state == COORDINATOR_ITEM_QUEUED)
            coordinator_list_remove(&item->plan->big, item);
        try_again(item);
    } else if (item->failure || over || !item->slabs_left) {
        if (item->state == COORDINATOR_ITEM_QUEUED)
            coordinator_list_remove(&item->plan->big, item);
        if (over && item->slabs_left)
            refuse(item, COMMON_DEADLINE_EXCEEDED, "", "the deadline has passed");
        coordinator_item_finish(item);
    }
}

void coordinator_scheduler_plan_ready(struct coordinator_plan *plan)
{
    coordinator_plan_pump(plan);
}

void coordinator_scheduler_plan_retired(struct coordinator_plan *plan)
{
    struct coordinator_item_list lists[2] = {plan->small, plan->big};
    plan->small = plan->big = (struct coordinator_item_list){0};
    for (int i = 0; i < 2; i++) {
        for (struct coordinator_item *item; (item = coordinator_list_pop(&lists[i]));) {
            refuse(item, COMMON_UNAVAILABLE, "WORKER_LOST", "a worker went away");
            item->again = true;
            if (item->in_frames)
                coordinator_item_set_state(item, COORDINATOR_ITEM_FLYING); // goes again when they are back
            else
                try_again(item);
        }
    }
}

// ---- deadlines ----------------------------------------------------------------------------------

static void deadline_timer(void *arg)
{
    struct coordinator *c = arg;
    uint64_t now = common_clock_ns();
    for (struct coordinator_attend *a = c->attends, *next; a; a = next) {
        next = a->next;
        if (a->deadline_ns <= now)
            coordinator_attend_answer(a, COMMON_DEADLINE_EXCEEDED, "the deadline has passed");
    }
    if (!c->attends) {
        common_timer_stop(c->deadlines);
        c->deadlines_run = false;
    }
}

enum common_code coordinator_scheduler_init(struct coordinator *c)
{
    enum common_code code = common_timer_new(c->loop, deadline_timer, c, &c->deadlines);
    return code == COMMON_OK ? common_timer_new(c->loop, retry_timer, c, &c->retry) : code;
}

void coordinator_scheduler_stop(struct coordinator *c)
{
    while (c->attends)
        coordinator_attend_answer(c->attends, COMMON_UNAVAILABLE, "the coordinator is stopping");
    coordinator_watch_stop(c);
    common_timer_stop(c->deadlines);
    common_timer_stop(c->retry);
}

void coordinator_scheduler_fini(struct coordinator *c)
{
    common_timer_free(c->deadlines);
    common_timer_free(c->retry);
    coordinator_frames_free(c);
}
