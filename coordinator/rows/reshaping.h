// SPDX-License-Identifier: Apache-2.0
// The inside of truncate, fork and delete (reshape.h): one operation, which waits until it is alone with its
// session, copies a chunk that its length cuts, and ends in the same way. For truncate.c, fork.c and
// delete.c alone. Loop thread.
#ifndef COORDINATOR_RESHAPING_H
#define COORDINATOR_RESHAPING_H

#include "coordinator/check/seals.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/rows/reshape.h"
#include "coordinator/session/cuts.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"

struct coordinator_reshape { // one operation; `request` is NULL when nobody asked (an idle session)
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    struct coordinator_session *s;     // alone
    struct coordinator_session *fork;  // the new one
    uint64_t length, key, idle_ttl_ns; // key, idle_ttl_ns (0: its origin's): of a fork
    struct coordinator_cut cutting;    // of a truncate
    char name[COORDINATOR_NAME_BYTES];
    struct coordinator_fork_wish wish;  // of a fork that answers a create; instead NULL: it does not
    const char *why;                    // of a deletion that no client asked for
    coordinator_discarded_fn discarded; // of it; may be NULL
    void *discarded_arg;
    struct proto_status refusal; // of a fork that waits for room
    uint64_t idle_ns; // a deletion for idleness: when the session was last used; 0: another operation
    bool copying;
    struct coordinator_chunk cut; // what is copied
    struct coordinator_chunk copy;
    uint64_t instances[COORDINATOR_COPIES_MAX]; // which processes were asked for one
};

// ---- beginning and end --------------------------------------------------------------------------

// `as` says what is wished, without its request; id: of the session. It is copied.
void coordinator_reshape_start(const struct coordinator_reshape *as, struct proto_request *request,
                               uint64_t id, enum coordinator_session_state state, coordinator_session_fn fn);
// It ends before it has begun: the session is gone, or whoever asked. A truncate that comes so late could
// take away what the same client has written since. True: `r` is freed.
bool coordinator_reshape_gone(struct coordinator_reshape *r, struct coordinator_session *s);
// The session is open again. Frees `r`.
void coordinator_reshape_end(struct coordinator_reshape *r);

// Answer the request, once; without one they do nothing.
void coordinator_reshape_fail(struct coordinator_reshape *r, const struct proto_status *status);
void coordinator_reshape_fail_why(struct coordinator_reshape *r, enum common_code code,
                                  enum proto_reason reason, const char *text);
void coordinator_reshape_fail_code(struct coordinator_reshape *r, enum common_code code, const char *text);
void coordinator_reshape_fail_stored(struct coordinator_reshape *r, enum common_code code,
                                     const char *text); // by the store
// A worker has not made what it was asked for. One that lost its layout is not a session that does not exist,
// and one that cannot be spoken to (another release, at its first words) is one that is not there yet.
void coordinator_reshape_fail_copy(struct coordinator_reshape *r, enum common_code code, const char *text);

// ---- copying what a length cuts -----------------------------------------------------------------

// Finds the chunk that r->length cuts and gives its copy an id. Nothing to copy is OK too.
enum common_code coordinator_reshape_plan_copy(struct coordinator_reshape *r, struct proto_status *status);
// Of a sealed chunk holders copy only what was sealed: the copy has no seal of its own yet. `go` goes on.
void coordinator_reshape_copy_when_right(struct coordinator_reshape *r, coordinator_checked_fn go);
// A copy was struck off, and the request has ended: the next one finds the others. True: `r` is freed.
bool coordinator_reshape_copy_is_wrong(struct coordinator_reshape *r, enum common_code code,
                                       const char *text);
// Asks each holder of the chunk for a copy, for that session.
void coordinator_reshape_send_copy(struct coordinator_reshape *r, uint64_t session, uint64_t incarnation,
                                   struct coordinator_gather *gather);
// All have answered: whether they have it still. One that was restarted before the last of them answered
// has said what it has before the copy was in a layout; one that is later says so after this is stored.
enum common_code coordinator_reshape_copy_stands(const struct coordinator_reshape *r, enum common_code code,
                                                 const char **text);
// The copy is in the layout: it counts where the process that made it is still there. Another one has said
// what it has, or will, as of any other chunk.
void coordinator_reshape_copy_counts(struct coordinator_reshape *r);
// What was copied is not to be: so that its holders forget it.
void coordinator_reshape_doubt_copy(struct coordinator_reshape *r);

#endif
