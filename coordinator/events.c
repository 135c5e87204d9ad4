// SPDX-License-Identifier: Apache-2.0
#include "coordinator/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/log/log_record.h"
#include "coordinator/turn.h"

struct slot { // an event with its strings
    struct coordinator_event event;
    char worker[PROTO_EVENT_WORKER], session_name[PROTO_EVENT_SESSION], text[PROTO_EVENT_TEXT];
};

#define LONGER_MOST 64 // times its first length

struct window { // of one kind
    uint64_t from_ns, length_ns;
    uint32_t told;    // in it
    struct slot held; // what came above that, if held.event.count > 0
};

struct coordinator_events {
    struct coordinator_turn *turn;
    void (*listen)(void *arg, const struct coordinator_event *event);
    void *listen_arg;
    uint64_t first_term, term, last;
    uint32_t capacity, n_held;
    uint64_t totals[PROTO_EVENT_SEVERITIES];
    struct window windows[PROTO_EVENT_KIND_COUNT];
    struct slot slots[]; // [capacity]: number n is in slot n % capacity
};

enum common_code coordinator_events_new(uint32_t capacity, struct coordinator_turn *turn,
                                        struct coordinator_events **out)
{
    struct coordinator_events *events = NULL;
    if (capacity >= 2 && capacity <= COORDINATOR_EVENTS_MOST)
        events = calloc(1, sizeof(*events) + capacity * sizeof(struct slot));
    if (!events)
        return COMMON_RESOURCE_EXHAUSTED;
    events->turn = turn;
    events->capacity = capacity;
    *out = events;
    return COMMON_OK;
}

void coordinator_events_free(struct coordinator_events *events)
{
    free(events);
}

void coordinator_events_set_term(struct coordinator_events *events, uint64_t term)
{
    if (!events->first_term)
        events->first_term = term;
    events->term = term;
}

// ---- strings ------------------------------------------------------------------------------------

// Bytes of the character of UTF-8 (RFC 3629) at `c`, which ends with a zero; 0: it is none, or controls a terminal.
static size_t character(const unsigned char *c)
{
    if (*c < 0x80)
        return *c >= ' ' && *c != 0x7f;
    size_t n = *c >= 0xf0 ? 4 : *c >= 0xe0 ? 3 : 2;
    if (*c < 0xc2 || *c > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] > 0x9f) || (*c == 0xf0 && c[1] < 0x90) ||
        (*c == 0xf4 && c[1] > 0x8f) || (*c == 0xc2 && c[1] < 0xa0))
        return 0;
    return n;
}

// Whole characters only, as many as there is room for. `from` may be `out`.
static void copy_text(const char *from, char *out, size_t bytes)
{
    size_t used = 0;
    for (const unsigned char *c = (const unsigned char *)(from ? from : ""); *c;) {
        size_t n = character(c), step = n ? n : 1;
        if (used + step + 1 > bytes)
            break;
        if (n)
            memmove(out + used, c, n);
        else
            out[used] = '?';
        used += step;
        c += step;
    }
    out[used] = '\0';
}

static void fill_slot(struct slot *slot, const struct coordinator_event *event)
{
    slot->event = *event;
    slot->event.count = event->count ? event->count : 1;
    copy_text(event->worker, slot->worker, sizeof(slot->worker));
    copy_text(event->session_name, slot->session_name, sizeof(slot->session_name));
    copy_text(event->text, slot->text, sizeof(slot->text));
    slot->event.worker = slot->worker;
    slot->event.session_name = slot->session_name;
    slot->event.text = slot->text;
    slot->event.wall_ns = common_clock_wall_ns();
}

// ---- the ring -----------------------------------------------------------------------------------

static void put(struct coordinator_events *events, const struct coordinator_event *event)
{
    struct slot *slot = &events->slots[++events->last % events->capacity];
    fill_slot(slot, event);
    slot->event.seq = events->last;
    slot->event.term = events->term;
    if (events->turn)
        coordinator_turn_mark(events->turn, COORDINATOR_PHASE_EVENTS);
}

// One more of those that do not stand for themselves: what all have in common is left, with the last one's words.
static void hold(struct coordinator_events *events, struct window *w, const struct coordinator_event *event)
{
    const struct coordinator_event was = w->held.event;
    bool first = was.count == 0;
    bool same_worker = first || strcmp(w->held.worker, event->worker ? event->worker : "") == 0;
    bool same_session = first || was.session == event->session;
    fill_slot(&w->held, event);
    events->n_held += first;
    if (first)
        return;
    uint32_t count = w->held.event.count;
    w->held.event.count = was.count > UINT32_MAX - count ? UINT32_MAX : was.count + count;
    if (was.severity > event->severity)
        w->held.event.severity = was.severity;
    if (!same_worker)
        w->held.worker[0] = '\0';
    if (!same_session) {
        w->held.event.session = w->held.event.epoch = 0;
        w->held.session_name[0] = '\0';
    }
}

// If its time is over, what was held is reported, and the next one begins.
static void window_turn(struct coordinator_events *events, enum proto_event_kind kind, uint64_t now_ns)
{
    struct window *w = &events->windows[kind];
    uint64_t shortest_ns = proto_event_kind_seconds(kind) * COMMON_NS_PER_S;
    if (w->told && now_ns - w->from_ns < w->length_ns)
        return;
    w->from_ns = now_ns;
    w->told = 0;
    if (!w->held.event.count) {
        w->length_ns = shortest_ns;
        return;
    }
    put(events, &w->held.event);
    w->held.event.count = 0;
    events->n_held--;
    w->told = 1;
    w->length_ns = w->length_ns < LONGER_MOST * shortest_ns ? 2 * w->length_ns : w->length_ns;
}

void coordinator_events_add(struct coordinator_events *events, const struct coordinator_event *event)
{
    if (!events)
        return;
    if (events->listen)
        events->listen(events->listen_arg, event);
    struct window *w = &events->windows[event->kind];
    events->totals[event->severity] += event->count ? event->count : 1;
    window_turn(events, event->kind, common_clock_ns());
    if (w->told >= proto_event_kind_most(event->kind)) {
        hold(events, w, event);
        return;
    }
    w->told++;
    put(events, event);
}

void coordinator_events_listen(struct coordinator_events *events,
                               void (*fn)(void *arg, const struct coordinator_event *event), void *arg)
{
    events->listen = fn;
    events->listen_arg = arg;
}

void coordinator_events_tick(struct coordinator_events *events)
{
    uint64_t now = events->n_held ? common_clock_ns() : 0;
    for (int i = 0; events->n_held && i < PROTO_EVENT_KIND_COUNT; i++)
        if (events->windows[i].held.event.count)
            window_turn(events, (enum proto_event_kind)i, now);
}

uint64_t coordinator_events_last(const struct coordinator_events *events)
{
    return events->last;
}

uint64_t coordinator_events_oldest(const struct coordinator_events *events)
{
    return events->last > events->capacity ? events->last - events->capacity + 1 : 1;
}

const struct coordinator_event *coordinator_events_next(const struct coordinator_events *events,
                                                        uint64_t after_seq)
{
    if (after_seq >= events->last)
        return NULL;
    uint64_t oldest = coordinator_events_oldest(events);
    uint64_t seq = after_seq + 1 > oldest ? after_seq + 1 : oldest;
    return &events->slots[seq % events->capacity].event;
}

bool coordinator_events_is_ours(const struct coordinator_events *events, uint64_t term, uint64_t seq)
{
    if (term < events->first_term || term > events->term || seq > events->last)
        return false;
    // Of a number that is kept the term is known; a process raises its own seldom (membership.c).
    return seq < coordinator_events_oldest(events) || !seq ||
           events->slots[seq % events->capacity].event.term == term;
}

size_t coordinator_events_bytes(const struct coordinator_events *events)
{
    return sizeof(*events) + events->capacity * sizeof(struct slot);
}

uint64_t coordinator_events_total(const struct coordinator_events *events, enum proto_event_severity severity)
{
    return events->totals[severity];
}

// ---- with the log -------------------------------------------------------------------------------

// Whether the event has a field for what the log calls `key`.
static bool has_field(const struct common_log_field *field)
{
    static const char *const keys[] = {"worker", "session", "name", "epoch", "term"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        if (strlen(keys[i]) == field->key_len && !memcmp(keys[i], field->key, field->key_len))
            return true;
    return false;
}

// trace=- of an untraced step: a column to filter the log by, and nothing to read.
static bool says_nothing(const struct common_log_record *record, const struct common_log_field *field)
{
    return field->len == 1 && record->text[field->from] == '-' && field->key_len == strlen("trace") &&
           !memcmp(field->key, "trace", field->key_len);
}

static void append(char *out, size_t bytes, size_t *used, const char *text, size_t len)
{
    size_t room = bytes - 1 - *used;
    len = len < room ? len : room;
    memcpy(out + *used, text, len);
    *used += len;
    out[*used] = '\0';
}

// The record's words without its pairs, then those pairs that the event has no field for.
static void record_text(const struct common_log_record *record, char *out, size_t bytes)
{
    size_t used = 0, from = 0, told = 0;
    out[0] = '\0';
    for (size_t i = 0; i < record->n_fields; i++) {
        const struct common_log_field *f = &record->fields[i];
        size_t begins = f->from - f->key_len - 1; // at its key
        size_t until = begins > from && record->text[begins - 1] == ' ' ? begins - 1 : begins;
        append(out, bytes, &used, record->text + from, until > from ? until - from : 0);
        from = f->from + f->len;
    }
    append(out, bytes, &used, record->text + from, record->len - from);
    for (size_t i = 0; i < record->n_fields; i++) {
        const struct common_log_field *f = &record->fields[i];
        if (has_field(f) || !f->len || says_nothing(record, f))
            continue;
        append(out, bytes, &used, told++ ? ", " : " (", 2);
        append(out, bytes, &used, f->key, f->key_len + 1);
        append(out, bytes, &used, record->text + f->from, f->len);
    }
    if (told)
        append(out, bytes, &used, ")", 1);
}

static void __attribute__((format(printf, 3, 0)))
add_words(struct coordinator_events *events, const struct coordinator_event *event, const char *fmt,
          va_list args)
{
    struct common_log_record record;
    struct coordinator_event told = *event;
    char text[PROTO_EVENT_TEXT];
    common_log_record_fill(&record, fmt, args);
    record_text(&record, text, sizeof(text));
    told.text = text;
    coordinator_events_add(events, &told);
}

void coordinator_events_tell(struct coordinator_events *events, const struct coordinator_event *event,
                             const char *fmt, ...)
{
    static const enum common_log_level levels[PROTO_EVENT_SEVERITIES] = {
        [PROTO_EVENT_INFO] = COMMON_LOG_INFO,
        [PROTO_EVENT_WARN] = COMMON_LOG_WARN,
        [PROTO_EVENT_ERROR] = COMMON_LOG_ERROR,
    };
    va_list args;
    va_start(args, fmt);
    common_log_of(levels[event->severity], fmt, args);
    va_end(args);
    va_start(args, fmt);
    if (events)
        add_words(events, event, fmt, args);
    va_end(args);
}

void coordinator_events_note(struct coordinator_events *events, const struct coordinator_event *event,
                             const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    common_log_of(COMMON_LOG_DEBUG, fmt, args);
    va_end(args);
    va_start(args, fmt);
    if (events)
        add_words(events, event, fmt, args);
    va_end(args);
}
