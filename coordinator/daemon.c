// SPDX-License-Identifier: Apache-2.0
#include "coordinator/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/options.h"

#define LISTEN_DEFAULT "nng+tcp://127.0.0.1:7411,tcp://127.0.0.1:7412"

// ${XDG_STATE_HOME:-~/.local/state}/banyan/NAME, on the heap. NULL: neither variable is set.
static char *state_path(const char *name)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int n = -1;
    if (state && state[0] == '/')
        n = asprintf(&path, "%s/banyan/%s", state, name);
    else if (home && home[0] == '/')
        n = asprintf(&path, "%s/.local/state/banyan/%s", home, name);
    return n < 0 ? NULL : path;
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0700); // an existing one is fine; any other failure shows when the file is opened
        *slash = '/';
    }
}

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

static enum common_code set_level(const char *level, struct common_error *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++) {
        if (!strcmp(level, names[i])) {
            common_log_set_level((enum common_log_level)i);
            return COMMON_OK;
        }
    }
    return common_error_set(err, COMMON_INVALID_ARGUMENT, "--log-level is error, warn, info or debug, not %s",
                            level);
}

enum common_code coordinator_daemon_options_parse(int argc, char **argv,
                                                  struct coordinator_daemon_options *out,
                                                  struct common_error *err)
{
    memset(out, 0, sizeof(*out));
    struct coordinator_options *config = &out->config;
    coordinator_options_default(config);
    const char *listen = LISTEN_DEFAULT, *secret = NULL, *token = NULL, *store = NULL, *level = NULL;
    uint64_t workers = config->max_workers, sessions = config->max_sessions, items = config->max_items;
    const struct common_option options[] = {
        {"listen", 'l', COMMON_OPTION_STRING, &listen, "ENDPOINT,...",
         "Where clients and workers reach it: nng+tcp://, tcp:// or unix://, port 0: "
         "any.\nDefault: " LISTEN_DEFAULT,
         0, 0},
        {"cluster", 0, COMMON_OPTION_STRING, &config->cluster, "NAME",
         "Name of the cluster, for people. Default: banyan", 0, 0},
        {"secret-file", 0, COMMON_OPTION_STRING, &secret, "PATH",
         "The cluster's secret, made at the first start.\nDefault: "
         "${XDG_STATE_HOME:-~/.local/state}/banyan/cluster.secret",
         0, 0},
        {"token-file", 0, COMMON_OPTION_STRING, &token, "PATH",
         "What clients must present: one line of 8 to 256 characters.", 0, 0},
        {"insecure", 0, COMMON_OPTION_FLAG, &config->insecure, NULL,
         "Listen on other addresses than loopback without a token.", 0, 0},
        {"store", 0, COMMON_OPTION_STRING, &store, "PATH",
         "The store; ':memory:' keeps nothing.\nDefault: "
         "${XDG_STATE_HOME:-~/.local/state}/banyan/coordinator.db",
         0, 0},
        {"fsync", 0, COMMON_OPTION_FLAG, &config->store_sync_full, NULL,
         "What is acknowledged survives a power loss too, not only the end of the process.", 0, 0},
        {"ready-file", 0, COMMON_OPTION_STRING, &out->ready_file, "PATH",
         "Written when it serves: {\"endpoints\": [...], \"pid\": n}", 0, 0},
        {"http", 0, COMMON_OPTION_STRING, &out->http, "HOST:PORT",
         "Serve /healthz and /metrics (Prometheus) here. Default: nowhere", 0, 0},
        {"max-workers", 0, COMMON_OPTION_U64, &workers, "N", "Workers that it knows. Default: 256", 1, 4096},
        {"max-sessions", 0, COMMON_OPTION_U64, &sessions, "N", "Default: 65536", 1, 1u << 24},
        {"max-steps", 0, COMMON_OPTION_U64, &items, "N", "Steps that wait or are under way. Default: 65536",
         1, 1u << 24},
        {"max-bytes", 0, COMMON_OPTION_SIZE, &config->max_bytes, "SIZE",
         "Memory for requests being served, and again for their answers. Default: 1G", 1 << 20,
         UINT64_C(1) << 44},
        {"max-session-tokens", 0, COMMON_OPTION_U64, &config->max_session_tokens, "N",
         "Tokens of one session. Default: 67108864", 16, UINT64_C(1) << 32},
        {"heartbeat", 0, COMMON_OPTION_DURATION, &config->heartbeat_ns, "TIME",
         "Between a worker's heartbeats. Default: 1s", 0, 0},
        {"ticket-life", 0, COMMON_OPTION_DURATION, &config->ticket_ns, "TIME",
         "An attach ticket is good for. Default: 10m", 0, 0},
        {"log-level", 0, COMMON_OPTION_STRING, &level, "LEVEL",
         "error, warn, info or debug. Default: info, or BANYAN_LOG", 0, 0},
        {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL, NULL, 0, 0},
    };
    const struct common_command command = {
        .program = "banyan-coordinator",
        .synopsis = "[options]",
        .about =
            "Knows which worker holds which part of each session, and sends every attention step over them.\n"
            "Exit codes: 0 clean, 2 wrong command line, 3 cannot start.",
        .options = options};
    int rest = 0;
    enum common_code code = common_options_parse(&command, argc, argv, &rest, err);
    if (code != COMMON_OK)
        return code;
    if (rest < argc)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "unexpected argument %s; try 'banyan-coordinator --help'", argv[rest]);
    if (config->heartbeat_ns < 20 * COMMON_NS_PER_MS || config->heartbeat_ns > 60 * COMMON_NS_PER_S)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "--heartbeat must be 20ms to 1m");
    config->max_workers = (uint32_t)workers;
    config->max_sessions = (uint32_t)sessions;
    config->max_items = (uint32_t)items;
    code = level ? set_level(level, err) : COMMON_OK;
    if (code == COMMON_OK)
        code = split_listen(out, listen, err);
    if (code != COMMON_OK)
        return code;
    out->store = store ? strdup(store) : state_path("coordinator.db");
    out->secret_path = secret ? strdup(secret) : state_path("cluster.secret");
    if (!out->store || !out->secret_path)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "neither HOME nor XDG_STATE_HOME is set: give --store and --secret-file");
    if (!secret)
        make_folders(out->secret_path);
    code = common_secret_load_or_create(out->secret_path, &out->secret, err);
    if (code == COMMON_OK && token)
        code = common_token_load(token, out->token, err);
    config->secret = &out->secret;
    config->token = token ? out->token : NULL;
    config->store_path = out->store;
    return code == COMMON_INVALID_ARGUMENT ? COMMON_FAILED_PRECONDITION
                                           : code; // a file's contents are not the command line's mistake
}

void coordinator_daemon_options_free(struct coordinator_daemon_options *options)
{
    free(options->listen);
    free(options->store);
    free(options->secret_path);
}

enum common_code coordinator_daemon_write_ready(const char *path, const struct coordinator *c,
                                                struct common_error *err)
{
    char *temporary = NULL, *text = NULL;
    json_t *endpoints = json_array(), *root;
    const char *endpoint;
    bool ok;
    for (uint32_t i = 0; (endpoint = coordinator_endpoint(c, i)); i++)
        json_array_append_new(endpoints, json_string(endpoint));
    root = json_pack("{s:o, s:I}", "endpoints", endpoints, "pid", (json_int_t)getpid());
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    ok = text && asprintf(&temporary, "%s.%d.tmp", path, (int)getpid()) > 0;
    FILE *file = ok ? fopen(temporary, "we") : NULL;
    ok = file && fprintf(file, "%s\n", text) > 0;
    if (file && fclose(file))
        ok = false;
    ok = ok && rename(temporary, path) == 0;
    enum common_code code =
        ok ? COMMON_OK
           : common_error_set(err, COMMON_UNAVAILABLE, "the ready file %s cannot be written: %s", path,
                              strerror(errno));
    free(temporary);
    free(text);
    return code;
}
