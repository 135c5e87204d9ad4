// SPDX-License-Identifier: Apache-2.0
// The tables behind --help as JSON, for what is made of them when Banyan is built: docs/man/generate.py.
//
//     PROGRAM --tables
#ifndef COMMON_TABLES_H
#define COMMON_TABLES_H

#include <jansson.h>
#include <stdbool.h>

#include "common/cli/options.h"

#define COMMON_TABLES "--tables"

// [{"name", "letter", "arg", "help"}, ...]: what is empty is "". NULL, as below: out of memory.
json_t *common_tables_options(const struct common_option *options);
// {"program", "version", "synopsis", "about", "options"}, these with --help and --version.
json_t *common_tables_command(const struct common_command *command);
// Prints it, and takes the reference.
void common_tables_print(json_t *tables);

// For a program without commands: prints it all when argv asks for it; false: it does not.
bool common_tables(const struct common_command *command, int argc, char **argv);

#endif
