// SPDX-License-Identifier: Apache-2.0
// What every daemon does alike: the options that all of them have, the files behind them, signals, the ready
// file, exit codes. On the main thread, before and after the loop runs unless said otherwise.
#ifndef COMMON_DAEMON_H
#define COMMON_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/loop.h"
#include "common/options.h"
#include "common/secret.h"
#include "common/status.h"

enum common_daemon_exit { // docs/EXIT_CODES.md; a daemon may have further ones from 4 on
    COMMON_DAEMON_CLEAN = 0,
    COMMON_DAEMON_USAGE = 2,
    COMMON_DAEMON_START = 3,
};

struct common_daemon {
    // From the command line, by the entries below. NULL: not given.
    const char *secret_file, *token_file, *ready_file, *log_level;
    // By common_daemon_load_keys.
    struct common_secret secret;
    char token[COMMON_TOKEN_MAX + 1]; // "": clients need none
};

// Entries of a table of options (common/options.h), for the same four options in every daemon. `token` and
// `ready` are the sentences of --help that differ.
#define COMMON_DAEMON_SECRET_OPTION(daemon)                                                                  \
    {                                                                                                        \
        "secret-file", 's', COMMON_OPTION_STRING, &(daemon)->secret_file, "PATH",                            \
            "The cluster's secret, made when it is absent.\n"                                                \
            "Default: ${XDG_STATE_HOME:-~/.local/state}/banyan/cluster.secret.",                             \
            0, 0                                                                                             \
    }
#define COMMON_DAEMON_TOKEN_OPTION(daemon, token)                                                            \
    {                                                                                                        \
        "token-file", 0, COMMON_OPTION_STRING, &(daemon)->token_file, "PATH", token, 0, 0                    \
    }
#define COMMON_DAEMON_READY_OPTION(daemon, ready)                                                            \
    {                                                                                                        \
        "ready-file", 0, COMMON_OPTION_STRING, &(daemon)->ready_file, "PATH", ready, 0, 0                    \
    }
#define COMMON_DAEMON_LOG_OPTION(daemon)                                                                     \
    {                                                                                                        \
        "log-level", 0, COMMON_OPTION_STRING, &(daemon)->log_level, "LEVEL",                                 \
            "error, warn, info or debug. Default: BANYAN_LOG, else info.", 0, 0                              \
    }

// Parses, refuses arguments that are no options, and sets the log level. As common_options_parse.
enum common_code common_daemon_parse(struct common_daemon *daemon, const struct common_command *command,
                                     int argc, char **argv, struct common_error *err);

// Loads the secret, or makes it and the folders above its default path; loads the token. Never
// INVALID_ARGUMENT: what is wrong with a file is no mistake on the command line.
enum common_code common_daemon_load_keys(struct common_daemon *daemon, struct common_error *err);

// ${XDG_STATE_HOME:-~/.local/state}/banyan/NAME, on the heap. A variable that is not an absolute path counts as
// unset. FAILED_PRECONDITION: neither is set; `option` is what the user should give instead ("--store").
enum common_code common_daemon_state_path(const char *name, const char *option, char **out,
                                          struct common_error *err);

// Lets the process have as many descriptors as the system allows it, and warns where `needed` are more than that: then
// connections are refused before the daemon's own limits are reached.
void common_daemon_raise_files(uint64_t needed);

// Makes the folders above a path, for the user alone. What is wrong with them shows when the file is made.
void common_daemon_make_folders(const char *path);

// Writes one line, in the place of what was there: complete or not at all. FAILED_PRECONDITION.
enum common_code common_daemon_write_ready(const char *path, const char *line, struct common_error *err);

// For main. What parsing returned as an exit code, told on stderr: CLEAN after --help and --version, USAGE for
// INVALID_ARGUMENT, START for the rest.
enum common_daemon_exit common_daemon_refuse(const char *program, enum common_code code,
                                             const struct common_error *err);

// SIGTERM and SIGINT on the loop's thread, with a line in the log; SIGPIPE is ignored from here on. Free before
// the loop. RESOURCE_EXHAUSTED.
struct common_signals;
enum common_code common_signals_new(struct common_loop *loop, common_loop_fn leave, void *arg,
                                    struct common_signals **out);
void common_signals_free(struct common_signals *signals); // NULL is allowed

#endif
