// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/hold_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

struct coordinator_hold_file {
    int fd;
    char path[PATH_MAX];
};

enum common_code coordinator_hold_file_open(const char *path, struct coordinator_hold_file **out,
                                            struct common_error *err)
{
    struct coordinator_hold_file *file = calloc(1, sizeof *file);
    if (!file)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    snprintf(file->path, sizeof file->path, "%s", path);
    file->fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file->fd < 0) {
        common_error_set(err, COMMON_UNAVAILABLE, "%s cannot be created or opened: %s", path,
                         strerror(errno));
        free(file);
        return COMMON_UNAVAILABLE;
    }
    *out = file;
    return COMMON_OK;
}

enum common_code coordinator_hold_file_lock(struct coordinator_hold_file *file, struct common_error *err)
{
    while (flock(file->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return COMMON_IN_PROGRESS;
        if (errno != EINTR)
            return common_error_set(
                err, COMMON_UNAVAILABLE,
                "%s cannot be locked: %s: put the store on a file system that supports locks", file->path,
                strerror(errno));
    }
    return COMMON_OK;
}

bool coordinator_hold_file_named(const struct coordinator_hold_file *file)
{
    struct stat ours, named;
    return fstat(file->fd, &ours) == 0 && lstat(file->path, &named) == 0 && ours.st_dev == named.st_dev &&
           ours.st_ino == named.st_ino;
}

void coordinator_hold_file_read(const struct coordinator_hold_file *file, char *text, size_t bytes)
{
    ssize_t n = pread(file->fd, text, bytes - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

bool coordinator_hold_file_write(struct coordinator_hold_file *file, const char *text)
{
    size_t len = strlen(text);
    return ftruncate(file->fd, 0) == 0 && pwrite(file->fd, text, len, 0) == (ssize_t)len;
}

const char *coordinator_hold_file_network(const struct coordinator_hold_file *file)
{
    static const struct {
        unsigned long magic; // linux/magic.h, and the file systems' own headers
        const char *name;
    } kinds[] = {{0x6969, "NFS"},        {0xff534d42, "CIFS"},  {0xfe534d42, "SMB"},  {0x517b, "SMB"},
                 {0x00c36400, "Ceph"},   {0x65735546, "FUSE"},  {0x01021997, "9p"},   {0x0bd00bd0, "Lustre"},
                 {0x47504653, "GPFS"},   {0x7461636f, "OCFS2"}, {0x01161970, "GFS2"}, {0x5346414f, "AFS"},
                 {0x786f4256, "vboxsf"}, {0x19830326, "BeeGFS"}};
    struct statfs fs;
    for (size_t i = 0; fstatfs(file->fd, &fs) == 0 && i < sizeof kinds / sizeof *kinds; i++)
        if (((unsigned long)fs.f_type & 0xffffffffUL) == kinds[i].magic)
            return kinds[i].name;
    return NULL;
}

void coordinator_hold_file_close(struct coordinator_hold_file *file)
{
    if (!file)
        return;
    close(file->fd);
    free(file);
}
