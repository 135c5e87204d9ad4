// SPDX-License-Identifier: Apache-2.0
#include "coordinator/events_service.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/events.h"
#include "coordinator/limits.h"
#include "coordinator/state.h"
#include "coordinator/store/store.h"
#include "proto/banyan.pb-c.h"
#include "proto/model/limits.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/status.h"

#define WAIT_MOST (50 * COMMON_NS_PER_S)   // below the 60 s after which nng sends a request again
#define ANSWER_NS (100 * COMMON_NS_PER_MS) // left of a call's time for its answer

struct reader { // a call
    struct common_list link;
    struct coordinator *c;
    struct proto_request *request;
    struct coordinator_use *use; // of whose tenant it counts as a watch while it waits
    struct common_timer *timer;
    // What it asks for:
    uint64_t kinds, session, since_ns;
    enum proto_event_severity severity;
    char worker[PROTO_EVENT_WORKER], session_name[PROTO_EVENT_SESSION];
    uint32_t max;
    // How far it has looked:
    uint64_t term, seq, lost;
    bool anew;
};

struct coordinator_event_readers {
    struct common_list waiting; // reader.link
    uint32_t n;
    uint64_t told_reached[COORDINATOR_LIMITS], told_store; // that were already reported
};

// ---- what it asks for ---------------------------------------------------------------------------

static bool matches(const struct reader *r, const struct coordinator_event *e)
{
    if (!coordinator_shows_workers(proto_request_identity(r->request)) &&
        (!e->session || e->tenant != proto_request_identity(r->request)->tenant))
        return false;
    bool session = !r->session && !r->session_name[0];
    session = session || (r->session && r->session == e->session) ||
              (r->session_name[0] && !strcmp(r->session_name, e->session_name));
    return session && (r->kinds >> e->kind & 1) && e->severity >= r->severity && e->wall_ns >= r->since_ns &&
           (!r->worker[0] || !strcmp(r->worker, e->worker));
}

static enum common_code take_kinds(struct reader *r, const Banyan__Pb__EventsRequest *m,
                                   struct proto_status *status)
{
    r->kinds = m->n_kinds ? 0 : UINT64_MAX;
    for (size_t i = 0; i < m->n_kinds; i++) {
        uint64_t found = proto_event_kinds(m->kinds[i]);
        if (!found)
            return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                    "unknown event kind '%.40s': neither a kind nor a group of kinds",
                                    m->kinds[i]);
        r->kinds |= found;
    }
    return COMMON_OK;
}

static enum common_code take_request(struct reader *r, const Banyan__Pb__EventsRequest *m,
                                     struct proto_status *status)
{
    r->severity = PROTO_EVENT_INFO;
    if (m->severity[0] && !proto_event_severity_parse(m->severity, &r->severity))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                "'%s' is not a severity: use info, warn or error", m->severity);
    if (m->max < 1 || m->max > PROTO_EVENTS_MAX)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "", "%u events: 1 to %u can be read at once",
                                m->max, PROTO_EVENTS_MAX);
    if (m->wait_ns > WAIT_MOST)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, "",
                                "a call waits for events for at most 50 s");
    r->session = m->session;
    r->since_ns = m->since_ns;
    r->max = m->max;
    snprintf(r->worker, sizeof(r->worker), "%s", m->worker);
    snprintf(r->session_name, sizeof(r->session_name), "%s", m->session_name);
    return take_kinds(r, m, status);
}

// Where it goes on.
static void take_place(struct reader *r, const Banyan__Pb__EventsRequest *m)
{
    const struct coordinator_events *events = r->c->core.events;
    bool first = !m->term && !m->seq;
    r->anew = !first && !coordinator_events_is_ours(events, m->term, m->seq);
    r->term = r->anew || first ? r->c->core.term : m->term;
    r->seq = r->anew ? 0 : m->seq;
    uint64_t oldest = coordinator_events_oldest(events);
    r->lost = !first && !r->anew && oldest > r->seq + 1 ? oldest - r->seq - 1 : 0;
}

// ---- answering ----------------------------------------------------------------------------------

struct answer { // what a reply is made of
    Banyan__Pb__Event events[PROTO_EVENTS_MAX], *list[PROTO_EVENTS_MAX];
};

// Words of an event name workers, and may name earlier ones: tenants get the description of its kind.
static void fill_event(const struct coordinator_event *e, bool shown, Banyan__Pb__Event *m)
{
    *m = (Banyan__Pb__Event)BANYAN__PB__EVENT__INIT;
    m->seq = e->seq;
    m->term = e->term;
    m->wall_ns = e->wall_ns;
    m->kind = (char *)proto_event_kind_name(e->kind);
    m->severity = (char *)proto_event_severity_name(e->severity);
    m->worker = shown ? (char *)e->worker : m->worker;
    m->session = e->session;
    m->session_name = (char *)e->session_name;
    m->epoch = e->epoch;
    m->count = e->count;
    m->text = (char *)(shown ? e->text : proto_event_kind_about(e->kind));
}

// The next one that it asks for; those before it are behind it then. NULL: none is there.
static const struct coordinator_event *advance(struct reader *r)
{
    const struct coordinator_event *e;
    while ((e = coordinator_events_next(r->c->core.events, r->seq))) {
        if (matches(r, e))
            return e;
        r->seq = e->seq;
        r->term = e->term;
    }
    return NULL;
}

static void answer_reader(struct reader *r)
{
    struct answer *answer = malloc(sizeof(*answer));
    Banyan__Pb__EventsReply m = BANYAN__PB__EVENTS_REPLY__INIT;
    const struct coordinator_event *e = NULL;
    bool shown = coordinator_shows_workers(proto_request_identity(r->request));
    if (!answer) {
        proto_request_fail(r->request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL,
                           0);
        return;
    }
    while ((e = advance(r)) && m.n_events < r->max) {
        fill_event(e, shown, &answer->events[m.n_events]);
        answer->list[m.n_events] = &answer->events[m.n_events];
        m.n_events++;
        r->seq = e->seq;
        r->term = e->term;
    }
    m.events = answer->list;
    m.term = r->term;
    m.seq = r->seq;
    m.more = e != NULL;
    m.anew = r->anew;
    m.lost = r->lost;
    proto_request_reply(r->request, &m.base, NULL, 0, NULL, NULL);
    free(answer);
}

static void reader_leave(struct reader *r)
{
    common_list_remove(&r->link);
    r->c->event_readers->n--;
    coordinator_quota_give(r->use, COORDINATOR_QUOTA_WATCHES, 1);
    common_timer_free(r->timer);
    free(r);
}

static void wait_over(void *arg)
{
    struct reader *r = arg;
    answer_reader(r);
    reader_leave(r);
}

static void reader_cancelled(void *arg)
{
    struct reader *r = arg;
    proto_request_fail(r->request, COMMON_CANCELLED, "the caller has disconnected", NULL, 0);
    reader_leave(r);
}

static void drain_events(void *arg)
{
    struct coordinator *c = arg;
    struct common_list *all = &c->event_readers->waiting;
    for (struct common_list *at = all->next, *next; at != all; at = next) {
        struct reader *r = common_list_entry(at, struct reader, link);
        next = at->next;
        if (advance(r))
            wait_over(r);
    }
}

// ---- the call -----------------------------------------------------------------------------------

static enum common_code wait_for_events(const struct reader *asked, uint64_t wait_ns)
{
    struct coordinator *c = asked->c;
    struct reader *r = malloc(sizeof(*r));
    if (!r)
        return COMMON_RESOURCE_EXHAUSTED;
    *r = *asked;
    if (common_timer_new(c->core.loop, wait_over, r, &r->timer) != COMMON_OK) {
        free(r);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    common_list_init(&r->link);
    common_list_push(&c->event_readers->waiting, &r->link);
    c->event_readers->n++;
    uint64_t left = common_clock_left(proto_request_deadline(r->request));
    left = left > ANSWER_NS ? left - ANSWER_NS : 0;
    common_timer_start(r->timer, wait_ns < left ? wait_ns : left, false);
    proto_request_on_cancel(r->request, reader_cancelled, r);
    return COMMON_OK;
}

void coordinator_handle_events(struct coordinator *c, struct proto_request *request)
{
    const Banyan__Pb__EventsRequest *m = (const void *)proto_request_message(request)->body;
    struct reader r = {.c = c, .request = request};
    struct proto_status status;
    if (take_request(&r, m, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    take_place(&r, m);
    if (r.anew || r.lost || !m->wait_ns || c->core.stopping || advance(&r)) {
        answer_reader(&r);
        return;
    }
    if (c->event_readers->n >= COORDINATOR_EVENT_READERS_MAX) {
        c->core.reached[COORDINATOR_LIMIT_EVENT_READERS]++;
        proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                         "%u calls already wait for events: try again later, or do not wait",
                         COORDINATOR_EVENT_READERS_MAX);
        proto_request_fail_status(request, &status);
        return;
    }
    r.use = coordinator_use_of(&c->quotas, proto_request_identity(request)->tenant);
    if (coordinator_quota_take(r.use, COORDINATOR_QUOTA_WATCHES, 1, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    if (wait_for_events(&r, m->wait_ns) == COMMON_OK)
        return;
    coordinator_quota_give(r.use, COORDINATOR_QUOTA_WATCHES, 1);
    proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
}

// ---- refusals -----------------------------------------------------------------------------------

// The server has logged it.
void coordinator_event_refusing(void *arg, enum proto_refusal refusal, const char *peer, const char *why)
{
    struct coordinator *c = arg;
    char text[PROTO_EVENT_TEXT];
    struct coordinator_event event = {.severity = PROTO_EVENT_WARN, .text = text};
    switch (refusal) {
    case PROTO_REFUSED_CONNECTION:
    case PROTO_REFUSED_TOKEN:
    case PROTO_REFUSED_ROLE:
        event.kind = PROTO_EVENT_REFUSED_CLIENT;
        break;
    case PROTO_REFUSED_LIMIT:
        event.kind = PROTO_EVENT_REFUSED_LIMIT;
        break;
    default:
        event.kind = PROTO_EVENT_REFUSED_CALL;
        break;
    }
    snprintf(text, sizeof(text), "%.80s is refused: %.160s", peer, why);
    coordinator_events_add(c->core.events, &event);
}

// What is refused where only a counter says so: the caller has received the rest.
void coordinator_events_look(struct coordinator *c)
{
    struct coordinator_event_readers *readers = c->event_readers;
    struct coordinator_limit_use limits[COORDINATOR_LIMIT_USES];
    char text[PROTO_EVENT_TEXT];
    bool any = memcmp(readers->told_reached, c->core.reached, sizeof(c->core.reached)) != 0;
    if (any)
        coordinator_limits(c, limits);
    for (int i = 0; any && i < COORDINATOR_LIMITS; i++) {
        const struct coordinator_limit_use *use = &limits[PROTO_LIMIT_COUNT + i];
        uint64_t more = use->refused - readers->told_reached[i];
        readers->told_reached[i] = use->refused;
        snprintf(text, sizeof(text), "the limit of %" PRIu64 " %s is reached%s%s", use->max, use->name,
                 use->flag[0] ? ": raise the coordinator's " : "", use->flag);
        if (more)
            coordinator_events_add(c->core.events,
                                   &(struct coordinator_event){.kind = PROTO_EVENT_REFUSED_LIMIT,
                                                               .severity = PROTO_EVENT_WARN,
                                                               .count = more > UINT32_MAX ? UINT32_MAX
                                                                                          : (uint32_t)more,
                                                               .text = text});
    }
    const char *why;
    uint64_t failed = coordinator_store_failed(c->store, &why), more = failed - readers->told_store;
    readers->told_store = failed;
    snprintf(text, sizeof(text), "the store refused a write: %s", why);
    if (more)
        coordinator_events_add(c->core.events, &(struct coordinator_event){
                                                   .kind = PROTO_EVENT_STORE_ERROR,
                                                   .severity = PROTO_EVENT_ERROR,
                                                   .count = more > UINT32_MAX ? UINT32_MAX : (uint32_t)more,
                                                   .text = text});
    coordinator_events_tick(c->core.events);
}

// ---- its life -----------------------------------------------------------------------------------

enum common_code coordinator_event_readers_new(struct coordinator *c)
{
    enum common_code code = coordinator_events_new(c->core.options.events, &c->core.turn, &c->core.events);
    if (code != COMMON_OK)
        return code;
    c->event_readers = coordinator_alloc(sizeof(*c->event_readers));
    common_list_init(&c->event_readers->waiting);
    coordinator_turn_set(&c->core.turn, COORDINATOR_PHASE_EVENTS, drain_events, c);
    return COMMON_OK;
}

void coordinator_event_readers_stop(struct coordinator *c)
{
    struct coordinator_event_readers *readers = c->event_readers;
    while (readers && !common_list_empty(&readers->waiting)) {
        struct reader *r = common_list_entry(readers->waiting.next, struct reader, link);
        proto_request_fail(r->request, COMMON_UNAVAILABLE, "the coordinator is stopping", NULL, 0);
        reader_leave(r);
    }
}

void coordinator_event_readers_free(struct coordinator *c)
{
    coordinator_event_readers_stop(c);
    free(c->event_readers);
    coordinator_events_free(c->core.events);
    c->event_readers = NULL;
    c->core.events = NULL;
}

uint32_t coordinator_event_readers_waiting(const struct coordinator *c)
{
    return c->event_readers ? c->event_readers->n : 0;
}
