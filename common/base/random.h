// SPDX-License-Identifier: Apache-2.0
// Random bytes. A file of its own, so that a simulation can put its own in its place (tests/sim).
#ifndef COMMON_RANDOM_H
#define COMMON_RANDOM_H

#include <stdbool.h>
#include <stddef.h>

// From the kernel, which needs no memory for them. False on a system that gives none (a sandbox that forbids
// getrandom): `out` must not be used. Any thread.
__attribute__((warn_unused_result)) bool common_random(void *out, size_t len);

#endif
