// SPDX-License-Identifier: Apache-2.0
// All commands of banyanctl, a table for each file of them.
#ifndef CLIENT_CTL_GROUPS_H
#define CLIENT_CTL_GROUPS_H

#include <stdbool.h>

#include "client/ctl/ctl.h"

extern const struct ctl_command *const ctl_groups[]; // tables of commands; NULL ends it

// By one word, or by two; second may be NULL. NULL: there is none.
const struct ctl_command *ctl_find(const char *first, const char *second);
// How many words of the command line name it, of which this is the first: an alias may have another number.
int ctl_words(const struct ctl_command *command, const char *first);
bool ctl_is_group(const char *word); // the first one of commands of two words

#endif
