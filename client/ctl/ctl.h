// SPDX-License-Identifier: Apache-2.0
// banyanctl: one table of commands, a file a group of them. A command gets its arguments parsed and, unless
// it says otherwise, a connection.
#ifndef CLIENT_CTL_H
#define CLIENT_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"
#include "common/cli/options.h"

enum ctl_exit { // docs/reference/exit-codes.md
    CTL_OK = 0,
    CTL_INTERNAL = 1,
    CTL_USAGE = 2,
    CTL_NOT_FOUND = 3,
    CTL_REFUSED = 4, // input that is wrong whatever the state
    CTL_UNAVAILABLE = 5,
    CTL_TIMEOUT = 6,
    CTL_PERMISSION = 7,
    CTL_EXHAUSTED = 8,
    CTL_STATE = 9, // the state forbids it: exists already, a hole, overtaken
    CTL_DATA_LOSS = 10,
    CTL_FILE = 11, // a local file cannot be read or written
    CTL_UNSUPPORTED = 12,
};

struct ctl {
    const char *endpoint, *token_file;
    const char *endpoint_from, *token_file_from; // what says so, for people
    const char *tls_ca, *tls_cert, *tls_key;     // NULL: not given
    const char *context;                         // whose settings they are; NULL: none's
    uint64_t timeout_ns;                         // of each call
    uint64_t limit_ns;                           // --timeout; UINT64_MAX: it was not given
    bool json, wide, names; // --output; none: a table of what fits a terminal. json: YAML, too
    banyan_client *client;
};

struct ctl_command {
    const char *name;                    // one word, or two: "session show". NULL ends a table
    const char *synopsis;                // of its arguments
    const char *summary;                 // a line for the list of commands
    const char *about;                   // more, for its own help; NULL: the summary
    const struct common_option *options; // its own; NULL: none
    int min_args, max_args;
    enum ctl_exit (*run)(struct ctl *ctl, int n_args, char **args);
    // What can be wrong without a coordinator: numbers, options, local files. Before connecting; NULL:
    // nothing. If run is NULL it does all the work, without a connection.
    enum ctl_exit (*check)(int n_args, char **args);
};

extern const struct ctl_command ctl_info_commands[], ctl_sessions_commands[], ctl_session_commands[],
    ctl_tensor_commands[], ctl_watch_commands[], ctl_quarantine_commands[], ctl_snapshot_commands[],
    ctl_worker_commands[], ctl_scrub_commands[], ctl_shell_commands[], ctl_until_commands[],
    ctl_context_commands[], ctl_destroy_commands[], ctl_top_commands[], ctl_doctor_commands[],
    ctl_backup_commands[], ctl_bench_commands[], ctl_probe_commands[], ctl_join_commands[],
    ctl_events_commands[], ctl_create_commands[], ctl_pki_commands[], ctl_trail_commands[],
    ctl_token_commands[], ctl_quota_commands[], ctl_prefix_commands[], ctl_version_commands[],
    ctl_workers_commands[], ctl_backup_verify_commands[], ctl_config_commands[], ctl_bundle_commands[];

// What is settled, for the library; the caller adds the rest.
banyan_options ctl_options(const struct ctl *ctl);
// With what is settled; for commands that connect by themselves, the others have been connected.
banyan_code ctl_connect(struct ctl *ctl, banyan_error *error);
enum ctl_exit ctl_connect_fail(const banyan_error *error); // reports why it has failed

// ---- args.c -----------------------------------------------------------------------------------------------

#define CTL_ARGS_MAX 8

// Parses what follows the command's name: its options and the global ones, before, between and behind its
// arguments. False with *exit_code set when the program is to end: help was asked for, or there is a mistake
// (reported on stderr).
bool ctl_parse(const struct ctl_command *command, int argc, char **argv, struct ctl *ctl, char **args,
               int *n_args, enum ctl_exit *exit_code);
const struct common_option *ctl_global_options(void); // their values lie in args.c until ctl_settle
#define CTL_OPTIONS_MAX 32
// A command's own and the global ones in one table; of one name, its own.
void ctl_all_options(const struct ctl_command *command, struct common_option out[CTL_OPTIONS_MAX]);
// Takes global values: what options say, else the environment, else the context. What is wrong with them is
// reported.
enum ctl_exit ctl_settle(struct ctl *ctl);
enum ctl_exit ctl_endpoint_check(const struct ctl *ctl); // the form of its endpoint; part of ctl_settle
void ctl_take_given(
    struct ctl *ctl); // what options say, and nothing else: NULL, or UINT64_MAX, where they do not

// ---- output.c ---------------------------------------------------------------------------------------------

enum ctl_format {
    CTL_TEXT,
    CTL_COUNT,
    CTL_BYTES,
    CTL_TIME,
    CTL_RATE,
    CTL_REAL,
    CTL_LINES,       // a list of texts, each on a line of its own
    CTL_WIDE = 0x100 // beside one of these: a column that --output=wide alone shows
};
struct ctl_column {
    const char *key, *title; // of the JSON object; heading. NULL ends a list
    enum ctl_format format;
};

// JSON: prints the value as it is. Table: rows are objects. Names: the first column alone. All take the
// reference.
void ctl_print_rows(const struct ctl *ctl, json_t *rows, const struct ctl_column *columns);
void ctl_print_record(const struct ctl *ctl, json_t *record,
                      const struct ctl_column *fields); // a line a field
// As rows, drawn as a tree: each row has "rank" and "parent" (−1: none), and the first column holds the
// branches.
void ctl_print_tree(const struct ctl *ctl, json_t *rows, const struct ctl_column *columns);
void ctl_print_json(json_t *value); // or as YAML, with --output=yaml
// --output=yaml, and --columns: keys or headings as "name,free"; NULL: those that the command chooses.
void ctl_output_as(bool yaml, const char *columns);
enum ctl_exit ctl_output_over(void); // USAGE, reported: --columns named one that is none
bool ctl_want_color(void);           // standard output is a terminal, and NO_COLOR does not say no
json_t *ctl_json_id(uint64_t id);    // "0x…": 64 bits do not fit every reader's numbers
json_t *ctl_json_u64(uint64_t value);

// PERMISSION, reported: this client's access shows no workers, and `what` needs them.
enum ctl_exit ctl_fail_restricted(const banyan_cluster_info *info, const char *what);
// Reports an error of the library on stderr, with what to do next.
enum ctl_exit ctl_fail(const banyan_error *error);
enum ctl_exit ctl_say(enum ctl_exit code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); // on stderr; returns code

// ---- shell.c ----------------------------------------------------------------------------------------------

// ---- context.c --------------------------------------------------------------------------------------------

struct common_error;
enum ctl_exit
ctl_contexts_fail(const struct common_error *err); // reports why contexts.h's file cannot be used

// ---- moment.c ---------------------------------------------------------------------------------------------

// "2026-11-25T17:00:00Z", the local time without the Z, or how long ago: "10m". Nanoseconds since 1970, UTC.
bool ctl_moment_parse(const char *text, uint64_t *out_ns);

// ---- session.c --------------------------------------------------------------------------------------------

// By id (decimal or 0x…) or name; reports a failure on stderr.
enum ctl_exit ctl_session_open(struct ctl *ctl, const char *text, banyan_session **out);
json_t *ctl_session_json(const banyan_session_info *info); // what lists and 'session show' say of it alike
enum ctl_exit ctl_session_show(struct ctl *ctl, banyan_session *session); // and closes the hold
enum ctl_exit ctl_name_check(const char *name); // of a new session; USAGE, reported: it is empty
enum ctl_exit ctl_length_parse(const char *text,
                               uint64_t *out); // a number of tokens; USAGE, reported: it is not one

#endif
