// SPDX-License-Identifier: Apache-2.0
#include "common/trail/trail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"

#define TAIL_BYTES (256 * 1024) // of a file that is opened: the last whole record is looked for in these

struct gap { // behind the last whole record: bytes that are none
    uint64_t bytes;
    struct common_trail_sum *sum;
    bool ended;   // the last of them ends a line
    bool changed; // what has the form of a record is among them
};

struct common_trail {
    int fd;
    dev_t device;
    ino_t inode;
    uint64_t seq;
    char head[COMMON_TRAIL_HASH + 1];
    bool unended; // the last record's '\n' is not there yet
    struct gap gap;
    uint64_t written, lost;
    uint64_t unsaid;    // of the lost: no record has said so yet
    uint64_t unsaid_ns; // since when
    bool works;
    char trouble[128];
    char who[64];
    char line[COMMON_TRAIL_LINE]; // to be written
    struct common_trail_body own;
    char path[];
};

// ---- gaps ---------------------------------------------------------------------------------------

static void gap_clear(struct gap *gap)
{
    common_trail_sum_free(gap->sum);
    *gap = (struct gap){0};
}

static void gap_add(struct gap *gap, const char *bytes, size_t len)
{
    if (!len)
        return;
    if (!gap->sum)
        gap->sum = common_trail_sum_new();
    common_trail_sum_add(gap->sum, bytes, len); // without memory the record has no sum, and is not written
    gap->bytes += len;
    gap->ended = bytes[len - 1] == '\n';
}

// ---- writing ------------------------------------------------------------------------------------

static bool fails_with(struct common_trail *trail, const char *why)
{
    snprintf(trail->trouble, sizeof trail->trouble, "%s", why);
    if (trail->works)
        common_log_error("the audit log cannot be written: records are lost meanwhile file=%s: %s",
                         trail->path, trail->trouble);
    trail->works = false;
    return false;
}

static bool fails(struct common_trail *trail, int why)
{
    char text[128];
    return fails_with(trail, strerror_r(why, text, sizeof text));
}

// Bytes that were written: fewer than asked for, and it fails.
static size_t put(struct common_trail *trail, const char *text, size_t len)
{
    size_t written = 0;
    int why = 0;
    if (COMMON_FAILPOINT_FAILS("trail_write"))
        why = ENOSPC;
    while (written < len && !why) {
        ssize_t n = write(trail->fd, text + written, len - written);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            why = n < 0 ? errno : ENOSPC;
        else
            written += (size_t)n;
    }
    if (why)
        fails(trail, why);
    return written;
}

// A line of which a part is written is a gap then. One that lacks its '\n' alone is a record.
static bool append(struct common_trail *trail, const struct common_trail_body *body, uint64_t wall_ns)
{
    struct common_trail_place place = {.seq = trail->seq + 1, .wall_ns = wall_ns};
    memcpy(place.prev, trail->head, sizeof place.prev);
    size_t len = common_trail_compose(&place, body, trail->line);
    if (!len)
        return fails(trail, ENOMEM);
    size_t written = put(trail, trail->line, len);
    if (written + 1 < len) {
        gap_add(&trail->gap, trail->line, written);
        return false;
    }
    COMMON_FAILPOINT("trail_written");
    trail->unended = written < len;
    trail->seq = place.seq;
    memcpy(trail->head, place.hash, sizeof trail->head);
    return true;
}

static struct common_trail_body *own_begin(struct common_trail *trail, const char *what)
{
    struct common_trail_body *body = &trail->own;
    body->len = 0;
    body->depth = 0;
    body->cut = false;
    common_trail_put_open(body, "who");
    common_trail_put_text(body, "daemon", trail->who);
    common_trail_put_shut(body);
    common_trail_put_text(body, "what", what);
    common_trail_put_open(body, "args");
    return body;
}

static bool own_end(struct common_trail *trail)
{
    common_trail_put_shut(&trail->own);
    common_trail_put_text(&trail->own, "result", "OK");
    return append(trail, &trail->own, common_clock_wall_ns());
}

static bool say_torn(struct common_trail *trail)
{
    char sum[COMMON_TRAIL_HASH + 1];
    if (!trail->gap.ended) {
        if (put(trail, "\n", 1) == 0)
            return false;
        gap_add(&trail->gap, "\n", 1);
    }
    if (!trail->gap.sum || !common_trail_sum_hex(trail->gap.sum, sum))
        return fails(trail, ENOMEM);
    struct common_trail_body *body = own_begin(trail, trail->gap.changed ? "log.broken" : "log.torn");
    common_trail_put_number(body, "bytes", trail->gap.bytes);
    common_trail_put_text(body, "sha256", sum);
    if (!own_end(trail))
        return false;
    gap_clear(&trail->gap);
    return true;
}

static bool say_lost(struct common_trail *trail)
{
    struct common_trail_body *body = own_begin(trail, "log.lost");
    common_trail_put_number(body, "records", trail->unsaid);
    common_trail_put_number(body, "for_ms", (common_clock_ns() - trail->unsaid_ns) / COMMON_NS_PER_MS);
    common_trail_put_text(body, "why", trail->trouble);
    if (!own_end(trail))
        return false;
    trail->unsaid = 0;
    return true;
}

// The records that must come first.
static bool settle(struct common_trail *trail)
{
    if (trail->unended && put(trail, "\n", 1) == 0)
        return false;
    trail->unended = false;
    return (!trail->gap.bytes || say_torn(trail)) && (!trail->unsaid || say_lost(trail));
}

static void worked(struct common_trail *trail)
{
    if (!trail->works)
        common_log_info("the audit log can be written again file=%s lost=%" PRIu64, trail->path, trail->lost);
    trail->works = true;
}

static void count_lost(struct common_trail *trail, uint64_t n, uint64_t since_ns)
{
    if (!trail->unsaid)
        trail->unsaid_ns = since_ns;
    trail->unsaid += n;
    trail->lost += n;
}

bool common_trail_write_at(struct common_trail *trail, const struct common_trail_body *body, uint64_t wall_ns)
{
    if (settle(trail) && append(trail, body, wall_ns)) {
        trail->written++;
        worked(trail);
        return true;
    }
    count_lost(trail, 1, common_clock_ns());
    return false;
}

bool common_trail_write(struct common_trail *trail, const struct common_trail_body *body)
{
    return common_trail_write_at(trail, body, common_clock_wall_ns());
}

void common_trail_lose(struct common_trail *trail, uint64_t n, uint64_t since_ns, const char *why)
{
    if (trail->works)
        fails_with(trail, why);
    count_lost(trail, n, since_ns);
}

bool common_trail_works(const struct common_trail *trail)
{
    return trail->works;
}

const char *common_trail_trouble(const struct common_trail *trail)
{
    return trail->trouble;
}

void common_trail_retry(struct common_trail *trail)
{
    if (!trail->works && settle(trail))
        worked(trail);
}

void common_trail_counts(const struct common_trail *trail, struct common_trail_counts *out)
{
    *out = (struct common_trail_counts){
        .written = trail->written, .lost = trail->lost, .seq = trail->seq, .head = trail->head};
}

// ---- the end of a file that is there --------------------------------------------------------------

struct tail {
    char *text;
    size_t len;
    bool all; // of the file
};

// Takes what is behind the last whole record; false: there is no such record.
static bool find_head(struct common_trail *trail, const struct tail *tail)
{
    struct common_trail_place place;
    size_t end = tail->len; // behind the '\n' of the line that is looked at
    while (end > 0 && tail->text[end - 1] != '\n')
        end--;
    if (common_trail_examine(tail->text + end, tail->len - end, &place) == COMMON_TRAIL_WHOLE) {
        trail->seq = place.seq;
        memcpy(trail->head, place.hash, sizeof trail->head);
        trail->unended = true;
        return true;
    }
    while (end > 0) {
        size_t begin = end - 1;
        while (begin > 0 && tail->text[begin - 1] != '\n')
            begin--;
        enum common_trail_form form = common_trail_examine(tail->text + begin, end - 1 - begin, &place);
        if (form == COMMON_TRAIL_WHOLE) {
            trail->seq = place.seq;
            memcpy(trail->head, place.hash, sizeof trail->head);
            gap_add(&trail->gap, tail->text + end, tail->len - end);
            return true;
        }
        trail->gap.changed = trail->gap.changed || form == COMMON_TRAIL_CHANGED;
        end = begin;
    }
    return false;
}

// A file with a part of a first record, and nothing else.
static bool is_first_torn(const struct tail *tail)
{
    static const char begin[] = "{\"seq\":1,";
    size_t n = tail->len < sizeof begin - 1 ? tail->len : sizeof begin - 1;
    const char *end = memchr(tail->text, '\n', tail->len);
    return tail->all && tail->len < COMMON_TRAIL_LINE && memcmp(tail->text, begin, n) == 0 &&
           (!end || end == tail->text + tail->len - 1);
}

static bool read_tail(int fd, off_t size, struct tail *out)
{
    size_t want = size < TAIL_BYTES ? (size_t)size : TAIL_BYTES, got = 0;
    out->text = malloc(want + 1);
    while (out->text && got < want) {
        ssize_t n = pread(fd, out->text + got, want - got, size - (off_t)want + (off_t)got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    out->len = got;
    out->all = (off_t)want == size;
    return out->text && got == want;
}

static enum common_code take_tail(struct common_trail *trail, off_t size, struct common_error *err)
{
    struct tail tail = {0};
    enum common_code code = COMMON_OK;
    if (!read_tail(trail->fd, size, &tail)) {
        code = common_error_set(err, COMMON_FAILED_PRECONDITION, "the audit log %.200s cannot be read: %s",
                                trail->path, strerror(errno));
    } else if (!find_head(trail, &tail)) {
        trail->gap.changed = false;
        if (is_first_torn(&tail))
            gap_add(&trail->gap, tail.text, tail.len);
        else
            code = common_error_set(err, COMMON_FAILED_PRECONDITION,
                                    "%.200s is not an audit log, or its end is damaged: see 'banyanctl "
                                    "audit-log verify', move it away, or name another file",
                                    trail->path);
    }
    free(tail.text);
    return code;
}

// ---- opening ------------------------------------------------------------------------------------

static const char *refuses(int fd, struct stat *st)
{
    if (fstat(fd, st) != 0)
        return strerror(errno);
    if (!S_ISREG(st->st_mode) && !S_ISCHR(st->st_mode))
        return "it is neither a regular file nor a character device";
    if (S_ISREG(st->st_mode) && st->st_uid != geteuid())
        return "it belongs to another user";
    if (S_ISREG(st->st_mode) && (st->st_mode & 022))
        return "others can write it: use chmod 600";
    return NULL;
}

// -1: no, because of *why.
static int file_open(const char *path, struct stat *st, const char **why)
{
    // O_NOFOLLOW: where others can write, a link could lead to any file of ours. O_NONBLOCK: a pipe put in
    // its place does not stop the process.
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0) {
        *why = errno == ELOOP ? "it is a symbolic link: name the file itself" : strerror(errno);
        return -1;
    }
    *why = refuses(fd, st);
    if (!*why)
        return fd;
    close(fd);
    return -1;
}

// Of regular files alone: others have no end that is looked at, and several may have them.
static bool file_lock(int fd, const struct stat *st, const char **why)
{
    if (!S_ISREG(st->st_mode) || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return true;
    *why = errno == EWOULDBLOCK ? "another process has it open: each coordinator needs its own audit log"
                                : strerror(errno);
    return false;
}

static enum common_code refuse_file(const struct common_trail *trail, const char *why,
                                    struct common_error *err)
{
    return common_error_set(err, COMMON_FAILED_PRECONDITION, "the audit log %.200s cannot be used: %s",
                            trail->path, why);
}

static void say_opened(struct common_trail *trail, bool fresh)
{
    char host[256] = "";
    if (trail->gap.bytes && trail->gap.changed)
        common_log_error(
            "the end of the audit log was changed: 'banyanctl audit-log verify' says where file=%s",
            trail->path);
    else if (trail->gap.bytes)
        common_log_warn("the audit log ended within a record: it is kept, and a new record notes this "
                        "file=%s bytes=%" PRIu64,
                        trail->path, trail->gap.bytes);
    trail->works = true;
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    if (!settle(trail))
        return;
    struct common_trail_body *body = own_begin(trail, fresh ? "log.begun" : "log.opened");
    common_trail_put_text(body, "host", host);
    common_trail_put_number(body, "pid", (uint64_t)getpid());
    common_trail_put_text(body, "version", BANYAN_VERSION);
    if (own_end(trail))
        trail->written++;
}

enum common_code common_trail_open(const char *path, const char *who, struct common_trail **out,
                                   struct common_error *err)
{
    size_t len = strlen(path) + 1;
    struct stat st;
    const char *why;
    struct common_trail *trail = calloc(1, sizeof *trail + len);
    if (!trail)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for the audit log");
    memcpy(trail->path, path, len);
    memcpy(trail->head, COMMON_TRAIL_NONE, sizeof trail->head);
    snprintf(trail->who, sizeof trail->who, "%s", who);
    trail->fd = file_open(path, &st, &why);
    enum common_code code = COMMON_OK;
    if (trail->fd < 0 || !file_lock(trail->fd, &st, &why))
        code = refuse_file(trail, why, err);
    bool fresh = code != COMMON_OK || !S_ISREG(st.st_mode) || st.st_size == 0;
    if (!fresh)
        code = take_tail(trail, st.st_size, err);
    if (code != COMMON_OK) {
        common_trail_close(trail);
        return code;
    }
    trail->device = st.st_dev;
    trail->inode = st.st_ino;
    say_opened(trail, fresh);
    *out = trail;
    return COMMON_OK;
}

enum common_code common_trail_reopen(struct common_trail *trail, struct common_error *err)
{
    struct stat st;
    const char *why;
    int fd = file_open(trail->path, &st, &why);
    if (fd < 0)
        return refuse_file(trail, why, err);
    if (st.st_dev == trail->device && st.st_ino == trail->inode) {
        close(fd);
        return COMMON_OK;
    }
    bool empty = !S_ISREG(st.st_mode) || st.st_size == 0;
    if (!empty)
        why = "the new file is not empty, and a chain continues only in an empty one: move it away";
    if (!empty || !file_lock(fd, &st, &why)) {
        close(fd);
        return refuse_file(trail, why, err);
    }
    common_log_info("audit log seq=%" PRIu64 " head=%s file=%s", trail->seq, trail->head, trail->path);
    close(trail->fd);
    trail->fd = fd;
    trail->device = st.st_dev;
    trail->inode = st.st_ino;
    gap_clear(&trail->gap); // is in the old file
    trail->unended = false;
    struct common_trail_body *body = own_begin(trail, "log.rotated");
    common_trail_put_number(body, "after", trail->seq);
    if (own_end(trail)) {
        trail->written++;
        worked(trail);
    }
    return COMMON_OK;
}

void common_trail_close(struct common_trail *trail)
{
    if (!trail)
        return;
    if (trail->fd >= 0)
        close(trail->fd);
    gap_clear(&trail->gap);
    free(trail);
}
