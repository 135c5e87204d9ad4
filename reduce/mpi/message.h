// SPDX-License-Identifier: Apache-2.0
// A subtree's result as one message: what was computed, for each item its status, coverage, appends and
// digest, the traces, and the partials.
//
//     | head | items [n_items] | texts [n_texts] | traces [n_traces] | pad to 64 | partials |
//
// All ranks of a group run on one kind of machine and are of one build (join compares): structs travel as
// they are. The receiver checks every count against what it expects before it looks further.
#ifndef REDUCE_MPI_MESSAGE_H
#define REDUCE_MPI_MESSAGE_H

#include "proto/rpc/step.h"

#define MPI_MESSAGE_VERSION 1u
#define MPI_MESSAGE_TEXTS                                                                                    \
    64 // failed items that come with their words; further ones come with their code alone

struct mpi_message_key { // of the step that a result belongs to
    uint64_t term, plan, plan_epoch, step;
    uint32_t attempt, version;
};

void mpi_message_key_of(const struct proto_step *step, struct mpi_message_key *out);
int mpi_message_tag(const struct mpi_message_key *key); // 0 .. 2^30 - 1

// Bytes of the largest message about a step of so many items, partials and traces; false: too large for MPI.
bool mpi_message_limit(uint32_t n_items, uint32_t traces, size_t partials, size_t *out);

// partials NULL: none travel. NULL: no memory, or too large.
struct common_blob *mpi_message_encode(const struct mpi_message_key *key,
                                       const struct proto_step_result *result,
                                       const struct common_blob *partials);

// The message in the first `len` bytes of the blob, of which the result takes a reference. INTERNAL: it is
// not of this step or does not hold together.
enum common_code mpi_message_decode(const struct mpi_message_key *key, uint32_t n_items, uint32_t traces,
                                    size_t partials, struct common_blob *blob, size_t len,
                                    struct proto_step_result **out, struct common_error *err);

#endif
