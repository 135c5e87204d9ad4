// SPDX-License-Identifier: Apache-2.0
// The link's states:
//
//              connected             accepted              active
//     AWAY ───────────────▶ ASKING ────────────▶ JOINING ───────────▶ MEMBER
//      ▲ ▲                  │ ▲ ▲ ▲               │ │                  │ │
//      │ └── link lost ─────┘ │ │ └── refused ────┘ │                  │ │
//      │                      │ └─── refused ───────│──────────────────┘ │   (a heartbeat was: register again)
//      │                      │ refused: after a pause                   │
//      └──────── link lost ─────────────────────────┴────────────────────┘
//
// JOINING: the coordinator reads what this worker holds, and sends its layouts. Meanwhile the worker beats,
// at first every 5 ms, so that it soon finds out that it is active.
//
// A heartbeat without an answer is no refusal: the coordinator may have been stopped for a while and has
// this worker still, or this process was. To register would end the plans and steps that it takes part in,
// so it beats again; a coordinator that has lost it, or a new one, says so.
//
// Nor is it the end of the link: a coordinator that is stopped breaks none. But something on the way may have stopped passing
// on what is sent, and goes on acknowledging it. So while calls are not answered a second link, the spare, is dialled beside
// the first. If the coordinator answers on that one, and a call that was made afterwards is not answered on the first, the
// spare takes its place. If the first one speaks again, the spare is closed.
//
// Of several endpoints each has such a machine, and the term is common to all: one coordinator serves. When another one
// does, its term, which is higher, ends the membership with the first.
#include "worker/core/membership.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "proto/rpc/endpoint.h"
#include "proto/rpc/rpc.h"

#define CALL_NS        (5 * COMMON_NS_PER_S)
#define PAUSE_FIRST_NS (50 * COMMON_NS_PER_MS)
#define PAUSE_MAX_NS   (2 * COMMON_NS_PER_S)
#define JOIN_FIRST_NS  (5 * COMMON_NS_PER_MS)
#define BEAT_MIN_NS    (10 * COMMON_NS_PER_MS)
#define BEAT_MAX_NS    (60 * COMMON_NS_PER_S)
#define WATCH_NS       (20 * COMMON_NS_PER_MS)  // between looks at the clock while there is work
#define STALL_NS       (100 * COMMON_NS_PER_MS) // without work: a loop may be so late when it is busy
#define TELL_NS        (1 * COMMON_NS_PER_S)    // between two lines about why it cannot join
#define TELL_AGAIN_NS  (30 * COMMON_NS_PER_S)   // the same reason
#define SPARE_AFTER    2                        // heartbeats in a row that were not answered; or one Register

enum membership_state {
    MEMBERSHIP_AWAY,
    MEMBERSHIP_ASKING,
    MEMBERSHIP_JOINING,
    MEMBERSHIP_MEMBER,
    MEMBERSHIP_STATES
};

#define TO(state) (1u << MEMBERSHIP_##state)
static const struct common_machine membership_machine = {
    .name = "membership",
    .n = MEMBERSHIP_STATES,
    .states = {"away", "asking", "joining", "member"},
    .next = {[MEMBERSHIP_AWAY] = TO(AWAY) | TO(ASKING),
             [MEMBERSHIP_ASKING] = TO(AWAY) | TO(JOINING),
             [MEMBERSHIP_JOINING] = TO(AWAY) | TO(ASKING) | TO(MEMBER),
             [MEMBERSHIP_MEMBER] = TO(AWAY) | TO(ASKING)},
};
#undef TO

struct leg { // a link, and its channel
    struct worker_membership *m;
    struct proto_channel *channel; // NULL: none
    uint64_t linked_ns;            // since when it is linked; 0: it is not
};

struct worker_membership {
    struct worker_membership *next; // of the list of endpoints
    struct worker_membership_options options;
    struct common_loop *loop;
    char *strings[9]; // copies, freed at the end; the last one may be NULL
    char public[PROTO_ENDPOINT_MAX], edge[PROTO_ENDPOINT_MAX]; // as they are advertised
    enum membership_state state;
    struct leg legs[2], *leg;   // the one that is used; the other is the spare
    struct common_timer *timer; // ASKING: the next try; MEMBER: the next heartbeat
    uint64_t instance, worker, pause_ns, beat_ns;
    uint64_t join_ns;    // JOINING: until the next heartbeat
    uint64_t beat_at_ns; // when the next heartbeat is due
    uint64_t due_ns;     // when the timer was to run; 0: it watches nothing
    bool watches;        // it looks at the clock every WATCH_NS, too
    uint64_t steps;      // of the last heartbeat
    uint64_t opened_ns,
        stalled_ns;      // since when it is there; for how long its loop did not run, by count_stall
    bool calling;        // one call at a time
    uint64_t called_ns;  // when the last one was made
    uint32_t unanswered; // calls in a row
    bool silent;         // so was that heartbeats are not answered
    uint64_t told_ns;    // when a reason why it cannot join was logged; 0: not since it was a member
    char told[COMMON_ERROR_BYTES];
};

static void membership_set_state(struct worker_membership *m, enum membership_state state)
{
    common_machine_move(&membership_machine, m->state, state);
    m->state = state;
}

static void see_term(struct worker_membership *m, uint64_t term)
{
    if (term > *m->options.term)
        *m->options.term = term;
}

// The answer was on its way for a while: the count is behind the coordinator's by that, never ahead of it, and no ticket
// ends too early.
static void see_clock(struct worker_membership *m, uint64_t clock_ns)
{
    if (clock_ns && m->options.clock_zero_ns)
        *m->options.clock_zero_ns = clock_ns - common_clock_ns();
}

static void ask(struct worker_membership *m);

// Another try, whose lateness is ignored.
static void try_after(struct worker_membership *m, uint64_t ns)
{
    m->due_ns = 0;
    common_timer_start(m->timer, ns, false);
}

static void ask_later(struct worker_membership *m)
{
    try_after(m, m->pause_ns);
    m->pause_ns = m->pause_ns * 2 < PAUSE_MAX_NS ? m->pause_ns * 2 : PAUSE_MAX_NS;
}

// Until the next heartbeat, or the next look at the clock.
static void wait_for_beat(struct worker_membership *m)
{
    uint64_t now = common_clock_ns(), left = m->beat_at_ns > now ? m->beat_at_ns - now : 0;
    if (m->watches && left > WATCH_NS)
        left = WATCH_NS;
    common_timer_start(m->timer, left, false);
    m->due_ns = now + left;
}

static void beat_later(struct worker_membership *m)
{
    uint64_t after = m->beat_ns;
    if (m->state == MEMBERSHIP_JOINING && m->join_ns < after) {
        after = m->join_ns;
        m->join_ns *= 2;
    }
    m->beat_at_ns = common_clock_after(after);
    wait_for_beat(m);
}

// At once, another reason a second later, and the same one twice a minute.
static void tell_why(struct worker_membership *m, const char *why)
{
    uint64_t now = common_clock_ns();
    bool same = strcmp(why, m->told) == 0;
    if (m->told_ns && now - m->told_ns < (same ? TELL_AGAIN_NS : TELL_NS))
        return;
    m->told_ns = now;
    snprintf(m->told, sizeof m->told, "%s", why);
    common_log_warn("cannot join: %s; trying again (coordinator=%s)", why, m->options.coordinator);
}

static void joined(struct worker_membership *m)
{
    COMMON_FAILPOINT("worker_joined");
    membership_set_state(m, MEMBERSHIP_MEMBER);
    m->told_ns = 0;
    common_log_info("registered coordinator=%s term=%" PRIu64, m->options.coordinator, *m->options.term);
    if (m->options.registered)
        m->options.registered(m->options.arg);
}

static void refused(struct worker_membership *m, const struct proto_reply *reply)
{
    char why[COMMON_ERROR_BYTES];
    snprintf(why, sizeof why, "the coordinator has not accepted this worker yet: %.300s",
             reply->code != COMMON_OK ? reply->text : "its term is over");
    tell_why(m, why);
    ask_later(m);
}

static bool spare_instead(struct worker_membership *m, const struct proto_reply *reply);

static void asked(void *arg, const struct proto_reply *reply)
{
    COMMON_FAILPOINT("register_answered");
    struct worker_membership *m = arg;
    m->calling = false;
    if (spare_instead(m, reply))
        return;
    if (reply->code == COMMON_CANCELLED || m->state != MEMBERSHIP_ASKING) {
        if (m->state == MEMBERSHIP_ASKING && reply->code != COMMON_CANCELLED)
            ask_later(m);
        return;
    }
    const Banyan__Pb__RegisterReply *body =
        reply->code == COMMON_OK ? (const Banyan__Pb__RegisterReply *)reply->message->body : NULL;
    if (!body || body->worker == 0 || body->term < *m->options.term) {
        refused(m, reply);
        return;
    }
    see_term(m, body->term);
    see_clock(m, body->clock_ns);
    m->worker = body->worker;
    m->beat_ns = body->heartbeat_ns < BEAT_MIN_NS   ? BEAT_MIN_NS
                 : body->heartbeat_ns > BEAT_MAX_NS ? BEAT_MAX_NS
                                                    : body->heartbeat_ns;
    m->pause_ns = PAUSE_FIRST_NS;
    m->join_ns = JOIN_FIRST_NS;
    membership_set_state(m, MEMBERSHIP_JOINING);
    if (!body->joining)
        joined(m);
    beat_later(m);
}

static void membership_call(struct worker_membership *m, uint32_t method, const ProtobufCMessage *body,
                            uint64_t time_ns, proto_reply_fn done)
{
    struct proto_call pc = {
        .method = method, .body = body, .deadline_ns = common_clock_after(time_ns), .done = done, .arg = m};
    uint64_t id;
    m->called_ns = common_clock_ns();
    m->calling = proto_channel_call(m->leg->channel, &pc, &id, NULL) == COMMON_OK;
    if (!m->calling)
        try_after(m, PAUSE_MAX_NS); // no memory: later
}

static void ask(struct worker_membership *m)
{
    COMMON_FAILPOINT("register_sent");
    const struct worker_membership_options *o = &m->options;
    Banyan__Pb__RegisterRequest body = BANYAN__PB__REGISTER_REQUEST__INIT;
    body.name = m->strings[1];
    body.host = m->strings[2];
    body.endpoint = m->public;
    body.edge_endpoint = m->edge;
    body.kernel = m->strings[5];
    body.instance = m->instance;
    body.capacity_bytes = o->capacity_bytes;
    body.bandwidth = o->bandwidth;
    body.threads = o->threads;
    body.cores = o->cores;
    body.seen_term = *o->term;
    body.engine = m->strings[6];
    body.control = PROTO_CONTROL_VERSION;
    body.version = (char *)BANYAN_VERSION;
    body.no_device = m->strings[7];
    if (o->group) {
        body.engine_algorithm = (char *)o->group->algorithm;
        body.group = (char *)o->group->id;
        body.group_rank = o->group->rank;
        body.group_size = o->group->size;
    }
    membership_call(m, BANYAN__PB__METHOD__METHOD_REGISTER, &body.base, CALL_NS, asked);
}

static void beat(struct worker_membership *m);

static void beaten(void *arg, const struct proto_reply *reply)
{
    struct worker_membership *m = arg;
    m->calling = false;
    if (spare_instead(m, reply))
        return;
    if (m->state == MEMBERSHIP_ASKING) {
        ask(m); // the link was lost and made again meanwhile
        return;
    }
    if (m->state == MEMBERSHIP_AWAY || reply->code == COMMON_CANCELLED)
        return;
    if (reply->code == COMMON_DEADLINE_EXCEEDED) {
        if (!m->silent)
            common_log_warn("the coordinator does not answer heartbeats: sending them again (coordinator=%s)",
                            m->options.coordinator);
        m->silent = true;
        beat(m);
        return;
    }
    m->silent = false;
    const Banyan__Pb__HeartbeatReply *body =
        reply->code == COMMON_OK ? (const Banyan__Pb__HeartbeatReply *)reply->message->body : NULL;
    if (body && body->term == *m->options.term) {
        see_clock(m, body->clock_ns);
        if (m->state == MEMBERSHIP_JOINING && !body->joining)
            joined(m);
        if (body->measure && m->options.measure)
            m->options.measure(m->options.arg);
        beat_later(m);
        return;
    }
    if (body)
        see_term(m, body->term);
    if (m->state == MEMBERSHIP_JOINING) { // most often: the advertised address cannot be dialled
        char why[COMMON_ERROR_BYTES];
        snprintf(why, sizeof why,
                 "the coordinator lost this worker before it was active: it must be able to reach "
                 "edge=%.100s (%.150s)",
                 m->edge, body ? "another term" : reply->text);
        tell_why(m, why);
    }
    membership_set_state(m, MEMBERSHIP_ASKING); // forgotten, or overtaken
    ask(m);
}

static void beat(struct worker_membership *m)
{
    struct worker_membership_stats stats = {0};
    m->options.stats(m->options.arg, &stats);
    m->watches = stats.steps != m->steps;
    m->steps = stats.steps;
    Banyan__Pb__HeartbeatRequest body = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    body.worker = m->worker;
    body.term = *m->options.term;
    body.used_bytes = stats.used_bytes;
    body.chunks = stats.chunks;
    body.steps = stats.steps;
    body.last_compute_ns = stats.last_compute_ns;
    body.engine_lost = stats.engine_lost;
    body.planned_ns = stats.planned_ns;
    body.taken_ns = stats.taken_ns;
    body.stalled_ns = m->stalled_ns;
    body.up_ns = common_clock_ns() - m->opened_ns;
    body.store_bytes = stats.store_bytes;
    body.store_refused = stats.store_refused;
    body.store_damaged = stats.store_damaged;
    body.cold_bytes = stats.cold.bytes;
    body.cold_evicted = stats.cold.evicted;
    body.cold_loaded = stats.cold.loaded;
    body.cold_loaded_bytes = stats.cold.loaded_bytes;
    body.cold_load_ns = stats.cold.load_ns;
    body.n_lacking = stats.n_lacking;
    body.lacking = stats.lacking;
    body.n_edges_down = stats.n_edges_down;
    body.edges_down = stats.edges_down;
    Banyan__Pb__Limit limits[PROTO_WORKER_LIMITS_MAX], *limit_pointers[PROTO_WORKER_LIMITS_MAX];
    for (uint32_t i = 0; i < stats.n_limits; i++) {
        const struct proto_limit_use *use = &stats.limits[i];
        limits[i] = (Banyan__Pb__Limit)BANYAN__PB__LIMIT__INIT;
        limits[i].name = (char *)use->name;
        limits[i].flag = (char *)(use->flag ? use->flag : "");
        limits[i].used = use->used;
        limits[i].max = use->max;
        limits[i].refused = use->refused;
        limit_pointers[i] = &limits[i];
    }
    body.n_limits = stats.n_limits;
    body.limits = limit_pointers;
    membership_call(m, BANYAN__PB__METHOD__METHOD_HEARTBEAT, &body.base, 3 * m->beat_ns, beaten);
}

// What was due a while ago and runs now: this process was stopped, or had no processor, or its loop was busy. With work
// the clock is looked at so often that no stop of 2 * WATCH_NS is missed: a cgroup that has used up its quota stands still
// for up to 100 ms at a time, and what waits for it then is not being computed, so its pace does not show it. The stop
// began before the timer was due, by half of WATCH_NS on average. Without work there are heartbeats alone, whose lateness
// is some two thirds of the time.
static void count_stall(struct worker_membership *m)
{
    uint64_t now = common_clock_ns(), late = m->due_ns && now > m->due_ns ? now - m->due_ns : 0;
    if (m->watches && late > WATCH_NS)
        m->stalled_ns += late + WATCH_NS / 2;
    else if (!m->watches && late > STALL_NS)
        m->stalled_ns += late * 3 / 2;
    m->due_ns = 0;
}

static void membership_tick(void *arg)
{
    struct worker_membership *m = arg;
    count_stall(m);
    if (m->calling)
        return;
    if (m->state == MEMBERSHIP_ASKING)
        ask(m);
    else if (m->state != MEMBERSHIP_AWAY && common_clock_ns() < m->beat_at_ns)
        wait_for_beat(m);
    else if (m->state != MEMBERSHIP_AWAY)
        beat(m);
}

// An endpoint as others are to dial it: worker/daemon/address.h.
static void advertise(const struct worker_membership *m, const char *listens, bool keep,
                      char out[PROTO_ENDPOINT_MAX])
{
    struct proto_endpoint endpoint;
    snprintf(out, PROTO_ENDPOINT_MAX, "%s", listens);
    if (proto_endpoint_parse(listens, &endpoint, NULL) != COMMON_OK || endpoint.kind == PROTO_ENDPOINT_UNIX)
        return;
    if (m->strings[8]) {
        if (keep && proto_endpoint_is_loopback(&endpoint))
            return;
        snprintf(endpoint.host, sizeof endpoint.host, "%s", m->strings[8]);
    } else if (!proto_endpoint_is_any(&endpoint)) {
        return;
    } else if (!proto_channel_own_host(m->leg->channel, endpoint.host)) {
        strcpy(endpoint.host, "127.0.0.1"); // over a unix socket: the coordinator is here
    }
    proto_endpoint_format(&endpoint, out);
}

static void advertise_both(struct worker_membership *m)
{
    char before[PROTO_ENDPOINT_MAX];
    strcpy(before, m->edge);
    advertise(m, m->strings[3], m->options.keep_endpoint, m->public);
    advertise(m, m->strings[4], false, m->edge);
    if (strcmp(before, m->edge) == 0)
        return;
    struct proto_endpoint edge;
    bool near = proto_endpoint_parse(m->edge, &edge, NULL) == COMMON_OK && proto_endpoint_is_loopback(&edge);
    common_log_info("advertising edge=%s listen=%s%s", m->edge, m->public,
                    near ? ": workers on other hosts cannot dial it (--advertise HOST)" : "");
}

static struct leg *spare_of(struct worker_membership *m)
{
    return m->leg == &m->legs[0] ? &m->legs[1] : &m->legs[0];
}

static void link_failed(void *arg, const char *why)
{
    const struct leg *leg = arg;
    if (leg == leg->m->leg)
        tell_why(leg->m, why);
}

static void linked(struct worker_membership *m)
{
    membership_set_state(m, MEMBERSHIP_ASKING);
    m->pause_ns = PAUSE_FIRST_NS;
    advertise_both(m);
    if (!m->calling)
        ask(m);
}

static void link_state(void *arg, bool connected)
{
    struct leg *leg = arg;
    struct worker_membership *m = leg->m;
    leg->linked_ns = connected ? common_clock_ns() : 0;
    if (leg != m->leg)
        return;
    if (!connected) {
        if (m->state == MEMBERSHIP_MEMBER || m->state == MEMBERSHIP_JOINING)
            common_log_warn("the link to the coordinator is lost: dialling again (coordinator=%s)",
                            m->options.coordinator);
        membership_set_state(m, MEMBERSHIP_AWAY);
        common_timer_stop(m->timer);
    } else if (m->state == MEMBERSHIP_AWAY) {
        linked(m);
    }
}

static enum common_code leg_open(struct leg *leg, struct common_error *err)
{
    const struct worker_membership *m = leg->m;
    struct proto_channel_options channel = {.name = m->strings[1],
                                            .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .secret = m->options.secret,
                                            .tls = m->options.tls,
                                            .peer_role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                            .state = link_state,
                                            .failed = link_failed,
                                            .state_arg = leg};
    leg->linked_ns = 0;
    return proto_channel_open(m->loop, m->strings[0], &channel, &leg->channel, err);
}

static void leg_close(struct leg *leg)
{
    proto_channel_close(leg->channel); // a call that ends now may begin another, which is refused
    leg->channel = NULL;
    leg->linked_ns = 0;
}

// No call is out. The first link is closed, and all starts over on the spare.
static void spare_take(struct worker_membership *m)
{
    struct leg *old = m->leg;
    common_log_warn(
        "the link to the coordinator carries nothing: switching to another one that works (coordinator=%s)",
        m->options.coordinator);
    m->leg = spare_of(m);
    leg_close(old);
    m->unanswered = 0;
    common_timer_stop(m->timer);
    membership_set_state(m, MEMBERSHIP_AWAY);
    linked(m);
}

// A call has ended. True: it was not answered, and the spare has taken over.
static bool spare_instead(struct worker_membership *m, const struct proto_reply *reply)
{
    struct leg *spare = spare_of(m);
    if (reply->code == COMMON_CANCELLED) // the link is being closed
        return false;
    if (reply->code != COMMON_DEADLINE_EXCEEDED || reply->status || m->state == MEMBERSHIP_AWAY) {
        m->unanswered = 0;
        leg_close(spare);
        return false;
    }
    if (spare->channel && spare->linked_ns && spare->linked_ns < m->called_ns) {
        spare_take(m);
        return true;
    }
    m->unanswered++;
    // A Register has more time than several heartbeats, and this worker is of no use while it waits.
    if ((m->unanswered >= SPARE_AFTER || m->state == MEMBERSHIP_ASKING) && !spare->channel)
        (void)leg_open(spare, NULL); // without memory: at the next one
    return false;
}

static enum common_code membership_open(struct common_loop *loop,
                                        const struct worker_membership_options *options,
                                        const char *coordinator, uint64_t instance,
                                        struct worker_membership **out, struct common_error *err)
{
    struct worker_membership *m = calloc(1, sizeof *m);
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    if (!m)
        return common_error_set(err, code, "the system has no memory");
    const char *given[9] = {coordinator,
                            options->name,
                            options->host,
                            options->endpoint,
                            options->edge_endpoint,
                            options->kernel,
                            options->engine ? options->engine : "stream",
                            options->no_device ? options->no_device : "",
                            options->advertise};
    m->options = *options;
    m->loop = loop;
    m->leg = &m->legs[0];
    m->legs[0].m = m->legs[1].m = m;
    m->pause_ns = PAUSE_FIRST_NS;
    m->opened_ns = common_clock_ns();
    m->instance = instance;
    for (int i = 0; i < 9; i++)
        if (given[i] && !(m->strings[i] = strdup(given[i]))) {
            common_error_set(err, code, "the system has no memory");
            goto fail;
        }
    snprintf(m->public, sizeof m->public, "%s", m->strings[3]);
    snprintf(m->edge, sizeof m->edge, "%s", m->strings[4]);
    m->options.coordinator = m->strings[0];
    code = common_timer_new(loop, membership_tick, m, &m->timer);
    if (code != COMMON_OK) {
        common_error_set(err, code, "cannot make a timer");
        goto fail;
    }
    code = leg_open(m->leg, err);
    if (code != COMMON_OK)
        goto fail;
    *out = m;
    return COMMON_OK;
fail:
    worker_membership_free(m);
    return code;
}

enum common_code worker_membership_new(struct common_loop *loop,
                                       const struct worker_membership_options *options,
                                       struct worker_membership **out, struct common_error *err)
{
    struct proto_endpoint_list list;
    struct worker_membership *first = NULL, **last = &first;
    uint64_t instance;
    enum common_code code = proto_endpoint_list_parse(options->coordinator, &list, err);
    if (code != COMMON_OK)
        return code;
    if (!common_random(&instance, sizeof instance))
        return common_error_set(err, COMMON_UNAVAILABLE, "cannot get random bytes for an instance");
    instance |= 1; // never 0
    for (uint32_t i = 0; i < list.n && code == COMMON_OK; i++) {
        code = membership_open(loop, options, list.endpoints[i], instance, last, err);
        if (code == COMMON_OK)
            last = &(*last)->next;
    }
    if (code != COMMON_OK)
        worker_membership_free(first);
    else
        *out = first;
    return code;
}

uint64_t worker_membership_instance(const struct worker_membership *m)
{
    return m ? m->instance : 0;
}

static const struct worker_membership *member_of(const struct worker_membership *first)
{
    for (const struct worker_membership *m = first; m; m = m->next)
        if (m->state == MEMBERSHIP_MEMBER)
            return m;
    return first;
}

const char *worker_membership_lacks(const struct worker_membership *first)
{
    static const char *const why[MEMBERSHIP_STATES] = {
        [MEMBERSHIP_AWAY] = "not connected to the coordinator",
        [MEMBERSHIP_ASKING] = "the coordinator has not accepted this worker yet",
        [MEMBERSHIP_JOINING] = "the coordinator is asking what this worker holds",
    };
    const struct worker_membership *furthest = first;
    for (const struct worker_membership *m = first; m; m = m->next)
        if (m->state > furthest->state)
            furthest = m;
    if (!furthest)
        return "this worker has no coordinator";
    return furthest->state != MEMBERSHIP_MEMBER ? why[furthest->state]
           : furthest->silent                   ? "the coordinator does not answer heartbeats"
                                                : NULL;
}

struct proto_channel *worker_membership_channel(const struct worker_membership *first)
{
    return member_of(first)->leg->channel;
}

const char *worker_membership_endpoint(const struct worker_membership *first)
{
    return member_of(first)->public;
}

const char *worker_membership_edge_endpoint(const struct worker_membership *first)
{
    return member_of(first)->edge;
}

void worker_membership_free(struct worker_membership *first)
{
    for (struct worker_membership *m = first, *next; m; m = next) {
        next = m->next;
        leg_close(&m->legs[0]);
        leg_close(&m->legs[1]);
        common_timer_free(m->timer);
        for (int i = 0; i < 9; i++)
            free(m->strings[i]);
        free(m);
    }
}
