// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/missing.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash/coverage.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sync/recovery.h"

static bool is_given_up(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk) && !chunk->lost; i++) {
        enum coordinator_worker_state state = coordinator_chunk_holder(chunk, i)->state;
        bool away = state == COORDINATOR_WORKER_LOST ||
                    (state == COORDINATOR_WORKER_ABSENT && !coordinator_recovering(s));
        if (!((chunk->gone | coordinator_chunk_doubted(chunk)) & 1u << i) && !away)
            return false;
    }
    return true;
}

// Ranges come in ascending order. False: too many.
static bool add(struct coordinator_missing *missing, uint32_t *cap, uint32_t most, uint64_t first,
                uint64_t end)
{
    struct proto_range *last = missing->n ? &missing->ranges[missing->n - 1] : NULL;
    missing->tokens += end - first;
    if (last && last->first + last->count == first) {
        last->count += end - first;
        return true;
    }
    if (missing->n == most)
        return false;
    if (missing->n == *cap) {
        uint32_t room = *cap ? *cap * 2 : 8;
        struct proto_range *ranges = realloc(missing->ranges, room * sizeof(*ranges));
        if (!ranges)
            return false;
        missing->ranges = ranges;
        *cap = room;
    }
    missing->ranges[missing->n++] = (struct proto_range){first, end - first};
    return true;
}

enum coordinator_survey coordinator_missing_find(const struct coordinator_session *s, uint64_t visible,
                                                 uint32_t most, struct coordinator_missing *out)
{
    struct coordinator_missing missing = {0};
    enum coordinator_survey survey = COORDINATOR_SURVEY_DONE;
    uint64_t ct = s->layout.chunk_tokens;
    uint32_t cap = 0;
    for (uint32_t i = 0; i < s->layout.n && survey == COORDINATOR_SURVEY_DONE; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint64_t first = chunk->index * ct, end = first + ct < visible ? first + ct : visible;
        if (first >= visible)
            break;
        if (coordinator_session_chunk_usable(chunk))
            continue;
        if (!is_given_up(s, chunk))
            survey = COORDINATOR_SURVEY_PENDING;
        else if (!add(&missing, &cap, most, first, end))
            survey = COORDINATOR_SURVEY_TOO_MANY;
    }
    if (survey != COORDINATOR_SURVEY_DONE)
        coordinator_missing_free(&missing);
    else
        *out = missing;
    return survey;
}

bool coordinator_missing_cover(const struct coordinator_missing *missing, struct coordinator_layout *layout,
                               uint64_t visible, uint64_t *tokens, uint64_t *sum)
{
    uint64_t ct = layout->chunk_tokens, all_tokens, all_sum;
    if (!coordinator_layout_cover(layout, visible, &all_tokens, &all_sum))
        return false;
    for (uint32_t i = 0; i < missing->n && missing->ranges[i].first < visible; i++) {
        uint64_t end = missing->ranges[i].first + missing->ranges[i].count;
        for (uint64_t at = missing->ranges[i].first; at < end && at < visible; at += ct) {
            uint64_t rows = visible - at < ct ? visible - at : ct;
            all_tokens -= rows;
            all_sum -= common_coverage_mix(coordinator_layout_find(layout, at / ct)->id, rows, layout->epoch);
        }
    }
    *tokens = all_tokens;
    *sum = all_sum;
    return true;
}

static struct proto_range within(const struct proto_range *range, uint64_t from, uint64_t to)
{
    uint64_t first = range->first > from ? range->first : from, end = range->first + range->count;
    end = end < to ? end : to;
    return (struct proto_range){first, end > first ? end - first : 0};
}

uint64_t coordinator_missing_within(const struct coordinator_missing *missing, uint64_t from, uint64_t to)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < missing->n; i++)
        tokens += within(&missing->ranges[i], from, to).count;
    return tokens;
}

void coordinator_missing_clip(struct coordinator_missing *missing, uint64_t from, uint64_t to)
{
    uint32_t kept = 0;
    missing->tokens = coordinator_missing_within(missing, from, to);
    for (uint32_t i = 0; i < missing->n; i++) {
        struct proto_range part = within(&missing->ranges[i], from, to);
        if (part.count)
            missing->ranges[kept++] = part;
    }
    missing->n = kept;
}

bool coordinator_missing_copy(const struct coordinator_missing *missing, struct coordinator_missing *out)
{
    struct coordinator_missing copy = *missing;
    copy.ranges = NULL;
    if (missing->n) {
        copy.ranges = malloc(missing->n * sizeof(*copy.ranges));
        if (!copy.ranges)
            return false;
        memcpy(copy.ranges, missing->ranges, missing->n * sizeof(*copy.ranges));
    }
    *out = copy;
    return true;
}

void coordinator_missing_free(struct coordinator_missing *missing)
{
    free(missing->ranges);
    *missing = (struct coordinator_missing){0};
}
