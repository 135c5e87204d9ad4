// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/leftover.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log/log.h"

static void name_copies(const char *path)
{
    static const char *const suffixes[] = {"-taking", "-taking-wal"};
    char name[PATH_MAX];
    struct stat st;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (snprintf(name, sizeof name, "%s%s", path, suffixes[i]) < (int)sizeof name &&
            lstat(name, &st) == 0)
            common_log_warn(
                "a takeover by an earlier version has left a copy of the store, which is not used: "
                "remove it file=%s bytes=%lld",
                name, (long long)st.st_size);
}

// A lease in the sense of fcntl(2): the kernel grants one for writing only while no other process has the
// file open. Where the file system has none, it had no coordinators with --standby either, which it takes to
// have two.
static bool is_open_elsewhere(int fd)
{
    if (fcntl(fd, F_SETLEASE, F_WRLCK) != 0)
        return errno == EAGAIN || errno == EBUSY;
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    return false;
}

enum common_code coordinator_leftover_look(const char *path, int *out, struct common_error *err)
{
    char name[PATH_MAX];
    *out = -1;
    name_copies(path);
    if (snprintf(name, sizeof name, "%s-lease", path) >= (int)sizeof name)
        return COMMON_OK; // then there is none
    int fd = open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return COMMON_OK;
    if (fd < 0)
        return common_error_set(err, COMMON_UNAVAILABLE, "%s of an earlier version cannot be opened: %s",
                                name, strerror(errno));
    if (is_open_elsewhere(fd) || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "a coordinator of an earlier version still runs, or is stopped, on store %s: "
                                "'fuser %s' names it; stop it first",
                                path, name);
    }
    *out = fd;
    return COMMON_OK;
}

void coordinator_leftover_void(int fd)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0)
        return;
    if (ftruncate(fd, 0) == 0)
        common_log_info(
            "the lease of an earlier version beside the store is no longer used: its file may be removed");
}
