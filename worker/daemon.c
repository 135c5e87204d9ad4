// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/options.h"

#define MEMORY_MIN (UINT64_C(1) << 20)

static uint64_t free_memory(void) // bytes; what the kernel thinks can be had without swapping
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    if (kib == 0)
        kib = 1024ull * 1024;
    return kib * 1024;
}

// Makes the directories above a path, for the user alone. What is wrong with them shows when the file is
// made.
static void make_parents(const char *path)
{
    char dir[4096];
    if (snprintf(dir, sizeof dir, "%s", path) >= (int)sizeof dir)
        return;
    for (char *at = strchr(dir + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(dir, 0700);
        *at = '/';
    }
}

static enum common_code default_secret_file(char *out, size_t len, struct common_error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (state && *state)
        n = snprintf(out, len, "%s/banyan/cluster.secret", state);
    else if (home && *home)
        n = snprintf(out, len, "%s/.local/state/banyan/cluster.secret", home);
    else
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "neither XDG_STATE_HOME nor HOME is set: say --secret-file");
    if (n < 0 || (size_t)n >= len)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the default secret file's path is too long: say --secret-file");
    make_parents(out);
    return COMMON_OK;
}

static enum common_code set_log_level(const char *level, struct common_error *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; level && i < 4; i++)
        if (strcmp(level, names[i]) == 0) {
            common_log_set_level((enum common_log_level)i);
            return COMMON_OK;
        }
    return level ? common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "--log-level is error, warn, info or debug; try 'banyan-worker --help'")
                 : COMMON_OK;
}

// The host's name, and the worker's: HOST-PID, unless given.
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
        snprintf(out->name, sizeof out->name, "%.52s-%ld", out->host, (long)getpid());
    if (!*out->host || !*out->name)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--name and --host are not empty; try 'banyan-worker --help'");
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
    if (!bind || strcmp(bind, "auto") == 0)
        options.bind = WORKER_BIND_AUTO;
    else if (strcmp(bind, "none") == 0)
        options.bind = WORKER_BIND_NONE;
    else if (strcmp(bind, "cores") == 0)
        options.bind = WORKER_BIND_CORES;
    else
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--bind is auto, none or cores; try 'banyan-worker --help'");
    if (numa && strcmp(numa, "none") == 0) {
        options.numa = WORKER_NUMA_NONE;
    } else if (numa && strcmp(numa, "auto") != 0) {
        unsigned long node = strtoul(numa, &end, 10);
        if (!isdigit((unsigned char)numa[0]) || *end || node > INT32_MAX)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "--numa is auto, none or a node's number; try 'banyan-worker --help'");
        options.numa = (int32_t)node;
    }
    enum common_code code = worker_place_new(&options, &out->place, err);
    if (code != COMMON_OK)
        return code;
    out->config.place = out->place;
    out->config.threads = worker_place_threads(out->place);
    return COMMON_OK;
}

static enum common_code set_device(struct worker_daemon_options *out, const char *wanted, const char *module,
                                   struct common_error *err)
{
    struct worker_device_options options = {
        .wanted = wanted, .module = module, .limit_bytes = out->config.memory_bytes, .place = out->place};
    enum common_code code = worker_device_open(&options, &out->device, err);
    if (code != COMMON_OK || !out->device)
        return code;
    out->config.device = out->device;
    if (out->config.memory_bytes == 0)
        out->config.memory_bytes = worker_device_info(out->device)->limit_bytes;
    return COMMON_OK;
}

enum common_code worker_daemon_options_parse(int argc, char **argv, struct worker_daemon_options *out,
                                             struct common_error *err)
{
    const char *name = NULL, *host = NULL, *secret_file = NULL, *token_file = NULL, *log_level = NULL,
               *bind = NULL, *numa = NULL, *device = "auto", *module = NULL, *engine = "stream",
               *engine_module = NULL;
    uint64_t threads = 0;
    *out = (struct worker_daemon_options){
        .config = {.listen = "tcp://127.0.0.1:0", .edge_listen = "tcp://127.0.0.1:0"}};
    struct worker_config *config = &out->config;
    const struct common_option options[] = {
        {"coordinator", 'c', COMMON_OPTION_STRING, &config->coordinator, "ENDPOINT",
         "coordinator to join: tcp://HOST:PORT or unix:///PATH (required)", 0, 0},
        {"name", 'n', COMMON_OPTION_STRING, &name, "NAME", "name, unique in the cluster (default: HOST-PID)",
         0, 0},
        {"host", 0, COMMON_OPTION_STRING, &host, "NAME",
         "name of this machine: workers with the same one are\nneighbours in the tree (default: the host's "
         "name)",
         0, 0},
        {"listen", 'l', COMMON_OPTION_STRING, &config->listen, "ENDPOINT",
         "where clients put K and V: tcp://, nng+tcp:// or unix://\n(default: tcp://127.0.0.1:0, a free "
         "port)",
         0, 0},
        {"edge-listen", 'e', COMMON_OPTION_STRING, &config->edge_listen, "ENDPOINT",
         "where the coordinator and other workers dial: tcp:// or unix://\n(default: tcp://127.0.0.1:0, a "
         "free port)",
         0, 0},
        {"secret-file", 's', COMMON_OPTION_STRING, &secret_file, "FILE",
         "the cluster's secret, made when absent "
         "(default:\n${XDG_STATE_HOME:-~/.local/state}/banyan/cluster.secret)",
         0, 0},
        {"token-file", 0, COMMON_OPTION_STRING, &token_file, "FILE",
         "token that clients must present beside their ticket;\nneeded where --listen is no loopback address",
         0, 0},
        {"insecure", 0, COMMON_OPTION_FLAG, &config->insecure, NULL,
         "let --listen be another address without a token: tickets alone guard it", 0, 0},
        {"memory", 'm', COMMON_OPTION_SIZE, &config->memory_bytes, "SIZE",
         "memory for K, V and what is in flight (default: half of what is free)", MEMORY_MIN,
         UINT64_C(1) << 50},
        {"threads", 't', COMMON_OPTION_U64, &threads, "N",
         "compute threads (default: one for each core that it may use, on one\nNUMA node where there are "
         "several, and no more than its cgroup's\nprocessor time serves)",
         1, 256},
        {"bind", 0, COMMON_OPTION_STRING, &bind, "HOW",
         "where compute threads run: cores (each on a core of its own; workers\nof a host share the cores "
         "out), none, or auto (cores when there are as\nmany threads as cores, else anywhere on the NUMA "
         "node)",
         0, 0},
        {"numa", 0, COMMON_OPTION_STRING, &numa, "NODE",
         "NUMA node for threads and memory: its number, auto (the one that\nthe fewest workers of this host "
         "took) or none (all; memory is\ninterleaved)",
         0, 0},
        {"device", 0, COMMON_OPTION_STRING, &device, "WHAT",
         "what holds K and V and computes: cpu, a device as cuda:0, or auto\n(the default: a device where "
         "there is one, else the processor);\nwith a device, --memory is of its memory (default: what is "
         "free)",
         0, 0},
        {"device-module", 0, COMMON_OPTION_STRING, &module, "PATH",
         "module that serves the device (default: banyan-cuda.so beside this\nprogram or in ../lib)", 0, 0},
        {"engine", 0, COMMON_OPTION_STRING, &engine, "NAME",
         "how partial results climb the tree where all workers of a plan offer\nit: stream (the default), "
         "mpi "
         "(started by mpirun or srun) or nccl\n(with a CUDA device)",
         0, 0},
        {"engine-module", 0, COMMON_OPTION_STRING, &engine_module, "PATH",
         "module of that engine (default: banyan-NAME.so beside this program or\nin ../lib)", 0, 0},
        {"bandwidth", 0, COMMON_OPTION_SIZE, &config->bandwidth, "SIZE",
         "bytes of K and V per second to report instead of a measurement", 1, UINT64_C(1) << 50},
        {"ready-file", 0, COMMON_OPTION_STRING, &out->ready_file, "FILE",
         "write a line of JSON there once registered: name, endpoint,\nedge_endpoint, pid", 0, 0},
        {"log-level", 0, COMMON_OPTION_STRING, &log_level, "LEVEL",
         "error, warn, info or debug (default: info, or BANYAN_LOG)", 0, 0},
        {NULL, 0, COMMON_OPTION_FLAG, NULL, NULL, NULL, 0, 0},
    };
    const struct common_command command = {
        .program = "banyan-worker",
        .synopsis = "--coordinator ENDPOINT [options]",
        .about = "Holds a part of each session's K and V and computes "
                 "attention over it. Joins the coordinator, and joins again "
                 "after a lost link. SIGTERM ends it after the steps in hand.\n"
                 "Exit codes: 0 clean, 2 wrong command line, 3 cannot start, 4 the device is "
                 "lost. "
                 "BANYAN_KERNEL chooses the attention kernel.",
        .options = options};
    int rest;
    enum common_code code = common_options_parse(&command, argc, argv, &rest, err);
    if (code != COMMON_OK)
        return code;
    if (rest < argc)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "'%.100s' is no option; try 'banyan-worker --help'", argv[rest]);
    if (!config->coordinator)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--coordinator is needed; try 'banyan-worker --help'");
    code = set_log_level(log_level, err);
    if (code == COMMON_OK)
        code = set_names(out, name, host, err);
    if (code != COMMON_OK)
        return code;
    code = set_place(out, bind, numa, (uint32_t)threads, err);
    if (code != COMMON_OK)
        return code;
    code = set_device(out, device, module, err);
    if (code != COMMON_OK)
        return code;
    if (config->memory_bytes == 0) {
        uint64_t free_bytes = free_memory(), near = worker_place_memory(out->place);
        config->memory_bytes = near > 0 && near < free_bytes ? near / 2 : free_bytes / 2;
        if (config->memory_bytes < MEMORY_MIN)
            config->memory_bytes = MEMORY_MIN;
    }
    if (!secret_file) {
        code = default_secret_file(out->secret_file, sizeof out->secret_file, err);
        secret_file = out->secret_file;
    }
    if (code == COMMON_OK)
        code = common_secret_load_or_create(secret_file, &config->secret, err);
    if (code == COMMON_OK && token_file) {
        code = common_token_load(token_file, out->token, err);
        config->token = out->token;
    }
    if (code != COMMON_OK) // a file that is wrong is no mistake in the command line
        return code == COMMON_INVALID_ARGUMENT ? COMMON_FAILED_PRECONDITION : code;
    // Last: from here on other processes wait for this one.
    const struct worker_engine_options wanted = {.name = engine,
                                                 .module = engine_module,
                                                 .worker = out->name,
                                                 .device = worker_device_name(out->device)};
    code = worker_engine_open(&wanted, &out->engine, err);
    config->engine = out->engine;
    return code;
}

enum common_code worker_daemon_write_ready(const char *path, const struct worker_config *config,
                                           const char *endpoint, const char *edge_endpoint,
                                           struct common_error *err)
{
    char temporary[4096];
    json_t *json = json_pack("{s:s, s:s, s:s, s:I}", "name", config->name, "endpoint", endpoint,
                             "edge_endpoint", edge_endpoint, "pid", (json_int_t)getpid());
    char *line = json ? json_dumps(json, JSON_COMPACT) : NULL;
    bool ok =
        line && snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) < (int)sizeof temporary;
    FILE *file = ok ? fopen(temporary, "wx") : NULL;
    if (file) {
        ok = fprintf(file, "%s\n", line) > 0;
        ok = fclose(file) == 0 && ok && rename(temporary, path) == 0;
        if (!ok)
            unlink(temporary);
    }
    free(line);
    json_decref(json);
    return ok && file ? COMMON_OK
                      : common_error_set(err, COMMON_FAILED_PRECONDITION,
                                         "cannot write the ready file '%.200s': %s", path, strerror(errno));
}
