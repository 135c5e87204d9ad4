// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/tracing/trace_export.h"

struct common_trace_file {
    pthread_t thread;
    pthread_mutex_t mutex; // never held over a call of the file system; guards what follows
    pthread_cond_t work, idle;
    unsigned refs;                     // the owner and the thread
    bool stop, busy, reopen;           // busy: the thread is at the file
    size_t first, n, bytes;            // of the ring
    struct common_trace_counts counts; // queued: in the ring, and what is being written
    struct common_trace_batch *ring[COMMON_TRACE_FILE_BATCHES];
    // The thread's:
    int fd;
    bool torn;    // the last line in it has no end
    bool failing; // has been logged
    char path[];
};

#define NEITHER "it is neither a regular file nor a character device"

// NULL: it may be written to. A pipe may not: its reader may leave, and it takes parts of lines.
static const char *file_refuses(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return strerror(errno);
    if (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode))
        return NEITHER;
    if (S_ISREG(st.st_mode) && st.st_uid != geteuid()) // who could read it, and change it
        return "it belongs to another user";
    return NULL;
}

// -1: no, because of *why.
static int file_open(const char *path, const char **why)
{
    // O_NOFOLLOW: where others can write, a link could lead to any file of ours. O_NONBLOCK: neither a pipe
    // without a reader nor a terminal that is held stops the process.
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0) {
        *why = errno == ELOOP   ? "it is a symbolic link: name the file itself"
               : errno == ENXIO ? NEITHER // a socket, or a pipe without a reader
                                : strerror(errno);
        return -1;
    }
    *why = file_refuses(fd);
    if (!*why)
        return fd;
    close(fd);
    return -1;
}

static void open_again(struct common_trace_file *file)
{
    const char *why;
    int fd = file_open(file->path, &why);
    if (fd < 0) {
        common_log_error("cannot reopen the file of spans, still writing to the old one file=%s: %s",
                         file->path, why);
        return;
    }
    close(file->fd);
    file->fd = fd;
    file->torn = false;
}

// A partial line is removed if nothing was written after it, else ended before the next one.
static void take_back(struct common_trace_file *file, size_t written)
{
    struct stat at;
    file->torn = file->torn || written > 0;
    if (!written || fstat(file->fd, &at) != 0 || !S_ISREG(at.st_mode))
        return;
    off_t begin = lseek(file->fd, 0, SEEK_CUR) - (off_t)written; // where O_APPEND has put our bytes
    if (begin >= 0 && at.st_size == begin + (off_t)written && ftruncate(file->fd, begin) == 0)
        file->torn = false;
}

static bool write_all(struct common_trace_file *file, const char *text, size_t len)
{
    size_t written = 0;
    while (written < len) {
        ssize_t n = write(file->fd, text + written, len - written);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int why = n < 0 ? errno : ENOSPC;
            take_back(file, written);
            errno = why;
            return false;
        }
        written += (size_t)n;
    }
    return true;
}

// Whether the batch is in the file. dropped: spans that were dropped until now.
static bool write_batch(struct common_trace_file *file, const struct common_trace_batch *batch,
                        uint64_t dropped)
{
    bool ended = !file->torn || write_all(file, "\n", 1);
    file->torn = file->torn && !ended;
    if (ended && write_all(file, batch->text, batch->len)) {
        if (file->failing)
            common_log_info("spans can be written again file=%s dropped=%llu", file->path,
                            (unsigned long long)dropped);
        file->failing = false;
        return true;
    }
    if (!file->failing)
        common_log_warn("spans cannot be written and are dropped file=%s: %s", file->path, strerror(errno));
    file->failing = true;
    return false;
}

// ---- the thread ---------------------------------------------------------------------------------

// With the mutex held, which it gives back.
static void unref(struct common_trace_file *file)
{
    bool last = --file->refs == 0;
    pthread_mutex_unlock(&file->mutex);
    if (!last)
        return;
    close(file->fd);
    pthread_cond_destroy(&file->work);
    pthread_cond_destroy(&file->idle);
    pthread_mutex_destroy(&file->mutex);
    free(file);
}

static void write_next(struct common_trace_file *file)
{
    struct common_trace_batch *batch = file->ring[file->first];
    uint64_t dropped = file->counts.dropped;
    file->first = (file->first + 1) % COMMON_TRACE_FILE_BATCHES;
    file->n--;
    file->bytes -= batch->len;
    pthread_mutex_unlock(&file->mutex);
    bool written = write_batch(file, batch, dropped);
    uint32_t spans = batch->spans;
    common_trace_batch_unref(batch);
    pthread_mutex_lock(&file->mutex);
    file->counts.queued -= spans;
    *(written ? &file->counts.sent : &file->counts.dropped) += spans;
}

static void *work(void *arg)
{
    struct common_trace_file *file = arg;
    pthread_mutex_lock(&file->mutex);
    for (;;) {
        file->busy = true;
        if (file->n > 0) { // before the file is opened again: what waits is of the time before
            write_next(file);
        } else if (file->reopen) {
            file->reopen = false;
            pthread_mutex_unlock(&file->mutex);
            open_again(file);
            pthread_mutex_lock(&file->mutex);
        } else {
            file->busy = false;
            pthread_cond_broadcast(&file->idle);
            if (file->stop)
                break;
            pthread_cond_wait(&file->work, &file->mutex);
        }
    }
    unref(file);
    return NULL;
}

static bool start_thread(struct common_trace_file *file)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    pthread_mutex_init(&file->mutex, NULL);
    pthread_cond_init(&file->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&file->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    file->refs = 2;
    sigfillset(&all); // signals are the loop's
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&file->thread, NULL, work, file);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return true;
    pthread_mutex_lock(&file->mutex);
    file->refs = 1;
    unref(file);
    return false;
}

// ---- the loop -----------------------------------------------------------------------------------

enum common_code common_trace_file_new(const char *path, struct common_trace_file **out,
                                       struct common_error *err)
{
    size_t len = strlen(path) + 1;
    struct common_trace_file *file = calloc(1, sizeof *file + len);
    if (!file)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a file of spans");
    memcpy(file->path, path, len);
    const char *why;
    file->fd = file_open(path, &why);
    if (file->fd < 0) {
        common_error_set(err, COMMON_FAILED_PRECONDITION, "cannot open the file of spans %.200s: %s", path,
                         why);
        free(file);
        return COMMON_FAILED_PRECONDITION;
    }
    if (!start_thread(file))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no thread for a file of spans");
    *out = file;
    return COMMON_OK;
}

void common_trace_file_reopen(struct common_trace_file *file)
{
    pthread_mutex_lock(&file->mutex);
    file->reopen = true;
    pthread_cond_signal(&file->work);
    pthread_mutex_unlock(&file->mutex);
}

void common_trace_file_write(struct common_trace_file *file, struct common_trace_batch *batch)
{
    pthread_mutex_lock(&file->mutex);
    if (file->n < COMMON_TRACE_FILE_BATCHES && batch->len <= COMMON_TRACE_FILE_BYTES - file->bytes) {
        file->ring[(file->first + file->n++) % COMMON_TRACE_FILE_BATCHES] = common_trace_batch_ref(batch);
        file->bytes += batch->len;
        file->counts.queued += batch->spans;
        pthread_cond_signal(&file->work);
    } else {
        file->counts.dropped += batch->spans;
    }
    pthread_mutex_unlock(&file->mutex);
}

void common_trace_file_counts(struct common_trace_file *file, struct common_trace_counts *out)
{
    pthread_mutex_lock(&file->mutex);
    *out = file->counts;
    pthread_mutex_unlock(&file->mutex);
}

bool common_trace_file_flush(struct common_trace_file *file, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / COMMON_NS_PER_S),
                                   .tv_nsec = (long)(until_ns % COMMON_NS_PER_S)};
    int waited = 0;
    pthread_mutex_lock(&file->mutex);
    while ((file->n > 0 || file->reopen || file->busy) && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&file->idle, &file->mutex, &until);
    bool all = !file->n && !file->busy;
    pthread_mutex_unlock(&file->mutex);
    return all;
}

void common_trace_file_free(struct common_trace_file *file)
{
    if (!file)
        return;
    pthread_mutex_lock(&file->mutex);
    file->stop = true;
    bool hangs = file->busy || file->n > 0 || file->reopen;
    pthread_cond_signal(&file->work);
    pthread_mutex_unlock(&file->mutex);
    if (hangs)
        pthread_detach(file->thread);
    else
        pthread_join(file->thread, NULL);
    pthread_mutex_lock(&file->mutex);
    unref(file);
}
