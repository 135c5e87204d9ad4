// SPDX-License-Identifier: Apache-2.0
// The journal's socket, and a stderr that is one or a pipe, apart from log.c: programs that must not reach a
// socket leave it out (tests/sim).
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/log/log_record.h"

static const char *_Atomic journal_path = COMMON_LOG_JOURNAL;
static _Atomic int journal = -1; // a socket; made once

// sd_journal_stream_fd(3) leaves "DEVICE:INODE" of what stderr is; a program in between may have put another
// there.
static bool stderr_is_the_journals(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat status;
    unsigned long long device, inode;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

// By its address each time: a journald that starts again has another socket there.
static bool tell(const char *bytes, size_t len)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", atomic_load(&journal_path));
    int fd = atomic_load_explicit(&journal, memory_order_relaxed);
    return fd >= 0 && sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&address,
                             sizeof address) == (ssize_t)len;
}

// A pipe that can be written has a free page, and a socket three quarters of its buffer: a line fits. Its
// O_NONBLOCK is no way: it belongs to other users of this stderr. Files and terminals are waited for.
static bool fits(void)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct stat status;
    bool has_reader =
        fstat(STDERR_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
    return !has_reader || poll(&out, 1, 0) > 0;
}

void common_log_set_journal(const char *path)
{
    atomic_store(&journal_path, path);
}

void common_log_set_format(enum common_log_format wanted)
{
    if (wanted == COMMON_LOG_JOURNALD && atomic_load(&journal) < 0 && stderr_is_the_journals())
        atomic_store(&journal, socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    common_log_set_form(wanted, tell, fits);
}
