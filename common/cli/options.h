// SPDX-License-Identifier: Apache-2.0
// Command lines of the daemons, the admin CLI, the examples and the benchmarks: one table gives parsing,
// checks and --help.
#ifndef COMMON_OPTIONS_H
#define COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum common_option_type {
    COMMON_OPTION_FLAG,     // bool *, set true
    COMMON_OPTION_STRING,   // const char **, points into argv
    COMMON_OPTION_U64,      // uint64_t *, decimal, within [min, max]
    COMMON_OPTION_SIZE,     // uint64_t *, bytes: 4096, 64K, 16M, 2G, 1T (powers of 1024), within [min, max]
    COMMON_OPTION_DURATION, // uint64_t *, nanoseconds: 250us, 10ms, 5s, 2m, 1h, 90d; a bare number is seconds
    COMMON_OPTION_DOUBLE,   // double *, finite
};

struct common_option {
    const char *name; // without dashes; NULL ends the table: its help, if any, stands behind the options
    char letter;      // short form or 0
    enum common_option_type type;
    void *out;
    // Name of the argument in --help. "move|flag|ignore": the value must be one of these words;
    // "auto|none|NODE": or any other, what is in capitals being a name. FILE, PATH and DIR are names of files
    // and folders (common/cli/complete.h).
    const char *arg;
    const char *help;  // one or more lines
    uint64_t min, max; // U64, SIZE and DURATION; both 0: any
};

struct common_command {
    const char *program;  // "banyan-worker"
    const char *synopsis; // "[options]" or "[options] COMMAND ..."
    const char *about;    // paragraph for --help: what it is
    const struct common_option *options;
};

extern const struct common_option common_help_options[]; // that every table has besides: --help, --version

// Parses; stops at the first argument that is no option (its index goes to *rest) or at "--".
// -h/--help prints help on stdout and returns COMMON_CANCELLED; --version likewise. A mistake returns
// INVALID_ARGUMENT with a sentence that names the option and ends in "try 'PROGRAM --help'".
enum common_code common_options_parse(const struct common_command *command, int argc, char **argv, int *rest,
                                      struct common_error *err);

// The same, and each option that stands there is given to `given`, once it is set, with its value (NULL: a
// flag).
typedef void (*common_option_given_fn)(void *arg, const struct common_option *option, const char *value);
enum common_code common_options_walk(const struct common_command *command, int argc, char **argv,
                                     common_option_given_fn given, void *arg, int *rest,
                                     struct common_error *err);

// NULL: the table has none of this name.
const struct common_option *common_option_find(const struct common_option *options, const char *name,
                                               size_t len);
// Sets the variable of one, to a value that stands elsewhere than on a command line; of a flag: NULL, "true"
// or "false". shown: its name in the error, with where it stands. INVALID_ARGUMENT as above.
enum common_code common_option_set(const struct common_command *command, const struct common_option *option,
                                   const char *shown, const char *value, struct common_error *err);
// What its variable has now, as it can be given: in buf, or the string itself. NULL: nothing that could be
// given (a default that depends on others).
#define COMMON_OPTION_TEXT 40
const char *common_option_text(const struct common_option *option, char buf[COMMON_OPTION_TEXT]);

enum common_code common_parse_size(const char *text, uint64_t *out);
enum common_code common_parse_duration(const char *text, uint64_t *out_ns);
enum common_code common_parse_u64(const char *text, uint64_t *out);

// As the parsers read it, with the largest unit that needs no fraction: "64K", "90s".
void common_write_size(uint64_t bytes, char *buf, size_t len);
void common_write_duration(uint64_t ns, char *buf, size_t len);

unsigned common_word_distance(const char *a, const char *b); // edits between two words

// The nth of the parts of an argument's name "auto|none|NODE", *len bytes long; NULL: it has no such part, or
// no parts. *is_word: it is a word that may be given, and no name.
const char *common_option_part(const char *arg, size_t nth, size_t *len, bool *is_word);

// "1.5 GiB", "12.3 ms" for people. Return buf.
const char *common_format_bytes(uint64_t bytes, char *buf, size_t len);
const char *common_format_ns(uint64_t ns, char *buf, size_t len);

#endif
