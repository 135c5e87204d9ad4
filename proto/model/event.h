// SPDX-License-Identifier: Apache-2.0
// Events: what has happened in a cluster, as its coordinator reports it (coordinator/events.h). Their kinds
// and how severe one is, with the names that travel and that people read. A program that meets a name that it
// does not know has met a newer coordinator: it shows the name as it is.
#ifndef PROTO_EVENT_H
#define PROTO_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/model/limits.h"

#define PROTO_EVENT_TEXT    256 // bytes of a text, its end included
#define PROTO_EVENT_WORKER  65  // of a worker's name
#define PROTO_EVENT_SESSION 129 // of a session's name
#define PROTO_EVENT_KIND    33  // of a kind's name

enum proto_event_severity { PROTO_EVENT_INFO, PROTO_EVENT_WARN, PROTO_EVENT_ERROR, PROTO_EVENT_SEVERITIES };

// X(kind, name, most, seconds, what): in so many seconds `most` events of one kind stand for themselves; what
// comes above is one event with a count. The word before the first dash is the kind's group. New ones are
// added within a group; names are never used again for something else: so were coordinator-took-over and
// coordinator-standby, up to version 0.1.
#define PROTO_EVENT_KINDS(X)                                                                                 \
    X(COORDINATOR_STARTED, "coordinator-started", 64, 1, "a coordinator has started")                        \
    X(COORDINATOR_TERM, "coordinator-term", 64, 1, "the term was raised above what a worker has seen")       \
    X(COORDINATOR_AWAY, "coordinator-away", 64, 1, "the coordinator's process did not run for a while")      \
    X(COORDINATOR_RELOADED, "coordinator-reloaded", 64, 1,                                                   \
      "its configuration was reloaded, or could not be")                                                     \
    X(WORKER_JOINED, "worker-joined", 64, 1, "a worker has registered for the first time in this term")      \
    X(WORKER_AGAIN, "worker-again", 64, 1, "it has registered again")                                        \
    X(WORKER_ACTIVE, "worker-active", 64, 1, "it has its layouts and may compute")                           \
    X(WORKER_LOST, "worker-lost", 64, 1, "it is gone, and why")                                              \
    X(WORKER_REFUSED, "worker-refused", 4, 10, "a worker was rejected: its build, its name, its term")       \
    X(WORKER_LACKS, "worker-lacks", 64, 1, "it came back without chunks that have committed rows")           \
    X(WORKER_DRAINING, "worker-draining", 64, 1, "it is draining")                                           \
    X(WORKER_DRAINED, "worker-drained", 64, 1, "it is drained: no chunks are left")                          \
    X(WORKER_CORDONED, "worker-cordoned", 64, 1, "it gets no new chunks, and keeps those that it has")       \
    X(WORKER_RESUMED, "worker-resumed", 64, 1, "it is in use again")                                         \
    X(WORKER_FORGOTTEN, "worker-forgotten", 64, 1, "an operator has removed it from the list")               \
    X(WORKER_SLOW, "worker-slow", 64, 1, "it is much slower than planned")                                   \
    X(WORKER_WELL, "worker-well", 64, 1, "it is as fast as planned again")                                   \
    X(WORKER_EDGE, "worker-edge", 64, 1, "it cannot reach another worker")                                   \
    X(WORKER_ENGINE, "worker-engine", 64, 1, "its engine has failed: its plans use stream")                  \
    X(WORKER_TROUBLE, "worker-trouble", 64, 1, "it rejects updates of a session")                            \
    X(SESSION_CREATED, "session-created", 32, 1, "a session was created")                                    \
    X(SESSION_DELETED, "session-deleted", 32, 1, "a client deleted it, or it was idle for too long")         \
    X(SESSION_FORKED, "session-forked", 32, 1, "it was forked from another session")                         \
    X(SESSION_KEPT, "session-kept", 32, 1, "it has ended and is kept as cache")                              \
    X(SESSION_TRUNCATED, "session-truncated", 32, 1, "it was truncated")                                     \
    X(SESSION_EPOCH, "session-epoch", 32, 1, "its layout has changed, and why")                              \
    X(SESSION_UNAVAILABLE, "session-unavailable", 32, 1,                                                     \
      "some of its chunks have no holder that is connected")                                                 \
    X(SESSION_DEGRADED, "session-degraded", 32, 1, "some of its chunks have too few copies")                 \
    X(SESSION_LOST, "session-lost", 32, 1, "some of its tokens are lost: DATA_LOSS")                         \
    X(SESSION_WHOLE, "session-whole", 32, 1, "all of its chunks have all their copies again")                \
    X(SESSION_PARTIAL, "session-partial", 8, 1, "answers leave tokens out, as its client allows")            \
    X(COPY_BEGUN, "copy-begun", 16, 1, "chunks of a session are being copied to a worker")                   \
    X(COPY_ENDED, "copy-ended", 16, 1, "they were copied")                                                   \
    X(COPY_FAILED, "copy-failed", 16, 1, "they could not be moved, and why")                                 \
    X(COPY_STRUCK, "copy-struck", 32, 1, "copies on lost workers were removed")                              \
    X(COPY_CORRUPT, "copy-corrupt", 32, 1, "a worker's memory does not match a chunk's seal")                \
    X(COPY_HEALED, "copy-healed", 32, 1, "a worker has reloaded a copy from its files")                      \
    X(COPY_REGAINED, "copy-regained", 32, 1, "a worker came back with chunks that were lost")                \
    X(COPY_DISPUTED, "copy-disputed", 32, 1, "holders have different rows of a chunk without a seal")        \
    X(REFUSED_CLIENT, "refused-client", 1, 1, "calls or links without the right token or secret")            \
    X(REFUSED_CALL, "refused-call", 1, 1, "calls that came too late, or that are not served here")           \
    X(REFUSED_LIMIT, "refused-limit", 1, 1, "something was refused because a limit is reached")              \
    X(AUDIT_DIFFERENCE, "audit-difference", 16, 1, "an answer is wrong: float64 gives another one")          \
    X(STORE_ERROR, "store-error", 4, 1, "the store has refused a write")                                     \
    X(TRAIL_FAILED, "trail-failed", 4, 10, "the audit log (--audit-log) cannot be written, and why")         \
    X(TRAIL_WRITTEN, "trail-written", 4, 10, "it can be written again")                                      \
    X(BACKUP_MADE, "backup-made", 16, 1, "the store was backed up")                                          \
    X(BACKUP_FAILED, "backup-failed", 16, 1, "the backup failed, and why")                                   \
    X(BACKUP_RESTORED, "backup-restored", 16, 1, "the store was restored from a backup")                     \
    X(BACKUP_ACCEPTED, "backup-accepted", 16, 1, "an operator has accepted a restored store")                \
    X(REBALANCE_BEGUN, "rebalance-begun", 16, 1, "chunks move so that load matches worker speed")            \
    X(REBALANCE_ENDED, "rebalance-ended", 16, 1, "the rebalance has finished")                               \
    X(SCRUB_ASKED, "scrub-asked", 16, 1, "an operator has started a scrub")                                  \
    X(QUARANTINE_DROPPED, "quarantine-dropped", 16, 1, "an operator has dropped what a worker held")

enum proto_event_kind {
#define PROTO_EVENT_ONE(kind, name, most, seconds, what) PROTO_EVENT_##kind,
    PROTO_EVENT_KINDS(PROTO_EVENT_ONE)
#undef PROTO_EVENT_ONE
        PROTO_EVENT_KIND_COUNT
};

const char *proto_event_kind_name(enum proto_event_kind kind);
const char *proto_event_kind_about(enum proto_event_kind kind); // one line, for people
uint32_t proto_event_kind_most(enum proto_event_kind kind);
uint32_t proto_event_kind_seconds(enum proto_event_kind kind);
const char *proto_event_severity_name(enum proto_event_severity severity);

// The kinds that a word names, as bits: one kind, or all of a group ("worker"). 0: there is none of that
// name.
uint64_t proto_event_kinds(const char *word);
bool proto_event_severity_parse(const char *word, enum proto_event_severity *out);

#endif
