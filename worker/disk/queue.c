// SPDX-License-Identifier: Apache-2.0
#include "worker/disk/queue.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/files/thread.h"

enum { NAME_BYTES = 72 };

enum kind { OP_WRITE, OP_CUT, OP_SYNC, OP_SYNC_SOON, OP_SYNC_FOLDER, OP_MOVE, OP_REMOVE, OP_NEEDS };

struct op {
    struct op *next;
    struct op *poisoned; // the next of those that have failed
    bool poisons;
    uint64_t batch; // 0: it is pending
    enum kind kind;
    bool follows; // nothing is done where the one before it has failed
    int result;
    uint64_t at, bytes;    // of a write; at: of a cut, too
    char name[NAME_BYTES]; // of the file; of a folder's sync: of the file that fails with it
    char to[NAME_BYTES];   // of a move; the folder; the file that is needed
    uint8_t data[];        // [bytes]
};

struct ops { // a list
    struct op *head, **tail;
};

struct worker_queue {
    struct worker_files base; // what the loop has
    struct worker_files *files;
    struct worker_queue_options options;
    struct worker_disk_thread *thread;
    struct common_deferred *begins; // with all that a turn has asked for
    struct worker_disk_job job;
    struct ops pending, batch;
    uint64_t bytes;               // of memory that changes take which are not done yet
    uint64_t n;                   // of the batch that is under way, or was last
    uint64_t began_ns;            // 0: none is under way
    uint64_t took_ns;             // the last one
    struct op *poisoned;          // files that take nothing more, by the operation that failed
    struct common_buckets synced; // the thread's, while a batch is under way
    struct common_list waits;
};

static void ops_init(struct ops *ops)
{
    ops->head = NULL;
    ops->tail = &ops->head;
}

static void ops_add(struct ops *ops, struct op *op)
{
    op->next = NULL;
    *ops->tail = op;
    ops->tail = &op->next;
}

// ---- on the thread ------------------------------------------------------------------------------

// The file that an operation is about: that takes nothing more where it fails.
static const char *subject(const struct op *op)
{
    return op->kind == OP_MOVE ? op->to : op->name;
}

static int poison_of(const struct worker_queue *q, const char *name)
{
    for (const struct op *op = q->poisoned; op; op = op->poisoned)
        if (strcmp(subject(op), name) == 0)
            return op->result;
    return 0;
}

static void cure(struct worker_queue *q, const char *name)
{
    for (struct op **at = &q->poisoned, *op; (op = *at);) {
        if (strcmp(subject(op), name) != 0) {
            at = &op->poisoned;
            continue;
        }
        *at = op->poisoned;
        op->poisons = false;
        if (op->batch != q->n) // else it goes with its batch
            free(op);
    }
}

static int sync_file(struct worker_queue *q, const char *name)
{
    uint64_t began_ns = common_clock_ns();
    int result = q->files->ops->sync(q->files, name);
    if (result == 0)
        common_buckets_add(&q->synced, common_clock_ns() - began_ns);
    return result == -ENOENT ? 0 : result; // it was dropped, or sealed
}

static int run_op(struct worker_queue *q, const struct op *op)
{
    const struct worker_files_ops *ops = q->files->ops;
    int why = poison_of(q, op->name);
    if (op->kind == OP_REMOVE) {
        cure(q, op->name);
        int result = ops->remove(q->files, op->name);
        return result == -ENOENT ? 0 : result;
    }
    if (why != 0)
        return why;
    switch (op->kind) {
    case OP_WRITE:
        why = ops->write(q->files, op->name, op->at, &(struct iovec){(void *)(uintptr_t)op->data, op->bytes},
                         1);
        if (why != 0)
            (void)ops->cut(q->files, op->name, op->at);
        return why;
    case OP_CUT:
        return ops->cut(q->files, op->name, op->at);
    case OP_SYNC:
        return sync_file(q, op->name);
    case OP_SYNC_FOLDER:
        return ops->sync_folder(q->files, op->to);
    case OP_MOVE:
        why = ops->move(q->files, op->name, op->to);
        if (why == 0)
            cure(q, op->to);
        return strncmp(op->to, "quarantine/", 11) == 0 ? 0 : why; // nothing comes to lie there
    case OP_NEEDS:
        return poison_of(q, op->to);
    case OP_SYNC_SOON:
    case OP_REMOVE:
        break;
    }
    return 0;
}

static void note(struct worker_queue *q, struct op *op)
{
    if (op->result == 0 || op->kind == OP_REMOVE)
        return;
    op->poisons = true;
    op->poisoned = q->poisoned;
    q->poisoned = op;
}

// Each file that must be synced by the end, once, in the order in which it was last named.
static void sync_soon(struct worker_queue *q)
{
    for (struct op *op = q->batch.head; op; op = op->next) {
        bool again = false;
        if (op->kind != OP_SYNC_SOON)
            continue;
        for (const struct op *later = op->next; later && !again; later = later->next)
            again = later->kind == OP_SYNC_SOON && strcmp(later->name, op->name) == 0;
        op->result = poison_of(q, op->name);
        if (again || op->result != 0)
            continue;
        op->result = sync_file(q, op->name);
        note(q, op);
    }
}

static void run_batch(void *arg, const atomic_bool *stop)
{
    struct worker_queue *q = arg;
    int before = 0;
    (void)stop; // what was asked for is done
    for (struct op *op = q->batch.head; op; op = op->next)
        op->batch = q->n;
    for (struct op *op = q->batch.head; op; op = op->next) {
        if (op->kind == OP_SYNC_SOON || (op->follows && before != 0))
            continue;
        op->result = before = run_op(q, op);
        note(q, op);
    }
    sync_soon(q);
}

// ---- on the loop --------------------------------------------------------------------------------

static void batch_ended(void *arg);

void worker_queue_begin(struct worker_queue *q)
{
    if (q->began_ns || !q->pending.head)
        return;
    q->batch = q->pending;
    ops_init(&q->pending);
    q->n++;
    q->began_ns = common_clock_ns();
    q->job =
        (struct worker_disk_job){.run = run_batch, .arg = q, .loop = q->options.loop, .ended = batch_ended};
    worker_disk_thread_submit(q->thread, &q->job);
}

static void turn_over(void *arg)
{
    worker_queue_begin(arg);
}

// Failures are reported, and the memory is freed.
static void batch_over(struct worker_queue *q)
{
    q->took_ns = common_clock_ns() - q->began_ns;
    q->began_ns = 0;
    for (struct op *op = q->batch.head, *next; op; op = next) {
        next = op->next;
        if (op->result != 0 && op->kind != OP_REMOVE)
            q->options.failed(q->options.arg, subject(op), op->result, q->n);
        q->bytes -= sizeof *op + op->bytes;
        if (!op->poisons)
            free(op);
    }
    ops_init(&q->batch);
}

static void wake(struct worker_queue *q, uint64_t until)
{
    struct common_list ready;
    common_list_init(&ready);
    for (struct common_list *at = q->waits.next, *next; at != &q->waits; at = next) {
        next = at->next;
        if (common_list_entry(at, struct worker_disk_wait, link)->batch > until)
            continue;
        common_list_remove(at);
        common_list_push(&ready, at);
    }
    while (!common_list_empty(&ready)) { // they may end each other
        struct worker_disk_wait *wait = common_list_entry(ready.next, struct worker_disk_wait, link);
        common_list_remove(&wait->link);
        wait->done(wait->arg);
    }
}

static void batch_ended(void *arg)
{
    struct worker_queue *q = arg;
    uint64_t n = q->n;
    batch_over(q);
    worker_queue_begin(q);
    wake(q, n);
}

static int ask(struct worker_queue *q, const struct op *like, const struct iovec *pieces, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += pieces[i].iov_len;
    if (bytes > 0 && q->bytes > 0 && sizeof(struct op) + bytes + q->bytes > q->options.bytes_max)
        return -EAGAIN;
    struct op *op = malloc(sizeof *op + bytes);
    if (!op)
        return -ENOMEM;
    *op = *like;
    op->bytes = bytes;
    uint8_t *to = op->data;
    for (int i = 0; i < n; to += pieces[i++].iov_len)
        if (pieces[i].iov_len) // of V that is a part of K there is none
            memcpy(to, pieces[i].iov_base, pieces[i].iov_len);
    q->bytes += sizeof *op + bytes;
    ops_add(&q->pending, op);
    if (!q->began_ns)
        common_deferred_mark(q->begins);
    return 0;
}

static int ask_named(struct worker_queue *q, enum kind kind, const char *name, const char *to)
{
    struct op like = {.kind = kind};
    snprintf(like.name, sizeof like.name, "%s", name);
    snprintf(like.to, sizeof like.to, "%s", to);
    return ask(q, &like, NULL, 0);
}

bool worker_queue_idle(const struct worker_queue *q)
{
    return !q->began_ns && !q->pending.head;
}

uint64_t worker_queue_bytes(const struct worker_queue *q)
{
    return q->bytes;
}

// ---- the handle ---------------------------------------------------------------------------------

static int queue_write(struct worker_files *files, const char *name, uint64_t at, const struct iovec *pieces,
                       int n)
{
    struct worker_queue *q = (struct worker_queue *)files;
    struct op like = {.kind = OP_WRITE, .at = at};
    snprintf(like.name, sizeof like.name, "%s", name);
    return ask(q, &like, pieces, n);
}

static int queue_cut(struct worker_files *files, const char *name, uint64_t len)
{
    struct worker_queue *q = (struct worker_queue *)files;
    struct op like = {.kind = OP_CUT, .at = len};
    snprintf(like.name, sizeof like.name, "%s", name);
    return ask(q, &like, NULL, 0);
}

static int queue_sync(struct worker_files *files, const char *name)
{
    return ask_named((struct worker_queue *)files, OP_SYNC, name, "");
}

static int queue_sync_folder(struct worker_files *files, const char *folder)
{
    return ask_named((struct worker_queue *)files, OP_SYNC_FOLDER, "", folder);
}

static int queue_move(struct worker_files *files, const char *from, const char *to)
{
    return ask_named((struct worker_queue *)files, OP_MOVE, from, to);
}

static int queue_remove(struct worker_files *files, const char *name)
{
    return ask_named((struct worker_queue *)files, OP_REMOVE, name, "");
}

static int64_t no_read(struct worker_files *files, const char *name, uint64_t at, void *out, size_t len)
{
    (void)files, (void)name, (void)at, (void)out, (void)len;
    assert(!"the loop reads no file");
    return -EIO;
}

static int64_t no_size(struct worker_files *files, const char *name)
{
    (void)files, (void)name;
    assert(!"the loop reads no file");
    return -EIO;
}

static int no_list(struct worker_files *files, const char *folder, worker_files_fn each, void *arg)
{
    (void)files, (void)folder, (void)each, (void)arg;
    assert(!"the loop reads no folder");
    return -EIO;
}

static struct worker_files *queue_again(struct worker_files *files)
{
    struct worker_queue *q = (struct worker_queue *)files;
    return q->files->ops->again(q->files);
}

static void queue_close(struct worker_files *files)
{
    (void)files; // worker_queue_free
}

static const struct worker_files_ops queue_ops = {.write = queue_write,
                                                  .read = no_read,
                                                  .size = no_size,
                                                  .cut = queue_cut,
                                                  .sync = queue_sync,
                                                  .sync_folder = queue_sync_folder,
                                                  .move = queue_move,
                                                  .remove = queue_remove,
                                                  .list = no_list,
                                                  .again = queue_again,
                                                  .close = queue_close};

struct worker_files *worker_queue_files(struct worker_queue *q)
{
    return &q->base;
}

int worker_queue_sync_soon(struct worker_queue *q, const char *name)
{
    return ask_named(q, OP_SYNC_SOON, name, "");
}

int worker_queue_sync_names(struct worker_queue *q, const char *folder, const char *owner)
{
    return ask_named(q, OP_SYNC_FOLDER, owner, folder);
}

int worker_queue_replace(struct worker_queue *q, const char *from, const char *to, const char *removed)
{
    struct op like = {.kind = OP_REMOVE, .follows = true};
    int result = ask_named(q, OP_MOVE, from, to);
    snprintf(like.name, sizeof like.name, "%s", removed);
    if (result == 0)
        (void)ask(q, &like, NULL, 0); // where it stays, it is the same
    return result;
}

int worker_queue_needs(struct worker_queue *q, const char *name, const char *needed)
{
    return ask_named(q, OP_NEEDS, name, needed);
}

uint64_t worker_queue_next(const struct worker_queue *q)
{
    return q->n + 1;
}

uint64_t worker_queue_asked(const struct worker_queue *q)
{
    return q->pending.head ? q->n + 1 : q->n;
}

uint64_t worker_queue_done(const struct worker_queue *q)
{
    return q->began_ns ? q->n - 1 : q->n;
}

bool worker_queue_stands(const struct worker_queue *q)
{
    return q->began_ns && common_clock_ns() - q->began_ns > WORKER_QUEUE_SLOW_NS;
}

uint64_t worker_queue_took(const struct worker_queue *q)
{
    return q->took_ns;
}

void worker_queue_take_synced(struct worker_queue *q, struct common_buckets *out)
{
    if (q->began_ns)
        return;
    common_buckets_sum(out, &q->synced);
    q->synced = (struct common_buckets){0};
}

// ---- who waits ----------------------------------------------------------------------------------

bool worker_queue_wait(struct worker_queue *q, struct worker_disk_wait *wait)
{
    if (worker_queue_idle(q))
        return false;
    wait->batch = worker_queue_asked(q);
    common_list_push(&q->waits, &wait->link);
    return true;
}

void worker_queue_end_waits(struct worker_queue *q)
{
    wake(q, UINT64_MAX);
}

// ---- its life -----------------------------------------------------------------------------------

struct worker_queue *worker_queue_new(struct worker_files *files, const struct worker_queue_options *options)
{
    struct worker_queue *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    if (worker_disk_thread_new(&q->thread) != COMMON_OK ||
        common_deferred_new(options->loop, turn_over, q, &q->begins) != COMMON_OK) {
        worker_disk_thread_free(q->thread);
        free(q);
        return NULL;
    }
    q->base.ops = &queue_ops;
    q->files = files;
    q->options = *options;
    ops_init(&q->pending);
    ops_init(&q->batch);
    common_list_init(&q->waits);
    return q;
}

void worker_queue_free(struct worker_queue *q)
{
    if (!q)
        return;
    common_deferred_free(q->begins);
    worker_disk_thread_free(q->thread);
    if (q->began_ns) {
        if (!atomic_load(&q->job.done))
            run_batch(q, NULL);
        batch_over(q);
    }
    q->batch = q->pending; // what came meanwhile
    if (q->batch.head) {
        q->n++;
        q->began_ns = common_clock_ns();
        ops_init(&q->pending);
        run_batch(q, NULL);
        batch_over(q);
    }
    assert(common_list_empty(&q->waits));
    for (struct op *op; (op = q->poisoned);) {
        q->poisoned = op->poisoned;
        free(op);
    }
    free(q);
}
