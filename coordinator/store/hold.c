// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/hold.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/store/hold_file.h"

#define TRIES     8 // the file may be moved away each time
#define TEXT_SIZE 192

struct coordinator_hold {
    struct coordinator_hold_file *file;
};

static void describe(char *text, size_t bytes)
{
    char host[65] = "", when[32] = "";
    time_t now = (time_t)(common_clock_wall_ns() / COMMON_NS_PER_S);
    struct tm tm;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "?");
    if (gmtime_r(&now, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    snprintf(text, bytes, "process %ld on host %s since %s\n", (long)getpid(), host, when);
}

static enum common_code refuse(const struct coordinator_hold_file *file, const char *path,
                               struct common_error *err)
{
    char who[TEXT_SIZE];
    coordinator_hold_file_read(file, who, sizeof who);
    return common_error_set(err, COMMON_FAILED_PRECONDITION,
                            "store %s is in use by a coordinator (%s): one coordinator serves a store; stop "
                            "that one, or choose another --store",
                            path, who[0] ? who : "not identified yet");
}

// IN_PROGRESS: the file that was locked has lost its name.
static enum common_code try_once(const char *path, const char *lock_path, struct coordinator_hold_file **out,
                                 struct common_error *err)
{
    struct coordinator_hold_file *file = NULL;
    enum common_code code = coordinator_hold_file_open(lock_path, &file, err);
    if (code != COMMON_OK)
        return code;
    code = coordinator_hold_file_lock(file, err);
    if (code == COMMON_IN_PROGRESS)
        code = refuse(file, path, err);
    else if (code == COMMON_OK && !coordinator_hold_file_named(file))
        code = COMMON_IN_PROGRESS;
    if (code == COMMON_OK)
        *out = file;
    else
        coordinator_hold_file_close(file);
    return code;
}

enum common_code coordinator_hold_take(const char *path, struct coordinator_hold **out,
                                       struct common_error *err)
{
    char lock_path[PATH_MAX], who[TEXT_SIZE];
    struct coordinator_hold_file *file = NULL;
    if (snprintf(lock_path, sizeof lock_path, "%s-lock", path) >= (int)sizeof lock_path)
        return common_error_set(err, COMMON_UNAVAILABLE, "the path of the store is too long");
    enum common_code code = COMMON_IN_PROGRESS;
    for (int i = 0; i < TRIES && code == COMMON_IN_PROGRESS; i++)
        code = try_once(path, lock_path, &file, err);
    if (code == COMMON_IN_PROGRESS)
        return common_error_set(err, COMMON_UNAVAILABLE, "%s keeps being removed: leave it in place",
                                lock_path);
    if (code != COMMON_OK)
        return code;
    const char *network = coordinator_hold_file_network(file);
    if (network)
        common_log_warn("the store is on a network file system, where locks of other machines may go unseen: "
                        "start no second coordinator on it, and prefer a local disk store=%s kind=%s",
                        path, network);
    describe(who, sizeof who);
    (void)coordinator_hold_file_write(file, who); // the lock counts, also on a full disk
    COMMON_FAILPOINT("hold_taken");
    struct coordinator_hold *hold = calloc(1, sizeof *hold);
    if (!hold) {
        coordinator_hold_file_close(file);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    }
    hold->file = file;
    *out = hold;
    return COMMON_OK;
}

bool coordinator_hold_named(const struct coordinator_hold *hold)
{
    return coordinator_hold_file_named(hold->file);
}

void coordinator_hold_end(struct coordinator_hold *hold, void (*close)(void *arg), void *arg)
{
    close(arg);
    COMMON_FAILPOINT("hold_closed");
    if (!hold)
        return;
    coordinator_hold_file_close(hold->file);
    free(hold);
}
