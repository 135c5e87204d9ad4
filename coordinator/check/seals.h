// SPDX-License-Identifier: Apache-2.0
// Seals. A chunk all of whose rows are acknowledged never changes again. When all its holders say the same of what their
// memory has (ChunkSum; docs/reference/wire.md, "Seals"), that is durable, and the chunk is *sealed*: from then on each copy can be
// told to be right or wrong by itself. A *check* asks all holders of one chunk:
//
//   ASKING ──all have the seal, or agree──▶ STORING (a chunk without a seal alone) ──▶ OVER
//      │                                                                              ▲
//      └──one differs──▶ TWICE: all of them again ── as before, or ───────────────────┘
//
// A worker with files (--store) that finds its memory wrong takes the chunk from them again, where they are right. Of a
// chunk without a seal that is where they have what the others say: of two that differ each is asked, the second time,
// to look for what the other one has.
// What becomes of a copy that differs twice:
//
//   sealed             struck off, as that of a lost worker (failover.h): no step uses it again; another takes its place
//                      the last one: the chunk is lost, as one whose holders have all died
//   not sealed         with more than half against it: struck off, and the chunk is sealed with what they say
//                      else nobody can tell: reported, and the chunk stays as it is, without a seal (it *differs*),
//                      until they agree: looked at again after an hour, or when somebody asks
//
// A check needs nobody to wait for it: steps go on, and what has changed meanwhile is not touched. Workers of a build that
// knows no sums are left alone, and their chunks are not sealed.
//
// The seal is of the layers that the session keeps (proto_spec_keeps): others are given back sooner or later. A session
// without such layers has no seals.
#ifndef COORDINATOR_SEALS_H
#define COORDINATOR_SEALS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#include "coordinator/session/layout.h"
struct common_timer;
struct common_machine;
struct coordinator_scrub_ask;
struct coordinator_session;
struct coordinator_sessions;
struct coordinator_worker;
struct proto_status;

extern const struct common_machine coordinator_check_machine;

struct coordinator_seals {               // of the room of sessions
    uint32_t n;                          // checks under way
    uint32_t slot, at;                   // where the next look goes on: session, chunk (scrub.h)
    bool due;                            // a check has ended
    uint32_t asks;                       // numbers given to who wants chunks compared now
    struct coordinator_scrub_ask *asked; // who asks or wants all compared, in order (scrub.c)
    struct common_timer *next_slice;     // NULL: not used yet
    uint32_t slice, passed,
        passed_most; // chunks that one turn may pass for them, has passed, and the most so far
    uint64_t compared, corrupt, disputed, sealed, refused,
        healed; // so far: copies, copies, checks, chunks, copies of moves, copies
};

// Whether all rows are acknowledged, and it has a layer that counts.
bool coordinator_chunk_full(const struct coordinator_session *s, const struct coordinator_chunk *chunk);

// Whether a check may begin: the session is in order, and for a chunk without a seal all its holders are there.
bool coordinator_chunk_may_check(const struct coordinator_session *s, const struct coordinator_chunk *chunk);

// The store has it: all copies must have it from now on. It is compared next when it is its turn.
void coordinator_chunk_sealed(struct coordinator_session *s, struct coordinator_chunk *chunk, uint64_t seal);

// scrub_ns is another one: each sealed chunk gets its turn within it, as if it were sealed now. Those whose turn has come
// keep it.
void coordinator_seals_spread(struct coordinator_sessions *sessions);

// Begins one. in_haste: as fast as it goes, also while another one of the chunk is under way. `done` (may be NULL) runs once, never on this stack. OK: each copy that is
// still counted has what was sealed, or is at a worker that knows no sums; of a chunk without a seal it says nothing.
// DATA_LOSS: none is left. UNAVAILABLE: one was struck off, or could not be asked.
typedef void (*coordinator_checked_fn)(void *arg, enum common_code code, const char *text);
void coordinator_check_begin(struct coordinator_session *s, struct coordinator_chunk *chunk, bool in_haste,
                             coordinator_checked_fn done, void *arg);

// None of its copies is fit (layout.h): it is lost, once the store has that. (A copy that is gone says so again at each start.)
void coordinator_chunk_lose(struct coordinator_session *s, struct coordinator_chunk *chunk);
// A copy that is fit has been stored while the chunk was being lost: it is not lost, here and in the store.
void coordinator_chunk_keep(struct coordinator_session *s, struct coordinator_chunk *chunk);

// Of a fork that was made before the chunk was sealed. Its origin has it sealed since: takes that over, which nobody has
// to be asked for. It has not, and may be checked: begins that, or waits for it. False: the fork's own check is needed.
bool coordinator_seal_inherit(struct coordinator_session *s, struct coordinator_chunk *chunk);

// As soon as may be, not when it is its turn: somebody has found that a copy is not what was sealed.
void coordinator_chunk_ask(struct coordinator_session *s, struct coordinator_chunk *chunk);

// Asks one worker for the seal of one chunk of the session that it has; want: what it should be, so that it may look for that in its
// files; 0: as it is. reply as in proto_reply_fn.
struct proto_reply;
void coordinator_seal_call(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                           struct coordinator_worker *w, uint64_t want, bool in_haste,
                           void (*done)(void *arg, const struct proto_reply *reply), void *arg);

#endif
