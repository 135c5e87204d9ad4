// SPDX-License-Identifier: Apache-2.0
// Two examples of each command, for its help, the manual page and the reference.
#ifndef CLIENT_CTL_EXAMPLES_H
#define CLIENT_CTL_EXAMPLES_H

#define CTL_EXAMPLES 2

// CTL_EXAMPLES lines without "banyanctl "; NULL: there is no such command.
const char *const *ctl_examples(const char *command);

#endif
