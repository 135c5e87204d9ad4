// SPDX-License-Identifier: Apache-2.0
// What the library asks again and what it does not, in which order, and how much at once: against a coordinator
// and workers, one server in this process, that lose links, refuse tickets and lie.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "common/blob.h"
#include "common/clock.h"
#include "common/loop.h"
#include "proto/codec.h"
#include "proto/rpc.h"

enum {
    HEADS = 2,
    DIM = 4,
    TOKENS = 16,       // of a chunk
    HELD_MAX = 128,    // requests that the service keeps
    OPENS_MAX = 8,     // tickets that it gives; then it has had enough
    AHEAD_CHUNKS = 4,  // what it has room for where a ticket asks for more
    PUTS_A_WORKER = 6, // that may be under way to one worker (client/peer.c)
};

static struct service {
    struct common_loop *loop;
    struct proto_server *server;
    char endpoints[2][128]; // both are the coordinator and a worker
    atomic_uint calls[PROTO_METHOD_LIMIT];
    struct common_mail mail;
    struct proto_request *held[HELD_MAX];
    atomic_uint n_held;
    // What it does:
    atomic_bool lose;                  // the next call is lost, and the link with it
    atomic_bool hold;                  // attends and puts are kept
    atomic_bool fails, short_answer;   // of attends: every item fails; an answer without items
    atomic_bool crowded;               // room for AHEAD_CHUNKS chunks at a time
    atomic_uint puts_refused;          // as many puts, by their tickets
    atomic_uint_least64_t incarnation; // of the session
    atomic_uint_least64_t ticket;      // the incarnation that tickets are of
    // What it has seen:
    atomic_uint_least64_t attend_incarnation;
    atomic_uint_least64_t keys[3]; // of the last creates or forks, the newest last
} service;

static char dir[] = "/tmp/banyan-again-XXXXXX";

// ---- the service -----------------------------------------------------------------------------------------

static void open_server(void *arg);

// The process dies with a request in its hands, and another one takes its place.
static void lose_link(void *arg)
{
    struct proto_request *request = arg;
    proto_server_close(service.server);
    proto_request_fail(request, COMMON_INTERNAL, "nobody hears this", NULL, 0);
    open_server(NULL);
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
    Banyan__Pb__SessionTruncateReply reply = BANYAN__PB__SESSION_TRUNCATE_REPLY__INIT;
    reply.incarnation = ++service.incarnation;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE))
        reply_with(request, &reply.base);
}

// A session that is gone already.
static void on_delete(void *arg, struct proto_request *request)
{
    (void)arg;
    if (!arrives(request, BANYAN__PB__METHOD__METHOD_SESSION_DELETE))
        proto_request_fail(request, COMMON_NOT_FOUND, "there is no session 42", NULL, 0);
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
    reply.n_chunks = n;
    reply.chunks = chunk_ptrs;
    reply.n_workers = 2;
    reply.workers = worker_ptrs;
    reply.incarnation = service.ticket;
    reply_with(request, &reply.base);
}

static void on_put(void *arg, struct proto_request *request)
{
    (void)arg;
    Banyan__Pb__ChunkPutReply reply = BANYAN__PB__CHUNK_PUT_REPLY__INIT;
    if (arrives(request, BANYAN__PB__METHOD__METHOD_CHUNK_PUT) || keeps(request))
        return;
    if (service.puts_refused == 0) {
        reply_with(request, &reply.base);
        return;
    }
    service.puts_refused--;
    proto_request_fail(request, COMMON_ABORTED, "the ticket is old", NULL, 0);
}

// Answers what is kept; from now on nothing is.
static void release(void *arg)
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
    {BANYAN__PB__METHOD__METHOD_SESSION_DELETE, CLIENTS, on_delete},
    {BANYAN__PB__METHOD__METHOD_SESSION_CLOSE, CLIENTS, on_close},
    {BANYAN__PB__METHOD__METHOD_SESSION_OPEN, CLIENTS, on_open},
    {BANYAN__PB__METHOD__METHOD_SESSION_LIST, CLIENTS, on_list},
    {BANYAN__PB__METHOD__METHOD_ATTEND, CLIENTS, on_attend},
    {BANYAN__PB__METHOD__METHOD_ATTACH_OPEN, CLIENTS, on_attach_open},
    {BANYAN__PB__METHOD__METHOD_CHUNK_PUT, CLIENTS, on_put},
    {0},
};

static void open_server(void *arg)
{
    (void)arg;
    struct proto_server_options options = {.name = "service",
                                           .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                           .methods = methods};
    assert_int_equal(proto_server_new(service.loop, &options, &service.server, NULL), COMMON_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(proto_server_listen(service.server, service.endpoints[i], NULL), COMMON_OK);
}

static void close_server(void *arg)
{
    (void)arg;
    proto_server_close(service.server);
}

// ---- helpers ---------------------------------------------------------------------------------------------

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = HEADS,
                                 .kv_heads = 1,
                                 .k_dim = DIM,
                                 .v_dim = DIM,
                                 .kv_type = BANYAN_F16,
                                 .chunk_tokens = TOKENS};
static banyan_client *client;
static banyan_session *session;

static int set_up(void **state)
{
    (void)state;
    memset(&service, 0, sizeof service);
    service.incarnation = service.ticket = 1;
    for (int i = 0; i < 2; i++)
        snprintf(service.endpoints[i], sizeof service.endpoints[i], "unix://%s/%c", dir, 's' + i);
    if (common_loop_new(&service.loop) != COMMON_OK ||
        common_loop_start_thread(service.loop, "service") != COMMON_OK)
        return -1;
    common_loop_call(service.loop, open_server, NULL);
    return banyan_connect(service.endpoints[0], NULL, &client, NULL) == BANYAN_OK &&
                   banyan_session_create(client, &spec, NULL, &session, NULL) == BANYAN_OK
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    banyan_session_close(session);
    banyan_disconnect(client);
    common_loop_call(service.loop, close_server, NULL);
    common_loop_stop(service.loop);
    common_loop_join(service.loop);
    common_loop_free(service.loop);
    return 0;
}

static unsigned calls(uint32_t method)
{
    return atomic_load(&service.calls[method]);
}

// Everything that the library had to send when this began has arrived when it ends.
static void all_arrives(void)
{
    for (int i = 0; i < 3; i++)
        assert_int_equal(banyan_ping(client, NULL, NULL), BANYAN_OK);
}

static uint16_t kv[1024 * DIM]; // rows of K, and of V

// ---- tests -----------------------------------------------------------------------------------------------

// What would be done twice is not asked twice: the caller decides.
// With the key of the call that was lost, so that there is one session; another call has another key.
static void a_lost_create_or_fork_is_repeated(void **state)
{
    (void)state;
    banyan_session *made = NULL;
    uint64_t before = service.keys[2]; // of the create that made `session`
    service.lose = true;
    assert_int_equal(banyan_session_create(client, &spec, NULL, &made, NULL), BANYAN_OK);
    banyan_session_close(made);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_CREATE), 3);
    assert_true(service.keys[2] != 0 && service.keys[2] == service.keys[1] && service.keys[2] != before);
    before = service.keys[2];
    service.lose = true;
    assert_int_equal(banyan_session_fork(session, 0, NULL, &made, NULL), BANYAN_OK);
    banyan_session_close(made);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_FORK), 2);
    assert_true(service.keys[2] != 0 && service.keys[2] == service.keys[1] && service.keys[2] != before);
}

static void a_lost_truncate_or_delete_is_repeated(void **state)
{
    (void)state;
    float q[HEADS * DIM] = {0}, o[HEADS * DIM];
    banyan_item item = {.session = session, .rows = 1, .q = q, .o = o};
    service.lose = true;
    assert_int_equal(banyan_session_truncate(session, 0, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE), 2);
    // What it says about the session holds from now on.
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_OK);
    assert_int_equal(service.attend_incarnation, 3);
    // A session that is gone: by this delete, if an earlier sending of it was lost.
    assert_int_equal(banyan_session_delete(session, NULL), BANYAN_NOT_FOUND);
    service.lose = true;
    assert_int_equal(banyan_session_delete(session, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_SESSION_DELETE), 3);
}

struct attending {
    pthread_t thread;
    banyan_item *items;
    size_t n;
    banyan_code code;
};

static void *attend(void *arg)
{
    struct attending *a = arg;
    a->code = banyan_attend(client, a->items, a->n, 0, NULL, NULL);
    return NULL;
}

// An append in several calls: each waits for the answer to the one before. What only reads does not.
static void calls_of_an_append_go_one_by_one(void **state)
{
    (void)state;
    enum { N = 801 }; // a call has at most 800 items
    float q[HEADS * DIM] = {0}, o[HEADS * DIM];
    banyan_item items[N];
    for (int append = 0; append < 2; append++) {
        for (size_t i = 0; i < N; i++)
            items[i] = (banyan_item){.session = session, .first = i, .rows = 1, .q = q, .o = o};
        for (size_t i = 0; append && i < N; i++)
            items[i].k = items[i].v = kv;
        struct attending a = {.items = items, .n = N};
        unsigned before = calls(BANYAN__PB__METHOD__METHOD_ATTEND);
        service.hold = true;
        pthread_create(&a.thread, NULL, attend, &a);
        while (atomic_load(&service.n_held) == 0)
            usleep(1000);
        all_arrives();
        assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTEND) - before, append ? 1 : 2);
        common_loop_call(service.loop, release, NULL);
        pthread_join(a.thread, NULL);
        assert_int_equal(a.code, BANYAN_OK);
        assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTEND) - before, 2);
    }
}

static void an_item_says_its_first_failure(void **state)
{
    (void)state;
    enum { ROWS = 5000 }; // two pieces
    float *q = calloc(2 * ROWS, HEADS * DIM * sizeof *q);
    banyan_error error;
    banyan_item item = {
        .session = session, .rows = ROWS, .q = q, .o = q + (size_t)ROWS * HEADS * DIM, .error = &error};
    service.fails = true;
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_OK);
    assert_int_equal(item.code, BANYAN_OUT_OF_RANGE);
    assert_string_equal(error.message, "row 0 fails");
    service.fails = false;
    service.short_answer = true; // the right bytes, and no items
    item.rows = 1;
    assert_int_equal(banyan_attend(client, &item, 1, 0, NULL, NULL), BANYAN_INTERNAL);
    free(q);
}

static void an_error_says_nothing_of_an_older_one(void **state)
{
    (void)state;
    banyan_error error = {0};
    banyan_session *none;
    assert_int_equal(banyan_session_open(client, 7, NULL, &none, &error), BANYAN_UNAVAILABLE);
    assert_string_equal(error.reason, "MISSING_RANGE");
    assert_string_equal(error.worker, "w3");
    assert_int_equal(error.n_ranges, 1);
    assert_int_equal(banyan_session_open(client, 0, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    assert_string_equal(error.reason, "");
    assert_string_equal(error.worker, "");
    assert_int_equal(error.n_ranges, 0);
}

static void a_list_has_all_its_pages(void **state)
{
    (void)state;
    banyan_session_list list;
    assert_int_equal(banyan_session_get_list(client, &list, NULL), BANYAN_OK);
    assert_int_equal(list.n, 266);
    for (uint32_t i = 0; i < list.n; i++)
        assert_int_equal(list.sessions[i].id, i + 1);
    banyan_session_list_free(&list);
}

static void *attach_many(void *arg)
{
    *(banyan_code *)arg = banyan_attach(session, 0, 0, 40 * TOKENS, kv, kv, NULL);
    return NULL;
}

static void few_puts_are_under_way_to_a_worker(void **state)
{
    (void)state;
    pthread_t thread;
    banyan_code code;
    service.hold = true;
    pthread_create(&thread, NULL, attach_many, &code);
    while (atomic_load(&service.n_held) < 2 * PUTS_A_WORKER)
        usleep(1000);
    all_arrives();
    assert_int_equal(service.n_held, 2 * PUTS_A_WORKER);
    common_loop_call(service.loop, release, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(code, BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 40);
}

static void a_refused_ticket_is_replaced_once(void **state)
{
    (void)state;
    service.puts_refused = 1;
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 2);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 2);
    service.puts_refused = UINT32_MAX;
    assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_ABORTED);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 4);
}

static void a_ticket_is_of_this_incarnation(void **state)
{
    (void)state;
    for (service.ticket = 0; service.ticket <= 2; service.ticket += 2) {
        unsigned before = calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN);
        assert_int_equal(banyan_attach(session, 0, 0, TOKENS, kv, kv, NULL), BANYAN_ABORTED);
        assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN) - before, 1);
    }
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_CHUNK_PUT), 0);
}

// Asking ahead is a courtesy: without room for it the need alone is asked for, once.
static void no_room_ahead_may_be_room_enough(void **state)
{
    (void)state;
    service.crowded = true;
    assert_int_equal(banyan_attach(session, 0, 0, AHEAD_CHUNKS * TOKENS, kv, kv, NULL), BANYAN_OK);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 2);
    assert_int_equal(banyan_attach(session, 0, 20 * TOKENS, (AHEAD_CHUNKS + 1) * TOKENS, kv, kv, NULL),
                     BANYAN_RESOURCE_EXHAUSTED);
    assert_int_equal(calls(BANYAN__PB__METHOD__METHOD_ATTACH_OPEN), 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_lost_create_or_fork_is_repeated),     TEST(a_lost_truncate_or_delete_is_repeated),
        TEST(calls_of_an_append_go_one_by_one),      TEST(an_item_says_its_first_failure),
        TEST(an_error_says_nothing_of_an_older_one), TEST(a_list_has_all_its_pages),
        TEST(few_puts_are_under_way_to_a_worker),    TEST(a_refused_ticket_is_replaced_once),
        TEST(a_ticket_is_of_this_incarnation),       TEST(no_room_ahead_may_be_room_enough),
    };
    if (!mkdtemp(dir))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir); // the sockets went with the server
    return failed;
}
