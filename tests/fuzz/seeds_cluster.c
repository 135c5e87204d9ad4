// SPDX-License-Identifier: Apache-2.0
// Sequences of requests for the targets of cluster.h: what a session lives through.
#include <string.h>

#include "proto/banyan.pb-c.h"
#include "proto/wire/codec.h"
#include "tests/fuzz/message.h"
#include "tests/fuzz/seeds.h"

enum { ASK = 0, TIME = 6, LINK = 15, PEERS = 4 };

// The order of the peers and methods in coordinator.c and worker.c.
enum { COORD_CLIENT = 0, COORD_WORKER = 1 };
enum {
    CREATE,
    ATTEND,
    INFO,
    FORK,
    TRUNCATE,
    OPEN,
    COMMIT,
    READ,
    DELETE,
    PLAN,
    LIST,
    WATCH,
    CLIENT_METHODS = 31
};
enum { BY_COORDINATOR, BY_CLIENT, AT_COORDINATOR, BY_WORKER };

static void ask(struct seed *seed, uint8_t whom, uint8_t method, const void *body, const uint8_t *tensors,
                uint8_t n_tensors)
{
    seed_u8(seed, ASK);
    seed_u8(seed, whom);
    seed_u8(seed, method);
    seed_u8(seed, (uint8_t)(n_tensors | 1 << 3));
    seed_message(seed, body);
    seed_put(seed, tensors, n_tensors);
}

static void create(struct seed *seed, uint8_t whom, uint8_t method, uint32_t replicas)
{
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__SessionCreateRequest request = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    spec.layers = spec.q_heads = spec.kv_heads = 1;
    spec.k_dim = spec.v_dim = 4;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = 16;
    spec.replicas = replicas;
    request.spec = &spec;
    request.name = (char *)"?2";
    ask(seed, whom, method, &request, NULL, 0);
}

static void attend(struct seed *seed, uint8_t whom, uint8_t method, uint64_t session, uint64_t first,
                   uint32_t rows, bool append)
{
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[] = {&item};
    Banyan__Pb__AttendRequest request = BANYAN__PB__ATTEND_REQUEST__INIT;
    const uint8_t tensors[] = {(uint8_t)rows, (uint8_t)rows, (uint8_t)rows};
    item.session = session;
    item.first = first;
    item.rows = rows;
    item.append = append;
    request.items = items;
    request.n_items = 1;
    request.want_lse = request.want_trace = true;
    ask(seed, whom, method, &request, tensors, append ? 3 : 1);
}

static void range(struct seed *seed, uint8_t whom, uint8_t method, uint64_t session, uint64_t count,
                  bool commit)
{
    Banyan__Pb__AttachOpenRequest open = BANYAN__PB__ATTACH_OPEN_REQUEST__INIT;
    Banyan__Pb__AttachCommitRequest request = BANYAN__PB__ATTACH_COMMIT_REQUEST__INIT;
    open.session = request.session = session;
    open.count = request.count = count;
    ask(seed, whom, method, commit ? (const void *)&request : (const void *)&open, NULL, 0);
}

static void pass(struct seed *seed, uint8_t a, uint8_t b)
{
    seed_u8(seed, TIME);
    seed_u8(seed, a);
    seed_u8(seed, b);
}

// Known numbers: 0 the life of the store; then what the create's answer says: session, cut.
static void seed_session(void)
{
    struct seed seed = {0};
    create(&seed, COORD_CLIENT, CREATE, 2);
    attend(&seed, COORD_CLIENT, ATTEND, SEED_KNOWN(1), 0, 4, true);
    attend(&seed, COORD_CLIENT, ATTEND, SEED_KNOWN(1), 4, 20, true);
    attend(&seed, COORD_CLIENT, ATTEND, SEED_KNOWN(1), 5, 2, false);
    pass(&seed, 40, 100);
    Banyan__Pb__SessionForkRequest fork = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    fork.session = SEED_KNOWN(1);
    fork.length = 17;
    fork.name = (char *)"fork";
    ask(&seed, COORD_CLIENT, FORK, &fork, NULL, 0);
    Banyan__Pb__SessionTruncateRequest cut = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    cut.session = SEED_KNOWN(1);
    cut.length = 8;
    cut.after = SEED_KNOWN(2);
    cut.cut = 9;
    ask(&seed, COORD_CLIENT, TRUNCATE, &cut, NULL, 0);
    attend(&seed, COORD_CLIENT, ATTEND, SEED_KNOWN(1), 8, 8, true);
    range(&seed, COORD_CLIENT, OPEN, SEED_KNOWN(1), 32, false);
    range(&seed, COORD_CLIENT, COMMIT, SEED_KNOWN(1), 8, true);
    range(&seed, COORD_CLIENT, READ, SEED_KNOWN(1), 8, false);
    pass(&seed, 255, 100);
    Banyan__Pb__SessionDeleteRequest end = BANYAN__PB__SESSION_DELETE_REQUEST__INIT;
    end.session = SEED_KNOWN(1);
    ask(&seed, COORD_CLIENT, DELETE, &end, NULL, 0);
    seed_write(&seed, "coordinator", "session");
}

static const uint32_t client_methods[] = {
    33, 44, 37, 40, 39, 42, 43, 51, 36, 41, 38, 46, 52, 47, 48, 49,
    50, 53, 54, 55, 56, 57, 32, 34, 35, 16, 58, 59, 60, 61, 62}; // coordinator.c

// Each method with all of its fields, before and after there is a session.
static void seed_each(void)
{
    for (uint8_t i = 0; i < CLIENT_METHODS; i++) {
        struct seed seed = {0};
        char name[16];
        ProtobufCMessage *body = seed_full(proto_codec_method(client_methods[i])->request);
        ask(&seed, COORD_CLIENT, i, body, NULL, 0);
        create(&seed, COORD_CLIENT, CREATE, 1);
        attend(&seed, COORD_CLIENT, ATTEND, SEED_KNOWN(1), 0, 4, true);
        for (unsigned k = 0; k < body->descriptor->n_fields; k++) // it names the session
            if (strcmp(body->descriptor->fields[k].name, "session") == 0 &&
                body->descriptor->fields[k].type == PROTOBUF_C_TYPE_FIXED64) {
                uint64_t session = SEED_KNOWN(1);
                memcpy((uint8_t *)body + body->descriptor->fields[k].offset, &session, sizeof session);
            }
        ask(&seed, COORD_CLIENT, i, body, NULL, 0);
        fuzz_message_end(body);
        pass(&seed, 10, 100);
        snprintf(name, sizeof name, "m%u", client_methods[i]);
        seed_write(&seed, "coordinator", name);
    }
}

// Tokens and quotas of two tenants, and what the second then meets.
static void seed_tenants(void)
{
    static const uint8_t token_create = 26, token_list = 27, token_revoke = 28, quota_set = 29,
                         quota_show = 30;
    struct seed seed = {0};
    Banyan__Pb__TokenCreateRequest token = BANYAN__PB__TOKEN_CREATE_REQUEST__INIT;
    token.name = (char *)"root";
    token.access = (char *)"admin";
    ask(&seed, COORD_CLIENT, token_create, &token, NULL, 0);
    token.name = (char *)"one";
    token.access = (char *)"user";
    token.tenant = (char *)"other";
    ask(&seed, COORD_CLIENT, token_create, &token, NULL, 0);
    Banyan__Pb__QuotaSetRequest set = BANYAN__PB__QUOTA_SET_REQUEST__INIT;
    Banyan__Pb__QuotaUse quota = BANYAN__PB__QUOTA_USE__INIT, *quotas[] = {&quota};
    set.tenant = (char *)"default";
    quota.name = (char *)"sessions";
    quota.max = 1;
    set.quotas = quotas;
    set.n_quotas = 1;
    ask(&seed, COORD_CLIENT, quota_set, &set, NULL, 0);
    create(&seed, COORD_CLIENT, CREATE, 1);
    create(&seed, COORD_CLIENT, CREATE, 1);
    ask(&seed, COORD_CLIENT, quota_show, &(Banyan__Pb__QuotaShowRequest)BANYAN__PB__QUOTA_SHOW_REQUEST__INIT,
        NULL, 0);
    ask(&seed, COORD_CLIENT, token_list, &(Banyan__Pb__TokenListRequest)BANYAN__PB__TOKEN_LIST_REQUEST__INIT,
        NULL, 0);
    Banyan__Pb__TokenRevokeRequest revoke = BANYAN__PB__TOKEN_REVOKE_REQUEST__INIT;
    revoke.id = 1;
    ask(&seed, COORD_CLIENT, token_revoke, &revoke, NULL, 0);
    pass(&seed, 40, 100);
    seed_write(&seed, "coordinator", "tenants");
}

static void seed_members(void)
{
    struct seed seed = {0};
    Banyan__Pb__RegisterRequest join = BANYAN__PB__REGISTER_REQUEST__INIT;
    Banyan__Pb__HeartbeatRequest beat = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    join.name = (char *)"x0";
    join.host = (char *)"h1";
    join.endpoint = (char *)"tcp://127.0.0.1:8000";
    join.edge_endpoint = (char *)"tcp://127.0.0.1:8001";
    join.capacity_bytes = 1 << 24;
    join.bandwidth = 1000000000;
    join.kernel = (char *)"reference";
    join.threads = 1;
    join.instance = 77777;
    join.engine = (char *)"?4";
    join.control = PROTO_CONTROL_VERSION;
    beat.worker = 1;
    beat.term = 1;
    ask(&seed, COORD_WORKER, 0, &join, NULL, 0);
    ask(&seed, COORD_WORKER, 1, &beat, NULL, 0);
    pass(&seed, 40, 100);
    create(&seed, COORD_CLIENT, CREATE, 1);
    attend(&seed, COORD_CLIENT, ATTEND, SEED_KNOWN(0), 0, 4, true);
    ask(&seed, COORD_WORKER, 1, &beat, NULL, 0);
    pass(&seed, 255, 255);
    seed_write(&seed, "members", "joins");
    ProtobufCMessage *body = seed_full(&banyan__pb__register_request__descriptor);
    ask(&seed, COORD_WORKER, 0, body, NULL, 0);
    fuzz_message_end(body);
    body = seed_full(&banyan__pb__heartbeat_request__descriptor);
    ask(&seed, COORD_WORKER, 1, body, NULL, 0);
    fuzz_message_end(body);
    seed_write(&seed, "members", "full");
}

static const uint32_t control_methods[] = {98,  100, 101, 102, 105, 96,  97, 99,
                                           103, 106, 112, 104, 110, 111, 16};

static void seed_workers(void)
{
    for (uint8_t i = 0; i < sizeof control_methods / sizeof *control_methods; i++) {
        struct seed seed = {0};
        char name[16];
        ProtobufCMessage *body = seed_full(proto_codec_method(control_methods[i])->request);
        ask(&seed, BY_COORDINATOR, i, body, (const uint8_t[]){1, 1, 1}, control_methods[i] == 105 ? 3 : 0);
        create(&seed, AT_COORDINATOR, 0, 1);
        attend(&seed, AT_COORDINATOR, 4, SEED_KNOWN(1), 0, 4, true);
        for (unsigned k = 0; k < body->descriptor->n_fields; k++)
            if (strcmp(body->descriptor->fields[k].name, "session") == 0 &&
                body->descriptor->fields[k].type == PROTOBUF_C_TYPE_FIXED64) {
                uint64_t session = SEED_KNOWN(1);
                memcpy((uint8_t *)body + body->descriptor->fields[k].offset, &session, sizeof session);
            }
        ask(&seed, BY_COORDINATOR, 11, &(Banyan__Pb__InventoryRequest)BANYAN__PB__INVENTORY_REQUEST__INIT,
            NULL, 0);
        ask(&seed, BY_COORDINATOR, i, body, (const uint8_t[]){1, 1, 1}, control_methods[i] == 105 ? 3 : 0);
        fuzz_message_end(body);
        pass(&seed, 10, 100);
        snprintf(name, sizeof name, "m%u", control_methods[i]);
        seed_write(&seed, "worker", name);
    }
    // A client attaches rows and reads them, with the coordinator's tickets: the known texts are 7 names and
    // endpoints, then those of answers.
    struct seed seed = {0};
    Banyan__Pb__ChunkPutRequest put = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    create(&seed, AT_COORDINATOR, 0, 1);
    range(&seed, AT_COORDINATOR, 1, SEED_KNOWN(1), 16, false);
    put.session = SEED_KNOWN(1);
    put.count = 8;
    put.ticket = (ProtobufCBinaryData){2, (uint8_t *)"?8"};
    ask(&seed, BY_CLIENT, 0, &put, (const uint8_t[]){8, 8}, 2);
    range(&seed, AT_COORDINATOR, 3, SEED_KNOWN(1), 8, true);
    range(&seed, AT_COORDINATOR, 2, SEED_KNOWN(1), 8, false);
    attend(&seed, AT_COORDINATOR, 4, SEED_KNOWN(1), 8, 4, true);
    pass(&seed, 255, 100);
    seed_write(&seed, "worker", "attach");
}

void seed_cluster(void)
{
    seed_session();
    seed_each();
    seed_tenants();
    seed_members();
    seed_workers();
}
