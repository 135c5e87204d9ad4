// SPDX-License-Identifier: Apache-2.0
// What has happened, after a number that the caller has seen, which was of a term that he names. Where there
// is no such one here (it was of another life of the coordinator) it starts over, and the answer says so.
#include "coordinator/events.h"
#include "coordinator/dashboard/ask.h"

static json_t *text_or_null(const char *text)
{
    return text && text[0] ? coordinator_dashboard_text(text) : json_null();
}

static json_t *event_json(const struct coordinator_event *e)
{
    return json_pack("{s:o, s:o, s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "seq",
                     coordinator_dashboard_u64(e->seq), "term", coordinator_dashboard_u64(e->term), "wall_ns",
                     coordinator_dashboard_u64(e->wall_ns), "severity",
                     proto_event_severity_name(e->severity), "kind", proto_event_kind_name(e->kind), "text",
                     text_or_null(e->text), "worker", text_or_null(e->worker), "session",
                     e->session ? coordinator_dashboard_id(e->session) : json_null(), "session_name",
                     text_or_null(e->session_name), "epoch", coordinator_dashboard_u64(e->epoch), "count",
                     coordinator_dashboard_u64(e->count ? e->count : 1));
}

COORDINATOR_DASHBOARD_ASK(events)
{
    (void)id;
    const struct coordinator_events *events = d->c->core.events;
    uint64_t after = 0, term = 0, limit = 0;
    enum common_code code = coordinator_dashboard_number(query, "after", 0, 0, INT64_MAX, &after, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "term", 0, 0, INT64_MAX, &term, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "limit", 100, 1, PROTO_EVENTS_MAX, &limit, err);
    if (code != COMMON_OK)
        return code;
    json_t *rows = json_array();
    bool anew = after && !coordinator_events_is_ours(events, term ? term : d->c->core.term, after);
    uint64_t last = coordinator_events_last(events), first = coordinator_events_oldest(events);
    if (anew)
        after = 0;
    else if (!after && last > limit) // who begins gets the newest
        after = last - limit;
    const struct coordinator_event *e;
    while (json_array_size(rows) < limit && (e = coordinator_events_next(events, after)) != NULL) {
        json_array_append_new(rows, event_json(e));
        after = e->seq;
    }
    *out = json_pack("{s:o, s:o, s:o, s:b, s:o}", "term", coordinator_dashboard_u64(d->c->core.term), "first",
                     coordinator_dashboard_u64(first), "last", coordinator_dashboard_u64(last), "anew", anew,
                     "events", rows);
    return COMMON_OK;
}
