// SPDX-License-Identifier: Apache-2.0
// Command: support-bundle. What somebody who helps from afar asks for first, in one file.
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/redact.h"
#include "client/ctl/tar.h"
#include "common/base/clock.h"

#define PART_MAX   (8u << 20) // of one part: the end of a log, the beginning of anything else
#define ARGS_MAX   24
#define METRICS_NS (10 * COMMON_NS_PER_S)

static struct {
    const char *metrics;
} given;

static const struct common_option bundle_options[] = {
    {"metrics", 0, COMMON_OPTION_STRING, &given.metrics, "HOST:PORT",
     "Where the coordinator serves /metrics without TLS (--http). Default: no metrics.", 0, 0},
    {0},
};

struct bundle {
    const struct ctl *ctl;
    int fd;
    unsigned parts, missing;
    char manifest[8192];
    bool written;
};

struct bytes {
    char *data;
    size_t len;
};

static void note(struct bundle *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct bundle *b, const char *fmt, ...)
{
    size_t used = strlen(b->manifest);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->manifest + used, sizeof b->manifest - used, fmt, ap);
    va_end(ap);
}

static void add(struct bundle *b, const char *name, struct bytes *part, const char *why_not)
{
    b->parts++;
    b->missing += why_not != NULL;
    note(b, "%-16s %s\n", name, why_not ? why_not : "ok");
    part->len = ctl_redact(part->data, part->len);
    if (b->written && part->len)
        b->written = ctl_tar_add(b->fd, name, part->data, part->len);
    free(part->data);
}

// Reads to the end; of what is longer than PART_MAX the beginning is kept, and the rest is read and dropped.
static struct bytes read_all(int fd)
{
    struct bytes out = {.data = malloc(PART_MAX + 1)};
    char rest[4096];
    if (!out.data)
        abort();
    for (;;) {
        bool full = out.len == PART_MAX;
        ssize_t n = full ? read(fd, rest, sizeof rest) : read(fd, out.data + out.len, PART_MAX - out.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return out;
        out.len += full ? 0 : (size_t)n;
    }
}

// What a program writes to stdout and stderr; its exit code.
static struct bytes output_of(char *const argv[], int *code)
{
    int ends[2], status = 0;
    *code = 127;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return (struct bytes){.data = calloc(1, 1)};
    pid_t pid = fork();
    if (pid == 0) {
        int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (dup2(none, STDIN_FILENO) >= 0 && dup2(ends[1], STDOUT_FILENO) >= 0 &&
            dup2(ends[1], STDERR_FILENO) >= 0)
            execvp(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    struct bytes out = read_all(ends[0]);
    close(ends[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (pid > 0 && WIFEXITED(status))
        *code = WEXITSTATUS(status);
    return out;
}

// A command of this program, with the endpoint and files that are settled here.
static void add_command(struct bundle *b, const char *name, const char *first, const char *second)
{
    char timeout[32], why[48], *argv[ARGS_MAX];
    const char *const options[][2] = {{"--endpoint", b->ctl->endpoint}, {"--token-file", b->ctl->token_file},
                                      {"--tls-ca", b->ctl->tls_ca},     {"--tls-cert", b->ctl->tls_cert},
                                      {"--tls-key", b->ctl->tls_key},   {"--timeout", timeout}};
    int n = 0, code;
    snprintf(timeout, sizeof timeout, "%" PRIu64 "ms", b->ctl->timeout_ns / COMMON_NS_PER_MS);
    argv[n++] = (char *)"/proc/self/exe";
    argv[n++] = (char *)first;
    if (second)
        argv[n++] = (char *)second;
    argv[n++] = (char *)"--json";
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i][1]) {
            argv[n++] = (char *)options[i][0];
            argv[n++] = (char *)options[i][1];
        }
    argv[n] = NULL;
    struct bytes out = output_of(argv, &code);
    snprintf(why, sizeof why, "banyanctl ended with code %d", code);
    add(b, name, &out, code == CTL_OK || (code == CTL_STATE && strcmp(first, "doctor") == 0) ? NULL : why);
}

static void add_journal(struct bundle *b)
{
    char *argv[] = {(char *)"journalctl",
                    (char *)"--no-pager",
                    (char *)"--quiet",
                    (char *)"--since=-24h",
                    (char *)"--lines=20000",
                    (char *)"--unit=banyan-coordinator",
                    (char *)"--unit=banyan-worker@*",
                    NULL};
    int code;
    struct bytes out = output_of(argv, &code);
    const char *why = code      ? "journalctl cannot be run here"
                      : out.len ? NULL
                                : "no banyan unit has logged here";
    if (why)
        out.len = 0;
    add(b, "journal.txt", &out, why);
}

static void add_file(struct bundle *b, unsigned nth, const char *path)
{
    char name[100];
    const char *slash = strrchr(path, '/');
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (end >= 0)
        lseek(fd, end > PART_MAX ? end - PART_MAX : 0, SEEK_SET);
    struct bytes out = fd >= 0 ? read_all(fd) : (struct bytes){.data = calloc(1, 1)};
    snprintf(name, sizeof name, "files/%u-%.80s", nth, slash ? slash + 1 : path);
    add(b, name, &out, fd >= 0 ? NULL : strerror(errno));
    if (fd >= 0)
        close(fd);
}

static int dial(const char *address)
{
    char host[128];
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (!colon || (size_t)(colon - address) >= sizeof host)
        return -1;
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return -1;
    int fd = -1;
    struct timeval limit = {.tv_sec = METRICS_NS / COMMON_NS_PER_S};
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

static void add_metrics(struct bundle *b)
{
    char ask[320];
    const char *address = strncmp(given.metrics, "http://", 7) == 0 ? given.metrics + 7 : given.metrics;
    int fd = dial(address);
    int len = snprintf(ask, sizeof ask, "GET /metrics HTTP/1.1\r\nHost: %.200s\r\nConnection: close\r\n\r\n",
                       address);
    bool sent = fd >= 0 && send(fd, ask, (size_t)len, MSG_NOSIGNAL) == len;
    struct bytes out = sent ? read_all(fd) : (struct bytes){.data = calloc(1, 1)};
    const char *why = !sent                                            ? "cannot connect"
                      : out.len < 12 || memcmp(out.data + 9, "200", 3) ? "the answer is not 200"
                                                                       : NULL;
    add(b, "metrics.txt", &out, why);
    if (fd >= 0)
        close(fd);
}

static enum ctl_exit run_bundle(struct ctl *ctl, int n_args, char **args)
{
    static const char *const commands[][3] = {
        {"version.json", "version", NULL},   {"status.json", "status", NULL},
        {"workers.json", "workers", NULL},   {"sessions.json", "sessions", NULL},
        {"events.json", "events", NULL},     {"doctor.json", "doctor", NULL},
        {"tenants.json", "tenant", "list"},  {"quarantine.json", "quarantine", "list"},
        {"prefixes.json", "prefix", "list"},
    };
    struct bundle b = {.ctl = ctl, .written = true};
    b.fd = open(args[0], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (b.fd < 0)
        return ctl_say(CTL_FILE, "cannot create %s: %s", args[0], strerror(errno));
    note(&b, "banyanctl %s, endpoint %s\n", banyan_version(), ctl->endpoint);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        add_command(&b, commands[i][0], commands[i][1], commands[i][2]);
    if (given.metrics)
        add_metrics(&b);
    add_journal(&b);
    for (int i = 1; i < n_args; i++)
        add_file(&b, (unsigned)i, args[i]);
    bool good = b.written && ctl_tar_add(b.fd, "MANIFEST", b.manifest, strlen(b.manifest)) &&
                ctl_tar_end(b.fd) && fsync(b.fd) == 0;
    int failed = errno;
    close(b.fd);
    if (!good) {
        unlink(args[0]);
        return ctl_say(CTL_FILE, "cannot write %s: %s", args[0], strerror(failed));
    }
    if (ctl->json)
        ctl_print_json(
            json_pack("{s:s, s:i, s:i}", "file", args[0], "parts", (int)b.parts, "missing", (int)b.missing));
    else
        printf(
            "%s has %u of %u parts; its MANIFEST lists them. It names sessions, tenants and hosts: read it "
            "before you send it\n",
            args[0], b.parts - b.missing, b.parts);
    return CTL_OK;
}

const struct ctl_command ctl_bundle_commands[] = {
    {"support-bundle", "FILE [LOG...]", "collect what a bug report needs in a tar file",
     "Writes a new tar file with the versions, status, workers, sessions, events, doctor's findings, tenants "
     "and\n"
     "quarantine, this machine's journal of banyan's units, and each LOG: a log or configuration file of "
     "this "
     "machine.\n"
     "Tokens, secrets and private keys in them are removed. A part that cannot be read is listed in "
     "MANIFEST, so "
     "it works\n"
     "while the coordinator is down.",
     bundle_options, 1, CTL_ARGS_MAX, run_bundle, NULL},
    {0},
};
