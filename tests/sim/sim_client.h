// SPDX-License-Identifier: Apache-2.0
// A client of a simulation: a process with a channel to the coordinator. Each operation is one call, made at
// once and ended later: a sim_call records how. Calls belong to the client and live until sim_client_free.
#ifndef TESTS_SIM_SIM_CLIENT_H
#define TESTS_SIM_SIM_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc/rpc.h"

struct sim_client;
struct sim_opened;
struct sim_watched;

struct sim_call {
    struct sim_call *next;
    struct sim_client *client;
    uint32_t method;
    uint64_t id; // of the channel, for sim_client_cancel
    struct proto_channel *channel;
    bool done;
    uint32_t times;        // that the reply has come: 1 once done
    enum common_code code; // of the call, or of the item of an attend
    char text[400], reason[32];
    bool told; // of an attend: the item has an answer of its own, and the code is its
    uint64_t deadline_ns, done_ns;
    // What a reply said:
    uint64_t session, incarnation, length, epoch, n_missing; // length: of the layer, or the session's
    uint64_t cut;                                            // of a create, fork, truncate, or an info
    char state[32];                                          // of an info
    uint32_t n_active;                                       // workers
    char workers[16][12];                                    // their states, by the number in their names
    uint64_t first_missing, count_missing;                   // the first range that the failure names
    float o; // of an attend: its last row's, all dimensions alike
    // Of an attend that takes a partial answer: what it declares, and how many tokens it was computed over.
    uint64_t seen, missing_first[16], missing_count[16];
    uint32_t n_declared;
    uint64_t digest; // of an attend
    float lse;       // of its last row and head
    bool partial;
    struct sim_opened *opened;   // ticket and holders of an open; its own
    uint64_t asked;              // the session of an open
    struct sim_watched *watched; // of a watch (sim_watch.h); its own
    uint32_t n_watched;
    uint64_t (*from)(uint32_t layer, uint64_t at);
    uint64_t sealed, unchecked, unsealed, lost, corrupt, disputed, differ; // of a scrub
    uint32_t left; // puts, or reads, that are under way
    float *rows;   // of a read of rows: V of each, all dimensions alike; its own
    void (*take)(struct sim_call *call, const struct proto_message *message); // of sim_call_start
};

// For calls of other kinds (sim_watch.c): take reads a successful reply.
typedef void (*sim_take_reply_fn)(struct sim_call *call, const struct proto_message *message);
struct sim_call *sim_call_start(struct sim_client *client, uint32_t method, const ProtobufCMessage *body,
                                const struct proto_tensor_out *tensors, size_t n_tensors,
                                sim_take_reply_fn take);

struct sim_client *sim_client_new(const char *coordinator, const char *token);
// Calls from now on go to this coordinator; those under way stay where they are. The endpoint is kept, not
// copied.
void sim_client_direct(struct sim_client *client, const char *coordinator);
void sim_client_free(struct sim_client *client); // calls under way end with CANCELLED; NULL is allowed
struct common_loop *sim_client_loop(struct sim_client *client);

// Deadline of the calls made from now on; 10 s at the beginning.
void sim_client_deadline(struct sim_client *client, uint64_t ns);

// Dimension of K and V in the calls made from now on, and of the sessions that they make; 4 at the beginning.
// Rows of 128 make an append be cut into bands of some 250.
void sim_client_dim(struct sim_client *client, uint32_t dim);

// An append has failed and never comes back; else it may yet be there, as a whole.
static inline bool sim_append_refused(const struct sim_call *call)
{
    return call->told && call->code != COMMON_OK && strcmp(call->reason, "UNCONFIRMED") != 0;
}

struct sim_mask { // 0: none
    uint64_t window, mask_chunk;
    bool not_causal;
};

struct sim_shape { // of the sessions that are made: F32, 2 query heads over 1
    uint32_t layers, chunk_tokens, members,
        replicas;           // 0: 1, 16, as the coordinator likes, 1; replicas 9: as the coordinator likes
    uint64_t forget, floor; // floor: that it is born with
    const struct sim_mask *masks; // [layers] that differ; NULL: every row sees all before it
};

struct sim_call *sim_create(struct sim_client *client, struct sim_shape shape, const char *name);
// The same, with a key of the caller's (SessionCreateRequest.key, SessionForkRequest.key).
struct sim_call *sim_create_once(struct sim_client *client, uint64_t key, const char *name);
struct sim_call *sim_create_as(struct sim_client *client, struct sim_shape shape, const char *name,
                               uint64_t key);
struct sim_call *sim_fork_as(struct sim_client *client, uint64_t session, uint64_t length, const char *name,
                             uint64_t key);
struct sim_call *sim_fork_once(struct sim_client *client, uint64_t key, uint64_t session, uint64_t length);
struct sim_call *sim_delete(struct sim_client *client, uint64_t session);
struct sim_call *sim_drain(struct sim_client *client, const char *worker, bool resume);
struct sim_call *sim_scrub(struct sim_client *client, uint64_t session, bool ask); // session 0: of all
struct sim_call *sim_rebalance(struct sim_client *client, bool dry_run);
struct sim_call *sim_info(struct sim_client *client, uint64_t session);
struct sim_call *sim_find(struct sim_client *client, const char *name); // opens: session
struct sim_call *sim_cluster_info(struct sim_client *client);           // n_active
struct sim_call *sim_truncate(struct sim_client *client, uint64_t session, uint64_t length);
// The same with its numbers (SessionTruncateRequest.after, .cut); settle: with them alone.
struct sim_call *sim_truncate_after(struct sim_client *client, uint64_t session, uint64_t length,
                                    uint64_t after, uint64_t cut);
struct sim_call *sim_settle(struct sim_client *client, uint64_t session, uint64_t after, uint64_t cut);
struct sim_call *sim_fork(struct sim_client *client, uint64_t session, uint64_t length, const char *name);
struct sim_call *sim_open(struct sim_client *client, uint64_t session, uint64_t first, uint64_t count);
// A ticket to read rows with, and where they are; then the rows, of each chunk from its holder number copy %
// holders.
struct sim_call *sim_read_open(struct sim_client *client, uint64_t session, uint64_t first, uint64_t count);
uint64_t sim_opened_life(const struct sim_call *opened); // of the ticket, from the answer on
struct sim_call *sim_read_rows(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                               uint64_t first, uint64_t count, uint32_t copy);

struct sim_call *sim_commit(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                            uint64_t count);

// The client's part of an attach, after sim_open has answered: puts the rows, with values as sim_append's,
// straight to the workers that the answer names. It ends when all puts have; its code is the first failure's.
// It puts rows to the first holder of each chunk alone, as a client would that has no others.
void sim_client_one_holder(struct sim_client *client, bool on);

// Attends made from now on take partial answers (AttendItem.allow_partial).
void sim_client_partial(struct sim_client *client, bool on);

struct sim_call *sim_put(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                         uint64_t first, uint64_t count, float value);

// One item. All K are 1, and all V of an append are `value`: so o of a row is the mean of the values that it
// sees. A read sees all below its position + 1.
struct sim_call *sim_append(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                            uint32_t rows, float value);
struct sim_call *sim_read(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                          uint32_t rows);

// The same over keys below `visible` alone.
struct sim_call *sim_read_below(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                                uint32_t rows, uint64_t visible);

// The same with a value for each row. incarnation: as in AttendItem, 0: any.
struct sim_call *sim_append_rows(struct sim_client *client, uint64_t session, uint64_t incarnation,
                                 uint32_t layer, uint64_t first, uint32_t rows, const float *values);
struct sim_call *sim_put_rows(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                              uint64_t first, uint64_t count, const float *values);

// A commit that says what was put: the sums of rows with these values, chunk by chunk of chunk_tokens.
struct sim_call *sim_commit_rows(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                                 uint64_t count, const float *values, uint32_t chunk_tokens);

void sim_cancel(struct sim_call *call);

#endif
