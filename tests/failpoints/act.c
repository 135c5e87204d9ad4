// SPDX-License-Identifier: Apache-2.0
#include "tests/failpoints/act.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/e2e/support.h"
#include "tests/harness/process.h"

enum { ARGS_MAX = 24, KILLED = 137, WORKERS = 3 };

#define ACT_NS (60 * COMMON_NS_PER_S) // for one thing that is tried again and again

bool act_find(const char *name, bool (**out)(struct act *))
{
    static const struct {
        const char *name;
        bool (*run)(struct act *);
    } acts[] = {{"snapshot", act_snapshot}, {"swap", act_swap}, {"flip", act_flip},
                {"damage", act_damage},     {"cold", act_cold}, {"forget", act_forget}};
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        if (strcmp(acts[i].name, name) == 0) {
            *out = acts[i].run;
            return true;
        }
    return false;
}

bool act_wrong(struct act *act, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!act->wrong[0])
        vsnprintf(act->wrong, sizeof(act->wrong), format, args);
    va_end(args);
    return false;
}

uint64_t act_until(void)
{
    return common_clock_after(ACT_NS);
}

bool act_out_of_time(uint64_t until_ns)
{
    return common_clock_left(until_ns) == 0;
}

// ---- files ------------------------------------------------------------------------------------------------

const char *act_path(const struct act *act, const char *name)
{
    static char paths[16][600];
    static unsigned n;
    char *path = paths[n++ % 16];
    snprintf(path, sizeof(paths[0]), "%s/%s", harness_cluster_dir(act->cluster), name);
    return path;
}

int act_count(const struct act *act, const char *prefix, const char **first)
{
    DIR *dir = opendir(harness_cluster_dir(act->cluster));
    struct dirent *entry;
    int n = 0;
    while (dir && (entry = readdir(dir)))
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && n++ == 0 && first)
            *first = act_path(act, entry->d_name);
    if (dir)
        closedir(dir);
    return n;
}

bool act_is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

int act_flip_files(const struct act *act)
{
    DIR *dir = opendir(act_path(act, "w0.store/chunks"));
    struct dirent *entry;
    int n = 0;
    while (dir && (entry = readdir(dir))) {
        uint8_t byte;
        int fd = entry->d_name[0] == '.' ? -1 : openat(dirfd(dir), entry->d_name, O_RDWR | O_CLOEXEC);
        off_t at = fd < 0 ? 0 : lseek(fd, 0, SEEK_END) / 2;
        if (fd >= 0 && pread(fd, &byte, 1, at) == 1) {
            byte ^= 4;
            n += pwrite(fd, &byte, 1, at) == 1;
        }
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
    return n;
}

// ---- commands ---------------------------------------------------------------------------------------------

static void mend(struct act *act)
{
    if (!act->coordinator_off && !act->mend())
        act_wrong(act, "a daemon does not come back");
}

static int run(struct act *act, char *const argv[])
{
    const char *log = act_path(act, "act.log");
    int status;
    remove(log);
    pid_t pid = harness_process_start(argv, log);
    if (pid < 0)
        return -1;
    while (!harness_process_wait(pid, COMMON_NS_PER_MS, &status))
        mend(act);
    mend(act);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_line(struct act *act, const char *program_name, char *line)
{
    char program[4096], told[1500], *argv[ARGS_MAX] = {program}, *save;
    size_t n = 1;
    snprintf(told, sizeof(told), "%s", line);
    assert_true(harness_program_path(program_name, program, sizeof(program)));
    for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        assert_true(n < ARGS_MAX - 1);
        argv[n++] = word;
    }
    int code = run(act, argv);
    print_message("%s %s: %d\n", program_name, told, code);
    return code;
}

int act_ctl(struct act *act, const char *format, ...)
{
    char line[1500];
    int n = snprintf(line, sizeof(line), "--endpoint %s --timeout 20s ",
                     harness_cluster_endpoint(act->cluster, "unix"));
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
    va_end(args);
    return run_line(act, "banyanctl", line);
}

int act_restore_store(struct act *act, const char *backup, const char *store)
{
    char line[1500];
    snprintf(line, sizeof(line), "--store %s --restore-backup %s", store, backup);
    return run_line(act, "banyan-coordinator", line);
}

bool act_again(const struct act *act, int code)
{
    bool passes = code == 5 || code == 6 || code == 8; // UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED
    return passes || ((code == KILLED || code == 11) && act->was_hit());
}

bool act_wait_workers(struct act *act)
{
    for (uint64_t until = act_until(); !act_out_of_time(until);)
        if (act_ctl(act, "wait workers %d --timeout 5s", WORKERS) == 0)
            return true;
    return act_wrong(act, "the workers are not active again");
}
