// SPDX-License-Identifier: Apache-2.0
// What a disk does to files of a worker's --store between two reads.
#ifndef TESTS_CHAOS_STORES_H
#define TESTS_CHAOS_STORES_H

#include <stdbool.h>
#include <stdint.h>

// Whether banyan-worker has --store.
bool stores_supported(void);

enum stores_damage { STORES_FLIP, STORES_CUT };
// Flips one bit of a file below `dir`, or cuts one short; `dice` says which and where. False: there is none
// that has bytes. path: which one it was.
bool stores_damage(const char *dir, enum stores_damage how, uint64_t dice, char *path, unsigned path_len);

#endif
