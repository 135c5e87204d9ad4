// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/cluster.h"

#include <string.h>

#include "common/base/clock.h"
#include "proto/rpc/rpc.h"
#include "proto/wire/codec.h"
#include "tests/sim/sim_cluster.h"
#include "worker/core/state.h"

enum { SERVERS_MAX = 8, CALLS_MAX = 256, TENSOR_UNIT = 16, TENSORS_BYTES = 255 * TENSOR_UNIT };
#define MEMORY (UINT64_C(4) << 20) // of each worker

struct call {
    bool done;
    uint64_t id;
    uint32_t server, method;
    enum common_code code;
};

static struct {
    struct sim_cluster *cluster;
    const struct fuzz_server *servers;
    uint32_t n_servers;
    struct common_loop *loop; // the peer's
    struct proto_channel *channels[SERVERS_MAX];
    struct fuzz_known known;
    struct call calls[CALLS_MAX];
    uint32_t n_calls, n_open;
    bool guarded; // a token was made: who shows none is let in no more
} f;

static uint8_t numbers[TENSORS_BYTES]; // what all tensors have

// ---- the peer -------------------------------------------------------------------------------------------

static void link_to(uint32_t at)
{
    const struct fuzz_server *server = &f.servers[at];
    bool daemon = server->role != BANYAN__PB__ROLE__ROLE_CLIENT;
    struct proto_channel_options options = {.name = "peer",
                                            .role = server->role,
                                            .secret = daemon ? &f.cluster->secret : NULL};
    struct common_error err;
    proto_channel_close(f.channels[at]);
    f.channels[at] = NULL;
    FUZZ_CHECK(proto_channel_open(f.loop, server->endpoint, &options, &f.channels[at], &err) == COMMON_OK);
}

static void on_reply(void *arg, const struct proto_reply *reply)
{
    struct call *call = arg;
    FUZZ_CHECK(!call->done); // once
    call->done = true;
    call->code = reply->code;
    f.n_open--;
    FUZZ_CHECK(common_code_valid((int)reply->code) && reply->text);
    FUZZ_CHECK(reply->code != COMMON_INTERNAL); // our bug
    if (reply->code == COMMON_OK && call->method == BANYAN__PB__METHOD__METHOD_TOKEN_CREATE)
        f.guarded = true;
    if (reply->code == COMMON_OK && reply->message && reply->message->body)
        fuzz_know_message(&f.known, reply->message->body);
}

static struct call *ask(struct fuzz_input *in)
{
    uint8_t whom = fuzz_u8(in), which = fuzz_u8(in), how = fuzz_u8(in);
    uint32_t at = whom % f.n_servers, n_methods = 0;
    const struct fuzz_server *server = &f.servers[at];
    while (server->methods[n_methods])
        n_methods++;
    uint32_t method = server->methods[which % n_methods];
    ProtobufCMessage *body = fuzz_message(in, proto_codec_method(method)->request, &f.known);
    static const uint64_t deadlines[] = {1000 * COMMON_NS_PER_MS, 10 * COMMON_NS_PER_S, COMMON_NS_PER_MS,
                                         100 * COMMON_NS_PER_MS};
    struct proto_tensor_out tensors[3];
    struct common_slice slices[3];
    size_t n_tensors = how & 3;
    for (size_t i = 0; i < n_tensors; i++) {
        size_t bytes = (size_t)fuzz_u8(in) * TENSOR_UNIT;
        bool floats = how & 4;
        slices[i] = (struct common_slice){numbers, bytes};
        tensors[i] = (struct proto_tensor_out){.dtype = floats ? BANYAN__PB__DTYPE__DTYPE_F32
                                                               : BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {floats ? bytes / 4 : bytes},
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
    }
    struct call *call = &f.calls[f.n_calls];
    *call = (struct call){.server = at, .method = method};
    const struct proto_call out = {.method = method,
                                   .body = body,
                                   .tensors = tensors,
                                   .n_tensors = n_tensors,
                                   .deadline_ns = common_clock_after(deadlines[how >> 3 & 3]),
                                   .done = on_reply,
                                   .arg = call};
    bool sent = proto_channel_call(f.channels[at], &out, &call->id, NULL) == COMMON_OK;
    fuzz_message_end(body);
    if (!sent)
        return NULL;
    f.n_calls++;
    f.n_open++;
    return call;
}

// ---- what must hold -------------------------------------------------------------------------------------

struct state { // that a refused request leaves as it is
    uint64_t batches, chunks, used;
    size_t sessions;
};

static struct state look(void)
{
    struct state state = {.batches = sim_disk_batches(SIM_DISK_PATH)};
    for (uint32_t i = 0; i < f.cluster->options.workers; i++) {
        const struct worker *worker = f.cluster->workers[i]->worker;
        state.chunks += worker_store_chunks(worker->store);
        state.sessions += worker->sessions.count;
    }
    return state;
}

// It was refused for what it says: whatever the state, there is nothing to try.
static bool is_refusal(enum common_code code)
{
    return code == COMMON_INVALID_ARGUMENT || code == COMMON_PERMISSION_DENIED ||
           code == COMMON_UNIMPLEMENTED || code == COMMON_UNAUTHENTICATED;
}

static void ask_and_look(struct fuzz_input *in)
{
    if (f.n_calls == CALLS_MAX)
        return;
    if (f.n_open > 0 || in->left == 0) {
        ask(in);
        return;
    }
    sim_run_until_idle();
    struct state before = look();
    struct call *call = ask(in);
    if (!call || !sim_run_until(&call->done, 100 * COMMON_NS_PER_MS) || !is_refusal(call->code))
        return;
    struct state after = look();
    FUZZ_CHECK(memcmp(&before, &after, sizeof before) == 0);
}

static bool none_open(void *arg)
{
    (void)arg;
    return f.n_open == 0;
}

static void check_end(void)
{
    sim_run_while_not(none_open, NULL, 12 * COMMON_NS_PER_S); // no call waits longer
    FUZZ_CHECK(f.n_open == 0);
    for (uint32_t i = 0; i < f.n_servers; i++)
        proto_channel_close(f.channels[i]);
    struct sim_call *call = sim_cluster_info(f.cluster->client);
    enum common_code code = sim_wait(call);
    FUZZ_CHECK(code == COMMON_OK || (f.guarded && code == COMMON_UNAUTHENTICATED));
    FUZZ_CHECK(sim_tokens_counted(f.cluster));
}

// ---- an input -------------------------------------------------------------------------------------------

// Small tables are made soon, and rare heartbeats leave the events to the input.
static void tune(struct coordinator_options *options)
{
    options->heartbeat_ns = 2 * COMMON_NS_PER_S;
    options->max_sessions = 32;
    options->max_workers = 16;
    options->events = 32;
}

static void begin(const struct fuzz_cluster_options *options)
{
    static const char *const names[] = {"w0", "h0", "s", "w1", "stream", SIM_COORDINATOR};
    memset(&f, 0, sizeof f);
    f.cluster = sim_cluster_new(&(struct sim_cluster_options){
        .workers = options->workers, .memory_bytes = MEMORY, .store = options->store, .tune = tune});
    sim_cluster_start(f.cluster);
    FUZZ_CHECK(common_loop_new(&f.loop) == COMMON_OK);
    sim_loop_name(f.loop, "peer");
    f.servers = options->servers;
    while (f.servers[f.n_servers].endpoint)
        link_to(f.n_servers++);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        fuzz_know_text(&f.known, names[i], strlen(names[i]));
    for (uint32_t i = 0; i < options->workers; i++) {
        fuzz_know_text(&f.known, f.cluster->workers[i]->endpoint, strlen(f.cluster->workers[i]->endpoint));
        fuzz_know_text(&f.known, f.cluster->workers[i]->edge_endpoint,
                       strlen(f.cluster->workers[i]->edge_endpoint));
        fuzz_know_number(&f.known, f.cluster->workers[i]->worker->life);
    }
    for (size_t i = 0; i < sizeof numbers; i++)
        numbers[i] = i % 4 < 2 ? 0 : i % 4 == 2 ? 0x80 : 0x3f; // float32 1.0
}

void fuzz_cluster_run(const struct fuzz_cluster_options *options, const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    begin(options);
    while (in.left > 0) {
        uint8_t what = fuzz_u8(&in);
        if ((what & 7) < 6) {
            ask_and_look(&in);
        } else if ((what & 7) == 6) {
            sim_advance((uint64_t)fuzz_u8(&in) * fuzz_u8(&in) / 2 * COMMON_NS_PER_MS);
        } else if (what & 8) {
            link_to(fuzz_u8(&in) % f.n_servers);
        } else if (f.n_calls > 0) {
            const struct call *last = &f.calls[f.n_calls - 1];
            if (!last->done)
                proto_channel_cancel(f.channels[last->server], last->id);
        }
    }
    check_end();
    common_loop_free(f.loop);
    sim_cluster_free(f.cluster);
}
