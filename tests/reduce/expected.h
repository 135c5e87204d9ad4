// SPDX-License-Identifier: Apache-2.0
// Steps for engine tests, what each rank contributes to them, and what the root must answer: a plain loop
// over ranks in place of servers, edges and callbacks. What a rank does with a step is written in the step
// itself (struct script, in item 0's q), so ranks need no other channel: they can be threads or processes.
#ifndef TESTS_REDUCE_EXPECTED_H
#define TESTS_REDUCE_EXPECTED_H

#include <stdbool.h>
#include <stdint.h>

#include "reduce/engine.h"

#define RANKS_MAX 16
#define NO_RANK   UINT32_MAX
#define ITEM_Q    64 // bytes of q an item
#define ITEM_K    32 // bytes of k, and of v, that an appending item carries

struct script {
    uint32_t seed;     // of the contributions
    uint32_t delay_us; // each rank waits for up to this long, drawn from seed, step and rank
    uint32_t identity; // bits of the ranks that hold nothing
    uint32_t n_fails;
    struct {
        uint16_t rank, item;
    } fails[4];      // this rank fails this item
    uint32_t vanish; // this rank closes its server when the frame comes
    uint32_t hang;   // this rank never contributes
    uint32_t wrong;  // this rank answers with too few bytes
    uint32_t refuse; // this rank does not begin the step, as if it had no memory
    uint32_t large;  // this rank answers with too many bytes
    uint32_t alias;  // this rank's trace says that it is the next one
};

#define SCRIPT_PLAIN                                                                                         \
    {                                                                                                        \
        .seed = 1, .vanish = NO_RANK, .hang = NO_RANK, .wrong = NO_RANK, .refuse = NO_RANK,                  \
        .large = NO_RANK, .alias = NO_RANK                                                                   \
    }

struct shape { // of an item's partial
    uint32_t rows, heads, dv;
};

extern uint64_t expected_term; // of the steps that step_new makes; another one for each tree of ranks
struct proto_step *step_new(uint64_t number, const struct script *script, const struct shape *shapes,
                            uint32_t n_items);
// The item appends one run of its rows, held by these ranks.
void step_append(struct proto_step *step, uint32_t item, const uint32_t *holders, uint32_t n_holders);
void step_free(struct proto_step *step);

const char *ranks_name(uint32_t rank);

// What a rank contributes; ready_ns is left alone.
void contribution_make(const struct proto_step *step, const struct script *script, uint32_t rank,
                       struct reduce_local *out);

// What the root must answer: all contributions merged one after the other in the documented order.
struct expected {
    struct common_blob *partials;
    struct proto_step_result *result;
};
void expect(const struct proto_step *step, const struct script *script, const int32_t *parents, uint32_t n,
            struct expected *out);
void expected_clear(struct expected *expected);

// Compares everything: statuses, partials bit for bit, coverage, appends, digests; failed items are the
// identity.
void assert_expected(const struct proto_step *step, const struct reduce_outcome *outcome,
                     const struct expected *expected);
void assert_identity(const struct proto_step *step, uint32_t item_index,
                     const struct reduce_outcome *outcome);

#endif
