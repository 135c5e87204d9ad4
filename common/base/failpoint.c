// SPDX-License-Identifier: Apache-2.0
#include "common/base/failpoint.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME_BYTES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // over the two below
static char counted[NAME_BYTES];                         // the point that was armed last
static unsigned hits;                                    // of it, in this process

struct armed {
    char name[NAME_BYTES], action[NAME_BYTES];
    unsigned nth;
    char next[4 * NAME_BYTES]; // the lines after it
};

static bool read_armed(const char *path, struct armed *out)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fscanf(file, "%63s %63s %u ", out->name, out->action, &out->nth) == 3;
    out->next[ok ? fread(out->next, 1, sizeof(out->next) - 1, file) : 0] = '\0';
    fclose(file);
    return ok;
}

static void arm_next(const char *path, const char *lines)
{
    char tmp[4096];
    snprintf(tmp, sizeof(tmp), "%s.next", path);
    FILE *file = fopen(tmp, "we");
    if (file && fputs(lines, file) >= 0 && fclose(file) == 0)
        rename(tmp, path);
}

static bool is_the_hit(const struct armed *armed)
{
    pthread_mutex_lock(&lock);
    if (strcmp(counted, armed->name) != 0) {
        snprintf(counted, sizeof(counted), "%s", armed->name);
        hits = 0;
    }
    bool is = ++hits == armed->nth;
    pthread_mutex_unlock(&lock);
    return is;
}

static void sleep_ms(unsigned long ms)
{
    struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

bool common_failpoint(const char *name)
{
    const char *path = getenv("BANYAN_FAILPOINT_FILE");
    struct armed armed = {0};
    char taken[4096];
    if (!path || !read_armed(path, &armed) || strcmp(armed.name, name) != 0 || !is_the_hit(&armed))
        return false;
    snprintf(taken, sizeof(taken), "%s.%s", path, armed.next[0] ? "first" : "hit");
    if (rename(path, taken) != 0)
        return false; // another process was here first
    if (armed.next[0])
        arm_next(path, armed.next);
    if (strcmp(armed.action, "kill") == 0)
        kill(getpid(), SIGKILL);
    else if (strcmp(armed.action, "exec") == 0) // as an intruder in this process would: it never returns
        execl("/bin/true", "true", (char *)NULL);
    else if (strncmp(armed.action, "delay:", 6) == 0)
        sleep_ms(strtoul(armed.action + 6, NULL, 10));
    bool fails = strcmp(armed.action, "error") == 0;
    if (fails)
        errno = ENOSPC;
    return fails;
}
