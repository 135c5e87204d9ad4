// SPDX-License-Identifier: Apache-2.0
#include "common/daemon.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"

// ---- options --------------------------------------------------------------------------------------------

static enum common_code set_log_level(const char *level, const char *program, struct common_error *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; level && i < 4; i++)
        if (strcmp(level, names[i]) == 0) {
            common_log_set_level((enum common_log_level)i);
            return COMMON_OK;
        }
    if (!level)
        return COMMON_OK;
    return common_error_set(err, COMMON_INVALID_ARGUMENT,
                            "--log-level: '%.60s' is not error, warn, info or debug; try '%s --help'", level,
                            program);
}

enum common_code common_daemon_parse(struct common_daemon *daemon, const struct common_command *command,
                                     int argc, char **argv, struct common_error *err)
{
    int rest;
    enum common_code code = common_options_parse(command, argc, argv, &rest, err);
    if (code != COMMON_OK)
        return code;
    if (rest < argc)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "unexpected argument '%.100s'; try '%s --help'",
                                argv[rest], command->program);
    return set_log_level(daemon->log_level, command->program, err);
}

// ---- files ----------------------------------------------------------------------------------------------

enum common_code common_daemon_state_path(const char *name, const char *option, char **out,
                                          struct common_error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    *out = NULL;
    if (state && state[0] == '/')
        n = asprintf(out, "%s/banyan/%s", state, name);
    else if (home && home[0] == '/')
        n = asprintf(out, "%s/.local/state/banyan/%s", home, name);
    else
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "neither XDG_STATE_HOME nor HOME is set: give %s", option);
    if (n >= 0)
        return COMMON_OK;
    *out = NULL;
    return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a path");
}

void common_daemon_raise_files(uint64_t needed)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    rlim_t before = files.rlim_cur;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        files.rlim_cur = before;
    if (files.rlim_cur < needed)
        common_log_warn("this process may have %llu files and connections, and its limits allow %llu: raise "
                        "the hard limit (ulimit -Hn), or lower --max-clients",
                        (unsigned long long)files.rlim_cur, (unsigned long long)needed);
}

void common_daemon_make_folders(const char *path)
{
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder)
        return;
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(folder, 0700); // one that is there is fine
        *slash = '/';
    }
}

enum common_code common_daemon_load_keys(struct common_daemon *daemon, struct common_error *err)
{
    char *path = NULL;
    enum common_code code = COMMON_OK;
    daemon->token[0] = '\0';
    if (!daemon->secret_file) {
        code = common_daemon_state_path("cluster.secret", "--secret-file", &path, err);
        if (code == COMMON_OK)
            common_daemon_make_folders(path);
    }
    if (code == COMMON_OK)
        code = common_secret_load_or_create(path ? path : daemon->secret_file, &daemon->secret, err);
    if (code == COMMON_OK && daemon->token_file)
        code = common_token_load(daemon->token_file, daemon->token, err);
    free(path);
    return code == COMMON_INVALID_ARGUMENT ? COMMON_FAILED_PRECONDITION : code;
}

enum common_code common_daemon_write_ready(const char *path, const char *line, struct common_error *err)
{
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if ((size_t)n >= sizeof temporary)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "the ready file's path is too long");
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    bool good = file && fprintf(file, "%s\n", line) > 0;
    if (file)
        good = fclose(file) == 0 && good;
    else if (fd >= 0)
        close(fd);
    if (good && rename(temporary, path) == 0)
        return COMMON_OK;
    int why = errno;
    if (fd >= 0)
        unlink(temporary);
    return common_error_set(err, COMMON_FAILED_PRECONDITION, "cannot write the ready file '%.200s': %s", path,
                            strerror(why));
}

enum common_daemon_exit common_daemon_refuse(const char *program, enum common_code code,
                                             const struct common_error *err)
{
    if (code == COMMON_CANCELLED)
        return COMMON_DAEMON_CLEAN; // --help, --version
    fprintf(stderr, "%s: %s\n", program, err->message);
    return code == COMMON_INVALID_ARGUMENT ? COMMON_DAEMON_USAGE : COMMON_DAEMON_START;
}

// ---- signals --------------------------------------------------------------------------------------------

struct common_signals {
    common_loop_fn leave;
    void *arg;
    struct event *events[2];
};

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    (void)what;
    struct common_signals *signals = arg;
    common_log_info("leaving signal=%s", (int)number == SIGTERM ? "TERM" : "INT");
    signals->leave(signals->arg);
}

enum common_code common_signals_new(struct common_loop *loop, common_loop_fn leave, void *arg,
                                    struct common_signals **out)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    struct common_signals *signals = calloc(1, sizeof *signals);
    if (!signals)
        return COMMON_RESOURCE_EXHAUSTED;
    signals->leave = leave;
    signals->arg = arg;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        signals->events[i] = evsignal_new(common_loop_base(loop), numbers[i], on_signal, signals);
        if (!signals->events[i] || event_add(signals->events[i], NULL) != 0) {
            common_signals_free(signals);
            return COMMON_RESOURCE_EXHAUSTED;
        }
    }
    *out = signals;
    return COMMON_OK;
}

void common_signals_free(struct common_signals *signals)
{
    if (!signals)
        return;
    for (int i = 0; i < 2; i++)
        if (signals->events[i])
            event_free(signals->events[i]);
    free(signals);
}
