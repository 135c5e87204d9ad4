// SPDX-License-Identifier: Apache-2.0
// A copy of the coordinator's store, and what is said after it was restored: backup, accept.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#include "common/base/failpoint.h"

static struct {
    bool force, without_absent;
} options;

static const struct common_option backup_options[] = {
    {"force", 'f', COMMON_OPTION_FLAG, &options.force, NULL, "Replace FILE if it exists.", 0, 0},
    {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL, NULL, 0, 0},
};

static const struct common_option accept_options[] = {
    {"without-absent", 0, COMMON_OPTION_FLAG, &options.without_absent, NULL,
     "Accept although workers are missing: what only they hold counts as lost.", 0, 0},
    {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL, NULL, 0, 0},
};

struct target {
    const char *path;
    char *temporary; // NULL: written to where it is
    int fd, failure;
};

static bool is_out(const char *path)
{
    return strcmp(path, "-") == 0;
}

// A name that stands for something else (a link, a device, a pipe) is written to where it is.
static bool is_replaced(const char *path)
{
    struct stat st;
    return !is_out(path) && (lstat(path, &st) != 0 || S_ISREG(st.st_mode));
}

static enum ctl_exit check_backup(int n_args, char **args)
{
    struct stat st;
    (void)n_args;
    if (is_out(args[0]) && isatty(STDOUT_FILENO))
        return ctl_say(CTL_USAGE,
                       "not writing a backup to a terminal: name a file, or redirect it with '|' or '>'");
    if (!options.force && !is_out(args[0]) && lstat(args[0], &st) == 0 && S_ISREG(st.st_mode))
        return ctl_say(CTL_FILE, "%s exists: name another file, or replace it with --force", args[0]);
    return CTL_OK;
}

static bool open_target(struct target *t)
{
    if (is_out(t->path)) {
        t->fd = STDOUT_FILENO;
        return true;
    }
    if (!is_replaced(t->path)) {
        t->fd = open(t->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return t->fd >= 0;
    }
    size_t room = strlen(t->path) + 8;
    t->temporary = malloc(room);
    if (!t->temporary)
        abort();
    snprintf(t->temporary, room, "%s.XXXXXX", t->path);
    t->fd = mkstemp(t->temporary);
    return t->fd >= 0;
}

static bool write_target(void *arg, const void *data, size_t len)
{
    struct target *t = arg;
    for (size_t put = 0; put < len;) {
        ssize_t n = write(t->fd, (const char *)data + put, len - put);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            t->failure = n < 0 ? errno : EIO;
            return false;
        }
        put += (size_t)n;
    }
    return true;
}

static void sync_folder(const char *path)
{
    char *copy = strdup(path);
    int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)!fsync(fd); // some file systems know no fsync of a folder
        close(fd);
    }
    free(copy);
}

// Without --force a file that has come meanwhile stays.
static bool name_it(const struct target *t)
{
    if (options.force)
        return rename(t->temporary, t->path) == 0;
    if (link(t->temporary, t->path) != 0)
        return false;
    COMMON_FAILPOINT("backup_named");
    return unlink(t->temporary) == 0;
}

static bool finish(struct target *t, bool good)
{
    if (t->fd == STDOUT_FILENO)
        return good;
    if (good && t->temporary && (COMMON_FAILPOINT_FAILS("backup_written") || fsync(t->fd) != 0))
        good = false, t->failure = errno;
    if (close(t->fd) != 0 && good)
        good = false, t->failure = errno;
    COMMON_FAILPOINT("backup_synced");
    if (good && t->temporary && !name_it(t))
        good = false, t->failure = errno;
    if (!good && t->temporary)
        unlink(t->temporary);
    if (good && t->temporary)
        sync_folder(t->path);
    return good;
}

static void print_backup(const struct ctl *ctl, const char *path, const banyan_backup *b)
{
    static const struct ctl_column fields[] = {
        {"file", "file", CTL_TEXT},
        {"bytes", "size", CTL_BYTES},
        {"sum", "sum", CTL_TEXT},
        {"sessions", "sessions", CTL_COUNT},
        {"tokens", "attached tokens", CTL_COUNT},
        {"chunks", "chunks", CTL_COUNT},
        {"workers", "workers", CTL_COUNT},
        {"term", "term", CTL_COUNT},
        {0},
    };
    ctl_print_record(ctl,
                     json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "file", path, "bytes",
                               ctl_json_u64(b->bytes), "sum", ctl_json_id(b->sum), "sessions",
                               ctl_json_u64(b->sessions), "tokens", ctl_json_u64(b->tokens), "chunks",
                               ctl_json_u64(b->chunks), "workers", ctl_json_u64(b->workers), "term",
                               ctl_json_u64(b->term)),
                     fields);
}

static enum ctl_exit run_backup(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    struct target target = {.path = args[0], .fd = -1};
    banyan_backup backup;
    banyan_error error;
    if (!open_target(&target)) {
        enum ctl_exit code = ctl_say(CTL_FILE, "cannot write %s: %s", args[0], strerror(errno));
        free(target.temporary);
        return code;
    }
    COMMON_FAILPOINT("backup_target_made");
    banyan_code code = banyan_backup_take(ctl->client, write_target, &target, &backup, &error);
    bool good = finish(&target, code == BANYAN_OK);
    free(target.temporary);
    if (target.failure)
        return ctl_say(CTL_FILE, "cannot write %s: %s", args[0], strerror(target.failure));
    if (!good)
        return ctl_fail(&error);
    if (!is_out(args[0]))
        print_backup(ctl, args[0], &backup);
    else
        fprintf(stderr, "%" PRIu64 " bytes, sum 0x%016" PRIx64 ": %" PRIu64 " sessions\n", backup.bytes,
                backup.sum, backup.sessions);
    return CTL_OK;
}

static enum ctl_exit run_accept(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args, (void)args;
    uint64_t sessions;
    banyan_error error;
    if (banyan_backup_accept(ctl->client, options.without_absent, &sessions, &error) != BANYAN_OK) {
        bool state = error.code == BANYAN_FAILED_PRECONDITION;
        return state ? ctl_say(CTL_STATE, "%s", error.message) : ctl_fail(&error);
    }
    if (ctl->json)
        ctl_print_json(json_pack("{s:o}", "sessions", ctl_json_u64(sessions)));
    else
        printf("%" PRIu64 " sessions are served; 'banyanctl quarantine list' lists those that are not\n",
               sessions);
    return CTL_OK;
}

const struct ctl_command ctl_backup_commands[] = {
    {"backup", "FILE", "copy the coordinator's store while it runs",
     "Writes a consistent copy of the coordinator's store to FILE ('-' for standard output) while the "
     "coordinator\n"
     "serves. FILE appears only when it is complete. To restore: banyan-coordinator --restore-backup FILE.",
     backup_options, 1, 1, run_backup, check_backup},
    {"accept", "", "serve what was restored from a backup",
     "Confirms that all workers are back after a restore. Sessions of which no worker has a newer state are "
     "then served.",
     accept_options, 0, 0, run_accept, NULL},
    {0},
};
