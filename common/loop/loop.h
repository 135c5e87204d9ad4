// SPDX-License-Identifier: Apache-2.0
// An event loop thread and its only door, the mailbox. All state of a daemon belongs to one loop; other
// threads reach it by common_loop_mail and by nothing else. Posting and starting a timer need no memory: they
// cannot fail, and neither ends the process (common/README.md, "Memory").
#ifndef COMMON_LOOP_H
#define COMMON_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct event_base;
struct common_loop; // opaque

typedef void (*common_loop_fn)(void *arg);

// Creates a loop with its libevent base and mailbox. Does not run it.
enum common_code common_loop_new(struct common_loop **out);

// The libevent base: for the owning thread only.
struct event_base *common_loop_base(struct common_loop *loop);

// Runs on the calling thread until common_loop_stop; that thread owns the loop from then on.
// Everything posted before stop has run when this returns.
void common_loop_run(struct common_loop *loop);

// Starts a thread that runs the loop; common_loop_join waits for its end, and for borrowers' (after
// common_loop_stop). The thread blocks SIGPIPE: a write to a peer that has left is EPIPE there, whatever the
// process does about the signal.
enum common_code common_loop_start_thread(struct common_loop *loop, const char *thread_name);
void common_loop_join(struct common_loop *loop);

// Before the thread is started: it may be lent. may(arg) says, on the loop thread or on the one that has
// borrowed it, whether nothing is in progress that needs a wait at the sockets; it runs at the end of turns.
void common_loop_lend(struct common_loop *loop, bool (*may)(void *arg), void *arg);

// Runs fn on this thread in the place of the loop's own, and then turns of the loop until *done is not 0, so
// that what fn waits for comes without waking a thread, twice. The thread owns the loop until this returns;
// functions that others post run on it. False: fn has not run, the loop's thread is at work; it lends itself
// when it has done what it has, and comes back a few milliseconds after the last borrower. True, and *done
// may still be 0: other work has come, which the loop's thread does, and fn's with it.
bool common_loop_borrow(struct common_loop *loop, common_loop_fn fn, void *arg, const _Atomic uint32_t *done);

// On the thread that owns the loop: whether it has only borrowed it. Then it ends to do so at the end of the
// turn.
bool common_loop_give_back(struct common_loop *loop);

// On the thread that owns the loop: a caller has its answer. One that has borrowed the loop for it does
// nothing else of this turn first.
void common_loop_answered(struct common_loop *loop);

// Any thread. Makes run return once the mailbox is empty.
void common_loop_stop(struct common_loop *loop);

// One thing to run on the loop thread. Its memory is the poster's own, so that posting needs none: it lives
// in the object that it is about. In use from common_loop_mail until fn has begun; fn may post it again, and
// may free it. The fields are the loop's.
struct common_mail {
    struct common_mail *next;
    common_loop_fn fn;
    void *arg;
};

// Any thread, never blocks, never fails. Functions run on the loop thread in the order posted by each thread.
// A mail that is in use must not be posted again: so the number of posts is bounded by the number of mails.
void common_loop_mail(struct common_loop *loop, struct common_mail *mail, common_loop_fn fn, void *arg);

// Runs fn on the loop thread and waits for its end; from the loop thread itself, and while no thread runs the
// loop, calls it directly. The caller sees to it that the loop is not stopped meanwhile.
void common_loop_call(struct common_loop *loop, common_loop_fn fn, void *arg);

// The same on the loop's own thread, never on one that has borrowed it: what was posted before has run by
// then, and callbacks that must not run on a borrower (common_loop_give_back) as well.
void common_loop_call_own(struct common_loop *loop, common_loop_fn fn, void *arg);

// Whether the calling thread owns the loop, borrowed or not. True for any thread while the loop does not run.
bool common_loop_is_owner(const struct common_loop *loop);

// On the loop thread: something that callbacks which libevent has queued already may still look at, to be
// freed once they have run, at the latest with the loop. False: no memory, it is the caller's still.
bool common_loop_leave_behind(struct common_loop *loop, void (*release)(void *thing), void *thing);

// Frees the loop. It must not be running. What was posted after stop and has not run is dropped, and its
// mail, which may be gone by now, is not touched. NULL is allowed.
void common_loop_free(struct common_loop *loop);

// One-shot or periodic timer; all calls on the loop thread, free before the loop is freed. A timer is never
// early. One that is late by more than 100 ms, because the loop did not run, lets the sockets have their turn
// first. The function may start, stop or free its timer, and others. What memory a timer needs it has from
// common_timer_new on: RESOURCE_EXHAUSTED comes there and nowhere else.
struct common_timer;
enum common_code common_timer_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                  struct common_timer **out);
// Re-arms a timer that is armed.
void common_timer_start(struct common_timer *timer, unsigned long long delay_ns, bool repeat);
void common_timer_stop(struct common_timer *timer);
void common_timer_free(struct common_timer *timer); // NULL is allowed; stops it

// Work that a turn of the loop leaves for its end. Once marked, the function runs once, after every handler
// that is ready in this turn and before the loop waits again; until it runs, marking again changes nothing.
// It may mark itself, and then runs again in the same way. All calls on the loop thread; free it before the
// loop.
struct common_deferred;
enum common_code common_deferred_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                     struct common_deferred **out);
void common_deferred_mark(struct common_deferred *deferred);
void common_deferred_free(struct common_deferred *deferred); // NULL is allowed; what is marked does not run

// An event handler that is on the path of a step stands between these two. If no other handler is ready in
// this turn, what it marked runs in common_loop_leave, and the way through the queue of events is saved;
// otherwise it runs at the turn's end as usual. Nothing that a deferred function may free is touched after
// common_loop_leave.
void common_loop_enter(struct common_loop *loop);
void common_loop_leave(struct common_loop *loop);

#endif
