// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/cluster.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/cli/daemon.h"
#include "tests/harness/process.h"

#define READY_TIMEOUT_NS (60 * COMMON_NS_PER_S) // a sanitizer build on a busy machine
#define STOP_TIMEOUT_NS  (10 * COMMON_NS_PER_S)
#define ARGS_MAX         64
#define ALLOWED_MAX      32
#define PATH_BYTES       256
#define ENDPOINTS_MAX    8

struct daemon {
    pid_t pid; // 0: does not run
    char name[32];
    char log[PATH_BYTES + 64], ready[PATH_BYTES + 64], script[PATH_BYTES + 64];
    char host[65];
    char endpoints[ENDPOINTS_MAX][PATH_BYTES]; // as in the ready file
    uint32_t n_endpoints;
    bool of_job;               // its parent is a launcher
    struct harness_worker own; // of a worker that harness_cluster_add has started
};

struct harness_cluster {
    struct harness_cluster *next; // all that live, for the end of the program
    struct harness_options options;
    char dir[PATH_BYTES], secret[PATH_BYTES + 32], token[PATH_BYTES + 32], store[PATH_BYTES + 32];
    struct daemon coordinator;
    struct daemon old;            // a coordinator that was left (harness_cluster_leave)
    char tls[5][PATH_BYTES + 32]; // of options.tls
    struct daemon job;            // the launcher, where there is one
    bool job_hurt;                // a worker of it was signalled
    struct daemon workers[HARNESS_WORKERS_MAX];
    uint32_t n_workers;
    const char *allowed[ALLOWED_MAX];
    uint32_t n_allowed;
};

static struct harness_cluster *live;

// A test that fails leaves its clusters behind: nothing outlives the program.
static void kill_all(void)
{
    for (struct harness_cluster *c = live; c; c = c->next) {
        for (uint32_t i = 0; i <= c->n_workers + 2; i++) {
            struct daemon *d = i < c->n_workers        ? &c->workers[i]
                               : i == c->n_workers     ? &c->job
                               : i == c->n_workers + 1 ? &c->old
                                                       : &c->coordinator;
            if (d->pid > 0) {
                kill(d->pid, SIGKILL);
                waitpid(d->pid, NULL, 0);
                d->pid = 0;
            }
        }
    }
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    char *text = NULL;
    size_t len = 0, got;
    do {
        text = realloc(text, len + 65536 + 1);
        if (!text)
            abort();
        got = fread(text + len, 1, 65536, file);
        len += got;
    } while (got > 0);
    text[len] = '\0';
    fclose(file);
    return text;
}

// Everything in the ready file that looks like an endpoint, in order.
static void parse_endpoints(struct daemon *d, const char *text)
{
    static const char *const schemes[] = {"nng+tcp://", "nng+tls://", "tcp://", "tls://", "unix://"};
    const size_t n = sizeof schemes / sizeof *schemes;
    d->n_endpoints = 0;
    while (*text && d->n_endpoints < ENDPOINTS_MAX) {
        size_t len = 0;
        for (size_t i = 0; i < n && len == 0; i++)
            if (strncmp(text, schemes[i], strlen(schemes[i])) == 0)
                len = strcspn(text, " \t\r\n,\"'");
        if (len > 0 && len < PATH_BYTES) {
            memcpy(d->endpoints[d->n_endpoints], text, len);
            d->endpoints[d->n_endpoints++][len] = '\0';
        }
        text += len > 0 ? len : 1;
    }
}

static bool wait_ready(struct daemon *d)
{
    uint64_t deadline = common_clock_after(READY_TIMEOUT_NS);
    struct timespec pause = {.tv_nsec = 2000000};
    const char *why = "not ready in time";
    while (common_clock_left(deadline) > 0) {
        char *text = read_file(d->ready);
        size_t len = text ? strlen(text) : 0;
        bool ready = len > 0 && text[len - 1] == '\n';
        if (ready)
            parse_endpoints(d, text);
        const char *pid = ready && d->of_job ? strstr(text, "\"pid\":") : NULL;
        if (pid)
            d->pid = (pid_t)strtol(pid + strlen("\"pid\":"), NULL, 10);
        free(text);
        if (ready)
            return true;
        if (!d->of_job && waitpid(d->pid, NULL, WNOHANG) == d->pid) {
            d->pid = 0;
            why = "ended before it was ready";
            break;
        }
        nanosleep(&pause, NULL);
    }
    char *log = read_file(d->log);
    fprintf(stderr, "harness: %s: %s; its log:\n%s\n", d->name, why, log ? log : "(none)");
    free(log);
    return false;
}

static void add_args(char **argv, size_t *n, const char *const *more)
{
    for (; more && *more; more++) {
        assert(*n < ARGS_MAX - 1);
        argv[(*n)++] = (char *)*more;
    }
}

// What the launcher is to run: the daemon in place of a shell, so with the shell's process id.
static bool write_script(struct daemon *d, char *const argv[])
{
    FILE *file = fopen(d->script, "we");
    if (!file)
        return false;
    fprintf(file, "#!/bin/sh\nexec");
    for (size_t i = 0; argv[i]; i++)
        fprintf(file, " '%s'", argv[i]); // no argument of ours has a quote
    fprintf(file, " >>'%s' 2>&1\n", d->log);
    bool ok = fchmod(fileno(file), 0700) == 0;
    return fclose(file) == 0 && ok;
}

static bool start_daemon(struct daemon *d, const char *const *args, const char *const *more)
{
    char program[4096];
    if (!harness_program_path(d->name[0] != 'w' ? "banyan-coordinator" : "banyan-worker", program,
                              sizeof program))
        return false;
    char *argv[ARGS_MAX] = {NULL};
    size_t n = 0;
    add_args(argv, &n, d->own.before);
    argv[n++] = program;
    add_args(argv, &n, args);
    add_args(argv, &n, more);
    unlink(d->ready);
    if (d->of_job)
        return write_script(d, argv);
    d->pid = harness_process_start(argv, d->log);
    if (d->pid < 0)
        d->pid = 0;
    return d->pid > 0;
}

// Of options.tls: its authority, and the certificate and key of the coordinators or of the workers.
static size_t add_tls(const struct harness_cluster *c, bool worker, const char **args)
{
    const char *const given[] = {"--tls-ca",   c->tls[0],
                                 "--tls-cert", c->tls[worker ? 3 : 1],
                                 "--tls-key",  c->tls[worker ? 4 : 2]};
    const size_t n = c->options.tls ? sizeof given / sizeof *given : 0;
    for (size_t i = 0; i < n; i++)
        args[i] = given[i];
    return n;
}

static bool start_coordinator(struct harness_cluster *c, struct daemon *d)
{
    char listen[(PATH_BYTES + 1) * ENDPOINTS_MAX];
    if (d->n_endpoints == 0) {
        snprintf(listen, sizeof listen, "%s,unix://%s/%c.sock",
                 c->options.tls ? "nng+tls://localhost:0,tls://127.0.0.1:0"
                                : "nng+tcp://127.0.0.1:0,tcp://127.0.0.1:0",
                 c->dir, d->name[0]);
    } else { // again: where the others look for it
        size_t len = 0;
        for (uint32_t i = 0; i < d->n_endpoints; i++)
            len += (size_t)snprintf(listen + len, sizeof listen - len, "%s%s", i ? "," : "", d->endpoints[i]);
    }
    const char *args[ARGS_MAX] = {
        "--listen", listen, "--secret-file", c->secret, "--ready-file", d->ready, "--store", c->store,
        // a machine that is busy with other tests must not move what a test has placed
        "--slow-workers", "flag"};
    size_t n = 10;
    n += add_tls(c, false, args + n);
    if (c->options.token) {
        args[n++] = "--token-file";
        args[n++] = c->token;
    }
    return start_daemon(d, args, c->options.coordinator_args);
}

static bool names(const char *const *args, const char *option)
{
    for (; args && *args; args++)
        if (strcmp(*args, option) == 0)
            return true;
    return false;
}

static const char *speed_of_workers(void)
{
    const char *speed = getenv("BANYAN_TEST_BANDWIDTH");
    return speed && *speed ? speed : "8G";
}

static bool start_worker(struct harness_cluster *c, struct daemon *d)
{
    char edge[PATH_BYTES + 64], public[PATH_BYTES + 64], threads[16];
    size_t number = (size_t)(d - c->workers);
    if (c->options.tls)
        snprintf(edge, sizeof edge, "tls://127.0.0.1:0");
    else if (c->options.edges_tcp)
        snprintf(edge, sizeof edge, "tcp://127.0.0.1:0");
    else
        snprintf(edge, sizeof edge, "unix://%s/%s.sock", c->dir, d->name);
    snprintf(public, sizeof public, "%s",
             c->options.tls          ? "tls://127.0.0.1:0"
             : c->options.public_nng ? "nng+tcp://127.0.0.1:0"
                                     : "tcp://127.0.0.1:0");
    if (d->of_job) // its ranks may be in other network namespaces
        snprintf(public, sizeof public, "unix://%s/%s.public.sock", c->dir, d->name);
    if (d->own.edge)
        snprintf(edge, sizeof edge, "%s", d->own.edge);
    if (d->own.public)
        snprintf(public, sizeof public, "%s", d->own.public);
    snprintf(threads, sizeof threads, "%" PRIu32, c->options.threads ? c->options.threads : 1);
    const char *coordinator = d->own.coordinator
                                  ? d->own.coordinator
                                  : harness_cluster_endpoint(c, c->options.tls ? "tls" : "unix");
    const char *args[ARGS_MAX] = {
        "--coordinator", coordinator, "--name",        d->name,
        "--listen",      public,      "--edge-listen", edge,
        "--secret-file", c->secret,   "--memory",      c->options.memory ? c->options.memory : "256M",
        "--threads",     threads,     "--ready-file",  d->ready};
    size_t n = 16;
    n += add_tls(c, true, args + n);
    if (d->host[0]) {
        args[n++] = "--host";
        args[n++] = d->host;
    }
    const char *const *each =
        c->options.each_args && number < c->options.workers ? c->options.each_args[number] : NULL;
    if (!c->options.measured && !names(c->options.worker_args, "--bandwidth") &&
        !names(each, "--bandwidth") && !names(d->own.args, "--bandwidth")) {
        args[n++] = "--bandwidth";
        args[n++] = speed_of_workers();
    }
    for (; each && *each && n < ARGS_MAX - 1; each++)
        args[n++] = *each;
    for (each = d->own.args; each && *each && n < ARGS_MAX - 1; each++)
        args[n++] = *each;
    return start_daemon(d, args, c->options.worker_args);
}

static void name_daemon(const struct harness_cluster *c, struct daemon *d, const char *name)
{
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->log, sizeof d->log, "%s/%s.log", c->dir, name);
    snprintf(d->ready, sizeof d->ready, "%s/%s.ready", c->dir, name);
    snprintf(d->script, sizeof d->script, "%s/%s.sh", c->dir, name);
}

static struct daemon *new_worker(struct harness_cluster *c, const char *host)
{
    if (c->n_workers == HARNESS_WORKERS_MAX)
        return NULL;
    struct daemon *d = &c->workers[c->n_workers];
    char name[32];
    snprintf(name, sizeof name, "w%" PRIu32, c->n_workers++);
    name_daemon(c, d, name);
    if (host)
        snprintf(d->host, sizeof d->host, "%s", host);
    return d;
}

// The job of all workers, from the scripts that start_worker has written.
static bool start_job(struct harness_cluster *c)
{
    char app[PATH_BYTES + 64], program[4096];
    const char *path = getenv("PATH");
    snprintf(app, sizeof app, "%s/job.app", c->dir);
    FILE *file = fopen(app, "we");
    if (!file)
        return false;
    for (uint32_t i = 0; i < c->n_workers; i++)
        fprintf(file, "-n 1 %s\n", c->workers[i].script);
    if (fclose(file) != 0)
        return false;
    const char *name = c->options.launcher[0];
    snprintf(program, sizeof program, "%s", name);
    for (size_t len; !strchr(name, '/') && path && *path; path += len + (path[len] == ':')) {
        len = strcspn(path, ":");
        snprintf(program, sizeof program, "%.*s/%s", (int)len, path, name);
        if (access(program, X_OK) == 0)
            break;
    }
    char *argv[ARGS_MAX] = {program};
    size_t n = 1;
    add_args(argv, &n, c->options.launcher + 1);
    argv[n++] = (char *)"--app";
    argv[n++] = app;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    c->job_hurt = false;
    c->job.pid = harness_process_start(argv, c->job.log);
    if (c->job.pid < 0)
        c->job.pid = 0;
    return c->job.pid > 0;
}

static bool write_private(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    return close(fd) == 0 && ok;
}

struct harness_cluster *harness_cluster_start(const struct harness_options *options)
{
    static bool registered;
    struct harness_cluster *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    if (!registered)
        registered = atexit(kill_all) == 0;
    c->options = options ? *options : (struct harness_options){.workers = 1};
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > 40) // a unix socket's path holds 107 bytes
        tmp = "/tmp";
    snprintf(c->dir, sizeof c->dir, "%s/banyan-test-XXXXXX", tmp);
    if (!mkdtemp(c->dir)) {
        fprintf(stderr, "harness: mkdtemp %s: %s\n", c->dir, strerror(errno));
        free(c);
        return NULL;
    }
    c->next = live;
    live = c;
    snprintf(c->secret, sizeof c->secret, "%s/secret", c->dir);
    snprintf(c->token, sizeof c->token, "%s/token", c->dir);
    snprintf(c->store, sizeof c->store, "%s/store.db", c->dir);
    static const char *const tls[] = {"ca.pem", "coordinator.pem", "coordinator.key", "worker.pem",
                                      "worker.key"};
    for (size_t i = 0; c->options.tls && i < sizeof tls / sizeof *tls; i++)
        snprintf(c->tls[i], sizeof c->tls[i], "%.255s/%s", c->options.tls, tls[i]);
    name_daemon(c, &c->coordinator, "coordinator");
    name_daemon(c, &c->old, "coordinator");
    name_daemon(c, &c->job, "job");
    char secret[66] = "";
    for (int i = 0; i < 64; i++)
        secret[i] = "0123456789abcdef"[(i * 7 + getpid()) % 16];
    secret[64] = '\n';
    char token[300];
    snprintf(token, sizeof token, "%s\n", c->options.token ? c->options.token : "");
    if (!write_private(c->secret, secret) || (c->options.token && !write_private(c->token, token)))
        goto fail;
    if (!start_coordinator(c, &c->coordinator) || !wait_ready(&c->coordinator))
        goto fail;
    for (uint32_t i = 0; i < c->options.workers; i++) {
        struct daemon *d = new_worker(c, c->options.hosts ? c->options.hosts[i] : NULL);
        if (d)
            d->of_job = c->options.launcher != NULL;
        if (!d || !start_worker(c, d))
            goto fail;
    }
    if (c->options.launcher && !start_job(c))
        goto fail;
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (!wait_ready(&c->workers[i]))
            goto fail;
    return c;

fail:
    harness_cluster_stop(c);
    return NULL;
}

static struct daemon *find(const struct harness_cluster *c, uint32_t who)
{
    assert(who == HARNESS_COORDINATOR || who == HARNESS_OLD || who < c->n_workers);
    return (struct daemon *)(who == HARNESS_COORDINATOR ? &c->coordinator
                             : who == HARNESS_OLD       ? &c->old
                                                        : &c->workers[who]);
}

static int count_errors(const struct harness_cluster *c, const struct daemon *d)
{
    int problems = 0;
    char *text = read_file(d->log);
    for (char *line = text, *end; line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        bool bad = strstr(line, "Z ERROR ") || strstr(line, "Sanitizer") || strstr(line, "runtime error:");
        for (uint32_t i = 0; i < c->n_allowed && bad; i++)
            bad = !strstr(line, c->allowed[i]);
        if (bad) {
            fprintf(stderr, "harness: unexpected in the log of %s: %s\n", d->name, line);
            problems++;
        }
    }
    free(text);
    return problems;
}

static int stop_daemon(struct daemon *d)
{
    int status;
    if (d->pid <= 0)
        return 0;
    pid_t pid = d->pid;
    d->pid = 0;
    kill(pid, SIGCONT);
    kill(pid, SIGTERM);
    if (d->of_job)
        return 0; // the job ends with them
    if (!harness_process_wait(pid, STOP_TIMEOUT_NS, &status)) {
        fprintf(stderr, "harness: %s did not stop on SIGTERM\n", d->name);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return 1;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    fprintf(stderr, "harness: %s ended with %s %d\n", d->name, WIFEXITED(status) ? "code" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return 1;
}

// Ends by itself when its workers do.
static int stop_job(struct harness_cluster *c)
{
    int status = 0;
    pid_t pid = c->job.pid;
    if (pid <= 0)
        return 0;
    c->job.pid = 0;
    if (!harness_process_wait(pid, STOP_TIMEOUT_NS, &status)) {
        fprintf(stderr, "harness: the job did not end with its workers\n");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return 1;
    }
    if (c->job_hurt || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return 0;
    char *log = read_file(c->job.log);
    fprintf(stderr, "harness: the job failed:\n%s\n", log ? log : "");
    free(log);
    return 1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

int harness_cluster_stop(struct harness_cluster *c)
{
    if (!c)
        return 0;
    int problems = 0;
    for (uint32_t i = 0; i < c->n_workers; i++)
        problems += stop_daemon(&c->workers[i]);
    problems += stop_job(c);
    if (c->old.pid > 0)
        kill(c->old.pid, SIGCONT);
    problems += stop_daemon(&c->old);
    problems += stop_daemon(&c->coordinator);
    for (uint32_t i = 0; i < c->n_workers; i++)
        problems += count_errors(c, &c->workers[i]);
    problems += count_errors(c, &c->coordinator);
    if (problems == 0)
        nftw(c->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    else
        fprintf(stderr, "harness: the logs are in %s\n", c->dir);
    for (struct harness_cluster **at = &live; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    free(c);
    return problems;
}

void harness_cluster_allow_error(struct harness_cluster *c, const char *text)
{
    assert(c->n_allowed < ALLOWED_MAX);
    c->allowed[c->n_allowed++] = text;
}

static const char *endpoint_of(const struct daemon *d, const char *transport)
{
    size_t len = strlen(transport);
    for (uint32_t i = 0; i < d->n_endpoints; i++)
        if (strncmp(d->endpoints[i], transport, len) == 0 && strncmp(d->endpoints[i] + len, "://", 3) == 0)
            return d->endpoints[i];
    fprintf(stderr, "harness: the %s has no endpoint of kind %s\n", d->name, transport);
    abort();
}

const char *harness_cluster_endpoint(const struct harness_cluster *c, const char *transport)
{
    return endpoint_of(&c->coordinator, transport);
}

const char *harness_cluster_worker_name(const struct harness_cluster *c, uint32_t worker)
{
    return find(c, worker)->name;
}

const char *harness_cluster_dir(const struct harness_cluster *c)
{
    return c->dir;
}

const char *harness_cluster_secret_file(const struct harness_cluster *c)
{
    return c->secret;
}

const char *harness_cluster_token_file(const struct harness_cluster *c)
{
    return c->options.token ? c->token : NULL;
}

uint32_t harness_cluster_workers(const struct harness_cluster *c)
{
    return c->n_workers;
}

int harness_cluster_pid(const struct harness_cluster *c, uint32_t who)
{
    return find(c, who)->pid;
}

void harness_cluster_signal(struct harness_cluster *c, uint32_t who, int sig)
{
    struct daemon *d = find(c, who);
    if (d->pid <= 0)
        return;
    kill(d->pid, sig);
    if (sig != SIGKILL && sig != SIGTERM)
        return;
    if (d->of_job) { // its parent reaps it
        struct timespec pause = {.tv_nsec = 2000000};
        uint64_t deadline = common_clock_after(STOP_TIMEOUT_NS);
        c->job_hurt = true;
        while (kill(d->pid, 0) == 0 && common_clock_left(deadline) > 0)
            nanosleep(&pause, NULL);
        d->pid = 0;
        return;
    }
    if (!harness_process_wait(d->pid, STOP_TIMEOUT_NS, NULL)) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
    }
    d->pid = 0;
}

bool harness_cluster_ended(struct harness_cluster *c, uint32_t who, int *code)
{
    struct daemon *d = find(c, who);
    int status;
    if (d->pid <= 0 || waitpid(d->pid, &status, WNOHANG) != d->pid)
        return false;
    d->pid = 0;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

bool harness_cluster_launch(struct harness_cluster *c, uint32_t who)
{
    struct daemon *d = find(c, who);
    assert(d->pid == 0);
    return d == &c->coordinator ? start_coordinator(c, d) : start_worker(c, d);
}

void harness_cluster_leave(struct harness_cluster *c)
{
    assert(c->old.pid == 0);
    c->old.pid = c->coordinator.pid;
    c->coordinator.pid = 0;
}

bool harness_cluster_is_ready(const struct harness_cluster *c, uint32_t who)
{
    const struct daemon *d = find(c, who);
    return d->pid > 0 && access(d->ready, F_OK) == 0;
}

bool harness_cluster_supervise(struct harness_cluster *c, int *refused)
{
    struct timespec pause = {.tv_nsec = 20000000};
    uint64_t deadline = common_clock_after(READY_TIMEOUT_NS);
    for (*refused = 0; common_clock_left(deadline) > 0; (*refused)++) {
        int code = 0;
        if (!c->coordinator.pid && !harness_cluster_launch(c, HARNESS_COORDINATOR))
            return false;
        while (!harness_cluster_is_ready(c, HARNESS_COORDINATOR) &&
               !harness_cluster_ended(c, HARNESS_COORDINATOR, &code) && common_clock_left(deadline) > 0)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        if (c->coordinator.pid)
            return wait_ready(&c->coordinator);
        if (code != COMMON_DAEMON_START)
            break;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "harness: the next coordinator does not start\n");
    return false;
}

bool harness_cluster_restart(struct harness_cluster *c, uint32_t who)
{
    return harness_cluster_launch(c, who) && wait_ready(find(c, who));
}

bool harness_cluster_job_ended(struct harness_cluster *c, uint64_t timeout_ns)
{
    if (c->job.pid > 0 && !harness_process_wait(c->job.pid, timeout_ns, NULL))
        return false;
    c->job.pid = 0;
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (c->workers[i].of_job)
            c->workers[i].pid = 0;
    return true;
}

bool harness_cluster_job_restart(struct harness_cluster *c)
{
    assert(c->job.pid == 0);
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (c->workers[i].of_job && !start_worker(c, &c->workers[i]))
            return false;
    if (!start_job(c))
        return false;
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (c->workers[i].of_job && !wait_ready(&c->workers[i]))
            return false;
    return true;
}

uint32_t harness_cluster_add_worker(struct harness_cluster *c, const char *host)
{
    return harness_cluster_add(c, &(struct harness_worker){.host = host});
}

uint32_t harness_cluster_add(struct harness_cluster *c, const struct harness_worker *worker)
{
    struct daemon *d = new_worker(c, worker->host);
    if (d)
        d->own = *worker;
    return d && start_worker(c, d) && wait_ready(d) ? c->n_workers - 1 : UINT32_MAX;
}

char *harness_cluster_log(const struct harness_cluster *c, uint32_t who)
{
    char *text = read_file(find(c, who)->log);
    return text ? text : calloc(1, 1);
}
