// SPDX-License-Identifier: Apache-2.0
// The system calls of the filter. Found with strace over the end-to-end tests (docs/operating/hardening.md
// says how), and, where "reserve" stands, from what the libraries use in other circumstances: another kernel,
// another file system, less memory.
#include "common/secure/harden.h"

#include <sys/syscall.h>

// clang-format off
#define ALLOW(call)  {__NR_##call, #call, COMMON_CALL_ALLOWED, false}
#define PLACED(call) {__NR_##call, #call, COMMON_CALL_ALLOWED, true}
#define CHECK(call)  {__NR_##call, #call, COMMON_CALL_CHECKED, false}
#define KILL(call)   {__NR_##call, #call, COMMON_CALL_HOSTILE, false}
#define MODULES(call) {__NR_##call, #call, COMMON_CALL_MODULES, false}

static const struct common_call calls[] = {
    // Bytes: descriptors of sockets, files, pipes.
    ALLOW(read), ALLOW(write), ALLOW(readv), ALLOW(writev), ALLOW(pread64), ALLOW(pwrite64), ALLOW(close), ALLOW(lseek),
    ALLOW(preadv), ALLOW(pwritev), ALLOW(dup), ALLOW(dup3), ALLOW(sendfile), // reserve: libevent's, SQLite's
    ALLOW(fcntl),
    // The loop, nng's pollers, timers, wake-ups.
    ALLOW(epoll_create1), ALLOW(epoll_ctl), ALLOW(epoll_pwait), ALLOW(ppoll), ALLOW(eventfd2), ALLOW(pipe2),
    ALLOW(pselect6), ALLOW(epoll_pwait2), // reserve: the resolver's, a newer libevent's
    ALLOW(timerfd_create), ALLOW(timerfd_settime), ALLOW(timerfd_gettime),
    // Links, nng, HTTP, the resolver (netlink: which families there are), systemd's notify socket.
    CHECK(socket), ALLOW(socketpair), ALLOW(bind), ALLOW(listen), ALLOW(accept4), ALLOW(accept), ALLOW(connect),
    ALLOW(getsockname), ALLOW(getpeername), ALLOW(getsockopt), ALLOW(setsockopt), ALLOW(sendto), ALLOW(recvfrom),
    ALLOW(sendmsg), ALLOW(recvmsg), ALLOW(sendmmsg), ALLOW(shutdown),
    CHECK(ioctl),
    // Files: the stores, ready files, keys, reload, backups, /proc for metrics, the resolver's configuration.
    ALLOW(openat), ALLOW(newfstatat), ALLOW(fstat), ALLOW(statx), ALLOW(faccessat), ALLOW(faccessat2), ALLOW(readlinkat),
    ALLOW(getdents64), ALLOW(renameat), ALLOW(renameat2), ALLOW(linkat), ALLOW(unlinkat), ALLOW(mkdirat), ALLOW(getcwd),
    ALLOW(ftruncate), ALLOW(fallocate), ALLOW(fsync), ALLOW(fdatasync), ALLOW(sync_file_range), ALLOW(flock),
    ALLOW(fadvise64), ALLOW(copy_file_range), ALLOW(fchmod), ALLOW(fchmodat), ALLOW(umask), ALLOW(statfs), ALLOW(fstatfs),
    ALLOW(fchown), // SQLite's, as root: its journal is the store's owner's
    ALLOW(utimensat),
    // Memory. What is executable stays what the linker maps (CHECK: never writable as well).
    CHECK(mmap), CHECK(mprotect), ALLOW(munmap), ALLOW(mremap), ALLOW(madvise), ALLOW(brk),
    PLACED(mbind), PLACED(set_mempolicy), PLACED(get_mempolicy), // --numa
    // Threads of this process, and their time.
    CHECK(clone), ALLOW(futex), ALLOW(set_robust_list), ALLOW(get_robust_list), ALLOW(rseq), ALLOW(set_tid_address),
    ALLOW(gettid), ALLOW(exit), ALLOW(exit_group), ALLOW(sched_yield), ALLOW(sched_getaffinity), ALLOW(sched_getparam),
    ALLOW(sched_getscheduler), PLACED(sched_setaffinity), ALLOW(membarrier), ALLOW(getcpu), ALLOW(restart_syscall),
    ALLOW(clock_gettime), ALLOW(clock_getres), ALLOW(clock_nanosleep), ALLOW(nanosleep), ALLOW(gettimeofday), ALLOW(times),
    // Signals: its own alone.
    CHECK(rt_sigaction), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(rt_sigpending), ALLOW(sigaltstack),
    CHECK(tgkill), CHECK(kill),
    // What it is, and what it has.
    ALLOW(getpid), ALLOW(getppid), ALLOW(getuid), ALLOW(geteuid), ALLOW(getgid), ALLOW(getegid), ALLOW(getgroups),
    ALLOW(uname), ALLOW(sysinfo), ALLOW(getrusage), ALLOW(getrandom), CHECK(prlimit64), CHECK(prctl), ALLOW(getrlimit),
#ifdef __x86_64__ // calls that younger architectures do without
    ALLOW(open), ALLOW(stat), ALLOW(lstat), ALLOW(access), ALLOW(readlink), ALLOW(rename), ALLOW(link), ALLOW(unlink),
    ALLOW(mkdir), ALLOW(rmdir), ALLOW(chmod), ALLOW(poll), ALLOW(select), ALLOW(epoll_wait), ALLOW(epoll_create), ALLOW(pipe),
    ALLOW(eventfd), ALLOW(dup2), ALLOW(time),
    ALLOW(arch_prctl), // AMX has to be asked for (kernels/cpu.c)
    MODULES(fork), MODULES(vfork), KILL(iopl), KILL(ioperm), KILL(modify_ldt),
#endif

    // Other programs, and other processes' memory. A daemon starts none.
    MODULES(execve), MODULES(execveat), KILL(ptrace), MODULES(process_vm_readv), MODULES(process_vm_writev),
    MODULES(kcmp), MODULES(pidfd_open), MODULES(pidfd_getfd), KILL(pidfd_send_signal), KILL(process_madvise),
    MODULES(process_mrelease), KILL(rt_tgsigqueueinfo), KILL(rt_sigqueueinfo), KILL(tkill),
    // The kernel's inside.
    KILL(bpf), KILL(kexec_load), KILL(init_module), KILL(finit_module), KILL(delete_module), MODULES(perf_event_open),
    MODULES(userfaultfd), KILL(syslog), KILL(reboot), KILL(swapon), KILL(swapoff), KILL(acct), KILL(quotactl),
    KILL(quotactl_fd),
    // Keys of the kernel's.
    KILL(keyctl), KILL(add_key), KILL(request_key),
    // File systems, namespaces, the clock, the machine's name.
    KILL(mount), KILL(umount2), KILL(pivot_root), KILL(chroot), KILL(move_mount), KILL(open_tree), KILL(fsopen),
    KILL(fsconfig), KILL(fsmount), KILL(fspick), KILL(mount_setattr), KILL(unshare), KILL(setns), KILL(open_by_handle_at),
    KILL(name_to_handle_at), KILL(fanotify_init), KILL(fanotify_mark), KILL(settimeofday), KILL(clock_settime),
    KILL(clock_adjtime), KILL(adjtimex), KILL(sethostname), KILL(setdomainname), KILL(vhangup),
    // Who it is.
    KILL(setuid), KILL(setgid), KILL(setreuid), KILL(setregid), KILL(setresuid), KILL(setresgid), KILL(setfsuid),
    KILL(setfsgid), KILL(setgroups), KILL(capset), KILL(personality),
};
// clang-format on

const struct common_call *common_harden_calls(size_t *n)
{
    *n = sizeof calls / sizeof *calls;
    return calls;
}

const char *common_harden_call_name(uint32_t number)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (calls[i].number == number)
            return calls[i].name;
    return "a call";
}
