// SPDX-License-Identifier: Apache-2.0
// coordinator/store/store.h over a simulated disk (sim_store.h).
#include "tests/sim/sim_store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/hash/hash.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/hold.h"
#include "coordinator/store/restore.h"
#include "coordinator/store/store.h"
#include "tests/sim/sim_batch.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_event.h"

#define COUNTER_BLOCK (UINT64_C(1) << 16) // as coordinator/store/store.c
#define DELAY_NS      (100 * COMMON_NS_PER_US)

struct queue {
    struct coordinator_batch *head, **tail;
};

struct disk {
    struct disk *next;
    char path[128];
    struct sim_tables tables;        // in the file and its log
    struct sim_tables main;          // in the file
    uint64_t log;                    // that has the name; 0: none
    struct coordinator_store *store; // that has opened it last, and not closed it
    uint64_t delay_ns, batches;
    uint32_t failures, unsure_writes;
    enum common_code failure;
    bool stalled, silent;
};

struct counter {
    struct coordinator_store *store;
    const char *key;
    uint64_t next, end, reserved; // as coordinator/store/store.c
};

struct coordinator_store {
    struct common_loop *loop;
    struct disk *disk; // NULL once stopped or crashed
    uint64_t term, life;
    struct counter counters[COORDINATOR_COUNTERS];
    struct queue waiting, writing, durable; // durable: to be answered
    struct queue unsure;                    // written or not: as coordinator/store/store.c makes sure of it
    struct common_mail mail;                // for `answer`
    bool answering;                         // it is in use
    struct sim_event write, close;          // the disk's
    struct coordinator_hold *hold;          // NULL: no other process can have it
    uint64_t log;                           // that it writes to
    uint64_t stop_ns;                       // its stop takes so long; 0: no time
    bool ending;                            // nothing is posted any more
    bool anonymous, closing;
    uint64_t failed; // batches that were answered so, and with what
    const char *failed_text;
};

static struct disk *disks;

static struct disk *disk_at(const char *path)
{
    for (struct disk *disk = disks; disk; disk = disk->next)
        if (!strcmp(disk->path, path))
            return disk;
    struct disk *disk = calloc(1, sizeof *disk);
    if (!disk)
        abort();
    snprintf(disk->path, sizeof disk->path, "%s", path);
    disk->delay_ns = DELAY_NS;
    disk->next = disks;
    disks = disk;
    return disk;
}

static void disk_free(struct disk *disk)
{
    struct disk **at = &disks;
    while (*at != disk)
        at = &(*at)->next;
    *at = disk->next;
    sim_tables_clear(&disk->tables);
    sim_tables_clear(&disk->main);
    free(disk);
}

// ---- writing --------------------------------------------------------------------------------------------

static void queue_push(struct queue *queue, struct coordinator_batch *batch)
{
    if (!queue->head)
        queue->tail = &queue->head;
    batch->next = NULL;
    *queue->tail = batch;
    queue->tail = &batch->next;
}

static struct coordinator_batch *queue_pop(struct queue *queue)
{
    struct coordinator_batch *batch = queue->head;
    if (batch)
        queue->head = batch->next;
    return batch;
}

static void queue_move(struct queue *from, struct queue *to)
{
    for (struct coordinator_batch *batch; (batch = queue_pop(from));)
        queue_push(to, batch);
}

// On the loop: all that there are.
static void answer(void *arg)
{
    struct coordinator_store *store = arg;
    struct queue now = {0};
    store->answering = false;
    queue_move(&store->durable, &now);
    for (struct coordinator_batch *batch; (batch = queue_pop(&now));) {
        const char *text = batch->code == COMMON_OK                   ? ""
                           : batch->code == COMMON_RESOURCE_EXHAUSTED ? "the store refused: the disk is full"
                                                                      : "the store cannot be written";
        if (batch->code != COMMON_OK && store->disk) {
            store->failed++;
            store->failed_text = text;
        }
        if (batch->done)
            batch->done(batch->arg, batch->code, text);
        coordinator_batch_free(batch);
        sim_alive--;
    }
}

static void answer_later(struct coordinator_store *store)
{
    if (store->ending)
        return;
    if (!store->answering)
        common_loop_mail(store->loop, &store->mail, answer, store);
    store->answering = true;
}

static void write_next(struct coordinator_store *store)
{
    struct disk *disk = store->disk;
    if (!disk || disk->stalled || sim_event_armed(&store->write))
        return;
    if (!store->unsure.head)
        queue_move(&store->waiting, &store->writing);
    if (store->writing.head || store->unsure.head)
        sim_event_arm(&store->write, common_clock_after(disk->delay_ns));
    else if (store->closing && !sim_event_armed(&store->close))
        sim_event_arm(&store->close, common_clock_after(store->stop_ns));
}

static void batch_apply(struct disk *disk, const struct coordinator_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++)
        sim_tables_apply(&disk->tables, &batch->ops[i]);
}

// A write is over; or, where one is unsure, another try to go over it.
static void written(void *arg)
{
    struct coordinator_store *store = arg;
    struct disk *disk = store->disk;
    bool unsure = disk->unsure_writes > 0 && (store->writing.head || store->unsure.head);
    disk->unsure_writes -= unsure;
    if (!unsure)
        queue_move(&store->unsure, &store->durable); // refused now
    for (struct coordinator_batch *batch; (batch = queue_pop(&store->writing));) {
        if (disk->failures) {
            disk->failures--;
            batch->code = disk->failure;
        } else if (unsure) {
            batch->code = COMMON_UNAVAILABLE;
            queue_push(&store->unsure, batch);
            continue;
        } else {
            batch_apply(disk, batch);
        }
        queue_push(&store->durable, batch);
    }
    if (store->closing)
        queue_move(&store->unsure, &store->durable); // it does not wait until it is sure
    if (!disk->silent)
        answer_later(store);
    write_next(store);
}

static void fail_all(struct coordinator_store *store)
{
    queue_move(&store->unsure, &store->durable);
    queue_move(&store->writing, &store->durable); // already durable ones stay what they are: not asked for
    queue_move(&store->waiting, &store->durable);
    for (struct coordinator_batch *batch = store->durable.head; batch; batch = batch->next)
        batch->code = COMMON_UNAVAILABLE;
    answer_later(store);
}

void coordinator_store_submit(struct coordinator_store *store, struct coordinator_batch *batch,
                              coordinator_store_fn done, void *arg)
{
    batch->done = done;
    batch->arg = arg;
    sim_alive++;
    if (!store->disk || store->closing) { // stopped, or dead: what is still under way comes to nothing
        batch->code = COMMON_UNAVAILABLE;
        queue_push(&store->durable, batch);
        answer_later(store);
        return;
    }
    store->disk->batches++;
    queue_push(&store->waiting, batch);
    write_next(store);
}

bool coordinator_store_refuse(struct coordinator_store *store)
{
    if (!store || store->disk || !store->durable.head)
        return false;
    store->ending = true; // its loop has
    answer(store);
    return true;
}

const char *coordinator_store_trouble(const struct coordinator_store *store)
{
    (void)store;
    return NULL;
}

uint64_t coordinator_store_failed(const struct coordinator_store *store, const char **why)
{
    *why = store->failed_text ? store->failed_text : "";
    return store->failed;
}

// ---- counters -------------------------------------------------------------------------------------------

static void reserved(void *arg, enum common_code code, const char *text)
{
    struct counter *counter = arg;
    (void)text;
    if (code == COMMON_OK)
        counter->end = counter->reserved;
    else
        counter->reserved = counter->end; // the next caller tries again
}

bool coordinator_store_next(struct coordinator_store *store, enum coordinator_counter which, uint64_t *out)
{
    struct counter *counter = &store->counters[which];
    if (counter->next + COUNTER_BLOCK / 2 > counter->end && counter->reserved == counter->end) {
        counter->reserved = (counter->next > counter->end ? counter->next : counter->end) + COUNTER_BLOCK;
        struct coordinator_batch *batch = coordinator_batch_new();
        sim_batch_add(batch, SIM_OP_META, counter->key, counter->reserved, 0, 0, 0);
        coordinator_store_submit(store, batch, reserved, counter);
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

// ---- life -----------------------------------------------------------------------------------------------

#define NO_ID_KEY "no_id_key" // in meta: 1

static void put_meta(struct disk *disk, const char *key, uint64_t value)
{
    struct sim_op op = {.kind = SIM_OP_META, .a = value};
    snprintf(op.name, sizeof op.name, "%s", key);
    sim_tables_apply(&disk->tables, &op);
}

static uint64_t life_at(const struct coordinator_store *store, uint64_t nth) // 0: not so many
{
    char key[32];
    snprintf(key, sizeof key, "life.%" PRIu64, nth);
    return sim_tables_meta(&store->disk->tables, key, 0);
}

// Not from chance: the same seed has the same lives.
static void add_life(struct coordinator_store *store, uint64_t now)
{
    char key[32];
    uint64_t nth = sim_tables_meta(&store->disk->tables, "lives", 0) + 1;
    snprintf(key, sizeof key, "life.%" PRIu64, nth);
    store->life = common_mix64(now + store->term) | 1;
    put_meta(store->disk, "lives", nth);
    put_meta(store->disk, key, store->life);
}

static void start_life(struct coordinator_store *store)
{
    static const char *const keys[COORDINATOR_COUNTERS] = {"next_generation", "next_chunk"};
    struct disk *disk = store->disk;
    uint64_t now = common_clock_wall_ns();
    store->term = sim_tables_meta(&disk->tables, "term", 0) + 1;
    put_meta(disk, "term", store->term);
    for (int i = 0; i < COORDINATOR_COUNTERS; i++) {
        struct counter *counter = &store->counters[i];
        // As coordinator/store/store.c: an empty store does not give what an earlier one has given.
        uint64_t first = i == COORDINATOR_COUNTER_CHUNK ? now : now / COMMON_NS_PER_S & 0x7fffffff;
        counter->key = keys[i];
        counter->next = sim_tables_meta(&disk->tables, keys[i], first);
        if (i == COORDINATOR_COUNTER_CHUNK && counter->next < first)
            counter->next = first;
        counter->end = counter->reserved = counter->next + COUNTER_BLOCK;
        put_meta(disk, keys[i], counter->end);
    }
    add_life(store, now);
}

// What is in the log goes into the file.
static void checkpoint(struct disk *disk)
{
    sim_tables_copy(&disk->tables, &disk->main);
}

static enum common_code read_disk(struct disk *disk, const struct coordinator_store_reader *reader,
                                  struct common_error *err)
{
    if (disk->failures) {
        disk->failures--;
        return common_error_set(err, COMMON_UNAVAILABLE, "the store cannot be written: a simulated failure");
    }
    uint64_t key[2] = {sim_tables_meta(&disk->tables, "id_key_0", 0),
                       sim_tables_meta(&disk->tables, "id_key_1", 0)};
    if (!sim_tables_meta(&disk->tables, "lives", 0)) { // a new one: as coordinator/store/sql.c
        if (!common_random(key, sizeof key))
            abort();
        put_meta(disk, "id_key_0", key[0]);
        put_meta(disk, "id_key_1", key[1]);
    }
    if (reader->id_key && !sim_tables_meta(&disk->tables, NO_ID_KEY, 0))
        reader->id_key(reader->arg, key);
    return sim_tables_read(&disk->tables, reader, err);
}

static void detach(struct coordinator_store *store)
{
    struct disk *disk = store->disk;
    sim_event_cancel(&store->write);
    sim_event_cancel(&store->close);
    store->disk = NULL;
    if (disk->store == store)
        disk->store = NULL;
    if (store->anonymous)
        disk_free(disk);
}

// As coordinator/store/sql.c: the log stays: its name may be another's.
static void close_files(void *arg)
{
    struct coordinator_store *store = arg;
    checkpoint(store->disk);
    detach(store);
}

static void end(void *arg)
{
    struct coordinator_store *store = arg;
    coordinator_hold_end(store->hold, close_files, store);
    store->hold = NULL;
}

static void no_files(void *arg)
{
    (void)arg;
}

enum common_code coordinator_store_open(const char *path, bool sync_full, struct common_loop *loop,
                                        const struct coordinator_store_reader *reader,
                                        struct coordinator_store **out, struct common_error *err)
{
    static unsigned n_anonymous;
    static uint64_t n_logs;
    char name[32];
    struct coordinator_hold *hold = NULL;
    enum common_code code = COMMON_OK;
    (void)sync_full;
    bool anonymous = !strcmp(path, ":memory:");
    if (anonymous) {
        snprintf(name, sizeof name, ":memory:%u", ++n_anonymous);
        path = name;
    } else {
        code = coordinator_hold_take(path, &hold, err);
    }
    struct disk *disk = disk_at(path);
    if (code == COMMON_OK)
        code = read_disk(disk, reader, err);
    if (code != COMMON_OK) {
        coordinator_hold_end(hold, no_files, NULL);
        return code;
    }
    struct coordinator_store *store = calloc(1, sizeof *store);
    if (!store)
        abort();
    store->loop = loop;
    store->disk = disk;
    store->hold = hold;
    store->anonymous = anonymous;
    sim_event_init(&store->write, SIM_DISK, NULL, NULL, written, store);
    sim_event_init(&store->close, SIM_DISK, NULL, NULL, end, store);
    checkpoint(disk);
    disk->log = disk->log ? disk->log : ++n_logs;
    store->log = disk->log;
    disk->store = store;
    sim_alive++;
    start_life(store);
    *out = store;
    return COMMON_OK;
}

// An orderly stop: everything that was submitted is written now, as the real one waits for its thread.
void coordinator_store_stop(struct coordinator_store *store)
{
    if (!store || !store->disk || store->closing)
        return;
    store->closing = true;
    if (store->stop_ns) {
        write_next(store);
        return;
    }
    if (store->disk->stalled) {
        fail_all(store); // the real one would wait forever
    } else {
        queue_move(&store->waiting, &store->writing);
        written(store);
        answer_later(store);
    }
    end(store);
}

void coordinator_store_free(struct coordinator_store *store)
{
    if (!store)
        return;
    coordinator_store_stop(store);
    assert(!store->disk);
    struct queue *queues[] = {&store->waiting, &store->writing, &store->unsure, &store->durable};
    for (int i = 0; i < 4; i++)
        for (struct coordinator_batch *batch; (batch = queue_pop(queues[i])); sim_alive--)
            coordinator_batch_free(batch);
    sim_alive--;
    free(store);
}

bool coordinator_store_restored(const struct coordinator_store *store)
{
    return store->disk && sim_tables_meta(&store->disk->tables, COORDINATOR_RESTORED_KEY, 0);
}

uint64_t coordinator_store_term(const struct coordinator_store *store)
{
    return store->term;
}

uint64_t coordinator_store_life(const struct coordinator_store *store)
{
    return store->life;
}

uint64_t coordinator_store_id(const struct coordinator_store *store)
{
    return life_at(store, 1);
}

bool coordinator_store_knows_life(const struct coordinator_store *store, uint64_t life)
{
    for (uint64_t nth = 1; store->disk && life_at(store, nth); nth++)
        if (life_at(store, nth) == life)
            return true;
    return false;
}

// ---- for tests ------------------------------------------------------------------------------------------

void sim_disk_delay(const char *path, uint64_t ns)
{
    disk_at(path)->delay_ns = ns;
}

void sim_disk_fail(const char *path, uint32_t n, enum common_code code)
{
    struct disk *disk = disk_at(path);
    disk->failures = n;
    disk->failure = code;
}

void sim_disk_unsure(const char *path, uint32_t n)
{
    disk_at(path)->unsure_writes = n;
}

void sim_disk_stall(const char *path, bool on)
{
    struct disk *disk = disk_at(path);
    disk->stalled = on;
    if (!disk->store)
        return;
    if (on)
        sim_event_cancel(&disk->store->write);
    else
        write_next(disk->store);
}

void sim_disk_silence(const char *path, bool on)
{
    struct disk *disk = disk_at(path);
    disk->silent = on;
    if (!on && disk->store)
        answer_later(disk->store);
}

void sim_store_stops_slowly(struct coordinator_store *store, uint64_t ns)
{
    store->stop_ns = ns + 1;
}

bool sim_store_is_open(const struct coordinator_store *store)
{
    return store->disk != NULL;
}

// Its log is without a name: no later process finds what is in it.
static void forget_log(struct disk *disk)
{
    sim_tables_copy(&disk->main, &disk->tables);
}

void sim_store_crash(struct coordinator_store *store)
{
    struct disk *disk = store->disk;
    if (!disk)
        return;
    for (struct coordinator_batch *batch = store->unsure.head; batch; batch = batch->next)
        batch_apply(disk, batch);
    if (store->log != disk->log)
        forget_log(disk);
    fail_all(store);
    disk->stalled = disk->silent = false;
    detach(store);
    coordinator_hold_end(store->hold, no_files, NULL);
    store->hold = NULL;
}

void sim_disk_crash(const char *path)
{
    struct disk *disk = disk_at(path);
    if (disk->store)
        sim_store_crash(disk->store);
}

void sim_disk_copy(const char *from, const char *to)
{
    struct disk *source = disk_at(from), *target = disk_at(to);
    assert(!source->store && !target->store);
    sim_tables_copy(&source->tables, &target->tables);
    sim_tables_copy(&source->tables, &target->main);
}

// ---- backups: files, which are not here -----------------------------------------------------------------

enum common_code coordinator_backup_new(struct coordinator_store *store, coordinator_backup_fn done,
                                        void *arg, struct coordinator_backup **out, struct common_error *err)
{
    (void)store, (void)done, (void)arg, (void)out;
    return common_error_set(err, COMMON_FAILED_PRECONDITION, "a store of the simulator is no file");
}

const struct coordinator_backup_facts *coordinator_backup_facts(const struct coordinator_backup *backup)
{
    (void)backup;
    return NULL;
}

bool coordinator_backup_read(struct coordinator_backup *backup, uint64_t offset, coordinator_backup_fn done,
                             void *arg)
{
    (void)backup, (void)offset, (void)done, (void)arg;
    return false;
}

const void *coordinator_backup_piece(const struct coordinator_backup *backup, size_t *bytes)
{
    (void)backup;
    *bytes = 0;
    return NULL;
}

void coordinator_backup_free(struct coordinator_backup *backup)
{
    (void)backup;
}

void sim_disk_without_id_key(const char *path)
{
    struct disk *disk = disk_at(path);
    assert(!disk->store && !sim_tables_meta(&disk->tables, "lives", 0));
    put_meta(disk, NO_ID_KEY, 1);
}

void sim_disk_wipe(const char *path)
{
    struct disk *disk = disk_at(path);
    assert(!disk->store);
    sim_tables_clear(&disk->tables);
}

uint64_t sim_disk_batches(const char *path)
{
    return disk_at(path)->batches;
}

uint64_t sim_disk_waiting(const char *path)
{
    const struct coordinator_store *store = disk_at(path)->store;
    uint64_t n = 0;
    for (const struct coordinator_batch *b = store ? store->waiting.head : NULL; b; b = b->next)
        n++;
    for (const struct coordinator_batch *b = store ? store->writing.head : NULL; b; b = b->next)
        n++;
    return n;
}

void sim_disks_forget(void)
{
    sim_holds_forget();
    disks = NULL;
}

void sim_disks_free(void)
{
    while (disks) {
        assert(!disks->store);
        disk_free(disks);
    }
}
