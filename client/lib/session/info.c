// SPDX-License-Identifier: Apache-2.0
// What the cluster says about itself: sessions, workers, plans. Every reply becomes plain C that the caller
// owns.
#include "client/lib/session/info.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "proto/model/limits.h"

#define LIST_PAGE 256

static banyan_code no_memory(banyan_error *error)
{
    return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
}

static banyan_code check_count(size_t n, banyan_error *error)
{
    if (n <= CLIENT_WORKERS_MAX)
        return BANYAN_OK;
    return client_error_set(error, BANYAN_INTERNAL, "the coordinator's answer has a list of %zu entries", n);
}

static banyan_code check_out(const void *object, const void *out, banyan_error *error)
{
    return object && out ? BANYAN_OK
                         : client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
}

// ---- sessions ---------------------------------------------------------------------------------------------

// What lies between and before a layer's committed ranges: [holes] that it writes where `out` is given. They
// come ascending and merged; what does not is no hole.
static uint32_t holes_of(const Banyan__Pb__LayerInfo *layer, uint32_t number, banyan_hole *out)
{
    uint32_t n = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < layer->n_committed; i++) {
        const Banyan__Pb__Range *range = layer->committed[i];
        if (range->first < end || range->count > UINT64_MAX - range->first)
            break;
        if (range->first > end) {
            if (out)
                out[n] = (banyan_hole){.layer = number, .first = end, .count = range->first - end};
            n++;
        }
        end = range->first + range->count;
    }
    return n;
}

static bool take_holes(const Banyan__Pb__SessionInfoReply *pb, banyan_session_info *info)
{
    uint32_t n = 0;
    for (size_t i = 0; i < pb->n_layers; i++)
        n += holes_of(pb->layers[i], (uint32_t)i, NULL);
    if (n == 0)
        return true;
    info->holes = calloc(n, sizeof *info->holes);
    for (size_t i = 0; i < pb->n_layers && info->holes; i++)
        info->n_holes += holes_of(pb->layers[i], (uint32_t)i, info->holes + info->n_holes);
    return info->holes != NULL;
}

banyan_code client_info_from_pb(const Banyan__Pb__SessionInfoReply *pb, banyan_session_info *out,
                                banyan_error *error)
{
    banyan_code code = check_count(pb->n_layers, error);
    if (code == BANYAN_OK)
        code = check_count(pb->n_members, error);
    if (code != BANYAN_OK)
        return code;
    banyan_session_info info = {
        .id = pb->session,
        .incarnation = pb->incarnation,
        .epoch = pb->epoch,
        .chunks = pb->chunks,
        .bytes = pb->bytes,
        .length = pb->length,
        .steps = pb->steps,
        .idle_ns = pb->idle_ns,
        .forgotten = pb->forgotten,
        .unknown_chunks = pb->unknown_chunks,
        .kept = pb->kept,
        .n_layers = (uint32_t)pb->n_layers,
        .n_members = (uint32_t)pb->n_members,
    };
    client_copy_text(info.name, sizeof info.name, pb->name);
    client_copy_text(info.tenant, sizeof info.tenant, pb->tenant);
    client_copy_text(info.state, sizeof info.state, pb->state);
    if (pb->n_layers > 0) {
        info.layer_lengths = calloc(pb->n_layers, sizeof *info.layer_lengths);
        info.layer_forgotten = calloc(pb->n_layers, sizeof *info.layer_forgotten);
    }
    if (pb->n_members > 0)
        info.members = calloc(pb->n_members, sizeof *info.members);
    bool layers = info.layer_lengths && info.layer_forgotten;
    if ((pb->n_layers > 0 && !layers) || (pb->n_members > 0 && !info.members) || !take_holes(pb, &info)) {
        banyan_session_info_free(&info);
        return no_memory(error);
    }
    for (size_t i = 0; i < pb->n_layers; i++) {
        info.layer_lengths[i] = pb->layers[i]->length;
        info.layer_forgotten[i] = pb->layers[i]->forgotten;
    }
    for (size_t i = 0; i < pb->n_members; i++)
        client_copy_text(info.members[i], sizeof info.members[i], pb->members[i]);
    *out = info;
    return BANYAN_OK;
}

void banyan_session_info_free(banyan_session_info *info)
{
    if (!info)
        return;
    free(info->layer_lengths);
    free(info->layer_forgotten);
    free(info->members);
    free(info->holes);
    info->holes = NULL;
    info->n_holes = 0;
    info->layer_lengths = info->layer_forgotten = NULL;
    info->members = NULL;
    info->n_layers = info->n_members = 0;
}

static banyan_code take_memory(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_session_memory *out = arg;
    const Banyan__Pb__SessionInfoReply *reply = (const Banyan__Pb__SessionInfoReply *)body;
    banyan_code code = check_count(reply->n_members, error);
    if (code == BANYAN_OK && reply->n_member_bytes != reply->n_members)
        code =
            client_error_set(error, BANYAN_UNIMPLEMENTED,
                             "the coordinator runs an older build, which does not report who holds how much");
    if (code != BANYAN_OK)
        return code;
    banyan_session_memory memory = {.bytes = reply->bytes,
                                    .shared_bytes = reply->shared_bytes,
                                    .n_holdings = (uint32_t)reply->n_members};
    if (memory.n_holdings > 0)
        memory.holdings = calloc(memory.n_holdings, sizeof *memory.holdings);
    if (memory.n_holdings > 0 && !memory.holdings)
        return no_memory(error);
    for (uint32_t i = 0; i < memory.n_holdings; i++) {
        client_copy_text(memory.holdings[i].worker, sizeof memory.holdings[i].worker, reply->members[i]);
        memory.holdings[i].bytes = reply->member_bytes[i];
    }
    *out = memory;
    return BANYAN_OK;
}

banyan_code banyan_session_get_memory(banyan_session *session, banyan_session_memory *out,
                                      banyan_error *error)
{
    banyan_code code = check_out(session, out, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionInfoRequest request = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    request.session = session->id;
    request.memory = true;
    return client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_INFO, &request.base, true, 0,
                        take_memory, out, error);
}

void banyan_session_memory_free(banyan_session_memory *memory)
{
    if (!memory)
        return;
    free(memory->holdings);
    memory->holdings = NULL;
    memory->n_holdings = 0;
}

struct listing {
    banyan_session_list list;
    uint32_t room;
    uint64_t next;
};

static banyan_code take_page(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct listing *listing = arg;
    const Banyan__Pb__SessionListReply *reply = (const Banyan__Pb__SessionListReply *)body;
    banyan_session_list *list = &listing->list;
    if (reply->n_sessions > LIST_PAGE || list->n > UINT32_MAX / 2 ||
        (reply->next != 0 && reply->n_sessions == 0))
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator's list of sessions is malformed");
    if (list->n + reply->n_sessions > listing->room) {
        uint32_t room = listing->room * 2 + LIST_PAGE;
        banyan_session_info *grown = realloc(list->sessions, room * sizeof *grown);
        if (!grown)
            return no_memory(error);
        list->sessions = grown;
        listing->room = room;
    }
    for (size_t i = 0; i < reply->n_sessions; i++) {
        banyan_code code = client_info_from_pb(reply->sessions[i], &list->sessions[list->n], error);
        if (code != BANYAN_OK)
            return code;
        list->n++;
    }
    listing->next = reply->next;
    return BANYAN_OK;
}

banyan_code banyan_session_get_list(banyan_client *client, banyan_session_list *out, banyan_error *error)
{
    struct listing listing = {0};
    banyan_code code = check_out(client, out, error);
    if (code != BANYAN_OK)
        return code;
    do {
        Banyan__Pb__SessionListRequest request = BANYAN__PB__SESSION_LIST_REQUEST__INIT;
        request.after = listing.next;
        request.limit = LIST_PAGE;
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_SESSION_LIST, &request.base, true, 0,
                            take_page, &listing, error);
    } while (code == BANYAN_OK && listing.next != 0);
    if (code == BANYAN_OK)
        *out = listing.list;
    else
        banyan_session_list_free(&listing.list);
    return code;
}

void banyan_session_list_free(banyan_session_list *list)
{
    if (!list)
        return;
    for (uint32_t i = 0; i < list->n; i++)
        banyan_session_info_free(&list->sessions[i]);
    free(list->sessions);
    list->sessions = NULL;
    list->n = 0;
}

// ---- cluster ----------------------------------------------------------------------------------------------

static banyan_code take_cluster(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_cluster_info *out = arg;
    const Banyan__Pb__ClusterInfoReply *reply = (const Banyan__Pb__ClusterInfoReply *)body;
    banyan_code code = check_count(reply->n_workers, error);
    if (code == BANYAN_OK)
        code = check_count(reply->n_limits, error);
    if (code != BANYAN_OK)
        return code;
    size_t n_endpoints = reply->n_endpoints < PROTO_LISTEN_MAX ? reply->n_endpoints : PROTO_LISTEN_MAX;
    banyan_cluster_info info = {
        .term = reply->term,
        .uptime_ns = reply->uptime_ns,
        .sessions = reply->sessions,
        .steps = reply->steps,
        .frames = reply->frames,
        .chunks = reply->chunks,
        .clients = reply->clients,
        .n_workers = (uint32_t)reply->n_workers,
        .n_limits = (uint32_t)reply->n_limits,
        .thin_chunks = reply->thin_chunks,
        .moves = reply->moves,
        .moved_chunks = reply->moved_chunks,
        .moved_bytes = reply->moved_bytes,
        .wished_chunks = reply->wished_chunks,
        .audit_every = reply->audit_every,
        .audited = reply->audited,
        .audit_differences = reply->audit_differences,
        .audit_skipped = reply->audit_skipped,
        .kept_steps = reply->kept_steps,
        .kept_bytes = reply->kept_bytes,
        .n_endpoints = (uint32_t)n_endpoints,
        .needs_token = reply->needs_token,
        .restricted = reply->restricted,
    };
    for (size_t i = 0; i < n_endpoints; i++)
        client_copy_text(info.endpoints[i], sizeof info.endpoints[i], reply->endpoints[i]);
    client_copy_text(info.version, sizeof info.version, reply->version);
    client_copy_text(info.cluster, sizeof info.cluster, reply->cluster);
    client_copy_text(info.tenant, sizeof info.tenant, reply->tenant);
    client_copy_text(info.access, sizeof info.access, reply->access);
    client_copy_text(info.pass, sizeof info.pass, reply->pass);
    client_copy_text(info.readiness, sizeof info.readiness, reply->readiness);
    if (info.n_workers > 0)
        info.workers = calloc(info.n_workers, sizeof *info.workers);
    if (info.n_limits > 0)
        info.limits = calloc(info.n_limits, sizeof *info.limits);
    if ((info.n_workers > 0 && !info.workers) || (info.n_limits > 0 && !info.limits)) {
        banyan_cluster_info_free(&info);
        return no_memory(error);
    }
    for (uint32_t i = 0; i < info.n_limits; i++) {
        const Banyan__Pb__Limit *from = reply->limits[i];
        banyan_limit *to = &info.limits[i];
        *to = (banyan_limit){.used = from->used, .max = from->max, .refused = from->refused};
        client_copy_text(to->name, sizeof to->name, from->name);
        client_copy_text(to->flag, sizeof to->flag, from->flag);
        client_copy_text(to->worker, sizeof to->worker, from->worker);
    }
    for (uint32_t i = 0; i < info.n_workers; i++) {
        const Banyan__Pb__WorkerInfo *from = reply->workers[i];
        banyan_worker_info *to = &info.workers[i];
        client_copy_text(to->name, sizeof to->name, from->name);
        client_copy_text(to->host, sizeof to->host, from->host);
        client_copy_text(to->endpoint, sizeof to->endpoint, from->endpoint);
        client_copy_text(to->state, sizeof to->state, from->state);
        client_copy_text(to->kernel, sizeof to->kernel, from->kernel);
        client_copy_text(to->version, sizeof to->version, from->version);
        client_copy_text(to->no_device, sizeof to->no_device, from->no_device);
        for (char *at = to->no_device; *at; at++) // it is printed as it is
            *at = *at >= ' ' && *at <= '~' ? *at : '?';
        client_copy_text(to->engine, sizeof to->engine, from->engine);
        to->capacity_bytes = from->capacity_bytes;
        to->used_bytes = from->used_bytes;
        to->free_bytes = from->free_bytes;
        to->bandwidth = from->bandwidth;
        to->chunks = from->chunks;
        to->tokens = from->tokens;
        to->steps = from->steps;
        to->heartbeat_age_ns = from->heartbeat_age_ns;
        to->last_compute_ns = from->last_compute_ns;
        to->threads = from->threads;
        to->quarantined_bytes = from->quarantined_bytes;
        to->quarantined_sessions = from->quarantined_sessions;
        to->draining = from->draining;
        to->moves = from->moves;
        to->slow = from->slow;
        to->seen_bandwidth = from->seen_bandwidth;
        to->cold_bytes = from->cold_bytes;
        client_copy_text(to->drain_reason, sizeof to->drain_reason, from->drain_reason);
        client_copy_text(to->drain_by, sizeof to->drain_by, from->drain_by);
        to->drain_at_s = from->drain_at_s;
        to->cordoned = from->cordoned;
    }
    *out = info;
    return BANYAN_OK;
}

banyan_code banyan_cluster_get_info(banyan_client *client, banyan_cluster_info *out, banyan_error *error)
{
    banyan_code code = check_out(client, out, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__ClusterInfoRequest request = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    return client_unary(client, BANYAN__PB__METHOD__METHOD_CLUSTER_INFO, &request.base, true, 0, take_cluster,
                        out, error);
}

void banyan_cluster_info_free(banyan_cluster_info *info)
{
    if (!info)
        return;
    free(info->workers);
    free(info->limits);
    info->workers = NULL;
    info->limits = NULL;
    info->n_workers = info->n_limits = 0;
}

// ---- plan -------------------------------------------------------------------------------------------------

static banyan_code take_plan(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_plan_info *out = arg;
    const Banyan__Pb__SessionPlanReply *reply = (const Banyan__Pb__SessionPlanReply *)body;
    banyan_code code = check_count(reply->n_nodes, error);
    if (code != BANYAN_OK)
        return code;
    banyan_plan_info info = {
        .plan = reply->plan,
        .epoch = reply->epoch,
        .digest = reply->digest,
        .predicted_us = reply->predicted_us,
        .n_nodes = (uint32_t)reply->n_nodes,
    };
    client_copy_text(info.engine, sizeof info.engine, reply->engine);
    client_copy_text(info.why, sizeof info.why, reply->why);
    if (info.n_nodes > 0)
        info.nodes = calloc(info.n_nodes, sizeof *info.nodes);
    if (info.n_nodes > 0 && !info.nodes)
        return no_memory(error);
    for (uint32_t i = 0; i < info.n_nodes; i++) {
        const Banyan__Pb__PlanNode *from = reply->nodes[i];
        banyan_plan_node *to = &info.nodes[i];
        *to = (banyan_plan_node){
            .rank = from->rank, .parent = from->parent, .chunks = from->chunks, .tokens = from->tokens};
        client_copy_text(to->worker, sizeof to->worker, from->worker);
        client_copy_text(to->host, sizeof to->host, from->host);
    }
    *out = info;
    return BANYAN_OK;
}

banyan_code banyan_session_get_plan(banyan_session *session, banyan_plan_info *out, banyan_error *error)
{
    banyan_code code = check_out(session, out, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionPlanRequest request = BANYAN__PB__SESSION_PLAN_REQUEST__INIT;
    request.session = session->id;
    return client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_PLAN, &request.base, true, 0,
                        take_plan, out, error);
}

void banyan_plan_info_free(banyan_plan_info *info)
{
    if (!info)
        return;
    free(info->nodes);
    info->nodes = NULL;
    info->n_nodes = 0;
}
