// SPDX-License-Identifier: Apache-2.0
#include "tests/coordinator/torn_disk.h"

#include <assert.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"

enum { SECTOR = 512 };

struct change { // a write, or a truncation to `at`
    struct change *next;
    uint64_t at;
    size_t n;
    bool truncates;
    uint8_t bytes[];
};

struct content {
    uint8_t *bytes;
    size_t n;
};

struct file {
    struct file *next;
    char path[512]; // "": a temporary one
    bool there;
    unsigned open;
    struct content now, durable;
    struct change *pending, **tail;
};

struct handle {
    sqlite3_file base;
    struct file *file;
};

static struct {
    pthread_mutex_t lock; // the store has a thread of its own
    sqlite3_vfs vfs, *before;
    struct file *files;
    uint64_t seed, left; // left: calls before it dies
    uint32_t sound_syncs, bad_syncs;
    bool dead;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t torn_disk_random(uint64_t n)
{
    return common_mix64(++disk.seed) % n;
}

// ---- contents -------------------------------------------------------------------------------------------

static void content_resize(struct content *c, size_t n)
{
    if (n > c->n) {
        c->bytes = realloc(c->bytes, n);
        if (!c->bytes)
            abort();
        memset(c->bytes + c->n, 0, n - c->n);
    }
    c->n = n;
}

static void content_put(struct content *c, uint64_t at, const uint8_t *bytes, size_t n)
{
    if (at + n > c->n)
        content_resize(c, at + n);
    memcpy(c->bytes + at, bytes, n);
}

static void content_copy(struct content *to, const struct content *from)
{
    content_resize(to, from->n);
    if (from->n)
        memcpy(to->bytes, from->bytes, from->n);
}

static void pending_clear(struct file *f)
{
    while (f->pending) {
        struct change *change = f->pending;
        f->pending = change->next;
        free(change);
    }
    f->tail = &f->pending;
}

static void pending_add(struct file *f, struct change change, const void *bytes)
{
    struct change *kept = malloc(sizeof *kept + change.n);
    if (!kept)
        abort();
    *kept = change;
    kept->next = NULL;
    if (change.n)
        memcpy(kept->bytes, bytes, change.n);
    *f->tail = kept;
    f->tail = &kept->next;
}

// Sector by sector: what of a write has reached the disk when power is lost.
static void tear(struct content *c, const struct change *change)
{
    for (size_t at = 0, n; at < change->n; at += n) {
        n = SECTOR - (change->at + at) % SECTOR;
        n = n < change->n - at ? n : change->n - at;
        if (torn_disk_random(2))
            content_put(c, change->at + at, change->bytes + at, n);
    }
}

static void lose_power(struct file *f)
{
    for (const struct change *change = f->pending; change; change = change->next) {
        uint64_t fate = torn_disk_random(3);
        if (fate == 0)
            continue;
        if (change->truncates)
            content_resize(&f->durable, change->at);
        else if (fate == 1)
            content_put(&f->durable, change->at, change->bytes, change->n);
        else
            tear(&f->durable, change);
    }
}

// ---- files ----------------------------------------------------------------------------------------------

static bool dies(void) // at this call, or has died
{
    if (!disk.dead && disk.left != UINT64_MAX && disk.left-- == 0)
        disk.dead = true;
    return disk.dead;
}

static int on_close(sqlite3_file *base)
{
    pthread_mutex_lock(&disk.lock);
    ((struct handle *)base)->file->open--;
    pthread_mutex_unlock(&disk.lock);
    return SQLITE_OK;
}

static int on_read(sqlite3_file *base, void *out, int n, sqlite3_int64 at)
{
    pthread_mutex_lock(&disk.lock);
    const struct content *c = &((struct handle *)base)->file->now;
    size_t have = (size_t)at < c->n ? c->n - (size_t)at : 0;
    have = have < (size_t)n ? have : (size_t)n;
    if (have)
        memcpy(out, c->bytes + at, have);
    memset((uint8_t *)out + have, 0, (size_t)n - have);
    pthread_mutex_unlock(&disk.lock);
    return have == (size_t)n ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int on_write(sqlite3_file *base, const void *bytes, int n, sqlite3_int64 at)
{
    struct file *f = ((struct handle *)base)->file;
    pthread_mutex_lock(&disk.lock);
    bool dead = dies();
    if (!dead) {
        content_put(&f->now, (uint64_t)at, bytes, (size_t)n);
        pending_add(f, (struct change){.at = (uint64_t)at, .n = (size_t)n}, bytes);
    }
    pthread_mutex_unlock(&disk.lock);
    return dead ? SQLITE_IOERR_WRITE : SQLITE_OK;
}

static int on_truncate(sqlite3_file *base, sqlite3_int64 n)
{
    struct file *f = ((struct handle *)base)->file;
    pthread_mutex_lock(&disk.lock);
    bool dead = dies();
    if (!dead) {
        content_resize(&f->now, (size_t)n);
        pending_add(f, (struct change){.at = (uint64_t)n, .truncates = true}, NULL);
    }
    pthread_mutex_unlock(&disk.lock);
    return dead ? SQLITE_IOERR_TRUNCATE : SQLITE_OK;
}

static int on_sync(sqlite3_file *base, int flags)
{
    struct file *f = ((struct handle *)base)->file;
    (void)flags;
    pthread_mutex_lock(&disk.lock);
    int rc = dies() ? SQLITE_IOERR : SQLITE_OK;
    if (rc == SQLITE_OK && disk.bad_syncs && !disk.sound_syncs) {
        disk.bad_syncs--;
        rc = SQLITE_IOERR_FSYNC;
    } else if (rc == SQLITE_OK) {
        disk.sound_syncs -= disk.sound_syncs > 0;
        content_copy(&f->durable, &f->now);
        pending_clear(f);
    }
    pthread_mutex_unlock(&disk.lock);
    return rc;
}

static int on_size(sqlite3_file *base, sqlite3_int64 *out)
{
    pthread_mutex_lock(&disk.lock);
    *out = (sqlite3_int64)((struct handle *)base)->file->now.n;
    pthread_mutex_unlock(&disk.lock);
    return SQLITE_OK;
}

static int on_lock(sqlite3_file *base, int level)
{
    (void)base, (void)level; // one process at a time
    return SQLITE_OK;
}

static int on_is_locked(sqlite3_file *base, int *out)
{
    (void)base;
    *out = 0;
    return SQLITE_OK;
}

static int on_control(sqlite3_file *base, int what, void *arg)
{
    static int keeps_log; // as the unix VFS: set where it is not negative, and returned
    int *keep = arg;
    (void)base;
    if (what != SQLITE_FCNTL_PERSIST_WAL)
        return SQLITE_NOTFOUND;
    if (*keep >= 0)
        keeps_log = *keep;
    *keep = keeps_log;
    return SQLITE_OK;
}

static int on_sector(sqlite3_file *base)
{
    (void)base;
    return SECTOR;
}

static int on_device(sqlite3_file *base)
{
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE; // as SQLite takes Linux to be: bytes beside a write do not change
}

// Version 1, without shared memory: the store has its file for itself.
static const sqlite3_io_methods methods = {.iVersion = 1,
                                           .xClose = on_close,
                                           .xRead = on_read,
                                           .xWrite = on_write,
                                           .xTruncate = on_truncate,
                                           .xSync = on_sync,
                                           .xFileSize = on_size,
                                           .xLock = on_lock,
                                           .xUnlock = on_lock,
                                           .xCheckReservedLock = on_is_locked,
                                           .xFileControl = on_control,
                                           .xSectorSize = on_sector,
                                           .xDeviceCharacteristics = on_device};

// ---- the disk -------------------------------------------------------------------------------------------

static struct file *file_at(const char *path)
{
    for (struct file *f = disk.files; f; f = f->next)
        if (f->path[0] && !strcmp(f->path, path))
            return f;
    return NULL;
}

static void file_empty(struct file *f)
{
    pending_clear(f);
    free(f->now.bytes);
    free(f->durable.bytes);
    f->now = f->durable = (struct content){0};
}

static int on_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *base, int flags, int *out)
{
    struct handle *handle = (struct handle *)base;
    (void)vfs;
    pthread_mutex_lock(&disk.lock);
    struct file *f = path ? file_at(path) : NULL;
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f)
            abort();
        snprintf(f->path, sizeof f->path, "%s", path ? path : "");
        f->tail = &f->pending;
        f->next = disk.files;
        disk.files = f;
    }
    f->there = true;
    f->open++;
    handle->base.pMethods = &methods;
    handle->file = f;
    if (out)
        *out = flags;
    pthread_mutex_unlock(&disk.lock);
    return SQLITE_OK;
}

static int on_delete(sqlite3_vfs *vfs, const char *path, int sync_folder)
{
    (void)vfs, (void)sync_folder;
    pthread_mutex_lock(&disk.lock);
    struct file *f = file_at(path);
    bool dead = dies();
    if (!dead && f) {
        file_empty(f);
        f->there = false;
    }
    pthread_mutex_unlock(&disk.lock);
    return dead ? SQLITE_IOERR_DELETE : SQLITE_OK;
}

static int on_access(sqlite3_vfs *vfs, const char *path, int flags, int *out)
{
    (void)vfs, (void)flags;
    pthread_mutex_lock(&disk.lock);
    const struct file *f = file_at(path);
    *out = f && f->there;
    pthread_mutex_unlock(&disk.lock);
    return SQLITE_OK;
}

static int on_full_path(sqlite3_vfs *vfs, const char *path, int n, char *out)
{
    (void)vfs;
    snprintf(out, (size_t)n, "%s", path);
    return SQLITE_OK;
}

void torn_disk_begin(uint64_t seed)
{
    disk.before = sqlite3_vfs_find(NULL);
    disk.vfs = *disk.before; // its clock, its sleep
    disk.vfs.pNext = NULL;
    disk.vfs.zName = "torn";
    disk.vfs.szOsFile = sizeof(struct handle);
    disk.vfs.xOpen = on_open;
    disk.vfs.xDelete = on_delete;
    disk.vfs.xAccess = on_access;
    disk.vfs.xFullPathname = on_full_path;
    sqlite3_vfs_register(&disk.vfs, 1);
    disk.seed = seed << 32;
    disk.left = UINT64_MAX;
    disk.sound_syncs = disk.bad_syncs = 0;
    disk.dead = false;
}

void torn_disk_end(void)
{
    sqlite3_vfs_unregister(&disk.vfs);
    sqlite3_vfs_register(disk.before, 1);
    while (disk.files) {
        struct file *f = disk.files;
        disk.files = f->next;
        assert(!f->open);
        file_empty(f);
        free(f);
    }
}

void torn_disk_die_at(uint64_t nth)
{
    pthread_mutex_lock(&disk.lock);
    disk.left = nth;
    disk.dead = disk.dead || nth == 0;
    pthread_mutex_unlock(&disk.lock);
}

bool torn_disk_dead(void)
{
    pthread_mutex_lock(&disk.lock);
    bool dead = disk.dead;
    pthread_mutex_unlock(&disk.lock);
    return dead;
}

void torn_disk_fail_syncs(uint32_t after, uint32_t n)
{
    pthread_mutex_lock(&disk.lock);
    disk.sound_syncs = after;
    disk.bad_syncs = n;
    pthread_mutex_unlock(&disk.lock);
}

void torn_disk_restart(bool power_lost)
{
    for (struct file *f = disk.files; f; f = f->next) {
        assert(!f->open);
        if (power_lost)
            lose_power(f);
        else
            content_copy(&f->durable, &f->now);
        content_copy(&f->now, &f->durable);
        pending_clear(f);
        f->there = f->there && f->path[0];
    }
    disk.left = UINT64_MAX;
    disk.sound_syncs = disk.bad_syncs = 0;
    disk.dead = false;
}
