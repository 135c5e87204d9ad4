// SPDX-License-Identifier: Apache-2.0
#include "tests/client/again_service.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/memory/blob.h"
#include "proto/rpc/status.h"

struct service service;

// The process dies with a request in its hands, and another one takes its place.
static void lose_link(void *arg)
{
    struct proto_request *request = arg;
    proto_server_close(service.server);
    proto_request_fail(request, COMMON_INTERNAL, "nobody hears this", NULL, 0);
    service_open(NULL);
}

// Counts. True: the call has come to its end.
static bool arrives(struct proto_request *request, uint32_t method)
{
    atomic_fetch_add(&service.calls[method], 1);
    if (!service.lose)
        return false;
    service.lose = false;
    common_loop_mail(service.loop, &service.mail, lose_link, request);
    return true;
}

static bool keeps(struct proto_request *request)
{
    if (!service.hold)
        return false;
    assert_true(service.n_held < HELD_MAX);
    service.held[service.n_held] = request;
    atomic_fetch_add(&service.n_held, 1);
    return true;
}

static void reply_with(struct proto_request *request, const ProtobufCMessage *body)
{
    proto_request_reply(request, body, NULL, 0, NULL, NULL);
}

static void on_health(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__HealthCheckReply reply = BANYAN__PB__HEALTH_CHECK_REPLY__INIT;
    reply.serving = true;
    reply_with(request, &reply.base);
}

static void note_key(uint64_t key)
{
    service.keys[0] = service.keys[1];
    service.keys[1] = service.keys[2];
    service.keys[2] = key;
}

static void on_create(void *arg, struct proto_request *request)
{
    (void)arg;
    note_key(((const Banyan__Pb__SessionCreateRequest *)proto_request_message(request)->body)->key);
    Banyan__Pb__SessionCreateReply reply = BANYAN__PB__SESSION_CREATE_REPLY__INIT;
    reply.session = 42;
    reply.incarnation = service.incarnation;
    reply.cut = service.cut;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_SESSION_CREATE))
        reply_with(request, &reply.base);
}

static void on_fork(void *arg, struct proto_request *request)
{
    (void)arg;
    note_key(((const Banyan__Pb__SessionForkRequest *)proto_request_message(request)->body)->key);
    Banyan__Pb__SessionForkReply reply = BANYAN__PB__SESSION_FORK_REPLY__INIT;
    reply.session = 43;
    reply.incarnation = service.incarnation;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_SESSION_FORK))
        reply_with(request, &reply.base);
}

static void on_truncate(void *arg, struct proto_request *request)
{
    (void)arg;
    const Banyan__Pb__SessionTruncateRequest *in =
        (const Banyan__Pb__SessionTruncateRequest *)proto_request_message(request)->body;
    Banyan__Pb__SessionTruncateReply reply = BANYAN__PB__SESSION_TRUNCATE_REPLY__INIT;
    bool refused = service.truncates_refused > 0, done = !in->cut || in->after == service.cut;
    note_key(in->cut);
    service.after = in->after;
    service.settles += in->settle;
    if (done && (!refused || (service.truncates_anyway && !in->settle))) {
        service.incarnation += !in->settle;
        service.cut = in->cut;
    }
    if (refused) {
        service.truncates_refused--;
        proto_request_fail(request, COMMON_UNAVAILABLE, "w3 is lost", NULL, 0);
        return;
    }
    reply.incarnation = service.incarnation;
    reply.cut = service.cut;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE))
        reply_with(request, &reply.base);
}

static void on_info(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__SessionInfoReply reply = BANYAN__PB__SESSION_INFO_REPLY__INIT;
    reply.session = 42;
    reply.incarnation = service.incarnation;
    reply.cut = service.cut;
    reply_with(request, &reply.base);
}

// A session that is gone already.
static void on_delete(void *arg, struct proto_request *request)
{
    (void)arg;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_SESSION_DELETE))
        proto_request_fail(request, COMMON_NOT_FOUND, "there is no session 42", NULL, 0);
}

// Once it is done, there is nothing left to drop.
static void on_quarantine_drop(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__QuarantineDropReply reply = BANYAN__PB__QUARANTINE_DROP_REPLY__INIT;
    reply.sessions = service.quarantined;
    service.quarantined = 0;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_QUARANTINE_DROP))
        reply_with(request, &reply.base);
}

static void on_close(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__SessionCloseReply reply = BANYAN__PB__SESSION_CLOSE_REPLY__INIT;
    reply_with(request, &reply.base);
}

// Fails, and says as much about it as fits.
static void on_open(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__Detail detail = BANYAN__PB__DETAIL__INIT, *details[] = {&detail};
    Banyan__Pb__Range range = BANYAN__PB__RANGE__INIT, *ranges[] = {&range};
    char *workers[] = {(char *)"w3"};
    detail.reason = (char *)"MISSING_RANGE";
    detail.n_ranges = detail.n_workers = 1;
    detail.ranges = ranges;
    detail.workers = workers;
    range.count = 5;
    proto_request_fail(request, COMMON_UNAVAILABLE, "w3 is lost", details, 1);
}

// Two pages: a full one, and ten.
static void on_list(void *arg, struct proto_request *request)
{
    (void)arg;
    const Banyan__Pb__SessionListRequest *in =
        (const Banyan__Pb__SessionListRequest *)proto_request_message(request)->body;
    Banyan__Pb__SessionListReply reply = BANYAN__PB__SESSION_LIST_REPLY__INIT;
    static Banyan__Pb__SessionInfoReply infos[256], *ptrs[256];
    reply.n_sessions = in->after == 0 ? 256 : 10;
    reply.next = in->after == 0 ? 256 : 0;
    for (size_t i = 0; i < reply.n_sessions; i++) {
        banyan__pb__session_info_reply__init(&infos[i]);
        infos[i].session = in->after + i + 1;
        ptrs[i] = &infos[i];
    }
    reply.sessions = ptrs;
    reply_with(request, &reply.base);
}

static void drop_blob(void *arg)
{
    common_blob_unref(arg);
}

static void answer_attend(struct proto_request *request)
{
    const struct proto_message *message = proto_request_message(request);
    const Banyan__Pb__AttendRequest *in = (const Banyan__Pb__AttendRequest *)message->body;
    Banyan__Pb__AttendReply reply = BANYAN__PB__ATTEND_REPLY__INIT;
    Banyan__Pb__AttendItemResult results[800], *ptrs[800];
    Banyan__Pb__Status statuses[800];
    char texts[800][32];
    for (size_t i = 0; i < in->n_items; i++) {
        banyan__pb__attend_item_result__init(&results[i]);
        results[i].plan_digest = 77;
        ptrs[i] = &results[i];
        if (!service.fails)
            continue;
        banyan__pb__status__init(&statuses[i]);
        snprintf(texts[i], sizeof texts[i], "row %llu fails", (unsigned long long)in->items[i]->first);
        statuses[i].code = COMMON_OUT_OF_RANGE;
        statuses[i].message = texts[i];
        results[i].status = &statuses[i];
    }
    service.attend_incarnation = in->items[0]->incarnation;
    reply.n_items = service.short_answer ? 0 : in->n_items;
    reply.items = ptrs;
    size_t bytes = message->tensors[0].bytes; // as many out as in
    struct common_slice slice = {message->tensors[0].data, bytes};
    struct proto_tensor_out out = {BANYAN__PB__DTYPE__DTYPE_F32, 1, {bytes / sizeof(float)}, &slice, 1};
    struct common_blob *blob = common_blob_ref(message->blob); // the answer's bytes are the question's
    proto_request_reply(request, &reply.base, &out, 1, drop_blob, blob);
}

static void on_attend(void *arg, struct proto_request *request)
{
    (void)arg;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_ATTEND) && !keeps(request))
        answer_attend(request);
}

// A ticket whose chunks lie at both workers in turn: a put is one chunk.
static void on_attach_open(void *arg, struct proto_request *request)
{
    (void)arg;
    const Banyan__Pb__AttachOpenRequest *in =
        (const Banyan__Pb__AttachOpenRequest *)proto_request_message(request)->body;
    Banyan__Pb__AttachOpenReply reply = BANYAN__PB__ATTACH_OPEN_REPLY__INIT;
    static Banyan__Pb__AttachChunk chunks[256], *chunk_ptrs[256];
    static Banyan__Pb__AttachWorker workers[2], *worker_ptrs[2];
    static uint32_t holders[256];
    unsigned nth = atomic_fetch_add(&service.calls[BANYAN__PB__METHOD__METHOD_ATTACH_OPEN], 1);
    size_t n = in->count / TOKENS;
    if (nth >= OPENS_MAX || n > 256) {
        proto_request_fail(request, COMMON_INTERNAL, "too many tickets", NULL, 0);
        return;
    }
    if (service.crowded && n > AHEAD_CHUNKS) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "no room", NULL, 0);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        banyan__pb__attach_chunk__init(&chunks[i]);
        chunks[i].first = in->first + i * TOKENS;
        holders[i] = i % 2;
        chunks[i].n_holders = 1;
        chunks[i].holders = &holders[i];
        chunk_ptrs[i] = &chunks[i];
    }
    for (size_t i = 0; i < 2; i++) {
        banyan__pb__attach_worker__init(&workers[i]);
        workers[i].name = (char *)"w";
        workers[i].endpoint = service.endpoints[i];
        worker_ptrs[i] = &workers[i];
    }
    reply.ticket = (ProtobufCBinaryData){6, (uint8_t *)"ticket"};
    reply.expires_wall_ns = common_clock_wall_ns() + 60 * COMMON_NS_PER_S;
    reply.life_ns = 60 * COMMON_NS_PER_S;
    if (service.behind) {
        reply.expires_wall_ns -= 3600 * COMMON_NS_PER_S;
        reply.life_ns = 0;
    }
    reply.n_chunks = n;
    reply.chunks = chunk_ptrs;
    reply.n_workers = 2;
    reply.workers = worker_ptrs;
    reply.incarnation = service.ticket;
    reply.pass = (char *)SERVICE_PASS;
    reply_with(request, &reply.base);
}

static void on_put(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__ChunkPutReply reply = BANYAN__PB__CHUNK_PUT_REPLY__INIT;
    if (arrives(request, BANYAN__PB__METHOD__METHOD_CHUNK_PUT) || keeps(request))
        return;
    if (service.puts_moved) {
        struct proto_status status;
        service.puts_moved--;
        proto_status_set(&status, COMMON_FAILED_PRECONDITION, "OLD_TICKET", "somebody else holds these rows");
        proto_request_fail_status(request, &status);
        return;
    }
    if (service.puts_refused == 0) {
        reply_with(request, &reply.base);
        return;
    }
    service.puts_refused--;
    proto_request_fail(request, COMMON_ABORTED, "the ticket is old", NULL, 0);
}

void service_release(void *arg)
{
    (void)arg;
    service.hold = false;
    Banyan__Pb__ChunkPutReply put = BANYAN__PB__CHUNK_PUT_REPLY__INIT;
    for (unsigned i = 0; i < service.n_held; i++)
        if (proto_request_message(service.held[i])->header->method == BANYAN__PB__METHOD__METHOD_ATTEND)
            answer_attend(service.held[i]);
        else
            reply_with(service.held[i], &put.base);
    service.n_held = 0;
}

#define CLIENTS (1U << BANYAN__PB__ROLE__ROLE_CLIENT)
static const struct proto_method methods[] = {
    {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK, CLIENTS, on_health},
    {BANYAN__PB__METHOD__METHOD_SESSION_CREATE, CLIENTS, on_create},
    {BANYAN__PB__METHOD__METHOD_SESSION_FORK, CLIENTS, on_fork},
    {BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE, CLIENTS, on_truncate},
    {BANYAN__PB__METHOD__METHOD_SESSION_INFO, CLIENTS, on_info},
    {BANYAN__PB__METHOD__METHOD_SESSION_DELETE, CLIENTS, on_delete},
    {BANYAN__PB__METHOD__METHOD_SESSION_CLOSE, CLIENTS, on_close},
    {BANYAN__PB__METHOD__METHOD_SESSION_OPEN, CLIENTS, on_open},
    {BANYAN__PB__METHOD__METHOD_SESSION_LIST, CLIENTS, on_list},
    {BANYAN__PB__METHOD__METHOD_QUARANTINE_DROP, CLIENTS, on_quarantine_drop},
    {BANYAN__PB__METHOD__METHOD_ATTEND, CLIENTS, on_attend},
    {BANYAN__PB__METHOD__METHOD_ATTACH_OPEN, CLIENTS, on_attach_open},
    {BANYAN__PB__METHOD__METHOD_CHUNK_PUT, CLIENTS, on_put},
    {0},
};

static bool on_admit(void *arg, const void *credentials, size_t len, const char *peer,
                     struct proto_identity *out)
{
    (void)arg, (void)peer;
    service.shown_tokens += len == strlen(SERVICE_TOKEN) && memcmp(credentials, SERVICE_TOKEN, len) == 0;
    service.shown_passes += len == strlen(SERVICE_PASS) && memcmp(credentials, SERVICE_PASS, len) == 0;
    *out = proto_identity_admin;
    return true;
}

void service_open(void *arg)
{
    (void)arg;
    struct proto_server_options options = {
        .name = "service", .role = BANYAN__PB__ROLE__ROLE_COORDINATOR, .admit = on_admit, .methods = methods};
    assert_int_equal(proto_server_new(service.loop, &options, &service.server, NULL), COMMON_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(proto_server_listen(service.server, service.endpoints[i], NULL), COMMON_OK);
}

void service_close(void *arg)
{
    (void)arg;
    proto_server_close(service.server);
}
