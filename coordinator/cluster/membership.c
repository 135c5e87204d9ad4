// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/membership.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/edges.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/planning.h"
#include "coordinator/cluster/worker_limits.h"
#include "coordinator/store/store.h"
#include "reduce/plan.h"

#define QUIET_NS COMMON_NS_PER_S // of a worker's host, while calls to it are out; see proto/rpc/rpc.h
#define MUTE_NS                                                                                              \
    (3 * COMMON_NS_PER_S) // of its process, once it is asked; never less than what missed beats take
#define DIAL_NS (4 * COMMON_NS_PER_S) // from Register to a link

#define TERM_AHEAD_MAX (UINT64_C(1) << 20) // that a worker may have seen above ours
// At all, however often: numbers of writes begin at term << 40, and half of the terms that have room stay for starts.
#define TERM_SEEN_MAX (UINT64_C(1) << 23)

// Answers the Register that waits, if there is one: from now on the worker beats.
static void answer_register(struct coordinator_worker *w, bool linked)
{
    struct proto_request *request = w->registering;
    w->registering = NULL;
    w->last_beat_ns = common_clock_ns();
    if (!request)
        return;
    if (!linked) {
        char text[400];
        snprintf(text, sizeof(text), "the coordinator could not reach the worker's edge endpoint %s: %s",
                 w->edge_endpoint, *w->trouble ? w->trouble : "it does not reply");
        proto_request_fail(request, COMMON_UNAVAILABLE, text, NULL, 0);
        return;
    }
    Banyan__Pb__RegisterReply reply = BANYAN__PB__REGISTER_REPLY__INIT;
    reply.worker = (uint64_t)w->life << 32 | (w->slot + 1);
    reply.term = w->cluster->core->term;
    reply.heartbeat_ns = w->cluster->core->options.heartbeat_ns;
    reply.joining = !coordinator_worker_active(w);
    reply.clock_ns = coordinator_clock_ns(w->cluster->core);
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

static void drain_workers(void *arg)
{
    struct coordinator_cluster *cluster = arg;
    while (!common_list_empty(&cluster->changed)) {
        struct coordinator_worker *w =
            common_list_entry(cluster->changed.next, struct coordinator_worker, changed);
        common_list_remove(&w->changed);
        coordinator_plans_worker_changed(w);
    }
}

// ---- visits -------------------------------------------------------------------------------------

// JOINING and linked: it is asked what it holds and told what it should hold, in the phase of sessions.
static void visit_begin(struct coordinator_worker *w)
{
    w->visit++;
    w->dirty = false;
    w->listed = 0;
    coordinator_quarantine_fini(&w->arriving);
    if (common_list_empty(&w->joining))
        common_list_push(&w->cluster->joining, &w->joining);
    coordinator_turn_mark(&w->cluster->core->turn, COORDINATOR_PHASE_SESSIONS);
}

static void visit_cancel(struct coordinator_worker *w)
{
    w->visit++;
    w->listed = 0;
    coordinator_quarantine_fini(&w->arriving);
    common_list_remove(&w->joining);
}

struct coordinator_worker *coordinator_workers_take_joining(struct coordinator_cluster *cluster)
{
    if (common_list_empty(&cluster->joining))
        return NULL;
    struct coordinator_worker *w =
        common_list_entry(cluster->joining.next, struct coordinator_worker, joining);
    common_list_remove(&w->joining);
    return w;
}

// Workers of one host with the same kernel and as many threads are the same machine. Who measured itself
// while its neighbours started was slowed by them, so the best of their measurements counts for all.
static void even_out(struct coordinator_worker *w)
{
    struct coordinator_cluster *cluster = w->cluster;
    w->speed = w->bandwidth;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < cluster->n_workers; i++) {
            struct coordinator_worker *other = cluster->workers[i];
            if (!other || !other->life || other->threads != w->threads || strcmp(other->host, w->host) != 0 ||
                strcmp(other->kernel, w->kernel) != 0)
                continue;
            if (pass == 0 && other->bandwidth > w->speed)
                w->speed = other->bandwidth;
            else if (pass == 1)
                other->speed = w->speed;
        }
}

// ---- links --------------------------------------------------------------------------------------

static void close_link(struct coordinator_worker *w)
{
    struct proto_channel *channel = w->channel;
    w->channel = NULL; // calls that end now must not start others on it
    visit_cancel(w);
    answer_register(w, false);
    if (w->grace)
        common_timer_stop(w->grace);
    proto_channel_close(channel);
}

void coordinator_worker_lose(struct coordinator_worker *w, const char *why)
{
    if (w->state == COORDINATOR_WORKER_LOST || w->state == COORDINATOR_WORKER_ABSENT)
        return;
    if (w->leaving && !w->chunks)
        coordinator_worker_tell(w, WORKER_LOST, INFO, "a worker without chunks has left worker=%s", w->name);
    else if (w->farewell)
        coordinator_worker_tell(w, WORKER_LOST, WARN, "a worker has stopped worker=%s chunks=%" PRIu64,
                                w->name, w->chunks);
    else
        coordinator_worker_tell(w, WORKER_LOST, WARN, "a worker is lost: %s worker=%s chunks=%" PRIu64, why,
                                w->name, w->chunks);
    coordinator_worker_set_state(w, COORDINATOR_WORKER_LOST);
    w->n_limits = 0;
    close_link(w);
}

static void start_grace(struct coordinator_worker *w, uint64_t ns)
{
    w->grace_from_ns = common_clock_ns();
    w->grace_ns = ns;
    common_timer_start(w->grace, ns, false);
}

static void grace_over(void *arg)
{
    struct coordinator_worker *w = arg;
    struct coordinator_core *core = w->cluster->core;
    uint64_t now = common_clock_ns();
    coordinator_here(core, now); // if it was not, the link had no time to come back
    uint64_t left = coordinator_presence_patience(&core->presence, w->grace_from_ns, w->grace_ns, now);
    if (left) {
        common_timer_start(w->grace, left, false);
        return;
    }
    char why[240];
    snprintf(why, sizeof(why), "edge connection lost%s%s", *w->trouble ? ": " : "", w->trouble);
    coordinator_worker_lose(w, why);
}

static void link_failed(void *arg, const char *why)
{
    struct coordinator_worker *w = arg;
    snprintf(w->trouble, sizeof(w->trouble), "%.159s", why);
}

static void link_state(void *arg, bool connected)
{
    struct coordinator_worker *w = arg;
    if (w->cluster->core->stopping || !w->channel)
        return;
    w->trouble[0] = '\0';
    if (connected) {
        common_timer_stop(w->grace);
        if (w->state == COORDINATOR_WORKER_SUSPECT)
            coordinator_worker_set_state(w, COORDINATOR_WORKER_JOINING);
        if (w->state == COORDINATOR_WORKER_JOINING) {
            answer_register(w, true);
            visit_begin(w);
        }
        return;
    }
    if (w->state == COORDINATOR_WORKER_ACTIVE) {
        coordinator_worker_set_state(w, COORDINATOR_WORKER_SUSPECT);
        start_grace(w, w->cluster->core->options.grace_ns);
    } else if (w->state == COORDINATOR_WORKER_JOINING) {
        visit_cancel(w);
        start_grace(w, w->cluster->core->options.grace_ns);
    }
}

// Nobody listens where it did: its process has ended, and does not come back over this link.
static void link_refused(void *arg)
{
    struct coordinator_worker *w = arg;
    if (w->state == COORDINATOR_WORKER_SUSPECT)
        start_grace(w, 0);
}

// ---- Register -----------------------------------------------------------------------------------

static bool printable(const char *text, size_t max)
{
    size_t len = strlen(text);
    if (!len || len > max)
        return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f)
            return false;
    return true;
}

// A sentence for people; "" is one.
static bool readable(const char *text, size_t max)
{
    size_t len = strlen(text);
    for (size_t i = 0; i < len && len <= max; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return len <= max;
}

static enum common_code check_register(const Banyan__Pb__RegisterRequest *m, uint64_t term,
                                       struct proto_status *status)
{
    if (!printable(m->name, 64) || !printable(m->host, 64) || !printable(m->kernel, 64))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "name, host and kernel must have 1 to 64 printable characters");
    if (!printable(m->endpoint, 159) || !printable(m->edge_endpoint, 159))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "endpoints must have 1 to 159 printable characters");
    if (strncmp(m->edge_endpoint, "tls://", 6) && strncmp(m->edge_endpoint, "tcp://", 6) &&
        strncmp(m->edge_endpoint, "unix://", 7))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "the edge endpoint must be a stream endpoint: tls://, tcp:// or unix://");
    if (m->control < PROTO_CONTROL_VERSION)
        return proto_status_set(status, COMMON_FAILED_PRECONDITION, PROTO_REASON_NONE,
                                "the worker speaks version %u of the control protocol and this coordinator "
                                "speaks %u: install the same release on both",
                                m->control, PROTO_CONTROL_VERSION);
    if (strlen(m->version) > 31 || (m->version[0] && !printable(m->version, 31)))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "a version has at most 31 printable characters");
    if (!readable(m->no_device, PROTO_NO_DEVICE_MAX))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "the reason why there is no device must have at most %d printable characters",
                                PROTO_NO_DEVICE_MAX);
    if (!m->instance || !m->capacity_bytes || !m->bandwidth)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "instance, capacity and bandwidth must not be zero");
    if (strlen(m->engine) > 15 || strlen(m->engine_algorithm) > 32)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "an engine has at most 15 characters, its algorithm 32");
    // A term rises by one a start: no honest worker has seen one so much higher.
    if (m->seen_term > term && (m->seen_term - term > TERM_AHEAD_MAX || m->seen_term >= TERM_SEEN_MAX))
        return proto_status_set(status, COMMON_FAILED_PRECONDITION, PROTO_REASON_NONE,
                                "the worker reports term %" PRIu64
                                ", which cannot be: this coordinator is at %" PRIu64 ". Restart the worker",
                                m->seen_term, term);
    bool collective = m->engine[0] && strcmp(m->engine, COORDINATOR_ENGINE_STREAM) != 0;
    if (collective && (!printable(m->engine, 15) || !printable(m->engine_algorithm, 32) ||
                       !printable(m->group, 64) || (m->group_size && m->group_rank >= m->group_size)))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "an engine needs an algorithm, a group and a rank below the group's size");
    return COMMON_OK;
}

// A worker that knows a term of ours that we do not has seen another life of this cluster (our store is new,
// or older): ours must be higher, and durable before anybody hears it. The Register waits for that.
struct term_raise {
    struct coordinator_cluster *cluster;
    struct proto_request *request;
    uint64_t term;
};

static void term_stored(void *arg, enum common_code code, const char *text)
{
    struct term_raise raise = *(struct term_raise *)arg;
    struct coordinator_cluster *cluster = raise.cluster;
    free(arg);
    if (code != COMMON_OK || cluster->core->stopping) {
        proto_request_fail(raise.request, COMMON_UNAVAILABLE, code != COMMON_OK ? text : "stopping", NULL, 0);
        return;
    }
    if (raise.term > cluster->core->term) {
        cluster->core->term = raise.term;
        coordinator_plans_term_raised(cluster);
        coordinator_events_set_term(cluster->core->events, cluster->core->term);
        coordinator_tell(cluster->core, COORDINATOR_TERM, WARN,
                         "the term was raised above what a worker has seen term=%" PRIu64,
                         cluster->core->term);
    }
    coordinator_handle_register(cluster, raise.request);
}

static bool raise_term(struct coordinator_cluster *cluster, const struct coordinator_worker *w,
                       struct proto_request *request, uint64_t seen)
{
    if (seen < cluster->core->term || (seen == cluster->core->term && w->life))
        return false;
    struct term_raise *raise = coordinator_alloc(sizeof(*raise));
    struct coordinator_batch *batch = coordinator_batch_new();
    if (seen + 1 > cluster->core->term_asked) // of several the highest stays
        cluster->core->term_asked = seen + 1;
    *raise = (struct term_raise){.cluster = cluster, .request = request, .term = cluster->core->term_asked};
    coordinator_batch_term(batch, raise->term);
    coordinator_store_submit(cluster->store, batch, term_stored, raise);
    return true;
}

// What it says of its engine; `stream` needs no words.
static void take_engine(struct coordinator_worker *w, const Banyan__Pb__RegisterRequest *m)
{
    bool collective = m->engine[0] && strcmp(m->engine, COORDINATOR_ENGINE_STREAM) != 0;
    bool same = collective && m->group_size > 0 && strcmp(w->group, m->group) == 0;
    w->engine_lost = same && w->engine_lost; // a group that is lost stays so
    snprintf(w->engine, sizeof(w->engine), "%s", collective ? m->engine : "");
    snprintf(w->algorithm, sizeof(w->algorithm), "%s", collective ? m->engine_algorithm : "");
    snprintf(w->group, sizeof(w->group), "%s", collective ? m->group : "");
    w->group_rank = collective ? m->group_rank : 0;
    w->group_size = collective ? m->group_size : 0;
}

// So long a worker may be silent.
static uint64_t beats_ns(const struct coordinator_cluster *cluster)
{
    uint64_t beat_ns = cluster->core->options.heartbeat_ns;
    return COORDINATOR_BEATS_MISSED * beat_ns + beat_ns / 2;
}

static enum common_code dial(struct coordinator_worker *w, struct common_error *err)
{
    struct coordinator_cluster *cluster = w->cluster;
    if (!w->grace && common_timer_new(cluster->core->loop, grace_over, w, &w->grace) != COMMON_OK)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    struct proto_channel_options options = {.name = cluster->core->options.cluster,
                                            .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                            .secret = &cluster->core->secret,
                                            .tls = cluster->core->options.tls,
                                            .peer_role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .quiet_ns = QUIET_NS,
                                            .mute_ns =
                                                beats_ns(cluster) > MUTE_NS ? beats_ns(cluster) : MUTE_NS,
                                            .state = link_state,
                                            .refused = link_refused,
                                            .failed = link_failed,
                                            .state_arg = w};
    w->trouble[0] = '\0';
    return proto_channel_open(cluster->core->loop, w->edge_endpoint, &options, &w->channel, err);
}

// The same process, whose visit is under way, or whose link is being made: to begin anew would be to begin for ever
// where a visit takes longer than it takes the worker to register again.
static bool is_joining_already(const struct coordinator_worker *w, const Banyan__Pb__RegisterRequest *m)
{
    return w->state == COORDINATOR_WORKER_JOINING && w->instance == m->instance && w->channel &&
           (w->registering || proto_channel_connected(w->channel)) &&
           !strcmp(w->edge_endpoint, m->edge_endpoint) && !strcmp(w->group, m->group);
}

// Whom it says that it is, as far as that can be a name.
static void refuse_register(struct coordinator_cluster *cluster, struct proto_request *request,
                            const struct proto_status *status)
{
    const Banyan__Pb__RegisterRequest *m = (const void *)proto_request_message(request)->body;
    const struct coordinator_event event = {.kind = PROTO_EVENT_WORKER_REFUSED,
                                            .severity = PROTO_EVENT_WARN,
                                            .worker = printable(m->name, 64) ? m->name : ""};
    coordinator_events_tell(cluster->core->events, &event, "a worker is refused: %s worker=%s version=%s",
                            status->message, event.worker, printable(m->version, 31) ? m->version : "");
    proto_request_fail_status(request, status);
}

void coordinator_handle_register(void *arg, struct proto_request *request)
{
    COMMON_FAILPOINT("register_received");
    struct coordinator_cluster *cluster = arg;
    const Banyan__Pb__RegisterRequest *m = (const void *)proto_request_message(request)->body;
    struct proto_status status;
    struct common_error err = {0};
    if (check_register(m, cluster->core->term, &status) != COMMON_OK) {
        refuse_register(cluster, request, &status);
        return;
    }
    if (!proto_request_may_be_worker(request, m->name)) {
        proto_status_set(&status, COMMON_PERMISSION_DENIED, PROTO_REASON_NONE,
                         "the worker's certificate names other workers, not %s: start it with a --name from "
                         "its certificate, or issue one for it (banyanctl pki issue --worker)",
                         m->name);
        refuse_register(cluster, request, &status);
        return;
    }
    struct coordinator_worker *w = coordinator_worker_named(cluster, m->name);
    if (!w) {
        proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                         "the limit of %" PRIu32 " workers is reached: raise the coordinator's --max-workers",
                         cluster->core->options.max_workers);
        cluster->core->reached[COORDINATOR_LIMIT_WORKERS]++;
        refuse_register(cluster, request, &status);
        return;
    }
    bool here = w->state == COORDINATOR_WORKER_ACTIVE || w->state == COORDINATOR_WORKER_JOINING;
    if (here && w->instance != m->instance && proto_channel_connected(w->channel)) {
        proto_status_set(&status, COMMON_ALREADY_EXISTS, PROTO_REASON_NONE,
                         "another worker has this name: choose another --name");
        refuse_register(cluster, request, &status);
        return;
    }
    if (raise_term(cluster, w, request, m->seen_term))
        return;                     // comes again
    if (is_joining_already(w, m)) { // it has lost its own link to us meanwhile: what it is told goes on
        if (w->registering)
            proto_request_fail(w->registering, COMMON_UNAVAILABLE, "the worker has registered again", NULL,
                               0);
        w->registering = request;
        w->link = proto_request_link(request);
        if (proto_channel_connected(w->channel))
            answer_register(w, true);
        return;
    }
    if (w->state != COORDINATOR_WORKER_ABSENT && w->state != COORDINATOR_WORKER_LOST) {
        coordinator_worker_set_state(w, COORDINATOR_WORKER_LOST); // its plans name its old process
        close_link(w);
    }
    bool anew = w->life != 0;
    w->fresh = w->fresh || (w->instance && w->instance != m->instance); // until it has been told its layouts
    w->farewell = w->farewell && w->instance == m->instance;
    if (w->leaving && w->instance != m->instance) { // that process has ended
        w->leaving = false;
        w->draining = w->drain_ordered;
        if (!w->draining && !w->cordoned)
            w->order = (struct coordinator_order){0};
    }
    if (w->instance != m->instance) // it has measured itself anew
        w->pace = (struct coordinator_pace){0};
    w->instance = m->instance;
    snprintf(w->host, sizeof(w->host), "%s", m->host);
    snprintf(w->kernel, sizeof(w->kernel), "%s", m->kernel);
    snprintf(w->version, sizeof(w->version), "%s", m->version);
    snprintf(w->no_device, sizeof(w->no_device), "%s", m->no_device);
    snprintf(w->endpoint, sizeof(w->endpoint), "%s", m->endpoint);
    snprintf(w->edge_endpoint, sizeof(w->edge_endpoint), "%s", m->edge_endpoint);
    w->capacity_bytes = m->capacity_bytes;
    w->bandwidth = m->bandwidth;
    w->threads = m->threads ? m->threads : 1;
    w->cores = m->cores ? m->cores : w->threads;
    char group[sizeof(w->group)];
    memcpy(group, w->group, sizeof(group));
    take_engine(w, m);
    coordinator_plans_engine_changed(cluster, group); // the group that it leaves is not whole any more
    even_out(w);
    w->last_beat_ns = common_clock_ns();
    w->promised_bytes = w->open_bytes = 0;
    w->refused_beats = 0;
    w->life = ++cluster->lives;
    enum common_code code = dial(w, &err);
    if (code != COMMON_OK) {
        proto_request_fail(request, code, err.message, NULL, 0);
        return;
    }
    coordinator_worker_set_state(w, COORDINATOR_WORKER_JOINING);
    const struct coordinator_event event = {
        .kind = anew ? PROTO_EVENT_WORKER_AGAIN : PROTO_EVENT_WORKER_JOINED, .worker = w->name};
    coordinator_events_tell(cluster->core->events, &event,
                            "a worker registers worker=%s host=%s edge=%s capacity=%" PRIu64
                            " bandwidth=%" PRIu64 " kernel=%s engine=%s group=%s version=%s",
                            w->name, w->host, w->edge_endpoint, w->capacity_bytes, w->bandwidth, w->kernel,
                            w->engine[0] ? w->engine : COORDINATOR_ENGINE_STREAM, w->group, w->version);
    w->registering = request;
    w->link = proto_request_link(request);
    start_grace(w, DIAL_NS);
}

// ---- Heartbeat ----------------------------------------------------------------------------------

void coordinator_handle_heartbeat(void *arg, struct proto_request *request)
{
    struct coordinator_cluster *cluster = arg;
    const Banyan__Pb__HeartbeatRequest *m = (const void *)proto_request_message(request)->body;
    uint64_t slot = (m->worker & UINT32_MAX) - 1;
    struct coordinator_worker *w = slot < cluster->n_workers ? cluster->workers[slot] : NULL;
    if (!w || w->life != m->worker >> 32 || w->state == COORDINATOR_WORKER_LOST ||
        w->state == COORDINATOR_WORKER_ABSENT) {
        proto_request_fail(request, COMMON_NOT_FOUND, "this worker is not registered: register again", NULL,
                           0);
        return;
    }
    // Who has lost its link registers anew over the next one, so an honest worker never comes here.
    if (w->link != proto_request_link(request)) {
        proto_request_fail(
            request, COMMON_PERMISSION_DENIED,
            "this worker registered over another connection: a worker sends heartbeats for itself only", NULL,
            0);
        return;
    }
    // Promises are kept as memory is taken; those that nobody takes up fade within a minute or so. What is open fades as
    // slowly as people type.
    uint64_t grown = m->used_bytes > w->used_bytes ? m->used_bytes - w->used_bytes : 0,
             promised = grown < w->promised_bytes ? grown : w->promised_bytes, open = grown - promised;
    w->promised_bytes -= promised;
    w->promised_bytes -= w->promised_bytes / 64;
    w->open_bytes -= open < w->open_bytes ? open : w->open_bytes;
    w->open_bytes -= w->open_bytes / 1024;
    w->refused_beats -= w->refused_beats > 0;
    w->used_bytes = m->used_bytes;
    w->reported_chunks = m->chunks;
    w->steps = m->steps;
    w->store_bytes = m->store_bytes;
    w->store_refused = m->store_refused;
    w->store_damaged = m->store_damaged;
    w->cold_bytes = m->cold_bytes;
    w->cold_evicted = m->cold_evicted;
    w->cold_loaded = m->cold_loaded;
    w->cold_loaded_bytes = m->cold_loaded_bytes;
    w->cold_load_ns = m->cold_load_ns;
    w->n_lacking = 0; // taken up by the room of sessions, and told until it was
    while (w->n_lacking < m->n_lacking && w->n_lacking < PROTO_LACKING_MAX) {
        w->lacking[w->n_lacking] = m->lacking[w->n_lacking];
        w->n_lacking++;
    }
    if (w->n_lacking)
        coordinator_turn_mark(&cluster->core->turn, COORDINATOR_PHASE_SESSIONS);
    w->last_compute_ns = m->last_compute_ns;
    w->last_beat_ns = common_clock_ns();
    const struct coordinator_pace_report report = {
        .planned_ns = m->planned_ns, .taken_ns = m->taken_ns, .stalled_ns = m->stalled_ns, .up_ns = m->up_ns};
    coordinator_pace_hear(&w->pace, &report);
    coordinator_worker_set_limits(w, m->limits, m->n_limits);
    coordinator_edges_report(w, m->edges_down, m->n_edges_down);
    if (m->engine_lost)
        coordinator_engine_lose(w, "reported by the worker");
    Banyan__Pb__HeartbeatReply reply = BANYAN__PB__HEARTBEAT_REPLY__INIT;
    reply.term = cluster->core->term;
    reply.joining = w->state == COORDINATOR_WORKER_JOINING;
    reply.measure = w->pace.probe;
    reply.clock_ns = coordinator_clock_ns(cluster->core);
    w->pace.probe = false;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

void coordinator_workers_tick(struct coordinator_cluster *cluster, uint64_t now_ns)
{
    const struct coordinator_core *core = cluster->core;
    const uint64_t patience_ns = beats_ns(cluster);
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        struct coordinator_worker *w = cluster->workers[i];
        if (w && !w->registering &&
            !coordinator_presence_patience(&core->presence, w->last_beat_ns, patience_ns, now_ns))
            coordinator_worker_lose(w, "three heartbeats were missed");
    }
}

void coordinator_workers_init(struct coordinator_cluster *cluster)
{
    common_list_init(&cluster->changed);
    common_list_init(&cluster->joining);
    coordinator_turn_set(&cluster->core->turn, COORDINATOR_PHASE_WORKERS, drain_workers, cluster);
}

void coordinator_workers_close(struct coordinator_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        if (cluster->workers[i])
            close_link(cluster->workers[i]);
}

void coordinator_workers_free(struct coordinator_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        if (cluster->workers[i])
            coordinator_worker_forget(cluster->workers[i]);
    cluster->n_workers = 0;
}
