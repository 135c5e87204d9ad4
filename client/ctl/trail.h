// SPDX-License-Identifier: Apache-2.0
// The commands on audit logs: audit-log verify, audit-log show (docs/operating/audit.md). They read files of
// this machine.
#ifndef CLIENT_CTL_TRAIL_H
#define CLIENT_CTL_TRAIL_H

#include <stdio.h>

#include "client/ctl/ctl.h"
#include "common/trail/trail_chain.h"

// NULL: it cannot be read, which was reported.
FILE *ctl_trail_open(const char *path);
enum ctl_exit ctl_trail_unreadable(const char *path);

struct ctl_trail_line {
    char *text;       // owned; free
    size_t room, len; // len: without its '\n'
    bool ended;
};
// False: the file ends here, or cannot be read (ferror).
bool ctl_trail_line(FILE *file, struct ctl_trail_line *line);

enum ctl_exit ctl_trail_show(struct ctl *ctl, int n_args, char **args);
enum ctl_exit ctl_trail_show_check(int n_args, char **args);
extern const struct common_option ctl_trail_show_options[];

#endif
