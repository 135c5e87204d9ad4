// SPDX-License-Identifier: Apache-2.0
// What a server sends to a client: proto/stream/stream_channel.c with its hello, rpc_channel.c, and the
// answers to calls. Input: u8 how it is cut, then records of frames.h. Each call ends once, whatever comes.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/rpc/rpc.h"
#include "proto/rpc/step.h"
#include "proto/wire/codec.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/world.h"

enum { CALLS = 4 };

static struct common_loop *loop;
static int listening;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "s"};
    fuzz_enter_folder();
    fuzz_quiet();
    FUZZ_CHECK(common_loop_new(&loop) == COMMON_OK);
    listening = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(bind(listening, (const struct sockaddr *)(const void *)&address, sizeof address) == 0);
    FUZZ_CHECK(listen(listening, 8) == 0);
    return 0;
}

static void on_reply(void *arg, const struct proto_reply *reply)
{
    unsigned *ended = arg;
    FUZZ_CHECK(++*ended == 1 && reply->text && common_code_valid((int)reply->code));
    if (reply->code == COMMON_OK)
        FUZZ_CHECK(reply->message && reply->message->body && protobuf_c_message_check(reply->message->body));
}

static void call_all(struct proto_channel *channel, unsigned ended[CALLS], bool made[CALLS])
{
    static const uint32_t methods[CALLS] = {BANYAN__PB__METHOD__METHOD_HEALTH_CHECK,
                                            BANYAN__PB__METHOD__METHOD_ATTEND,
                                            BANYAN__PB__METHOD__METHOD_SESSION_INFO,
                                            BANYAN__PB__METHOD__METHOD_CLUSTER_INFO};
    for (int i = 0; i < CALLS; i++) {
        const ProtobufCMessageDescriptor *type = proto_codec_method(methods[i])->request;
        ProtobufCMessage *body = calloc(1, type->sizeof_message);
        FUZZ_CHECK(body);
        type->message_init(body);
        made[i] = proto_channel_call(channel,
                                     &(struct proto_call){.method = methods[i],
                                                          .body = body,
                                                          .deadline_ns = common_clock_after(COMMON_NS_PER_S),
                                                          .done = on_reply,
                                                          .arg = &ended[i]},
                                     NULL, NULL) == COMMON_OK;
        free(body);
    }
}

static void serve(int fd, const uint8_t *at, size_t left, uint8_t cut)
{
    uint8_t heard[4096];
    uint32_t draw = cut;
    while (left > 0) {
        draw = draw * 1664525u + 1013904223u;
        size_t piece = cut == 0 ? left : 1 + (draw >> 16) % (1 + 16 * (size_t)cut);
        ssize_t sent = send(fd, at, piece < left ? piece : left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0)
            return;
        at += sent;
        left -= (size_t)sent;
        fuzz_turn(loop);
        while (recv(fd, heard, sizeof heard, MSG_DONTWAIT) > 0)
            continue;
    }
}

static void run(const uint8_t *bytes, size_t len, uint8_t cut, unsigned ended[CALLS])
{
    char endpoint[128], folder[100];
    struct proto_channel *channel;
    struct common_error err;
    bool made[CALLS];
    const struct proto_channel_options options = {.name = "client",
                                                  .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                                  .token = "a token of the tests",
                                                  .payload_max = 1 << 16,
                                                  .sums = PROTO_SUMS_NEVER};
    fuzz_world_begin();
    FUZZ_CHECK(getcwd(folder, sizeof folder));
    snprintf(endpoint, sizeof endpoint, "unix://%s/s", folder);
    FUZZ_CHECK(proto_channel_open(loop, endpoint, &options, &channel, &err) == COMMON_OK);
    call_all(channel, ended, made);
    fuzz_turn(loop);
    int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        fuzz_turn(loop);
        serve(fd, bytes, len, cut);
        close(fd);
        fuzz_turn(loop);
    }
    proto_channel_close(channel);
    fuzz_turn(loop);
    for (int i = 0; i < CALLS; i++)
        FUZZ_CHECK(ended[i] == made[i]);
    while ((fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0) // it has dialled again
        close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t cut = fuzz_u8(&in);
    size_t len;
    unsigned ended[CALLS] = {0};
    uint8_t *bytes = fuzz_frames(&in, &len);
    run(bytes, len, cut, ended);
    free(bytes);
    return 0;
}
