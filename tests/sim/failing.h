// SPDX-License-Identifier: Apache-2.0
// Included before everything else where common, proto, reduce and worker are built for tests without memory:
// what they allocate may be refused. The coordinator's own small objects may not
// (docs/internals/architecture.md, "Memory").
#ifndef TESTS_SIM_FAILING_H
#define TESTS_SIM_FAILING_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// The test's own, asked once for each allocation: sim_memory.c, by chance; worker/disk_memory_test.c, by
// their number.
bool failing_refuses(void);

#define COMMON_BLOCK_UNKEPT // else what is refused would depend on what has run before

// failing.c
void *sim_malloc(size_t size);
void *sim_calloc(size_t n, size_t size);
void *sim_realloc(void *block, size_t size);
void *sim_aligned_alloc(size_t align, size_t size);
char *sim_strdup(const char *text);

#define malloc(size)               sim_malloc(size)
#define calloc(n, size)            sim_calloc(n, size)
#define realloc(block, size)       sim_realloc(block, size)
#define aligned_alloc(align, size) sim_aligned_alloc(align, size)
#undef strdup
#define strdup(text) sim_strdup(text)

#endif
