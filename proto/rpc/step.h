// SPDX-License-Identifier: Apache-2.0
// A step frame as plain C, so that schedulers, executors and engines see no protobuf type. Decode checks
// everything that does not need state: counts, row and head ranges, that the items' bytes fill the tensors
// exactly, no arithmetic that wraps.
#ifndef PROTO_STEP_H
#define PROTO_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/trace.h"
#include "common/memory/blob.h"
#include "proto/model/limits.h"
#include "proto/rpc/rpc.h"

struct proto_append_run {
    uint64_t chunk;
    uint64_t first; // position
    uint32_t rows;
    uint32_t n_holders;
    uint32_t holders[PROTO_STEP_HOLDERS_MAX]; // ranks
};

struct proto_step_item {
    uint64_t session, incarnation, epoch;
    uint32_t layer;
    uint64_t first; // position of the first query row
    uint32_t rows;
    uint64_t visible;                  // keys [0, visible)
    uint64_t block_first, block_count; // rows at these positions see each other; count 0: none
    uint32_t kv_head, kv_heads;        // slab
    uint32_t q_heads, v_dim;           // of the slab's partial: [rows][q_heads][v_dim]
    uint32_t append_first, n_append;   // runs: step->appends[append_first ..]
    uint32_t append_rows; // of all runs: the item's rows, or more that they are to see. Set by decoding
    uint64_t write;
    uint64_t length;    // acknowledged length of the layer: rows below it are never altered
    uint64_t write_end; // of the whole append that this is a part of
    uint64_t cover_tokens, cover_sum;
    uint32_t cover_appends;
    size_t q_offset, q_bytes; // within the q tensor
    size_t k_offset,
        k_bytes; // within the k tensor; 0 bytes when nothing is appended or the sender left k and v out
    size_t v_offset, v_bytes;
    struct common_trace trace; // of the span above it, sampled; flags 0: none
};

// For engines that carry partials outside of the answers: the root fills it in, ranks below pass it on.
struct proto_collective {
    uint64_t generation; // which communicator; 0: the rest is not set
    uint64_t sequence;   // place among its operations, from 1; 0: the partials come in the answers
    uint32_t variant;    // which of the engine's algorithms
    uint32_t id_bytes;   // 0: all members have joined
    uint8_t id[PROTO_COLLECTIVE_ID_MAX];
};

struct proto_step {
    uint64_t term, plan, plan_epoch, step;
    uint32_t attempt;
    bool want_trace;
    bool quick;           // no item waits for a worker's disk: it fails instead (ABORTED, COLD)
    bool has_kv;          // k and v tensors are there
    uint64_t deadline_ns; // absolute monotonic
    uint32_t n_items, n_appends;
    struct proto_step_item *items;    // owned by the step
    struct proto_append_run *appends; // owned by the step
    const uint8_t *q, *k, *v;         // inside blob (or borrowed, when the step was built for sending)
    size_t q_bytes, k_bytes, v_bytes;
    struct common_blob *blob; // reference held; NULL when built for sending
    struct proto_collective collective;
};

// Items carry the bytes that they own of each tensor (StepItem.q_bytes …), because shapes belong to sessions,
// which decoding does not have. Decoding sums them and requires that they fill the tensors exactly; code that
// has the session compares them with its shape. Takes a reference to the message's blob. INVALID_ARGUMENT
// for anything malformed; *out is only set on success.
enum common_code proto_step_decode(const struct proto_message *message, uint64_t deadline_ns,
                                   struct proto_step **out, struct common_error *err);
void proto_step_free(struct proto_step *step); // NULL is allowed

struct proto_trace { // one worker's part in a step
    uint32_t rank;
    uint64_t queue_ns, compute_ns, wait_ns, tokens;
    int32_t parent; // rank; the coordinator sets it, in no frame
    char worker[65];
};

struct proto_step_result_item {
    enum common_code code;
    char message[256]; // when code is not OK
    char reason[32];   // Detail.reason, "" for none
    char worker[65];   // worker concerned, "" for none
    uint64_t cover_tokens, cover_sum;
    uint32_t appends;
    uint64_t digest;
};

struct proto_step_result {
    uint32_t n_items, n_traces;
    struct proto_step_result_item *items; // owned
    struct proto_trace *traces;           // owned
    const void *tensors[2];               // partials; or o, lse. Inside blob when decoded
    size_t tensor_bytes[2];
    uint32_t n_tensors;
    uint64_t generation;      // the communicator that all ranks of the subtree are members of; 0: none
    uint32_t joined;          // ranks of the subtree that take part in the step's operation on it
    struct common_blob *blob; // reference held; NULL when built for sending
};

// Decodes a reply to METHOD_STEP. Checks: exactly n_items items, codes valid, strings bounded, at most 2
// tensors.
enum common_code proto_step_result_decode(const struct proto_message *message, uint32_t n_items,
                                          struct proto_step_result **out, struct common_error *err);
struct proto_step_result *proto_step_result_new(uint32_t n_items,
                                                uint32_t max_traces); // zeroed: code OK. NULL: out of memory
void proto_step_result_free(struct proto_step_result *result);

// Sends a step down a channel. `with_kv` false leaves k and v out (no worker in that subtree holds an
// appended row). The step's bytes are borrowed until `done` has run; exactly once, never on this stack.
typedef void (*proto_step_done_fn)(void *arg, enum common_code code, const char *text,
                                   struct proto_step_result *result);
// result: owned by the callback (free it), NULL unless code is COMMON_OK.
enum common_code proto_step_send(struct proto_channel *channel, const struct proto_step *step, bool with_kv,
                                 proto_step_done_fn done, void *arg, uint64_t *call,
                                 struct common_error *err);

// Answers the request that carried a step. `tensors` is borrowed until `sent` runs.
void proto_step_reply(struct proto_request *request, const struct proto_step_result *result,
                      proto_done_fn sent, void *sent_arg);

#endif
