// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of the whole service share: sessions of a geometry filled with random keys and values,
// and one-token steps on them.
#ifndef BENCH_SERVICE_H
#define BENCH_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"

struct harness_cluster;
struct harness_options;

struct service_geometry {
    const char *name; // "32/8x128"
    uint32_t q_heads, kv_heads, dim;
};

extern const struct service_geometry service_large; // 32 / 8 × 128
extern const struct service_geometry service_small; // 8 / 2 × 64

size_t service_query_bytes(const struct service_geometry *g);   // of one row; also of its output
size_t service_kv_row_bytes(const struct service_geometry *g);  // K (or V) of one token, bfloat16
size_t service_partial_bytes(const struct service_geometry *g); // of one row, packed

// Starts the daemons of this build. NULL with the reason on stderr.
struct harness_cluster *service_cluster(uint32_t workers, const char *memory);
// The same with an engine: "stream", "mpi", whose workers mpirun starts, or "nccl"; and where workers
// compute: as banyan-worker --device has it.
struct harness_cluster *service_cluster_engine(uint32_t workers, const char *memory, const char *engine,
                                               const char *device);

struct harness_cluster *service_cluster_with(const struct harness_options *options);

// One layer, bfloat16, chunks of chunk_tokens (0: the default), spread over `members` workers, holding
// `tokens` random tokens. NULL with the reason on stderr.
banyan_session *service_session(banyan_client *client, const struct service_geometry *g, uint32_t members,
                                uint32_t chunk_tokens, uint64_t tokens);

// Buffers of a one-token step; k and v random.
struct service_step {
    float *q, *o;
    void *k, *v;
};
bool service_step_init(struct service_step *step, const struct service_geometry *g);
void service_step_free(struct service_step *step);

// An item that appends one token at `position` and attends it.
banyan_item service_item(banyan_session *session, const struct service_step *step, uint64_t position);

// Processor time of this process, the coordinator and the workers so far.
double service_cpu_s(const struct harness_cluster *cluster);

bool service_failed(const char *what, const banyan_error *error); // prints; always false

#endif
