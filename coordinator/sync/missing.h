// SPDX-License-Identifier: Apache-2.0
// Which committed tokens nobody has any more, or nobody waits for: what a partial answer leaves out and declares
// (docs/reference/wire.md, "Partial answers"), and what it must cover all the same: everything else, exactly.
//
//   chunks      0        1        2        3
//            ┌────────┬────────┬────────┬────────┐
//            │ a      │ b LOST │ b LOST │ a      │      visible ──▶ in chunk 3
//            └────────┴────────┴────────┴────────┘
//   ranges            [ one range       )
//   covered  0                          3 up to visible
//
// A chunk is *missing* when each of its copies is gone (its holder came back without it) or at a worker that the
// coordinator has given up (LOST; ABSENT, when restarts are over). While one of them may come at any moment (its link
// broke just now, it is being asked what it has), nothing is said of the chunk: whoever asks waits.
#ifndef COORDINATOR_MISSING_H
#define COORDINATOR_MISSING_H

#include "coordinator/session/session.h"

struct coordinator_missing {    // zeroed: nothing is missing
    struct proto_range *ranges; // owned; ascending, apart, of whole chunks (the last one is cut at `visible`)
    uint32_t n;
    uint64_t tokens; // in them
};

enum coordinator_survey {
    COORDINATOR_SURVEY_DONE,
    COORDINATOR_SURVEY_PENDING, // a holder of a chunk may come at any moment
    COORDINATOR_SURVEY_TOO_MANY // ranges, or no memory for them
};

// What is missing of [0, visible), at most `most` ranges. Written only when it is DONE. The session is neither
// withheld nor broken.
enum coordinator_survey coordinator_missing_find(const struct coordinator_session *s, uint64_t visible,
                                                 uint32_t most, struct coordinator_missing *out);

// As coordinator_layout_cover, without the missing chunks: what a step over keys [0, visible) must cover, `visible` at
// most what they were looked for with. The layout has not been altered since.
bool coordinator_missing_cover(const struct coordinator_missing *missing, struct coordinator_layout *layout,
                               uint64_t visible, uint64_t *tokens, uint64_t *sum);

// How many of the tokens lie in [from, to).
uint64_t coordinator_missing_within(const struct coordinator_missing *missing, uint64_t from, uint64_t to);

// Keeps what lies in [from, to).
void coordinator_missing_clip(struct coordinator_missing *missing, uint64_t from, uint64_t to);

// The same once more. False: no memory; `out` is as it was.
bool coordinator_missing_copy(const struct coordinator_missing *missing, struct coordinator_missing *out);
void coordinator_missing_free(struct coordinator_missing *missing); // what it owns; nothing is missing then

#endif
