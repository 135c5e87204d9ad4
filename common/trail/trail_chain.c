// SPDX-License-Identifier: Apache-2.0
#include "common/trail/trail_chain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void common_trail_chain_init(struct common_trail_chain *chain)
{
    *chain = (struct common_trail_chain){.seq = 0};
    memcpy(chain->head, COMMON_TRAIL_NONE, sizeof chain->head);
}

static void gap_clear(struct common_trail_chain *chain)
{
    common_trail_sum_free(chain->gap.sum);
    memset(&chain->gap, 0, sizeof chain->gap);
}

void common_trail_chain_fini(struct common_trail_chain *chain)
{
    gap_clear(chain);
}

void common_trail_chain_next_file(struct common_trail_chain *chain)
{
    chain->line = 0;
}

static enum common_trail_verdict is_bad(struct common_trail_chain *chain, uint64_t first_line, uint64_t lines)
{
    chain->first_line = first_line;
    chain->lines = lines;
    chain->bad++;
    return COMMON_TRAIL_BAD;
}

static void hold(struct common_trail_chain *chain, const char *line, size_t len, bool ended, bool changed)
{
    if (!chain->gap.lines++) {
        chain->gap.first_line = chain->line;
        chain->gap.sum = common_trail_sum_new();
    }
    if (changed && !chain->gap.changed)
        chain->gap.changed = chain->line;
    chain->gap.bytes += len + ended;
    common_trail_sum_add(chain->gap.sum, line, len);
    if (ended)
        common_trail_sum_add(chain->gap.sum, "\n", 1);
}

// Whether this record says of the lines before it what they are.
static bool speaks_of_gap(const struct common_trail_chain *chain, const char *line, size_t len)
{
    uint64_t bytes;
    char said[COMMON_TRAIL_HASH + 1], sum[COMMON_TRAIL_HASH + 1];
    return common_trail_is(line, len, "log.torn") && !chain->gap.changed &&
           common_trail_number(line, len, "bytes", &bytes) && bytes == chain->gap.bytes &&
           common_trail_hash(line, len, "sha256", said) && common_trail_sum_hex(chain->gap.sum, sum) &&
           strcmp(said, sum) == 0;
}

static enum common_trail_verdict gap_is_bad(struct common_trail_chain *chain)
{
    uint64_t end = chain->gap.first_line + chain->gap.lines;
    uint64_t first = chain->gap.changed ? chain->gap.changed : chain->gap.first_line;
    snprintf(chain->why, sizeof chain->why, "%s",
             chain->gap.changed ? "it was changed: its hash does not match its contents"
                                : "it is not a record, and no record mentions it");
    gap_clear(chain);
    return is_bad(chain, first, end - first);
}

// NULL: the record is the one that must come.
static const char *breaks(struct common_trail_chain *chain, const struct common_trail_place *place)
{
    if (chain->resumes)
        return NULL;
    if (!chain->begun)
        return place->seq == 1 && strcmp(place->prev, COMMON_TRAIL_NONE) != 0
                   ? "record 1 names a hash before it"
                   : NULL; // a file that others came before
    if (place->seq == chain->seq + 1 && strcmp(place->prev, chain->head) == 0)
        return NULL;
    if (place->seq == chain->seq + 1)
        return "it does not follow the record before it, which was replaced";
    snprintf(chain->why, sizeof chain->why, "record %" PRIu64 " is where record %" PRIu64 " should be: %s",
             place->seq, chain->seq + 1,
             place->seq > chain->seq ? "records before it are missing" : "it is in the wrong place");
    return chain->why;
}

enum common_trail_verdict common_trail_chain_take(struct common_trail_chain *chain, const char *line,
                                                  size_t len, bool ended)
{
    struct common_trail_place place;
    chain->line++;
    enum common_trail_form form = common_trail_examine(line, len, &place);
    if (form != COMMON_TRAIL_WHOLE) {
        hold(chain, line, len, ended, form == COMMON_TRAIL_CHANGED);
        return COMMON_TRAIL_HELD;
    }
    bool held = chain->gap.lines > 0, explained = held && speaks_of_gap(chain, line, len);
    const char *broken = breaks(chain, &place);
    enum common_trail_verdict verdict = COMMON_TRAIL_GOOD;
    if (held && (!explained || broken)) {
        verdict = gap_is_bad(chain); // and what follows it can be no other than it is
    } else if (broken) {
        if (broken != chain->why)
            snprintf(chain->why, sizeof chain->why, "%s", broken);
        verdict = is_bad(chain, chain->line, 1);
    } else if (held) {
        chain->first_line = chain->gap.first_line;
        chain->lines = chain->gap.lines;
        chain->torn++;
        verdict = COMMON_TRAIL_TORN;
        gap_clear(chain);
    } else if (common_trail_is(line, len, "log.torn") || common_trail_is(line, len, "log.broken")) {
        // Nothing is before it: what it speaks of was taken away.
        snprintf(chain->why, sizeof chain->why, "it mentions earlier lines that are missing");
        verdict = is_bad(chain, chain->line, 1);
    }
    if (!chain->begun) {
        chain->first_seq = place.seq;
        memcpy(chain->first_prev, place.prev, sizeof place.prev);
    }
    chain->begun = true;
    chain->resumes = false;
    chain->records++;
    chain->seq = place.seq;
    memcpy(chain->head, place.hash, sizeof place.hash);
    return verdict;
}

enum common_trail_verdict common_trail_chain_end(struct common_trail_chain *chain)
{
    if (!chain->gap.lines)
        return COMMON_TRAIL_GOOD;
    bool changed = chain->gap.changed > 0, several = chain->gap.lines > 1;
    enum common_trail_verdict verdict = gap_is_bad(chain);
    if (!changed && !several)
        snprintf(chain->why, sizeof chain->why,
                 "the file ends within a record: a crash does that, and the coordinator notes it when it "
                 "restarts");
    chain->resumes = true;
    return verdict;
}
