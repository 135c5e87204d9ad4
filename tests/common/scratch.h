// SPDX-License-Identifier: Apache-2.0
// A directory of the test's own, gone with scratch_remove.
#ifndef TESTS_COMMON_SCRATCH_H
#define TESTS_COMMON_SCRATCH_H

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct scratch {
    char dir[PATH_MAX / 2];
    char path[PATH_MAX]; // of the last scratch_path
};

static inline int scratch_init(struct scratch *s)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(s->dir, sizeof s->dir, "%s/banyan-test-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(s->dir) ? 0 : -1;
}

// Valid until the next call.
static inline const char *scratch_path(struct scratch *s, const char *name)
{
    snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    return s->path;
}

// Rewrites the file with this mode; returns its path, or NULL.
static inline const char *scratch_write(struct scratch *s, const char *name, const void *data, size_t len,
                                        mode_t mode)
{
    const char *path = scratch_path(s, name);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return NULL;
    bool good = write(fd, data, len) == (ssize_t)len && fchmod(fd, mode) == 0;
    close(fd);
    return good ? path : NULL;
}

static inline int scratch_count(struct scratch *s)
{
    int n = 0;
    DIR *dir = opendir(s->dir);
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return n;
}

static inline void scratch_remove(struct scratch *s)
{
    DIR *dir = opendir(s->dir);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlink(scratch_path(s, e->d_name));
    if (dir)
        closedir(dir);
    rmdir(s->dir);
}

#endif
