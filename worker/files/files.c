// SPDX-License-Identifier: Apache-2.0
#include "worker/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"

#define LOCK_AGAIN_NS (20 * COMMON_NS_PER_MS)
#define LOCK_TRIES    150 // 3 s

// Files that are being written stay open: where a name may be is given by its hash, and of the few that may be there the
// one that was used longest ago is closed.
enum { OPEN_SETS = 64, OPEN_WAYS = 4, OPEN_FILES = OPEN_SETS * OPEN_WAYS, NAME_BYTES = 64 };

struct open_file {
    char name[NAME_BYTES];
    int fd;
    uint64_t used;
};

struct directory {
    struct worker_files base;
    int fd, lock; // lock: -1 of a second handle
    uint64_t uses;
    struct open_file open[OPEN_FILES]; // name "": none
};

static int failed(void)
{
    return errno ? -errno : -EIO;
}

static void forget(struct open_file *file)
{
    if (file->name[0])
        close(file->fd);
    file->name[0] = 0;
}

static struct open_file *set_of(struct directory *d, const char *name)
{
    return &d->open[common_xxh3(name, strlen(name), 0) % OPEN_SETS * OPEN_WAYS];
}

static void forget_name(struct directory *d, const char *name)
{
    struct open_file *set = set_of(d, name);
    for (uint32_t i = 0; i < OPEN_WAYS; i++)
        if (strcmp(set[i].name, name) == 0)
            forget(&set[i]);
}

// A descriptor to write to this file, which the directory keeps, or a negative errno.
static int writable(struct directory *d, const char *name)
{
    struct open_file *set = set_of(d, name), *oldest = set;
    if (strlen(name) >= NAME_BYTES)
        return -ENAMETOOLONG;
    for (uint32_t i = 0; i < OPEN_WAYS; i++) {
        struct open_file *file = &set[i];
        if (file->name[0] && strcmp(file->name, name) == 0) {
            file->used = ++d->uses;
            return file->fd;
        }
        if (oldest->name[0] && (!file->name[0] || file->used < oldest->used))
            oldest = file;
    }
    int fd = openat(d->fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return failed();
    forget(oldest);
    strcpy(oldest->name, name);
    oldest->fd = fd;
    oldest->used = ++d->uses;
    return fd;
}

static int files_write(struct worker_files *files, const char *name, uint64_t at, const struct iovec *pieces,
                       int n)
{
    int fd = writable((struct directory *)files, name);
    struct iovec rest[16];
    if (fd < 0)
        return fd;
    if (n > 16)
        return -EINVAL;
    memcpy(rest, pieces, (size_t)n * sizeof *pieces);
    for (struct iovec *piece = rest; n > 0;) {
        ssize_t wrote = pwritev(fd, piece, n, (off_t)at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return failed();
        if (wrote == 0)
            return -ENOSPC;
        at += (uint64_t)wrote;
        for (; n > 0 && (size_t)wrote >= piece->iov_len; n--, piece++)
            wrote -= (ssize_t)piece->iov_len;
        if (n > 0) {
            piece->iov_base = (uint8_t *)piece->iov_base + wrote;
            piece->iov_len -= (size_t)wrote;
        }
    }
    return 0;
}

static int64_t files_read(struct worker_files *files, const char *name, uint64_t at, void *out, size_t len)
{
    int fd = openat(((struct directory *)files)->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    size_t done = 0;
    int64_t result = 0;
    if (fd < 0)
        return failed();
    while (done < len) {
        ssize_t n = pread(fd, (uint8_t *)out + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            result = failed();
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    close(fd);
    return result < 0 ? result : (int64_t)done;
}

static int64_t files_size(struct worker_files *files, const char *name)
{
    struct stat st;
    if (fstatat(((struct directory *)files)->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return failed();
    return (int64_t)st.st_size;
}

static int files_cut(struct worker_files *files, const char *name, uint64_t len)
{
    int fd = writable((struct directory *)files, name);
    return fd < 0 ? fd : ftruncate(fd, (off_t)len) == 0 ? 0 : failed();
}

static int files_sync(struct worker_files *files, const char *name)
{
    int fd = openat(((struct directory *)files)->fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return failed();
    int result = fdatasync(fd) == 0 ? 0 : failed();
    close(fd);
    return result;
}

static int files_sync_folder(struct worker_files *files, const char *folder)
{
    int fd = openat(((struct directory *)files)->fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed();
    int result = fsync(fd) == 0 ? 0 : failed();
    close(fd);
    return result;
}

static int files_move(struct worker_files *files, const char *from, const char *to)
{
    struct directory *d = (struct directory *)files;
    forget_name(d, from);
    forget_name(d, to);
    return renameat(d->fd, from, d->fd, to) == 0 ? 0 : failed();
}

static int files_remove(struct worker_files *files, const char *name)
{
    struct directory *d = (struct directory *)files;
    forget_name(d, name);
    return unlinkat(d->fd, name, 0) == 0 ? 0 : failed();
}

static int files_list(struct worker_files *files, const char *folder, worker_files_fn each, void *arg)
{
    int fd = openat(((struct directory *)files)->fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    if (!dir) {
        int result = failed();
        if (fd >= 0)
            close(fd);
        return result;
    }
    errno = 0;
    while ((entry = readdir(dir))) // cppcheck-suppress readdirCalled ; the stream is this function's
        if (entry->d_name[0] != '.' && !each(arg, entry->d_name))
            break;
    int result = entry || !errno ? 0 : failed();
    closedir(dir);
    return result;
}

static void files_close(struct worker_files *files)
{
    struct directory *d = (struct directory *)files;
    for (uint32_t i = 0; i < OPEN_FILES; i++)
        forget(&d->open[i]);
    close(d->fd);
    if (d->lock >= 0)
        close(d->lock);
    free(d);
}

static void files_ahead(struct worker_files *files, const char *name, uint64_t at, uint64_t len)
{
    int fd = openat(((struct directory *)files)->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    (void)posix_fadvise(fd, (off_t)at, (off_t)len, POSIX_FADV_WILLNEED);
    close(fd);
}

static struct worker_files *files_again(struct worker_files *files);

static const struct worker_files_ops ops = {
    .write = files_write,
    .read = files_read,
    .size = files_size,
    .cut = files_cut,
    .sync = files_sync,
    .sync_folder = files_sync_folder,
    .move = files_move,
    .remove = files_remove,
    .list = files_list,
    .ahead = files_ahead,
    .again = files_again,
    .close = files_close,
};

static struct directory *directory_new(int fd, int lock)
{
    struct directory *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->base.ops = &ops;
    d->fd = fd;
    d->lock = lock;
    return d;
}

static struct worker_files *files_again(struct worker_files *files)
{
    int fd = fcntl(((struct directory *)files)->fd, F_DUPFD_CLOEXEC, 0);
    struct directory *d = fd < 0 ? NULL : directory_new(fd, -1);
    if (!d && fd >= 0)
        close(fd);
    return d ? &d->base : NULL;
}

static enum common_code refuse(struct common_error *err, const char *path, const char *what)
{
    return common_error_set(err, COMMON_UNAVAILABLE, "--store %s: %s: %s", path, what, strerror(errno));
}

// It is this user's alone.
static enum common_code check_owner(const char *path, int fd, struct common_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return refuse(err, path, "it cannot be examined");
    if (st.st_uid != geteuid())
        return common_error_set(err, COMMON_PERMISSION_DENIED, "--store %s belongs to another user", path);
    if (st.st_mode & 077)
        return common_error_set(err, COMMON_PERMISSION_DENIED,
                                "--store %s can be read or written by others: use chmod 700", path);
    return COMMON_OK;
}

// Waits a moment: a worker that was killed gives back its memory before its files.
static enum common_code lock_it(const char *path, int fd, int *lock, struct common_error *err)
{
    *lock = openat(fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*lock < 0)
        return refuse(err, path, "its lock cannot be opened");
    for (int i = 0; flock(*lock, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return refuse(err, path, "it cannot be locked");
        if (i == LOCK_TRIES)
            return common_error_set(
                err, COMMON_FAILED_PRECONDITION,
                "--store %s is in use by another worker process: each needs its own directory", path);
        nanosleep(&(struct timespec){.tv_nsec = LOCK_AGAIN_NS}, NULL);
    }
    return COMMON_OK;
}

enum common_code worker_files_open(const char *path, struct worker_files **out, struct common_error *err)
{
    static const char *const folders[] = {"sessions", "chunks", "quarantine"};
    int lock = -1;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return refuse(err, path, "it cannot be created");
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return refuse(err, path, "it cannot be opened");
    enum common_code code = check_owner(path, fd, err);
    if (code == COMMON_OK)
        code = lock_it(path, fd, &lock, err);
    for (size_t i = 0; code == COMMON_OK && i < sizeof folders / sizeof *folders; i++)
        if (mkdirat(fd, folders[i], 0700) != 0 && errno != EEXIST)
            code = refuse(err, path, "its folders cannot be created");
    struct directory *d = code == COMMON_OK ? directory_new(fd, lock) : NULL;
    if (d) {
        *out = &d->base;
        return COMMON_OK;
    }
    if (code == COMMON_OK)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for --store");
    close(fd);
    if (lock >= 0)
        close(lock);
    return code;
}
