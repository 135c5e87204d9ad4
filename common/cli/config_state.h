// SPDX-License-Identifier: Apache-2.0
// Shared by config.c and config_print.c only.
#ifndef COMMON_CONFIG_STATE_H
#define COMMON_CONFIG_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/cli/config.h"

enum origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_LINE };

struct setting {
    const char *name; // the table's
    enum origin origin;
    unsigned line; // of the file, also where the command line wins; 0: it is not there
    char *value;   // as common_option_text, when all is read; NULL: none
};

struct common_config {
    char *path, *text; // of the file; NULL: none. Values of the table's variables lie in the text
    size_t n;
    struct setting settings[];
};

bool common_config_space(char c);
bool common_config_has_comment(const char *value); // "#" at its start, or behind a space
bool common_config_has_control(const char *text);  // other than a tab
bool common_config_line_only(const struct common_config_file *file, const struct common_option *option);

#endif
