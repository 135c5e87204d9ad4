// SPDX-License-Identifier: Apache-2.0
#include "common/http/health.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Cut where the text is full.
static size_t add_line(char *text, size_t len, const struct common_health_check *check, const char *why,
                       bool excluded)
{
    int n = snprintf(text + len, COMMON_HEALTH_TEXT - len, "[%c]%s %s%s\n",
                     !why           ? '+'
                     : check->warns ? '!'
                                    : '-',
                     check->name,
                     why        ? check->warns ? "warning: " : "failed: "
                     : excluded ? "excluded"
                                : "ok",
                     why ? why : "");
    len += n > 0 ? (size_t)n : 0;
    return len < COMMON_HEALTH_TEXT ? len : COMMON_HEALTH_TEXT - 1;
}

bool common_health_run(const struct common_health_check *checks, void *daemon, bool verbose,
                       const char *exclude, char text[COMMON_HEALTH_TEXT])
{
    size_t len = 0;
    const char *first = NULL;
    for (const struct common_health_check *check = checks; check->name; check++) {
        bool excluded = exclude && strcmp(exclude, check->name) == 0;
        const char *why = excluded ? NULL : check->fails(daemon);
        first = first || check->warns ? first : why;
        if (verbose)
            len = add_line(text, len, check, why, excluded);
    }
    snprintf(text + len, COMMON_HEALTH_TEXT - len, "%s\n", !first ? "ok" : verbose ? "failed" : first);
    return !first;
}
