// SPDX-License-Identifier: Apache-2.0
// Two tenants on one cluster, by libbanyan and by hand over nng: neither learns of the other, whatever it
// calls. A token that is stolen and revoked, one that takes another's place, a restart, and workers that want
// a pass.
#include "tests/e2e/support.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire/codec.h"
#include "tests/e2e/token_files.h"
#include "tests/e2e/wire.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

static struct harness_cluster *cluster;

// ---- clients ----------------------------------------------------------------------------------------------

static void token_of(const char *name, char out[65])
{
    FILE *file = fopen(token_file(name), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%64s", out), 1);
    fclose(file);
}

// The first token, made without one, and one of each access for two tenants.
static void make_tokens(void)
{
    token_files_of(cluster);
    banyan_client *anybody = token_client(NULL, "unix"), *admin;
    char token[65];
    FAILS(BANYAN_FAILED_PRECONDITION, NULL,
          banyan_token_create(anybody, "early", "user", "a", 0, token, NULL, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, // it would end, and no one could make another
          banyan_token_create(anybody, "brief", "admin", NULL, 3600, token, NULL, ERR));
    assert_non_null(strstr(ERR->message, "--token-file"));
    token_make(anybody, "root", "admin", NULL);
    // The earlier link is closed, and its client reconnects without a token.
    banyan_session_list list;
    FAILS(BANYAN_UNAUTHENTICATED, NULL, banyan_session_get_list(anybody, &list, ERR));
    banyan_disconnect(anybody);
    FAILS(BANYAN_UNAUTHENTICATED, NULL, token_connect(NULL, "nng+tcp", &anybody));
    admin = token_client("root", "unix");
    token_make(admin, "a1", "user", "a");
    token_make(admin, "b1", "user", "b");
    token_make(admin, "b-reads", "read-only", "b");
    token_make(admin, "op", "operator", NULL);
    FAILS(BANYAN_ALREADY_EXISTS, NULL, banyan_token_create(admin, "a1", "user", "b", 0, token, NULL, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, NULL, banyan_token_create(admin, "x", "god", "b", 0, token, NULL, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, NULL, banyan_token_create(admin, "X", "user", "b", 0, token, NULL, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL, banyan_token_revoke(admin, "root", 0, ERR)); // the last one
    assert_non_null(strstr(ERR->message, "the last admin token"));
    OK(banyan_token_create(admin, "brief", "admin", NULL, 3600, token, NULL, ERR));
    FAILS(BANYAN_FAILED_PRECONDITION, NULL,
          banyan_token_revoke(admin, "root", 0, ERR)); // the last one that stays
    assert_non_null(strstr(ERR->message, "expire"));
    OK(banyan_token_revoke(admin, "brief", 0, ERR));
    banyan_disconnect(admin);
}

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 2,
                                 .kv_heads = 1,
                                 .k_dim = 16,
                                 .v_dim = 16,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 16};

static banyan_session *make_session(banyan_client *client, const char *name, uint64_t tokens)
{
    banyan_session *session;
    static float rows[256 * 16];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)(i % 7) / 7;
    OK(banyan_session_create(client, &spec, name, &session, ERR));
    OK(banyan_attach(session, 0, 0, tokens, rows, rows, ERR));
    OK(banyan_commit(session, 0, 0, tokens, ERR));
    return session;
}

static banyan_code one_step(banyan_client *client, banyan_session *session, uint64_t first)
{
    static const float q[2 * 16] = {1, 2, 3};
    float o[2 * 16];
    banyan_item item = {.session = session, .first = first, .rows = 1, .q = q, .o = o, .error = ERR};
    banyan_code code = banyan_attend(client, &item, 1, 0, NULL, ERR);
    return code != BANYAN_OK ? code : item.code;
}

// ---- by hand ----------------------------------------------------------------------------------------------

struct raw {
    nng_socket socket;
    char token[65];
};

static struct raw raw_of(const char *name)
{
    struct raw raw;
    assert_int_equal(nng_req0_open(&raw.socket), 0);
    nng_socket_set_ms(raw.socket, NNG_OPT_RECVTIMEO, 30000);
    const char *endpoint = harness_cluster_endpoint(cluster, "nng+tcp");
    assert_int_equal(nng_dial(raw.socket, endpoint + strlen("nng+"), NULL, 0), 0);
    token_of(name, raw.token);
    return raw;
}

static struct wire_answer raw_call(struct raw *raw, uint32_t method, const ProtobufCMessage *body,
                                   const struct proto_tensor_out *tensors, size_t n_tensors)
{
    struct wire_frame frame = wire_encode(&(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                                   .method = method,
                                                                   .request = method,
                                                                   .remaining_ns = UINT64_C(20000000000),
                                                                   .credentials = raw->token,
                                                                   .body = body,
                                                                   .tensors = tensors,
                                                                   .n_tensors = n_tensors});
    struct wire_answer answer = {0};
    void *got;
    size_t len;
    assert_int_equal(nng_send(raw->socket, frame.bytes, frame.len, 0), 0);
    free(frame.bytes);
    assert_int_equal(nng_recv(raw->socket, &got, &len, NNG_FLAG_ALLOC), 0);
    struct proto_prefix prefix;
    assert_true(len >= PROTO_PREFIX_BYTES);
    assert_int_equal(proto_prefix_decode(got, &prefix, NULL), COMMON_OK);
    answer.header =
        banyan__pb__header__unpack(NULL, prefix.header_len, (const uint8_t *)got + PROTO_PREFIX_BYTES);
    nng_free(got, len);
    assert_non_null(answer.header);
    if (answer.header->status) {
        answer.code = answer.header->status->code;
        snprintf(answer.message, sizeof answer.message, "%s", answer.header->status->message);
        assert_true(!answer.header->status->n_details || !answer.header->status->details[0]->n_workers);
    }
    answer.body = answer.header->body.data;
    answer.body_len = answer.header->body.len;
    return answer;
}

// What a method says of a session that this token's tenant cannot see, or that never was.
static struct wire_answer about(struct raw *raw, uint32_t method, uint64_t id, const char *name)
{
    switch (method) {
#define ASK(METHOD_NAME, type, init, ...)                                                                    \
    case METHOD(METHOD_NAME): {                                                                              \
        type m = init;                                                                                       \
        m.session = id;                                                                                      \
        __VA_ARGS__;                                                                                         \
        return raw_call(raw, method, &m.base, NULL, 0);                                                      \
    }
        ASK(SESSION_OPEN, Banyan__Pb__SessionOpenRequest, BANYAN__PB__SESSION_OPEN_REQUEST__INIT,
            m.name = (char *)name)
        ASK(SESSION_INFO, Banyan__Pb__SessionInfoRequest, BANYAN__PB__SESSION_INFO_REQUEST__INIT,
            m.name = (char *)name)
        ASK(SESSION_CLOSE, Banyan__Pb__SessionCloseRequest, BANYAN__PB__SESSION_CLOSE_REQUEST__INIT, )
        ASK(SESSION_DELETE, Banyan__Pb__SessionDeleteRequest, BANYAN__PB__SESSION_DELETE_REQUEST__INIT, )
        ASK(SESSION_TRUNCATE, Banyan__Pb__SessionTruncateRequest,
            BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT, )
        ASK(SESSION_FORK, Banyan__Pb__SessionForkRequest, BANYAN__PB__SESSION_FORK_REQUEST__INIT, )
        ASK(SESSION_PLAN, Banyan__Pb__SessionPlanRequest, BANYAN__PB__SESSION_PLAN_REQUEST__INIT, )
        ASK(SESSION_WATCH, Banyan__Pb__SessionWatchRequest, BANYAN__PB__SESSION_WATCH_REQUEST__INIT,
            (m.steps = 1, m.trace = true))
        ASK(SESSION_STEP, Banyan__Pb__SessionStepRequest, BANYAN__PB__SESSION_STEP_REQUEST__INIT, )
        ASK(ATTACH_OPEN, Banyan__Pb__AttachOpenRequest, BANYAN__PB__ATTACH_OPEN_REQUEST__INIT, m.count = 16)
        ASK(ATTACH_COMMIT, Banyan__Pb__AttachCommitRequest, BANYAN__PB__ATTACH_COMMIT_REQUEST__INIT,
            m.count = 16)
        ASK(READ_OPEN, Banyan__Pb__ReadOpenRequest, BANYAN__PB__READ_OPEN_REQUEST__INIT, m.count = 16)
        ASK(QUARANTINE_DROP, Banyan__Pb__QuarantineDropRequest, BANYAN__PB__QUARANTINE_DROP_REQUEST__INIT,
            m.worker = (char *)"w0")
        ASK(SCRUB, Banyan__Pb__ScrubRequest, BANYAN__PB__SCRUB_REQUEST__INIT, m.ask = true)
#undef ASK
    case METHOD(ATTEND): {
        static uint8_t bytes[128];
        struct common_slice slice = {bytes, sizeof bytes};
        struct proto_tensor_out q = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                     .n_dims = 1,
                                     .dims = {sizeof bytes},
                                     .pieces = &slice,
                                     .n_pieces = 1};
        Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[] = {&item};
        Banyan__Pb__AttendRequest m = BANYAN__PB__ATTEND_REQUEST__INIT;
        item.session = id;
        item.rows = 1;
        item.first = 15;
        m.n_items = 1;
        m.items = items;
        struct wire_answer answer = raw_call(raw, method, &m.base, &q, 1);
        Banyan__Pb__AttendReply *reply =
            answer.code == COMMON_OK ? banyan__pb__attend_reply__unpack(NULL, answer.body_len, answer.body)
                                     : NULL;
        if (reply && reply->items[0]->status) {
            answer.code = reply->items[0]->status->code;
            snprintf(answer.message, sizeof answer.message, "%s", reply->items[0]->status->message);
        }
        if (reply)
            banyan__pb__attend_reply__free_unpacked(reply, NULL);
        return answer;
    }
    default:
        fail_msg("nobody knows how %u asks about a session", method);
        return (struct wire_answer){0};
    }
}

static bool names_a_session(uint32_t method)
{
    const ProtobufCMessageDescriptor *d = proto_codec_method(method)->request;
    return protobuf_c_message_descriptor_get_field_by_name(d, "session") != NULL || method == METHOD(ATTEND);
}

// Of every method that names a session, whatever the token: another tenant's session is what never was, in
// code and words.
static void across_the_border(void **state)
{
    (void)state;
    banyan_client *a = token_client("a1", "tcp"), *b = token_client("b1", "unix");
    banyan_session *theirs = make_session(a, "secret-plan", 40), *ours = make_session(b, "secret-plan", 20);
    uint64_t id = banyan_session_id(theirs);
    assert_true(id != banyan_session_id(ours)); // one name, two sessions
    struct raw raws[] = {raw_of("b1"), raw_of("b-reads")};
    uint32_t asked = 0;
    for (uint32_t method = METHOD(HEALTH_CHECK); method < METHOD(REGISTER); method++) {
        if (!proto_codec_method(method) || !names_a_session(method))
            continue;
        for (size_t i = 0; i < sizeof raws / sizeof *raws && method != METHOD(EVENTS); i++) {
            struct wire_answer seen = about(&raws[i], method, id, "");
            struct wire_answer none = about(&raws[i], method, id ^ (UINT64_C(0x5a) << 32), "");
            if (seen.code != none.code || strcmp(seen.message, none.message) != 0 ||
                (seen.code != COMMON_NOT_FOUND && seen.code != COMMON_PERMISSION_DENIED))
                fail_msg("%s says %u (%s) of another tenant's session, %u (%s) of none",
                         proto_codec_method(method)->name, seen.code, seen.message, none.code, none.message);
            wire_answer_free(&seen);
            wire_answer_free(&none);
            asked++;
        }
    }
    assert_int_equal(asked, 2 * 15);
    // By name, what is ours has it.
    struct wire_answer named = about(&raws[0], METHOD(SESSION_INFO), 0, "secret-plan");
    assert_int_equal(named.code, COMMON_OK);
    Banyan__Pb__SessionInfoReply *info =
        banyan__pb__session_info_reply__unpack(NULL, named.body_len, named.body);
    assert_non_null(info);
    assert_int_equal(info->session, banyan_session_id(ours));
    assert_int_equal(info->n_members, 0); // no workers' names
    assert_string_equal(info->tenant, "");
    banyan__pb__session_info_reply__free_unpacked(info, NULL);
    wire_answer_free(&named);
    // With libbanyan.
    banyan_session *stolen;
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_open(b, id, NULL, &stolen, ERR));
    OK(one_step(b, ours, 19));
    OK(one_step(a, theirs, 39));
    for (size_t i = 0; i < sizeof raws / sizeof *raws; i++)
        nng_close(raws[i].socket);
    OK(banyan_session_delete(theirs, ERR));
    banyan_session_close(theirs);
    OK(banyan_session_delete(ours, ERR));
    banyan_session_close(ours);
    banyan_disconnect(a);
    banyan_disconnect(b);
}

// Lists, counts, events and keys are a tenant's own; operators see whose a session is, and no answers.
static void what_the_error_says(void **state)
{
    (void)state;
    banyan_client *a = token_client("a1", "tcp"), *b = token_client("b1", "nng+tcp"),
                  *op = token_client("op", "tcp");
    banyan_session *theirs = make_session(a, "x", 20), *ours = make_session(b, "y", 20), *held;
    banyan_session_list list;
    OK(banyan_session_get_list(b, &list, ERR));
    assert_int_equal(list.n, 1);
    assert_string_equal(list.sessions[0].name, "y");
    banyan_session_list_free(&list);
    OK(banyan_session_get_list(op, &list, ERR));
    assert_int_equal(list.n, 2);
    for (uint32_t i = 0; i < list.n; i++)
        assert_string_equal(list.sessions[i].tenant, strcmp(list.sessions[i].name, "x") == 0 ? "a" : "b");
    banyan_session_list_free(&list);
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(b, &info, ERR));
    assert_int_equal(info.sessions, 1);
    assert_int_equal(info.n_workers + info.steps + info.chunks + info.clients, 0);
    banyan_cluster_info_free(&info);
    OK(banyan_cluster_get_info(op, &info, ERR));
    assert_int_equal(info.n_workers, 2);
    banyan_cluster_info_free(&info);
    // Events
    struct raw raw = raw_of("b1");
    Banyan__Pb__EventsRequest ask = BANYAN__PB__EVENTS_REQUEST__INIT;
    ask.max = 256;
    struct wire_answer answer = raw_call(&raw, METHOD(EVENTS), &ask.base, NULL, 0);
    assert_int_equal(answer.code, COMMON_OK);
    Banyan__Pb__EventsReply *events = banyan__pb__events_reply__unpack(NULL, answer.body_len, answer.body);
    assert_non_null(events);
    assert_true(events->n_events > 0);
    for (size_t i = 0; i < events->n_events; i++) {
        assert_true(events->events[i]->session != 0 &&
                    events->events[i]->session != banyan_session_id(theirs));
        assert_string_equal(events->events[i]->worker, "");
        assert_null(strstr(events->events[i]->text, "w0"));
    }
    banyan__pb__events_reply__free_unpacked(events, NULL);
    wire_answer_free(&answer);
    // Keys: a create with another tenant's key makes a session of one's own, and with one's own finds it
    // again.
    struct raw other = raw_of("a1");
    uint64_t made[3];
    for (int i = 0; i < 3; i++) {
        Banyan__Pb__Spec pb = BANYAN__PB__SPEC__INIT;
        Banyan__Pb__SessionCreateRequest create = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
        pb.layers = pb.q_heads = pb.kv_heads = 1;
        pb.k_dim = pb.v_dim = 16;
        pb.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
        create.spec = &pb;
        create.key = 0x77;
        answer = raw_call(i == 1 ? &other : &raw, METHOD(SESSION_CREATE), &create.base, NULL, 0);
        assert_int_equal(answer.code, COMMON_OK);
        Banyan__Pb__SessionCreateReply *reply =
            banyan__pb__session_create_reply__unpack(NULL, answer.body_len, answer.body);
        assert_non_null(reply);
        made[i] = reply->session;
        banyan__pb__session_create_reply__free_unpacked(reply, NULL);
        wire_answer_free(&answer);
    }
    assert_true(made[0] == made[2] && made[0] != made[1]);
    nng_close(raw.socket);
    nng_close(other.socket);
    // An operator sees it, and neither attends, reads nor deletes; a reader neither appends nor makes one.
    OK(banyan_session_open(op, banyan_session_id(theirs), NULL, &held, ERR));
    FAILS(BANYAN_PERMISSION_DENIED, NULL, one_step(op, held, 19));
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_session_delete(held, ERR));
    banyan_session_close(held);
    banyan_client *reader = token_client("b-reads", "tcp");
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_session_create(reader, &spec, "z", &held, ERR));
    OK(banyan_session_open(reader, banyan_session_id(ours), NULL, &held, ERR));
    OK(one_step(reader, held, 19));
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_session_truncate(held, 4, ERR));
    banyan_session_close(held);
    banyan_token_list tokens;
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_token_get_list(op, &tokens, ERR));
    banyan_disconnect(reader);
    OK(banyan_session_delete(theirs, ERR));
    banyan_session_close(theirs);
    OK(banyan_session_delete(ours, ERR));
    banyan_session_close(ours);
    banyan_disconnect(a);
    banyan_disconnect(b);
    banyan_disconnect(op);
}

// ---- a stolen token -----------------------------------------------------------------------------------------

struct load {
    banyan_client *client;
    banyan_session *session;
    pthread_t thread;
    atomic_bool over;
    atomic_uint steps;
    _Atomic int code; // that ended it
};

static void *step_on(void *arg)
{
    struct load *l = arg;
    while (!atomic_load(&l->over)) {
        banyan_code code = one_step(l->client, l->session, 15);
        if (code != BANYAN_OK) {
            atomic_store(&l->code, (int)code);
            break;
        }
        atomic_fetch_add(&l->steps, 1);
    }
    return NULL;
}

static void load_start(struct load *l, const char *token, const char *transport, banyan_session *of)
{
    *l = (struct load){.client = token_client(token, transport)};
    OK(banyan_session_open(l->client, banyan_session_id(of), NULL, &l->session, ERR));
    assert_int_equal(pthread_create(&l->thread, NULL, step_on, l), 0);
    EVENTUALLY(30, atomic_load(&l->steps) > 20);
}

static int load_stop(struct load *l)
{
    atomic_store(&l->over, true);
    pthread_join(l->thread, NULL);
    banyan_session_close(l->session);
    banyan_disconnect(l->client);
    return atomic_load(&l->code);
}

static void revoked_under_load(void **state)
{
    (void)state;
    static const char *const transports[] = {"unix", "tcp", "nng+tcp"};
    banyan_client *admin = token_client("root", "tcp"), *a = token_client("a1", "tcp"),
                  *b = token_client("b1", "tcp");
    banyan_session *theirs = make_session(a, NULL, 16), *ours = make_session(b, NULL, 16);
    token_make(admin, "a2", "user", "a"); // both are good at once
    struct load next, others, stolen[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "stolen-%d", i);
        token_make(admin, name, "user", "a");
        load_start(&stolen[i], name, transports[i], theirs);
    }
    load_start(&next, "a2", "tcp", theirs);
    load_start(&others, "b1", "nng+tcp", ours);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "stolen-%d", i);
        OK(banyan_token_revoke(admin, name, 0, ERR));
        EVENTUALLY(30, atomic_load(&stolen[i].code) != 0);
        assert_int_equal(load_stop(&stolen[i]), BANYAN_UNAUTHENTICATED);
        FAILS(BANYAN_NOT_FOUND, NULL, banyan_token_revoke(admin, name, 0, ERR));
    }
    for (struct load *l = &next;; l = &others) { // all go on
        unsigned before = atomic_load(&l->steps);
        EVENTUALLY(30, atomic_load(&l->steps) > before + 20);
        assert_int_equal(load_stop(l), 0);
        if (l == &others)
            break;
    }
    // One that expires is as one that is revoked.
    char token[65];
    OK(banyan_token_create(admin, "short", "user", "a", 2, token, NULL, ERR));
    token_keep("short", token);
    banyan_client *brief = token_client("short", "unix");
    banyan_session_list list;
    banyan_code code;
    EVENTUALLY(30, (code = banyan_session_get_list(brief, &list, ERR)) != BANYAN_OK ||
                       (banyan_session_list_free(&list), false));
    assert_int_equal(code, BANYAN_UNAUTHENTICATED);
    banyan_disconnect(brief);
    OK(banyan_session_delete(theirs, ERR));
    banyan_session_close(theirs);
    OK(banyan_session_delete(ours, ERR));
    banyan_session_close(ours);
    banyan_disconnect(a);
    banyan_disconnect(b);
    banyan_disconnect(admin);
}

// ---- a restart ----------------------------------------------------------------------------------

static void check_kept(uint64_t id)
{
    banyan_client *a = token_client("a1", "unix"), *b = token_client("b1", "unix"),
                  *admin = token_client("root", "unix");
    banyan_session *held;
    banyan_token_list list;
    OK(banyan_session_open(a, 0, "kept", &held, ERR));
    assert_int_equal(banyan_session_id(held), id);
    banyan_session_close(held);
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_open(b, id, NULL, &held, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_open(b, 0, "kept", &held, ERR));
    OK(banyan_token_get_list(admin, &list, ERR));
    bool found = false;
    for (uint32_t i = 0; i < list.n; i++) {
        assert_true(strcmp(list.tokens[i].name, "gone") != 0);
        found = found || (!strcmp(list.tokens[i].name, "b-reads") &&
                          !strcmp(list.tokens[i].access, "read-only") && !strcmp(list.tokens[i].tenant, "b"));
    }
    assert_true(found);
    banyan_token_list_free(&list);
    FAILS(BANYAN_UNAUTHENTICATED, NULL, token_connect("gone", "unix", &b));
    FAILS(BANYAN_UNAUTHENTICATED, NULL, token_connect(NULL, "unix", &b));
    banyan_disconnect(a);
    banyan_disconnect(admin);
}

static uint64_t make_what_is_kept(void)
{
    banyan_client *admin = token_client("root", "unix"), *a = token_client("a1", "unix");
    token_make(admin, "gone", "user", "a");
    OK(banyan_token_revoke(admin, "gone", 0, ERR));
    banyan_session *kept = make_session(a, "kept", 20);
    uint64_t id = banyan_session_id(kept);
    banyan_session_close(kept);
    banyan_disconnect(a);
    banyan_disconnect(admin);
    return id;
}

static void restart(void **state)
{
    (void)state;
    uint64_t id = make_what_is_kept();
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    check_kept(id);
}

// A worker with a token file needs that token, or a pass, which libbanyan has from the coordinator.
static void workers_want_a_pass(void **state)
{
    (void)state;
    banyan_client *op = token_client("op", "tcp");
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(op, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++) {
        int fd = wire_dial(info.workers[i].endpoint);
        assert_false(wire_hello(fd)); // without anything
        close(fd);
    }
    banyan_cluster_info_free(&info);
    banyan_disconnect(op);
    banyan_client *a = token_client("a1", "tcp");
    banyan_session *session = make_session(a, NULL, 200);
    float k[200 * 16], v[200 * 16];
    OK(banyan_read_rows(session, 0, 0, 200, k, NULL, v, NULL, ERR));
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
    banyan_disconnect(a);
}

// The only worker goes: its tenant hears that rows are missing, an admin also at whom. It is called like a
// word of that text, which reads the same all the same.
static void who_is_missing_is_shown_to_admins(void **state)
{
    (void)state;
    struct harness_cluster *first = cluster;
    cluster = support_start(&(struct harness_options){
        .workers = 1, .worker_args = (const char *const[]){"--name", "tokens", NULL}});
    make_tokens();
    uint64_t id = make_what_is_kept();
    banyan_client *clients[] = {token_client("a1", "unix"), token_client("root", "unix")};
    harness_cluster_signal(cluster, 0, SIGKILL);
    for (int i = 0; i < 2; i++) {
        banyan_session *held;
        OK(banyan_session_open(clients[i], id, NULL, &held, ERR));
        EVENTUALLY(60, one_step(clients[i], held, 19) == BANYAN_UNAVAILABLE &&
                           ERR->reason == BANYAN_REASON_MISSING_RANGE);
        assert_true(ERR->n_ranges > 0);
        assert_string_equal(ERR->worker, i ? "tokens" : "");
        assert_non_null(strstr(ERR->message, "no reachable worker holds tokens [0, 20)"));
        assert_true((strstr(ERR->message, "(worker tokens)") != NULL) == (i == 1));
        banyan_session_close(held);
        banyan_disconnect(clients[i]);
    }
    support_stop(cluster);
    cluster = first;
}

int main(void)
{
    char path[] = "/tmp/banyan-tenants-XXXXXX";
    int fd = mkstemp(path); // 0600
    if (fd < 0 || write(fd, "the-workers-token\n", 18) != 18)
        return 1;
    close(fd);
    cluster = support_start(&(struct harness_options){
        .workers = 2, .worker_args = (const char *const[]){"--token-file", path, NULL}});
    make_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(across_the_border),
        cmocka_unit_test(what_the_error_says),
        cmocka_unit_test(revoked_under_load),
        cmocka_unit_test(workers_want_a_pass),
        cmocka_unit_test(restart),
        cmocka_unit_test(who_is_missing_is_shown_to_admins),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    support_stop(cluster);
    unlink(path);
    return failed;
}
