// SPDX-License-Identifier: Apache-2.0
#include "common/trail/trail_writer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/log/log.h"

struct record {
    uint64_t wall_ns, put_ns;
    uint64_t lost; // before it, for want of room
    bool written;  // once it is done
    bool cut;
    size_t len;
    char text[];
};

// Numbers of records: 1 <= told + 1 <= done + 1 <= put + 1. Those above `told` are in the ring, those above
// `done` wait.
struct common_trail_writer {
    struct common_loop *loop;
    common_trail_done_fn done_fn;
    void *arg;
    pthread_t thread;
    pthread_mutex_t mutex; // held for no longer than it takes to look at what follows
    pthread_cond_t work, idle;
    unsigned refs;      // the owner, the thread, and a mail that is on its way
    bool stop;          // the thread ends when nothing waits
    bool left;          // no one is notified any longer
    bool posted, quiet; // quiet: no mail, the owner looks by itself
    bool retry;
    bool busy; // the thread is at the file
    bool reopen;
    uint64_t reopen_after; // this record
    uint64_t put, done, told;
    uint64_t lost; // since the last record that was put, for want of room
    uint64_t lost_ns;
    uint64_t bytes; // of records in the ring
    struct common_trail_state state;
    uint64_t lost_here; // of state.counts.lost: not known to the file yet
    struct record *ring[COMMON_TRAIL_RECORDS];
    struct common_mail mail;
    // The thread's:
    struct common_trail *file;
    struct common_trail_body body;
};

static struct record **slot_of(struct common_trail_writer *w, uint64_t number)
{
    return &w->ring[number % COMMON_TRAIL_RECORDS];
}

// With the mutex held, which it gives back.
static void unref(struct common_trail_writer *w)
{
    bool last = --w->refs == 0;
    pthread_mutex_unlock(&w->mutex);
    if (!last)
        return;
    for (size_t i = 0; i < COMMON_TRAIL_RECORDS; i++)
        free(w->ring[i]);
    common_trail_close(w->file);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

// ---- the thread -----------------------------------------------------------------------------------------------

static void on_mail(void *arg);

static void publish(struct common_trail_writer *w)
{
    struct common_trail_state *state = &w->state;
    common_trail_counts(w->file, &state->counts);
    memcpy(state->head, state->counts.head, sizeof state->head);
    state->works = common_trail_works(w->file);
    snprintf(state->trouble, sizeof state->trouble, "%s", common_trail_trouble(w->file));
    if (w->done > w->told && !w->left && !w->quiet && !w->posted) {
        w->posted = true;
        w->refs++;
        common_loop_mail(w->loop, &w->mail, on_mail, w);
    }
    pthread_cond_broadcast(&w->idle);
}

static void reopen(struct common_trail_writer *w)
{
    struct common_error err;
    w->reopen = false;
    pthread_mutex_unlock(&w->mutex);
    if (common_trail_reopen(w->file, &err) != COMMON_OK)
        common_log_error("signal=HUP: the audit log stays in its current file: %s", err.message);
    pthread_mutex_lock(&w->mutex);
}

static void lose(struct common_trail_writer *w, uint64_t n)
{
    uint64_t since_ns = w->lost_ns;
    pthread_mutex_unlock(&w->mutex);
    common_trail_lose(w->file, n, since_ns, "its disk was too slow, and too many records were waiting");
    common_trail_retry(w->file);
    pthread_mutex_lock(&w->mutex);
    w->lost_here -= n;
    w->state.counts.lost += n;
}

static void write_next(struct common_trail_writer *w)
{
    struct record *record = *slot_of(w, w->done + 1);
    if (record->lost)
        lose(w, record->lost);
    pthread_mutex_unlock(&w->mutex);
    w->body.len = record->len;
    w->body.cut = record->cut;
    memcpy(w->body.text, record->text, record->len);
    bool written = common_trail_write_at(w->file, &w->body, record->wall_ns);
    pthread_mutex_lock(&w->mutex);
    record->written = written;
    w->done++;
}

static void retry(struct common_trail_writer *w)
{
    w->retry = false;
    pthread_mutex_unlock(&w->mutex);
    common_trail_retry(w->file);
    pthread_mutex_lock(&w->mutex);
}

static bool step(struct common_trail_writer *w)
{
    if (w->reopen && w->done >= w->reopen_after)
        reopen(w);
    else if (w->done < w->put)
        write_next(w);
    else if (w->lost) {
        uint64_t n = w->lost;
        w->lost = 0;
        lose(w, n);
    } else if (w->retry)
        retry(w);
    else
        return false;
    return true;
}

static void *work(void *arg)
{
    struct common_trail_writer *w = arg;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        w->busy = true;
        bool any = step(w);
        w->busy = false;
        if (any)
            publish(w);
        else if (w->stop)
            break;
        else
            pthread_cond_wait(&w->work, &w->mutex);
    }
    unref(w);
    return NULL;
}

// ---- the loop -------------------------------------------------------------------------------------------------

static void tell(struct common_trail_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    while (w->told < w->done && !w->left) {
        struct record **slot = slot_of(w, ++w->told), *record = *slot;
        *slot = NULL;
        w->bytes -= record->len;
        pthread_mutex_unlock(&w->mutex);
        w->done_fn(w->arg, w->told, record->written);
        free(record);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
}

static void on_mail(void *arg)
{
    struct common_trail_writer *w = arg;
    pthread_mutex_lock(&w->mutex);
    w->posted = false;
    pthread_mutex_unlock(&w->mutex);
    tell(w);
    pthread_mutex_lock(&w->mutex);
    unref(w);
}

enum common_code common_trail_writer_new(struct common_loop *loop, struct common_trail *file,
                                         common_trail_done_fn done, void *arg,
                                         struct common_trail_writer **out)
{
    struct common_trail_writer *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    sigset_t all, before;
    if (!w) {
        common_trail_close(file);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *w = (struct common_trail_writer){
        .loop = loop, .file = file, .done_fn = done, .arg = arg, .refs = 2, .quiet = true};
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    publish(w);
    w->quiet = false;
    sigfillset(&all); // signals are the loop's
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_mutex_lock(&w->mutex);
        w->refs = 1;
        unref(w);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *out = w;
    return COMMON_OK;
}

static bool has_room(const struct common_trail_writer *w, size_t len)
{
    return w->put - w->told < COMMON_TRAIL_RECORDS && len <= COMMON_TRAIL_BYTES - w->bytes;
}

uint64_t common_trail_writer_put(struct common_trail_writer *w, const struct common_trail_body *body)
{
    struct record *record = malloc(sizeof *record + body->len);
    uint64_t now = common_clock_ns(), number = 0;
    pthread_mutex_lock(&w->mutex);
    if (record && has_room(w, body->len)) {
        *record = (struct record){.wall_ns = common_clock_wall_ns(),
                                  .put_ns = now,
                                  .lost = w->lost,
                                  .cut = body->cut,
                                  .len = body->len};
        memcpy(record->text, body->text, body->len);
        w->lost = 0;
        w->bytes += body->len;
        number = ++w->put;
        *slot_of(w, number) = record;
        record = NULL;
        pthread_cond_signal(&w->work);
    } else {
        if (!w->lost)
            w->lost_ns = now;
        w->lost++;
        w->lost_here++;
    }
    pthread_mutex_unlock(&w->mutex);
    free(record);
    return number;
}

uint64_t common_trail_writer_waiting(struct common_trail_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    uint64_t n = w->put - w->done;
    pthread_mutex_unlock(&w->mutex);
    return n;
}

unsigned common_trail_writer_full(const struct common_trail_writer *w)
{
    // Only this thread alters them: the other one reads them at most.
    uint64_t records = (w->put - w->told) * 100 / COMMON_TRAIL_RECORDS,
             bytes = w->bytes * 100 / COMMON_TRAIL_BYTES;
    return (unsigned)(records > bytes ? records : bytes);
}

uint64_t common_trail_writer_waits_ns(struct common_trail_writer *w, uint64_t now_ns)
{
    pthread_mutex_lock(&w->mutex);
    const struct record *oldest = w->done < w->put ? *slot_of(w, w->done + 1) : NULL;
    uint64_t ns = oldest && now_ns > oldest->put_ns ? now_ns - oldest->put_ns : 0;
    pthread_mutex_unlock(&w->mutex);
    return ns;
}

void common_trail_writer_reopen(struct common_trail_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    w->reopen = true;
    w->reopen_after = w->put;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
}

void common_trail_writer_retry(struct common_trail_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    w->retry = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
}

void common_trail_writer_state(struct common_trail_writer *w, struct common_trail_state *out)
{
    pthread_mutex_lock(&w->mutex);
    *out = w->state;
    out->counts.lost += w->lost_here;
    pthread_mutex_unlock(&w->mutex);
    out->counts.head = out->head;
}

bool common_trail_writer_flush(struct common_trail_writer *w, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / COMMON_NS_PER_S),
                                   .tv_nsec = (long)(until_ns % COMMON_NS_PER_S)};
    int waited = 0;
    pthread_mutex_lock(&w->mutex);
    while ((w->done < w->put || w->lost || w->reopen || w->busy) && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&w->idle, &w->mutex, &until);
    bool all = w->done == w->put && !w->lost;
    pthread_mutex_unlock(&w->mutex);
    tell(w);
    return all;
}

void common_trail_writer_free(struct common_trail_writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    w->left = w->stop = true;
    bool hangs = w->busy || w->done < w->put || w->reopen || w->lost || w->retry;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
    if (hangs)
        pthread_detach(w->thread);
    else
        pthread_join(w->thread, NULL);
    pthread_mutex_lock(&w->mutex);
    unref(w);
}
