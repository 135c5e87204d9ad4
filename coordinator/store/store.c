// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/log/log.h"
#include "common/secure/secret.h"
#include "coordinator/store/hold.h"
#include "coordinator/store/job.h"
#include "coordinator/store/leftover.h"
#include "coordinator/store/spare.h"
#include "coordinator/store/sql.h"

#define COUNTER_BLOCK (UINT64_C(1) << 16)
#define SURE_EVERY_NS (100 * COMMON_NS_PER_MS)

struct coordinator_batch {
    struct coordinator_batch *next; // in the queue
    struct common_mail mail;        // to the loop, of the list that begins here
    struct coordinator_op *ops;
    uint32_t n, cap;
    coordinator_store_fn done;
    void *arg;
    enum common_code code;
    bool wrote; // rows, with those that were committed together; of the first of them
    bool full;  // it failed since the disk is full, or may be
    bool lent;  // the spare was lent when it was written
    char text[160];
    struct coordinator_store *store; // once it was submitted
};

struct counter {
    const char *key;
    uint64_t next, end, reserved; // numbers [next, end) may be given; [end, reserved) is being made durable
                                  // when reserved > end
};

struct coordinator_store {
    struct common_loop *loop;
    struct coordinator_sql sql; // the store's thread
    struct coordinator_spare spare;
    char *path;
    bool restored;
    uint64_t term;
    uint64_t *lives; // [n_lives] so far, the last one is this one
    size_t n_lives;
    struct counter counters[COORDINATOR_COUNTERS];
    // What this turn of the loop has submitted goes over to the thread at its end, in one piece: one transaction.
    struct coordinator_batch *submitted, **submitted_tail;
    struct common_deferred *hand_over;
    struct coordinator_hold *hold; // NULL: no other process can have it (":memory:")
    int leftover;                  // leftover.h; -1: none
    pthread_t thread;
    bool started;
    // Shared, under the lock. A queue of batches, bounded by the operations that wait for them.
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct coordinator_batch *head, **tail;
    struct coordinator_store_job *job; // between batches; NULL: none
    bool closing;
    struct common_buckets took; // of transactions
    // Of the loop: batches that came to nothing, and why the last one did.
    uint64_t failed;
    char failed_text[160];
    bool failing; // so did the last one
};

// ---- batches ------------------------------------------------------------------------------------

struct coordinator_batch *coordinator_batch_new(void)
{
    struct coordinator_batch *batch = calloc(1, sizeof(*batch));
    if (!batch)
        abort();
    return batch;
}

void coordinator_batch_free(struct coordinator_batch *batch)
{
    if (!batch)
        return;
    for (uint32_t i = 0; i < batch->n; i++)
        free(batch->ops[i].bytes);
    free(batch->ops);
    free(batch);
}

static struct coordinator_op *batch_add(struct coordinator_batch *batch, enum coordinator_op_kind kind,
                                        const char *name)
{
    if (batch->n == batch->cap) {
        batch->cap = batch->cap ? batch->cap * 2 : 4;
        batch->ops = realloc(batch->ops, batch->cap * sizeof(*batch->ops));
        if (!batch->ops)
            abort();
    }
    struct coordinator_op *op = &batch->ops[batch->n++];
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    snprintf(op->name, sizeof(op->name), "%s", name ? name : "");
    return op;
}

static void add_numbers(struct coordinator_batch *batch, enum coordinator_op_kind kind, const char *name,
                        uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    struct coordinator_op *op = batch_add(batch, kind, name);
    op->a = a, op->b = b, op->c = c, op->d = d;
}

void coordinator_batch_term(struct coordinator_batch *batch, uint64_t term)
{
    add_numbers(batch, COORDINATOR_OP_META, "term", term, 0, 0, 0);
}

void coordinator_batch_accept(struct coordinator_batch *batch)
{
    add_numbers(batch, COORDINATOR_OP_META, COORDINATOR_RESTORED_KEY, 0, 0, 0, 0);
}

void coordinator_batch_worker(struct coordinator_batch *batch, const char *name, uint64_t instance)
{
    add_numbers(batch, COORDINATOR_OP_WORKER, name, instance, 0, 0, 0);
}

void coordinator_batch_worker_drop(struct coordinator_batch *batch, const char *name)
{
    batch_add(batch, COORDINATOR_OP_WORKER_DROP, name);
}

static void op_bytes(struct coordinator_op *op, const void *bytes, size_t n)
{
    op->bytes = malloc(n ? n : 1);
    if (!op->bytes)
        abort();
    memcpy(op->bytes, bytes, n);
    op->n_bytes = n;
}

void coordinator_batch_session(struct coordinator_batch *batch, uint64_t session, const char *name,
                               const void *spec, size_t spec_bytes, uint64_t incarnation, uint64_t epoch,
                               uint32_t tenant)
{
    if (tenant)
        add_numbers(batch, COORDINATOR_OP_OWNER, name, session, tenant, 0, 0);
    struct coordinator_op *op = batch_add(batch, COORDINATOR_OP_SESSION, tenant ? "" : name);
    op->a = session, op->b = incarnation, op->c = epoch;
    op_bytes(op, spec, spec_bytes);
}

void coordinator_batch_tenant(struct coordinator_batch *batch, uint32_t id, const char *name)
{
    add_numbers(batch, COORDINATOR_OP_TENANT, name, id, 0, 0, 0);
}

void coordinator_batch_token(struct coordinator_batch *batch, const struct coordinator_token_row *row)
{
    struct coordinator_op *op = batch_add(batch, COORDINATOR_OP_TOKEN, row->name);
    op->a = row->id, op->b = (uint64_t)row->access << 32 | row->tenant;
    op->c = row->created_s, op->d = row->expires_s;
    op_bytes(op, row->hash, sizeof(row->hash));
    if (row->used_s)
        coordinator_batch_token_used(batch, row->id, row->used_s);
}

void coordinator_batch_token_used(struct coordinator_batch *batch, uint64_t id, uint64_t used_s)
{
    add_numbers(batch, COORDINATOR_OP_TOKEN_USED, NULL, id, used_s, 0, 0);
}

void coordinator_batch_token_drop(struct coordinator_batch *batch, uint64_t id)
{
    add_numbers(batch, COORDINATOR_OP_TOKEN_DROP, NULL, id, 0, 0, 0);
}

void coordinator_batch_quota(struct coordinator_batch *batch, uint32_t tenant, const char *name, uint64_t max)
{
    add_numbers(batch, max ? COORDINATOR_OP_QUOTA : COORDINATOR_OP_QUOTA_DROP, name, tenant, max, 0, 0);
}

void coordinator_batch_drain(struct coordinator_batch *batch, const char *worker, const void *order,
                             size_t bytes)
{
    op_bytes(batch_add(batch, COORDINATOR_OP_DRAIN, worker), order, bytes);
}

void coordinator_batch_resume(struct coordinator_batch *batch, const char *worker)
{
    batch_add(batch, COORDINATOR_OP_RESUME, worker);
}

void coordinator_batch_numbers(struct coordinator_batch *batch, uint64_t session, uint64_t incarnation,
                               uint64_t epoch)
{
    add_numbers(batch, COORDINATOR_OP_NUMBERS, NULL, session, incarnation, epoch, 0);
}

void coordinator_batch_session_drop(struct coordinator_batch *batch, uint64_t session)
{
    add_numbers(batch, COORDINATOR_OP_SESSION_DROP, NULL, session, 0, 0, 0);
    add_numbers(batch, COORDINATOR_OP_CHUNK_DROP, NULL, session, 0, UINT32_MAX, 0);
}

void coordinator_batch_key(struct coordinator_batch *batch, uint64_t session, uint64_t key)
{
    add_numbers(batch, COORDINATOR_OP_KEY, NULL, session, key, 0, 0);
}

void coordinator_batch_cut(struct coordinator_batch *batch, uint64_t session, uint64_t cut)
{
    add_numbers(batch, COORDINATOR_OP_CUT, NULL, session, cut, 0, 0);
}

void coordinator_batch_floor(struct coordinator_batch *batch, uint64_t session, uint64_t floor)
{
    add_numbers(batch, COORDINATOR_OP_FLOOR, NULL, session, floor, 0, 0);
}

void coordinator_batch_prefix(struct coordinator_batch *batch, uint64_t session,
                              const struct coordinator_prefix_row *row)
{
    struct coordinator_op *op = batch_add(batch, COORDINATOR_OP_PREFIX, NULL);
    op->a = session, op->b = row->incarnation, op->c = row->used_ns;
    op->d = row->ttl_ns << 1 | row->pinned;
    op_bytes(op, row->hashes, row->bytes);
}

void coordinator_batch_prefix_used(struct coordinator_batch *batch, uint64_t session, uint64_t used_ns)
{
    add_numbers(batch, COORDINATOR_OP_PREFIX_USED, NULL, session, used_ns, 0, 0);
}

void coordinator_batch_member(struct coordinator_batch *batch, uint64_t session, const char *worker)
{
    add_numbers(batch, COORDINATOR_OP_MEMBER, worker, session, 0, 0, 0);
}

void coordinator_batch_member_drop(struct coordinator_batch *batch, uint64_t session, const char *worker)
{
    add_numbers(batch, COORDINATOR_OP_MEMBER_DROP, worker, session, 0, 0, 0);
}

void coordinator_batch_chunk(struct coordinator_batch *batch, uint64_t session, uint32_t index, uint64_t id,
                             bool lost, const char *holder)
{
    add_numbers(batch, COORDINATOR_OP_CHUNK, holder, session, index, id, lost);
}

void coordinator_batch_follower(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                const char *holder)
{
    add_numbers(batch, COORDINATOR_OP_FOLLOWER, holder, session, index, 0, 0);
}

void coordinator_batch_copy_lost(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                 uint64_t id, const char *holder)
{
    add_numbers(batch, COORDINATOR_OP_COPY_LOST, holder, session, index, id, 0);
}

void coordinator_batch_seal(struct coordinator_batch *batch, uint64_t session, uint32_t index, uint64_t id,
                            uint64_t seal)
{
    add_numbers(batch, COORDINATOR_OP_SEAL, NULL, session, index, id, seal);
}

void coordinator_batch_chunk_lost(struct coordinator_batch *batch, uint64_t session, uint32_t index,
                                  uint64_t id)
{
    add_numbers(batch, COORDINATOR_OP_CHUNK_LOST, NULL, session, index, id, 0);
}

void coordinator_batch_chunk_drop(struct coordinator_batch *batch, uint64_t session, uint32_t index)
{
    add_numbers(batch, COORDINATOR_OP_CHUNK_DROP, NULL, session, index, index, 0);
}

void coordinator_batch_range(struct coordinator_batch *batch, uint64_t session, uint32_t layer,
                             uint64_t first, uint64_t count)
{
    add_numbers(batch, COORDINATOR_OP_RANGE, NULL, session, layer, first, count);
}

void coordinator_batch_clip(struct coordinator_batch *batch, uint64_t session, uint64_t length)
{
    add_numbers(batch, COORDINATOR_OP_CLIP, NULL, session, length, 0, 0);
}

// ---- the thread ---------------------------------------------------------------------------------

static void batch_fail(struct coordinator_batch *batch, int rc, const char *what, const char *text)
{
    batch->code = rc == SQLITE_FULL ? COMMON_RESOURCE_EXHAUSTED : COMMON_UNAVAILABLE;
    batch->full = rc == SQLITE_FULL || rc == SQLITE_IOERR;
    snprintf(batch->text, sizeof(batch->text), "the store %s: %s", what, text);
}

// False: the transaction around it is gone, and what other batches did in it (SQLite rolls back as a whole
// when it cannot write in the middle of one).
static bool batch_apply(struct coordinator_sql *sql, struct coordinator_batch *batch)
{
    int rc = coordinator_sql_exec(sql, "SAVEPOINT batch");
    for (uint32_t i = 0; i < batch->n && rc == SQLITE_OK; i++)
        rc = coordinator_sql_apply(sql, &batch->ops[i]);
    if (rc != SQLITE_OK) {
        batch_fail(batch, rc, "refused", sqlite3_errmsg(sql->db));
        if (sqlite3_get_autocommit(sql->db))
            return false;
        (void)coordinator_sql_exec(sql, "ROLLBACK TO batch"); // a failure of these shows at COMMIT
    }
    (void)coordinator_sql_exec(sql, "RELEASE batch");
    return !sqlite3_get_autocommit(sql->db);
}

// Whether a COMMIT that has failed is certain not to be found after a crash: a write that fails leaves a record in the log that
// is not whole. After any other failure it may be whole: its sync failed, or there was no memory for what comes after it. That
// SQLite has rolled the transaction back says nothing: that takes nothing out of the log.
static bool commit_is_torn(const struct coordinator_sql *sql, int rc)
{
    return rc == SQLITE_FULL ||
           (rc == SQLITE_IOERR && sqlite3_extended_errcode(sql->db) == SQLITE_IOERR_WRITE);
}

// One transaction of `first` and those after it up to `end`. False: nothing of it was written, and each of
// them says why.
static bool batches_write(struct coordinator_sql *sql, struct coordinator_batch *first,
                          const struct coordinator_batch *end)
{
    for (struct coordinator_batch *b = first; b != end; b = b->next)
        b->code = COMMON_OK, b->text[0] = '\0', b->full = false;
    bool refused = COMMON_FAILPOINT_FAILS("store_written");
    int before = sqlite3_total_changes(sql->db);
    int rc = refused ? SQLITE_FULL : coordinator_sql_exec(sql, "BEGIN IMMEDIATE");
    bool whole = rc == SQLITE_OK;
    for (struct coordinator_batch *b = first; b != end && whole; b = b->next)
        whole = batch_apply(sql, b);
    COMMON_FAILPOINT("store_before_commit");
    if (whole)
        rc = coordinator_sql_exec(sql, "COMMIT");
    COMMON_FAILPOINT("store_durable");
    if (whole && rc == SQLITE_OK) {
        sql->unsure = false; // what was in the log past the last good COMMIT is overwritten
        first->wrote = sqlite3_total_changes(sql->db) != before;
        return true;
    }
    sql->unsure = sql->unsure || (whole && !commit_is_torn(sql, rc));
    if (rc == SQLITE_OK)
        rc = sqlite3_errcode(sql->db);
    for (struct coordinator_batch *b = first; b != end; b = b->next)
        if (b->code == COMMON_OK)
            batch_fail(b, rc, "cannot be written", sqlite3_errmsg(sql->db));
    if (!sqlite3_get_autocommit(sql->db))
        (void)coordinator_sql_exec(sql, "ROLLBACK");
    return false;
}

#define FULL_TEXT "the disk is full, and only what frees space is accepted"

// A batch by itself. tried: it has failed by itself already.
static void batch_commit(struct coordinator_store *store, struct coordinator_batch *b, bool tried)
{
    bool serves = coordinator_spare_serves(b->ops, b->n);
    if (store->spare.state == COORDINATOR_SPARE_LENT && !serves)
        batch_fail(b, SQLITE_FULL, "refused", FULL_TEXT);
    else if ((tried || !batches_write(&store->sql, b, b->next)) && serves && b->full &&
             coordinator_spare_lend(&store->spare))
        (void)batches_write(&store->sql, b, b->next);
    b->lent = store->spare.state == COORDINATOR_SPARE_LENT;
}

// Everything that waits goes into one transaction: one wait for the disk, whatever the load. When it fails,
// each goes alone: what is too large for the disk does not take others along.
static void batches_commit(struct coordinator_store *store, struct coordinator_batch *list)
{
    coordinator_spare_regain(&store->spare, &store->sql);
    bool lent = store->spare.state == COORDINATOR_SPARE_LENT;
    if (!lent && batches_write(&store->sql, list, NULL))
        return;
    for (struct coordinator_batch *b = list; b; b = b->next)
        batch_commit(store, b, !lent && !list->next);
}

// Writes something, and so goes over what a failed COMMIT may have left: who is told that the store has refused must
// never find it there. False: not yet.
static bool make_sure(struct coordinator_sql *sql)
{
    struct coordinator_op op = {.kind = COORDINATOR_OP_META, .name = "sure", .a = common_clock_wall_ns()};
    struct coordinator_batch mark = {.ops = &op, .n = 1};
    return !sql->unsure || batches_write(sql, &mark, NULL);
}

// While the store is being closed it does not wait: what is said then, nobody acts on.
static void wait_until_sure(struct coordinator_store *store)
{
    bool closing = false;
    for (bool said = false; !closing && !make_sure(&store->sql); said = true) {
        if (!said)
            common_log_error("the disk failed during a commit, and what it wrote is unknown: waiting until "
                             "it accepts writes again");
        uint64_t until = common_clock_wall_ns() + SURE_EVERY_NS;
        struct timespec at = {.tv_sec = (time_t)(until / COMMON_NS_PER_S),
                              .tv_nsec = (long)(until % COMMON_NS_PER_S)};
        pthread_mutex_lock(&store->lock);
        if (!store->closing)
            pthread_cond_timedwait(&store->wake, &store->lock, &at);
        closing = store->closing;
        pthread_mutex_unlock(&store->lock);
    }
}

static void batches_deliver(void *arg)
{
    struct coordinator_batch *list = arg;
    while (list) {
        struct coordinator_batch *batch = list;
        list = batch->next;
        COMMON_FAILPOINT("store_answered");
        if (batch->code == COMMON_OK && batch->wrote) // what deletes what is not there needs no disk
            batch->store->failing = batch->lent;
        if (batch->code == COMMON_OK && batch->lent)
            strcpy(batch->store->failed_text, "the store refuses: " FULL_TEXT);
        if (batch->code != COMMON_OK && batch->store->started) {
            batch->store->failing = true;
            batch->store->failed++;
            memcpy(batch->store->failed_text, batch->text, sizeof(batch->text));
        }
        if (batch->done)
            batch->done(batch->arg, batch->code, batch->text);
        coordinator_batch_free(batch);
    }
}

static void *store_thread(void *arg)
{
    struct coordinator_store *store = arg;
    pthread_mutex_lock(&store->lock);
    while (store->head || store->job || !store->closing) {
        if (!store->head && !store->job) {
            pthread_cond_wait(&store->wake, &store->lock);
            continue;
        }
        struct coordinator_batch *list = store->head;
        struct coordinator_store_job *job = store->job;
        bool closing = store->closing;
        store->head = NULL;
        store->tail = &store->head;
        pthread_mutex_unlock(&store->lock);
        uint64_t began_ns = common_clock_ns();
        bool any = list != NULL;
        if (any) {
            batches_commit(store, list);
            wait_until_sure(store);
        }
        uint64_t took_ns = common_clock_ns() - began_ns;
        if (any)
            common_loop_mail(store->loop, &list->mail, batches_deliver, list);
        bool over = job && job->slice(job, &store->sql, closing);
        pthread_mutex_lock(&store->lock);
        if (any)
            common_buckets_add(&store->took, took_ns);
        if (!over)
            continue;
        store->job = NULL; // before it is told: the next one may come at once
        common_loop_mail(store->loop, &job->mail, job->done, job);
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

void coordinator_store_took(struct coordinator_store *store, struct common_buckets *out)
{
    *out = (struct common_buckets){0};
    if (!store)
        return;
    pthread_mutex_lock(&store->lock);
    *out = store->took;
    pthread_mutex_unlock(&store->lock);
}

bool coordinator_store_run(struct coordinator_store *store, struct coordinator_store_job *job)
{
    pthread_mutex_lock(&store->lock);
    bool free = store->started && !store->closing && !store->job;
    if (free) {
        store->job = job;
        pthread_cond_signal(&store->wake);
    }
    pthread_mutex_unlock(&store->lock);
    return free;
}

const char *coordinator_store_path(const struct coordinator_store *store)
{
    return store->path;
}

bool coordinator_store_named(const struct coordinator_store *store)
{
    return !store->hold || coordinator_hold_named(store->hold);
}

bool coordinator_store_refuse(struct coordinator_store *store)
{
    struct coordinator_batch *list = store && !store->started ? store->submitted : NULL;
    if (!list)
        return false;
    store->submitted = NULL;
    store->submitted_tail = &store->submitted;
    for (struct coordinator_batch *batch = list; batch; batch = batch->next)
        batch_fail(batch, SQLITE_ABORT, "cannot be written", "the coordinator is stopping");
    batches_deliver(list);
    return true;
}

static void hand_over(void *arg)
{
    struct coordinator_store *store = arg;
    if (coordinator_store_refuse(store) || !store->submitted)
        return;
    pthread_mutex_lock(&store->lock);
    *store->tail = store->submitted;
    store->tail = store->submitted_tail;
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->lock);
    store->submitted = NULL;
    store->submitted_tail = &store->submitted;
}

void coordinator_store_submit(struct coordinator_store *store, struct coordinator_batch *batch,
                              coordinator_store_fn done, void *arg)
{
    batch->done = done;
    batch->arg = arg;
    batch->store = store;
    COMMON_FAILPOINT("store_submitted");
    *store->submitted_tail = batch;
    store->submitted_tail = &batch->next;
    common_deferred_mark(store->hand_over); // after the stop it comes to nothing there
}

// ---- counters -----------------------------------------------------------------------------------

static void counter_reserved(void *arg, enum common_code code, const char *text)
{
    struct counter *counter = arg;
    if (code == COMMON_OK)
        counter->end = counter->reserved;
    else {
        counter->reserved = counter->end; // the next caller tries again
        common_log_error("no numbers could be reserved: %s counter=%s", text, counter->key);
    }
}

uint64_t coordinator_store_failed(const struct coordinator_store *store, const char **why)
{
    *why = store->failed_text;
    return store->failed;
}

const char *coordinator_store_trouble(const struct coordinator_store *store)
{
    return store->failing ? store->failed_text : NULL;
}

bool coordinator_store_next(struct coordinator_store *store, enum coordinator_counter which, uint64_t *out)
{
    struct counter *counter = &store->counters[which];
    if (counter->next + COUNTER_BLOCK / 2 > counter->end && counter->reserved == counter->end) {
        counter->reserved = (counter->next > counter->end ? counter->next : counter->end) + COUNTER_BLOCK;
        struct coordinator_batch *batch = coordinator_batch_new();
        add_numbers(batch, COORDINATOR_OP_META, counter->key, counter->reserved, 0, 0, 0);
        coordinator_store_submit(store, batch, counter_reserved, counter);
    }
    if (counter->next >= counter->end)
        return false;
    *out = counter->next++;
    return true;
}

uint64_t coordinator_store_upcoming(const struct coordinator_store *store, enum coordinator_counter which)
{
    return store->counters[which].next;
}

void coordinator_store_skip(struct coordinator_store *store, enum coordinator_counter which, uint64_t used)
{
    struct counter *counter = &store->counters[which];
    if (used >= counter->next && used < UINT64_MAX - 2 * COUNTER_BLOCK)
        counter->next = used + 1;
}

// A new store does not start at 1: workers may still hold what another store (deleted, or in memory) has
// named. Times of creation rise faster than anybody creates sessions or chunks. Chunk ids start at the time of
// day in every life: an older copy of a store does not give the numbers again that the store has given since.
static uint64_t start_of(enum coordinator_counter which)
{
    uint64_t now = common_clock_wall_ns();
    return which == COORDINATOR_COUNTER_CHUNK ? now : now / COMMON_NS_PER_S & 0x7fffffff;
}

// The number of this life, added to the store's; 0: out of memory, no random bytes, or the file system.
static uint64_t add_life(struct coordinator_store *store)
{
    uint64_t life = 0;
    if (!coordinator_sql_lives(&store->sql, &store->lives, &store->n_lives))
        return 0;
    uint64_t *more = realloc(store->lives, (store->n_lives + 1) * sizeof(*more));
    if (!more)
        return 0;
    store->lives = more;
    while (!life)
        if (!common_random(&life, sizeof(life)))
            return 0;
    store->lives[store->n_lives++] = life;
    return life;
}

static enum common_code start_life(struct coordinator_store *store, struct common_error *err)
{
    static const char *const keys[COORDINATOR_COUNTERS] = {"next_generation", "next_chunk"};
    uint64_t term = 0, restored = 0;
    bool ok = coordinator_sql_exec(&store->sql, "BEGIN IMMEDIATE") == SQLITE_OK &&
              coordinator_sql_meta(&store->sql, "term", 0, &term) &&
              coordinator_sql_meta(&store->sql, COORDINATOR_RESTORED_KEY, 0, &restored);
    store->restored = restored != 0;
    struct coordinator_op op = {.kind = COORDINATOR_OP_META, .name = "term", .a = term + 1};
    ok = ok && coordinator_sql_apply(&store->sql, &op) == SQLITE_OK;
    for (int i = 0; i < COORDINATOR_COUNTERS && ok; i++) {
        struct counter *counter = &store->counters[i];
        counter->key = keys[i];
        ok = coordinator_sql_meta(&store->sql, keys[i], start_of(i), &counter->next);
        if (i == COORDINATOR_COUNTER_CHUNK && counter->next < start_of(i))
            counter->next = start_of(i);
        counter->end = counter->reserved = counter->next + COUNTER_BLOCK;
        op.a = counter->end;
        snprintf(op.name, sizeof(op.name), "%s", keys[i]);
        ok = ok && coordinator_sql_apply(&store->sql, &op) == SQLITE_OK;
    }
    op = (struct coordinator_op){.kind = COORDINATOR_OP_LIFE, .a = term + 1, .b = add_life(store)};
    ok = ok && op.b && coordinator_sql_apply(&store->sql, &op) == SQLITE_OK;
    ok = ok && coordinator_sql_exec(&store->sql, "COMMIT") == SQLITE_OK;
    store->term = term + 1;
    COMMON_FAILPOINT("life_begun");
    return ok ? COMMON_OK
              : common_error_set(err, COMMON_UNAVAILABLE, "the store cannot be written: %s",
                                 sqlite3_errmsg(store->sql.db));
}

// The hold of the store's files first: from here on no other process opens, writes or removes one.
static enum common_code hold_files(struct coordinator_store *store, struct common_error *err)
{
    coordinator_sql_make_folder(store->path);
    enum common_code code = coordinator_sql_real_path(&store->path, err);
    if (code == COMMON_OK)
        code = coordinator_hold_take(store->path, &store->hold, err);
    if (code == COMMON_OK)
        code = coordinator_leftover_look(store->path, &store->leftover, err);
    return code;
}

static enum common_code start(struct coordinator_store *store, bool sync_full,
                              const struct coordinator_store_reader *reader, struct common_error *err)
{
    enum common_code code = strcmp(store->path, ":memory:") != 0 ? hold_files(store, err) : COMMON_OK;
    if (code == COMMON_OK)
        code = coordinator_sql_open(&store->sql, store->path, sync_full, err);
    if (code == COMMON_OK)
        coordinator_spare_open(&store->spare, store->hold ? store->path : NULL);
    if (code == COMMON_OK)
        code = coordinator_sql_read(&store->sql, reader, err);
    if (code == COMMON_OK)
        code = start_life(store, err);
    if (code == COMMON_OK)
        coordinator_leftover_void(store->leftover);
    return code;
}

static void close_files(void *arg)
{
    struct coordinator_store *store = arg;
    coordinator_sql_close(&store->sql);
    coordinator_spare_close(&store->spare);
    if (store->leftover >= 0)
        close(store->leftover);
    store->leftover = -1;
}

enum common_code coordinator_store_open(const char *path, bool sync_full, struct common_loop *loop,
                                        const struct coordinator_store_reader *reader,
                                        struct coordinator_store **out, struct common_error *err)
{
    struct coordinator_store *store = calloc(1, sizeof(*store));
    char *copy = strdup(path);
    if (!store || !copy) {
        free(store);
        free(copy);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    }
    store->loop = loop;
    store->path = copy;
    store->leftover = -1;
    store->spare.fd = -1;
    store->tail = &store->head;
    store->submitted_tail = &store->submitted;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->wake, NULL);
    struct common_error unasked;
    enum common_code code = start(store, sync_full, reader, err ? err : &unasked);
    if (code == COMMON_OK && common_deferred_new(loop, hand_over, store, &store->hand_over) != COMMON_OK)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (code == COMMON_OK && pthread_create(&store->thread, NULL, store_thread, store) != 0)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "cannot start the store's thread");
    if (code != COMMON_OK) {
        coordinator_store_free(store);
        return code;
    }
    store->started = true;
    *out = store;
    return COMMON_OK;
}

void coordinator_store_stop(struct coordinator_store *store)
{
    if (!store || !store->started)
        return;
    hand_over(store);
    pthread_mutex_lock(&store->lock);
    store->closing = true;
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->lock);
    pthread_join(store->thread, NULL);
    store->started = false;
    coordinator_hold_end(store->hold, close_files, store);
    store->hold = NULL;
}

static void list_free(struct coordinator_batch *list)
{
    while (list) {
        struct coordinator_batch *batch = list;
        list = batch->next;
        coordinator_batch_free(batch);
    }
}

void coordinator_store_free(struct coordinator_store *store)
{
    if (!store)
        return;
    coordinator_store_stop(store);
    coordinator_hold_end(store->hold, close_files, store); // of one that did not start
    pthread_cond_destroy(&store->wake);
    pthread_mutex_destroy(&store->lock);
    common_deferred_free(store->hand_over);
    list_free(store->submitted);
    free(store->lives);
    free(store->path);
    free(store);
}

bool coordinator_store_restored(const struct coordinator_store *store)
{
    return store->restored;
}

uint64_t coordinator_store_term(const struct coordinator_store *store)
{
    return store->term;
}

uint64_t coordinator_store_life(const struct coordinator_store *store)
{
    return store->lives[store->n_lives - 1];
}

uint64_t coordinator_store_id(const struct coordinator_store *store)
{
    return store->lives[0];
}

bool coordinator_store_knows_life(const struct coordinator_store *store, uint64_t life)
{
    for (size_t i = store->n_lives; i > 0; i--) // nearly always one of the last
        if (store->lives[i - 1] == life)
            return true;
    return false;
}
