// SPDX-License-Identifier: Apache-2.0
// What a session should hold, kept in the test's own memory, and the float64 reference over it.
#ifndef TESTS_CLIENT_MIRROR_H
#define TESTS_CLIENT_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "client/banyan.h"

struct mirror;

// K, V and queries of `tokens` positions of every layer, random by seed. Aborts when memory is short.
struct mirror *mirror_new(const banyan_spec *spec, uint64_t tokens, uint64_t seed);
void mirror_free(struct mirror *mirror); // NULL is allowed

// As the library takes them, from position `first` on.
const void *mirror_k(const struct mirror *mirror, uint32_t layer, uint64_t first);
const void *mirror_v(const struct mirror *mirror, uint32_t layer, uint64_t first);
const float *mirror_k_scale(const struct mirror *mirror, uint32_t layer, uint64_t first); // NULL: no scales
const float *mirror_v_scale(const struct mirror *mirror, uint32_t layer, uint64_t first);
const float *mirror_q(const struct mirror *mirror, uint64_t first);
// Other values from position `first` on, in every layer.
void mirror_change(struct mirror *mirror, uint64_t first, uint64_t seed);

// Fails the test when o or lse (NULL: not looked at) of rows [first, first + rows) are off by more than the
// project's promise. visible 0: first + rows.
void mirror_check(const struct mirror *mirror, uint32_t layer, uint64_t first, uint32_t rows,
                  uint64_t visible, const float *o, const float *lse);

#endif
