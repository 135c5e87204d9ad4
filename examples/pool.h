// SPDX-License-Identifier: Apache-2.0
// A few threads that sleep between calls (they share the machine with the workers) and run the indices of one
// loop at a time.
#ifndef EXAMPLES_POOL_H
#define EXAMPLES_POOL_H

struct pool; // opaque

struct pool *pool_new(unsigned threads); // the caller counts as one of them; NULL when out of memory
void pool_free(struct pool *pool);       // NULL is allowed

// Runs fn(arg, i) for i in [0, n) on the pool and on the caller; returns when all have run. Not reentrant.
void pool_run(struct pool *pool, unsigned n, void (*fn)(void *arg, unsigned i), void *arg);

#endif
