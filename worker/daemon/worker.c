// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/worker.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/cli/options.h"
#include "common/log/log.h"
#include "common/secure/secret.h"
#include "common/secure/tls.h"
#include "proto/rights/pass.h"
#include "proto/rpc/endpoint.h"
#include "worker/control/control.h"
#include "worker/control/empty.h"
#include "worker/control/farewell.h"
#include "worker/control/inventory.h"
#include "worker/control/lose.h"
#include "worker/control/plans.h"
#include "worker/core/state.h"
#include "worker/core/warm.h"
#include "worker/daemon/limits.h"
#include "worker/files/files.h"
#include "worker/memory/clean.h"
#include "worker/memory/memory.h"
#include "worker/processors/measure.h"
#include "worker/rows/expire.h"
#include "worker/rows/prepare.h"
#include "worker/rows/pull.h"
#include "worker/rows/read.h"
#include "worker/rows/rows.h"
#include "worker/rows/sums.h"
#include "worker/rows/ticket.h"
#include "worker/steps/audit.h"
#include "worker/steps/mass.h"
#include "worker/steps/probe.h"
#include "worker/steps/step.h"
#include "worker/store/cold.h"

// Multiply-adds below which a step is computed on the loop thread: worker/README.md says how this was
// measured.
#define INLINE_MADDS    UINT64_C(1000000)
#define INVENTORY_BYTES (UINT64_C(48) * 1024)

#define TIDY_NS (10 * COMMON_NS_PER_S) // for so long memory that became empty waits for what comes next

enum {
    CLIENT = 1 << BANYAN__PB__ROLE__ROLE_CLIENT,
    WORKER = 1 << BANYAN__PB__ROLE__ROLE_WORKER,
    COORDINATOR = 1 << BANYAN__PB__ROLE__ROLE_COORDINATOR
};

static const struct proto_method public_methods[] = {
    {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, CLIENT | WORKER | COORDINATOR, worker_handle_health},
    {BANYAN__PB__METHOD__METHOD_CHUNK_PUT, CLIENT | WORKER | COORDINATOR, worker_handle_chunk_put},
    {BANYAN__PB__METHOD__METHOD_CHUNK_READ, CLIENT | WORKER | COORDINATOR, worker_handle_client_read},
    {0, 0, NULL},
};

static const struct proto_method edge_methods[] = {
    {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, WORKER | COORDINATOR, worker_handle_health},
    {BANYAN__PB__METHOD__METHOD_PLAN_INSTALL, COORDINATOR, worker_handle_plan_install},
    {BANYAN__PB__METHOD__METHOD_PLAN_DROP, COORDINATOR, worker_handle_plan_drop},
    {BANYAN__PB__METHOD__METHOD_LAYOUT_SET, COORDINATOR, worker_handle_layout_set},
    {BANYAN__PB__METHOD__METHOD_SESSION_DROP, COORDINATOR, worker_handle_session_drop},
    {BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, COORDINATOR, worker_handle_rows_prepare},
    {BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, COORDINATOR, worker_handle_rows_commit},
    {BANYAN__PB__METHOD__METHOD_ROWS_ABORT, COORDINATOR, worker_handle_rows_abort},
    {BANYAN__PB__METHOD__METHOD_CHUNK_COPY, COORDINATOR, worker_handle_chunk_copy},
    {BANYAN__PB__METHOD__METHOD_INVENTORY, COORDINATOR, worker_handle_inventory},
    {BANYAN__PB__METHOD__METHOD_CHUNK_PULL, COORDINATOR, worker_handle_chunk_pull},
    {BANYAN__PB__METHOD__METHOD_CHUNK_READ, WORKER, worker_handle_chunk_read},
    {BANYAN__PB__METHOD__METHOD_CHUNK_SUM, COORDINATOR, worker_handle_chunk_sum},
    {BANYAN__PB__METHOD__METHOD_STEP, WORKER | COORDINATOR, worker_handle_step},
    {BANYAN__PB__METHOD__METHOD_MASS, COORDINATOR, worker_handle_mass},
    {BANYAN__PB__METHOD__METHOD_AUDIT, COORDINATOR, worker_handle_audit},
    {0, 0, NULL},
};

// Logged once; callers get it each time.
static bool engine_lost(struct worker *worker)
{
    struct common_error why;
    if (!worker_engine_lost(worker->engine, &why))
        return false;
    if (!worker->engine_told)
        common_log_error("engine=%s has failed, using stream instead: %s", worker_engine_name(worker->engine),
                         why.message);
    worker->engine_told = true;
    return true;
}

static uint64_t quarantined(const struct worker *worker)
{
    size_t cursor = 0;
    uint64_t bytes = 0;
    void *value;
    while (worker_map_next(&worker->sessions, &cursor, &value))
        if (((const struct worker_session *)value)->life != worker->life)
            bytes += worker_session_bytes(value);
    return bytes;
}

// Sessions that have lost chunks here.
static uint32_t lacking(const struct worker *worker, uint64_t out[PROTO_LACKING_MAX])
{
    size_t cursor = 0;
    uint32_t n = 0;
    void *value;
    while (n < PROTO_LACKING_MAX && worker_map_next(&worker->sessions, &cursor, &value))
        if (((const struct worker_session *)value)->lacks)
            out[n++] = ((const struct worker_session *)value)->id;
    return n;
}

static void membership_stats(void *arg, struct worker_membership_stats *out)
{
    struct worker *worker = arg;
    worker_store_set_quarantined(worker->store, quarantined(worker));
    worker_attach_expire(worker, common_clock_ns());
    worker_store_tidy(worker->store, common_clock_ns() - TIDY_NS);
    out->used_bytes = worker_store_total(worker->store);
    out->chunks = worker_store_chunks(worker->store);
    out->steps = worker->steps_done;
    out->last_compute_ns = worker->last_compute_ns;
    out->engine_lost = engine_lost(worker);
    out->planned_ns = worker->pace.planned_ns;
    out->taken_ns = worker->pace.taken_ns;
    struct worker_disk_stats files;
    worker_disk_get_stats(worker->disk, &files);
    out->store_bytes = files.bytes;
    out->store_refused = files.refused;
    out->store_damaged = files.damaged;
    worker_store_get_cold(worker->store, &out->cold);
    out->n_lacking = lacking(worker, out->lacking);
    out->n_limits = worker_limits(worker, out->limits);
    out->n_edges_down = reduce_edges_down(worker->env.edges, out->edges_down, PROTO_EDGES_DOWN_MAX);
}

static void membership_measure(void *arg)
{
    worker_probe_begin(arg);
}

static void membership_registered(void *arg)
{
    struct worker *worker = arg;
    if (worker->registered)
        worker->registered(worker->registered_arg);
}

static void device_lost(void *arg, const struct common_error *err)
{
    struct worker *worker = arg;
    common_log_error("device=%s is lost: %s", worker_device_text(worker->device), err->message);
    if (worker->failed)
        worker->failed(worker->failed_arg, err);
}

static enum common_code check_config(const struct worker_config *config, struct common_error *err)
{
    size_t name = strlen(config->name), host = strlen(config->host);
    if (name < 1 || name > WORKER_NAME_MAX || host < 1 || host > WORKER_NAME_MAX)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "--name and --host must have 1..%d bytes",
                                WORKER_NAME_MAX);
    if (strncmp(config->edge_listen, "nng+", 4) == 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "--edge-listen takes tls://, tcp:// or unix://");
    // Clients with neither the token nor a pass are rejected there (admit); at the edge all prove that they
    // have the secret.
    enum common_code code = proto_listen_allowed(config->listen, true, proto_endpoint_has_tls(config->listen),
                                                 config->insecure, err);
    if (code == COMMON_OK)
        code = proto_listen_allowed(config->edge_listen, true, proto_endpoint_has_tls(config->edge_listen),
                                    config->insecure, err);
    return code;
}

// Clients show the token, or a pass of the coordinator's; where only this machine reaches the worker, tickets alone guard it.
static bool admit(void *arg, const void *credentials, size_t len, const char *peer,
                  struct proto_identity *out)
{
    const struct worker *worker = arg;
    (void)peer;
    if (proto_pass_check(&worker->secret, credentials, len, worker_ticket_clock_ns(worker) / COMMON_NS_PER_S,
                         out))
        return true;
    bool right =
        worker->token && len == strlen(worker->token) && common_bytes_equal(credentials, worker->token, len);
    if (!right && worker->demands_pass)
        return false;
    *out = proto_identity_admin;
    return true;
}

static enum common_code worker_serve(struct worker *worker, const struct worker_config *config,
                                     struct common_error *err)
{
    struct proto_server_options options = {.name = worker->name,
                                           .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                           .secret = &worker->secret,
                                           .admit = admit,
                                           .links_max = config->max_clients,
                                           .bytes_max = worker->flight_limit,
                                           .flags = worker_limit_flags,
                                           .methods = public_methods,
                                           .tls = worker->tls,
                                           .tls_client_cert = config->tls_client_certs,
                                           .arg = worker};
    worker->token = config->token ? strdup(config->token) : NULL;
    worker->demands_pass =
        config->token || proto_listen_allowed(config->listen, false, true, false, NULL) != COMMON_OK;
    enum common_code code = proto_server_new(worker->loop, &options, &worker->public_server, err);
    if (code == COMMON_OK)
        code = proto_server_listen(worker->public_server, config->listen, err);
    if (code != COMMON_OK)
        return code;
    options.admit = NULL;
    options.methods = edge_methods;
    code = proto_server_new(worker->loop, &options, &worker->edge_server, err);
    if (code == COMMON_OK)
        code = proto_server_listen(worker->edge_server, config->edge_listen, err);
    return code;
}

static enum common_code worker_join(struct worker *worker, const struct worker_config *config,
                                    const struct worker_speed *speed, struct common_error *err)
{
    struct worker_membership_options options = {.coordinator = config->coordinator,
                                                .name = worker->name,
                                                .host = worker->host,
                                                .endpoint = worker_endpoint(worker),
                                                .edge_endpoint = worker_edge_endpoint(worker),
                                                .advertise = config->advertise,
                                                .keep_endpoint = config->listen_by_default,
                                                .kernel = speed->kernel,
                                                .secret = &worker->secret,
                                                .tls = worker->tls,
                                                .capacity_bytes = worker_store_capacity(worker->store),
                                                .bandwidth = speed->bytes_per_s,
                                                .threads = config->threads,
                                                .cores = config->place
                                                             ? worker_place_processors(config->place)
                                                             : 0,
                                                .engine = worker_engine_name(config->engine),
                                                .group = worker_engine_group(config->engine),
                                                .no_device = config->no_device,
                                                .term = &worker->term,
                                                .clock_zero_ns = &worker->clock_zero_ns,
                                                .stats = membership_stats,
                                                .measure = membership_measure,
                                                .registered = membership_registered,
                                                .arg = worker};
    return worker_membership_new(worker->loop, &options, &worker->membership, err);
}

static enum common_code speed_of(struct worker *worker, const struct worker_config *config,
                                 struct worker_speed *speed, struct common_error *err)
{
    if (config->bandwidth == 0 && config->device) {
        speed->kernel = worker_device_info(config->device)->kernel;
        return worker_device_bandwidth(config->device, &speed->bytes_per_s, err);
    }
    if (config->bandwidth == 0)
        return worker_measure(worker->team, config->memory_bytes / 2, speed, err);
    speed->bytes_per_s = config->bandwidth;
    speed->kernel = config->device ? worker_device_info(config->device)->kernel : worker_measure_kernel(err);
    return speed->kernel ? COMMON_OK : COMMON_FAILED_PRECONDITION;
}

// Half of a small memory, an eighth of a large one, 1 GiB at most, is for what is in flight: frames,
// partials, workspaces.
static uint64_t flight_share(uint64_t memory)
{
    const uint64_t enough = UINT64_C(128) << 20, most = UINT64_C(1) << 30;
    uint64_t share = memory / 8;
    if (share < enough)
        share = memory / 2 < enough ? memory / 2 : enough;
    return share > most ? most : share;
}

// What K and V may take. Of a device's memory an eighth (1 GiB at most) is for the module's own workspaces;
// what is in flight is the host's.
static uint64_t capacity_of(const struct worker_config *config, uint64_t flight_limit)
{
    if (!config->device)
        return config->memory_bytes - flight_limit;
    uint64_t limit = worker_device_info(config->device)->limit_bytes, own = limit / 8;
    if (limit > config->memory_bytes)
        limit = config->memory_bytes;
    own = own < (UINT64_C(1) << 30) ? own : UINT64_C(1) << 30;
    return limit > own ? limit - own : 0;
}

static void log_memory(const struct worker *worker, const struct worker_config *config)
{
    char all[32], kv[32];
    common_format_bytes(config->memory_bytes, all, sizeof all);
    common_format_bytes(worker_store_limit(worker->store), kv, sizeof kv);
    if (config->device)
        common_log_info(
            "memory of the device divided memory=%s kv=%s: keys and values get kv, workspaces the rest", all,
            kv);
    else
        common_log_info(
            "memory divided memory=%s kv=%s: keys and values get kv; messages, partial results and "
            "workspaces get an eighth, at least 128 MiB and at most 1 GiB, never more than half",
            all, kv);
}

static void disk_sealed(void *arg)
{
    worker_warm_sealed(((struct worker *)arg)->warm);
}

static void disk_wanted(void *arg, struct worker_chunk *chunk)
{
    struct worker *worker = arg;
    struct worker_wants wants = {0};
    if (!worker->warm)
        return;
    worker_wants_add_chunk(&wants, chunk);
    worker_warm_begin(worker->warm, &wants);
}

// What --store has, before anybody is served.
static enum common_code open_disk(struct worker *worker, const struct worker_config *config,
                                  struct common_error *err)
{
    struct worker_files *files = config->files;
    const struct worker_disk_options options = {.path = config->store,
                                                .name = worker->name,
                                                .secret = &worker->secret,
                                                .fsync = config->fsync,
                                                .boot = config->boot,
                                                .scrub_ns = config->scrub_ns,
                                                .term = &worker->term,
                                                .attach_ns = worker->attach_clock_ns,
                                                .damaged = worker_lose_chunk,
                                                .sealed = disk_sealed,
                                                .wanted = disk_wanted,
                                                .arg = worker};
    enum common_code code = COMMON_OK;
    if (!config->store)
        return COMMON_OK;
    if (!files)
        code = worker_files_open(config->store, &files, err);
    if (code == COMMON_OK)
        code = worker_disk_new(worker->loop, files, &options, &worker->disk, err);
    if (code != COMMON_OK)
        return code;
    worker_store_set_capacity(worker->store, UINT64_MAX); // what is there is there
    code = worker_disk_load(worker->disk, worker->store, &worker->sessions, err);
    worker_store_set_capacity(worker->store, config->store_limit);
    return code;
}

static struct worker_memory *memory_of(const struct worker *worker, const struct worker_config *config,
                                       uint64_t capacity)
{
    if (worker->device)
        return worker_memory_of_device(capacity, worker->device);
    return config->prefault ? worker_memory_host_ready(capacity, config->place)
                            : worker_memory_host(capacity, config->place);
}

enum common_code worker_new(struct common_loop *loop, const struct worker_config *config, struct worker **out,
                            struct common_error *err)
{
    enum common_code code = check_config(config, err);
    if (code != COMMON_OK)
        return code;
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a worker");
    worker->loop = loop;
    worker->started_ns = common_clock_ns();
    worker->tracer = config->tracer;
    worker->tls = common_tls_ref(config->tls);
    strcpy(worker->name, config->name); // lengths: check_config
    strcpy(worker->host, config->host);
    worker->secret = config->secret;
    worker->inline_madds = config->inline_madds ? config->inline_madds : INLINE_MADDS;
    worker->registered = config->registered;
    worker->registered_arg = config->registered_arg;
    worker->flight_limit = flight_share(config->memory_bytes);
    worker->inventory_bytes = INVENTORY_BYTES;
    worker->attach_ttl_ns = config->attach_ttl_ns;
    worker->attach_clock_ns = 1;
    worker->failed = config->failed;
    worker->failed_arg = config->failed_arg;
    worker->device = config->device;
    worker->engine = config->engine;
    if (worker->device)
        worker_device_attach(worker->device, loop, device_lost, worker);
    uint64_t capacity = capacity_of(config, worker->flight_limit);
    struct worker_memory *kv = memory_of(worker, config, capacity);
    if (!kv && config->prefault) {
        worker_free(worker);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "--prefault: the system cannot provide all of --memory: give less");
    }
    worker->store = worker_store_new(capacity, kv);
    if (worker->store) {
        worker_store_set_name(worker->store, worker->name);
        worker->clean = worker_clean_new(loop, kv);
    }
    code = worker->store ? open_disk(worker, config, err) : COMMON_OK;
    if (code != COMMON_OK) {
        worker_free(worker);
        return code;
    }
    worker->env = (struct reduce_env){
        .loop = loop, .name = worker->name, .secret = &worker->secret, .tls = worker->tls};
    struct worker_speed speed;
    code = worker->store ? reduce_edges_new(&worker->env, &worker->env.edges) : COMMON_RESOURCE_EXHAUSTED;
    worker->pulls = worker_pulls_new(worker);
    worker->sums = worker_sums_new(worker);
    worker->warm = worker_warm_new(worker, config->read_ahead);
    if (code == COMMON_OK)
        code = worker_follows_init(&worker->follows, loop, &worker->sessions, worker->name);
    if (code == COMMON_OK && (!worker->pulls || !worker->sums || !worker->warm || !worker->clean))
        code = COMMON_RESOURCE_EXHAUSTED;
    if (code != COMMON_OK)
        common_error_set(err, code, "the system has no memory for a worker");
    if (code == COMMON_OK)
        code = worker_team_new(loop, config->threads, config->place, &worker->team, err);
    if (code == COMMON_OK)
        code = speed_of(worker, config, &speed, err);
    if (code == COMMON_OK)
        worker_pace_init(&worker->pace, speed.bytes_per_s);
    if (code == COMMON_OK)
        code = worker_serve(worker, config, err);
    if (code == COMMON_OK && config->coordinator)
        code = worker_join(worker, config, &speed, err);
    if (code != COMMON_OK) {
        worker_free(worker);
        return code;
    }
    char memory[32], bandwidth[32], place[WORKER_PLACE_TEXT] = "bind=none";
    if (config->place)
        worker_place_text(config->place, place);
    common_log_info("serving name=%s host=%s listen=%s edge=%s memory=%s bandwidth=%s/s kernel=%s device=%s "
                    "threads=%u %s",
                    worker->name, worker->host, worker_endpoint(worker), worker_edge_endpoint(worker),
                    common_format_bytes(config->memory_bytes, memory, sizeof memory),
                    common_format_bytes(speed.bytes_per_s, bandwidth, sizeof bandwidth), speed.kernel,
                    worker_device_text(config->device), config->threads, place);
    log_memory(worker, config);
    *out = worker;
    return COMMON_OK;
}

void worker_set_config(struct worker *worker, const struct worker_config *config)
{
    worker->attach_ttl_ns = config->attach_ttl_ns;
    worker_warm_set_read_ahead(worker->warm, config->read_ahead);
    if (worker->disk)
        worker_disk_set_scrub(worker->disk, config->scrub_ns);
}

const char *worker_endpoint(const struct worker *worker)
{
    return worker->membership ? worker_membership_endpoint(worker->membership)
                              : proto_server_endpoint(worker->public_server, 0);
}

const char *worker_edge_endpoint(const struct worker *worker)
{
    return worker->membership ? worker_membership_edge_endpoint(worker->membership)
                              : proto_server_endpoint(worker->edge_server, 0);
}

// ---- leaving ------------------------------------------------------------------------------------

enum common_code worker_empty(struct worker *worker, uint64_t limit_ns, void (*done)(void *arg, bool empty),
                              void *arg)
{
    assert(!worker->empty);
    return worker_empty_new(worker->loop, worker->membership, worker->name, limit_ns, done, arg,
                            &worker->empty);
}

enum common_code worker_say_farewell(struct worker *worker, void (*done)(void *arg), void *arg)
{
    assert(!worker->farewell);
    return worker_farewell_new(worker->membership, worker->name, done, arg, &worker->farewell);
}

uint64_t worker_unsaved_bytes(const struct worker *worker)
{
    return worker->disk ? 0 : worker_store_used(worker->store);
}

static void drain_end(struct worker *worker)
{
    void (*done)(void *) = worker->drained;
    worker->drained = NULL;
    common_timer_free(worker->drain_timer);
    worker->drain_timer = NULL;
    done(worker->drained_arg);
}

static void drain_tick(void *arg)
{
    struct worker *worker = arg;
    if (worker->n_steps + worker->n_prepares > 0) {
        worker_warm_close(worker->warm);
        worker_disk_end_waits(worker->disk);
        worker_plans_close(
            worker); // out of patience: the last one calls worker_hand_emptied when the team releases it
    } else {
        drain_end(worker);
    }
}

enum common_code worker_drain(struct worker *worker, uint64_t grace_ns, void (*done)(void *arg), void *arg)
{
    assert(!worker->draining);
    enum common_code code = common_timer_new(worker->loop, drain_tick, worker, &worker->drain_timer);
    if (code != COMMON_OK)
        return code;
    worker->draining = true;
    worker_probe_stop(worker);
    worker->drained = done;
    worker->drained_arg = arg;
    common_timer_start(worker->drain_timer, worker->n_steps + worker->n_prepares == 0 ? 0 : grace_ns, false);
    return COMMON_OK;
}

void worker_free(struct worker *worker)
{
    if (!worker)
        return;
    assert(worker->n_steps + worker->n_prepares == 0 && !worker->drain_timer);
    worker_empty_free(worker->empty);
    worker_farewell_free(worker->farewell);
    worker_membership_free(worker->membership);
    worker_plans_close(worker);
    worker_pulls_free(worker->pulls);
    worker_sums_free(worker->sums);
    worker_warm_free(worker->warm);
    worker_follows_fini(&worker->follows);
    worker_disk_end_waits(worker->disk);
    worker->warm = NULL; // the disk, which seals to the end, notifies no one any longer
    worker_team_free(worker->team);
    proto_server_close(worker->public_server);
    proto_server_close(worker->edge_server);
    reduce_edges_free(worker->env.edges);
    worker_disk_close(worker->disk); // its files stay as they are
    size_t cursor = 0;
    void *value;
    while (worker_map_next(&worker->sessions, &cursor, &value)) {
        worker_session_drop(&worker->sessions, worker->store, ((struct worker_session *)value)->id);
        cursor = 0; // the map has changed
    }
    worker_map_free(&worker->sessions);
    worker_listing_free(&worker->listing);
    worker_clean_free(worker->clean);
    worker_store_free(worker->store);
    worker_disk_free(worker->disk);
    free(worker->scratch);
    free(worker->lost);
    common_tls_unref(worker->tls);
    free(worker->token);
    explicit_bzero(&worker->secret, sizeof worker->secret);
    free(worker);
}
