// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_files.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"

struct handle {
    struct worker_files base;
    struct sim_files *directory;
    uint64_t life;
};

// A worker's disk threads run beside each other. Held by one call at a time, and not while `beside` and
// `syncing` run, which may wait for another call. Recursive: what lists a folder may read in it.
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static bool lock(void)
{
    return pthread_mutex_lock(&mutex) == 0;
}

static void unlock(const bool *locked)
{
    if (*locked)
        pthread_mutex_unlock(&mutex);
}

#define LOCKED __attribute__((cleanup(unlock), unused)) bool locked = lock()

void sim_files_init(struct sim_files *d)
{
    *d = (struct sim_files){.room = UINT64_MAX, .life = 1};
}

void sim_files_end(struct sim_files *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->files[i].bytes);
    for (size_t i = 0; i < d->n_changes; i++)
        free(d->changes[i].gone.bytes);
    free(d->files);
    free(d->changes);
    *d = (struct sim_files){0};
}

static bool is_alive(const struct handle *handle)
{
    LOCKED;
    return handle->life == handle->directory->life;
}

static struct sim_files *directory_of(struct worker_files *files)
{
    const struct handle *handle = (struct handle *)files;
    __atomic_add_fetch(&handle->directory->calls, 1, __ATOMIC_RELAXED); // by several threads
    if (handle->directory->beside && is_alive(handle))
        handle->directory->beside();
    return is_alive(handle) ? handle->directory : NULL;
}

struct sim_file *sim_files_find(struct sim_files *d, const char *name)
{
    LOCKED;
    for (size_t i = 0; i < d->n; i++)
        if (strcmp(d->files[i].name, name) == 0)
            return &d->files[i];
    return NULL;
}

size_t sim_files_count(const struct sim_files *d, const char *part)
{
    LOCKED;
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++)
        n += strstr(d->files[i].name, part) != NULL;
    return n;
}

static void note_change(struct sim_files *d, const char *from, const char *to, const struct sim_file *gone)
{
    if (d->n_changes == d->cap_changes) {
        d->cap_changes = d->cap_changes ? 2 * d->cap_changes : 16;
        d->changes = realloc(d->changes, d->cap_changes * sizeof *d->changes);
        if (!d->changes)
            abort();
    }
    struct sim_change *change = &d->changes[d->n_changes++];
    *change = (struct sim_change){.has_gone = gone != NULL};
    snprintf(change->from, sizeof change->from, "%s", from);
    snprintf(change->to, sizeof change->to, "%s", to);
    if (gone)
        change->gone = *gone;
}

static struct sim_file *add_file(struct sim_files *d, const struct sim_file *file)
{
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 16;
        d->files = realloc(d->files, d->cap * sizeof *d->files);
        if (!d->files)
            abort();
    }
    d->files[d->n] = *file;
    return &d->files[d->n++];
}

static struct sim_file *make(struct sim_files *d, const char *name)
{
    struct sim_file file = {.synced = 0};
    snprintf(file.name, sizeof file.name, "%s", name);
    note_change(d, "", name, NULL);
    return add_file(d, &file);
}

static void resize(struct sim_file *file, size_t len)
{
    if (len > file->cap) {
        file->cap = 2 * len;
        file->bytes = realloc(file->bytes, file->cap);
        if (!file->bytes)
            abort();
    }
    if (len > file->len)
        memset(file->bytes + file->len, 0, len - file->len);
    file->len = len;
    file->synced = file->synced < len ? file->synced : len;
}

// As much as there is room for.
static int put(struct sim_files *d, struct sim_file *file, uint64_t at, const uint8_t *bytes, size_t len)
{
    size_t grows = at + len > file->len ? (size_t)(at + len - file->len) : 0, short_by = 0;
    if (d->room != UINT64_MAX) {
        short_by = grows > d->room ? grows - (size_t)d->room : 0;
        d->room -= grows - short_by;
    }
    if (short_by < len) {
        if (at + len - short_by > file->len)
            resize(file, at + len - short_by);
        memcpy(file->bytes + at, bytes, len - short_by);
    }
    file->synced = file->synced < at ? file->synced : (size_t)at;
    return short_by ? -ENOSPC : 0;
}

static bool fails(const struct sim_files *d, const char *name)
{
    return (d->fail_at && d->writes >= d->fail_at) || (d->refused && strstr(name, d->refused));
}

static int sim_write(struct worker_files *files, const char *name, uint64_t at, const struct iovec *pieces,
                     int n)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    int result = 0;
    if (!d)
        return -EIO;
    d->writes++;
    if (fails(d, name))
        return -EIO;
    struct sim_file *file = sim_files_find(d, name);
    file = file ? file : make(d, name);
    for (int i = 0; i < n && result == 0; at += pieces[i++].iov_len)
        result = put(d, file, at, pieces[i].iov_base, pieces[i].iov_len);
    return result;
}

static int64_t sim_read(struct worker_files *files, const char *name, uint64_t at, void *out, size_t len)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    const struct sim_file *file = d ? sim_files_find(d, name) : NULL;
    if (!file)
        return d ? -ENOENT : -EIO;
    uint64_t nth = __atomic_add_fetch(&d->reads, 1, __ATOMIC_RELAXED); // by several threads
    if (nth >= d->no_reads_from && nth <= d->no_reads_to)
        return -EMFILE;
    size_t left = at < file->len ? file->len - (size_t)at : 0, n = len < left ? len : left;
    if (n)
        memcpy(out, file->bytes + at, n);
    return (int64_t)n;
}

static int64_t sim_size(struct worker_files *files, const char *name)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    const struct sim_file *file = d ? sim_files_find(d, name) : NULL;
    return file ? (int64_t)file->len : d ? -ENOENT : -EIO;
}

static int sim_cut(struct worker_files *files, const char *name, uint64_t len)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    if (!d || fails(d, name))
        return -EIO;
    struct sim_file *file = sim_files_find(d, name);
    file = file ? file : make(d, name);
    if (d->room != UINT64_MAX && len < file->len)
        d->room += file->len - len;
    resize(file, (size_t)len);
    return 0;
}

static size_t length_of(struct sim_files *d, const char *name)
{
    LOCKED;
    const struct sim_file *file = sim_files_find(d, name);
    return file ? file->len : 0;
}

static int sim_sync(struct worker_files *files, const char *name)
{
    struct sim_files *d = directory_of(files);
    size_t len = d ? length_of(d, name) : 0;
    if (d && d->syncing)
        d->syncing(); // what is written meanwhile is not synced by this
    LOCKED;
    d = d && is_alive((struct handle *)files) ? d : NULL;
    struct sim_file *file = d ? sim_files_find(d, name) : NULL;
    if (!file)
        return d ? -ENOENT : -EIO;
    if (d->no_sync)
        return -EIO;
    len = len < file->len ? len : file->len;
    file->synced = file->synced > len ? file->synced : len;
    return 0;
}

static bool is_in(const char *name, const char *folder)
{
    size_t len = strlen(folder);
    return strcmp(folder, ".") == 0 ? name[0] && !strchr(name, '/')
                                    : strncmp(name, folder, len) == 0 && name[len] == '/';
}

static int sim_sync_folder(struct worker_files *files, const char *folder)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    size_t left = 0;
    if (!d)
        return -EIO;
    if (d->no_sync)
        return -EIO;
    for (size_t i = 0; i < d->n_changes; i++) {
        struct sim_change *change = &d->changes[i];
        if (is_in(change->from, folder) || is_in(change->to, folder))
            free(change->gone.bytes);
        else
            d->changes[left++] = *change;
    }
    d->n_changes = left;
    return 0;
}

// Takes it out of the directory.
static bool take(struct sim_files *d, const char *name, struct sim_file *out)
{
    struct sim_file *file = sim_files_find(d, name);
    if (!file)
        return false;
    *out = *file;
    *file = d->files[--d->n];
    return true;
}

static bool dies(struct sim_files *d)
{
    if (++d->moves == d->dies_at)
        sim_files_kill(d);
    return d->moves == d->dies_at;
}

static int sim_move(struct worker_files *files, const char *from, const char *to)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    struct sim_file moved, gone;
    if (!d || dies(d))
        return -EIO;
    if (!take(d, from, &moved))
        return -ENOENT;
    bool replaces = take(d, to, &gone);
    if (replaces && d->room != UINT64_MAX)
        d->room += gone.len;
    note_change(d, from, to, replaces ? &gone : NULL);
    snprintf(moved.name, sizeof moved.name, "%s", to);
    add_file(d, &moved);
    return 0;
}

static int sim_remove(struct worker_files *files, const char *name)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    struct sim_file gone;
    if (!d || dies(d))
        return -EIO;
    if (!take(d, name, &gone))
        return -ENOENT;
    if (d->room != UINT64_MAX)
        d->room += gone.len;
    note_change(d, name, "", &gone);
    return 0;
}

static int sim_list(struct worker_files *files, const char *folder, worker_files_fn each, void *arg)
{
    struct sim_files *d = directory_of(files);
    LOCKED;
    size_t len = strlen(folder);
    for (size_t i = 0; d && i < d->n; i++)
        if (strncmp(d->files[i].name, folder, len) == 0 && d->files[i].name[len] == '/' &&
            !each(arg, d->files[i].name + len + 1))
            break;
    return d ? 0 : -EIO;
}

static struct worker_files *sim_again(struct worker_files *files)
{
    return sim_files_open(((struct handle *)files)->directory);
}

static void sim_close(struct worker_files *files)
{
    free(files);
}

struct worker_files *sim_files_open(struct sim_files *d)
{
    static const struct worker_files_ops ops = {.write = sim_write,
                                                .read = sim_read,
                                                .size = sim_size,
                                                .cut = sim_cut,
                                                .sync = sim_sync,
                                                .sync_folder = sim_sync_folder,
                                                .move = sim_move,
                                                .remove = sim_remove,
                                                .list = sim_list,
                                                .again = sim_again,
                                                .close = sim_close};
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        abort();
    *handle = (struct handle){.base = {&ops}, .directory = d, .life = d->life};
    return &handle->base;
}

void sim_files_kill(struct sim_files *d)
{
    LOCKED;
    d->life++;
}

// A log that comes back beside its sealed file is the one that counts.
static void look_at_log(struct sim_files *d, const struct sim_file *log)
{
    char sealed[64];
    size_t len = strlen(log->name);
    if (len < 4 || len > sizeof sealed - 8 || strcmp(log->name + len - 4, ".log") != 0)
        return;
    snprintf(sealed, sizeof sealed, "%.*s.sealed", (int)len - 4, log->name);
    d->torn_again += sim_files_find(d, sealed) && log->synced < log->len;
}

static void take_back(struct sim_files *d, const struct sim_change *change)
{
    struct sim_file file;
    bool is = change->to[0] && take(d, change->to, &file);
    if (is && change->from[0]) {
        snprintf(file.name, sizeof file.name, "%s", change->from);
        add_file(d, &file);
    } else if (is) {
        free(file.bytes);
    }
    if (change->has_gone)
        look_at_log(d, add_file(d, &change->gone));
}

void sim_files_power(struct sim_files *d, uint64_t chance)
{
    enum { SECTOR = 512 };
    LOCKED;
    sim_files_kill(d);
    d->boots++;
    size_t stays = chance % 3 == 0 ? d->n_changes : (size_t)((chance >> 24) % (d->n_changes + 1));
    while (d->n_changes > stays)
        take_back(d, &d->changes[--d->n_changes]);
    while (d->n_changes > 0)
        free(d->changes[--d->n_changes].gone.bytes);
    for (size_t i = 0; i < d->n; i++) {
        struct sim_file *file = &d->files[i];
        size_t fresh = file->len - file->synced;
        chance = common_mix64(chance);
        if (!fresh)
            continue;
        size_t left = (size_t)((chance >> 8) % (fresh + 1));
        size_t at = (file->synced + (size_t)((chance >> 16) % fresh) + SECTOR - 1) / SECTOR * SECTOR;
        resize(file, file->synced + left);
        if (chance % 4 == 0 && at + SECTOR <= file->len) // written in another order
            memset(file->bytes + at, 0, SECTOR);
        file->synced = file->len;
    }
}

static bool is_data(const char *name)
{
    return is_in(name, "chunks") || is_in(name, "sessions");
}

bool sim_files_lose(struct sim_files *d, uint64_t chance)
{
    LOCKED;
    struct sim_file gone;
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++)
        n += is_data(d->files[i].name);
    for (size_t i = 0, left = n ? (size_t)(chance % n) : 0; n && i < d->n; i++)
        if (is_data(d->files[i].name) && left-- == 0 && take(d, d->files[i].name, &gone)) {
            free(gone.bytes);
            return true;
        }
    return false;
}

bool sim_files_flip(struct sim_files *d, const char *part, uint64_t chance)
{
    LOCKED;
    uint64_t bytes = 0;
    for (int round = 0; round < 2; round++) { // counts, then goes there
        uint64_t at = round && bytes ? chance % bytes : UINT64_MAX;
        for (size_t i = 0; i < d->n; i++) {
            struct sim_file *file = &d->files[i];
            if (!is_data(file->name) || !strstr(file->name, part))
                continue;
            if (round && at < file->len) {
                file->bytes[at] ^= (uint8_t)(1u << (chance >> 60) % 8);
                return true;
            }
            bytes += round ? 0 : file->len;
            at -= round ? file->len : 0;
        }
    }
    return false;
}
