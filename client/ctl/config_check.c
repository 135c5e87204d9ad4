// SPDX-License-Identifier: Apache-2.0
// Command: config check. The daemon itself reads the file, as at its start: it alone knows its options.
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

static struct {
    const char *daemon; // NULL: as the file's name says
} given;

static const struct common_option check_options[] = {
    {"daemon", 'd', COMMON_OPTION_STRING, &given.daemon, "coordinator|worker",
     "Whose file it is. Default: worker if the file's name contains 'worker', else coordinator.", 0, 0},
    {0},
};

// Beside this program, or by PATH.
static void run_daemon(const char *name, const char *file)
{
    char own[PATH_MAX], path[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (quiet < 0 || dup2(quiet, STDOUT_FILENO) < 0)
        _exit(126);
    if (n > 0) {
        own[n] = '\0';
        snprintf(path, sizeof path, "%s/%s", dirname(own), name);
        execl(path, name, "--config", file, "--print-config", (char *)NULL);
    }
    execlp(name, name, "--config", file, "--print-config", (char *)NULL);
    _exit(127);
}

static enum ctl_exit run_check(struct ctl *ctl, int n_args, char **args)
{
    char name[32];
    const char *slash = strrchr(args[0], '/');
    bool worker = given.daemon ? *given.daemon == 'w' : strstr(slash ? slash : args[0], "worker") != NULL;
    int status = 0;
    (void)n_args;
    if (access(args[0], R_OK) != 0)
        return ctl_say(CTL_FILE, "cannot read %s: %s", args[0], strerror(errno));
    snprintf(name, sizeof name, "banyan-%s", worker ? "worker" : "coordinator");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        run_daemon(name, args[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) >= 126)
        return ctl_say(CTL_FILE, "%s cannot be run: install it on this machine", name);
    if (WEXITSTATUS(status) != 0) // it has said why
        return ctl_say(CTL_REFUSED, "%s is wrong: %s would not start with it", args[0], name);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:s, s:b}", "file", args[0], "daemon", name, "right", true));
    else
        printf("%s is right for %s\n", args[0], name);
    return CTL_OK;
}

const struct ctl_command ctl_config_commands[] = {
    {"config check", "FILE", "check a daemon's configuration file",
     "Has this machine's banyan-coordinator or banyan-worker read FILE as it would when it starts, without "
     "starting it.\n"
     "Finds unknown options, wrong values, and options that exclude each other. Exits with 4 if the file is "
     "wrong; stderr\nsays where.",
     check_options, 1, 1, run_check, NULL},
    {0},
};
