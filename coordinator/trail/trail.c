// SPDX-License-Identifier: Apache-2.0
#include "coordinator/trail/trail.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/trail/trail_writer.h"
#include "coordinator/events.h"
#include "coordinator/trail/calls.h"
#include "coordinator/trail/flood.h"
#include "coordinator/trail/kept.h"
#include "proto/model/event.h"
#include "proto/rpc/status.h"
#include "proto/wire/codec.h"

#define HEAD_NS  (3600 * COMMON_NS_PER_S) // between two lines of the log with the head of the chain
#define HANGS_NS (1 * COMMON_NS_PER_S)    // a record has waited so long: its disk hangs
#define SPARE_NS (200 * COMMON_NS_PER_MS) // of a deadline, for the way of the answer that says so
#define STOP_NS  (2 * COMMON_NS_PER_S)    // a stop waits so long for the disk
#define CROWDED  50 // percent of the queue: with --audit-required nothing new is changed

enum flood { FLOOD_REFUSED, FLOOD_FAILED, FLOOD_READS, FLOOD_WORKERS, FLOODS };
static const char *const flood_names[FLOODS] = {"refused attempts", "failed calls", "reads",
                                                "refused workers"};

struct coordinator_trail {
    struct coordinator_core *core;
    const struct coordinator_tenants *tenants;
    struct common_trail_writer *writer;
    struct coordinator_trail_kept *kept;
    struct common_trail_state state; // of the file, when it was looked at last
    bool hangs;                      // so was that the disk does
    uint64_t stop_ns;                // until when a stop waits; 0: there is none
    struct coordinator_trail_flood floods[FLOODS];
    uint64_t left_out, said_head_ns;
    bool told; // of what cannot be written an event has said so
    struct common_trail_body body;
};

// ---- one record ---------------------------------------------------------------------------------

static struct common_trail_body *begin(struct coordinator_trail *trail)
{
    struct common_trail_body *body = &trail->body;
    body->len = 0;
    body->depth = 0;
    body->cut = false;
    return body;
}

static bool works(const struct coordinator_trail *trail)
{
    return trail->state.works && !trail->hangs;
}

static const char *trouble_of(const struct coordinator_trail *trail)
{
    return trail->hangs ? "its disk has not answered for a second" : trail->state.trouble;
}

static void tell(struct coordinator_trail *trail)
{
    char text[PROTO_EVENT_TEXT];
    if (works(trail))
        snprintf(text, sizeof text,
                 "the audit log can be written again: %" PRIu64 " records are missing from it",
                 trail->state.counts.lost);
    else
        snprintf(text, sizeof text, "the audit log cannot be written: %.80s%s", trouble_of(trail),
                 trail->core->options.audit_required ? ": changes are refused (--audit-required)"
                                                     : ": what happens is not recorded");
    trail->told = !works(trail);
    coordinator_events_add(trail->core->events,
                           &(struct coordinator_event){
                               .kind = works(trail) ? PROTO_EVENT_TRAIL_WRITTEN : PROTO_EVENT_TRAIL_FAILED,
                               .severity = works(trail) ? PROTO_EVENT_INFO : PROTO_EVENT_ERROR,
                               .text = text});
}

// What the thread has come to. It logs failures of the file itself, but not that it waits.
static void look(struct coordinator_trail *trail)
{
    bool hung = trail->hangs;
    common_trail_writer_state(trail->writer, &trail->state);
    trail->hangs = common_trail_writer_waits_ns(trail->writer, common_clock_ns()) >= HANGS_NS;
    if (trail->hangs && !hung)
        common_log_error("the audit log cannot be written: %s file=%s", trouble_of(trail),
                         trail->core->options.audit_log);
    else if (!trail->hangs && hung)
        common_log_info("the disk of the audit log answers again lost=%" PRIu64 " file=%s",
                        trail->state.counts.lost, trail->core->options.audit_log);
    if (works(trail) == trail->told)
        tell(trail);
}

static void on_done(void *arg, uint64_t number, bool written)
{
    struct coordinator_trail *trail = arg;
    if (!written || trail->told)
        look(trail);
    coordinator_trail_kept_done(trail->kept, number, written, trail->state.trouble);
}

// The record's number; 0: it is lost.
static uint64_t write_record(struct coordinator_trail *trail)
{
    uint64_t number = common_trail_writer_put(trail->writer, &trail->body);
    look(trail);
    return number;
}

static void put_self(struct coordinator_trail *trail, struct common_trail_body *body)
{
    common_trail_put_open(body, "who");
    common_trail_put_text(body, "daemon", "coordinator");
    common_trail_put_text(body, "cluster", trail->core->options.cluster);
    common_trail_put_shut(body);
}

// What a peer says that it is called; nothing if it gives none.
static void put_name(struct common_trail_body *body, const char *key, const char *peer)
{
    const char *address = coordinator_trail_address(peer);
    if (address > peer)
        common_trail_put_bytes(body, key, peer, (size_t)(address - peer) - 1);
}

// Who has called: a client by its token, a daemon by the cluster's secret.
static void put_who(struct coordinator_trail *trail, struct common_trail_body *body,
                    const struct proto_request *request)
{
    const struct proto_identity *who = proto_request_identity(request);
    const char *peer = proto_request_peer(request);
    bool client = proto_request_role(request) == BANYAN__PB__ROLE__ROLE_CLIENT;
    common_trail_put_open(body, "who");
    if (client && who) {
        common_trail_put_id(body, "token", who->token <= INT64_MAX ? who->token : 0); // above: of no token
        common_trail_put_text(body, "name", who->name[0] ? who->name : NULL);
        common_trail_put_text(body, "tenant", coordinator_tenant_name(trail->tenants, who->tenant));
        common_trail_put_text(body, "access", proto_access_name(who->access));
    } else if (!client) {
        common_trail_put_text(body, "daemon", "worker");
    }
    put_name(body, client ? "says" : "name", peer);
    common_trail_put_shut(body);
    common_trail_put_text(body, "from", coordinator_trail_address(peer));
}

static void say_left_out(struct coordinator_trail *trail, uint64_t now_ns, bool end)
{
    for (int i = 0; i < FLOODS; i++) {
        uint64_t held = coordinator_trail_flood_over(&trail->floods[i], now_ns, end);
        if (!held)
            continue;
        struct common_trail_body *body = begin(trail);
        put_self(trail, body);
        common_trail_put_text(body, "what", "log.left-out");
        common_trail_put_open(body, "args");
        common_trail_put_text(body, "of", flood_names[i]);
        common_trail_put_number(body, "records", held);
        common_trail_put_shut(body);
        common_trail_put_text(body, "result", "OK");
        write_record(trail);
    }
}

// Whether a record of this kind may be written; else it is counted.
static bool admits(struct coordinator_trail *trail, enum flood flood, const char *peer)
{
    bool admitted = coordinator_trail_flood_admits(&trail->floods[flood], peer, common_clock_ns());
    trail->left_out += !admitted;
    return admitted;
}

// ---- calls --------------------------------------------------------------------------------------

static bool is_wanted(struct coordinator_trail *trail, const struct coordinator_trail_call *call,
                      enum common_code code, const char *peer)
{
    bool denied = code == COMMON_PERMISSION_DENIED || code == COMMON_UNAUTHENTICATED;
    if (call->kind == COORDINATOR_TRAIL_NOT)
        return denied && admits(trail, FLOOD_REFUSED, peer);
    if (denied || !coordinator_trail_may_have_changed(code))
        return admits(trail, denied ? FLOOD_REFUSED : FLOOD_FAILED, peer);
    return call->kind == COORDINATOR_TRAIL_CHANGES || admits(trail, FLOOD_READS, peer);
}

// A deadline, less what the answer needs for its way.
static uint64_t due_of(const struct proto_request *request, uint64_t now)
{
    uint64_t deadline = proto_request_deadline(request), left = deadline > now ? deadline - now : 0;
    return deadline - (left / 8 < SPARE_NS ? left / 8 : SPARE_NS);
}

// Whether the answer leaves now.
static bool leaves(struct coordinator_trail *trail, struct proto_request *request, uint64_t number, bool must)
{
    uint64_t now = common_clock_ns(), due = due_of(request, now);
    if (trail->stop_ns || (!must && (!number || trail->hangs)))
        return true;
    if (!must && due > now + HANGS_NS)
        due = now + HANGS_NS;
    coordinator_trail_kept_add(trail->kept, request, number, due, must, trouble_of(trail));
    return false;
}

bool coordinator_trail_answered(struct coordinator_trail *trail, struct proto_request *request,
                                enum common_code code, const ProtobufCMessage *reply)
{
    uint32_t method = proto_request_method(request);
    // Without a body it has reached no handler. Of those it says who was not allowed to call; the rest says
    // `refusing`.
    const ProtobufCMessage *asked = proto_request_message(request)->body;
    bool denied = code == COMMON_PERMISSION_DENIED && coordinator_trail_knows(method);
    if (!trail || (!asked && !denied))
        return true;
    struct coordinator_trail_call call = {.kind = COORDINATOR_TRAIL_NOT};
    if (asked)
        call = coordinator_trail_call(method, asked, reply);
    if (!is_wanted(trail, &call, code, proto_request_peer(request)))
        return true;
    const struct proto_method_info *info = proto_codec_method(method);
    struct common_trail_body *body = begin(trail);
    put_who(trail, body, request);
    common_trail_put_text(body, "what", call.what ? call.what : "refused.call");
    common_trail_put_id(body, "session", call.session);
    common_trail_put_open(body, "args");
    if (call.what)
        coordinator_trail_call_args(method, asked, body);
    else
        common_trail_put_text(body, "call", info ? info->name : NULL);
    common_trail_put_shut(body);
    common_trail_put_text(body, "result", common_code_name(code));
    bool must =
        trail->core->options.audit_required && call.kind == COORDINATOR_TRAIL_CHANGES && code == COMMON_OK;
    return leaves(trail, request, write_record(trail), must);
}

bool coordinator_trail_refuses(struct coordinator_trail *trail, struct proto_request *request)
{
    struct proto_status status;
    if (!trail || !trail->core->options.audit_required)
        return false;
    bool crowded = common_trail_writer_full(trail->writer) >= CROWDED;
    look(trail);
    if (works(trail) && !crowded)
        return false;
    struct coordinator_trail_call call =
        coordinator_trail_call(proto_request_method(request), proto_request_message(request)->body, NULL);
    if (call.kind != COORDINATOR_TRAIL_CHANGES)
        return false;
    proto_status_set(
        &status, COMMON_FAILED_PRECONDITION, "AUDIT_LOG",
        "the coordinator's audit log cannot be written (%.80s), and with --audit-required nothing is "
        "changed without it: nothing was changed; check the disk of %.120s",
        works(trail) ? "too many records wait for its disk" : trouble_of(trail),
        trail->core->options.audit_log);
    proto_request_fail_status(request, &status);
    return true;
}

// ---- refused tries ------------------------------------------------------------------------------

void coordinator_trail_refusing(struct coordinator_trail *trail, enum proto_refusal refusal, const char *peer,
                                const char *why)
{
    static const char *const names[PROTO_REFUSALS] = {
        [PROTO_REFUSED_CONNECTION] = "refused.connection", [PROTO_REFUSED_TOKEN] = "refused.token"};
    // A call that is not for its caller is answered: `answered` has who that was.
    if (!trail || !names[refusal] || !admits(trail, FLOOD_REFUSED, peer))
        return;
    struct common_trail_body *body = begin(trail);
    common_trail_put_open(body, "who"); // unknown
    put_name(body, "says", peer);
    common_trail_put_shut(body);
    common_trail_put_text(body, "from", coordinator_trail_address(peer));
    common_trail_put_text(body, "what", names[refusal]);
    common_trail_put_open(body, "args");
    common_trail_put_text(body, "why", why);
    common_trail_put_shut(body);
    common_trail_put_text(body, "result", "UNAUTHENTICATED");
    write_record(trail);
}

static void on_strange(void *arg, const struct proto_request *request, uint64_t session)
{
    struct coordinator_trail *trail = arg;
    const struct proto_method_info *info = proto_codec_method(proto_request_method(request));
    if (!admits(trail, FLOOD_REFUSED, proto_request_peer(request)))
        return;
    struct common_trail_body *body = begin(trail);
    put_who(trail, body, request);
    common_trail_put_text(body, "what", "refused.tenant");
    common_trail_put_id(body, "session", session);
    common_trail_put_open(body, "args");
    common_trail_put_text(body, "call", info ? info->name : NULL);
    common_trail_put_shut(body);
    common_trail_put_text(body, "result", "NOT_FOUND");
    write_record(trail);
}

// ---- events -------------------------------------------------------------------------------------

// Acts of the coordinator's own, and of workers. What operators and clients do is recorded as their calls.
static const char *name_of(enum proto_event_kind kind)
{
    switch (kind) {
    case PROTO_EVENT_COORDINATOR_STARTED:
        return "coordinator.started";
    case PROTO_EVENT_COORDINATOR_TERM:
        return "coordinator.term";
    case PROTO_EVENT_COORDINATOR_RELOADED:
        return "coordinator.reloaded";
    case PROTO_EVENT_WORKER_JOINED:
        return "worker.joined";
    case PROTO_EVENT_WORKER_AGAIN:
        return "worker.again";
    case PROTO_EVENT_WORKER_LOST:
        return "worker.lost";
    case PROTO_EVENT_WORKER_REFUSED:
        return "worker.refused";
    case PROTO_EVENT_SESSION_LOST:
        return "session.lost";
    case PROTO_EVENT_SESSION_DELETED: // by a client, or idle for too long: when it is durable
        return "session.deleted";
    case PROTO_EVENT_BACKUP_RESTORED:
        return "backup.restored";
    default:
        return NULL;
    }
}

static void on_event(void *arg, const struct coordinator_event *event)
{
    struct coordinator_trail *trail = arg;
    const char *what = name_of(event->kind), *worker = event->worker ? event->worker : "";
    if (!what || (event->kind == PROTO_EVENT_WORKER_REFUSED && !admits(trail, FLOOD_WORKERS, worker)))
        return;
    struct common_trail_body *body = begin(trail);
    put_self(trail, body);
    common_trail_put_text(body, "what", what);
    common_trail_put_id(body, "session", event->session);
    common_trail_put_open(body, "args");
    common_trail_put_text(body, "worker", worker[0] ? worker : NULL);
    common_trail_put_text(body, "name",
                          event->session_name && event->session_name[0] ? event->session_name : NULL);
    common_trail_put_number(body, "term", trail->core->term);
    common_trail_put_text(body, "text", event->text);
    common_trail_put_shut(body);
    common_trail_put_text(body, "result", event->severity == PROTO_EVENT_ERROR ? "FAILED" : "OK");
    write_record(trail);
}

// ---- its life -----------------------------------------------------------------------------------

static void say_head(struct coordinator_trail *trail, uint64_t now_ns)
{
    common_trail_writer_state(trail->writer, &trail->state);
    common_log_info("audit log seq=%" PRIu64 " head=%s file=%s", trail->state.counts.seq, trail->state.head,
                    trail->core->options.audit_log);
    trail->said_head_ns = now_ns;
}

enum common_code coordinator_trail_new(struct coordinator_core *core,
                                       const struct coordinator_tenants *tenants,
                                       struct coordinator_trail **out, struct common_error *err)
{
    const char *path = core->options.audit_log;
    struct common_trail *file;
    *out = NULL;
    if (!path)
        return COMMON_OK;
    enum common_code code = common_trail_open(path, "coordinator", &file, err);
    if (code != COMMON_OK)
        return code;
    struct coordinator_trail *trail = coordinator_alloc(sizeof *trail);
    trail->core = core;
    trail->tenants = tenants;
    code = common_trail_writer_new(core->loop, file, on_done, trail, &trail->writer);
    if (code == COMMON_OK)
        code = coordinator_trail_kept_new(core->loop, &trail->kept);
    if (code != COMMON_OK) {
        common_trail_writer_free(trail->writer);
        free(trail);
        return common_error_set(err, code, "the audit log's thread cannot be started");
    }
    coordinator_events_listen(core->events, on_event, trail);
    core->strange = on_strange;
    core->strange_arg = trail;
    look(trail);
    say_head(trail, common_clock_ns());
    *out = trail;
    return COMMON_OK;
}

void coordinator_trail_tick(struct coordinator_trail *trail, uint64_t now_ns)
{
    if (!trail)
        return;
    look(trail);
    if (!trail->state.works)
        common_trail_writer_retry(trail->writer);
    say_left_out(trail, now_ns, false);
    if (now_ns - trail->said_head_ns >= HEAD_NS)
        say_head(trail, now_ns);
}

void coordinator_trail_reopen(struct coordinator_trail *trail)
{
    if (trail)
        common_trail_writer_reopen(trail->writer);
}

void coordinator_trail_flush(struct coordinator_trail *trail)
{
    if (!trail)
        return;
    if (!trail->stop_ns)
        trail->stop_ns = common_clock_ns() + STOP_NS;
    if (!common_trail_writer_flush(trail->writer, trail->stop_ns))
        common_log_error("the audit log cannot be written: its last records may be missing file=%s",
                         trail->core->options.audit_log);
    coordinator_trail_kept_release(trail->kept);
}

void coordinator_trail_stop(struct coordinator_trail *trail)
{
    if (!trail)
        return;
    say_left_out(trail, common_clock_ns(), true);
    struct common_trail_body *body = begin(trail);
    put_self(trail, body);
    common_trail_put_text(body, "what", "coordinator.stopped");
    common_trail_put_text(body, "result", "OK");
    write_record(trail);
    coordinator_trail_flush(trail);
    say_head(trail, common_clock_ns());
}

void coordinator_trail_free(struct coordinator_trail *trail)
{
    if (!trail)
        return;
    coordinator_events_listen(trail->core->events, NULL, NULL);
    trail->core->strange = NULL;
    coordinator_trail_flush(trail);
    common_trail_writer_free(trail->writer);
    coordinator_trail_kept_free(trail->kept);
    free(trail);
}

bool coordinator_trail_count(const struct coordinator_trail *trail, struct coordinator_trail_counts *out)
{
    if (!trail)
        return false;
    struct common_trail_state state;
    common_trail_writer_state(trail->writer, &state);
    *out = (struct coordinator_trail_counts){.written = state.counts.written,
                                             .lost = state.counts.lost,
                                             .left_out = trail->left_out,
                                             .waiting = common_trail_writer_waiting(trail->writer),
                                             .works = state.works && !trail->hangs};
    return true;
}
