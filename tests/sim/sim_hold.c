// SPDX-License-Identifier: Apache-2.0
// coordinator/store/hold_file.h on simulated disks: locks that all processes of the world see. A process that
// is killed gives its own back with its store (sim_store.c), as the kernel does.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/hold_file.h"
#include "tests/sim/sim_disk.h"

enum { LOCKS_MAX = 64 };

struct lock {
    char path[128], text[192];
    bool locked;
};

struct coordinator_hold_file {
    struct lock *lock;
    bool locked; // by this one
};

static struct lock locks[LOCKS_MAX];

void sim_holds_forget(void)
{
    memset(locks, 0, sizeof locks);
}

enum common_code coordinator_hold_file_open(const char *path, struct coordinator_hold_file **out,
                                            struct common_error *err)
{
    (void)err;
    struct lock *lock = locks;
    while (*lock->path && strcmp(lock->path, path) != 0)
        assert(++lock < locks + LOCKS_MAX);
    snprintf(lock->path, sizeof lock->path, "%s", path);
    struct coordinator_hold_file *file = calloc(1, sizeof *file);
    if (!file)
        abort();
    file->lock = lock;
    *out = file;
    return COMMON_OK;
}

enum common_code coordinator_hold_file_lock(struct coordinator_hold_file *file, struct common_error *err)
{
    (void)err;
    if (file->lock->locked)
        return COMMON_IN_PROGRESS;
    file->lock->locked = file->locked = true;
    return COMMON_OK;
}

bool coordinator_hold_file_named(const struct coordinator_hold_file *file)
{
    return file->lock != NULL;
}

void coordinator_hold_file_read(const struct coordinator_hold_file *file, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.*s", (int)strcspn(file->lock->text, "\n"), file->lock->text);
}

bool coordinator_hold_file_write(struct coordinator_hold_file *file, const char *text)
{
    snprintf(file->lock->text, sizeof file->lock->text, "%s", text);
    return true;
}

const char *coordinator_hold_file_network(const struct coordinator_hold_file *file)
{
    (void)file;
    return NULL;
}

void coordinator_hold_file_close(struct coordinator_hold_file *file)
{
    if (!file)
        return;
    if (file->locked)
        file->lock->locked = false;
    free(file);
}
