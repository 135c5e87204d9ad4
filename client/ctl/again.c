// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/again.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

uint64_t ctl_again_ns;

static void rest(void)
{
    nanosleep(&(struct timespec){(time_t)(ctl_again_ns / COMMON_NS_PER_S),
                                 (long)(ctl_again_ns % COMMON_NS_PER_S)},
              NULL);
}

enum ctl_exit ctl_again(struct ctl *ctl, enum ctl_exit (*run)(struct ctl *ctl))
{
    bool clears = isatty(STDOUT_FILENO) && !ctl->json;
    if (!ctl_again_ns)
        return run(ctl);
    for (;;) {
        if (clears)
            fputs("\033[H\033[2J", stdout);
        enum ctl_exit exit_code = run(ctl);
        if (!clears && !ctl->json && !ctl->names)
            putchar('\n');
        if (fflush(stdout) != 0)
            return ctl_say(CTL_FILE, "cannot write to standard output");
        if (exit_code != CTL_OK && exit_code != CTL_UNAVAILABLE && exit_code != CTL_TIMEOUT)
            return exit_code;
        rest();
    }
}
