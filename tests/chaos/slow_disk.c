// SPDX-License-Identifier: Apache-2.0
// Preloaded into the daemons of a chaos run: syncs and writes of the coordinator's store take as long as the
// file that BANYAN_SLOW_DISK names says ("sync_ms write_ms"). While there is no such file, they take as long
// as they take. A library that is preloaded, because nothing else makes one disk slow for one process without
// root.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int fsync(int fd);
int fdatasync(int fd);

static void wait_for_disk(int sync)
{
    const char *path = getenv("BANYAN_SLOW_DISK");
    char text[48] = "";
    if (!path || strncmp(program_invocation_short_name, "banyan-coordina", 15) != 0)
        return;
    int kept = errno, fd = open(path, O_RDONLY | O_CLOEXEC);
    long ms[2] = {0, 0};
    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        if (n > 0 && sscanf(text, "%ld %ld", &ms[0], &ms[1]) == 2)
            nanosleep(&(struct timespec){.tv_sec = ms[!sync] / 1000, .tv_nsec = ms[!sync] % 1000 * 1000000},
                      NULL);
    }
    errno = kept;
}

static void *next_of(const char *name)
{
    void *next = dlsym(RTLD_NEXT, name);
    if (!next)
        abort();
    return next;
}

int fsync(int fd)
{
    wait_for_disk(1);
    return ((int (*)(int))next_of("fsync"))(fd);
}

int fdatasync(int fd)
{
    wait_for_disk(1);
    return ((int (*)(int))next_of("fdatasync"))(fd);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    wait_for_disk(0);
    return ((ssize_t(*)(int, const void *, size_t, off64_t))next_of("pwrite64"))(fd, bytes, n, at);
}
