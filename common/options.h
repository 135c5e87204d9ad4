// SPDX-License-Identifier: Apache-2.0
// Command lines of the daemons, the admin CLI, the examples and the benchmarks: one table gives parsing,
// checks and --help.
#ifndef COMMON_OPTIONS_H
#define COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum common_option_type {
    COMMON_OPTION_FLAG,     // bool *, set true
    COMMON_OPTION_STRING,   // const char **, points into argv
    COMMON_OPTION_U64,      // uint64_t *, decimal, within [min, max]
    COMMON_OPTION_SIZE,     // uint64_t *, bytes: 4096, 64K, 16M, 2G, 1T (powers of 1024), within [min, max]
    COMMON_OPTION_DURATION, // uint64_t *, nanoseconds: 250us, 10ms, 5s, 2m, 1h; a bare number is seconds
    COMMON_OPTION_DOUBLE,   // double *, finite
};

struct common_option {
    const char *name; // without dashes; NULL ends the table: its help, if any, stands behind the options
    char letter;      // short form or 0
    enum common_option_type type;
    void *out;
    const char *arg;   // name of the argument in --help
    const char *help;  // one or more lines
    uint64_t min, max; // U64 and SIZE; both 0: any
};

struct common_command {
    const char *program;  // "banyan-worker"
    const char *synopsis; // "[options]" or "[options] COMMAND ..."
    const char *about;    // paragraph for --help: what it is
    const struct common_option *options;
};

// Parses; stops at the first argument that is no option (its index goes to *rest) or at "--".
// -h/--help prints help on stdout and returns COMMON_CANCELLED; --version likewise. A mistake returns
// INVALID_ARGUMENT with a sentence that names the option and ends in "try 'PROGRAM --help'".
enum common_code common_options_parse(const struct common_command *command, int argc, char **argv, int *rest,
                                      struct common_error *err);

enum common_code common_parse_size(const char *text, uint64_t *out);
enum common_code common_parse_duration(const char *text, uint64_t *out_ns);
enum common_code common_parse_u64(const char *text, uint64_t *out);

// "1.5 GiB", "12.3 ms" for people. Return buf.
const char *common_format_bytes(uint64_t bytes, char *buf, size_t len);
const char *common_format_ns(uint64_t ns, char *buf, size_t len);

#endif
