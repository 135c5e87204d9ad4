// SPDX-License-Identifier: Apache-2.0
// Real workers on unix sockets, in the test's thread and loop; the test calls them as the coordinator and as
// a client would.
#ifndef TESTS_WORKER_FIXTURE_H
#define TESTS_WORKER_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/partial.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/step.h"
#include "worker/daemon/worker.h"

enum { WORKERS_MAX = 4, SESSION = 0x501, PLAN = 0x901, TERM = 5, EPOCH = 7, INCARNATION = 2 };
// The session's shape: float32, so that the test can compute with what it put.
enum {
    LAYERS = 2,
    Q_HEADS = 4,
    KV_HEADS = 2,
    K_DIM = 8,
    V_DIM = 6,
    TOKENS = 32,
    K_ROW = KV_HEADS * K_DIM,
    V_ROW = KV_HEADS * V_DIM
};

struct cluster {
    struct common_loop *loop;
    struct common_secret secret;
    char dir[64];
    uint32_t n;
    struct worker *workers[WORKERS_MAX];
    struct proto_channel *edges[WORKERS_MAX], *clients[WORKERS_MAX];
};

struct cluster_options {
    uint32_t workers, threads; // 0: 1
    uint64_t memory_bytes;     // 0: 64 MiB
    uint64_t inline_madds;     // 0: the default; 1: everything on the team; UINT64_MAX: everything inline
};

void cluster_start(struct cluster *c, const struct cluster_options *options);
void cluster_stop(struct cluster *c);
void cluster_kill(struct cluster *c, uint32_t worker); // it is gone, as a process would be

struct answer {
    bool done;
    enum common_code code;
    char text[512], reason[64], worker[65];
    ProtobufCMessage *body; // a copy of its own; NULL unless OK
    const ProtobufCMessageDescriptor *type;
};
// Calls and waits. Returns the code; *out is freed with answer_free (may be NULL).
enum common_code cluster_call(struct cluster *c, struct proto_channel *channel, uint32_t method,
                              const ProtobufCMessage *body, const struct proto_tensor_out *tensors,
                              size_t n_tensors, struct answer *out);
// The same, and does not wait: the answer, zeroed, is done when it is.
void cluster_call_begin(struct cluster *c, struct proto_channel *channel, uint32_t method,
                        const ProtobufCMessage *body, struct answer *answer);
void answer_free(struct answer *answer);
bool cluster_wait(struct cluster *c, const bool *flag); // runs the loop until it is set; false after 30 s

// Deterministic contents: row `position` of a layer, as version `version`.
void fill_rows(uint32_t layer, uint64_t first, uint32_t count, uint32_t version, float *k, float *v);
void fill_q(uint64_t first, uint32_t rows, float *q);

// ---- the coordinator's part ---------------------------------------------------------------------

struct chunk_place {
    uint64_t chunk, first;
};
void spec_init(Banyan__Pb__Spec *spec);
// LayoutSet at the standard term, epoch and incarnation, replacing.
enum common_code cluster_layout(struct cluster *c, uint32_t worker, uint64_t session,
                                const struct chunk_place *chunks, size_t n);
void cluster_layout_ok(struct cluster *c, uint32_t worker, uint64_t session, const struct chunk_place *chunks,
                       size_t n);
// A chain or a star of all workers.
void cluster_plan(struct cluster *c, bool chain);
enum common_code cluster_put(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer,
                             uint64_t first, uint32_t count, uint32_t version);
enum common_code cluster_prepare(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer,
                                 uint64_t first, uint64_t count, struct answer *out);
enum common_code cluster_commit(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer,
                                uint64_t first, uint64_t count);
// Put, prepared, committed.
void cluster_attach(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer, uint64_t first,
                    uint32_t count);

// ---- steps --------------------------------------------------------------------------------------

// A step for the root, one item; coverage as if `chunks` were the layout. Free with proto_step_free.
struct proto_step *step_new(uint32_t n_items);
void step_item(struct proto_step *step, uint32_t i, uint64_t session, uint32_t layer, uint64_t first,
               uint32_t rows, const struct chunk_place *chunks, size_t n);
// The item appends its rows (version `version`) to this chunk, held by rank `holder`.
void step_append(struct proto_step *step, uint32_t i, uint64_t chunk, uint32_t holder, uint64_t write,
                 uint64_t length, uint32_t version);

struct outcome {
    bool done;
    enum common_code code;
    char text[256];
    struct proto_step_result *result; // freed by outcome_free
};
enum common_code cluster_step(struct cluster *c, uint32_t root, const struct proto_step *step,
                              struct outcome *out);
void cluster_step_begin(struct cluster *c, uint32_t root, const struct proto_step *step, struct outcome *out);
void outcome_free(struct outcome *out);

// Compares o and lse of item `i` of a step over committed rows of version 0 with the float64 reference.
void assert_exact(const struct proto_step *step, const struct outcome *out, uint32_t i);

// Everything that a call can change and a peer can see: inventory, memory, hashes of all rows. Free it.
char *cluster_state(struct cluster *c, uint32_t worker);

#endif
