// SPDX-License-Identifier: Apache-2.0
// The world of targets that have real loops and links: in the place of common/base/clock.h,
// common/loop/timer.h and common/base/random.h, whose members the linker then does not take, a clock that
// stands still and bytes that are always the same; and in the place of proto/stream/acceptor.h connections
// that a target makes itself, of socket pairs.
#ifndef TESTS_FUZZ_WORLD_H
#define TESTS_FUZZ_WORLD_H

#include "common/loop/loop.h"

void fuzz_world_begin(void);              // of an input: random bytes start again
void fuzz_turn(struct common_loop *loop); // runs all that is ready, and what that makes ready
// A connection to what listened last. Returns the other end, non-blocking, the caller's to close; -1: there
// is no listener.
int fuzz_connect(void);

#endif
