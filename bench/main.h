// SPDX-License-Identifier: Apache-2.0
// The main() of a benchmark: its options, --help, --json, and what came of it as an exit code.
#ifndef BENCH_MAIN_H
#define BENCH_MAIN_H

#include <stdbool.h>

#include "common/cli/options.h"

enum bench_status { BENCH_MEASURED, BENCH_FAILED, BENCH_USAGE }; // exit codes: docs/reference/exit-codes.md

struct bench_program {
    const char *name;
    const char *about;                   // paragraph for --help
    const struct common_option *options; // of its own; --json and --help are added
    bool *json;                          // set by --json
    bool (*check)(void);   // of the options beyond their table; false: said on stderr. NULL: none
    bool (*measure)(void); // false: said on stderr what failed
};

// Parses, checks, measures. Returns main's exit code.
int bench_main(const struct bench_program *program, int argc, char **argv);

// The parsing alone, for programs with a table of their own: a mistake, or an argument that is no option, is
// said on stderr. COMMON_CANCELLED: --help was printed.
enum common_code bench_parse(const struct common_command *command, int argc, char **argv);
// The exit code after bench_parse has not returned COMMON_OK.
enum bench_status bench_parse_status(enum common_code code);

#endif
