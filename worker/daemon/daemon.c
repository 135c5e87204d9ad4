// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/daemon.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/cli/daemon.h"
#include "common/cli/options.h"
#include "common/log/log.h"
#include "proto/rpc/rpc.h"
#include "worker/daemon/address.h"
#include "worker/daemon/default_name.h"

#define MEMORY_MIN (UINT64_C(1) << 20)

// What SIGHUP takes from the file: what is read where it is used. The rest sizes what was made at the start, or is known to
// others by now.
#define RELOADS "attach-ttl, drain, drain-timeout, log-*, read-ahead, scrub and trace-*"
static const char *const reloads[] = {"attach-ttl", "drain",      "drain-timeout", "log-format", "log-level",
                                      "log-rate",   "read-ahead", "scrub",         "trace-file", "trace-otlp",
                                      NULL};

struct words { // of the command line and the file, that become something else
    const char *name, *host, *bind, *numa, *device, *module, *engine, *engine_module, *fsync_when;
    uint64_t threads;
};

static uint64_t meminfo(const char *field) // bytes; 0: not known
{
    char line[128];
    unsigned long long kib = 0;
    size_t len = strlen(field);
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, field, len) == 0 && line[len] == ':' &&
            sscanf(line + len + 1, "%llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

static uint64_t free_memory(void) // what the kernel thinks can be had without swapping
{
    uint64_t bytes = meminfo("MemAvailable");
    return bytes ? bytes : UINT64_C(1) << 30;
}

// --memory that was given, of a worker without a device. Memory is taken as it is needed: what is too much now may be
// there later, but never more than there is.
static enum common_code check_memory(uint64_t wanted, struct common_error *err)
{
    uint64_t all = meminfo("MemTotal"), available = free_memory();
    char a[32], b[32];
    if (all && wanted > all)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--memory %s is more than the %s of this machine: give less; --store-limit "
                                "sets what files may hold",
                                common_format_bytes(wanted, a, sizeof a),
                                common_format_bytes(all, b, sizeof b));
    if (wanted > available)
        common_log_warn("--memory %s is more than the %s that is free now: the kernel may kill this worker "
                        "when it fills up",
                        common_format_bytes(wanted, a, sizeof a),
                        common_format_bytes(available, b, sizeof b));
    return COMMON_OK;
}

// As the coordinator takes them.
static bool is_word(const char *text)
{
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return false;
    return *text != '\0';
}

// The host's name, and the worker's, unless given.
static enum common_code set_names(struct worker_daemon_options *out, const char *name, const char *host,
                                  struct common_error *err)
{
    char own[256] = "";
    if (!host && gethostname(own, sizeof own - 1) != 0)
        strcpy(own, "localhost");
    if ((host && strlen(host) >= sizeof out->host) || (name && strlen(name) >= sizeof out->name))
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--name and --host have at most 64 bytes; try 'banyan-worker --help'");
    snprintf(out->host, sizeof out->host, "%.64s", host ? host : own);
    if (name)
        snprintf(out->name, sizeof out->name, "%s", name);
    else
        worker_default_name(out->host, out->config.coordinator, out->name, sizeof out->name);
    if (!is_word(out->host) || !is_word(out->name))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "--name and --host must not be empty or contain spaces; try 'banyan-worker --help'");
    out->config.name = out->name;
    out->config.host = out->host;
    return COMMON_OK;
}

// --bind and --numa, into a place. INVALID_ARGUMENT and others.
static enum common_code set_place(struct worker_daemon_options *out, const char *bind, const char *numa,
                                  uint32_t threads, struct common_error *err)
{
    struct worker_place_options options = {.numa = WORKER_NUMA_AUTO, .threads = threads};
    char *end = "";
    options.bind = !strcmp(bind, "auto")   ? WORKER_BIND_AUTO
                   : !strcmp(bind, "none") ? WORKER_BIND_NONE
                                           : WORKER_BIND_CORES;
    if (numa && strcmp(numa, "none") == 0) {
        options.numa = WORKER_NUMA_NONE;
    } else if (numa && strcmp(numa, "auto") != 0) {
        unsigned long node = strtoul(numa, &end, 10);
        if (!isdigit((unsigned char)numa[0]) || *end || node > INT32_MAX)
            return common_error_set(
                err, COMMON_INVALID_ARGUMENT,
                "--numa must be auto, none or a node's number; try 'banyan-worker --help'");
        options.numa = (int32_t)node;
    }
    enum common_code code = worker_place_new(&options, &out->place, err);
    if (code != COMMON_OK)
        return code;
    out->config.place = out->place;
    out->config.threads = worker_place_threads(out->place);
    return COMMON_OK;
}

// --store and what goes with it.
static enum common_code check_store(struct worker_config *config, const char *name, const char *fsync_when,
                                    struct common_error *err)
{
    if (!config->store && (fsync_when || config->scrub_ns || config->store_limit))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "--fsync, --scrub and --store-limit need --store; try 'banyan-worker --help'");
    if (config->store && !name)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--store needs --name: its files belong to that worker; try "
                                "'banyan-worker --help'");
    config->fsync = WORKER_FSYNC_INTERVAL;
    if (fsync_when && strcmp(fsync_when, "always") == 0)
        config->fsync = WORKER_FSYNC_ALWAYS;
    else if (fsync_when && strcmp(fsync_when, "never") == 0)
        config->fsync = WORKER_FSYNC_NEVER;
    return COMMON_OK;
}

static enum common_code set_device(struct worker_daemon_options *out, const struct words *words,
                                   struct common_error *err)
{
    struct worker_device_options options = {.wanted = words->device,
                                            .module = words->module,
                                            .limit_bytes = out->config.memory_bytes,
                                            .place = out->place};
    enum common_code code = worker_device_open(&options, &out->device, out->no_device, err);
    out->config.no_device = out->no_device;
    if (code != COMMON_OK || !out->device)
        return code;
    out->config.device = out->device;
    if (out->config.memory_bytes == 0) {
        uint64_t limit = worker_device_info(out->device)->limit_bytes;
        out->config.memory_bytes = limit - worker_engine_room(words->engine, limit);
    }
    return COMMON_OK;
}

static enum common_code read_options(int argc, char **argv, struct worker_daemon_options *out,
                                     struct words *words, struct common_error *err)
{
    uint64_t clients = 1024, scrub_hours = UINT64_MAX, read_ahead = 2;
    *words = (struct words){.bind = "auto", .device = "auto", .engine = "stream"};
    *out = (struct worker_daemon_options){.config = {.attach_ttl_ns = 900 * COMMON_NS_PER_S}};
    struct worker_config *config = &out->config;
    struct common_daemon *daemon = &out->daemon;
    const struct common_option options[] = {
        {"coordinator", 'c', COMMON_OPTION_STRING, &config->coordinator, "ENDPOINT,...",
         "The coordinator to join: tls://HOST:PORT, tcp://HOST:PORT or unix:///PATH; several, if\n"
         "it may run on another host, as A,B. Required.",
         0, 0},
        {"name", 'n', COMMON_OPTION_STRING, &words->name, "NAME",
         "Name, unique in the cluster. Default: HOST-0, HOST-1, ...: the first that no other\n"
         "worker of this user has on this machine.",
         0, 0},
        {"host", 0, COMMON_OPTION_STRING, &words->host, "NAME",
         "Name of this machine; workers with the same name are neighbours in the tree.\n"
         "Default: the host's name.",
         0, 0},
        {"listen", 'l', COMMON_OPTION_STRING, &config->listen, "ENDPOINT",
         "Endpoint where clients put K and V: tls://, nng+tls://, tcp://, nng+tcp:// or unix://;\n"
         "port 0 takes any free port. Default: tcp://127.0.0.1:0, or tls:// as for the\n"
         "coordinator; all addresses if it is on another host with TLS or --insecure.",
         0, 0},
        {"edge-listen", 'e', COMMON_OPTION_STRING, &config->edge_listen, "ENDPOINT",
         "Endpoint that the coordinator and other workers dial: tls://, tcp:// or unix://; port\n"
         "0 takes any free port. Default: tcp://127.0.0.1:0, or tls:// as for the coordinator;\n"
         "all addresses if it is on another host.",
         0, 0},
        {"advertise", 0, COMMON_OPTION_STRING, &config->advertise, "HOST",
         "Name or address by which the others reach this machine. Default: the address it\n"
         "listens at, or, if that is all addresses, the one by which it reaches the coordinator.",
         0, 0},
        COMMON_DAEMON_SECRET_OPTION(daemon),
        COMMON_DAEMON_TOKEN_OPTION(
            daemon, "Not needed: clients present the coordinator's pass, always if --listen is\n"
                    "not a loopback address. With this option they need the pass on loopback\n"
                    "too, and this token in place of it opens the worker. Never an admin's\n"
                    "token: anyone who reads it here controls the cluster. Default: none."),
        {"insecure", 0, COMMON_OPTION_FLAG, &config->insecure, NULL,
         "Allow --listen and --edge-listen beyond loopback without TLS: all traffic can then be\n"
         "read on the network. Clients still need a pass.",
         0, 0},
        {"memory", 'm', COMMON_OPTION_SIZE, &config->memory_bytes, "SIZE",
         "Memory for K and V and for what is in flight (messages, partial results, workspaces).\n"
         "The latter gets an eighth, at least 128 MiB and at most 1 GiB, never more than half:\n"
         "of 256M, 128 MiB hold K and V. With a device this is its memory, of which an eighth,\n"
         "at most 1 GiB, is for workspaces. Default: half of the free memory; on a device all\n"
         "free memory, less an eighth, at most 2 GiB, for communicators with --engine nccl.",
         MEMORY_MIN, UINT64_C(1) << 50},
        {"prefault", 0, COMMON_OPTION_FLAG, &config->prefault, NULL,
         "Take all memory for K and V from the system before the worker is ready, and keep it:\n"
         "it costs nothing later, and a shortage shows at once. Not with a device.",
         0, 0},
        {"max-clients", 0, COMMON_OPTION_U64, &clients, "N",
         "Largest number of client connections. The coordinator and other workers are not\n"
         "counted. Default: 1024.",
         1, 1u << 20},
        {"attach-ttl", 0, COMMON_OPTION_DURATION, &config->attach_ttl_ns, "TIME",
         "Drop attached rows that are not committed once nothing of their chunk has been\n"
         "attached for this long; 0: never. Default: 15m.",
         0, 0},
        {"store", 0, COMMON_OPTION_STRING, &config->store, "DIR",
         "Directory of this worker alone (created with mode 0700) where K and V are kept, so\n"
         "that they outlive the process however it ends. Needs --name. Default: memory only.",
         0, 0},
        {"fsync", 0, COMMON_OPTION_STRING, &words->fsync_when, "always|interval|never",
         "What a power loss costs --store: always (nothing; each write waits for the disk),\n"
         "interval (about the last second) or never (what the system has not written yet). If\n"
         "only the process ends, nothing is lost. Default: interval.",
         0, 0},
        {"scrub", 0, COMMON_OPTION_U64, &scrub_hours, "HOURS",
         "Read every file of --store once in so many hours; damaged files are moved to its\n"
         "quarantine/ and written again. 0: never. Default: 168, a week.",
         0, 24 * 366},
        {"store-limit", 0, COMMON_OPTION_SIZE, &config->store_limit, "SIZE",
         "How much K and V this worker takes, in memory and in --store together. If this exceeds\n"
         "--memory, the least recently used rows leave memory and are read back when needed. Not\n"
         "with a device. Default: what fits into --memory.",
         MEMORY_MIN, UINT64_C(1) << 50},
        {"read-ahead", 0, COMMON_OPTION_U64, &read_ahead, "LAYERS",
         "When a layer is read back from --store, read so many following layers as well.\n"
         "Default: 2.",
         0, 64},
        {"threads", 't', COMMON_OPTION_U64, &words->threads, "N",
         "Compute threads. Default: one for each core that it may use, on one NUMA node if\n"
         "there are several, and no more than its cgroup's processor time allows.",
         1, 256},
        {"bind", 0, COMMON_OPTION_STRING, &words->bind, "auto|cores|none",
         "Where compute threads run: cores (each on a core of its own; the workers of a host\n"
         "divide the cores), none, or auto (cores if there are as many threads as cores, else\n"
         "anywhere on the NUMA node). Default: auto.",
         0, 0},
        {"numa", 0, COMMON_OPTION_STRING, &words->numa, "auto|none|NODE",
         "NUMA node for threads and memory: its number, auto (the one that the fewest workers\n"
         "of this host use) or none (all; memory is interleaved). Default: auto.",
         0, 0},
        {"device", 0, COMMON_OPTION_STRING, &words->device, "auto|cpu|DEVICE",
         "What holds K and V and computes: cpu, a device such as cuda:0, or auto (a device if\n"
         "one works, else the processor; if there is hardware for a device, 'banyanctl workers'\n"
         "says why it is not used). Default: auto.",
         0, 0},
        {"device-module", 0, COMMON_OPTION_STRING, &words->module, "PATH",
         "Module for the device. Default: banyan-cuda.so beside this program, in ../lib or in\n"
         "the library folder's banyan/.",
         0, 0},
        {"engine", 0, COMMON_OPTION_STRING, &words->engine, "stream|mpi|nccl|NAME",
         "How partial results climb the tree if all workers of a plan offer it: stream, mpi\n"
         "(started by mpirun or srun) or nccl (with a CUDA device). Default: stream.",
         0, 0},
        {"engine-module", 0, COMMON_OPTION_STRING, &words->engine_module, "PATH",
         "Module for the engine. Default: banyan-NAME.so, in the places of --device-module.", 0, 0},
        {"bandwidth", 0, COMMON_OPTION_SIZE, &config->bandwidth, "SIZE",
         "Bytes of K and V per second to report. Default: measured at the start.", 1, UINT64_C(1) << 50},
        COMMON_DAEMON_HTTP_OPTION(
            daemon, "Serve /livez, /readyz and /metrics (Prometheus, OpenMetrics) at this address; port 0\n"
                    "takes any free port. Default: nowhere."),
        COMMON_DAEMON_HTTP_INSECURE_OPTION(daemon),
        COMMON_DAEMON_HTTP_TLS_OPTION(daemon),
        COMMON_DAEMON_TLS_OPTIONS(daemon),
        {"drain", 0, COMMON_OPTION_FLAG, &out->drain, NULL,
         "On SIGTERM or SIGINT, move all chunks to other workers while serving, then exit. A\n"
         "second signal stops the worker at once. A restart ends the drain.",
         0, 0},
        {"drain-timeout", 0, COMMON_OPTION_DURATION, &out->drain_ns, "TIME",
         "With --drain: exit after this long even if chunks are left. Default: no limit.", 0, 0},
        COMMON_DAEMON_READY_OPTION(daemon, "Written once it has joined: {\"name\": ..., \"endpoint\": ...,\n"
                                           "\"edge_endpoint\": ..., \"pid\": n}, and \"http\" with --http.\n"
                                           "Default: none."),
        COMMON_DAEMON_EOF_OPTION(daemon),
        COMMON_DAEMON_HARDEN_OPTIONS(daemon),
        COMMON_DAEMON_LOG_OPTIONS(daemon),
        COMMON_DAEMON_TRACE_OPTIONS(daemon),
        COMMON_DAEMON_CONFIG_OPTIONS(daemon),
        {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL,
         "Exit codes: 0 clean stop, 2 usage error, 3 cannot start, 4 device lost, 5 stopped with\n"
         "chunks left (--drain).",
         0, 0},
    };
    const struct common_command command = {
        .program = "banyan-worker",
        .synopsis = "--coordinator=ENDPOINT [options]",
        .about = "Holds a part of each session's K and V and computes attention over it. Joins the\n"
                 "coordinator, and rejoins after a lost link. SIGTERM and SIGINT stop it after the steps\n"
                 "in progress. SIGHUP reads the file of --config again and applies\n" RELOADS
                 ";\nand its certificates. BANYAN_KERNEL chooses the attention kernel.",
        .options = options};
    enum common_code code = common_daemon_parse(daemon, &command, argc, argv, err);
    if (code != COMMON_OK)
        return code;
    if (out->drain_ns && !out->drain)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--drain-timeout needs --drain; try 'banyan-worker --help'");
    if (!config->coordinator)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--coordinator is required; try 'banyan-worker --help'");
    config->max_clients = (uint32_t)clients;
    config->read_ahead = (uint32_t)read_ahead;
    if (scrub_hours == UINT64_MAX) // not given
        scrub_hours = config->store ? 168 : 0;
    config->scrub_ns = scrub_hours * 3600 * COMMON_NS_PER_S;
    return check_store(config, words->name, words->fsync_when, err);
}

enum common_code worker_daemon_options_parse(int argc, char **argv, struct worker_daemon_options *out,
                                             struct common_error *err)
{
    struct words words;
    struct worker_config *config = &out->config;
    struct common_daemon *daemon = &out->daemon;
    enum common_code code = read_options(argc, argv, out, &words, err);
    if (code != COMMON_OK)
        return code;
    common_daemon_set_log(daemon);
    code = worker_address_settle(config, config->insecure, err);
    if (code != COMMON_OK)
        return code;
    code = set_names(out, words.name, words.host, err);
    if (code != COMMON_OK)
        return code;
    code = set_place(out, words.bind, words.numa, (uint32_t)words.threads, err);
    if (code != COMMON_OK)
        return code;
    code = set_device(out, &words, err);
    if (code != COMMON_OK)
        return code;
    if (out->device && config->prefault)
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "--prefault is not for devices, whose memory is always there: leave it out, or use --device cpu");
    if (out->device && config->store_limit)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--store-limit is not for devices, whose memory holds all rows: leave it "
                                "out, or use --device cpu");
    if (config->memory_bytes && !out->device) {
        code = check_memory(config->memory_bytes, err);
        if (code != COMMON_OK)
            return code;
    }
    if (config->memory_bytes == 0) {
        uint64_t free_bytes = free_memory(), near = worker_place_memory(out->place);
        config->memory_bytes = near > 0 && near < free_bytes ? near / 2 : free_bytes / 2;
        if (config->memory_bytes < MEMORY_MIN)
            config->memory_bytes = MEMORY_MIN;
    }
    code = common_daemon_load_keys(daemon, err);
    if (code == COMMON_OK)
        code = common_daemon_load_tls(daemon, proto_role_uri(BANYAN__PB__ROLE__ROLE_WORKER), err);
    if (code != COMMON_OK)
        return code;
    config->tls = daemon->tls;
    config->tls_client_certs = common_daemon_wants_client_certs(daemon);
    config->secret = daemon->secret;
    config->token = daemon->token_file ? daemon->token : NULL;
    if (config->token)
        common_log_warn(
            "--token-file: a worker needs no token, because clients present the coordinator's "
            "pass. Remove the option, and the file if it holds an admin's token: anyone who reads "
            "it on this machine controls the cluster");
    // Last: from here on other processes wait for this one.
    const struct worker_engine_options wanted = {.name = words.engine,
                                                 .module = words.engine_module,
                                                 .worker = out->name,
                                                 .device = worker_device_name(out->device)};
    if (strcmp(words.engine, "mpi") == 0) // workers of a host read each other's memory
        common_harden_share(daemon->core_dumps);
    code = worker_engine_open(&wanted, &out->engine, err);
    config->engine = out->engine;
    return code;
}

void worker_daemon_reload(struct worker_daemon_options *options, struct worker *worker)
{
    struct common_daemon *daemon = &options->daemon;
    struct common_error err;
    struct words words;
    struct worker_daemon_options *fresh = calloc(1, sizeof *fresh);
    (void)common_daemon_reload_tls(daemon, proto_role_uri(BANYAN__PB__ROLE__ROLE_WORKER),
                                   &err); // the log says what came of it
    if (!daemon->file.path && daemon->tls) {
        common_daemon_retrace(NULL, options->config.tracer);
    } else if (!daemon->file.path) {
        common_log_info("signal=HUP: nothing is reloaded: this process has no --config");
        common_daemon_retrace(NULL, options->config.tracer);
    } else if (!fresh) {
        common_log_error("signal=HUP: nothing is changed: out of memory for a configuration");
    } else if (read_options(daemon->argc, daemon->argv, fresh, &words, &err) != COMMON_OK) {
        common_log_error("signal=HUP: nothing is changed: %s", err.message);
    } else {
        options->drain = fresh->drain;
        options->drain_ns = fresh->drain_ns;
        if (!options->config.store != !fresh->config.store) // --scrub is of the store that there is
            fresh->config.scrub_ns = options->config.scrub_ns;
        options->config.scrub_ns = fresh->config.scrub_ns;
        worker_set_config(worker, &fresh->config);
        common_daemon_retrace(&fresh->daemon, options->config.tracer);
        common_daemon_reloaded(daemon, &fresh->daemon, reloads);
    }
    if (fresh)
        common_daemon_fini(&fresh->daemon);
    free(fresh);
}

enum common_code worker_daemon_write_ready(const char *path, const struct worker_config *config,
                                           const char *endpoint, const char *edge_endpoint, const char *http,
                                           struct common_error *err)
{
    json_t *json = json_pack("{s:s, s:s, s:s, s:I, s:s*}", "name", config->name, "endpoint", endpoint,
                             "edge_endpoint", edge_endpoint, "pid", (json_int_t)getpid(), "http", http);
    char *line = json ? json_dumps(json, JSON_COMPACT) : NULL;
    enum common_code code =
        line ? common_daemon_write_ready(path, line, err)
             : common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for the ready file");
    json_decref(json);
    free(line);
    return code;
}
