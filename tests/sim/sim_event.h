// SPDX-License-Identifier: Apache-2.0
// Events, for the parts of the simulator itself. Tests use sim.h.
#ifndef TESTS_SIM_SIM_EVENT_H
#define TESTS_SIM_SIM_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"

enum sim_kind { SIM_POST, SIM_TIMER, SIM_DEFERRED, SIM_WIRE, SIM_DISK, SIM_TEAM, SIM_FILES };

// Lives inside the object that it belongs to: init once, arm and cancel as often as one likes, cancelled
// before the memory goes.
struct sim_event {
    uint64_t at_ns, seq;
    uint32_t place;           // in the queue, from 1; 0: not armed; SIM_EVENT_HELD: its loop is frozen
    struct common_loop *loop; // on which it runs; NULL: on none (a disk)
    const void *lane;         // events of one lane keep their order when sim_shuffle is on
    enum sim_kind kind;
    common_loop_fn fn;
    void *arg;
    struct sim_event *held_next, *held_prev; // while its loop is frozen
};

#define SIM_EVENT_HELD UINT32_MAX

void sim_event_init(struct sim_event *event, enum sim_kind kind, struct common_loop *loop, const void *lane,
                    common_loop_fn fn, void *arg);
void sim_event_arm(struct sim_event *event, uint64_t at_ns); // an armed one is armed again; never in the past
void sim_event_cancel(struct sim_event *event);
// Runs the next event from inside one, unless that is later than the time to which events are being run.
// False: none.
bool sim_step_within(void);
static inline bool sim_event_armed(const struct sim_event *event)
{
    return event->place != 0;
}

struct sim_mail;

struct common_loop { // a process
    const char *name;
    bool frozen, muted;
    struct sim_event *held; // while it is frozen, in order of time
    struct sim_mail *mail;  // posted and not run, in no order
    int64_t skew_ns;
    uint32_t number;
};

void sim_process_begin(struct common_loop *loop);
void sim_process_end(struct common_loop *loop);
const struct common_loop *sim_process_running(void); // whose event runs; NULL: none's

// A thread of an application has the one thread now (sim_caller.h): no loop is its own.
extern bool sim_is_caller;

// Objects that must be gone at sim_end are counted here.
extern uint64_t sim_alive;

// At the beginning of a world: what an earlier one left (because its test failed) is forgotten and leaked.
void sim_net_forget(void);
void sim_disks_forget(void);
// At the end of a process: its rules (sim_serve.h).
void sim_serve_forget(const struct common_loop *loop);

#endif
