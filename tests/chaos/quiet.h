// SPDX-License-Identifier: Apache-2.0
// The same load without random faults, measured. Each prints its result as one JSON object in its last line
// and returns the exit status of the program.
#ifndef TESTS_CHAOS_QUIET_H
#define TESTS_CHAOS_QUIET_H

#include <stdbool.h>
#include <stdint.h>

// So many steps, with forks, attaches and truncates between them: does what each daemon occupies stay flat?
// It is flat when the second half of the run adds less than 4 MiB to what a daemon had in the middle.
int quiet_soak(uint64_t seed, uint64_t steps, bool json);

// How long steps of 8 sessions with two holders stand still, and how many fail, when a worker is killed or
// stopped; and the time from a coordinator's start on a store of 100 sessions to the first step that is
// answered, and to one of each session. Daemons have their own heartbeats. Fails when an answer is wrong, or
// an aim is missed: 300 ms where a worker is killed, 3 s where it stands still, no failed step, 2 s to one of
// each session, and afterwards 95 % of the steps a second before.
int quiet_pauses(uint64_t seed, uint64_t steps, bool json);

#endif
