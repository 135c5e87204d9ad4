// SPDX-License-Identifier: Apache-2.0
// Answers for shells that complete a command line, and the tables for the manual page.
#ifndef CLIENT_CTL_COMPLETE_H
#define CLIENT_CTL_COMPLETE_H

#include <stdbool.h>

struct common_command;

// What shells and the build ask: --complete WORD... (common/cli/complete.h), --tables (common/cli/tables.h).
// False: argv asks for neither.
bool ctl_asked(const struct common_command *program, int argc, char **argv);

#endif
