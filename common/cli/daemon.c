// SPDX-License-Identifier: Apache-2.0
#include "common/cli/daemon.h"

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

#include "common/base/clock.h"
#include "common/cli/complete.h"
#include "common/cli/tables.h"
#include "common/log/log.h"
#include "common/memory/block.h"
#include "common/secure/tls.h"

// ---- options --------------------------------------------------------------------------------------------

#define LOG_RATE 100

// The nth of the words, or `otherwise`.
static int nth_of(const char *const *words, const char *word, int otherwise)
{
    for (int i = 0; word && words[i]; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return otherwise;
}

static const char *const formats[] = {"text", "json", "journald", NULL}; // as enum common_log_format

void common_daemon_set_log(const struct common_daemon *daemon)
{
    static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
    int level = nth_of(levels, daemon->log_level, (int)common_log_default_level());
    int format = nth_of(formats, daemon->log_format, COMMON_LOG_TEXT);
    common_log_set_level((enum common_log_level)level);
    common_log_set_format((enum common_log_format)format);
    common_log_set_rate((uint32_t)daemon->log_rate);
}

// A credential that systemd hands over, as a file where no option names another. An empty line is none: the
// units' default, for machines without /etc/banyan/token.
static enum common_code default_file(const char *name, char **path, const char **file,
                                     struct common_error *err)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    struct stat st;
    if (*file || !folder || folder[0] != '/')
        return COMMON_OK;
    if (asprintf(path, "%s/%s", folder, name) < 0) {
        *path = NULL;
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a path");
    }
    if (stat(*path, &st) == 0 ? st.st_size > 1 : errno != ENOENT)
        *file = *path;
    return COMMON_OK;
}

enum common_code common_daemon_parse(struct common_daemon *daemon, const struct common_command *command,
                                     int argc, char **argv, struct common_error *err)
{
    int rest;
    if (common_complete(command, argc, argv) || common_tables(command, argc, argv))
        return COMMON_CANCELLED;
    daemon->argc = argc;
    daemon->argv = argv;
    daemon->log_format = "text";
    daemon->seccomp = COMMON_HARDEN_SANITIZED || !COMMON_HARDEN_FILTER ? "off" : "enforce";
    daemon->log_rate = LOG_RATE;
    daemon->tls_client_cert = "off";
    daemon->http_tls = "auto";
    enum common_code code =
        common_config_read(command, argc, argv, &daemon->file, &daemon->config, &rest, err);
    if (code != COMMON_OK)
        return code;
    if (rest < argc)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "unexpected argument '%.100s'; try '%s --help'",
                                argv[rest], command->program);
    if (daemon->file.print) {
        code = common_config_print(command, &daemon->file, daemon->config, stdout, err);
        return code == COMMON_OK ? COMMON_CANCELLED : code;
    }
    code = default_file("token", &daemon->credential, &daemon->token_file, err);
    if (code == COMMON_OK && daemon->tls_cert) // a key alone is no wish for TLS
        code = default_file("tls.key", &daemon->key_credential, &daemon->tls_key, err);
    return code;
}

void common_daemon_fini(struct common_daemon *daemon)
{
    common_config_free(daemon->config);
    common_config_free(daemon->loaded);
    free(daemon->credential);
    free(daemon->key_credential);
    common_tls_unref(daemon->tls);
    explicit_bzero(&daemon->secret, sizeof daemon->secret);
    explicit_bzero(daemon->token, sizeof daemon->token);
    daemon->config = daemon->loaded = NULL;
    daemon->credential = daemon->key_credential = NULL;
    daemon->tls = NULL;
}

void common_daemon_reloaded(struct common_daemon *daemon, struct common_daemon *fresh,
                            const char *const *reloads)
{
    const struct common_config *before = daemon->loaded ? daemon->loaded : daemon->config;
    const char *path = common_config_path(fresh->config);
    char names[512] = "";
    size_t used = 0;
    const char *const *all = reloads;
    common_daemon_set_log(fresh);
    for (; *reloads; reloads++)
        if (common_config_differs(before, fresh->config, *reloads) && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", *reloads);
    common_log_info("signal=HUP: reloaded file=%s: %s%s", path ? path : "(absent)",
                    used ? "changed: " : "nothing changed", names);
    if (common_config_differences(daemon->config, fresh->config, all, names, sizeof names))
        common_log_warn("signal=HUP: needs a restart: %s", names);
    common_config_free(daemon->loaded);
    daemon->loaded = fresh->config;
    fresh->config = NULL;
}

// ---- files ----------------------------------------------------------------------------------------------

// ---- spans --------------------------------------------------------------------------------------

enum common_code common_daemon_trace(const struct common_daemon *daemon, struct common_loop *loop,
                                     const char *service, const char *instance, struct common_tracer **out,
                                     struct common_error *err)
{
    char host[256] = "";
    struct common_tracer *tracer;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    const struct common_span_attribute resource[] = {
        {.key = "service.name", .type = COMMON_SPAN_TEXT, .text = service},
        {.key = "service.version", .type = COMMON_SPAN_TEXT, .text = BANYAN_VERSION},
        {.key = "host.name", .type = COMMON_SPAN_TEXT, .text = host},
        {.key = "process.pid", .type = COMMON_SPAN_NUMBER, .number = (uint64_t)getpid()},
        {.key = "service.instance.id", .type = COMMON_SPAN_TEXT, .text = instance},
    };
    enum common_code code = common_tracer_new(loop, resource, 5, &tracer, err);
    if (code != COMMON_OK)
        return code;
    code = common_tracer_set(tracer, &daemon->trace, err);
    if (code == COMMON_OK)
        *out = tracer;
    else
        common_tracer_free(tracer);
    return code;
}

void common_daemon_retrace(const struct common_daemon *fresh, struct common_tracer *tracer)
{
    struct common_error err;
    if (!fresh)
        common_tracer_reopen(tracer);
    else if (common_tracer_set(tracer, &fresh->trace, &err) != COMMON_OK)
        common_log_error("signal=HUP: the destination of spans is unchanged: %s", err.message);
}

enum common_code common_daemon_harden(const struct common_daemon *daemon, const char *program,
                                      enum common_harden_set set, struct common_error *err)
{
    static const char *const modes[] = {"enforce", "log", "off", NULL};
    const struct common_harden harden = {
        .seccomp = (enum common_seccomp)nth_of(modes, daemon->seccomp, COMMON_SECCOMP_ENFORCE),
        .set = set,
        .format = (enum common_log_format)nth_of(formats, daemon->log_format, COMMON_LOG_TEXT),
        .program = program};
    if (harden.seccomp == COMMON_SECCOMP_LOG)
        common_log_warn("--seccomp=log: calls that enforce would block are allowed and written to the "
                        "kernel's log (type=1326)");
    return common_harden_enter(&harden, err);
}

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
        common_log_warn("this process may need %llu files and connections, and its limits allow %llu: raise "
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
    common_harden_keys(daemon->core_dumps);
    if (!daemon->secret_file) {
        code = common_daemon_state_path("cluster.secret", "--secret-file", &path, err);
        if (code == COMMON_OK)
            common_daemon_make_folders(path);
    }
    const char *file = path ? path : daemon->secret_file;
    if (code == COMMON_OK)
        code = common_secret_load(file, &daemon->secret, err);
    if (code == COMMON_NOT_FOUND) {
        code = common_secret_load_or_create(file, &daemon->secret, err);
        if (code == COMMON_OK) // others that have one already refuse this daemon, or are refused by it
            common_log_warn(
                "there was no cluster secret, and a new one was created file=%s: all daemons of a cluster "
                "need the same one, so copy this file to the other hosts, or theirs to here",
                file);
    }
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

enum { SIGNALS = 3 };

#define CLEAN_BYTES ((size_t)2 << 20)
#define CLEAN_NS    (2 * COMMON_NS_PER_MS)

struct common_signals {
    struct common_loop *loop;
    common_loop_fn leave, reload;
    void *arg;
    struct event *events[SIGNALS];
    struct event *input; // NULL: it is not watched
    struct common_timer
        *sweep; // of the log: for what nothing comes behind; and of blocks that wait to be wiped
    struct common_timer *clean; // there are more of these
};

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    (void)what;
    struct common_signals *signals = arg;
    if (number != SIGHUP) {
        common_log_info("leaving signal=%s", (int)number == SIGTERM ? "TERM" : "INT");
        signals->leave(signals->arg);
    } else if (signals->reload) {
        signals->reload(signals->arg);
    } else { // without a handler it would end the daemon without a word
        common_log_info("signal=HUP: nothing to reload");
    }
}

// A little at a time: steps wait.
static void clean_blocks(struct common_signals *signals, bool age)
{
    if (common_block_clean(CLEAN_BYTES, age))
        common_timer_start(signals->clean, CLEAN_NS, false);
}

static void on_clean(void *arg)
{
    clean_blocks(arg, false);
}

static void on_input(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct common_signals *signals = arg;
    char unused[256];
    ssize_t n = read(fd, unused, sizeof unused);
    if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)))
        return;
    event_del(signals->input);
    common_log_info("leaving: standard input has ended");
    signals->leave(signals->arg);
}

static void on_sweep(void *arg)
{
    common_log_sweep();
    clean_blocks(arg, true);
}

enum common_code common_signals_new(struct common_loop *loop, common_loop_fn leave, common_loop_fn reload,
                                    void *arg, struct common_signals **out)
{
    static const int numbers[SIGNALS] = {SIGTERM, SIGINT, SIGHUP};
    struct common_signals *signals = calloc(1, sizeof *signals);
    if (!signals)
        return COMMON_RESOURCE_EXHAUSTED;
    signals->loop = loop;
    signals->leave = leave;
    signals->reload = reload;
    signals->arg = arg;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < SIGNALS; i++) {
        signals->events[i] = evsignal_new(common_loop_base(loop), numbers[i], on_signal, signals);
        if (!signals->events[i] || event_add(signals->events[i], NULL) != 0) {
            common_signals_free(signals);
            return COMMON_RESOURCE_EXHAUSTED;
        }
    }
    if (common_timer_new(loop, on_sweep, signals, &signals->sweep) != COMMON_OK ||
        common_timer_new(loop, on_clean, signals, &signals->clean) != COMMON_OK) {
        common_signals_free(signals);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    common_timer_start(signals->sweep, COMMON_NS_PER_S, true);
    *out = signals;
    return COMMON_OK;
}

enum common_code common_signals_watch_input(struct common_signals *signals, struct common_error *err)
{
    struct stat input;
    if (fstat(STDIN_FILENO, &input) != 0 ||
        !(S_ISFIFO(input.st_mode) || S_ISSOCK(input.st_mode) || isatty(STDIN_FILENO)))
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "--stop-on-eof: standard input is not a pipe, socket or terminal");
    signals->input =
        event_new(common_loop_base(signals->loop), STDIN_FILENO, EV_READ | EV_PERSIST, on_input, signals);
    if (!signals->input || event_add(signals->input, NULL) != 0)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the end of standard input");
    return COMMON_OK;
}

void common_signals_free(struct common_signals *signals)
{
    if (!signals)
        return;
    for (int i = 0; i < SIGNALS; i++)
        if (signals->events[i])
            event_free(signals->events[i]);
    if (signals->input)
        event_free(signals->input);
    common_timer_free(signals->sweep);
    common_timer_free(signals->clean);
    common_log_sweep();
    free(signals);
}
