// SPDX-License-Identifier: Apache-2.0
// Copies of chunks, fetched from other workers (ChunkPull): rows that are committed or acknowledged there, piece by
// piece (ChunkRead, read.c), in the order in which the pulls came, as fast as the coordinator allows.
//
//   ChunkPull ──▶ PULLING ──a piece at a time: asked, come, compared with the sender's sum, written──▶ answered: OK
//                    └── a read failed, the chunk or the session has gone, no memory, nobody waits ──▶ answered: failed
//
// What has been written stays: a repeated pull continues from there. All pulls of a worker share the links to
// those they read from, one an endpoint, which close a while after the last pull. Everything here is the loop
// thread's.
#ifndef WORKER_PULL_H
#define WORKER_PULL_H

struct worker;
struct worker_pulls;
struct proto_request;

struct worker_pulls *worker_pulls_new(struct worker *worker); // NULL: out of memory
// Those under way fail: UNAVAILABLE. NULL is allowed.
void worker_pulls_free(struct worker_pulls *pulls);

void worker_handle_chunk_pull(void *arg, struct proto_request *request); // arg: the worker

#endif
