// SPDX-License-Identifier: Apache-2.0
// A connection to a server: proto/stream/stream_link.c, stream_server.c and its hello, or (FUZZ_NNG)
// sp_link.c, sp_request.c and sp_server.c; and behind them rpc_server.c, rpc_limits.c and its dispatch.
// Input: u8 how it is cut, then records of frames.h. However the bytes are cut, the same requests are handed
// to the handlers and the same answers come.
//
// With FUZZ_NNG each record is a message of nng's; one that is raw travels without its length, as it is.
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/memory/blob.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/step.h"
#include "proto/wire/codec.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/world.h"

#define TOKEN "a token of the tests"

enum { HELD_MAX = 64, ALL_ROLES = 0xe, DAEMONS = 0xc };

struct run { // what came of the bytes
    uint64_t handled, hash, answer_hash;
    size_t answer_bytes;
    struct proto_request *held[HELD_MAX];
    unsigned n_held;
};

static struct common_loop *loop;
static struct proto_method methods[PROTO_METHOD_LIMIT + 1];

// ---- the server -----------------------------------------------------------------------------------------

static void note(struct run *run, const void *data, size_t len)
{
    run->hash = XXH3_64bits_withSeed(data, len, run->hash);
}

static bool is_for_daemons(uint32_t method)
{
    return method >= BANYAN__PB__METHOD__METHOD_PLAN_INSTALL;
}

// No caller reaches a handler without the token, and no client one that is for daemons.
static void check_rights(const struct proto_message *message)
{
#ifdef FUZZ_NNG
    const ProtobufCBinaryData *given = &message->header->credentials;
    FUZZ_CHECK(given->len == strlen(TOKEN) && memcmp(given->data, TOKEN, given->len) == 0);
    FUZZ_CHECK(!is_for_daemons(message->header->method));
#else
    (void)message; // the link has shown it
#endif
}

static bool admit(void *arg, const void *credentials, size_t len, const char *peer,
                  struct proto_identity *out)
{
    (void)arg;
    FUZZ_CHECK(peer && (len == 0 || credentials));
    if (len != strlen(TOKEN) || memcmp(credentials, TOKEN, len) != 0)
        return false;
    *out = (struct proto_identity){.tenant = 3, .access = PROTO_ACCESS_USER, .token = 7, .name = "one"};
    return true;
}

// A handler is asked by him whom `admit` has let in, or by a daemon.
static void check_identity(const struct proto_request *request)
{
    const struct proto_identity *who = proto_request_identity(request);
    bool admitted = who->tenant == 3 && who->access == PROTO_ACCESS_USER && who->token == 7;
    FUZZ_CHECK(admitted || (who->access == PROTO_ACCESS_NONE && who->token == 0));
}

static void answer(struct proto_request *request)
{
    const struct proto_message *message = proto_request_message(request);
    const struct proto_method_info *info = proto_codec_method(message->header->method);
    if (message->n_tensors > 0 || !info->reply) {
        proto_request_fail(request, COMMON_ABORTED, "not today", NULL, 0);
        return;
    }
    ProtobufCMessage *reply = calloc(1, info->reply->sizeof_message);
    FUZZ_CHECK(reply);
    info->reply->message_init(reply);
    proto_request_reply(request, reply, NULL, 0, NULL, NULL);
    free(reply);
}

static void handle(void *arg, struct proto_request *request)
{
    struct run *run = arg;
    const struct proto_message *message = proto_request_message(request);
    size_t len = protobuf_c_message_get_packed_size(message->body);
    uint8_t *bytes = malloc(len + 1);
    struct proto_step *step;
    FUZZ_CHECK(bytes && protobuf_c_message_pack(message->body, bytes) == len);
    check_rights(message);
    check_identity(request);
    note(run, bytes, len);
    note(run, &message->header->request, sizeof message->header->request);
    for (size_t i = 0; i < message->n_tensors; i++)
        note(run, message->tensors[i].data, message->tensors[i].bytes);
    free(bytes);
    run->handled++;
    if (message->header->method == BANYAN__PB__METHOD__METHOD_STEP &&
        proto_step_decode(message, proto_request_deadline(request), &step, NULL) == COMMON_OK)
        proto_step_free(step);
    if (message->header->request & 1 && run->n_held < HELD_MAX) // answered later
        run->held[run->n_held++] = request;
    else
        answer(request);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_quiet();
    FUZZ_CHECK(common_loop_new(&loop) == COMMON_OK);
    unsigned n = 0;
    for (uint32_t method = BANYAN__PB__METHOD__METHOD_HEALTH_CHECK; method < PROTO_METHOD_LIMIT; method++)
        if (proto_codec_method(method))
            methods[n++] =
                (struct proto_method){method, is_for_daemons(method) ? DAEMONS : ALL_ROLES, handle};
    return 0;
}

static struct proto_server *serve(struct run *run)
{
    static const struct common_secret secret = {{1, 2, 3}};
    const struct proto_server_options options = {.name = "server",
                                                 .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                                 .secret = &secret,
                                                 .token = TOKEN,
                                                 .admit = admit,
                                                 .payload_max = 1 << 16,
                                                 .requests_max = 16,
                                                 .bytes_max = 1 << 18,
                                                 .methods = methods,
                                                 .arg = run};
    struct proto_server *server;
    struct common_error err;
    FUZZ_CHECK(proto_server_new(loop, &options, &server, &err) == COMMON_OK);
#ifdef FUZZ_NNG
    FUZZ_CHECK(proto_server_listen(server, "nng+tcp://127.0.0.1:1", &err) == COMMON_OK);
#else
    FUZZ_CHECK(proto_server_listen(server, "tcp://127.0.0.1:1", &err) == COMMON_OK);
#endif
    return server;
}

// ---- the peer -------------------------------------------------------------------------------------------

#ifdef FUZZ_NNG
static uint8_t *wire_of(struct fuzz_input *in, size_t *len)
{
    static const uint8_t hello[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t *all = malloc(sizeof hello), *frame;
    size_t n;
    uint32_t id = 0;
    FUZZ_CHECK(all);
    memcpy(all, hello, sizeof hello);
    *len = sizeof hello;
    while (in->left > 0) {
        bool raw = (*in->at & 3) == FUZZ_RAW;
        if (!(frame = fuzz_frame(in, &n)))
            break;
        uint64_t words = htobe64(n + 4);
        uint32_t request = htobe32(0x80000000u | ++id);
        size_t head = raw ? 0 : sizeof words + sizeof request;
        all = realloc(all, *len + head + n + 1);
        FUZZ_CHECK(all);
        if (!raw) {
            memcpy(all + *len, &words, sizeof words);
            memcpy(all + *len + sizeof words, &request, sizeof request);
        }
        memcpy(all + *len + head, frame, n);
        *len += head + n;
        free(frame);
    }
    return all;
}
#else
static uint8_t *wire_of(struct fuzz_input *in, size_t *len)
{
    return fuzz_frames(in, len);
}
#endif

static void read_answers(struct run *run, int fd)
{
    uint8_t bytes[4096];
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        for (ssize_t i = 0; i < n; i++, run->answer_bytes++)
            run->answer_hash = (run->answer_hash ^ bytes[i]) * UINT64_C(0x100000001b3);
}

static void send_all(struct run *run, int fd, const uint8_t *at, size_t left, uint8_t cut)
{
    uint32_t draw = cut;
    while (left > 0) {
        draw = draw * 1664525u + 1013904223u;
        size_t piece = cut == 0 ? left : 1 + (draw >> 16) % (1 + 16 * (size_t)cut);
        ssize_t sent = send(fd, at, piece < left ? piece : left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN)
            return; // it was closed
        fuzz_turn(loop);
        read_answers(run, fd);
        if (sent < 0)
            return; // not read: so many requests are held
        at += sent;
        left -= (size_t)sent;
    }
}

static void answer_held(struct run *run)
{
    for (unsigned i = 0; i < run->n_held; i++)
        answer(run->held[i]);
    run->n_held = 0;
}

static struct run connect_and_send(const uint8_t *bytes, size_t len, uint8_t cut)
{
    struct run run = {0};
    fuzz_world_begin();
    struct proto_server *server = serve(&run);
    int fd = fuzz_connect();
    FUZZ_CHECK(fd >= 0);
    send_all(&run, fd, bytes, len, cut);
    for (int i = 0; i < 8 && run.n_held > 0; i++) { // answers let the rest be read
        answer_held(&run);
        fuzz_turn(loop);
        read_answers(&run, fd);
    }
    struct proto_server_stats stats;
    proto_server_stats(server, &stats);
    FUZZ_CHECK(stats.requests == run.n_held);
    close(fd);
    fuzz_turn(loop);
    answer_held(&run);
    proto_server_close(server);
    fuzz_turn(loop);
    FUZZ_CHECK(run.n_held == 0);
    return run;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t cut = fuzz_u8(&in);
    size_t len;
    uint8_t *bytes = wire_of(&in, &len);
    struct run whole = connect_and_send(bytes, len, 0);
    if (cut > 0) {
        struct run cuts = connect_and_send(bytes, len, cut);
        FUZZ_CHECK(whole.handled == cuts.handled && whole.hash == cuts.hash);
        FUZZ_CHECK(whole.answer_bytes == cuts.answer_bytes && whole.answer_hash == cuts.answer_hash);
    }
    free(bytes);
    return 0;
}
