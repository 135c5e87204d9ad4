// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/admit.h"

#include <inttypes.h>
#include <stdio.h>

#include "coordinator/place/placing.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/item.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/sight.h"
#include "coordinator/sync/missing.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/unavailable.h"
#include "proto/model/missing.h"

// Something below `wanted` is not committed: says what, in the words that help.
static bool refuse_position(struct coordinator_item *item, struct coordinator_session *s, uint64_t length,
                            uint64_t wanted)
{
    const struct coordinator_item_ask *ask = &item->ask;
    const struct coordinator_rangeset *set = coordinator_session_rows(s, ask->layer);
    struct proto_status status;
    if (coordinator_session_unsettled(s, length, wanted, ask->layer, &status) != COMMON_OK) {
        *coordinator_item_failure(item) = status;
        return false;
    }
    char text[COMMON_ERROR_BYTES];
    if (coordinator_rangeset_end(set) >= wanted) {
        struct proto_range hole = {.first = length, .count = 0};
        coordinator_rangeset_missing(set, length, coordinator_rangeset_end(set) - length, &hole, 1);
        snprintf(text, sizeof(text),
                 "tokens [%" PRIu64 ", %" PRIu64
                 ") of layer %u are not committed: attach and commit them first",
                 hole.first, hole.first + hole.count, ask->layer);
        coordinator_item_refuse(item, COMMON_FAILED_PRECONDITION, PROTO_REASON_HOLE, text);
        proto_status_add_range(item->failure, hole.first, hole.count);
        return false;
    }
    if (ask->append && wanted == ask->first)
        snprintf(text, sizeof(text), "an append at %" PRIu64 " leaves a gap: layer %u has %" PRIu64 " tokens",
                 wanted, ask->layer, length);
    else if (ask->visible)
        snprintf(text, sizeof(text),
                 "keys below %" PRIu64 " were requested, but layer %u has %" PRIu64 " tokens", wanted,
                 ask->layer, length);
    else
        snprintf(text, sizeof(text), "position %" PRIu64 " is past the end: layer %u has %" PRIu64 " tokens",
                 wanted - 1, ask->layer, length);
    return coordinator_item_refuse(item, COMMON_OUT_OF_RANGE, PROTO_REASON_PAST_END, text);
}

static bool check_positions(struct coordinator_item *item, struct coordinator_session *s)
{
    const struct coordinator_item_ask *ask = &item->ask;
    uint64_t length = coordinator_session_layer_length(s, ask->layer), after = length;
    if (ask->append) {
        if (ask->first > length)
            return refuse_position(item, s, length, ask->first);
        struct proto_status status;
        // Rows that may turn up go where a newer append comes, also one of rows that are acknowledged.
        if (coordinator_session_unsettled(s, length, length, ask->layer, &status) != COMMON_OK) {
            *coordinator_item_failure(item) = status;
            return false;
        }
        if (!coordinator_rangeset_room(&s->layers[ask->layer], ask->first, ask->rows))
            return coordinator_item_refuse(item, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT,
                                           "the layer has too many separate ranges: fill its holes first");
        after = coordinator_rangeset_length_with(&s->layers[ask->layer], ask->first, ask->rows);
    }
    bool all = coordinator_item_sees_all(item, s) &&
               after > 0; // an empty layer has nothing to see: refused by its rows' positions
    item->way.visible = all ? after : coordinator_item_visible(item);
    item->way.length_before = length;
    struct proto_status unsettled; // the end of the layer, of which all is wanted, is not known for certain
    if (all && !ask->append &&
        coordinator_session_unsettled(s, after, after, ask->layer, &unsettled) != COMMON_OK) {
        *coordinator_item_failure(item) = unsettled;
        return false;
    }
    return item->way.visible <= after || refuse_position(item, s, after, item->way.visible);
}

static bool check_forgotten(struct coordinator_item *item, const struct coordinator_session *s)
{
    const struct coordinator_item_ask *ask = &item->ask;
    const struct proto_layer layer = proto_spec_layer(s->spec, ask->layer);
    uint64_t forgotten = coordinator_session_forgotten(s, layer.source), from, to;
    coordinator_item_sees(item, s, &from, &to);
    if (from >= forgotten)
        return true;
    char text[COMMON_ERROR_BYTES];
    snprintf(text, sizeof(text),
             "the row at position %" PRIu64 " of layer %u sees keys from position %" PRIu64
             " on, and those below %" PRIu64 " are forgotten",
             ask->first, ask->layer, from, forgotten);
    coordinator_item_refuse(item, COMMON_FAILED_PRECONDITION, PROTO_REASON_FORGOTTEN, text);
    proto_status_add_range(item->failure, from, forgotten - from);
    return false;
}

static bool chunks_placed(const struct coordinator_item *item, const struct coordinator_session *s)
{
    uint64_t ct = s->layout.chunk_tokens, last = item->ask.first + item->ask.rows - 1;
    return coordinator_placed(s, item->ask.first / ct, last / ct);
}

// Its client takes an answer over what is left, as soon as it is certain what that is.
static enum coordinator_verdict admit_partial(struct coordinator_item *item,
                                              const struct coordinator_session *s)
{
    struct coordinator_steps *steps = coordinator_item_steps(item);
    struct coordinator_missing missing = {0};
    char text[COMMON_ERROR_BYTES];
    switch (
        coordinator_missing_find(s, item->way.visible, PROTO_MISSING_MAX - item->call->n_missing, &missing)) {
    case COORDINATOR_SURVEY_PENDING:
        return COORDINATOR_ADMIT_RETRY;
    case COORDINATOR_SURVEY_TOO_MANY:
        snprintf(
            text, sizeof(text),
            "the call would declare more than %u missing ranges of tokens: ask for fewer items at a time",
            PROTO_MISSING_MAX);
        coordinator_item_refuse(item, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT, text);
        return COORDINATOR_ADMIT_REFUSED;
    case COORDINATOR_SURVEY_DONE:
        break;
    }
    uint64_t bytes = missing.n * sizeof(*missing.ranges), most = steps->core->options.max_bytes;
    if (bytes > most || steps->bytes > most - bytes) {
        coordinator_missing_free(&missing);
        steps->core->reached[COORDINATOR_LIMIT_ANSWERS]++;
        coordinator_item_refuse(
            item, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT,
            "the limit of bytes of answers at once is reached: try again, or raise --max-bytes");
        return COORDINATOR_ADMIT_REFUSED;
    }
    coordinator_item_take_missing(item, &missing);
    return COORDINATOR_ADMIT_GO;
}

enum coordinator_verdict coordinator_item_admit(struct coordinator_item *item, struct coordinator_session *s,
                                                bool pumped)
{
    struct proto_status status;
    uint64_t tokens, sum;
    coordinator_item_take_missing(item, NULL); // of an earlier attempt
    if (item->ask.incarnation && item->ask.incarnation != s->incarnation) {
        coordinator_item_refuse(item, COMMON_ABORTED, PROTO_REASON_OLD_INCARNATION,
                                "the session was truncated meanwhile: read its state and try again");
        return COORDINATOR_ADMIT_REFUSED;
    }
    if (!pumped && coordinator_lane_behind(s->lane, item))
        return COORDINATOR_ADMIT_WAIT;
    if (coordinator_recovering(s)) {
        coordinator_item_refuse(item, COMMON_UNAVAILABLE, PROTO_REASON_MISSING_RANGE,
                                "its workers have not come back yet after a restart of the coordinator");
        return COORDINATOR_ADMIT_RETRY;
    }
    if (!coordinator_session_open(s))
        return COORDINATOR_ADMIT_WAIT;
    if (item->ask.append && coordinator_session_writable(s, &status) != COMMON_OK) {
        *coordinator_item_failure(item) = status;
        return COORDINATOR_ADMIT_REFUSED;
    }
    if (!check_positions(item, s) || !check_forgotten(item, s))
        return COORDINATOR_ADMIT_REFUSED;
    if (item->ask.append && !chunks_placed(item, s))
        return COORDINATOR_ADMIT_PLACE;
    if (coordinator_session_missing(s, 0, item->way.visible, item->ask.layer, &status) != COMMON_OK) {
        *coordinator_item_failure(item) = status;
        enum coordinator_verdict verdict = item->ask.partial && !s->withheld && !s->broken
                                               ? admit_partial(item, s)
                                               : COORDINATOR_ADMIT_REFUSED;
        if (verdict != COORDINATOR_ADMIT_GO)
            return verdict;
    }
    if (!coordinator_missing_cover(&item->way.missing, &s->layout, item->way.visible, &tokens, &sum)) {
        if (s->floor) // it was born with it, and has not got the rows yet that nobody may be without
            coordinator_item_refuse(
                item, COMMON_FAILED_PRECONDITION, PROTO_REASON_HOLE,
                "the session begins with a floor, and nothing has been attached past it yet: "
                "attach its rows first");
        else
            coordinator_item_refuse(item, COMMON_INTERNAL, PROTO_REASON_NONE,
                                    "committed tokens have no holder");
        return COORDINATOR_ADMIT_REFUSED;
    }
    return COORDINATOR_ADMIT_GO;
}
