// SPDX-License-Identifier: Apache-2.0
// The filter in processes of its own: what an intruder would call ends them, what a daemon calls goes on, for
// threads that were there before as well; no dumps; and the units of systemd say the same as the table.
#include "common/secure/harden.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct common_harden options = {.seccomp = COMMON_SECCOMP_ENFORCE, .program = "test"};
static char said[4096]; // by the last process on stderr

// What a process that enters the filter comes to: its wait status. act returns its exit code.
static int run(int (*act)(void))
{
    int out[2], status;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct common_error err;
        dup2(out[1], STDERR_FILENO);
        _exit(common_harden_enter(&options, &err) == COMMON_OK ? act() : 99);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(out[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = '\0';
    close(out[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void expect_ended(int (*act)(void), const char *call)
{
    char words[80];
    int status = run(act);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
        fail_msg("%s: the process is not ended by SIGSYS: status %x", call, (unsigned)status);
    snprintf(words, sizeof words, "refused call=%s,", call);
    if (!strstr(said, words))
        fail_msg("%s is not in the line: %s", call, said);
}

static int do_exec(void)
{
    execl("/bin/true", "true", (char *)NULL);
    return 1;
}

static int do_shell(void)
{
    return system("true") == 0 ? 1 : 2;
}

static int do_fork(void)
{
    return fork() >= 0 ? 1 : 2;
}

static int do_ptrace(void)
{
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    return 1;
}

static int do_kill_parent(void)
{
    kill(getppid(), 0);
    return 1;
}

static int do_keyctl(void)
{
    syscall(SYS_keyctl, 0, 0, 0, 0, 0);
    return 1;
}

static int do_setuid(void)
{
    if (setuid(getuid()) != 0)
        return 2;
    return 1;
}

static int do_push(void)
{
    char c = 'x';
    ioctl(0, TIOCSTI, &c);
    return 1;
}

static void hostile_calls_end_the_process(void **state)
{
    (void)state;
    expect_ended(do_exec, "execve");
    int status = run(do_shell); // it blocks all signals first, so no handler runs
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    expect_ended(do_fork, "clone");
    expect_ended(do_ptrace, "ptrace");
    expect_ended(do_kill_parent, "kill");
    expect_ended(do_keyctl, "keyctl");
    expect_ended(do_setuid, "setuid");
    expect_ended(do_push, "ioctl");
}

static uint32_t number; // of the call that do_number makes

static int do_number(void)
{
    errno = 0;
    syscall(number, -1, -1, -1, -1, -1, -1);
    return errno == ENOSYS ? 77 : 1;
}

static void every_hostile_call_of_the_table_ends_it(void **state)
{
    (void)state;
    size_t n, hostile = 0;
    const struct common_call *calls = common_harden_calls(&n);
    for (size_t i = 0; i < n; i++) {
        if (calls[i].verdict != COMMON_CALL_HOSTILE && calls[i].verdict != COMMON_CALL_MODULES)
            continue;
        number = calls[i].number;
        expect_ended(do_number, calls[i].name);
        hostile++;
    }
    assert_true(hostile > 60);
}

static void calls_are_in_the_table_once(void **state)
{
    (void)state;
    size_t n;
    const struct common_call *calls = common_harden_calls(&n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (calls[i].number == calls[j].number)
                fail_msg("%s is there twice", calls[i].name);
}

// What is in no entry fails as on a kernel that does not have it.
static void unknown_calls_fail(void **state)
{
    (void)state;
    static const uint32_t numbers[] = {SYS_io_uring_setup, SYS_clone3, SYS_memfd_create,
                                       SYS_inotify_init1,  SYS_mbind,  4000};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        number = numbers[i];
        int status = run(do_number);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 77)
            fail_msg("call %u: status %x", number, (unsigned)status);
    }
}

static void *idle(void *arg)
{
    return arg;
}

static int do_daily(void) // what daemons do
{
    char byte = 'x';
    int ends[2], on = 1;
    pthread_t thread;
    void *map = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map, 4096, PROT_READ) != 0 || munmap(map, 1 << 16) != 0)
        return 1;
    if (pthread_create(&thread, NULL, idle, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 2;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || write(ends[0], &byte, 1) != 1 ||
        read(ends[1], &byte, 1) != 1)
        return 3;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ioctl(fd, FIONREAD, &on) != 0)
        return 4;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file || fgetc(file) == EOF || fclose(file) != 0)
        return 5;
    return kill(getpid(), 0) == 0 && signal(SIGUSR1, SIG_IGN) != SIG_ERR ? 0 : 6;
}

static int do_refused_arguments(void)
{
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map != MAP_FAILED || errno != EACCES)
        return 1;
    map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mprotect(map, 4096, PROT_READ | PROT_EXEC) == 0 || errno != EACCES)
        return 2;
    if (socket(AF_PACKET, SOCK_RAW, 0) >= 0 || errno != EAFNOSUPPORT)
        return 3;
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0 || errno != EINVAL)
        return 4;
    if (signal(SIGSYS, SIG_IGN) != SIG_ERR || errno != EPERM)
        return 5;
    struct rlimit limit;
    return prlimit(getppid(), RLIMIT_CORE, NULL, &limit) == 0 || errno != EPERM ? 6 : 0;
}

static void daily_calls_go_on(void **state)
{
    (void)state;
    assert_int_equal(run(do_daily), 0);
    assert_int_equal(run(do_refused_arguments), 0);
}

static int do_binding(void)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && sched_setaffinity(0, sizeof cores, &cores) == 0
               ? 0
               : 1;
}

static void sets_differ(void **state)
{
    (void)state;
    assert_int_equal(WEXITSTATUS(run(do_binding)), 1);
    options.set = COMMON_HARDEN_PLACED;
    assert_int_equal(run(do_binding), 0);
    expect_ended(do_exec, "execve");
    options.set = COMMON_HARDEN_MODULES; // CUDA starts nvidia-modprobe, MPI its own
    assert_int_equal(run(do_exec), 0);
    assert_int_equal(WEXITSTATUS(run(do_fork)), 1);
    expect_ended(do_ptrace, "ptrace");
    expect_ended(do_keyctl, "keyctl");
    options.set = COMMON_HARDEN_PLAIN;
    options.seccomp = COMMON_SECCOMP_LOG;
    assert_int_equal(run(do_exec), 0);
    options.seccomp = COMMON_SECCOMP_OFF;
    assert_int_equal(run(do_exec), 0);
    options.seccomp = COMMON_SECCOMP_ENFORCE;
}

static int gate[2];

static void *exec_when_told(void *arg)
{
    char byte;
    if (read(gate[0], &byte, 1) == 1)
        do_exec();
    return arg;
}

static int exit_after(void)
{
    return write(gate[1], "x", 1) == 1 && sleep(60) == 0 ? 1 : 2;
}

static void threads_that_were_there_are_held(void **state)
{
    (void)state;
    int status;
    assert_int_equal(pipe(gate), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct common_error err;
        pthread_t thread;
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        if (pthread_create(&thread, NULL, exec_when_told, NULL) != 0 ||
            common_harden_enter(&options, &err) != COMMON_OK)
            _exit(9);
        _exit(exit_after());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static void the_line_has_the_logs_form(void **state)
{
    (void)state;
    options.format = COMMON_LOG_JSON;
    expect_ended(do_exec, "execve");
    assert_true(strncmp(said, "{\"level\":\"error\",\"program\":\"test\",\"message\":\"seccomp: ", 53) == 0);
    assert_true(strlen(said) > 3 && strcmp(said + strlen(said) - 3, "\"}\n") == 0);
    options.format = COMMON_LOG_JOURNALD;
    expect_ended(do_exec, "execve");
    assert_true(strncmp(said, "<3>seccomp: ", 12) == 0);
    options.format = COMMON_LOG_TEXT;
    expect_ended(do_exec, "execve");
    assert_true(strncmp(said, "ERROR test: seccomp: ", 21) == 0);
}

static void memory_is_not_dumped(void **state)
{
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit before, after;
            getrlimit(RLIMIT_CORE, &before);
            common_harden_keys(allowed);
            int dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
            getrlimit(RLIMIT_CORE, &after);
            bool kept =
                dumpable == 1 && after.rlim_cur == before.rlim_cur && after.rlim_max == before.rlim_max;
            bool gone = dumpable == 0 && after.rlim_cur == 0 && after.rlim_max <= 1;
            if (allowed ? !kept : !gone)
                _exit(1);
            common_harden_share(allowed); // read by others of this user again, but not dumped
            getrlimit(RLIMIT_CORE, &after);
            _exit(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 && (allowed || after.rlim_cur <= 1) ? 0 : 2);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    if (COMMON_HARDEN_SANITIZED || !COMMON_HARDEN_FILTER) { // no filter is there; dumps are another matter
        const struct CMUnitTest some[] = {cmocka_unit_test(memory_is_not_dumped),
                                          cmocka_unit_test(calls_are_in_the_table_once)};
        return cmocka_run_group_tests_name("harden", some, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_calls_end_the_process),
        cmocka_unit_test(every_hostile_call_of_the_table_ends_it),
        cmocka_unit_test(calls_are_in_the_table_once),
        cmocka_unit_test(unknown_calls_fail),
        cmocka_unit_test(daily_calls_go_on),
        cmocka_unit_test(sets_differ),
        cmocka_unit_test(threads_that_were_there_are_held),
        cmocka_unit_test(the_line_has_the_logs_form),
        cmocka_unit_test(memory_is_not_dumped),
    };
    return cmocka_run_group_tests_name("harden", tests, NULL, NULL);
}
