// SPDX-License-Identifier: Apache-2.0
// The filter as a program of classic BPF, which the kernel runs for each system call over struct
// seccomp_data. Calls that are always allowed cost next to nothing from Linux 5.11 on: the kernel keeps a
// bitmap of them.
//
//     another architecture's call?  ── ends the process
//     for each entry of the table:  its number? ── its verdict, or a check of one argument and a verdict
//     the rest                      ── ENOSYS, as on a kernel without that call: libraries are written for that
#include "common/secure/harden.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCH      AUDIT_ARCH_X86_64
#define FOREIGN_0 0x40000000u // x32 calls have the same architecture, and this bit
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif
#ifndef FOREIGN_0
#define FOREIGN_0 UINT32_MAX
#endif

struct program {
    struct sock_filter *out;
    size_t n;
};

static void put(struct program *p, uint16_t code, uint32_t k, uint8_t yes, uint8_t no)
{
    if (p->n < COMMON_HARDEN_PROGRAM)
        p->out[p->n] = (struct sock_filter){.code = code, .k = k, .jt = yes, .jf = no};
    p->n++; // too many: the caller sees it
}

static void put_return(struct program *p, uint32_t action)
{
    put(p, BPF_RET | BPF_K, action, 0, 0);
}

static void put_load(struct program *p, size_t offset)
{
    put(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

// How an argument's low half, the one that the kernel looks at for these, decides. `then` is what it gets
// that is not good.
enum check { ONE_OF, NONE_OF, MASK_NOT_ALL, MASK_ALL };
struct rule {
    uint32_t call;
    uint8_t argument;
    enum check check;
    uint32_t n, values[10];
    uint32_t then;
};

static size_t rules_of(uint32_t pid, uint32_t end, const struct rule **out)
{
    static struct rule rules[16];
    size_t n = 0;
#define ERRNO(code) (SECCOMP_RET_ERRNO | (code))
    const struct rule all[] = {
        {__NR_socket, 0, ONE_OF, 4, {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}, ERRNO(EAFNOSUPPORT)},
        // Bytes that a terminal or the console takes as typed.
        {__NR_ioctl, 1, NONE_OF, 2, {TIOCSTI, 0x541C /* TIOCLINUX */}, end},
        {__NR_mmap, 2, MASK_NOT_ALL, 1, {PROT_WRITE | PROT_EXEC}, ERRNO(EACCES)},
        {__NR_mprotect, 2, MASK_NOT_ALL, 1, {PROT_EXEC}, ERRNO(EACCES)},
        // A thread, and no process. clone3, whose flags are in memory, fails: libraries go on with clone
        // then.
        {__NR_clone, 0, MASK_ALL, 1, {CLONE_VM | CLONE_THREAD | CLONE_SIGHAND}, end},
        // The handler that says what ended the process cannot be removed.
        {__NR_rt_sigaction, 0, NONE_OF, 1, {SIGSYS}, ERRNO(EPERM)},
        {__NR_tgkill, 0, ONE_OF, 1, {pid}, end},
        {__NR_kill, 0, ONE_OF, 1, {pid}, end},
        {__NR_prlimit64, 0, ONE_OF, 2, {0, pid}, ERRNO(EPERM)},
        {__NR_prctl,
         0,
         ONE_OF,
         9,
         {PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_SET_VMA, PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS,
          PR_SET_NO_NEW_PRIVS, PR_GET_TIMERSLACK, PR_SET_TIMERSLACK},
         ERRNO(EINVAL)},
    };
#undef ERRNO
    for (; n < sizeof all / sizeof *all; n++)
        rules[n] = all[n];
    *out = rules;
    return n;
}

static void put_rule(struct program *p, const struct rule *rule)
{
    put_load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)rule->argument);
    if (rule->check == MASK_NOT_ALL || rule->check == MASK_ALL) {
        bool needed = rule->check == MASK_ALL;
        put(p, BPF_ALU | BPF_AND | BPF_K, rule->values[0], 0, 0);
        put(p, BPF_JMP | BPF_JEQ | BPF_K, rule->values[0], 0, 1);
        put_return(p, needed ? SECCOMP_RET_ALLOW : rule->then);
        put_return(p, needed ? rule->then : SECCOMP_RET_ALLOW);
        return;
    }
    for (uint32_t i = 0; i < rule->n; i++) {
        put(p, BPF_JMP | BPF_JEQ | BPF_K, rule->values[i], 0, 1);
        put_return(p, rule->check == ONE_OF ? SECCOMP_RET_ALLOW : rule->then);
    }
    put_return(p, rule->check == ONE_OF ? rule->then : SECCOMP_RET_ALLOW);
}

// A verdict behind a comparison with the call's number, which is loaded and stays so for the next.
static void put_checked(struct program *p, const struct rule *rules, size_t n, uint32_t call)
{
    for (size_t i = 0; i < n; i++) {
        if (rules[i].call != call)
            continue;
        size_t at = p->n;
        put(p, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 0);
        put_rule(p, &rules[i]);
        if (at < COMMON_HARDEN_PROGRAM)
            p->out[at].jf = (uint8_t)(p->n - at - 1);
    }
}

static bool is_allowed(const struct common_call *call, enum common_harden_set set)
{
    if (set == COMMON_HARDEN_MODULES)
        return call->verdict != COMMON_CALL_HOSTILE;
    return call->verdict == COMMON_CALL_ALLOWED && (!call->placed || set == COMMON_HARDEN_PLACED);
}

size_t common_harden_program(const struct common_harden *harden, uint32_t pid, struct sock_filter *out)
{
    struct program p = {.out = out};
    bool log = harden->seccomp == COMMON_SECCOMP_LOG;
    // TRAP: the call does not happen, and the handler of harden.c says so and ends the process.
    uint32_t end = log ? SECCOMP_RET_LOG : SECCOMP_RET_TRAP;
    uint32_t rest = log ? SECCOMP_RET_LOG : SECCOMP_RET_ERRNO | ENOSYS;
    const struct rule *rules;
    size_t n_calls, n_rules = rules_of(pid, end, &rules);
    const struct common_call *calls = common_harden_calls(&n_calls);
    put_load(&p, offsetof(struct seccomp_data, arch));
    put(&p, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    put_return(&p, log ? SECCOMP_RET_LOG : SECCOMP_RET_KILL_PROCESS);
    put_load(&p, offsetof(struct seccomp_data, nr));
    if (FOREIGN_0 != UINT32_MAX) {
        put(&p, BPF_JMP | BPF_JGE | BPF_K, FOREIGN_0, 0, 1);
        put_return(&p, log ? SECCOMP_RET_LOG : SECCOMP_RET_KILL_PROCESS);
    }
    for (size_t i = 0; i < n_calls; i++) {
        const struct common_call *call = &calls[i];
        if (call->verdict == COMMON_CALL_CHECKED && harden->set != COMMON_HARDEN_MODULES) {
            put_checked(&p, rules, n_rules, call->number);
            continue;
        }
        put(&p, BPF_JMP | BPF_JEQ | BPF_K, call->number, 0, 1);
        put_return(&p, is_allowed(call, harden->set)          ? SECCOMP_RET_ALLOW
                       : call->verdict == COMMON_CALL_ALLOWED ? rest
                                                              : end);
    }
    put_return(&p, harden->set == COMMON_HARDEN_MODULES ? SECCOMP_RET_ALLOW : rest);
    return p.n;
}
