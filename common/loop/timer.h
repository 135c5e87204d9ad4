// SPDX-License-Identifier: Apache-2.0
// The timers of one loop: a binary heap by due time, and one timerfd that fires for the first of them. The
// heap has a place for each timer from its making on, so that starting one needs no memory (libevent's own
// heap grows when a timer is started). Private to common/; loop.h has what others use.
#ifndef COMMON_TIMER_H
#define COMMON_TIMER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"

struct event;

struct common_timers {
    int fd;
    struct event *event;
    struct common_timer **heap; // [n_armed], by due time; room for [cap]
    uint32_t n_armed, n_live, cap;
    uint64_t set_ns; // when the descriptor fires; UINT64_MAX: never
    bool late;       // the first of them was due long ago, and waits until the sockets have had their turn
};

enum common_code common_timers_init(struct common_timers *timers, struct event_base *base);
void common_timers_fini(struct common_timers *timers); // all timers have been freed
struct common_timers *common_loop_timers(struct common_loop *loop);

#endif
