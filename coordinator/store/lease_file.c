// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/lease_file.h"

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

#include "common/hash.h"

#define MAGIC  UINT64_C(0x626e796e6c656173)
#define SECTOR 512

struct coordinator_lease_file {
    int fd;
    uint64_t boot;
};

struct sector { // little-endian machines alone share a file: it does not leave its machine
    uint64_t magic, slot, owner, number, flags, pid, boot, sum;
};

static uint64_t sum_of(const struct sector *s)
{
    return common_xxh3(s, offsetof(struct sector, sum), MAGIC);
}

uint64_t coordinator_lease_file_boot(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    return common_xxh3(text, n, MAGIC);
}

// File systems of one machine, where a write is seen by the next read and locks hold.
static bool is_local(int fd)
{
    static const unsigned long local[] = {
        0xef53 /* ext */,       0x58465342 /* xfs */,   0x9123683e /* btrfs */,
        0x01021994 /* tmpfs */, 0x858458f6 /* ramfs */, 0x794c7630 /* overlayfs */,
        0x2fc12fc1 /* zfs */,   0xf2f52010 /* f2fs */,  0xca451a4e /* bcachefs */};
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return false;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (((unsigned long)fs.f_type & 0xffffffffUL) == local[i])
            return true;
    return false;
}

enum common_code coordinator_lease_file_open(const char *store_path, bool shared,
                                             struct coordinator_lease_file **out, struct common_error *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s-lease", store_path) >= (int)sizeof path)
        return common_error_set(err, COMMON_UNAVAILABLE, "the path of the store is too long");
    struct coordinator_lease_file *file = calloc(1, sizeof *file);
    if (!file)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    file->boot = coordinator_lease_file_boot();
    file->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file->fd < 0) {
        common_error_set(err, COMMON_UNAVAILABLE, "%s cannot be made or opened: %s", path, strerror(errno));
        free(file);
        return COMMON_UNAVAILABLE;
    }
    if (shared && !is_local(file->fd)) {
        coordinator_lease_file_close(file);
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "--standby: %s is not on a file system that is known to be of one machine "
                                "(ext4, xfs, btrfs, tmpfs, zfs, …): put the store on one",
                                store_path);
    }
    *out = file;
    return COMMON_OK;
}

void coordinator_lease_file_close(struct coordinator_lease_file *file)
{
    if (!file)
        return;
    close(file->fd);
    free(file);
}

bool coordinator_lease_file_read(const struct coordinator_lease_file *file, enum coordinator_lease_slot slot,
                                 struct coordinator_lease_record *out)
{
    struct sector s;
    for (int i = 0; i < 3; i++) { // one that is being written may be seen in halves
        if (pread(file->fd, &s, sizeof s, (off_t)slot * SECTOR) != sizeof s)
            return false;
        if (s.magic == MAGIC && s.slot == slot && s.sum == sum_of(&s)) {
            *out = (struct coordinator_lease_record){
                .owner = s.owner, .number = s.number, .flags = s.flags, .pid = s.pid, .boot = s.boot};
            return true;
        }
    }
    return false;
}

bool coordinator_lease_file_write(struct coordinator_lease_file *file, enum coordinator_lease_slot slot,
                                  const struct coordinator_lease_record *record, bool durable)
{
    struct sector s = {.magic = MAGIC,
                       .slot = slot,
                       .owner = record->owner,
                       .number = record->number,
                       .flags = record->flags,
                       .pid = (uint64_t)getpid(),
                       .boot = file->boot};
    s.sum = sum_of(&s);
    return pwrite(file->fd, &s, sizeof s, (off_t)slot * SECTOR) == sizeof s &&
           (!durable || fdatasync(file->fd) == 0);
}

bool coordinator_lease_file_lock(struct coordinator_lease_file *file)
{
    return flock(file->fd, LOCK_EX | LOCK_NB) == 0;
}

void coordinator_lease_file_unlock(struct coordinator_lease_file *file)
{
    (void)flock(file->fd, LOCK_UN);
}
