// SPDX-License-Identifier: Apache-2.0
// The scripts of client/ctl/completion/, as the build has put them into the program.
#ifndef CLIENT_CTL_SHELL_H
#define CLIENT_CTL_SHELL_H

struct ctl_script {
    const char *shell, *text; // NULL ends the list
};

extern const struct ctl_script ctl_scripts[];

#endif
