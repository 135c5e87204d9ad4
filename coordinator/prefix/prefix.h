// SPDX-License-Identifier: Apache-2.0
// Prefixes found by content: sessions that have ended, and stay as cache (docs/concepts/prefixes.md).
//
//   an ordinary session ──▶ PrefixKeep, durable ──▶ kept: found by its hashes, takes no writes
//                                │                     │   create with hashes: a fork of the longest match
//                                ▼                     ▼
//                          deleted: cache is off,   deleted: its time is over, or room is wanted
//                          too large, or doubled    (least recently used first)
//
// A kept session is an ordinary one in every other way: its workers, copies, seals, quota and store are those
// of any. What makes it kept is one row of the store (its hashes) and session.kept. Forks share its full
// chunks, so it may go at any moment: they keep what they have.
//
// Nothing here is of a step: those who only compute pay nothing.
#ifndef COORDINATOR_PREFIX_H
#define COORDINATOR_PREFIX_H

#include "coordinator/prefix/index.h"
#include "coordinator/session/session.h"

struct coordinator_batch;

struct coordinator_prefixes {
    struct coordinator_prefix_index index;
    uint64_t hits, misses;       // creates that asked for a prefix; misses: service.c counts them
    uint64_t saved_tokens;       // that hits did not have to compute
    uint64_t evictions, expired; // kept sessions that went: for room, after their time
    uint64_t leaving_bytes;      // of those that are being deleted
};

void coordinator_prefixes_init(struct coordinator_sessions *sessions);
void coordinator_prefixes_fini(struct coordinator_sessions *sessions);
// Those whose time is over go; without a cache (--prefix-cache off) all do that are not pinned.
void coordinator_prefixes_tick(struct coordinator_sessions *sessions, uint64_t now_ns);

// Bytes that kept sessions may have together; 0: the cache is off. See --prefix-cache.
uint64_t coordinator_prefixes_limit(const struct coordinator_sessions *sessions);

// Hooks of sessions (session.h).
void coordinator_prefix_session_gone(struct coordinator_session *s);
bool coordinator_prefix_make_room(struct coordinator_sessions *sessions, const struct proto_status *failure,
                                  uint32_t tenant, const struct coordinator_session *except,
                                  coordinator_room_fn fn, void *arg);

// Of a tenant and what its sessions are: two specifications that differ in nothing but their copies and their
// time to live have the same.
uint64_t coordinator_prefix_scope(uint32_t tenant, const Banyan__Pb__Spec *spec);

// The kept session of the tenant that has most of the text, and how many of its tokens; NULL: none. `spec` is
// complete (spec.h); one that asks for more copies than a kept session has does not match it.
struct coordinator_session *coordinator_prefix_find(struct coordinator_sessions *sessions, uint32_t tenant,
                                                    const Banyan__Pb__Spec *spec,
                                                    const ProtobufCBinaryData *prefix, uint64_t *length);

// A create that has hashes: true, the request is taken: it is answered with a fork of the longest match, or
// handle(arg, request) has it again, with `instead`, to be answered without. False: there is no match.
typedef void (*coordinator_prefix_instead_fn)(void *arg, struct proto_request *request);
bool coordinator_prefix_create(struct coordinator_sessions *sessions, struct proto_request *request,
                               const Banyan__Pb__Spec *spec, void (*again)(void *, struct proto_request *),
                               coordinator_prefix_instead_fn instead, void *arg);

// Whether it is the packed hashes of at least one chunk: else INVALID_ARGUMENT.
enum common_code coordinator_prefix_check(const ProtobufCBinaryData *prefix, struct proto_status *status);

// It goes, as one that room is wanted of, or that nobody wants any more. fn may be NULL. False: it does not.
bool coordinator_prefix_evict(struct coordinator_kept *kept, const char *why, coordinator_room_fn fn,
                              void *arg);
// Least recently used ones go until all are within the limit.
void coordinator_prefixes_trim(struct coordinator_sessions *sessions);

// Of the store: a session that was kept, when all else of it is read. False: it is none that can be kept any
// more.
bool coordinator_prefix_load(struct coordinator_session *s, uint64_t incarnation, uint64_t ttl_ns,
                             bool pinned, const void *hashes, size_t bytes);

#endif
