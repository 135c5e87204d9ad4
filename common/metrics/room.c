// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/room.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

// Descriptors are given out from the lowest on, so that the next one says how many there are, but for gaps.
static void look_at_files(struct common_room *out)
{
    struct rlimit limit;
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        limit.rlim_cur = 0;
    out->files_max = limit.rlim_cur;
    out->files = next >= 0 ? (uint64_t)next : limit.rlim_cur;
    if (next >= 0)
        close(next);
}

static void look_at_memory(struct common_room *out)
{
    char line[128];
    unsigned long long kib;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemTotal: %llu", &kib) == 1)
            out->memory_bytes = kib * 1024;
        else if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            out->memory_available_bytes = kib * 1024;
    }
    if (file)
        fclose(file);
}

static void look_at_disk(const char *path, struct common_room *out)
{
    char folder[PATH_MAX];
    struct statvfs disk;
    if (!path || snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return;
    while (statvfs(folder, &disk) != 0) {
        char *slash = strrchr(folder, '/');
        if (!slash || slash == folder) {
            strcpy(folder, slash ? "/" : ".");
            if (statvfs(folder, &disk) != 0)
                return;
            break;
        }
        *slash = '\0';
    }
    out->disk_bytes = (uint64_t)disk.f_blocks * disk.f_frsize;
    out->disk_free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
}

void common_room_look(const char *path, struct common_room *out)
{
    *out = (struct common_room){0};
    look_at_files(out);
    look_at_memory(out);
    look_at_disk(path, out);
}
