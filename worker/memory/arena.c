// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/wipe.h"
#include "worker/memory/map.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)   ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

#define UNIT       64u // bytes: what sizes and places are multiples of
#define FIRST_BITS 42  // classes: powers of two ...
#define SECOND     16u // ... each cut in 16
#define LOOK       8u  // spans of a class that are looked at

enum state { USED, HELD, BARE };

struct mapping {
    struct mapping *prev, *next;
    uint8_t *base;
    uint64_t bytes;
    struct span *first;
    uint64_t emptied_ns; // when it is one BARE span; 0: it is not
    uint64_t *soiled;    // a bit per extent: behind `touched`
    uint64_t touched[];  // a bit per extent: the system may hold memory for it
};

struct span {
    struct span *prev, *next; // neighbours in the mapping
    struct span *back, *fore; // of the same class; not for USED ones
    struct mapping *mapping;
    uint64_t at, bytes; // in the mapping
    enum state state;
};

struct lists { // HELD spans, or BARE ones
    uint64_t first;
    uint32_t second[FIRST_BITS];
    struct span *head[FIRST_BITS][SECOND];
};

struct worker_arena {
    struct worker_arena_options options;
    uint64_t extent, mapping_bytes;
    struct mapping *mappings;
    struct lists lists[2];
    struct worker_map used;               // by address
    uint64_t held, mapped, touched, kept; // kept: bytes of empty mappings
    uint64_t soiled;
};

// ---- classes ------------------------------------------------------------------------------------

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

// Sizes of a class: below 16 units one; above, [2^b + c 2^(b-4), 2^b + (c + 1) 2^(b-4)) units.
static void class_of(uint64_t bytes, uint32_t *first, uint32_t *second)
{
    uint64_t units = bytes / UNIT;
    if (units < SECOND) {
        *first = 0;
        *second = (uint32_t)units;
        return;
    }
    uint32_t bits = 63u - (uint32_t)__builtin_clzll(units);
    *first = bits - 3;
    *second = (uint32_t)(units >> (bits - 4)) & (SECOND - 1);
}

static void span_list(struct worker_arena *arena, struct span *span, enum state state)
{
    struct lists *lists = &arena->lists[state - HELD];
    uint32_t first, second;
    class_of(span->bytes, &first, &second);
    struct span **head = &lists->head[first][second];
    span->state = state;
    span->back = NULL;
    span->fore = *head;
    if (*head)
        (*head)->back = span;
    *head = span;
    lists->first |= UINT64_C(1) << first;
    lists->second[first] |= 1u << second;
}

static void span_unlist(struct worker_arena *arena, struct span *span)
{
    struct lists *lists = &arena->lists[span->state - HELD];
    if (span->fore)
        span->fore->back = span->back;
    if (span->back) {
        span->back->fore = span->fore;
        return;
    }
    uint32_t first, second;
    class_of(span->bytes, &first, &second);
    lists->head[first][second] = span->fore;
    if (span->fore)
        return;
    lists->second[first] &= ~(1u << second);
    if (lists->second[first] == 0)
        lists->first &= ~(UINT64_C(1) << first);
}

// A span of at least `bytes`: one of its own class, if one of the first does, else of the next class.
static struct span *span_find(const struct worker_arena *arena, enum state state, uint64_t bytes)
{
    const struct lists *lists = &arena->lists[state - HELD];
    uint32_t first, second, looked = 0;
    class_of(bytes, &first, &second);
    for (struct span *span = lists->head[first][second]; span && looked < LOOK; span = span->fore, looked++)
        if (span->bytes >= bytes)
            return span;
    uint32_t more = lists->second[first] & ~((2u << second) - 1);
    if (more == 0) {
        uint64_t above = lists->first & ~((UINT64_C(2) << first) - 1);
        if (above == 0)
            return NULL;
        first = (uint32_t)__builtin_ctzll(above);
        more = lists->second[first];
    }
    return lists->head[first][__builtin_ctz(more)];
}

// ---- spans --------------------------------------------------------------------------------------

// Cuts a span in two; the second part, in no list, is returned. NULL: out of memory.
static struct span *span_cut(struct span *span, uint64_t bytes)
{
    struct span *rest = malloc(sizeof *rest);
    if (!rest)
        return NULL;
    *rest = (struct span){.prev = span,
                          .next = span->next,
                          .mapping = span->mapping,
                          .at = span->at + bytes,
                          .bytes = span->bytes - bytes};
    if (rest->next)
        rest->next->prev = rest;
    span->next = rest;
    span->bytes = bytes;
    return rest;
}

static void span_join(struct span *span, struct span *next) // next is in no list
{
    span->bytes += next->bytes;
    span->next = next->next;
    if (span->next)
        span->next->prev = span;
    free(next);
}

// Makes a span that is in no list one with its neighbours in that state, and lists it.
static struct span *span_settle(struct worker_arena *arena, struct span *span, enum state state)
{
    if (span->next && span->next->state == state) {
        span_unlist(arena, span->next);
        span_join(span, span->next);
    }
    if (span->prev && span->prev->state == state) {
        span = span->prev;
        span_unlist(arena, span);
        span_join(span, span->next);
    }
    span_list(arena, span, state);
    return span;
}

// ---- extents -------------------------------------------------------------------------------------

// Counts, or with `set` also marks, the bytes of a stretch of extents that the system does not hold yet.
static uint64_t cold(struct worker_arena *arena, struct mapping *mapping, uint64_t at, uint64_t bytes,
                     bool set)
{
    uint64_t n = 0;
    for (uint64_t extent = at / arena->extent; extent < (at + bytes) / arena->extent; extent++) {
        uint64_t bit = UINT64_C(1) << extent % 64;
        n += mapping->touched[extent / 64] & bit ? 0 : arena->extent;
        if (set)
            mapping->touched[extent / 64] |= bit;
    }
    return n;
}

// ---- what was in it -----------------------------------------------------------------------------

static bool is_soiled(const struct mapping *mapping, uint64_t extent)
{
    return mapping->soiled[extent / 64] >> extent % 64 & 1;
}

static bool any_soiled(const struct worker_arena *arena, const struct mapping *mapping, uint64_t at,
                       uint64_t bytes)
{
    for (uint64_t extent = at / arena->extent; arena->soiled && extent * arena->extent < at + bytes; extent++)
        if (is_soiled(mapping, extent))
            return true;
    return false;
}

// All extents that the stretch touches.
static void set_soiled(struct worker_arena *arena, struct mapping *mapping, uint64_t at, uint64_t bytes,
                       bool soiled)
{
    bool first = arena->soiled == 0;
    for (uint64_t extent = at / arena->extent; extent * arena->extent < at + bytes; extent++) {
        if (is_soiled(mapping, extent) == soiled)
            continue;
        mapping->soiled[extent / 64] ^= UINT64_C(1) << extent % 64;
        arena->soiled += soiled ? arena->extent : -arena->extent;
    }
    if (first && arena->soiled && arena->options.soiled)
        arena->options.soiled(arena->options.soiled_arg);
}

static void wipe(uint8_t *memory, uint64_t bytes, bool free_memory)
{
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    common_wipe(memory, bytes);
    if (free_memory)
        ASAN_POISON_MEMORY_REGION(memory, bytes);
}

// Zeroes what is free of a stretch of whole extents: none of them is soiled then.
static void clean_stretch(struct worker_arena *arena, struct mapping *mapping, uint64_t at, uint64_t bytes)
{
    for (const struct span *span = mapping->first; span && span->at < at + bytes; span = span->next) {
        uint64_t from = span->at > at ? span->at : at, to = span->at + span->bytes;
        if (to > at + bytes)
            to = at + bytes;
        if (span->state != USED && from < to)
            wipe(mapping->base + from, to - from, true);
    }
    set_soiled(arena, mapping, at, bytes, false);
}

// Soiled extents that follow each other, at most so many bytes of them, cleaned. Their bytes; 0: there are none.
static uint64_t clean_first(struct worker_arena *arena, struct mapping *mapping, uint64_t most)
{
    uint64_t n = mapping->bytes / arena->extent, first = 0, end;
    while (first < n && !is_soiled(mapping, first)) // words of 64 at once
        first = mapping->soiled[first / 64] >> first % 64 ? first + 1 : (first / 64 + 1) * 64;
    if (first >= n)
        return 0;
    for (end = first + 1; end < n && is_soiled(mapping, end) && (end + 1 - first) * arena->extent <= most;)
        end++;
    clean_stretch(arena, mapping, first * arena->extent, (end - first) * arena->extent);
    return (end - first) * arena->extent;
}

bool worker_arena_clean(struct worker_arena *arena, uint64_t most_bytes)
{
    for (struct mapping *mapping = arena->mappings; mapping && arena->soiled; mapping = mapping->next)
        for (uint64_t done; (done = clean_first(arena, mapping, most_bytes)) > 0; most_bytes -= done)
            if (done >= most_bytes)
                return arena->soiled > 0;
    return arena->soiled > 0;
}

uint64_t worker_arena_soiled(const struct worker_arena *arena)
{
    return arena->soiled;
}

static void extents_discard(struct worker_arena *arena, struct span *bare)
{
    struct mapping *mapping = bare->mapping;
    for (uint64_t at = bare->at; at < bare->at + bare->bytes; at += arena->extent) {
        uint64_t extent = at / arena->extent, bit = UINT64_C(1) << extent % 64;
        if (!(mapping->touched[extent / 64] & bit))
            continue;
        mapping->touched[extent / 64] &= ~bit;
        arena->touched -= arena->extent;
        if (arena->options.source.addressable)
            ASAN_UNPOISON_MEMORY_REGION(mapping->base + at, arena->extent);
        arena->options.source.discard(arena->options.source.arg, mapping->base + at, arena->extent);
        if (arena->options.source.addressable)
            ASAN_POISON_MEMORY_REGION(mapping->base + at, arena->extent);
        if (arena->options.source.zeros)
            set_soiled(arena, mapping, at, arena->extent, false);
    }
}

static void mapping_unmap(struct worker_arena *arena, struct mapping *mapping)
{
    struct span *span = mapping->first;
    assert(!span->next && span->state == BARE);
    if (mapping->emptied_ns)
        arena->kept -= mapping->bytes;
    arena->touched -= mapping->bytes - cold(arena, mapping, 0, mapping->bytes, false);
    if (arena->options.source.keeps)
        while (clean_first(arena, mapping, mapping->bytes) > 0)
            ;
    set_soiled(arena, mapping, 0, mapping->bytes, false);
    span_unlist(arena, span);
    free(span);
    if (mapping->next)
        mapping->next->prev = mapping->prev;
    *(mapping->prev ? &mapping->prev->next : &arena->mappings) = mapping->next;
    arena->mapped -= mapping->bytes;
    if (arena->options.source.addressable)
        ASAN_UNPOISON_MEMORY_REGION(mapping->base, mapping->bytes);
    arena->options.source.unmap(arena->options.source.arg, mapping->base, mapping->bytes);
    free(mapping);
}

// Makes the memory that the system holds fit into `most` when `more` is added. False: it cannot be.
static bool make_room(struct worker_arena *arena, uint64_t more, uint64_t most)
{
    for (struct mapping *mapping = arena->mappings, *next; mapping && arena->touched + more > most;
         mapping = next) {
        next = mapping->next;
        if (mapping->emptied_ns) {
            mapping_unmap(arena, mapping);
            continue;
        }
        for (struct span *span = mapping->first; arena->options.source.discard && span; span = span->next)
            if (span->state == BARE)
                extents_discard(arena, span);
    }
    return arena->touched + more <= most;
}

// A mapping with room for `bytes`. NULL: the source has none, or it would be too much.
static struct mapping *mapping_new(struct worker_arena *arena, uint64_t bytes, uint64_t most)
{
    const struct worker_arena_source *source = &arena->options.source;
    uint64_t need = up(bytes, arena->extent), size = need;
    if (size < arena->mapping_bytes)
        size = arena->mapping_bytes;
    if (!source->discard) { // all of it counts at once
        if (!make_room(arena, need, most))
            return NULL;
        if (size > most - arena->touched)
            size = (most - arena->touched) / arena->extent * arena->extent;
    }
    uint64_t words = (size / arena->extent + 63) / 64;
    struct mapping *mapping = calloc(1, sizeof *mapping + 2 * words * sizeof *mapping->touched);
    struct span *span = malloc(sizeof *span);
    if (mapping && span)
        mapping->base = source->map(source->arg, size);
    while (mapping && span && !mapping->base && size > need) { // less may be had
        size = size / 2 > need ? up(size / 2, arena->extent) : need;
        mapping->base = source->map(source->arg, size);
    }
    if (!mapping || !span || !mapping->base) {
        free(mapping);
        free(span);
        return NULL;
    }
    if (source->addressable)
        ASAN_POISON_MEMORY_REGION(mapping->base, size);
    mapping->bytes = size;
    mapping->soiled = mapping->touched + words;
    mapping->first = span;
    mapping->emptied_ns = 1;
    mapping->next = arena->mappings;
    if (mapping->next)
        mapping->next->prev = mapping;
    arena->mappings = mapping;
    arena->mapped += size;
    arena->kept += size;
    if (!source->discard)
        arena->touched += cold(arena, mapping, 0, size, true);
    *span = (struct span){.mapping = mapping, .bytes = size};
    span_list(arena, span, BARE);
    return mapping;
}

// ---- allocating ---------------------------------------------------------------------------------

// A HELD span of at least `bytes`, made of BARE extents and what is HELD before them. NULL: no memory, or more
// than room allows.
static struct span *span_hold(struct worker_arena *arena, uint64_t bytes, uint64_t room)
{
    uint64_t most = room > UINT64_MAX - arena->held ? UINT64_MAX : arena->held + room;
    struct span *bare = span_find(arena, BARE, up(bytes, arena->extent));
    if (!bare) {
        if (up(bytes, arena->extent) > room)
            return NULL;
        struct mapping *mapping = mapping_new(arena, bytes, most);
        if (!mapping)
            return NULL;
        bare = mapping->first;
    }
    struct mapping *mapping = bare->mapping;
    uint64_t before = bare->prev && bare->prev->state == HELD ? bare->prev->bytes : 0;
    if (before >= bytes)
        return bare->prev;
    uint64_t fresh = up(bytes - before, arena->extent);
    if (fresh > room)
        return NULL;
    if (mapping->emptied_ns) { // it must not go while room is made
        mapping->emptied_ns = 0;
        arena->kept -= mapping->bytes;
    }
    span_unlist(arena, bare);
    bare->state = USED; // likewise
    struct span *rest = bare->bytes > fresh ? span_cut(bare, fresh) : NULL;
    if (rest)
        span_list(arena, rest, BARE);
    else
        fresh = bare->bytes; // or there is no memory for another span
    uint64_t more = cold(arena, mapping, bare->at, fresh, false);
    if (fresh > room || (more > 0 && !make_room(arena, more, most))) {
        if (span_settle(arena, bare, BARE)->bytes == mapping->bytes) {
            mapping->emptied_ns = common_clock_ns();
            arena->kept += mapping->bytes;
        }
        return NULL;
    }
    arena->touched += cold(arena, mapping, bare->at, fresh, true);
    arena->held += fresh;
    return span_settle(arena, bare, HELD);
}

// Makes a span that is in no list HELD, and whole extents that are free now BARE. Without memory for the cuts
// they stay HELD, until next time.
static void give_back(struct worker_arena *arena, struct span *span)
{
    struct mapping *mapping = span->mapping;
    span = span_settle(arena, span, HELD);
    uint64_t from = up(span->at, arena->extent),
             to = (span->at + span->bytes) / arena->extent * arena->extent;
    if (to <= from)
        return;
    span_unlist(arena, span);
    struct span *bare = from > span->at ? span_cut(span, from - span->at) : span;
    if (bare != span)
        span_list(arena, span, HELD);
    if (!bare)
        return;
    struct span *rest = bare->bytes > to - from ? span_cut(bare, to - from) : NULL;
    if (bare->bytes > to - from) {
        span_settle(arena, bare, HELD);
        return;
    }
    if (rest)
        span_list(arena, rest, HELD);
    arena->held -= to - from;
    bare = span_settle(arena, bare, BARE);
    if (bare->bytes < mapping->bytes)
        return;
    mapping->emptied_ns = common_clock_ns();
    arena->kept += mapping->bytes;
    if (arena->kept > arena->options.keep_bytes)
        mapping_unmap(arena, mapping);
}

void *worker_arena_alloc(struct worker_arena *arena, size_t bytes, uint64_t room)
{
    if (bytes == 0 || bytes > arena->options.limit_bytes || room < WORKER_ARENA_NODE)
        return NULL;
    uint64_t size = up(bytes, UNIT);
    struct span *span = span_find(arena, HELD, size);
    if (!span)
        span = span_hold(arena, size, room - WORKER_ARENA_NODE);
    if (!span)
        return NULL;
    uint8_t *memory = span->mapping->base + span->at;
    span_unlist(arena, span);
    if (!worker_map_put(&arena->used, (uintptr_t)memory, span)) {
        give_back(arena, span);
        return NULL;
    }
    struct span *rest = span->bytes > size ? span_cut(span, size) : NULL;
    if (rest)
        span_list(arena, rest, HELD);
    span->state = USED;
    arena->held += WORKER_ARENA_NODE;
    if (arena->options.source.addressable) {
        ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
        if (any_soiled(arena, span->mapping, span->at, size))
            wipe(memory, bytes, false); // what is left of its last unit is not read
    }
    return memory;
}

void worker_arena_release(struct worker_arena *arena, void *memory)
{
    if (!memory)
        return;
    struct span *span = worker_map_remove(&arena->used, (uintptr_t)memory);
    assert(span && span->state == USED);
    arena->held -= WORKER_ARENA_NODE;
    if (arena->options.source.addressable) {
        ASAN_POISON_MEMORY_REGION(memory, span->bytes);
        set_soiled(arena, span->mapping, span->at, span->bytes, true);
    }
    give_back(arena, span);
}

void worker_arena_tidy(struct worker_arena *arena, uint64_t before_ns)
{
    for (struct mapping *mapping = arena->mappings, *next; mapping; mapping = next) {
        next = mapping->next;
        bool waits = arena->options.source.keeps && any_soiled(arena, mapping, 0, mapping->bytes);
        if (mapping->emptied_ns && mapping->emptied_ns < before_ns && (!waits || before_ns == UINT64_MAX))
            mapping_unmap(arena, mapping);
    }
}

// ---- life ---------------------------------------------------------------------------------------

struct worker_arena *worker_arena_new(const struct worker_arena_options *options)
{
    struct worker_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return NULL;
    arena->options = *options;
    // One extent that is used in part is to be no large part of the limit.
    arena->extent = options->limit_bytes >= 64 * WORKER_ARENA_HUGE ? WORKER_ARENA_HUGE
                    : options->limit_bytes >= (4u << 20)           ? 64u << 10
                                                                   : UNIT;
    arena->mapping_bytes = options->limit_bytes < WORKER_ARENA_MAPPING
                               ? up(options->limit_bytes, arena->extent)
                               : WORKER_ARENA_MAPPING;
    return arena;
}

void worker_arena_free(struct worker_arena *arena)
{
    if (!arena)
        return;
    assert(arena->used.count == 0);
    worker_arena_tidy(arena, UINT64_MAX);
    assert(!arena->mappings && arena->held == 0 && arena->touched == 0);
    worker_map_free(&arena->used);
    free(arena);
}

uint64_t worker_arena_held(const struct worker_arena *arena)
{
    return arena->held;
}

uint64_t worker_arena_mapped(const struct worker_arena *arena)
{
    return arena->mapped;
}

uint64_t worker_arena_warm(const struct worker_arena *arena)
{
    return arena->touched + arena->used.count * WORKER_ARENA_NODE - arena->held;
}

uint64_t worker_arena_extent(const struct worker_arena *arena)
{
    return arena->extent;
}

bool worker_arena_check(const struct worker_arena *arena)
{
    uint64_t bare = 0, mapped = 0, kept = 0, spans[3] = {0, 0, 0}, listed[2] = {0, 0};
    for (const struct mapping *mapping = arena->mappings; mapping; mapping = mapping->next) {
        uint64_t at = 0;
        for (const struct span *span = mapping->first; span; at += span->bytes, span = span->next) {
            if (span->at != at || span->bytes == 0 || span->mapping != mapping ||
                (span->prev &&
                 (span->prev->next != span || (span->state != USED && span->prev->state == span->state))) ||
                (span->state == BARE && (span->at % arena->extent || span->bytes % arena->extent)))
                return false;
            if (span->state == USED &&
                worker_map_get(&arena->used, (uintptr_t)(mapping->base + span->at)) != span)
                return false;
            bare += span->state == BARE ? span->bytes : 0;
            spans[span->state]++;
        }
        bool empty = mapping->first->state == BARE && !mapping->first->next;
        if (at != mapping->bytes || empty != (mapping->emptied_ns != 0))
            return false;
        mapped += at;
        kept += empty ? at : 0;
    }
    for (int i = 0; i < 2; i++)
        for (uint32_t first = 0; first < FIRST_BITS; first++)
            for (uint32_t second = 0; second < SECOND; second++)
                for (const struct span *span = arena->lists[i].head[first][second]; span; span = span->fore)
                    listed[i]++;
    return mapped == arena->mapped && kept == arena->kept && spans[USED] == arena->used.count &&
           spans[HELD] == listed[0] && spans[BARE] == listed[1] &&
           arena->held == mapped - bare + arena->used.count * WORKER_ARENA_NODE &&
           arena->touched <= arena->mapped && arena->touched >= mapped - bare;
}
