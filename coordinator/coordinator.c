// SPDX-License-Identifier: Apache-2.0
#include "coordinator/coordinator.h"

#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/attach.h"
#include "coordinator/membership.h"
#include "coordinator/plans.h"
#include "coordinator/quarantine.h"
#include "coordinator/reshape.h"
#include "coordinator/scheduler.h"
#include "coordinator/session.h"
#include "coordinator/session_service.h"
#include "coordinator/watch.h"

#define ANYBODY                                                                                              \
    (1u << BANYAN__PB__ROLE__ROLE_CLIENT | 1u << BANYAN__PB__ROLE__ROLE_WORKER |                             \
     1u << BANYAN__PB__ROLE__ROLE_COORDINATOR)
#define CLIENT       (1u << BANYAN__PB__ROLE__ROLE_CLIENT)
#define WORKER       (1u << BANYAN__PB__ROLE__ROLE_WORKER)
#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

static const struct proto_method methods[] = {
    {METHOD(HEALTH_CHECK), ANYBODY, coordinator_handle_health},
    {METHOD(CLUSTER_INFO), CLIENT, coordinator_handle_cluster_info},
    {METHOD(SESSION_CREATE), CLIENT, coordinator_handle_session_create},
    {METHOD(SESSION_OPEN), CLIENT, coordinator_handle_session_open},
    {METHOD(SESSION_CLOSE), CLIENT, coordinator_handle_session_close},
    {METHOD(SESSION_DELETE), CLIENT, coordinator_handle_session_delete},
    {METHOD(SESSION_INFO), CLIENT, coordinator_handle_session_info},
    {METHOD(SESSION_LIST), CLIENT, coordinator_handle_session_list},
    {METHOD(SESSION_TRUNCATE), CLIENT, coordinator_handle_session_truncate},
    {METHOD(SESSION_FORK), CLIENT, coordinator_handle_session_fork},
    {METHOD(SESSION_PLAN), CLIENT, coordinator_handle_session_plan},
    {METHOD(SESSION_WATCH), CLIENT, coordinator_handle_session_watch},
    {METHOD(ATTACH_OPEN), CLIENT, coordinator_handle_attach_open},
    {METHOD(ATTACH_COMMIT), CLIENT, coordinator_handle_attach_commit},
    {METHOD(QUARANTINE_LIST), CLIENT, coordinator_handle_quarantine_list},
    {METHOD(QUARANTINE_DROP), CLIENT, coordinator_handle_quarantine_drop},
    {METHOD(ATTEND), CLIENT, coordinator_handle_attend},
    {METHOD(REGISTER), WORKER, coordinator_handle_register},
    {METHOD(HEARTBEAT), WORKER, coordinator_handle_heartbeat},
    {0, 0, NULL},
};

void coordinator_options_default(struct coordinator_options *options)
{
    *options = (struct coordinator_options){.cluster = "banyan",
                                            .store_path = ":memory:",
                                            .max_workers = 256,
                                            .max_sessions = 65536,
                                            .max_items = 65536,
                                            .max_bytes = UINT64_C(1) << 30,
                                            .max_session_tokens = UINT64_C(1) << 26,
                                            .heartbeat_ns = COMMON_NS_PER_S,
                                            .grace_ns = 250 * COMMON_NS_PER_MS,
                                            .ticket_ns = 600 * COMMON_NS_PER_S};
}

static void tick(void *arg)
{
    struct coordinator *c = arg;
    uint64_t now = common_clock_ns();
    coordinator_workers_tick(c, now);
    coordinator_plans_tick(c, now);
    coordinator_sessions_tick(c, now);
    coordinator_unpark(c); // their time may be over
}

static enum common_code listen_all(struct coordinator *c, const char *const *endpoints,
                                   struct common_error *err)
{
    enum common_code code = COMMON_OK;
    for (size_t i = 0; endpoints[i] && code == COMMON_OK; i++) {
        code = proto_listen_allowed(endpoints[i], c->options.token != NULL, c->options.insecure, err);
        if (code == COMMON_OK)
            code = proto_server_listen(c->server, endpoints[i], err);
    }
    return code;
}

static enum common_code open_store(struct coordinator *c, struct common_error *err)
{
    struct coordinator_loader loader = {.c = c, .err = err};
    struct coordinator_store_reader reader;
    coordinator_sessions_reader(&loader, &reader);
    enum common_code code = coordinator_store_open(c->options.store_path, c->options.store_sync_full, c->loop,
                                                   &reader, &c->store, err);
    if (code != COMMON_OK)
        return code;
    c->term = coordinator_store_term(c->store);
    c->lives = (uint32_t)c->term << 16;
    coordinator_sessions_loaded(c);
    return COMMON_OK;
}

enum common_code coordinator_new(struct common_loop *loop, const struct coordinator_options *options,
                                 struct coordinator **out, struct common_error *err)
{
    struct coordinator *c = coordinator_alloc(sizeof(*c));
    struct common_error unasked = {0};
    err = err ? err : &unasked;
    err->code = COMMON_OK;
    c->loop = loop;
    c->options = *options;
    c->options.endpoints = NULL;
    c->options.cluster = strdup(options->cluster);
    c->options.store_path = strdup(options->store_path);
    c->options.token = options->token ? strdup(options->token) : NULL;
    c->secret = *options->secret;
    c->options.secret = &c->secret;
    c->started_ns = common_clock_ns();
    if (c->options.max_workers > COORDINATOR_WORKERS_MAX)
        c->options.max_workers = COORDINATOR_WORKERS_MAX;
    c->sessions = coordinator_alloc(c->options.max_sessions * sizeof(*c->sessions));
    c->free_slots = coordinator_alloc(c->options.max_sessions * sizeof(*c->free_slots));
    struct proto_server_options server = {.name = c->options.cluster,
                                          .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                          .secret = &c->secret,
                                          .token = c->options.token,
                                          .requests_max = 0,
                                          .bytes_max = c->options.max_bytes,
                                          .methods = methods,
                                          .arg = c,
                                          .link_closed = coordinator_link_closed};
    enum common_code code = open_store(c, err);
    if (code == COMMON_OK)
        code = coordinator_scheduler_init(c);
    if (code == COMMON_OK)
        code = common_timer_new(loop, tick, c, &c->tick);
    if (code == COMMON_OK)
        code = proto_server_new(loop, &server, &c->server, err);
    if (code == COMMON_OK)
        code = listen_all(c, options->endpoints, err);
    if (code != COMMON_OK) {
        coordinator_stop(c);
        coordinator_free(c);
        return code;
    }
    common_timer_start(c->tick, c->options.heartbeat_ns / 2, true);
    common_log_info("ready cluster=%s term=%" PRIu64 " sessions=%u store=%s store_id=%016" PRIx64,
                    c->options.cluster, c->term, c->n_sessions, c->options.store_path,
                    coordinator_store_id(c->store));
    *out = c;
    return COMMON_OK;
}

const char *coordinator_endpoint(const struct coordinator *c, uint32_t nth)
{
    return proto_server_endpoint(c->server, nth);
}

void coordinator_stop(struct coordinator *c)
{
    if (c->stopping)
        return;
    c->stopping = true;
    if (c->tick)
        common_timer_stop(c->tick);
    if (c->deadlines && c->retry)
        coordinator_scheduler_stop(c);
    coordinator_unpark(c);
    coordinator_workers_close(c); // what waits for a worker ends on this stack
    coordinator_store_stop(c->store);
    proto_server_close(c->server);
    c->server = NULL;
}

void coordinator_free(struct coordinator *c)
{
    if (!c)
        return;
    coordinator_sessions_free(c);
    coordinator_plans_free(c);
    coordinator_workers_free(c);
    coordinator_scheduler_fini(c);
    coordinator_store_free(c->store);
    common_timer_free(c->tick);
    free((char *)c->options.cluster);
    free((char *)c->options.store_path);
    free((char *)c->options.token);
    free(c->scratch);
    free(c);
}
