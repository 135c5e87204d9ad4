// SPDX-License-Identifier: Apache-2.0
// The world of a simulation: one thread, simulated time, and every event of every loop in one queue.
//
// A program that is linked with the objects of tests/sim has these in the place of common/loop/loop.h and
// common/base/clock.h; proto's transports, the coordinator's store and the worker's team are replaced, too
// (sim_net.h, sim_store.h, sim_worker.h). A loop stands for a process. Nothing runs by itself: the functions
// below run what is due, on the caller's stack.
//
//   common_loop_mail ───┐
//   timers ─────────────┤      at_ns, then the order of arming
//   deferred ───────────┼──▶ one queue ──sim_step──▶ fn(arg), with the clock at at_ns
//   links, disks, teams ┘
//
// The order is that of time, then of arming. With sim_shuffle, events of the same instant run in an order
// drawn from the seed; what one loop was posted, and what travels one way on one link, stays in order, and a
// deferred function comes after everything of its loop that was ready when it was marked.
//
// The same program with the same seed runs the same events at the same times: sim_trace compares runs.
// Memory: what the simulator itself needs it takes, or aborts.
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"

// ---- the world ------------------------------------------------------------------------------------------

// Begins at sim_clock() == 1000 s with an empty queue. There is one world at a time.
void sim_begin(uint64_t seed);

// Ends the world. Everything in it must be gone: asserts that no loop, link, listener or disk write is left.
void sim_end(void);

// Draws below n (n > 0) from the seed: for tests, delays and the order of events.
uint64_t sim_random(uint64_t n);

// Whether events of one instant are permuted. Off at the beginning.
void sim_shuffle(bool on);

// ---- running --------------------------------------------------------------------------------------------

// Runs the next event, after moving the clock to its time. False: nothing is armed but on frozen loops.
bool sim_step(void);

// Runs until nothing but timers is armed: no post, no message on its way, no disk write. Timers that fall due
// meanwhile run. What is held (sim_net_hold, frozen loops, a stalled disk) is not waited for.
void sim_run_until_idle(void);

// Runs everything that is due within delta_ns, and leaves the clock there.
void sim_advance(uint64_t delta_ns);

// Runs until *done, for at most limit_ns. Returns *done.
bool sim_run_until(const bool *done, uint64_t limit_ns);

// Runs until holds(arg), which is asked after each event, for at most limit_ns. Returns its last answer.
bool sim_run_while_not(bool (*holds)(void *arg), void *arg, uint64_t limit_ns);

// Calls it after each event, until the world ends. NULL: calls nothing.
void sim_after_each(void (*fn)(void));

uint64_t sim_clock(void);  // ns, as common_clock_ns
uint64_t sim_events(void); // so many have run
uint64_t sim_trace(void);  // a hash over all that have run: time, loop, kind

// ---- loops as processes ---------------------------------------------------------------------------------

// A name for traces and for messages of failed assertions; kept, not copied.
void sim_loop_name(struct common_loop *loop, const char *name);

// A frozen process runs nothing; its events wait, and run in their old order, late, once it is thawed. Links
// stay up and fill. (SIGSTOP, a machine that sleeps.) Timers that are late by more than 100 ms then come
// last.
void sim_loop_freeze(struct common_loop *loop);
void sim_loop_thaw(struct common_loop *loop);

// From now on nothing that it does reaches another process: frames are dropped as they are sent. For the
// moment of a kill, after which the object is stopped and freed in an orderly way.
void sim_loop_mute(struct common_loop *loop);
bool sim_loop_muted(const struct common_loop *loop);

// Runs what is due on this loop now, and what that makes due now, but reads nothing from its links: the end
// of an object that waits for its own posts, timers and jobs.
void sim_loop_drain(struct common_loop *loop);

// The end of a process, as common_loop_run does it after common_loop_stop: what was posted runs, and what
// that posts, a turn later; what the last turn has left for its end (common_deferred) does not run any more.
void sim_loop_end(struct common_loop *loop);

// Added to this process's wall clock (common_clock_wall_ns). The monotonic clock is one for all.
void sim_loop_skew(struct common_loop *loop, int64_t ns);

#endif
