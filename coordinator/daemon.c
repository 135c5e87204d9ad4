// SPDX-License-Identifier: Apache-2.0
#include "coordinator/daemon.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "common/base/clock.h"
#include "common/cli/daemon.h"
#include "common/cli/options.h"
#include "common/log/log.h"
#include "coordinator/events.h"
#include "proto/rpc/rpc.h"

#define LISTEN_DEFAULT "tcp://127.0.0.1:7412,nng+tcp://127.0.0.1:7411"

// What SIGHUP takes from the file: what is read where it is used. The rest sizes what was made at the start, or is known to
// others by now.
#define RELOADS "audit, grace, log-*, move-rate, replicas, scrub, session-ttl, slow-after and trace-*"
static const char *const reloads[] = {"audit",      "grace",      "log-format",   "log-level",   "log-rate",
                                      "move-rate",  "replicas",   "scrub",        "session-ttl", "slow-after",
                                      "trace-file", "trace-otlp", "trace-sample", NULL};

struct words { // of the command line and the file, that become something else
    const char *listen, *store;
};

static enum common_code split_listen(struct coordinator_daemon_options *out, const char *list,
                                     struct common_error *err)
{
    size_t n = 0;
    out->listen = strdup(list);
    if (!out->listen)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    char *rest = NULL;
    for (char *one = strtok_r(out->listen, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (n == COORDINATOR_LISTEN_MAX)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "--listen: at most %d endpoints",
                                    COORDINATOR_LISTEN_MAX);
        out->endpoints[n++] = one;
    }
    if (!n)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--listen names no endpoint; try 'banyan-coordinator --help'");
    out->config.endpoints = out->endpoints;
    return COMMON_OK;
}

static enum common_code read_options(int argc, char **argv, struct coordinator_daemon_options *out,
                                     struct words *words, struct common_error *err)
{
    memset(out, 0, sizeof(*out));
    *words = (struct words){.listen = LISTEN_DEFAULT};
    struct coordinator_options *config = &out->config;
    coordinator_options_default(config);
    struct common_daemon *daemon = &out->daemon;
    const char *slow = "move", *prefix_cache = NULL;
    uint64_t workers = config->max_workers, sessions = config->max_sessions, steps = config->max_steps,
             clients = config->max_clients, requests = config->max_requests, client_requests = 0,
             replicas = 0, events = config->events;
    const struct common_option options[] = {
        {"listen", 'l', COMMON_OPTION_STRING, &words->listen, "ENDPOINT,...",
         "Endpoints for clients and workers: tls://, nng+tls://, tcp://, nng+tcp:// or unix://.\n"
         "Port 0 takes any free port. TLS and plain endpoints may be mixed.\n"
         "Default: " LISTEN_DEFAULT ".",
         0, 0},
        {"cluster", 0, COMMON_OPTION_STRING, &config->cluster, "NAME",
         "Display name of the cluster. Default: banyan.", 0, 0},
        COMMON_DAEMON_SECRET_OPTION(daemon),
        COMMON_DAEMON_TOKEN_OPTION(daemon,
                                   "One line of 8 to 256 characters. A client that presents it is an admin;\n"
                                   "other tokens come from 'banyanctl token create'.\n"
                                   "Default: systemd's credential 'token', else none."),
        {"insecure", 0, COMMON_OPTION_FLAG, &config->insecure, NULL,
         "Allow addresses other than loopback without TLS or without a token.", 0, 0},
        {"store", 0, COMMON_OPTION_STRING, &words->store, "PATH",
         "Database of this coordinator alone; ':memory:' keeps nothing on disk.\n"
         "Default: ${XDG_STATE_HOME:-~/.local/state}/banyan/coordinator.db.",
         0, 0},
        {"restore-backup", 0, COMMON_OPTION_STRING, &out->restore, "FILE",
         "Create the store at --store, which must not exist, from a file that 'banyanctl backup'\n"
         "wrote, and exit. Its sessions are served once 'banyanctl accept' confirms that all\n"
         "workers are back. Default: nothing is restored.",
         0, 0},
        {"fsync", 0, COMMON_OPTION_FLAG, &config->store_sync_full, NULL,
         "Make acknowledged writes survive a power loss, not only the end of the process.", 0, 0},
        COMMON_DAEMON_HTTP_OPTION(
            daemon, "Serve the dashboard (which asks for a token if the cluster has any), /livez, /readyz\n"
                    "and /metrics (Prometheus, OpenMetrics) at this address; port 0 takes any free port.\n"
                    "Default: nowhere."),
        COMMON_DAEMON_HTTP_INSECURE_OPTION(daemon),
        COMMON_DAEMON_HTTP_TLS_OPTION(daemon),
        COMMON_DAEMON_TLS_OPTIONS(daemon),
        {"max-workers", 0, COMMON_OPTION_U64, &workers, "N", "Largest number of workers. Default: 256.", 1,
         4096},
        {"max-sessions", 0, COMMON_OPTION_U64, &sessions, "N", "Largest number of sessions. Default: 65536.",
         1, 1u << 24},
        {"max-steps", 0, COMMON_OPTION_U64, &steps, "N",
         "Steps waiting or running at once over all sessions; a step is one attention call for\n"
         "one layer. Default: 65536.",
         1, 1u << 24},
        {"max-clients", 0, COMMON_OPTION_U64, &clients, "N",
         "Client connections over tcp and unix together, and as many over each nng endpoint.\n"
         "Workers are not counted. Default: 1024.",
         1, 1u << 20},
        {"max-requests", 0, COMMON_OPTION_U64, &requests, "N",
         "Client requests served at once, and as many from workers. Default: 16384.", 1, 1u << 24},
        {"max-client-requests", 0, COMMON_OPTION_U64, &client_requests, "N",
         "Requests of one connection served at once; beyond that it is not read (over nng at\n"
         "most 256). Default: half of --max-requests.",
         1, 1u << 24},
        {"max-bytes", 0, COMMON_OPTION_SIZE, &config->max_bytes, "SIZE",
         "Memory for requests being served, and as much for their answers. Default: 1G.", 1 << 20,
         UINT64_C(1) << 44},
        {"max-client-bytes", 0, COMMON_OPTION_SIZE, &config->max_client_bytes, "SIZE",
         "Memory for one connection's requests and answers together; beyond that it is not\n"
         "read. Default: an eighth of --max-bytes.",
         1 << 16, UINT64_C(1) << 44},
        {"max-session-tokens", 0, COMMON_OPTION_U64, &config->max_session_tokens, "N",
         "Largest number of tokens in one session. Default: 67108864.", 16, UINT64_C(1) << 32},
        {"heartbeat", 0, COMMON_OPTION_DURATION, &config->heartbeat_ns, "TIME",
         "Time between a worker's heartbeats, 20ms to 1m. Default: 600ms.", 20 * COMMON_NS_PER_MS,
         60 * COMMON_NS_PER_S},
        {"grace", 0, COMMON_OPTION_DURATION, &config->grace_ns, "TIME",
         "Time for a worker to reconnect before it counts as lost. Default: 250ms.", 0, 0},
        {"replicas", 0, COMMON_OPTION_U64, &replicas, "N",
         "Copies of each chunk in sessions that do not set it. Default: 2 if workers run on two\n"
         "hosts or more, else 1.",
         1, 3},
        {"move-rate", 0, COMMON_OPTION_SIZE, &config->move_bytes_per_s, "SIZE",
         "Bytes per second that each worker receives while chunks move; 0: no limit.\n"
         "Default: 128M.",
         0, UINT64_C(1) << 44},
        {"slow-workers", 0, COMMON_OPTION_STRING, &slow, "move|flag|ignore",
         "What to do with a worker that computes at less than half the speed it measured at its\n"
         "start while others do not: move (other holders take over its work, and its chunks move\n"
         "away within --move-rate), flag (only report it) or ignore. Default: move.",
         0, 0},
        {"slow-after", 0, COMMON_OPTION_DURATION, &config->slow_after_ns, "TIME",
         "How long a worker must be slow before it counts as slow, 100ms to 1h; it counts as\n"
         "recovered after twice that. Chunks leave slow workers at most once in 30 times that.\n"
         "Default: 10s.",
         100 * COMMON_NS_PER_MS, 3600 * COMMON_NS_PER_S},
        {"keep-steps", 0, COMMON_OPTION_SIZE, &config->keep_bytes, "SIZE",
         "Memory for one answered step of each session, for 'banyanctl session verify'; the\n"
         "oldest are dropped first; 0: keep none. Default: 64M.",
         0, UINT64_C(1) << 40},
        {"prefix-cache", 0, COMMON_OPTION_STRING, &prefix_cache, "SIZE|off",
         "Workers' memory for sessions that have ended and stay as cache, to be found by their\n"
         "tokens; the least recently used go first, and before any other session is refused\n"
         "memory. Default: a quarter of the workers' memory.",
         0, 0},
        {"audit", 0, COMMON_OPTION_U64, &config->audit, "N",
         "Recompute one step in N in the background, in float64, on workers that hold its rows,\n"
         "and compare; a difference is logged as an ERROR and counted. Default: 0 (off).",
         0, UINT64_C(1) << 40},
        {"audit-log", 0, COMMON_OPTION_STRING, &config->audit_log, "FILE",
         "Append a line to this file for each call that changes something, each refused attempt\n"
         "and each worker that joins or leaves: who, what, when, from where and the result,\n"
         "chained by hashes. SIGHUP reopens it. 'banyanctl audit-log' reads it. Default: none.",
         0, 0},
        {"audit-required", 0, COMMON_OPTION_FLAG, &config->audit_required, NULL,
         "Refuse calls that would change something while the audit log cannot be written.", 0, 0},
        {"scrub", 0, COMMON_OPTION_DURATION, &config->scrub_ns, "TIME",
         "Period in which the memory of each full chunk is compared, on all its workers, with\n"
         "its seal, spread evenly; 0: only on request. Default: 24h.",
         0, 0},
        {"events", 0, COMMON_OPTION_U64, &events, "N",
         "Number of recent events kept in memory for 'banyanctl events', half a kilobyte each.\n"
         "Default: 4096.",
         64, COORDINATOR_EVENTS_MOST},
        {"session-ttl", 0, COMMON_OPTION_DURATION, &config->session_ttl_ns, "TIME",
         "Delete sessions created without a time to live after this long without use.\n"
         "Default: never.",
         0, 0},
        {"ticket-life", 0, COMMON_OPTION_DURATION, &config->ticket_ns, "TIME",
         "How long a ticket to attach or read rows is valid. Default: 2m.", 0, 0},
        COMMON_DAEMON_READY_OPTION(daemon,
                                   "Written once it listens: {\"endpoints\": [...], \"pid\": n}, and\n"
                                   "\"http\" with --http. Default: none."),
        COMMON_DAEMON_EOF_OPTION(daemon),
        COMMON_DAEMON_HARDEN_OPTIONS(daemon),
        COMMON_DAEMON_LOG_OPTIONS(daemon),
        COMMON_DAEMON_TRACE_OPTIONS(daemon),
        {"trace-sample", 0, COMMON_OPTION_DOUBLE, &daemon->trace.sample, "RATIO",
         "Share of steps without a trace of their own that are traced: 0.001 is one in a\n"
         "thousand. Default: 0 (none).",
         0, 0},
        COMMON_DAEMON_CONFIG_OPTIONS(daemon),
        {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL, "Exit codes: 0 clean stop, 2 usage error, 3 cannot start.",
         0, 0},
    };
    const struct common_command command = {
        .program = "banyan-coordinator",
        .synopsis = "[options]",
        .about = "Tracks which worker holds which part of each session, and runs every step over them.\n"
                 "SIGTERM and SIGINT stop it. SIGHUP reads the file of --config again and applies\n" RELOADS
                 ";\nand its certificates.",
        .options = options};
    enum common_code code = common_daemon_parse(daemon, &command, argc, argv, err);
    if (code != COMMON_OK)
        return code;
    config->slow_workers = !strcmp(slow, "move")   ? COORDINATOR_SLOW_MOVE
                           : !strcmp(slow, "flag") ? COORDINATOR_SLOW_FLAG
                                                   : COORDINATOR_SLOW_IGNORE;
    if (prefix_cache && strcmp(prefix_cache, "off") == 0)
        config->prefix_bytes = 0;
    else if (prefix_cache && (common_parse_size(prefix_cache, &config->prefix_bytes) != COMMON_OK ||
                              config->prefix_bytes == COORDINATOR_PREFIX_SHARE))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--prefix-cache: '%s' is neither a size (64M, 2G) nor 'off'; try "
                                "'banyan-coordinator --help'",
                                prefix_cache);
    if (config->audit_required && !config->audit_log)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--audit-required needs --audit-log; try 'banyan-coordinator --help'");
    if (!(daemon->trace.sample >= 0 && daemon->trace.sample <= 1))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--trace-sample must be 0 to 1; try 'banyan-coordinator --help'");
    if (daemon->trace.sample > 0 && !daemon->trace.file && !daemon->trace.otlp)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--trace-sample needs --trace-file or --trace-otlp; try "
                                "'banyan-coordinator --help'");
    config->replicas = (uint32_t)replicas;
    config->events = (uint32_t)events;
    config->max_workers = (uint32_t)workers;
    config->max_sessions = (uint32_t)sessions;
    config->max_steps = (uint32_t)steps;
    config->max_clients = (uint32_t)clients;
    config->max_requests = (uint32_t)requests;
    config->max_client_requests = (uint32_t)client_requests;
    return COMMON_OK;
}

enum common_code coordinator_daemon_options_parse(int argc, char **argv,
                                                  struct coordinator_daemon_options *out,
                                                  struct common_error *err)
{
    struct words words;
    struct coordinator_options *config = &out->config;
    struct common_daemon *daemon = &out->daemon;
    enum common_code code = read_options(argc, argv, out, &words, err);
    if (code != COMMON_OK)
        return code;
    common_daemon_set_log(daemon);
    code = split_listen(out, words.listen, err);
    if (code == COMMON_OK && !words.store) {
        code = common_daemon_state_path("coordinator.db", "--store", &out->store, err);
        if (code == COMMON_OK)
            common_daemon_make_folders(out->store);
    }
    if (code == COMMON_OK && !out->restore)
        code = common_daemon_load_keys(daemon, err);
    if (code == COMMON_OK && !out->restore)
        code = common_daemon_load_tls(daemon, proto_role_uri(BANYAN__PB__ROLE__ROLE_COORDINATOR), err);
    config->tls = daemon->tls;
    config->tls_client_certs = common_daemon_wants_client_certs(daemon);
    config->secret = &daemon->secret;
    config->token = daemon->token_file ? daemon->token : NULL;
    config->store_path = words.store ? words.store : out->store;
    if (code == COMMON_OK && out->restore && !strcmp(config->store_path, ":memory:"))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "--restore-backup needs a store that is a file; try 'banyan-coordinator --help'");
    return code;
}

void coordinator_daemon_options_free(struct coordinator_daemon_options *options)
{
    common_daemon_fini(&options->daemon);
    free(options->listen);
    free(options->store);
}

void coordinator_daemon_reload(struct coordinator_daemon_options *options, struct coordinator *c)
{
    struct common_daemon *daemon = &options->daemon;
    struct common_error err;
    struct words words;
    struct coordinator_daemon_options *fresh = calloc(1, sizeof *fresh);
    coordinator_reopen_audit_log(c);
    if (common_daemon_reload_tls(daemon, proto_role_uri(BANYAN__PB__ROLE__ROLE_COORDINATOR), &err) !=
        COMMON_OK)
        coordinator_tell_reloaded(c, err.message);
    if (!daemon->file.path && daemon->tls) {
        common_daemon_retrace(NULL, options->config.tracer);
    } else if (!daemon->file.path) {
        common_log_info("signal=HUP: nothing is reloaded: this process has no --config");
        common_daemon_retrace(NULL, options->config.tracer);
    } else if (!fresh) {
        common_log_error("signal=HUP: nothing is changed: out of memory for a configuration");
        coordinator_tell_reloaded(c, "out of memory");
    } else if (read_options(daemon->argc, daemon->argv, fresh, &words, &err) != COMMON_OK) {
        common_log_error("signal=HUP: nothing is changed: %s", err.message);
        coordinator_tell_reloaded(c, err.message);
    } else {
        coordinator_set_options(c, &fresh->config);
        common_daemon_retrace(&fresh->daemon, options->config.tracer);
        common_daemon_reloaded(daemon, &fresh->daemon, reloads);
        coordinator_tell_reloaded(c, NULL);
    }
    if (fresh)
        coordinator_daemon_options_free(fresh);
    free(fresh);
}

enum common_code coordinator_daemon_write_ready(const char *path, const struct coordinator *c,
                                                const char *http, struct common_error *err)
{
    json_t *endpoints = json_array();
    const char *endpoint;
    for (uint32_t i = 0; (endpoint = coordinator_endpoint(c, i)); i++)
        json_array_append_new(endpoints, json_string(endpoint));
    json_t *root =
        json_pack("{s:o, s:I, s:s*}", "endpoints", endpoints, "pid", (json_int_t)getpid(), "http", http);
    char *line = root ? json_dumps(root, JSON_COMPACT) : NULL;
    enum common_code code =
        line ? common_daemon_write_ready(path, line, err)
             : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for the ready file");
    json_decref(root);
    free(line);
    return code;
}
