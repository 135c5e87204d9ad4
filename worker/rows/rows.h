// SPDX-License-Identifier: Apache-2.0
// Attached rows: puts, and the second phase of commits. Loop thread.
#ifndef WORKER_ROWS_H
#define WORKER_ROWS_H

#include <stdint.h>

struct proto_request;
struct worker_chunk;

// The part of [first, first + count) that lies in a chunk, which it touches, as rows of it.
void worker_chunk_part(const struct worker_chunk *chunk, uint64_t first, uint64_t count, uint32_t *row,
                       uint32_t *rows);
// Rows that no commit has any more (worker_thaw_fn); arg: their session.
void worker_thaw_rows(void *session, uint32_t layer, uint64_t first, uint64_t count);
// Handlers; arg: the worker.
void worker_handle_chunk_put(void *arg, struct proto_request *request);
void worker_handle_rows_commit(void *arg, struct proto_request *request);
void worker_handle_rows_abort(void *arg, struct proto_request *request);

#endif
