// SPDX-License-Identifier: Apache-2.0
// Generation-stamped handles: opaque 64-bit numbers that name an object in a table. Zero is never valid; a
// handle of a freed object is never valid again (generation in the upper 32 bits, slot + 1 in the lower). Not
// thread-safe. The generation is the life of the table (its low 20 bits) and a count of the slot's uses (12
// bits).
#ifndef COMMON_HANDLE_H
#define COMMON_HANDLE_H

#include <stdint.h>

#include "common/base/status.h"

struct common_handle_table; // opaque

// At most `limit` live objects. `first_generation` > 0: pass a durable number that rises at each start, so
// that handles of an earlier life of the daemon stay invalid (of the last million lives: it counts modulo
// 2^20). NULL when memory is short.
struct common_handle_table *common_handle_table_new(uint32_t limit, uint32_t first_generation);
void common_handle_table_free(struct common_handle_table *table); // objects are not touched; NULL is allowed

// RESOURCE_EXHAUSTED at the limit; INVALID_ARGUMENT for a NULL object.
enum common_code common_handle_add(struct common_handle_table *table, void *object, uint64_t *out);
void *common_handle_get(const struct common_handle_table *table, uint64_t handle); // NULL when not valid
void *common_handle_remove(struct common_handle_table *table, uint64_t handle);    // the object, or NULL

#endif
