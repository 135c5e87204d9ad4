// SPDX-License-Identifier: Apache-2.0
// Preloaded into a coordinator: while the file BANYAN_TEST_FULL is there, the disk of its store is full.
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static bool is_full(int fd)
{
    const char *flag = getenv("BANYAN_TEST_FULL");
    char link[64], path[4096];
    if (!flag || access(flag, F_OK) != 0)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return false;
    path[n] = '\0';
    return strstr(path, "store.db") != NULL;
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t at)
{
    if (is_full(fd)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, len, at);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at)
{
    return pwrite64(fd, data, len, at);
}
