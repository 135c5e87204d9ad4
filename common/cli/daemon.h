// SPDX-License-Identifier: Apache-2.0
// What every daemon does alike: the options that all of them have, the files behind them, signals, the ready
// file, exit codes. On the main thread, before and after the loop runs unless said otherwise.
#ifndef COMMON_DAEMON_H
#define COMMON_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/cli/config.h"
#include "common/cli/options.h"
#include "common/loop/loop.h"
#include "common/secure/harden.h"
#include "common/secure/secret.h"
#include "common/tracing/tracer.h"

enum common_daemon_exit { // docs/reference/exit-codes.md; a daemon may have further ones from 4 on
    COMMON_DAEMON_CLEAN = 0,
    COMMON_DAEMON_USAGE = 2,
    COMMON_DAEMON_START = 3,
};

struct common_daemon {
    // From the command line or the file of --config, by the entries below. NULL: not given.
    const char *secret_file, *token_file, *ready_file, *log_level, *log_format, *http, *seccomp;
    bool http_insecure, core_dumps, stop_on_eof;
    const char *tls_cert, *tls_key, *tls_ca, *tls_client_cert, *http_tls;
    struct common_tracer_options trace;
    uint64_t log_rate;
    struct common_config_file file;
    // By common_daemon_parse: what it was given, and what that has given. To be freed by common_daemon_fini.
    int argc;
    char **argv;
    struct common_config *config;
    struct common_config *loaded; // what SIGHUP has read last; NULL: config
    char *credential;     // the path of the credential "token"; token_file where no option names another
    char *key_credential; // likewise "tls.key", and tls_key
    // By common_daemon_load_keys.
    struct common_secret secret;
    char token[COMMON_TOKEN_MAX + 1]; // "": clients need none
    // By common_daemon_load_tls; a reference, until common_daemon_fini. NULL: no certificate is given.
    struct common_tls *tls;
};

// Entries of a table of options (common/cli/options.h), for the same options in every daemon. `token`,
// `ready` and `serves` are the sentences of --help that differ.
#define COMMON_DAEMON_SECRET_OPTION(daemon)                                                                  \
    {                                                                                                        \
        "secret-file", 's', COMMON_OPTION_STRING, &(daemon)->secret_file, "PATH",                            \
            "The cluster's secret, the same on all hosts; created if it does not exist.\n"                   \
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
#define COMMON_DAEMON_EOF_OPTION(daemon)                                                                     \
    {                                                                                                        \
        "stop-on-eof", 0, COMMON_OPTION_FLAG, &(daemon)->stop_on_eof, NULL,                                  \
            "Stop as on SIGTERM when standard input ends: for a program that starts this daemon,\n"          \
            "holds the other end of the pipe, and may itself be killed.",                                    \
            0, 0                                                                                             \
    }
#define COMMON_DAEMON_HTTP_OPTION(daemon, serves)                                                            \
    {                                                                                                        \
        "http", 0, COMMON_OPTION_STRING, &(daemon)->http, "HOST:PORT", serves, 0, 0                          \
    }
#define COMMON_DAEMON_HTTP_INSECURE_OPTION(daemon)                                                           \
    {                                                                                                        \
        "http-insecure", 0, COMMON_OPTION_FLAG, &(daemon)->http_insecure, NULL,                              \
            "Allow --http beyond loopback although it asks for no token.", 0, 0                              \
    }
#define COMMON_DAEMON_HTTP_TLS_OPTION(daemon)                                                                \
    {                                                                                                        \
        "http-tls", 0, COMMON_OPTION_STRING, &(daemon)->http_tls, "auto|on|off",                             \
            "Whether --http uses HTTPS, with --tls-cert: auto is on if others can reach it and\n"            \
            "off on loopback. Default: auto.",                                                               \
            0, 0                                                                                             \
    }
#define COMMON_DAEMON_TLS_OPTIONS(daemon)                                                                    \
    {"tls-cert",                                                                                             \
     0,                                                                                                      \
     COMMON_OPTION_STRING,                                                                                   \
     &(daemon)->tls_cert,                                                                                    \
     "FILE",                                                                                                 \
     "This daemon's certificate (PEM) and those between it and the authority's; it names\n"                  \
     "the daemon's role ('banyanctl pki issue' makes one). It enables tls:// and nng+tls://\n"               \
     "endpoints. SIGHUP reads the three files again. Default: no TLS.",                                      \
     0,                                                                                                      \
     0},                                                                                                     \
        {"tls-key",                                                                                          \
         0,                                                                                                  \
         COMMON_OPTION_STRING,                                                                               \
         &(daemon)->tls_key,                                                                                 \
         "FILE",                                                                                             \
         "Its key (PEM, not encrypted), readable only by the daemon's user. Default: systemd's\n"            \
         "credential 'tls.key'.",                                                                            \
         0,                                                                                                  \
         0},                                                                                                 \
        {"tls-ca",                                                                                           \
         0,                                                                                                  \
         COMMON_OPTION_STRING,                                                                               \
         &(daemon)->tls_ca,                                                                                  \
         "FILE",                                                                                             \
         "CA certificates to trust (PEM): one, or two for a while\n"                                         \
         "while the authority changes. Default: none.",                                                      \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "tls-client-cert", 0, COMMON_OPTION_STRING, &(daemon)->tls_client_cert, "require|off",               \
            "Whether clients, and browsers at --http, must show a certificate too.\n"                        \
            "Daemons always must. Default: off.",                                                            \
            0, 0                                                                                             \
    }
#define COMMON_DAEMON_HARDEN_OPTIONS(daemon)                                                                 \
    {"seccomp",                                                                                              \
     0,                                                                                                      \
     COMMON_OPTION_STRING,                                                                                   \
     &(daemon)->seccomp,                                                                                     \
     "enforce|log|off",                                                                                      \
     "What happens to system calls that no daemon needs: they fail, and those that only an\n"                \
     "intruder makes end the process (enforce); they are allowed and written to the kernel's\n"              \
     "log (log); or they are not filtered (off). Default: enforce.",                                         \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "core-dumps", 0, COMMON_OPTION_FLAG, &(daemon)->core_dumps, NULL,                                    \
            "Allow core dumps, and debuggers of the same user to attach. A dump contains the\n"              \
            "cluster's secret and tokens, but no stored keys and values.",                                   \
            0, 0                                                                                             \
    }
#define COMMON_DAEMON_LOG_OPTIONS(daemon)                                                                    \
    {"log-level",                                                                                            \
     0,                                                                                                      \
     COMMON_OPTION_STRING,                                                                                   \
     &(daemon)->log_level,                                                                                   \
     "error|warn|info|debug",                                                                                \
     "Least severe level to log. Default: BANYAN_LOG, else info.",                                           \
     0,                                                                                                      \
     0},                                                                                                     \
        {"log-format",                                                                                       \
         0,                                                                                                  \
         COMMON_OPTION_STRING,                                                                               \
         &(daemon)->log_format,                                                                              \
         "text|json|journald",                                                                               \
         "Format of the log: text, JSON objects (one per line) or records for systemd's journal\n"           \
         "(if stderr is not the journal: lines that begin with <PRIORITY>). Default: text.",                 \
         0,                                                                                                  \
         0},                                                                                                 \
    {                                                                                                        \
        "log-rate", 0, COMMON_OPTION_U64, &(daemon)->log_rate, "N",                                          \
            "Log at most so many records of one kind per second, then how many were left out; 0:\n"          \
            "all. A single ERROR is never left out, nor is what --log-level=debug adds.\n"                   \
            "Default: 100.",                                                                                 \
            0, 1u << 20                                                                                      \
    }
#define COMMON_DAEMON_TRACE_OPTIONS(daemon)                                                                  \
    {"trace-file",                                                                                           \
     0,                                                                                                      \
     COMMON_OPTION_STRING,                                                                                   \
     &(daemon)->trace.file,                                                                                  \
     "FILE",                                                                                                 \
     "Append spans of traced steps to this file as lines of OTLP JSON. SIGHUP reopens it.\n"                 \
     "Default: nowhere.",                                                                                    \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "trace-otlp", 0, COMMON_OPTION_STRING, &(daemon)->trace.otlp, "URL",                                 \
            "Send spans of traced steps to a collector as OTLP JSON over HTTP:\n"                            \
            "http://HOST:4318/v1/traces. Default: nowhere.",                                                 \
            0, 0                                                                                             \
    }
#define COMMON_DAEMON_CONFIG_OPTIONS(daemon)                                                                 \
    {"config",                                                                                               \
     0,                                                                                                      \
     COMMON_OPTION_STRING,                                                                                   \
     &(daemon)->file.path,                                                                                   \
     "FILE",                                                                                                 \
     "Also read options from this file: 'name = value' lines and '#' comments; the command\n"                \
     "line takes precedence. -FILE: it may be absent. Default: no file.",                                    \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "print-config", 0, COMMON_OPTION_FLAG, &(daemon)->file.print, NULL,                                  \
            "Print all options, their values and where those come from, in the format of that\n"             \
            "file, and exit.",                                                                               \
            0, 0                                                                                             \
    }

// Parses, with the file of --config, and refuses arguments that are no options. As common_config_read.
// Answers what shells and the build ask (common/cli/complete.h, common/cli/tables.h), and --print-config,
// with CANCELLED, too.
enum common_code common_daemon_parse(struct common_daemon *daemon, const struct common_command *command,
                                     int argc, char **argv, struct common_error *err);
void common_daemon_set_log(const struct common_daemon *daemon); // as it was parsed
void common_daemon_fini(struct common_daemon *daemon);          // all zero, or after parse, is fine

// After SIGHUP. `fresh` was parsed from the same arguments again, and those of its options that `reloads`
// names (NULL ends it) have been taken: sets the log, says in the log what is new and what needs a restart,
// and keeps fresh's configuration. fresh is to be freed all the same.
void common_daemon_reloaded(struct common_daemon *daemon, struct common_daemon *fresh,
                            const char *const *reloads);

// Loads the secret, or makes it and the folders above its default path, with a line in the log; loads the
// token. Never INVALID_ARGUMENT: what is wrong with a file is no mistake on the command line.
enum common_code common_daemon_load_keys(struct common_daemon *daemon, struct common_error *err);

// Reads --tls-cert, --tls-key and --tls-ca, with a line in the log; none of them: nothing. `uri` is what the
// certificate must say of this daemon's role. INVALID_ARGUMENT: some are given, others not; codes of
// common_tls_new else, with FAILED_PRECONDITION in INVALID_ARGUMENT's place; PERMISSION_DENIED: it is another
// role's.
enum common_code common_daemon_load_tls(struct common_daemon *daemon, const char *uri,
                                        struct common_error *err);
// After SIGHUP: reads these files again. What cannot be used changes nothing. With a line in the log. OK
// where there are none.
enum common_code common_daemon_reload_tls(const struct common_daemon *daemon, const char *uri,
                                          struct common_error *err);
// What --http is to speak: NULL, or the daemon's TLS. INVALID_ARGUMENT: --http-tls on, and no certificate.
enum common_code common_daemon_http_tls(const struct common_daemon *daemon, bool is_loopback,
                                        struct common_tls **out, struct common_error *err);
bool common_daemon_wants_client_certs(const struct common_daemon *daemon); // --tls-client-cert require
// For main, when all is set up and before the loop runs: common_harden_enter with what was parsed.
enum common_code common_daemon_harden(const struct common_daemon *daemon, const char *program,
                                      enum common_harden_set set, struct common_error *err);

// ${XDG_STATE_HOME:-~/.local/state}/banyan/NAME, on the heap. A variable that is not an absolute path counts
// as unset. FAILED_PRECONDITION: neither is set; `option` is what the user should give instead ("--store").
enum common_code common_daemon_state_path(const char *name, const char *option, char **out,
                                          struct common_error *err);

// Lets the process have as many descriptors as the system allows it, and warns where `needed` are more than
// that: then connections are refused before the daemon's own limits are reached.
void common_daemon_raise_files(uint64_t needed);

// Makes the folders above a path, for the user alone. What is wrong with them shows when the file is made.
void common_daemon_make_folders(const char *path);

// Writes one line, in the place of what was there: complete or not at all. FAILED_PRECONDITION.
enum common_code common_daemon_write_ready(const char *path, const char *line, struct common_error *err);

// For main. What parsing returned as an exit code, reported on stderr: CLEAN after --help and --version,
// USAGE for INVALID_ARGUMENT, START for the rest.
enum common_daemon_exit common_daemon_refuse(const char *program, enum common_code code,
                                             const struct common_error *err);

// The tracer of a daemon, as it was parsed. `service` and `instance` say whose its spans are, beside host,
// process and version. Codes of common_tracer_set.
enum common_code common_daemon_trace(const struct common_daemon *daemon, struct common_loop *loop,
                                     const char *service, const char *instance, struct common_tracer **out,
                                     struct common_error *err);
// After SIGHUP: takes where spans go from what was parsed again; NULL: only the file is reopened. What cannot
// be taken is said in the log, and nothing has changed then.
void common_daemon_retrace(const struct common_daemon *fresh, struct common_tracer *tracer);

// SIGTERM and SIGINT on the loop's thread, with a line in the log; SIGHUP, too: `reload`, where it is not
// NULL. SIGPIPE is ignored from here on. What waits in lines for the log is swept, and what waits to be wiped
// among blocks (common/memory/block.h). Free before the loop. RESOURCE_EXHAUSTED.
struct common_signals;
enum common_code common_signals_new(struct common_loop *loop, common_loop_fn leave, common_loop_fn reload,
                                    void *arg, struct common_signals **out);
// --stop-on-eof: calls `leave`, once, when standard input ends, which is when every process that holds a
// pipe's other end has closed it or has ended, in whatever way. What arrives before that is thrown away.
// FAILED_PRECONDITION: standard input is a file or /dev/null; RESOURCE_EXHAUSTED.
enum common_code common_signals_watch_input(struct common_signals *signals, struct common_error *err);
void common_signals_free(struct common_signals *signals); // NULL is allowed

#endif
