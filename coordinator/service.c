// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "coordinator/admission.h"
#include "coordinator/cluster/edges.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/slow.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/health.h"
#include "coordinator/limits.h"
#include "coordinator/place/forget.h"
#include "coordinator/place/moves.h"
#include "coordinator/place/wishes.h"
#include "coordinator/prefix/prefix.h"
#include "coordinator/session/account.h"
#include "coordinator/session/keys.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/states.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/recovery.h"
#include "proto/model/limits.h"
#include "proto/model/spec.h"
#include "proto/rights/pass.h"
#include "proto/rpc/health.h"

#define LAYER_RANGES_MAX 64
#define RANGES_TOTAL     4096 // of one answer: a header has room for them
#define MEMBERS_MAX      1024
#define LIST_MAX         256
#define LIST_BYTES       (256 * 1024) // of a page

// By id, or by name where the id is 0.
static struct coordinator_session *session_wanted(struct coordinator *c, struct proto_request *request,
                                                  uint64_t id, const char *name)
{
    uint32_t tenant = proto_request_identity(request)->tenant;
    struct coordinator_session *s = id        ? coordinator_session_asked(&c->sessions, request, id)
                                    : name[0] ? coordinator_session_named(&c->sessions, tenant, name)
                                              : NULL;
    struct proto_status status;
    if (s)
        return s;
    if (!id && name[0])
        proto_status_set(&status, COMMON_NOT_FOUND, PROTO_REASON_NO_SESSION,
                         "there is no session named %.100s", name);
    else
        coordinator_session_unknown(id, &status);
    proto_request_fail_status(request, &status);
    return NULL;
}

// ---- create -------------------------------------------------------------------------------------

struct creation {
    struct proto_request *request;
    struct coordinator_session *s;
};

static void created(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("session_stored");
    struct creation *k = arg;
    if (code != COMMON_OK) {
        proto_request_fail_why(k->request, code, coordinator_store_reason(code), text);
        coordinator_key_settle(k->s, code, text);
        coordinator_session_destroy(k->s);
    } else {
        coordinator_session_enter(k->s);
        coordinator_session_note(k->s, SESSION_CREATED, INFO,
                                 "a session was created session=%016" PRIx64 " replicas=%u", k->s->id,
                                 k->s->spec->replicas);
        Banyan__Pb__SessionCreateReply m = BANYAN__PB__SESSION_CREATE_REPLY__INIT;
        m.session = k->s->id;
        m.incarnation = k->s->incarnation;
        m.cut = k->s->cut;
        m.floor = k->s->floor;
        m.replicas = k->s->spec->replicas;
        m.idle_ttl_ns = k->s->spec->idle_ttl_ns;
        m.states = k->s->states;
        proto_request_reply(k->request, &m.base, NULL, 0, NULL, NULL);
        coordinator_key_settle(k->s, COMMON_OK, "");
    }
    free(k);
}

// Of sessions that do not say: two where they can be on different machines.
static uint32_t default_replicas(const struct coordinator *c)
{
    const struct coordinator_worker *first = NULL;
    if (c->core.options.replicas)
        return c->core.options.replicas;
    for (uint32_t i = 0; i < c->cluster.n_workers; i++) {
        const struct coordinator_worker *w = c->cluster.workers[i];
        if (!w || !coordinator_worker_active(w))
            continue;
        if (first && strcmp(first->host, w->host) != 0)
            return 2;
        first = w;
    }
    return 1;
}

// The specification of a create, complete: the caller's. NULL: the request has failed.
static Banyan__Pb__Spec *create_spec(struct coordinator *c, struct proto_request *request)
{
    const Banyan__Pb__SessionCreateRequest *m = (const void *)proto_request_message(request)->body;
    struct proto_status status;
    if (!m->spec) {
        proto_request_fail(request, COMMON_INVALID_ARGUMENT, "the specification is missing", NULL, 0);
        return NULL;
    }
    Banyan__Pb__Spec *spec = coordinator_spec_copy(m->spec);
    enum common_code code = coordinator_name_check(m->name, &status);
    if (code == COMMON_OK)
        code =
            coordinator_states_check(&c->sessions, proto_request_identity(request)->tenant, m->name, &status);
    spec->replicas = spec->replicas ? spec->replicas : default_replicas(c);
    if (code == COMMON_OK)
        code = coordinator_spec_check(spec, &status);
    if (code == COMMON_OK)
        code = coordinator_forget_born_check(spec, m->floor, c->core.options.max_session_tokens, &status);
    if (code == COMMON_OK && m->prefix.len)
        code = coordinator_prefix_check(&m->prefix, &status);
    if (coordinator_states_owner(m->name))
        spec->idle_ttl_ns = 0; // it goes with the one whose states it holds
    else if (!spec->idle_ttl_ns)
        spec->idle_ttl_ns = c->core.options.session_ttl_ns;
    if (code == COMMON_OK)
        return spec;
    banyan__pb__spec__free_unpacked(spec, NULL);
    proto_request_fail_status(request, &status);
    return NULL;
}

struct waiting { // a create, for room
    struct coordinator *c;
    struct proto_request *request;
    struct proto_status failure;
};

static void create_new(void *arg, struct proto_request *request);

static void create_has_room(void *arg, bool made)
{
    struct waiting w = *(struct waiting *)arg;
    free(arg);
    if (made && !w.c->core.stopping)
        create_new(w.c, w.request);
    else
        proto_request_fail_status(w.request, &w.failure);
}

static void create_refused(struct coordinator *c, struct proto_request *request,
                           const struct proto_status *failure)
{
    struct waiting *w = coordinator_alloc(sizeof(*w));
    *w = (struct waiting){.c = c, .request = request, .failure = *failure};
    if (failure->code == COMMON_RESOURCE_EXHAUSTED &&
        coordinator_prefix_make_room(&c->sessions, failure, proto_request_identity(request)->tenant, NULL,
                                     create_has_room, w))
        return;
    free(w);
    proto_request_fail_status(request, failure);
}

// One that begins with no rows.
static void create_new(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const Banyan__Pb__SessionCreateRequest *m = (const void *)proto_request_message(request)->body;
    uint32_t tenant = proto_request_identity(request)->tenant;
    struct coordinator_session *s = NULL;
    struct proto_status status;
    if (coordinator_key_known(&c->sessions, tenant, m->key, request)) // made while this one waited
        return;
    Banyan__Pb__Spec *spec = create_spec(c, request);
    if (!spec)
        return;
    if (coordinator_session_new(&c->sessions, m->name, tenant, spec, &s, &status) != COMMON_OK) {
        banyan__pb__spec__free_unpacked(spec, NULL);
        create_refused(c, request, &status);
        return;
    }
    c->sessions.prefixes->misses += m->prefix.len > 0;
    coordinator_key_enter(s, m->key);
    s->states = coordinator_states_owner(m->name);
    struct creation *k = coordinator_alloc(sizeof(*k));
    *k = (struct creation){.request = request, .s = s};
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_session_set_floor(s, m->floor);
    coordinator_batch_whole_session(batch, s);
    coordinator_forget_born(s, batch);
    coordinator_store_submit(c->store, batch, created, k);
}

void coordinator_handle_session_create(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const Banyan__Pb__SessionCreateRequest *m = (const void *)proto_request_message(request)->body;
    bool taken =
        coordinator_key_known(&c->sessions, proto_request_identity(request)->tenant, m->key, request);
    if (!taken && m->prefix.len) {
        Banyan__Pb__Spec *spec = create_spec(c, request);
        taken = !spec || coordinator_prefix_create(&c->sessions, request, spec,
                                                   coordinator_handle_session_create, create_new, c);
        if (spec)
            banyan__pb__spec__free_unpacked(spec, NULL);
    }
    if (!taken)
        create_new(c, request);
}

// ---- info ---------------------------------------------------------------------------------------

// Memory of one SessionInfoReply, laid out behind each other in one block.
struct info {
    Banyan__Pb__SessionInfoReply m;
    void *block;
};

static bool fill_layers(struct info *out, const struct coordinator_session *s)
{
    uint32_t layers = s->spec->layers, total = 0, left = RANGES_TOTAL;
    for (uint32_t l = 0; l < layers; l++) {
        uint32_t n = coordinator_session_rows(s, l)->n;
        total += n < LAYER_RANGES_MAX ? n : LAYER_RANGES_MAX;
    }
    struct block {
        Banyan__Pb__LayerInfo *layers, **layer_pointers;
        Banyan__Pb__Range *ranges, **range_pointers;
    } at;
    size_t bytes =
        layers * (sizeof(*at.layers) + sizeof(void *)) + total * (sizeof(*at.ranges) + sizeof(void *));
    uint8_t *block = calloc(1, bytes);
    if (!block)
        return false;
    at.layers = (void *)block;
    at.ranges = (void *)(at.layers + layers);
    at.layer_pointers = (void *)(at.ranges + total);
    at.range_pointers = (void *)(at.layer_pointers + layers);
    for (uint32_t l = 0; l < layers; l++) {
        const struct coordinator_rangeset *set = coordinator_session_rows(s, l);
        uint32_t n = set->n < LAYER_RANGES_MAX ? set->n : LAYER_RANGES_MAX;
        n = n < left ? n : left; // the length is always said; of very many ranges the first ones are
        left -= n;
        at.layers[l] = (Banyan__Pb__LayerInfo)BANYAN__PB__LAYER_INFO__INIT;
        at.layers[l].length = coordinator_rangeset_length(set);
        at.layers[l].forgotten = proto_spec_forgotten(s->spec, proto_spec_source(s->spec, l), s->floor);
        at.layers[l].n_committed = n;
        at.layers[l].committed = at.range_pointers;
        for (uint32_t i = 0; i < n; i++) {
            *at.ranges = (Banyan__Pb__Range)BANYAN__PB__RANGE__INIT;
            at.ranges->first = set->ranges[i].first;
            at.ranges->count = set->ranges[i].count;
            *at.range_pointers++ = at.ranges++;
        }
        at.layer_pointers[l] = &at.layers[l];
    }
    out->block = block;
    out->m.n_layers = layers;
    out->m.layers = at.layer_pointers;
    return true;
}

static char **member_names(const struct coordinator_session *s, size_t *n)
{
    char **names = coordinator_alloc((s->n_members + 1) * sizeof(*names));
    *n = s->n_members < MEMBERS_MAX ? s->n_members : MEMBERS_MAX;
    for (size_t i = 0; i < *n; i++)
        names[i] = s->members[i]->name;
    return names;
}

// `who` asks: whose it is and where it lies is for those who look after the cluster.
static void fill_info(struct info *out, struct coordinator_session *s, const struct coordinator *c,
                      const struct proto_identity *who)
{
    uint64_t now = common_clock_ns();
    out->block = NULL;
    out->m = (Banyan__Pb__SessionInfoReply)BANYAN__PB__SESSION_INFO_REPLY__INIT;
    out->m.session = s->id;
    out->m.name = (char *)s->name;
    out->m.spec = s->spec;
    out->m.incarnation = s->incarnation;
    out->m.cut = s->cut;
    out->m.forgotten = s->floor;
    out->m.epoch = s->layout.epoch;
    out->m.chunks = s->layout.n;
    out->m.kept = s->kept && s->kept->entered;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(s->spec, l);
        out->m.bytes += coordinator_session_held(s, l) * (layer.k_row + layer.v_row);
    }
    out->m.length = coordinator_session_length(s);
    out->m.state = (char *)coordinator_session_state_text(s); // counts
    out->m.unknown_chunks = s->unknown;
    out->m.steps = s->steps;
    if (coordinator_shows_workers(who)) {
        out->m.tenant = (char *)coordinator_tenant_name(&c->tenants, s->tenant);
        out->m.members = member_names(s, &out->m.n_members);
    }
    out->m.idle_ns = now > s->last_used_ns ? now - s->last_used_ns : 0;
}

static bool fill_memory(struct info *out, const struct coordinator_session *s)
{
    out->m.member_bytes = coordinator_alloc((s->n_members + 1) * sizeof(*out->m.member_bytes));
    out->m.n_member_bytes = out->m.n_members;
    out->m.shared_bytes = coordinator_session_account(s, out->m.member_bytes);
    return out->m.shared_bytes != UINT64_MAX;
}

static void answer_info(struct coordinator *c, struct proto_request *request, struct coordinator_session *s,
                        bool memory)
{
    struct info info;
    fill_info(&info, s, c, proto_request_identity(request));
    if (fill_layers(&info, s) && (!memory || fill_memory(&info, s)))
        proto_request_reply(request, &info.m.base, NULL, 0, NULL, NULL);
    else
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
    free(info.m.member_bytes);
    free(info.m.members);
    free(info.block);
}

void coordinator_handle_session_info(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionInfoRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = session_wanted(arg, request, m->session, m->name);
    if (s && !coordinator_park(s, request, coordinator_handle_session_info, arg))
        answer_info(arg, request, s, m->memory);
}

struct opening { // of a session that is being made or deleted
    struct coordinator *c;
    struct proto_request *request;
};

// It was made or not, or the store has refused its deletion, or it is gone and another one has its name.
static void open_again(void *arg, struct coordinator_session *s)
{
    struct opening o = *(struct opening *)arg;
    free(arg);
    if (!s && o.c->core.stopping)
        proto_request_fail(o.request, COMMON_UNAVAILABLE, "the coordinator is stopping", NULL, 0);
    else
        coordinator_handle_session_open(o.c, o.request);
}

static void open_later(struct coordinator *c, struct proto_request *request, struct coordinator_session *s)
{
    struct opening *o = coordinator_alloc(sizeof(*o));
    *o = (struct opening){.c = c, .request = request};
    if (coordinator_session_when_open(s, open_again, o) == COMMON_OK)
        return;
    free(o);
    proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "too many calls are waiting for this session",
                       NULL, 0);
}

void coordinator_handle_session_open(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const Banyan__Pb__SessionOpenRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *made = NULL, *s;
    if (!m->session && m->name[0]) // a client that finds the name taken opens it next
        made = coordinator_session_being_made(&c->sessions, proto_request_identity(request)->tenant, m->name);
    if (made) {
        open_later(c, request, made);
        return;
    }
    s = session_wanted(c, request, m->session, m->name);
    if (!s || coordinator_park(s, request, coordinator_handle_session_open, arg))
        return;
    if (s->state == COORDINATOR_SESSION_DELETING) {
        open_later(c, request, s);
        return;
    }
    s->last_used_ns = common_clock_ns();
    answer_info(arg, request, s, false);
}

void coordinator_handle_session_close(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionCloseRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = session_wanted(arg, request, m->session, "");
    if (!s)
        return;
    s->last_used_ns = common_clock_ns();
    Banyan__Pb__SessionCloseReply reply = BANYAN__PB__SESSION_CLOSE_REPLY__INIT;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// Pages in the order of slots: a session that lives through the listing is in it once, others may be missed.
void coordinator_handle_session_list(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const Banyan__Pb__SessionListRequest *m = (const void *)proto_request_message(request)->body;
    const struct proto_identity *who = proto_request_identity(request);
    uint32_t limit = m->limit && m->limit < LIST_MAX ? m->limit : LIST_MAX, n = 0;
    struct info *infos = coordinator_alloc(limit * sizeof(*infos));
    Banyan__Pb__SessionInfoReply **pointers = coordinator_alloc(limit * sizeof(*pointers));
    Banyan__Pb__SessionListReply reply = BANYAN__PB__SESSION_LIST_REPLY__INIT;
    size_t bytes = 0;
    for (uint32_t slot = coordinator_sessions_slot_after(&c->sessions, m->after); slot < c->sessions.n_slots;
         slot++) {
        struct coordinator_session *s = c->sessions.slots[slot];
        if (!s || s->state == COORDINATOR_SESSION_CREATING || !coordinator_session_is_for(s, who) ||
            coordinator_states_left(s)) // it goes with the one whose states it holds
            continue;
        if (n == limit || bytes > LIST_BYTES) {
            reply.next = infos[n - 1].m.session;
            break;
        }
        fill_info(&infos[n], s, c, who);
        bytes += banyan__pb__session_info_reply__get_packed_size(&infos[n].m);
        pointers[n] = &infos[n].m;
        n++;
    }
    reply.n_sessions = n;
    reply.sessions = pointers;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    for (uint32_t i = 0; i < n; i++)
        free(infos[i].m.members);
    free(infos);
    free(pointers);
}

// ---- plan ---------------------------------------------------------------------------------------

// Tokens of a chunk: committed in the layer that has most of them.
static uint64_t chunk_tokens(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    uint64_t first = (uint64_t)chunk->index * s->layout.chunk_tokens, end = coordinator_session_end(s);
    uint64_t tokens = end > first ? end - first : 0;
    return tokens < s->layout.chunk_tokens ? tokens : s->layout.chunk_tokens;
}

void coordinator_handle_session_plan(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionPlanRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = session_wanted(arg, request, m->session, "");
    struct proto_status status;
    if (!s || coordinator_park(s, request, coordinator_handle_session_plan, arg))
        return;
    if (!s->n_members) {
        proto_request_fail(request, COMMON_FAILED_PRECONDITION,
                           "the session has no tokens yet, so no worker holds it: append or attach first",
                           NULL, 0);
        return;
    }
    const struct coordinator_plan *plan = coordinator_session_plan(s, &status);
    if (!plan) {
        proto_request_fail_status(request, &status);
        return;
    }
    Banyan__Pb__PlanNode *nodes = coordinator_alloc(plan->n * sizeof(*nodes)),
                         **pointers = coordinator_alloc(plan->n * sizeof(*pointers));
    uint64_t *bytes = coordinator_alloc(plan->n * sizeof(*bytes));
    char(*numbered)[24] = coordinator_alloc(plan->n * sizeof(*numbered));
    bool shown = coordinator_shows_workers(proto_request_identity(request));
    struct proto_layer heavy = proto_spec_layer(s->spec, proto_spec_heavy_layer(s->spec));
    for (uint32_t r = 0; r < plan->n; r++) {
        nodes[r] = (Banyan__Pb__PlanNode)BANYAN__PB__PLAN_NODE__INIT;
        nodes[r].rank = r;
        nodes[r].parent = plan->tree->nodes[r].parent;
        snprintf(numbered[r], sizeof(*numbered), "worker-%u", r);
        nodes[r].worker = shown ? plan->workers[r]->name : numbered[r];
        if (shown)
            nodes[r].host = plan->workers[r]->host;
        pointers[r] = &nodes[r];
    }
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint32_t r = chunk->lost ? UINT32_MAX : coordinator_plan_rank(plan, coordinator_chunk_serves(chunk));
        if (r == UINT32_MAX)
            continue;
        nodes[r].chunks++;
        nodes[r].tokens += chunk_tokens(s, chunk);
        bytes[r] = nodes[r].tokens * (heavy.k_row + heavy.v_row);
    }
    struct reduce_cost cost;
    reduce_cost_default(&cost, heavy.q_heads, heavy.k_dim, heavy.v_dim, 1);
    Banyan__Pb__SessionPlanReply reply = BANYAN__PB__SESSION_PLAN_REPLY__INIT;
    reply.plan = plan->id;
    reply.epoch = s->layout.epoch;
    reply.engine = (char *)plan->engine;
    reply.digest = plan->digest;
    reply.n_nodes = plan->n;
    reply.nodes = pointers;
    reply.predicted_us = reduce_plan_predict(plan->tree, plan->members, &cost, bytes) / 1000.0;
    reply.why = (char *)plan->why;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
    free(nodes);
    free(numbered);
    free(pointers);
    free(bytes);
}

// ---- cluster ------------------------------------------------------------------------------------

static void fill_worker(Banyan__Pb__WorkerInfo *m, const struct coordinator_worker *w, uint64_t now)
{
    *m = (Banyan__Pb__WorkerInfo)BANYAN__PB__WORKER_INFO__INIT;
    m->name = (char *)w->name;
    m->host = (char *)w->host;
    m->endpoint = (char *)w->endpoint;
    m->state = (char *)coordinator_worker_state_name(
        w->state == COORDINATOR_WORKER_ABSENT ? COORDINATOR_WORKER_LOST : w->state);
    m->capacity_bytes = coordinator_worker_said(w, w->capacity_bytes);
    m->used_bytes = coordinator_worker_said(w, w->used_bytes);
    m->free_bytes = coordinator_worker_said(w, coordinator_worker_free_bytes(w));
    m->bandwidth = w->bandwidth;
    m->kernel = (char *)w->kernel;
    m->version = (char *)w->version;
    m->no_device = (char *)w->no_device;
    m->chunks = w->chunks;
    m->tokens = w->tokens;
    m->steps = w->steps;
    m->heartbeat_age_ns = w->last_beat_ns && now > w->last_beat_ns ? now - w->last_beat_ns : 0;
    m->last_compute_ns = w->last_compute_ns;
    m->threads = w->threads;
    m->quarantined_bytes = coordinator_quarantine_bytes(&w->quarantine);
    m->quarantined_sessions = w->quarantine.n;
    m->engine = (char *)(w->engine[0] ? w->engine : COORDINATOR_ENGINE_STREAM);
    m->draining = w->draining;
    m->drain_reason = (char *)w->order.reason;
    m->drain_by = (char *)w->order.by;
    m->drain_at_s = w->order.at_s;
    m->cordoned = w->cordoned;
    m->moves = w->moves;
    m->slow = w->pace.slow;
    m->seen_bandwidth = coordinator_worker_seen_speed(w);
    m->cold_bytes = coordinator_worker_said(w, w->cold_bytes);
}

static void fill_who(const struct coordinator *c, Banyan__Pb__ClusterInfoReply *m,
                     const struct proto_identity *who)
{
    m->tenant = (char *)coordinator_tenant_name(&c->tenants, who->tenant);
    m->access = (char *)proto_access_name(who->access);
    m->readiness = (char *)coordinator_health_readiness(c);
}

static uint64_t count_sessions(const struct coordinator *c, uint32_t tenant)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->sessions.n_slots; i++)
        n += c->sessions.slots[i] && c->sessions.slots[i]->tenant == tenant &&
             c->sessions.slots[i]->state != COORDINATOR_SESSION_CREATING;
    return n;
}

// A tenant's answer: what it takes to use the cluster, and nothing about other users.
static void answer_tenant(const struct coordinator *c, struct proto_request *request)
{
    const struct proto_identity *who = proto_request_identity(request);
    Banyan__Pb__ClusterInfoReply m = BANYAN__PB__CLUSTER_INFO_REPLY__INIT;
    char *endpoints[PROTO_LISTEN_MAX];
    const char *endpoint;
    while (m.n_endpoints < PROTO_LISTEN_MAX &&
           (endpoint = proto_server_endpoint(c->server, (uint32_t)m.n_endpoints)) != NULL)
        endpoints[m.n_endpoints++] = (char *)endpoint;
    m.version = BANYAN_VERSION;
    m.cluster = (char *)c->core.options.cluster;
    m.term = c->core.term;
    m.uptime_ns = common_clock_ns() - c->core.started_ns;
    m.sessions = count_sessions(c, who->tenant);
    m.endpoints = endpoints;
    m.needs_token = m.restricted = true;
    fill_who(c, &m, who);
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

void coordinator_handle_cluster_info(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const struct proto_identity *who = proto_request_identity(request);
    if (!coordinator_shows_workers(who)) {
        answer_tenant(c, request);
        return;
    }
    uint64_t now = common_clock_ns();
    Banyan__Pb__WorkerInfo *workers = coordinator_alloc((c->cluster.n_workers + 1) * sizeof(*workers));
    Banyan__Pb__WorkerInfo **pointers = coordinator_alloc((c->cluster.n_workers + 1) * sizeof(*pointers));
    uint32_t n = 0;
    Banyan__Pb__ClusterInfoReply m = BANYAN__PB__CLUSTER_INFO_REPLY__INIT;
    for (uint32_t i = 0; i < c->cluster.n_workers; i++) {
        if (!c->cluster.workers[i])
            continue;
        fill_worker(&workers[n], c->cluster.workers[i], now);
        m.chunks += workers[n].chunks;
        pointers[n] = &workers[n];
        n++;
    }
    struct coordinator_limit_use limits[COORDINATOR_LIMIT_USES];
    Banyan__Pb__Limit rows[COORDINATOR_LIMIT_USES], *row_pointers[COORDINATOR_LIMIT_USES];
    uint32_t n_limits = coordinator_limits(c, limits);
    for (uint32_t i = 0; i < n_limits; i++) {
        rows[i] = (Banyan__Pb__Limit)BANYAN__PB__LIMIT__INIT;
        rows[i].name = (char *)limits[i].name;
        rows[i].flag = (char *)limits[i].flag;
        rows[i].worker = (char *)limits[i].worker;
        rows[i].used = limits[i].used;
        rows[i].max = limits[i].max;
        rows[i].refused = limits[i].refused;
        row_pointers[i] = &rows[i];
    }
    m.n_limits = n_limits;
    m.limits = row_pointers;
    m.version = BANYAN_VERSION;
    m.cluster = (char *)c->core.options.cluster;
    m.term = c->core.term;
    m.uptime_ns = now - c->core.started_ns;
    m.sessions = c->sessions.n;
    m.thin_chunks = coordinator_sessions_thin(&c->sessions);
    m.moves = c->sessions.moves->n;
    m.moved_chunks = c->sessions.moves->chunks;
    m.moved_bytes = c->sessions.moves->bytes;
    m.wished_chunks = c->sessions.wishes->n;
    m.steps = c->steps.count_steps;
    m.frames = c->steps.count_frames;
    m.audit_every = c->core.options.audit;
    m.audited = c->steps.count_audited;
    m.audit_differences = c->steps.count_audit_differences;
    m.audit_skipped = c->steps.count_audit_skipped;
    m.kept_steps = c->steps.keep.n;
    m.kept_bytes = c->steps.keep.bytes;
    m.n_workers = n;
    m.workers = pointers;
    char *endpoints[PROTO_LISTEN_MAX];
    const char *endpoint;
    while (m.n_endpoints < PROTO_LISTEN_MAX &&
           (endpoint = proto_server_endpoint(c->server, (uint32_t)m.n_endpoints)) != NULL)
        endpoints[m.n_endpoints++] = (char *)endpoint;
    m.endpoints = endpoints;
    m.needs_token = coordinator_wants_token(c);
    char pass[PROTO_PASS_CHARS + 1];
    if (proto_pass_make(&c->core.secret, who,
                        coordinator_clock_ns(&c->core) / COMMON_NS_PER_S + PROTO_PASS_LIFE_S, pass))
        m.pass = pass;
    fill_who(c, &m, who);
    m.clients = limits[PROTO_LIMIT_CLIENTS].used + limits[PROTO_LIMIT_NNG_CLIENTS].used;
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
    free(workers);
    free(pointers);
}

static void health_examine(const struct coordinator *c, Banyan__Pb__HealthCheckReply *m,
                           char texts[COORDINATOR_EDGES_MAX][COORDINATOR_EDGE_TEXT],
                           char *edges[COORDINATOR_EDGES_MAX])
{
    const char *path = c->core.options.store_path;
    proto_health_examine(m, strcmp(path, ":memory:") == 0 ? NULL : path, c->core.options.tls);
    m->n_edges_down = coordinator_edges_names(&c->cluster, texts);
    m->edges_down = edges;
    for (size_t i = 0; i < m->n_edges_down; i++)
        edges[i] = texts[i];
}

void coordinator_handle_health(void *arg, struct proto_request *request)
{
    struct coordinator *c = arg;
    const Banyan__Pb__HealthCheckRequest *asked = (const void *)proto_request_message(request)->body;
    char texts[COORDINATOR_EDGES_MAX][COORDINATOR_EDGE_TEXT], *edges[COORDINATOR_EDGES_MAX];
    Banyan__Pb__HealthCheckReply m = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    m.serving = !c->core.stopping;
    m.version = BANYAN_VERSION;
    m.term = c->core.term;
    m.uptime_ns = common_clock_ns() - c->core.started_ns;
    // Of the machine, and of workers: for those who look after them.
    if (asked->examine &&
        (proto_request_is_daemon(request) || coordinator_shows_workers(proto_request_identity(request))))
        health_examine(c, &m, texts, edges);
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}
