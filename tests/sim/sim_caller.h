// SPDX-License-Identifier: Apache-2.0
// A thread of an application that uses libbanyan, which blocks: the real library in a simulated world.
//
// It has a stack of its own, and the one thread goes back and forth. Where the library waits for its I/O
// thread (client_wait_for), the world goes on; once the wait is over the caller does, some microseconds
// later, as an event of a process of its own. So whatever may happen while a call blocks does, from the seed,
// and the order of events is the seed's.
//
//   sim_caller_start ──▶ fn(arg) ──client_wait_for──▶ (the world runs) ──client_wait_signal──▶ … ──▶ over
//
// What common_loop_new and common_loop_start_thread make inside fn is the library's I/O thread: a process
// like any other. One caller at a time.
#ifndef TESTS_SIM_SIM_CALLER_H
#define TESTS_SIM_SIM_CALLER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"

struct sim_caller;

// fn begins soon, and must return before the world ends.
struct sim_caller *sim_caller_start(void (*fn)(void *arg), void *arg);
bool sim_caller_over(const struct sim_caller *caller);          // fn has returned
void sim_caller_free(struct sim_caller *caller);                // one that is over
struct common_loop *sim_caller_loop(struct sim_caller *caller); // to freeze it

void sim_caller_sleep(uint64_t ns); // from fn

#endif
