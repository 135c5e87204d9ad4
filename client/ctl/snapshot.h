// SPDX-License-Identifier: Apache-2.0
// Commands on the rows that a session holds: session snapshot, session restore, session verify.
#ifndef CLIENT_CTL_SNAPSHOT_H
#define CLIENT_CTL_SNAPSHOT_H

#include "client/ctl/ctl.h"

// 'session restore': restore.c. The check reads the snapshot's manifest before a connection is made.
extern const struct common_option ctl_restore_options[];
enum ctl_exit ctl_restore_check(int n_args, char **args);
enum ctl_exit ctl_restore_run(struct ctl *ctl, int n_args, char **args);

// 'session verify': verify.c.
extern const struct common_option ctl_verify_options[];
extern const char ctl_verify_about[];
enum ctl_exit ctl_verify_run(struct ctl *ctl, int n_args, char **args);

#endif
