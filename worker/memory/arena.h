// SPDX-License-Identifier: Apache-2.0
// Where pages and blocks of K and V lie: large mappings, cut up with little waste.
//
//     mapping (64 MiB):  | extent (2 MiB) | extent | extent | extent | ...
//                        | page | block   | blo.ck | rest   | bare   |
//
// A mapping is a row of spans, each USED (one allocation), HELD (free, in an extent that something else uses)
// or BARE (whole extents that nothing uses). Allocations follow each other without headers, each at a multiple
// of 64 bytes; free neighbours become one span, and whole extents of it become BARE. What is needed is looked
// for among HELD spans first, then BARE ones, by classes of size (two-level segregated fit: Masmano et al.
// 2004), in constant time; a mapping is made when nothing fits.
//
// The account is exact: what counts (`worker_arena_held`) is every extent that holds an allocation, whole, so
// that fragmentation counts like what is stored, and the arena's own tables. BARE extents do not count, but
// the system may still hold their memory, warm for what comes next; with that, too, the arena stays within
// what alloc's caller allows. An empty mapping is unmapped, but up to `keep_bytes` of them wait for
// worker_arena_tidy, since fresh memory costs page faults.
//
// What was released is never read. An extent in which something was is *soiled* until its free parts are
// zeros, which worker_arena_clean makes them, a little at a time; what is allocated in a soiled one is zeroed
// first. So memory is zeros when alloc gives it, whatever it held before, and soon after it was released;
// fresh memory, which the system has zeroed, costs nothing more. That holds for memory that this process
// reaches (`addressable`).
//
// An extent has 2 MiB, one huge page; where the limit is small, 64 KiB or 64 bytes. All functions belong to the
// loop thread.
#ifndef WORKER_ARENA_H
#define WORKER_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// proto/model/footprint.c counts with these for the coordinator.
#define WORKER_ARENA_MAPPING (UINT64_C(64) << 20)
#define WORKER_ARENA_HUGE    (UINT64_C(2) << 20)
#define WORKER_ARENA_NODE    128u // bytes that count for an allocation's place in the tables

struct worker_arena; // opaque

struct worker_arena_source { // of mappings
    // At least 64-byte aligned, at a multiple of 2 MiB where `bytes` is one. NULL: there is none.
    void *(*map)(void *arg, size_t bytes);
    void (*unmap)(void *arg, void *base, size_t bytes);
    // Gives the memory of a part back; what comes after reads zeros (`zeros`) or anything. NULL: only unmap does, and a
    // mapping has all of its memory from the beginning.
    void (*discard)(void *arg, void *base, size_t bytes);
    bool zeros;
    bool addressable; // by this process
    bool keeps;       // what was unmapped is mapped again as it was: it is cleaned before
    void *arg;
};

struct worker_arena_options {
    uint64_t limit_bytes; // that it will ever hold: decides the sizes of extents and mappings
    uint64_t keep_bytes;  // of empty mappings
    void (*soiled)(
        void *arg); // NULL, or called when the first extent is: worker_arena_clean is to be called, later
    void *soiled_arg;
    struct worker_arena_source source;
};

struct worker_arena *worker_arena_new(const struct worker_arena_options *options); // NULL: out of memory
void worker_arena_free(struct worker_arena *arena); // nothing is allocated; NULL is allowed

// At a multiple of 64, zeros. `room`: by how many bytes worker_arena_held may rise. NULL: that, or the source, does
// not do.
void *worker_arena_alloc(struct worker_arena *arena, size_t bytes, uint64_t room);
void worker_arena_release(struct worker_arena *arena, void *memory); // NULL is allowed

uint64_t worker_arena_held(const struct worker_arena *arena);   // what counts, see above
uint64_t worker_arena_mapped(const struct worker_arena *arena); // bytes of all mappings
uint64_t worker_arena_warm(const struct worker_arena *arena);   // of BARE extents that the system still holds
uint64_t worker_arena_extent(const struct worker_arena *arena); // bytes of one

// Unmaps mappings that have been empty since before `before_ns`, a time of common_clock_ns.
void worker_arena_tidy(struct worker_arena *arena, uint64_t before_ns);

// Zeroes free parts of soiled extents, at most so many bytes, or one extent. Whether some are left.
bool worker_arena_clean(struct worker_arena *arena, uint64_t most_bytes);
uint64_t worker_arena_soiled(const struct worker_arena *arena); // bytes of soiled extents

// Whether the tables agree with each other and with the account: for tests, linear time.
bool worker_arena_check(const struct worker_arena *arena);

#endif
