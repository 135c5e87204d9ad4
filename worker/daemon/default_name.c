// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/default_name.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NAMES_MAX 4096

// An address without a file: the system gives it to one socket at a time, and takes it back when the
// process ends.
static socklen_t address_of(const char *host, const char *coordinator, unsigned n, struct sockaddr_un *out)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325); // FNV-1a
    const char *const parts[] = {host, coordinator};
    for (int i = 0; i < 2; i++) {
        for (const char *c = parts[i]; *c; c++)
            sum = (sum ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
        sum = (sum ^ 0xff) * UINT64_C(0x100000001b3); // "ab","c" is not "a","bc"
    }
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int len = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "banyan-worker/%lu/%016llx/%u",
                       (unsigned long)geteuid(), (unsigned long long)sum, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

void worker_default_name(const char *host, const char *coordinator, char *out, size_t bytes)
{
    static int held = -1; // for as long as the process lives
    struct sockaddr_un address;
    if (held >= 0)
        close(held);
    held = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (unsigned n = 0; held >= 0 && n < NAMES_MAX; n++) {
        socklen_t len = address_of(host, coordinator, n, &address);
        if (bind(held, (const void *)&address, len) == 0) {
            snprintf(out, bytes, "%.52s-%u", host, n);
            return;
        }
        if (errno != EADDRINUSE)
            break;
    }
    snprintf(out, bytes, "%.52s-%ld", host, (long)getpid()); // unique, though not the next time
}
