// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/trace_export.h"

struct common_trace_file {
    int fd;
    bool torn;    // the last line in it has no end
    bool failing; // was said
    struct common_trace_counts counts;
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
    // O_NOFOLLOW: where others can write, a link could lead to any file of ours. O_NONBLOCK: neither a pipe without a
    // reader nor a terminal that is held stops the process.
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
    *out = file;
    return COMMON_OK;
}

void common_trace_file_reopen(struct common_trace_file *file)
{
    const char *why;
    int fd = file_open(file->path, &why);
    if (fd < 0) {
        common_log_error("cannot open the file of spans again, the old one is written to file=%s: %s",
                         file->path, why);
        return;
    }
    close(file->fd);
    file->fd = fd;
    file->torn = false;
}

// A line that has begun is taken away where nobody has written behind it, else ended before the next one.
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

void common_trace_file_write(struct common_trace_file *file, const struct common_trace_batch *batch)
{
    bool ended = !file->torn || write_all(file, "\n", 1);
    file->torn = file->torn && !ended;
    if (ended && write_all(file, batch->text, batch->len)) {
        if (file->failing)
            common_log_info("spans are written again file=%s dropped=%llu", file->path,
                            (unsigned long long)file->counts.dropped);
        file->failing = false;
        file->counts.sent += batch->spans;
        return;
    }
    file->counts.dropped += batch->spans;
    if (!file->failing)
        common_log_warn("spans cannot be written, and are dropped file=%s: %s", file->path, strerror(errno));
    file->failing = true;
}

const struct common_trace_counts *common_trace_file_counts(const struct common_trace_file *file)
{
    return &file->counts;
}

void common_trace_file_free(struct common_trace_file *file)
{
    if (!file)
        return;
    close(file->fd);
    free(file);
}
