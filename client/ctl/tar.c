// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/tar.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 512

struct header { // of a member, in one block: octal numbers as text
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100], magic[6],
        version[2], user[32], group[32], major[8], minor[8], prefix[155], unused[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

static bool put(int fd, const void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const char *)data + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

bool ctl_tar_add(int fd, const char *name, const void *data, size_t len)
{
    static const char zeros[BLOCK];
    struct header h = {.mode = "0000600",
                       .uid = "0000000",
                       .gid = "0000000",
                       .type = '0',
                       .magic = "ustar",
                       .version = {'0', '0'}};
    unsigned sum = 0;
    snprintf(h.name, sizeof h.name, "%s", name);
    snprintf(h.size, sizeof h.size, "%011zo", len);
    snprintf(h.mtime, sizeof h.mtime, "%011llo", (unsigned long long)time(NULL));
    memset(h.sum, ' ', sizeof h.sum);
    for (size_t i = 0; i < sizeof h; i++)
        sum += ((const uint8_t *)&h)[i];
    snprintf(h.sum, sizeof h.sum, "%06o", sum); // its end, and a space
    return put(fd, &h, sizeof h) && put(fd, data, len) && put(fd, zeros, (BLOCK - len % BLOCK) % BLOCK);
}

bool ctl_tar_end(int fd)
{
    static const char zeros[2 * BLOCK];
    return put(fd, zeros, sizeof zeros);
}
