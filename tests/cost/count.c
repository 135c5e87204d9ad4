// SPDX-License-Identifier: Apache-2.0
// Counts what a process asks of the C library (count.h). Preloaded: the daemons are those that users have,
// and nothing is counted in them otherwise. Each function here does what the library's does, and adds to a
// number in a file that others map.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "proto/wire/frame.h"
#include "tests/cost/count.h"

// glibc leaves blocks that each thread keeps for itself, up to this size, as they are.
#define PERTURBED_FROM 1033

static struct cost_counts nowhere, *counts = &nowhere;
static bool perturbs;

static void add(uint64_t *to, uint64_t n)
{
    __atomic_fetch_add(to, n, __ATOMIC_RELAXED);
}

static void *original(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (!function)
        abort();
    return function;
}

// ---- bytes --------------------------------------------------------------------------------------
// Before the constructor has found the library's own functions, and in those that look for them, bytes go one
// by one.

static void *(*copies)(void *, const void *, size_t);
static void *(*moves)(void *, const void *, size_t);
static void *(*sets)(void *, int, size_t);

void *memmove(void *to, const void *from, size_t n)
{
    add(&counts->copied, n);
    if (moves)
        return moves(to, from, n);
    volatile uint8_t *t = to;
    const volatile uint8_t *f = from;
    bool down = (uintptr_t)to > (uintptr_t)from;
    for (size_t i = 0; i < n; i++)
        t[down ? n - 1 - i : i] = f[down ? n - 1 - i : i];
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    if (!copies)
        return memmove(to, from, n);
    add(&counts->copied, n);
    return copies(to, from, n);
}

// What went past the caches, where the program exports the number (common/memory/wipe.h): a call of
// explicit_bzero follows.
extern atomic_size_t common_wiped_past __attribute__((weak));

static void add_past(void)
{
    static atomic_size_t seen;
    if (!&common_wiped_past)
        return;
    size_t past = atomic_load(&common_wiped_past);
    add(&counts->wiped, past - atomic_exchange(&seen, past));
}

void *memset(void *to, int byte, size_t n)
{
    add(&counts->wiped, n);
    add_past();
    if (sets)
        return sets(to, byte, n);
    volatile uint8_t *t = to;
    for (size_t i = 0; i < n; i++)
        t[i] = (uint8_t)byte;
    return to;
}

void explicit_bzero(void *to, size_t n)
{
    memset(to, 0, n);
    __asm__ volatile("" : : "r"(to) : "memory");
}

// ---- the allocator ------------------------------------------------------------------------------

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void perturbed(size_t bytes)
{
    if (perturbs && bytes >= PERTURBED_FROM)
        add(&counts->wiped, bytes);
}

int mallopt(int what, int value)
{
    static int (*libc)(int, int);
    if (!libc)
        libc = (int (*)(int, int))original("mallopt");
    if (what == M_PERTURB)
        perturbs = value != 0;
    return libc(what, value);
}

void *malloc(size_t bytes)
{
    add(&counts->allocations, 1);
    perturbed(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t each)
{
    add(&counts->allocations, 1);
    add(&counts->wiped, n * each);
    return __libc_calloc(n, each);
}

void *realloc(void *block, size_t bytes)
{
    add(&counts->allocations, 1);
    perturbed(bytes);
    return __libc_realloc(block, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    add(&counts->allocations, 1);
    perturbed(bytes);
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    *out = memalign(align, bytes);
    return *out ? 0 : 12;
}

void free(void *block)
{
    if (block && perturbs)
        perturbed(malloc_usable_size(block));
    __libc_free(block);
}

// ---- system calls -------------------------------------------------------------------------------

#define CALL(counted, type, name, parameters, arguments)                                                     \
    type name parameters                                                                                     \
    {                                                                                                        \
        static type(*libc) parameters;                                                                       \
        if (!libc)                                                                                           \
            libc = (type(*) parameters)original(#name);                                                      \
        counted;                                                                                             \
        return libc arguments;                                                                               \
    }
#define ONE add(&counts->calls, 1)
#define MEM add(&counts->calls, 1), add(&counts->memory, 1)

static void count_frame(const void *bytes, size_t n)
{
    uint32_t magic;
    add(&counts->calls, 1);
    if (n < sizeof magic)
        return;
    __builtin_memcpy(&magic, bytes, sizeof magic);
    if (magic == PROTO_FRAME_MAGIC)
        add(&counts->messages, 1);
}

CALL(ONE, ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
CALL(ONE, ssize_t, readv, (int fd, const struct iovec *iov, int n), (fd, iov, n))
CALL(ONE, ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
CALL(ONE, ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at))
CALL(count_frame(from, n), ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
CALL(count_frame(iov->iov_base, iov->iov_len), ssize_t, writev, (int fd, const struct iovec *iov, int n),
     (fd, iov, n))
CALL(ONE, ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
CALL(ONE, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
CALL(count_frame(from, n), ssize_t, send, (int fd, const void *from, size_t n, int flags),
     (fd, from, n, flags))
CALL(count_frame(message->msg_iov->iov_base, message->msg_iov->iov_len), ssize_t, sendmsg,
     (int fd, const struct msghdr *message, int flags), (fd, message, flags))
CALL(ONE, int, epoll_wait, (int fd, struct epoll_event *out, int n, int ms), (fd, out, n, ms))
CALL(ONE, int, epoll_pwait2,
     (int fd, struct epoll_event *out, int n, const struct timespec *time, const sigset_t *mask),
     (fd, out, n, time, mask))
CALL(ONE, int, epoll_ctl, (int fd, int what, int of, struct epoll_event *event), (fd, what, of, event))
CALL(ONE, int, poll, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms))
CALL(ONE, int, timerfd_settime, (int fd, int flags, const struct itimerspec *to, struct itimerspec *was),
     (fd, flags, to, was))
CALL(ONE, int, getsockopt, (int fd, int level, int name, void *to, socklen_t *n), (fd, level, name, to, n))
CALL(ONE, int, setsockopt, (int fd, int level, int name, const void *from, socklen_t n),
     (fd, level, name, from, n))
CALL(ONE, int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left))
CALL(ONE, int, fsync, (int fd), (fd))
CALL(ONE, int, fdatasync, (int fd), (fd))
CALL(ONE, int, close, (int fd), (fd))
CALL(MEM, void *, mmap, (void *at, size_t n, int mode, int flags, int fd, off_t from),
     (at, n, mode, flags, fd, from))
CALL(MEM, int, munmap, (void *at, size_t n), (at, n))
CALL(MEM, int, mprotect, (void *at, size_t n, int mode), (at, n, mode))
CALL(MEM, int, madvise, (void *at, size_t n, int how), (at, n, how))

// ---- where it is seen ---------------------------------------------------------------------------

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    const char *folder = getenv(COST_FOLDER);
    void *memory = MAP_FAILED;
    moves = (void *(*)(void *, const void *, size_t))original("memmove");
    copies = (void *(*)(void *, const void *, size_t))original("memcpy");
    sets = (void *(*)(void *, int, size_t))original("memset");
    if (!folder || snprintf(path, sizeof path, "%s/%d", folder, (int)getpid()) >= (int)sizeof path)
        return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, sizeof *counts) == 0)
        memory = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (memory != MAP_FAILED)
        counts = memory;
}
