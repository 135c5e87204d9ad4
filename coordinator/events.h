// SPDX-License-Identifier: Apache-2.0
// What has happened, for people: workers that come and go, sessions that lose copies, refusals, each with its reason.
// The newest are kept in a ring of fixed size; nothing of it is on disk. Who reads keeps the number of the last event
// that it has seen, and asks for the next one; a gap shows in the numbers.
//
//   rooms ──tell──▶ log
//             └───▶ [ oldest │ … │ … │ last ] ──next──▶ RPC Events (events_service.c), the web page
//
// Numbers begin at 1 with the coordinator's process, and each event has the term in which it happened: (term, number)
// rises over restarts, too.
//
// A flood does not push the rest out: of each kind a few events in a second stand for themselves (the table
// in proto/model/event.h); what comes above is counted, and reported as one event when that second is over.
// As long as it goes on each such time is twice as long as the one before, up to 64 times.
//
// Everything is for the loop thread.
#ifndef COORDINATOR_EVENTS_H
#define COORDINATOR_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "proto/model/event.h"

#define COORDINATOR_EVENTS_DEFAULT 4096
#define COORDINATOR_EVENTS_MOST    (1u << 20)

struct coordinator_events;
struct coordinator_turn;

struct coordinator_event {
    enum proto_event_kind kind;
    enum proto_event_severity severity;
    // What it is about. Strings that are NULL, and numbers that are 0, are not given.
    const char *worker;       // a name
    uint64_t session;         // an id
    const char *session_name; // "" where it has none
    uint32_t tenant;          // whose the session is
    uint64_t epoch;           // of the session, after the event
    uint32_t count;           // of events that this one stands for; 0 is 1
    const char *text;         // what has happened and why, one line of UTF-8
    // Set by the ring, whatever comes in:
    uint64_t seq, term;
    uint64_t wall_ns; // common_clock_wall_ns
};

// A ring of `capacity` >= 2 events. All memory that it ever has is taken here. Each event that comes marks
// the phase of events of `turn`; NULL: none waits. RESOURCE_EXHAUSTED.
enum common_code coordinator_events_new(uint32_t capacity, struct coordinator_turn *turn,
                                        struct coordinator_events **out);
void coordinator_events_free(struct coordinator_events *events);

// From now on events are of this term, which is at least the last one.
void coordinator_events_set_term(struct coordinator_events *events, uint64_t term);

// Copies the event with its strings; what is longer than proto/model/event.h has room for is cut, and control
// characters and broken UTF-8 are replaced by '?'. events NULL: nothing is kept.
void coordinator_events_add(struct coordinator_events *events, const struct coordinator_event *event);

// Logs a record (common/log/log.h, at the level of event->severity) and adds the event with the same words as
// its text. The format has key=value pairs as in the log. In the text those that the event has fields for
// (worker, session, name, epoch, term) are left out, and the others stand behind it: "a worker is lost: …
// (chunks=12)".
void coordinator_events_tell(struct coordinator_events *events, const struct coordinator_event *event,
                             const char *fmt, ...) __attribute__((format(printf, 3, 4)));

// The same for what is too frequent for the log at its usual level: it is logged at DEBUG.
void coordinator_events_note(struct coordinator_events *events, const struct coordinator_event *event,
                             const char *fmt, ...) __attribute__((format(printf, 3, 4)));

// The same in one line, for what is about neither a worker nor a session: coordinator_tell(core, STORE_ERROR, ERROR, "…").
#define coordinator_tell(core, what, how, ...)                                                               \
    coordinator_events_tell((core)->events,                                                                  \
                            &(const struct coordinator_event){.kind = PROTO_EVENT_##what,                    \
                                                              .severity = PROTO_EVENT_##how},                \
                            __VA_ARGS__)

// Each event, as it comes, is also passed to this function, whatever is kept of it; fn NULL: to none. Its
// strings are as they came, and go when it returns.
void coordinator_events_listen(struct coordinator_events *events,
                               void (*fn)(void *arg, const struct coordinator_event *event), void *arg);

// Reports what was counted in a time that is over. To be called several times a second.
void coordinator_events_tick(struct coordinator_events *events);

// The first event after that number that is kept; NULL: there is none yet. It is valid until the next event comes. A
// reader that has come to `after_seq` has missed those from after_seq + 1 up to coordinator_events_oldest, exclusive.
const struct coordinator_event *coordinator_events_next(const struct coordinator_events *events,
                                                        uint64_t after_seq);
uint64_t coordinator_events_oldest(const struct coordinator_events *events); // last + 1 where none is kept
uint64_t coordinator_events_last(const struct coordinator_events *events);   // 0: none has come yet
// Whether this number of that term can be one of this ring: its reader goes on where it was.
bool coordinator_events_is_ours(const struct coordinator_events *events, uint64_t term, uint64_t seq);

size_t coordinator_events_bytes(const struct coordinator_events *events); // of memory
// Events so far, each that was counted in another one included.
uint64_t coordinator_events_total(const struct coordinator_events *events,
                                  enum proto_event_severity severity);

#endif
