// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/careful.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool asks(const struct ctl_careful *given)
{
    return !given->yes && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

bool ctl_careful_speaks(const struct ctl_careful *given)
{
    return given->dry_run || asks(given);
}

// Nothing, the end of input, and anything but y and yes mean no.
static bool answer_is_yes(void)
{
    char line[16];
    if (!fgets(line, sizeof line, stdin))
        return false;
    line[strcspn(line, "\r\n")] = '\0';
    return strcmp(line, "y") == 0 || strcmp(line, "Y") == 0 || strcmp(line, "yes") == 0;
}

bool ctl_careful_may(struct ctl *ctl, const struct ctl_careful *given, const char *words, json_t *what,
                     enum ctl_exit *exit_code)
{
    *exit_code = CTL_OK;
    if (given->dry_run) {
        json_object_set_new(what, "dry_run", json_true());
        if (ctl->json)
            ctl_print_json(what); // takes it
        else {
            printf("would %s\n", words);
            json_decref(what);
        }
        return false;
    }
    json_decref(what);
    if (!asks(given))
        return true;
    fprintf(stderr, "about to %s\n  of the cluster at %s (%s)\nContinue? [y/N] ", words, ctl->endpoint,
            ctl->endpoint_from);
    fflush(stderr);
    if (answer_is_yes())
        return true;
    *exit_code = ctl_say(CTL_TIMEOUT, "nothing was done");
    return false;
}
