// SPDX-License-Identifier: Apache-2.0
// What the parts of chaos_test share: the model of what its clients know, what they do, and what disturbs
// them.
#ifndef TESTS_SIM_CHAOS_H
#define TESTS_SIM_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/sim_cluster.h"

enum {
    WORKERS = 5, // at most: each seed has its number (chaos.n_workers)
    CLIENTS = 3, // each with a connection of its own; they tell each other what they know
    LAYERS = 2,
    TOKENS = 120,
    CHUNK_TOKENS = 16,
    CHUNKS = TOKENS / CHUNK_TOKENS + 1,
    SESSIONS = 14,
    SNAPSHOTS = 4, // that one life begins
    STRANGERS = 6, // sessions whose makers got no answer, and that are found by their names
    NAMES = 3,
    OPS = 1000,
    STEPS = 140,
    MOST_ROWS = 24,
    FLIPS = 4 // at a time
};

// ---- the model (chaos_model.c) --------------------------------------------------------------------------

// Ids of chunks of which a worker has lost its copy: the one that counted, and one that a truncate had
// prepared in its place. That one counts as soon as the truncate is durable, of which the coordinator may
// hear later, or after a restart.
struct lost {
    uint64_t counted, prepared;
};

struct model {                     // a session as its clients know it
    uint64_t id, incarnation, key; // key: with which it was made
    uint32_t name;                 // 1..NAMES; 0: it has none
    float value[LAYERS][TOKENS];   // what is, or will be, written there
    bool acked[LAYERS][TOKENS];    // acknowledged, and not truncated since
    bool maybe[LAYERS][TOKENS];    // written, acknowledged or not
    // Appends and puts that may have written it: of those that were refused for good nothing may be seen
    // again.
    uint32_t writers[LAYERS][TOKENS];
    bool ends[LAYERS][TOKENS + 1]; // something that was written ends there: a layer ends nowhere else
    uint64_t starts[LAYERS];       // where the writes began that went furthest
    uint64_t floor_most;           // its floor is not higher (coordinator/place/forget.h)
    uint64_t born;                 // the floor that it began with, or its origin did
    bool held;              // of a snapshot: a pin, or a session that is being restored; no one else uses it
    uint32_t cuts;          // truncations begun, and ended well
    uint32_t redrawn;       // values of rows that were refused, and are others now
    uint32_t writes, reads; // under way, reads without those that are cancelled
    bool cutting;           // a truncation is under way
    bool must_cut;          // its outcome is unknown: it is made again before anything is written
    uint64_t cut;
    // Numbers of truncates, as clients give them: one that was given up may come late
    // (coordinator/session/cuts.h).
    uint64_t told,
        number; // the last one that is known, 0: none; and of the one under way, the same when sent again
    bool lossy; // the last worker was killed that had some of it
    struct lost dead[WORKERS][CHUNKS]; // what a worker had when it was killed
    // The same of one whose files have lost something, until the coordinator has heard what is left of them.
    struct lost dark[WORKERS][CHUNKS];
    // The same of one that runs, which may not find it out for long.
    struct lost rotten[WORKERS][CHUNKS];
    bool deleted;     // or no one can tell
    uint64_t gone_ns; // since when that is certain; 0: it is not
};

struct name {           // of 1..NAMES, as far as no model says it
    uint32_t under_way; // creations and forks
    uint32_t orphans;   // such that ended without a verdict: there may be a session
    uint32_t life;      // of the coordinator when the last one ended
};

enum kind {
    READ,
    APPEND,
    OPEN,
    PUT,
    COMMIT,
    TRUNCATE,
    FORK,
    DELETE,
    CREATE,
    FIND,
    WATCH,
    LOOK,
    ROWS,
    GREEDY
};
extern const char *const chaos_kind_names[];

struct op {
    struct sim_call *call;
    enum kind kind;
    struct model *m;
    uint32_t layer, rows, cuts, kills, redrawn;
    uint64_t first;
    bool must; // all that it needs was acknowledged
    bool
        tainted; // a copy that it may have met was not what was sealed (chaos_flips.c): so its numbers may be wrong
    bool checked;
    bool partial; // it takes a partial answer
    bool whole;   // of a read: all that it sees was acknowledged
    bool resent;  // of a truncate: its number was sent before
    const struct op
        *behind;   // of an append: the one that the same client has sent right before it; NULL: none
    uint32_t gone; // chunks without a copy at some moment meanwhile: bits
    uint64_t start_ns, ticket_until_ns; // the ticket of a PUT or of ROWS is good until then at least
    // Of CREATE, FORK and FIND:
    uint32_t name, life; // life: of the coordinator, at its start
    uint64_t key;
    struct model *again; // that this key has made already
    struct model *owner; // that has the name for certain, at its start
    bool rivals;         // another may have had the name at some time while it was under way
    // Of WATCH; layer is one too many (0: any), rows are the steps that it waits for, first the time until
    // when:
    bool wants_trace, wants_mass;
};

struct flip { // of bits in a worker's memory
    uint32_t worker, index;
    uint64_t chunk;    // its id
    uint32_t life;     // of the coordinator that was asked to compare it
    uint64_t asked_of; // the session whose chunk it is to compare; 0: it was not asked
    uint64_t ask_at_ns;
};

struct chaos {
    struct sim_cluster *cluster;
    struct sim_client *clients[CLIENTS];
    uint32_t n_clients;
    uint32_t n_workers; // that are there, or have been: JOIN adds one
    uint64_t seed;
    bool verbose;
    uint64_t faults;        // kinds that this seed has
    uint64_t faults_most;   // of these alone, for a shorter trace
    uint64_t trace, events; // of a run that has ended
    uint32_t steps;         // how many things happen before the end
    uint32_t replicas;      // of all sessions
    bool cold;              // and much of it in files alone
    bool stored;            // workers keep what they hold in files: those that are killed lose nothing
    struct model models[SESSIONS + STRANGERS + NAMES + 3 * SNAPSHOTS];
    bool ending; // each name's stranger has room now, however many there were
    struct name names[NAMES + 1];
    uint32_t making;                        // creations and forks under way
    uint32_t n_models, n_ops, kills, lives; // lives: of the coordinator
    bool was_wrong;
    uint32_t wrongs;          // how often it was, and was not any more
    bool wrong;               // the coordinator has another store: what it says of sessions does not count
    uint32_t rotten;          // rows that were damaged
    struct flip flips[FLIPS]; // that no check has found yet
    uint32_t n_flips;
    bool flipped;                                          // bits have, in this life
    uint64_t taken[WORKERS];                               // bytes of their memory
    enum age { NEW, OLD_WIRE, OLD_CONTROL } ages[WORKERS]; // of their builds
    uint64_t forget; // of all sessions, as their masks; 0: they forget nothing, and have none
    uint64_t floor;  // that they are born with
    struct sim_mask masks[LAYERS];
    bool any_gone;      // chunks had no copy under a call that takes a partial answer
    uint32_t n_partial; // answers that were
    bool partial;       // the next read or append takes a partial answer
    uint64_t delay_ns;  // of a message, at most, while the network is as it should be
    uint64_t audited;   // steps that a life of the coordinator has audited, at most
    struct snapshots {
        bool on; // this life has them
        uint32_t taken, refused, restored, died;
    } snapshots;
    struct op ops[OPS];
};
extern struct chaos chaos;

void chaos_violated(const struct op *op, const char *what) __attribute__((noreturn));
struct model *chaos_model_new(uint64_t id, uint64_t incarnation);
// It has just been made with this floor: whole chunks below count as there.
void chaos_model_born(struct model *m, uint64_t floor);
// A client is about to write rows that may be there from now on.
void chaos_mark_maybe(struct model *m, uint32_t layer, uint64_t first, uint32_t rows);
uint32_t chaos_prefix(const struct model *m, uint32_t layer); // acknowledged from 0 on
uint64_t chaos_from(uint32_t layer, uint64_t at); // the first row that the one at this position sees
// Whether a call may be refused for what rows at `at` see: of this layer, or of any.
bool chaos_may_be_forgotten(const struct model *m, uint32_t layer, uint64_t at);
bool chaos_row_may_be_forgotten(const struct model *m, uint32_t layer, uint64_t row); // itself
bool chaos_any_forgotten(const struct model *m, uint64_t at);
float chaos_mean(const struct model *m, uint32_t layer, uint64_t last);
void chaos_draw_values(struct model *m, uint64_t from);
void chaos_forget_from(struct model *m, uint64_t from, bool written);
// Nothing of it is there, or ever will be: other values may come.
void chaos_unmark(struct model *m, uint32_t layer, uint64_t first, uint32_t rows);
bool chaos_passes(enum common_code code); // an error that the same call may not meet again
// Whether killed workers may have taken rows of sessions with them whose last holders they were not: with one
// copy that is not examined so closely.
bool chaos_kills_excuse(void);
bool chaos_is_lost(const struct lost *lost, uint64_t chunk);
void chaos_not_lost(struct lost *lost, uint64_t chunk); // not any more
// What no worker has any more that counts as a holder is lost.
void chaos_look_for_losses(void);
// What a dead process had and what is removed may come back to its worker: as a copy of another's.
void chaos_look_for_struck(void);

// ---- audits (chaos_audit.c) --------------------------------------------------------------------------------

void chaos_choose_audit(struct coordinator_options *options);
void chaos_check_audits(void);

// ---- what clients do (chaos_model.c), and what must hold when a call ends (chaos_check.c) ------------------

struct op *chaos_start_read(struct model *m, uint32_t layer, uint64_t at);
struct op *chaos_start_append(struct model *m, uint32_t layer, uint64_t first, uint32_t rows);
struct op *chaos_start_truncate(struct model *m, uint64_t length);
struct op *chaos_start_delete(struct model *m);
void chaos_start_look(struct model *m); // a ticket to read rows, then the rows
void chaos_start_rows(const struct op *look);
void chaos_start_greedy(const struct op *look); // rows past the ticket's, too
void chaos_start_put(const struct op *open);
void chaos_start_commits(const struct op *put);
struct sim_client *chaos_a_client(void);
struct op *chaos_op_new(enum kind kind, struct model *m, uint32_t layer, uint64_t first, uint32_t rows);
void chaos_act(void);      // one thing that clients do
void chaos_act_cuts(void); // of what no client writes to some is truncated

bool chaos_check_all(void); // true: all calls have ended

// ---- partial answers (chaos_partial.c) -------------------------------------------------------------------

bool chaos_takes_partial(void); // whether the next call does
void chaos_partial_begins(struct op *op);
void chaos_look_for_gone(void); // after each event
// Of a call that has succeeded, whose last row is at `at`.
void chaos_check_partial(const struct op *op, uint64_t at);

// ---- names and keys (chaos_names.c) ---------------------------------------------------------------------
//
// Of a name at most one session is there, and every search finds it, from the answer to its creation to the
// call of its deletion. A creation or fork is refused for its name only where another session has it, or may
// have.

void chaos_start_creates(void); // one, or two of the same name at once
void chaos_start_create_again(struct model *m);
void chaos_start_fork(struct model *m, uint64_t length);
struct op *chaos_start_create(uint32_t name);
struct op *chaos_start_find(uint32_t name);
// A creation, a fork or a search has ended; heard: a coordinator that has the sessions has answered, if any.
void chaos_name_ended(struct op *op, bool heard);
// The session that such a call has made; NULL: none, or one that is known.
struct model *chaos_made(const struct op *op);

// ---- watches (chaos_watch.c) ----------------------------------------------------------------------------

void chaos_start_watch(struct model *m);
// It reports only steps of this session that clients have made, as they were, and ends early only with all of
// them.
void chaos_check_watch(const struct op *op);
bool chaos_nobody_watches(void); // nor is anything computed for those who did

// ---- bits that flip in memory (chaos_flips.c) -----------------------------------------------------------
//
// Until all copies of the chunk have been compared since, what sessions that have it answer may be wrong, and
// is excused. From then on nothing is: the copy is used no longer, nor any that was made of it, and counts as
// lost.

void chaos_flip_memory(void);
void chaos_look_for_flips(void); // which of them are over
bool chaos_is_tainted(const struct model *m);
void chaos_flips_end(void); // all are compared

// ---- snapshots (chaos_snapshot.c) ------------------------------------------------------------------------
//
// A client of its own, the real library's, pins a session while others use it, reads all of its rows, and
// puts them into a new one. What it has read is what was acknowledged at some moment of the pin, and what was
// under way then, as a whole or not at all; the new session is one of those that all clients use. It may be
// refused, with a code that its calls allow, and die. Unused pins go by themselves.

void chaos_choose_snapshots(struct coordinator_options *options); // whether this life has them
void chaos_snapshot_step(void);                                   // one may begin, meet a fault, or end
void chaos_snapshot_over(void);                                   // the one under way is
void chaos_snapshot_calm(void);                                   // one that nothing disturbs succeeds
void chaos_pins_are_gone(void);                                   // by themselves

// ---- the end (chaos_end.c) ------------------------------------------------------------------------------

void chaos_end(void); // nothing is disturbed any more: everything works, and at last nothing is left

// ---- what disturbs them (chaos_faults.c) ----------------------------------------------------------------

enum fault {
    CUT,
    HOLD,
    PART,
    HEAL,
    KILL_WORKER,
    KILL_COORDINATOR,
    STOP_COORDINATOR,
    FREEZE_WORKER,
    FREEZE_COORDINATOR,
    DISK_FAILS,
    DISK_STALLS,
    DISK_SILENT,
    REFUSE,
    HOLD_REQUESTS,
    CANCEL,
    CUT_CLIENT,
    MEMORY_SHORT,
    CLOCK_SKEWED,
    NET_SLOW,
    STORE_WRONG, // at a start: an empty one, and later one without what has happened since
    FLIP,        // bits of frames, on their way
    ROT,         // a bit of a row that is put and not committed
    HALF_OPEN,   // one end of the links between two has forgotten them, and dials again
    OLD_BUILD,   // a worker, or a client more, that must be refused until it is as new as the others
    DISK_UNSURE, // what it refuses may be there after a crash
    DRAIN,       // a worker is to be emptied, or used again
    BALANCE,
    POWER,       // of a worker's machine: what its files have and was not synced is gone in part
    FILE_ROT,    // a bit of a worker's files, or a whole one, while it is down
    FILES_FULL,  // a worker's disk has no room, or gives errors; files cannot be opened for a while
    MEMORY_FLIP, // bits of rows of a sealed chunk, in a worker's memory
    SUPERVISED, // the coordinator ends, slowly or at once, and the next one is started while it may still be there
    SLOW,       // a worker computes slowly, or as fast as before (half of the seeds compute on teams)
    FAULTS,       // those that the dice draw
    RETURN = 61,  // a worker comes back while the store does not answer; then it does. As JOIN
    SWALLOW = 60, // what is between two acknowledges what one says, or both, and throws it away; as JOIN
    QUOTA =
        62, // the tenant of all sessions may have less of something, or as much as it likes; as JOIN: not from the dice
    JOIN = 63 // a worker that was not there comes, and stays; seeds without it go on as they did before it
};

void chaos_disturb(enum fault fault);
void chaos_edges_swallow(
    void);             // one does while nothing else is wrong: whatever can be read without it is read
void chaos_cool(void); // rows leave memory, and chunks' files are rewritten
bool chaos_old_builds_are_out(void); // none of them has received a session
void chaos_disturb_end(void);        // nothing is disturbed any more

#endif
