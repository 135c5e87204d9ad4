// SPDX-License-Identifier: Apache-2.0
#include "coordinator/daemon.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "common/clock.h"
#include "common/daemon.h"
#include "common/options.h"

#define LISTEN_DEFAULT "nng+tcp://127.0.0.1:7411,tcp://127.0.0.1:7412"

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

enum common_code coordinator_daemon_options_parse(int argc, char **argv,
                                                  struct coordinator_daemon_options *out,
                                                  struct common_error *err)
{
    memset(out, 0, sizeof(*out));
    struct coordinator_options *config = &out->config;
    coordinator_options_default(config);
    struct common_daemon *daemon = &out->daemon;
    const char *listen = LISTEN_DEFAULT, *store = NULL;
    uint64_t workers = config->max_workers, sessions = config->max_sessions, steps = config->max_steps,
             clients = config->max_clients, requests = config->max_requests, client_requests = 0,
             replicas = 0;
    const struct common_option options[] = {
        {"listen", 'l', COMMON_OPTION_STRING, &listen, "ENDPOINT,...",
         "Where clients and workers reach it: nng+tcp://, tcp:// or unix://, port 0: any.\n"
         "Default: " LISTEN_DEFAULT ".",
         0, 0},
        {"cluster", 0, COMMON_OPTION_STRING, &config->cluster, "NAME",
         "Name of the cluster, for people. Default: banyan.", 0, 0},
        COMMON_DAEMON_SECRET_OPTION(daemon),
        COMMON_DAEMON_TOKEN_OPTION(daemon, "What clients must present: one line of 8 to 256 characters.\n"
                                           "Default: clients need none."),
        {"insecure", 0, COMMON_OPTION_FLAG, &config->insecure, NULL,
         "Listen on other addresses than loopback without a token.", 0, 0},
        {"store", 0, COMMON_OPTION_STRING, &store, "PATH",
         "The store; ':memory:' keeps nothing.\n"
         "Default: ${XDG_STATE_HOME:-~/.local/state}/banyan/coordinator.db.",
         0, 0},
        {"standby", 0, COMMON_OPTION_FLAG, &config->standby, NULL,
         "Where another coordinator of this machine has the store: listen, refuse calls, and\n"
         "take over when that one is gone or frozen. Both may be started so. Clients and\n"
         "workers name both endpoints: A,B.",
         0, 0},
        {"fsync", 0, COMMON_OPTION_FLAG, &config->store_sync_full, NULL,
         "Acknowledged writes survive a power loss, not only the end of the process.", 0, 0},
        {"http", 0, COMMON_OPTION_STRING, &out->http, "HOST:PORT",
         "Serve /healthz, /readyz and /metrics (Prometheus) here. Default: nowhere.", 0, 0},
        {"max-workers", 0, COMMON_OPTION_U64, &workers, "N", "Largest number of workers. Default: 256.", 1,
         4096},
        {"max-sessions", 0, COMMON_OPTION_U64, &sessions, "N", "Largest number of sessions. Default: 65536.",
         1, 1u << 24},
        {"max-steps", 0, COMMON_OPTION_U64, &steps, "N",
         "Steps that may wait or be under way at once, of all sessions; a step is one\n"
         "attention call for one layer. Default: 65536.",
         1, 1u << 24},
        {"max-clients", 0, COMMON_OPTION_U64, &clients, "N",
         "Connections of clients over tcp and unix, and as many over each nng endpoint.\n"
         "Workers have places of their own. Default: 1024.",
         1, 1u << 20},
        {"max-requests", 0, COMMON_OPTION_U64, &requests, "N",
         "Requests of clients being served at once, and as many of workers. Default: 16384.", 1, 1u << 24},
        {"max-client-requests", 0, COMMON_OPTION_U64, &client_requests, "N",
         "Of these, those of one connection, which is not read beyond (over nng 256 at\n"
         "most). Default: half.",
         1, 1u << 24},
        {"max-bytes", 0, COMMON_OPTION_SIZE, &config->max_bytes, "SIZE",
         "Memory for requests being served, and again for their answers. Default: 1G.", 1 << 20,
         UINT64_C(1) << 44},
        {"max-client-bytes", 0, COMMON_OPTION_SIZE, &config->max_client_bytes, "SIZE",
         "Of these, those of one connection's requests and answers together: it is not read\n"
         "beyond. Default: an eighth.",
         1 << 16, UINT64_C(1) << 44},
        {"max-session-tokens", 0, COMMON_OPTION_U64, &config->max_session_tokens, "N",
         "Tokens of one session. Default: 67108864.", 16, UINT64_C(1) << 32},
        {"heartbeat", 0, COMMON_OPTION_DURATION, &config->heartbeat_ns, "TIME",
         "Time between a worker's heartbeats, 20ms to 1m. Default: 600ms.", 0, 0},
        {"grace", 0, COMMON_OPTION_DURATION, &config->grace_ns, "TIME",
         "For so long a worker whose link broke may come back before it counts as lost.\n"
         "Default: 250ms.",
         0, 0},
        {"replicas", 0, COMMON_OPTION_U64, &replicas, "N",
         "Copies of each chunk, of sessions that do not say. Default: 2 where workers are on\n"
         "two hosts or more, else 1.",
         1, 3},
        {"move-rate", 0, COMMON_OPTION_SIZE, &config->move_bytes_per_s, "SIZE",
         "Bytes a second of chunks that are copied to another worker, at each that receives;\n"
         "0: as fast as it goes. Default: 128M.",
         0, UINT64_C(1) << 44},
        {"session-ttl", 0, COMMON_OPTION_DURATION, &config->session_ttl_ns, "TIME",
         "Sessions that are created without a time to live are deleted when nobody has used\n"
         "them for so long. Default: never.",
         0, 0},
        {"ticket-life", 0, COMMON_OPTION_DURATION, &config->ticket_ns, "TIME",
         "How long a ticket to attach or read rows is valid. Default: 2m.", 0, 0},
        COMMON_DAEMON_READY_OPTION(daemon,
                                   "Written when it listens, and when it takes over: {\"endpoints\":\n"
                                   "[...], \"pid\": n, \"standing_by\": false}. Default: none."),
        COMMON_DAEMON_LOG_OPTION(daemon),
        {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL,
         "Exit codes: 0 clean, 2 wrong command line, 3 cannot start, 5 another coordinator has\n"
         "taken over.",
         0, 0},
    };
    const struct common_command command = {
        .program = "banyan-coordinator",
        .synopsis = "[options]",
        .about = "Knows which worker holds which part of each session, and sends every step over them.\n"
                 "SIGTERM and SIGINT end it.",
        .options = options};
    enum common_code code = common_daemon_parse(daemon, &command, argc, argv, err);
    if (code != COMMON_OK)
        return code;
    if (config->heartbeat_ns < 20 * COMMON_NS_PER_MS || config->heartbeat_ns > 60 * COMMON_NS_PER_S)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--heartbeat is 20ms to 1m; try 'banyan-coordinator --help'");
    config->replicas = (uint32_t)replicas;
    config->max_workers = (uint32_t)workers;
    config->max_sessions = (uint32_t)sessions;
    config->max_steps = (uint32_t)steps;
    config->max_clients = (uint32_t)clients;
    config->max_requests = (uint32_t)requests;
    config->max_client_requests = (uint32_t)client_requests;
    code = split_listen(out, listen, err);
    if (code == COMMON_OK && !store) {
        code = common_daemon_state_path("coordinator.db", "--store", &out->store, err);
        if (code == COMMON_OK)
            common_daemon_make_folders(out->store);
    }
    if (code == COMMON_OK)
        code = common_daemon_load_keys(daemon, err);
    config->secret = &daemon->secret;
    config->token = daemon->token_file ? daemon->token : NULL;
    config->store_path = store ? store : out->store;
    if (code == COMMON_OK && config->standby && !strcmp(config->store_path, ":memory:"))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--standby needs a store that is a file; try 'banyan-coordinator --help'");
    return code;
}

void coordinator_daemon_options_free(struct coordinator_daemon_options *options)
{
    free(options->listen);
    free(options->store);
}

enum common_code coordinator_daemon_write_ready(const char *path, const struct coordinator *c,
                                                struct common_error *err)
{
    json_t *endpoints = json_array();
    const char *endpoint;
    for (uint32_t i = 0; (endpoint = coordinator_endpoint(c, i)); i++)
        json_array_append_new(endpoints, json_string(endpoint));
    json_t *root = json_pack("{s:o, s:I, s:b}", "endpoints", endpoints, "pid", (json_int_t)getpid(),
                             "standing_by", (int)coordinator_stands_by(c));
    char *line = root ? json_dumps(root, JSON_COMPACT) : NULL;
    enum common_code code =
        line ? common_daemon_write_ready(path, line, err)
             : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for the ready file");
    json_decref(root);
    free(line);
    return code;
}
