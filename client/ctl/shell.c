// SPDX-License-Identifier: Apache-2.0
// The command completion, which prints the scripts of client/ctl/completion/.
#include "client/ctl/shell.h"

#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"

static enum ctl_exit print_script(int n_args, char **args)
{
    (void)n_args;
    for (const struct ctl_script *s = ctl_scripts; s->shell; s++)
        if (strcmp(s->shell, args[0]) == 0) {
            fputs(s->text, stdout);
            if (fflush(stdout) != 0)
                return ctl_say(CTL_FILE, "cannot write to standard output");
            return CTL_OK;
        }
    return ctl_say(CTL_USAGE, "completion: '%.40s' is not one of bash, zsh, fish", args[0]);
}

const struct ctl_command ctl_shell_commands[] = {
    {"help", "[COMMAND...]", "list commands, or describe one", NULL, NULL, 0, 2, NULL, NULL}, // main.c
    {"completion", "bash|zsh|fish", "print a completion script for a shell",
     "Prints a script that completes commands, options, their values, and names of sessions and workers for\n"
     "banyanctl, banyan-coordinator and banyan-worker. cmake --install puts it where shells look for it. For "
     "the\n"
     "running shell only: source <(banyanctl completion bash), likewise with zsh; banyanctl completion fish "
     "| source.",
     NULL, 1, 1, NULL, print_script},
    {0},
};
