// SPDX-License-Identifier: Apache-2.0
// A worker, as the coordinator sees it.
//
//             Register (also after LOST, also with another instance)
//   ABSENT ───────────────▶ JOINING ──inventory reconciled──▶ ACTIVE
//                           ▲ │  ▲                           │ │
//                  Register │ │  │ link is back              │ │ link broken
//                           │ │  └─────────────────────────┐ │ │
//              link broken, │ ▼   ┌──── beats missed ──────│─┘ ▼
//              beats missed LOST ◀──grace over, beats missed── SUSPECT
//                                 (an ACTIVE one: also by Register)
//
// SUSPECT ends at once if its edge endpoint no longer has a listener: its process has ended.
//
// Register is answered when the link to its edge endpoint is made: from then on it beats, while it is asked and told
// what it holds.
//
// ABSENT is a slot that a name has but no process: known from the store. Only ACTIVE workers are sent steps
// and given chunks. The record of one that is ABSENT or LOST goes when another name needs its slot.
#ifndef COORDINATOR_WORKER_H
#define COORDINATOR_WORKER_H

#include "common/loop/machine.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/order.h"
#include "coordinator/cluster/pace.h"
#include "coordinator/cluster/quarantine.h"
#include "coordinator/events.h"
#include "proto/model/footprint.h"
#include "proto/model/limits.h"
#include "proto/rpc/rpc.h"

enum coordinator_worker_state {
    COORDINATOR_WORKER_ABSENT,
    COORDINATOR_WORKER_JOINING,
    COORDINATOR_WORKER_ACTIVE,
    COORDINATOR_WORKER_SUSPECT,
    COORDINATOR_WORKER_LOST,
    COORDINATOR_WORKER_STATES
};
extern const struct common_machine coordinator_worker_machine;

struct coordinator_gather;
struct reduce_member;
struct coordinator_worker_limit;

#define COORDINATOR_CONTROL_NS                                                                               \
    (UINT64_C(10) * 1000 * 1000 * 1000) // a worker answers control calls within this time
#define WORKER_WAITING 6

struct coordinator_worker {
    struct coordinator_cluster *cluster;
    uint32_t slot; // index in cluster.workers
    uint32_t life; // number of its Register, 0: none in this life. (life << 32 | slot + 1) is the id that it
                   // is told
    enum coordinator_worker_state state;
    char name[65], host[65], kernel[65], endpoint[160], edge_endpoint[160];
    char version[32];                        // of its program; "": it has not said
    char no_device[PROTO_NO_DEVICE_MAX + 1]; // why it computes on its processor; "": nothing to say
    char trouble[160]; // why the last try to link to its edge endpoint came to nothing; "": none did
    char engine[16], algorithm[33], group[65]; // offered beside stream; "" where there is none
    uint32_t group_rank, group_size;
    bool engine_lost;         // it said, or showed, that its engine has failed
    uint64_t instance;        // of the process; 0: never seen
    uint64_t stored_instance; // the one in the store; 0: none
    bool fresh;               // another instance than the one in the store: what that one held is gone
    uint64_t store_bytes, store_refused, store_damaged; // of its files (--store), as it says
    uint64_t cold_bytes, cold_evicted, cold_loaded, cold_loaded_bytes,
        cold_load_ns;                    // what has left memory for them
    uint64_t lacking[PROTO_LACKING_MAX]; // sessions of which it says that it has lost chunks: to be doubted
    uint32_t n_lacking;
    uint64_t capacity_bytes, used_bytes, bandwidth, steps, last_compute_ns, reported_chunks;
    struct coordinator_worker_limit *limits; // [n_limits], owned; none after its loss
    uint32_t n_limits;
    uint64_t speed;               // its planned bandwidth: the best of its kind on its host
    struct coordinator_pace pace; // how fast it computes while it serves
    uint64_t slow_since_ns;       // of the last verdict
    uint32_t threads, cores;
    uint64_t promised_bytes; // memory given out since, not yet seen in used_bytes
    // Likewise of chunks that appends fill, at an unknown time: another worker is preferred, and where there
    // is none it is given out again.
    uint64_t open_bytes;
    uint64_t refused_bytes;            // it had no memory for rows of a chunk of so many
    uint32_t refused_beats;            // which counts for so many heartbeats to come
    uint64_t chunks, load_bytes;       // in sessions' layouts
    uint64_t tokens;                   // of these chunks, of the first layer's length
    uint32_t members;                  // sessions that count it as a member
    uint64_t last_beat_ns, active_ns;  // active_ns: since when it is ACTIVE
    struct proto_channel *channel;     // to its edge endpoint; NULL unless JOINING, ACTIVE or SUSPECT
    struct common_timer *grace;        // runs while its link is down
    uint64_t grace_from_ns, grace_ns;  // since when it runs, and for how long
    struct proto_request *registering; // its Register, answered when it is linked, or will not be
    uint64_t link; // that it has registered over (proto_request_link): its heartbeats come over no other
    struct common_list changed, joining; // in the lists of the room
    // Reconciling (the room of sessions asks and tells): a visit is one try to make it ACTIVE.
    uint32_t visit;             // rises when a visit begins, and when it has come to nothing
    uint64_t visit_number;      // of the last that began: lets the worker find layouts that come late
    uint32_t visitors;          // visits whose answers are still to come: the record stays
    uint64_t listed;            // the visit's inventory has come to this session; 0: none has begun
    struct common_list repairs; // of sessions, that wait (repair.h)
    uint32_t repairing;         // under way
    struct coordinator_quarantine arriving;   // what it showed so far that this store does not know
    struct coordinator_quarantine quarantine; // that the last whole inventory showed
    bool draining;      // it gets no chunks, and those that it has go elsewhere (place/moves.h), because:
    bool drain_ordered; // an operator's word, durable
    bool leaving;       // this process of it wants to end; another one is used again
    bool cordoned;      // an operator's word, durable: it gets no new chunks, and what it has stays
    bool farewell;      // this process has said that it ends now (place/strike.h)
    bool drain_told;    // that it is empty
    struct coordinator_order order; // why, if one of these
    uint32_t moves, big_moves;      // to it, under way; of these, the big ones (session/move_queue.h)
    uint32_t moves_failed;          // one after the other
    uint64_t moves_again_ns;        // others are preferred until then
    struct common_list waiting[WORKER_WAITING]; // of sessions, for room for a move to it
    uint32_t sums;                              // of its chunks, asked for and not answered (check/seals.h)
    uint32_t sums_unknown; // its `life` when it reported that it has no sums: an older build
    bool dirty;            // layouts have changed since they were sent: send these again before it is ACTIVE
    uint64_t store_again_ns; // the store refused news of it: when to try again; 0: there are none
};

// An event about it (coordinator_events_tell): coordinator_worker_tell(w, WORKER_LOST, WARN, "…", …).
#define coordinator_worker_tell(w, what, how, ...)                                                           \
    coordinator_events_tell((w)->cluster->core->events,                                                      \
                            &(const struct coordinator_event){.kind = PROTO_EVENT_##what,                    \
                                                              .severity = PROTO_EVENT_##how,                 \
                                                              .worker = (w)->name},                          \
                            __VA_ARGS__)

static inline bool coordinator_worker_active(const struct coordinator_worker *w)
{
    return w->state == COORDINATOR_WORKER_ACTIVE;
}

// Whether chunks may come to it.
static inline bool coordinator_worker_takes(const struct coordinator_worker *w)
{
    return coordinator_worker_active(w) && !w->draining && !w->cordoned;
}

// What may be given out of its memory: promises are taken off, and what its chunks leave over
// (proto/model/footprint.h).
static inline uint64_t coordinator_worker_free_bytes(const struct coordinator_worker *w)
{
    uint64_t taken = w->used_bytes + w->promised_bytes + proto_footprint_slack(w->capacity_bytes);
    uint64_t left = taken < w->capacity_bytes ? w->capacity_bytes - taken : 0;
    return w->refused_beats && left >= w->refused_bytes ? w->refused_bytes - 1 : left;
}

// What is neither used nor free: given out and not taken up yet, or less than an extent. Gone: 0.
static inline uint64_t coordinator_worker_reserved_bytes(const struct coordinator_worker *w)
{
    uint64_t taken = w->used_bytes + coordinator_worker_free_bytes(w);
    bool gone = w->state == COORDINATOR_WORKER_LOST || w->state == COORDINATOR_WORKER_ABSENT;
    return gone || taken > w->capacity_bytes ? 0 : w->capacity_bytes - taken;
}

// It has refused rows of a chunk that takes so many (> 0), for want of memory. It knows best: until its heartbeats say what is
// in use, no chunk of that size goes there.
static inline void coordinator_worker_refused(struct coordinator_worker *w, uint64_t bytes)
{
    if (!w->refused_beats || bytes < w->refused_bytes)
        w->refused_bytes = bytes;
    w->refused_beats = 2; // one may be on its way
}

// It is slow, and that counts (slow.h).
static inline bool coordinator_worker_slow(const struct coordinator_worker *w)
{
    return w->pace.slow && w->cluster->core->options.slow_workers == COORDINATOR_SLOW_MOVE;
}

// Whether it knows sums (check/seals.h), as far as is known.
static inline bool coordinator_worker_sums(const struct coordinator_worker *w)
{
    return !w->life || w->sums_unknown != w->life;
}

// The bandwidth that placement, trees and balances count with; > 0 once it has registered.
static inline uint64_t coordinator_worker_speed(const struct coordinator_worker *w)
{
    uint64_t seen = coordinator_worker_slow(w) ? (uint64_t)((double)w->speed * w->pace.factor) : w->speed;
    return seen || !w->speed ? seen : 1;
}

const char *coordinator_worker_state_name(enum coordinator_worker_state state);

// The only way to alter a state; a transition that the diagram lacks is our bug.
void coordinator_worker_set_state(struct coordinator_worker *w, enum coordinator_worker_state state);

struct coordinator_worker *coordinator_worker_find(const struct coordinator_cluster *cluster,
                                                   const char *name); // NULL: unknown

// The worker with this name, made (ABSENT) when there is none. NULL: the table is full.
struct coordinator_worker *coordinator_worker_named(struct coordinator_cluster *cluster, const char *name);

// It is not there, and not on its way.
bool coordinator_worker_gone(const struct coordinator_worker *w);
// What it last said of its memory, for people and metrics: of one that is gone nothing counts any more.
uint64_t coordinator_worker_said(const struct coordinator_worker *w, uint64_t bytes);
// It is gone, and neither a session nor anything under way needs its record.
bool coordinator_worker_idle(const struct coordinator_worker *w);
void coordinator_worker_strike(struct coordinator_worker *w); // off the table; it is idle
void coordinator_worker_forget(struct coordinator_worker *w); // the same, whatever needs it: the room ends

// A control call. `done` runs exactly once, never on this stack; with UNAVAILABLE when there is no link. reply as
// in proto_reply_fn.
void coordinator_worker_call(struct coordinator_worker *w, uint32_t method, const ProtobufCMessage *body,
                             proto_reply_fn done, void *arg);

// The same for a gather: adds to it and finishes it.
void coordinator_worker_call_gather(struct coordinator_worker *w, uint32_t method,
                                    const ProtobufCMessage *body, struct coordinator_gather *gather);

void coordinator_worker_member(const struct coordinator_worker *w,
                               struct reduce_member *out); // as the planner sees it

// Whether the visit's inventory, under way or over, has named this session or is past it, without a reason to keep it
// there. One that is ACTIVE may not have taken its layout yet: to it the session is still of another life.
bool coordinator_worker_listed(const struct coordinator_worker *w, uint64_t session);

// A layout has changed that the worker may have been told already: it is told again before it is ACTIVE.
void coordinator_worker_dirty(struct coordinator_worker *w);

#endif
