// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/rangeset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void coordinator_rangeset_free(struct coordinator_rangeset *set)
{
    free(set->ranges);
    memset(set, 0, sizeof(*set));
}

// Index of the first range that ends at or after `position`: the first that could touch something starting
// there.
static uint32_t first_reaching(const struct coordinator_rangeset *set, uint64_t position)
{
    uint32_t low = 0, high = set->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (set->ranges[mid].first + set->ranges[mid].count < position)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

// Memory for one range more than there are and are reserved.
static bool ranges_grow(struct coordinator_rangeset *set)
{
    if (set->n + set->pending < set->cap)
        return true;
    uint32_t cap = set->cap ? set->cap * 2 : 4;
    struct proto_range *ranges = realloc(set->ranges, cap * sizeof(*ranges));
    if (!ranges)
        return false;
    set->ranges = ranges;
    set->cap = cap;
    return true;
}

static bool range_add(struct coordinator_rangeset *set, uint64_t first, uint64_t count, uint32_t most,
                      struct proto_range *merged)
{
    uint64_t end = first + count;
    uint32_t at = first_reaching(set, first), past = at;
    while (past < set->n && set->ranges[past].first <= end) // everything that overlaps or touches
        past++;
    if (past == at) {
        if (set->n >= most || !ranges_grow(set))
            return false;
        memmove(&set->ranges[at + 1], &set->ranges[at], (set->n - at) * sizeof(*set->ranges));
        set->n++;
    } else {
        uint64_t last_end = set->ranges[past - 1].first + set->ranges[past - 1].count;
        if (set->ranges[at].first < first)
            first = set->ranges[at].first;
        if (last_end > end)
            end = last_end;
        memmove(&set->ranges[at + 1], &set->ranges[past], (set->n - past) * sizeof(*set->ranges));
        set->n -= past - at - 1;
    }
    set->ranges[at] = (struct proto_range){.first = first, .count = end - first};
    if (merged)
        *merged = set->ranges[at];
    return true;
}

bool coordinator_rangeset_add(struct coordinator_rangeset *set, uint64_t first, uint64_t count,
                              struct proto_range *merged)
{
    return range_add(set, first, count, COORDINATOR_RANGES_MAX, merged);
}

bool coordinator_rangeset_load(struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    return range_add(set, first, count, UINT32_MAX / 2, NULL);
}

bool coordinator_rangeset_join(const struct coordinator_rangeset *set, uint64_t *first, uint64_t *count)
{
    uint64_t low = *first, high = low + *count, end = high;
    uint32_t at = first_reaching(set, low), past = at;
    while (past < set->n && set->ranges[past].first <= end)
        past++;
    if (past == at)
        return false;
    const struct proto_range *last = &set->ranges[past - 1];
    low = set->ranges[at].first < low ? set->ranges[at].first : low;
    high = last->first + last->count > high ? last->first + last->count : high;
    *first = low;
    *count = high - low;
    return true;
}

bool coordinator_rangeset_room(const struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    bool begins = !first || (set->n && !set->ranges[0].first);
    uint32_t most = begins ? COORDINATOR_RANGES_MAX : COORDINATOR_RANGES_MAX - 1;
    return (uint64_t)set->n + set->pending < most || coordinator_rangeset_join(set, &first, &count);
}

bool coordinator_rangeset_reserve(struct coordinator_rangeset *set)
{
    bool room = ranges_grow(set);
    set->pending += room;
    return room;
}

void coordinator_rangeset_unreserve(struct coordinator_rangeset *set)
{
    assert(set->pending > 0);
    set->pending--;
}

void coordinator_rangeset_keep(struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    coordinator_rangeset_unreserve(set);
    bool kept = coordinator_rangeset_load(set, first, count); // it has memory, and room was asked for
    assert(kept);
    (void)kept;
}

void coordinator_rangeset_clip(struct coordinator_rangeset *set, uint64_t end)
{
    while (set->n && set->ranges[set->n - 1].first >= end)
        set->n--;
    if (set->n) {
        struct proto_range *last = &set->ranges[set->n - 1];
        if (last->first + last->count > end)
            last->count = end - last->first;
    }
}

bool coordinator_rangeset_contains(const struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    if (!count)
        return true;
    uint32_t at = first_reaching(set, first + 1);
    return at < set->n && set->ranges[at].first <= first &&
           set->ranges[at].first + set->ranges[at].count >= first + count;
}

bool coordinator_rangeset_intersects(const struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    if (!count)
        return false;
    uint32_t at = first_reaching(set, first + 1);
    return at < set->n && set->ranges[at].first < first + count;
}

uint64_t coordinator_rangeset_length(const struct coordinator_rangeset *set)
{
    return set->n && set->ranges[0].first == 0 ? set->ranges[0].count : 0;
}

uint64_t coordinator_rangeset_end(const struct coordinator_rangeset *set)
{
    return set->n ? set->ranges[set->n - 1].first + set->ranges[set->n - 1].count : 0;
}

uint64_t coordinator_rangeset_count(const struct coordinator_rangeset *set)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < set->n; i++)
        sum += set->ranges[i].count;
    return sum;
}

uint64_t coordinator_rangeset_overlap(const struct coordinator_rangeset *set, uint64_t first, uint64_t count)
{
    uint64_t sum = 0, end = first + count;
    for (uint32_t i = first_reaching(set, first + 1); i < set->n && set->ranges[i].first < end; i++) {
        uint64_t from = set->ranges[i].first, to = from + set->ranges[i].count;
        sum += (to < end ? to : end) - (from > first ? from : first);
    }
    return sum;
}

uint64_t coordinator_rangeset_length_with(const struct coordinator_rangeset *set, uint64_t first,
                                          uint64_t count)
{
    uint64_t length = coordinator_rangeset_length(set), end = first + count;
    if (first > length || end <= length)
        return length;
    uint32_t at = first_reaching(set, end); // what starts at or before `end` continues it
    if (at < set->n && set->ranges[at].first <= end)
        end = set->ranges[at].first + set->ranges[at].count;
    return end;
}

uint32_t coordinator_rangeset_missing(const struct coordinator_rangeset *set, uint64_t first, uint64_t count,
                                      struct proto_range *out, uint32_t max)
{
    uint64_t at = first, end = first + count;
    uint32_t n = 0;
    for (uint32_t i = first_reaching(set, first); i <= set->n && at < end; i++) {
        uint64_t next = i < set->n && set->ranges[i].first < end ? set->ranges[i].first : end;
        if (next > at) {
            if (n < max)
                out[n] = (struct proto_range){.first = at, .count = next - at};
            n++;
        }
        if (i < set->n && set->ranges[i].first + set->ranges[i].count > at)
            at = set->ranges[i].first + set->ranges[i].count;
    }
    return n;
}

bool coordinator_rangeset_next(const struct coordinator_rangeset *set, uint64_t from, struct proto_range *out)
{
    uint32_t at = first_reaching(set, from + 1);
    if (at == set->n)
        return false;
    const struct proto_range *range = &set->ranges[at];
    uint64_t first = range->first > from ? range->first : from;
    *out = (struct proto_range){.first = first, .count = range->first + range->count - first};
    return true;
}
