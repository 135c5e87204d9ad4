// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

#define EXEC_FAILED 127

bool harness_program_path(const char *name, char *out, size_t len)
{
    const char *build = getenv("BANYAN_BUILD_DIR");
    if (build) {
        int n = snprintf(out, len, "%s/bin/%s", build, name);
        return n > 0 && (size_t)n < len;
    }
    char self[4096];
    ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
    if (got <= 0)
        return false;
    self[got] = '\0';
    *strrchr(self, '/') = '\0';
    int n = snprintf(out, len, "%s/%s", self, name);
    return n > 0 && (size_t)n < len;
}

// In the child, between fork and exec: async-signal-safe calls only.
static _Noreturn void become(char *const argv[], char *const envp[], int in, int out, int err, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXEC_FAILED); // the parent died before the line above
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0)
        execve(argv[0], argv, envp);
    _exit(EXEC_FAILED);
}

extern char **environ;

pid_t harness_process_start(char *const argv[], const char *log_path)
{
    pid_t pid = -1;
    int log = STDERR_FILENO;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0)
        goto out;
    if (log_path)
        log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0)
        goto close_null;
    if (access(argv[0], X_OK) != 0)
        goto close_log;
    pid_t parent = getpid();
    pid = fork();
    if (pid == 0)
        become(argv, environ, null, log_path ? log : STDOUT_FILENO, log, parent);
close_log:
    if (log_path)
        close(log);
close_null:
    close(null);
out:
    if (pid < 0)
        fprintf(stderr, "harness: cannot start %s: %s\n", argv[0], strerror(errno));
    return pid;
}

bool harness_process_wait(pid_t pid, uint64_t timeout_ns, int *status)
{
    uint64_t deadline = common_clock_after(timeout_ns);
    struct timespec pause = {.tv_nsec = 2000000};
    for (;;) {
        int got;
        pid_t ended = waitpid(pid, &got, WNOHANG);
        if (ended == pid) {
            if (status)
                *status = got;
            return true;
        }
        if ((ended < 0 && errno != EINTR) || common_clock_left(deadline) == 0)
            return false;
        nanosleep(&pause, NULL);
    }
}

struct pump {
    int fd;
    char **text;
    size_t *len;
};

// Reads what is there. False at the end of the stream.
static bool pump_read(struct pump *pump)
{
    char *grown = realloc(*pump->text, *pump->len + 65536 + 1);
    if (!grown)
        abort();
    *pump->text = grown;
    ssize_t got = read(pump->fd, grown + *pump->len, 65536);
    if (got < 0 && errno == EINTR)
        return true;
    if (got > 0)
        *pump->len += (size_t)got;
    grown[*pump->len] = '\0';
    return got > 0;
}

static char **environment_with(char *const env[])
{
    size_t n_old = 0, n_new = 0;
    while (environ[n_old])
        n_old++;
    while (env && env[n_new])
        n_new++;
    char **all = calloc(n_old + n_new + 1, sizeof *all);
    if (!all)
        abort();
    size_t n = 0;
    for (size_t i = 0; i < n_old; i++) {
        bool replaced = false;
        for (size_t j = 0; j < n_new; j++) {
            size_t name = strcspn(env[j], "=") + 1;
            replaced |= strncmp(environ[i], env[j], name) == 0;
        }
        if (!replaced)
            all[n++] = environ[i];
    }
    for (size_t j = 0; j < n_new; j++)
        all[n++] = env[j];
    return all;
}

bool harness_run(char *const argv[], char *const env[], uint64_t timeout_ns, struct harness_output *out)
{
    memset(out, 0, sizeof *out);
    int outs[2], errs[2];
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || pipe2(outs, O_CLOEXEC) != 0 || pipe2(errs, O_CLOEXEC) != 0)
        abort();
    char **envp = environment_with(env);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(argv, envp, null, outs[1], errs[1], parent);
    free(envp);
    close(null);
    close(outs[1]);
    close(errs[1]);
    struct pump pumps[2] = {{outs[0], &out->out, &out->out_len}, {errs[0], &out->err, &out->err_len}};
    uint64_t deadline = common_clock_after(timeout_ns);
    bool late = false;
    int open_pumps = pid < 0 ? 0 : 2;
    while (open_pumps > 0 && !late) {
        struct pollfd fds[2] = {{pumps[0].fd, POLLIN, 0}, {pumps[1].fd, POLLIN, 0}};
        int n = poll(fds, 2, (int)(common_clock_left(deadline) / COMMON_NS_PER_MS) + 1);
        late = n == 0 && common_clock_left(deadline) == 0;
        for (int i = 0; i < 2 && n > 0; i++)
            if (pumps[i].fd >= 0 && fds[i].revents && !pump_read(&pumps[i])) {
                close(pumps[i].fd);
                pumps[i].fd = -1;
                open_pumps--;
            }
    }
    for (int i = 0; i < 2; i++) {
        if (pumps[i].fd >= 0)
            close(pumps[i].fd);
        if (!*pumps[i].text)
            *pumps[i].text = calloc(1, 1);
    }
    if (pid < 0)
        return false;
    if (late)
        kill(pid, SIGKILL);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    out->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

void harness_output_free(struct harness_output *out)
{
    free(out->out);
    free(out->err);
    memset(out, 0, sizeof *out);
}
