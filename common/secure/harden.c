// SPDX-License-Identifier: Apache-2.0
#include "common/secure/harden.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    const char *before, *after; // the line, around the call's name
    const char *program;
} told;

// core(5): a pattern that names a program is not held by a limit of 0, but by 1; and no file is as small as
// that.
static void limit_cores(rlim_t soft)
{
    const struct rlimit limit = {soft, 1};
    (void)setrlimit(RLIMIT_CORE, &limit); // fails where the hard limit is 0
}

void common_harden_keys(bool core_dumps)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0,
          0); // threads that are made from here on inherit it; again when it enters
    if (core_dumps)
        return;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    limit_cores(0);
}

void common_harden_share(bool core_dumps)
{
    if (core_dumps)
        return;
    limit_cores(1);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

// ---- the line ------------------------------------------------------------------------------------------

// The number and what is known of it, without anything that takes a lock: the call may come from anywhere.
static size_t append(char *line, size_t n, size_t cap, const char *text)
{
    size_t len = strlen(text);
    if (len > cap - n)
        len = cap - n;
    memcpy(line + n, text, len);
    return n + len;
}

static void on_refused(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    char line[512];
    size_t n = append(line, 0, sizeof line, told.before);
    n = append(line, n, sizeof line, common_harden_call_name((uint32_t)info->si_syscall));
    n = append(line, n, sizeof line, told.after);
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
    // SA_RESETHAND has taken this handler away, and the filter allows no other.
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGSYS);
    _exit(128 + SIGSYS);
}

#define WHY                                                                                                  \
    ", which no daemon needs: the call was blocked and this process ends. It may have been taken "           \
    "over, or a library needs --seccomp=off"

static void set_line(const struct common_harden *harden)
{
    static char before[160];
    const char *begin = harden->format == COMMON_LOG_JSON ? "{\"level\":\"error\",\"program\":\"" : "ERROR ";
    const char *middle = harden->format == COMMON_LOG_JSON ? "\",\"message\":\"" : ": ";
    if (harden->format == COMMON_LOG_JOURNALD)
        snprintf(before, sizeof before, "<3>seccomp: refused call=");
    else
        snprintf(before, sizeof before, "%s%.64s%sseccomp: refused call=", begin, harden->program, middle);
    told.before = before;
    told.after = harden->format == COMMON_LOG_JSON ? WHY "\"}\n" : WHY "\n";
}

// ---- entering ------------------------------------------------------------------------------------------

static enum common_code enter_filter(const struct common_harden *harden, struct common_error *err)
{
    struct sock_filter code[COMMON_HARDEN_PROGRAM];
    size_t n = common_harden_program(harden, (uint32_t)getpid(), code);
    if (n > COMMON_HARDEN_PROGRAM)
        return common_error_set(err, COMMON_INTERNAL, "the filter of system calls is too long");
    const struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    struct sigaction action = {.sa_sigaction = on_refused,
                               .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_NODEFER};
    set_line(harden);
    if (sigaction(SIGSYS, &action, NULL) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
        return common_error_set(
            err, COMMON_FAILED_PRECONDITION,
            "the system rejects the filter of system calls: %s; --seccomp=off starts without it",
            strerror(errno));
    return COMMON_OK;
}

enum common_code common_harden_enter(const struct common_harden *harden, struct common_error *err)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "cannot give up new privileges: %s",
                                strerror(errno));
    if (harden->seccomp == COMMON_SECCOMP_OFF || COMMON_HARDEN_SANITIZED)
        return COMMON_OK;
    return enter_filter(harden, err);
}
