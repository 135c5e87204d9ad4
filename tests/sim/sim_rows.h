// SPDX-License-Identifier: Apache-2.0
// What a scripted worker holds: sessions with their layouts, chunks, and of each row of each layer its state and a
// tag in the place of its bytes. The rules are those of worker/session.c and worker/chunk.c, without memory.
#ifndef TESTS_SIM_SIM_ROWS_H
#define TESTS_SIM_SIM_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "proto/banyan.pb-c.h"
#include "proto/step.h"

enum sim_row_state { SIM_ROW_ABSENT, SIM_ROW_PUT, SIM_ROW_PREPARED, SIM_ROW_APPENDED, SIM_ROW_COMMITTED };

struct sim_row {
    enum sim_row_state state;
    uint64_t tag; // equal tags: equal bytes
};

struct sim_chunk {
    struct sim_chunk *next;
    uint64_t id, first;
    uint32_t refs, layers, tokens;
    struct sim_row *rows; // [layers][tokens]
};

struct sim_entry {
    struct sim_chunk *chunk;
    bool compute;
};

struct sim_session {
    struct sim_session *next;
    uint64_t id, incarnation, epoch, write_term, write;
    uint32_t layers, tokens; // a chunk
    size_t k_row, v_row;     // bytes
    struct sim_entry *entries,
        *staged; // by first position; staged: of a layout that comes in several messages
    uint32_t n, n_staged;
    uint64_t staged_epoch;
};

struct sim_rows {
    struct sim_session *sessions; // by id
    struct sim_chunk *chunks;
};

void sim_rows_clear(struct sim_rows *rows);
struct sim_session *sim_rows_session(const struct sim_rows *rows, uint64_t id); // NULL: not here
struct sim_chunk *sim_rows_chunk(const struct sim_rows *rows, uint64_t id);     // NULL: not here

// As worker_session_check: NOT_FOUND, ABORTED (another incarnation), INVALID_ARGUMENT.
enum common_code sim_rows_check(const struct sim_rows *rows, uint64_t id, uint64_t incarnation,
                                uint32_t layer, struct sim_session **out, struct common_error *err);

// LayoutSet: ABORTED for an older incarnation or epoch.
enum common_code sim_rows_layout(struct sim_rows *rows, const Banyan__Pb__LayoutSetRequest *request,
                                 struct common_error *err);
void sim_rows_drop(struct sim_rows *rows, uint64_t session);

// The chunk of the session at a position; NULL: not here.
struct sim_chunk *sim_session_chunk(const struct sim_session *session, uint64_t position);
struct sim_row *sim_chunk_row(const struct sim_chunk *chunk, uint32_t layer, uint32_t row);
uint32_t sim_chunk_ready(const struct sim_chunk *chunk,
                         uint32_t layer); // from its start: APPENDED or COMMITTED

// An attach: rows with tag + position each, where they are held. Returns how many are. False tags: 0.
uint64_t sim_session_put(struct sim_session *session, uint32_t layer, uint64_t first, uint64_t count,
                         uint64_t tag);

// Changes the rows held here of the range that are in `from`.
void sim_session_move(struct sim_session *session, uint32_t layer, uint64_t first, uint64_t count,
                      enum sim_row_state from, enum sim_row_state to);
bool sim_session_all(const struct sim_session *session, uint32_t layer, uint64_t first, uint64_t count,
                     enum sim_row_state least); // of those held here

// One appended row: FAILED_PRECONDITION where other bytes are kept, DATA_LOSS where the chunk is not here.
enum common_code sim_session_append(struct sim_session *session, const struct proto_append_run *run,
                                    uint32_t layer, uint64_t position, uint64_t tag, uint64_t replace_from,
                                    struct common_error *err);

void sim_session_cover(const struct sim_session *session, uint32_t layer, uint64_t visible, uint64_t *tokens,
                       uint64_t *sum);

#endif
