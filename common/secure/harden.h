// SPDX-License-Identifier: Apache-2.0
// What a daemon gives up once it has all that it needs: dumps of its memory, new privileges, and the system
// calls that it has no use for. docs/operating/hardening.md. Linux on x86-64 and aarch64; elsewhere there is
// no filter.
#ifndef COMMON_HARDEN_H
#define COMMON_HARDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/log/log.h"

enum common_seccomp {
    COMMON_SECCOMP_ENFORCE, // what the filter does not allow fails, or ends the process
    COMMON_SECCOMP_LOG,     // it happens, with a line of the kernel's log (type=1326) for each
    COMMON_SECCOMP_OFF,
};

// Sanitizers need calls that no daemon has a use for (LeakSanitizer: ptrace, clone), so their builds have no
// filter.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COMMON_HARDEN_SANITIZED true
#else
#define COMMON_HARDEN_SANITIZED false
#endif

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define COMMON_HARDEN_FILTER true
#else
#define COMMON_HARDEN_FILTER false
#endif

enum common_harden_set { // of calls that are allowed
    COMMON_HARDEN_PLAIN,
    COMMON_HARDEN_PLACED, // and those that bind threads to cores and memory to nodes
    // Libraries whose calls cannot be listed run in this process (CUDA, NCCL, MPI): what is not known to be
    // hostile is allowed, and they may start programs.
    COMMON_HARDEN_MODULES,
};

struct common_harden {
    enum common_seccomp seccomp;
    enum common_harden_set set;
    enum common_log_format format; // of the line that a call gets which ends the process
    const char *program;           // likewise; kept
};

// Before keys are read: no new privileges, no core dumps, and no other process of this user reads this one's
// memory, unless core_dumps. PR_SET_DUMPABLE 0 makes /proc/PID root's; the process itself reads its own all
// the same. Main thread.
void common_harden_keys(bool core_dumps);
// For libraries that read the memory of processes of their own kind (MPI between workers of a host): others
// of this user may again. Dumps stay off: a limit of one byte stops those to files and those to a program
// alike.
void common_harden_share(bool core_dumps);

// When all modules are loaded, before anything is served: no new privileges, and the filter, for all threads
// that there are and will be. For good. Threads may run. FAILED_PRECONDITION: the system has no such filter,
// or does not let us.
enum common_code common_harden_enter(const struct common_harden *harden, struct common_error *err);

// ---- what the filter says, for it and for tests ----------------------------------------------------------

enum common_call_verdict {
    COMMON_CALL_ALLOWED,
    COMMON_CALL_CHECKED, // by its arguments (harden_filter.c)
    COMMON_CALL_HOSTILE, // ends the process
    COMMON_CALL_MODULES, // the same, but modules may
};

struct common_call { // what is in no entry fails with ENOSYS
    uint32_t number;
    const char *name;
    enum common_call_verdict verdict;
    bool placed; // of COMMON_HARDEN_PLACED and above alone
};

const struct common_call *common_harden_calls(size_t *n); // each number once
const char *common_harden_call_name(uint32_t number);     // "a call": it is in no entry

// The program. pid: whose signals and limits may be set.
#define COMMON_HARDEN_PROGRAM 1024 // instructions at most
struct sock_filter;                // <linux/filter.h>
size_t common_harden_program(const struct common_harden *harden, uint32_t pid, struct sock_filter *out);

#endif
