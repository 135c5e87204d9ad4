// SPDX-License-Identifier: Apache-2.0
// A bit that flips in the memory of a daemon.
#ifndef TESTS_E2E_FLIP_H
#define TESTS_E2E_FLIP_H

#include <stddef.h>

// Flips a bit of the bytes where they lie in a process's memory, everywhere. Returns how often; −1: the
// system does not let a test do that.
int flip_in_memory(int pid, const void *bytes, size_t len);

#endif
