// SPDX-License-Identifier: Apache-2.0
// A step of each session, kept as it was asked and answered: q, o and lse of some of its rows, so that it can be computed
// again from the session's rows, by an operator (SessionStep, 'session verify') or by an audit (audit.h).
//
//   answered ──▶ due? ──▶ copied ──▶ the session's, for a second at least ──▶ gives way to the next one due
//                                        │ an audit finds it wrong               ▲ the oldest of all, when memory is full
//                                        └──▶ pinned: nothing takes its place ───┘ (only when nothing else is left)
//
// Rows below a session's length never change, so what is kept stays good while the session grows, moves and loses
// holders. A truncate below what it saw ends it, and so does the end of the session or of the coordinator. A step that is
// not due costs some comparisons and no clock.
#ifndef COORDINATOR_KEEP_H
#define COORDINATOR_KEEP_H

#include "common/base/trace.h"
#include "coordinator/steps/steps.h"
#include "proto/model/limits.h"

struct coordinator_item;
struct coordinator_lane;
struct coordinator_session;
struct proto_request;

#define COORDINATOR_KEPT_BYTES (1024 * 1024) // of one step; fewer rows of one that has more

enum coordinator_keep_wish {
    COORDINATOR_KEEP_NOT,
    COORDINATOR_KEEP_DUE,   // it is time to keep one of this session
    COORDINATOR_KEEP_AUDIT, // it is to be audited
};

enum coordinator_audited { COORDINATOR_AUDIT_NONE, COORDINATOR_AUDIT_RIGHT, COORDINATOR_AUDIT_WRONG };

struct coordinator_kept {
    struct common_list link;       // in steps.keep.all while it is a session's, oldest first
    uint32_t refs;                 // the lane, audits, answers on their way
    struct coordinator_lane *lane; // lane->kept is this one; NULL: it is no session's any more
    uint64_t session, incarnation, first, visible, block_first, block_count, plan_digest, at_ns;
    uint64_t positions[PROTO_KEPT_ROWS_MAX]; // [rows], ascending
    uint32_t layer, step_rows, rows, q_heads, k_dim, v_dim;
    bool append;
    enum coordinator_audited audited;
    char trace[COMMON_TRACE_ID_TEXT]; // of the step, "-": none
    char workers[400];                // of a step that is audited: the session's members, for people
    size_t bytes;
    float data[]; // q [rows][q_heads][k_dim], o [rows][q_heads][v_dim], lse [rows][q_heads]
};

static inline const float *coordinator_kept_q(const struct coordinator_kept *kept)
{
    return kept->data;
}
static inline const float *coordinator_kept_o(const struct coordinator_kept *kept)
{
    return kept->data + (size_t)kept->rows * kept->q_heads * kept->k_dim;
}
static inline const float *coordinator_kept_lse(const struct coordinator_kept *kept)
{
    return coordinator_kept_o(kept) + (size_t)kept->rows * kept->q_heads * kept->v_dim;
}

// An item is about to go, whose call came at arrived_ns: whether its answer, lse included, is to be kept.
enum coordinator_keep_wish coordinator_keep_wish(struct coordinator_steps *steps,
                                                 const struct coordinator_session *s, uint64_t arrived_ns);

// It has succeeded and is about to be answered.
void coordinator_keep_step(struct coordinator_item *item, struct coordinator_session *s);

// Whether the rows that it saw are still the session's, and can be read.
bool coordinator_kept_stands(struct coordinator_kept *kept, const struct coordinator_session *s);

// The keys that some row of it sees: [*from, *to). The mask is the layer's.
struct proto_layer;
void coordinator_kept_sees(const struct coordinator_kept *kept, const struct proto_layer *layer, uint32_t row,
                           uint64_t *from, uint64_t *to);

// It was found wrong: it is the session's, and stays so.
void coordinator_kept_pin(struct coordinator_steps *steps, struct coordinator_kept *kept);

void coordinator_kept_unref(struct coordinator_kept *kept);

void coordinator_keep_lane_gone(struct coordinator_steps *steps, struct coordinator_lane *lane);

// Handler (proto_method.handle).
void coordinator_handle_session_step(struct coordinator_steps *steps, struct proto_request *request);

#endif
