// SPDX-License-Identifier: Apache-2.0
#include "coordinator/coordinator.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/secure/tls.h"
#include "coordinator/admission.h"
#include "coordinator/backup_service.h"
#include "coordinator/check/scrub.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/room.h"
#include "coordinator/cluster/slow.h"
#include "coordinator/events.h"
#include "coordinator/events_service.h"
#include "coordinator/limits.h"
#include "coordinator/place/drain.h"
#include "coordinator/place/rebalance.h"
#include "coordinator/place/strike.h"
#include "coordinator/prefix/prefix_service.h"
#include "coordinator/rows/attach.h"
#include "coordinator/rows/reading.h"
#include "coordinator/rows/reshape.h"
#include "coordinator/service.h"
#include "coordinator/session/table.h"
#include "coordinator/sessions/load.h"
#include "coordinator/sessions/room.h"
#include "coordinator/state.h"
#include "coordinator/steps/attend.h"
#include "coordinator/steps/keep.h"
#include "coordinator/steps/room.h"
#include "coordinator/steps/watchers.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/quarantine_service.h"
#include "coordinator/sync/restored.h"
#include "coordinator/tenants/quota_service.h"
#include "coordinator/trail/trail.h"
#include "proto/rpc/endpoint.h"

#define ANYBODY                                                                                              \
    (1u << BANYAN__PB__ROLE__ROLE_CLIENT | 1u << BANYAN__PB__ROLE__ROLE_WORKER |                             \
     1u << BANYAN__PB__ROLE__ROLE_COORDINATOR)
#define CLIENT       (1u << BANYAN__PB__ROLE__ROLE_CLIENT)
#define WORKER       (1u << BANYAN__PB__ROLE__ROLE_WORKER)
#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

// Each handler gets the room that it belongs to.
#define HANDLER_OF(name, what)                                                                               \
    static void on_##name(void *arg, struct proto_request *request)                                          \
    {                                                                                                        \
        struct coordinator *c = arg;                                                                         \
        if (coordinator_may(c, request) && !coordinator_trail_refuses(c->trail, request))                    \
            coordinator_handle_##name(what, request);                                                        \
    }
#define HANDLER(name, room) HANDLER_OF(name, &c->room)
HANDLER(session_delete, sessions)
HANDLER(session_truncate, sessions)
HANDLER(session_fork, sessions)
HANDLER(prefix_find, sessions)
HANDLER(prefix_keep, sessions)
HANDLER(prefix_list, sessions)
HANDLER(prefix_drop, sessions)
HANDLER(attach_open, sessions)
HANDLER(attach_commit, sessions)
HANDLER(read_open, sessions)
HANDLER(quarantine_list, sessions)
HANDLER(quarantine_drop, sessions)
HANDLER(worker_drain, sessions)
HANDLER(worker_forget, sessions)
HANDLER(rebalance, sessions)
HANDLER(scrub, sessions)
HANDLER(attend, steps)
HANDLER(session_watch, steps)
HANDLER(session_step, steps)
HANDLER(quota_set, quotas)
HANDLER(quota_show, quotas)
HANDLER(register, cluster)
HANDLER(heartbeat, cluster)
HANDLER_OF(backup, c)
HANDLER_OF(backup_read, c)
HANDLER_OF(cluster_info, c)
HANDLER_OF(events, c)
HANDLER_OF(session_create, c)
HANDLER_OF(session_open, c)
HANDLER_OF(session_close, c)
HANDLER_OF(session_info, c)
HANDLER_OF(session_list, c)
HANDLER_OF(session_plan, c)
HANDLER_OF(token_create, c)
HANDLER_OF(token_list, c)
HANDLER_OF(token_revoke, c)

const struct proto_method coordinator_methods[] = {
    {METHOD(HEALTH_CHECK), ANYBODY, coordinator_handle_health},
    {METHOD(CLUSTER_INFO), CLIENT, on_cluster_info},
    {METHOD(SESSION_CREATE), CLIENT, on_session_create},
    {METHOD(SESSION_OPEN), CLIENT, on_session_open},
    {METHOD(SESSION_CLOSE), CLIENT, on_session_close},
    {METHOD(SESSION_DELETE), CLIENT, on_session_delete},
    {METHOD(SESSION_INFO), CLIENT, on_session_info},
    {METHOD(SESSION_LIST), CLIENT, on_session_list},
    {METHOD(SESSION_TRUNCATE), CLIENT, on_session_truncate},
    {METHOD(SESSION_FORK), CLIENT, on_session_fork},
    {METHOD(SESSION_PLAN), CLIENT, on_session_plan},
    {METHOD(SESSION_WATCH), CLIENT, on_session_watch},
    {METHOD(SESSION_STEP), CLIENT, on_session_step},
    {METHOD(PREFIX_FIND), CLIENT, on_prefix_find},
    {METHOD(PREFIX_KEEP), CLIENT, on_prefix_keep},
    {METHOD(PREFIX_LIST), CLIENT, on_prefix_list},
    {METHOD(PREFIX_DROP), CLIENT, on_prefix_drop},
    {METHOD(ATTACH_OPEN), CLIENT, on_attach_open},
    {METHOD(ATTACH_COMMIT), CLIENT, on_attach_commit},
    {METHOD(READ_OPEN), CLIENT, on_read_open},
    {METHOD(QUARANTINE_LIST), CLIENT, on_quarantine_list},
    {METHOD(QUARANTINE_DROP), CLIENT, on_quarantine_drop},
    {METHOD(WORKER_DRAIN), CLIENT | WORKER, on_worker_drain},
    {METHOD(WORKER_FORGET), CLIENT, on_worker_forget},
    {METHOD(REBALANCE), CLIENT, on_rebalance},
    {METHOD(EVENTS), CLIENT, on_events},
    {METHOD(QUOTA_SET), CLIENT, on_quota_set},
    {METHOD(QUOTA_SHOW), CLIENT, on_quota_show},
    {METHOD(BACKUP), CLIENT, on_backup},
    {METHOD(BACKUP_READ), CLIENT, on_backup_read},
    {METHOD(SCRUB), CLIENT, on_scrub},
    {METHOD(TOKEN_CREATE), CLIENT, on_token_create},
    {METHOD(TOKEN_LIST), CLIENT, on_token_list},
    {METHOD(TOKEN_REVOKE), CLIENT, on_token_revoke},
    {METHOD(ATTEND), CLIENT, on_attend},
    {METHOD(REGISTER), WORKER, on_register},
    {METHOD(HEARTBEAT), WORKER, on_heartbeat},
    {0, 0, NULL},
};

static void tick(void *arg)
{
    struct coordinator *c = arg;
    uint64_t now = common_clock_ns();
    coordinator_trail_tick(c->trail, now);
    coordinator_here(&c->core, now);
    coordinator_workers_tick(&c->cluster, now);
    coordinator_slow_tick(&c->cluster, now);
    coordinator_plans_tick(&c->cluster, now);
    coordinator_sessions_tick(&c->sessions, now);
    coordinator_backups_tick(c, now);
    coordinator_admission_tick(c, now);
    coordinator_events_look(c);
}

static enum common_code listen_all(struct coordinator *c, const char *const *endpoints,
                                   struct common_error *err)
{
    enum common_code code = COMMON_OK;
    bool has_token = c->core.options.token || c->tenants.tokens.n;
    c->door_open = true;
    for (size_t i = 0; endpoints[i] && code == COMMON_OK; i++) {
        c->door_open = c->door_open && proto_listen_allowed(endpoints[i], false, true,
                                                            c->core.options.insecure, NULL) == COMMON_OK;
        code = proto_listen_allowed(endpoints[i], has_token, proto_endpoint_has_tls(endpoints[i]),
                                    c->core.options.insecure, err);
        if (code == COMMON_OK)
            code = proto_server_listen(c->server, endpoints[i], err);
    }
    return code;
}

static void copy_options(struct coordinator_core *core, const struct coordinator_options *options)
{
    core->options = *options;
    core->options.endpoints = NULL;
    core->options.cluster = strdup(options->cluster);
    core->options.store_path = strdup(options->store_path);
    core->options.token = options->token ? strdup(options->token) : NULL;
    core->options.tls = common_tls_ref(options->tls);
    core->options.audit_log = options->audit_log ? strdup(options->audit_log) : NULL;
    core->secret = *options->secret;
    core->options.secret = &core->secret;
    if (core->options.max_workers > COORDINATOR_WORKERS_MAX)
        core->options.max_workers = COORDINATOR_WORKERS_MAX;
}

static bool connection_enters(void *arg, uint32_t tenant, char *text, size_t bytes)
{
    struct coordinator *c = arg;
    struct proto_status status;
    if (coordinator_quota_take(coordinator_use_of(&c->quotas, tenant), COORDINATOR_QUOTA_CONNECTIONS, 1,
                               &status) == COMMON_OK)
        return true;
    snprintf(text, bytes, "%s", status.message);
    return false;
}

static void connection_leaves(void *arg, uint32_t tenant)
{
    struct coordinator *c = arg;
    coordinator_quota_give(coordinator_use_of(&c->quotas, tenant), COORDINATOR_QUOTA_CONNECTIONS, 1);
}

static void on_refusing(void *arg, enum proto_refusal refusal, const char *peer, const char *why)
{
    struct coordinator *c = arg;
    coordinator_event_refusing(c, refusal, peer, why);
    coordinator_trail_refusing(c->trail, refusal, peer, why);
}

static bool on_answered(void *arg, struct proto_request *request, enum common_code code,
                        const ProtobufCMessage *reply)
{
    struct coordinator *c = arg;
    return coordinator_trail_answered(c->trail, request, code, reply);
}

static enum common_code serve(struct coordinator *c, const char *const *endpoints, struct common_error *err)
{
    struct proto_server_options server = {.name = c->core.options.cluster,
                                          .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                          .secret = &c->core.secret,
                                          .token = c->core.options.token,
                                          .links_max = c->core.options.max_clients,
                                          // a worker that starts again may come before its old link is gone
                                          .daemons_max = 2 * c->core.options.max_workers + 16,
                                          .requests_max = c->core.options.max_requests,
                                          .caller_requests_max = c->core.options.max_client_requests,
                                          .bytes_max = c->core.options.max_bytes,
                                          .caller_bytes_max = c->core.options.max_client_bytes,
                                          .flags = coordinator_limit_flags,
                                          .admit = coordinator_admit,
                                          .unadmitted = coordinator_unadmitted,
                                          .enters = connection_enters,
                                          .leaves = connection_leaves,
                                          .wording = coordinator_wording,
                                          .refusing = on_refusing,
                                          .answered = c->trail ? on_answered : NULL,
                                          .methods = coordinator_methods,
                                          .tls = c->core.options.tls,
                                          .tls_client_cert = c->core.options.tls_client_certs,
                                          .arg = c};
    enum common_code code = proto_server_new(c->core.loop, &server, &c->server, err);
    return code == COMMON_OK ? listen_all(c, endpoints, err) : code;
}

// With commas between, cut where `out` ends.
static void list_endpoints(const struct coordinator *c, char *out, size_t bytes)
{
    const char *endpoint;
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t i = 0; (endpoint = coordinator_endpoint(c, i)) && len < bytes; i++)
        len += (size_t)snprintf(out + len, bytes - len, "%s%s", i ? "," : "", endpoint);
}

static enum common_code open_store(struct coordinator *c, struct common_error *err)
{
    struct coordinator_core *core = &c->core;
    struct coordinator_loader loader = {.sessions = &c->sessions, .err = err};
    struct coordinator_store_reader reader;
    coordinator_sessions_reader(&loader, &reader);
    coordinator_tenants_reader(&c->tenants, &reader);
    coordinator_quotas_reader(&c->quotas, &reader);
    enum common_code code = coordinator_store_open(core->options.store_path, core->options.store_sync_full,
                                                   core->loop, &reader, &c->store, err);
    if (code != COMMON_OK)
        return code;
    c->cluster.store = c->sessions.store = c->tenants.store = c->store;
    core->term = coordinator_store_term(c->store);
    coordinator_events_set_term(core->events, core->term);
    c->cluster.lives = (uint32_t)core->term << 16;
    coordinator_sessions_restored(&c->sessions);
    coordinator_restored_withhold(&c->sessions);
    return COMMON_OK;
}

enum common_code coordinator_new(struct common_loop *loop, const struct coordinator_options *options,
                                 struct coordinator **out, struct common_error *err)
{
    struct coordinator *c = coordinator_alloc(sizeof(*c));
    struct coordinator_core *core = &c->core;
    struct common_error unasked = {0};
    err = err ? err : &unasked;
    err->code = COMMON_OK;
    core->loop = loop;
    core->started_ns = common_clock_ns();
    core->clock_zero_ns = common_clock_wall_ns() - core->started_ns;
    copy_options(core, options);
    enum common_code code = coordinator_turn_init(&core->turn, loop);
    if (code == COMMON_OK)
        code = coordinator_event_readers_new(c);
    coordinator_tenants_init(&c->tenants, core);
    coordinator_quotas_init(&c->quotas, &c->tenants);
    c->sessions.quotas = &c->quotas;
    if (code == COMMON_OK)
        code = coordinator_trail_new(core, &c->tenants, &c->trail, err);
    coordinator_cluster_init(&c->cluster, core);
    coordinator_sessions_init(&c->sessions, core, &c->cluster);
    if (code == COMMON_OK)
        code = coordinator_steps_init(&c->steps, core, &c->cluster, &c->sessions);
    if (code == COMMON_OK)
        code = open_store(c, err);
    if (code == COMMON_OK && options->held)
        options->held(options->arg);
    if (code == COMMON_OK)
        code = common_timer_new(loop, tick, c, &c->tick);
    if (code == COMMON_OK)
        code = serve(c, options->endpoints, err);
    if (code != COMMON_OK) {
        coordinator_stop(c);
        coordinator_free(c);
        return code;
    }
    coordinator_presence_init(&core->presence, core->options.heartbeat_ns / 2, common_clock_ns());
    common_timer_start(c->tick, core->presence.interval_ns, true);
    *out = c;
    char listen[512];
    list_endpoints(c, listen, sizeof(listen));
    common_log_info("ready cluster=%s listen=%s term=%" PRIu64 " sessions=%u store=%s store_id=%016" PRIx64,
                    core->options.cluster, listen, core->term, c->sessions.n, core->options.store_path,
                    coordinator_store_id(c->store));
    coordinator_events_add(core->events, &(struct coordinator_event){.kind = PROTO_EVENT_COORDINATOR_STARTED,
                                                                     .text = "the coordinator has started"});
    return COMMON_OK;
}

void coordinator_set_options(struct coordinator *c, const struct coordinator_options *options)
{
    struct coordinator_options *mine = &c->core.options;
    bool scrubs = mine->scrub_ns != options->scrub_ns;
    mine->audit = options->audit;
    mine->grace_ns = options->grace_ns;
    mine->move_bytes_per_s = options->move_bytes_per_s;
    mine->replicas = options->replicas;
    mine->scrub_ns = options->scrub_ns;
    mine->session_ttl_ns = options->session_ttl_ns;
    mine->slow_after_ns = options->slow_after_ns;
    if (scrubs)
        coordinator_seals_spread(&c->sessions);
}

void coordinator_tell_reloaded(struct coordinator *c, const char *trouble)
{
    char text[PROTO_EVENT_TEXT];
    snprintf(text, sizeof(text), "%s%s",
             trouble ? "the configuration is unchanged: " : "the configuration was reloaded",
             trouble ? trouble : "");
    coordinator_events_add(c->core.events, &(struct coordinator_event){
                                               .kind = PROTO_EVENT_COORDINATOR_RELOADED,
                                               .severity = trouble ? PROTO_EVENT_ERROR : PROTO_EVENT_INFO,
                                               .text = text});
}

void coordinator_reopen_audit_log(struct coordinator *c)
{
    coordinator_trail_reopen(c->trail);
}

const char *coordinator_endpoint(const struct coordinator *c, uint32_t nth)
{
    return proto_server_endpoint(c->server, nth);
}

void coordinator_stop(struct coordinator *c)
{
    if (c->core.stopping)
        return;
    c->core.stopping = true;
    // First of all, as a kill would: calls that are out are sent again, to the next coordinator. An answer that says why they
    // end would end them. And no client waits on a link while the disk takes its time.
    proto_server_close(c->server);
    c->server = NULL;
    if (c->tick)
        common_timer_stop(c->tick);
    coordinator_event_readers_stop(c);
    coordinator_steps_stop(&c->steps);
    c->sessions.unpark = true;
    coordinator_turn_mark(&c->core.turn, COORDINATOR_PHASE_SESSIONS);
    coordinator_workers_close(&c->cluster); // what waits for a worker ends
    coordinator_turn_drain(&c->core.turn);
    coordinator_backups_stop(c);
    coordinator_store_stop(c->store);
    coordinator_trail_flush(c->trail); // answers wait for their records
    coordinator_trail_stop(c->trail);
}

// The loop has ended, perhaps in the middle of a turn: nothing that waits for it or for the store is left open. What the
// store's last answers have begun ends here, and what that begins.
static void end_all(struct coordinator *c)
{
    do
        coordinator_turn_drain(&c->core.turn);
    while (coordinator_store_refuse(c->store));
}

void coordinator_free(struct coordinator *c)
{
    if (!c)
        return;
    end_all(c);
    coordinator_sessions_fini(&c->sessions);
    coordinator_steps_fini(&c->steps);
    end_all(c);
    coordinator_cluster_fini(&c->cluster);
    coordinator_quotas_fini(&c->quotas);
    coordinator_tenants_fini(&c->tenants);
    coordinator_backups_stop(c); // one that was being made or read meanwhile
    coordinator_store_free(c->store);
    free(c->backups);
    coordinator_trail_free(c->trail);
    coordinator_event_readers_free(c);
    coordinator_turn_fini(&c->core.turn);
    common_timer_free(c->tick);
    free((char *)c->core.options.cluster);
    free((char *)c->core.options.store_path);
    if (c->core.options.token)
        explicit_bzero((char *)c->core.options.token, strlen(c->core.options.token));
    free((char *)c->core.options.token);
    common_tls_unref(c->core.options.tls);
    free((char *)c->core.options.audit_log);
    explicit_bzero(&c->core.secret, sizeof c->core.secret);
    free(c->core.scratch);
    free(c);
}
