// SPDX-License-Identifier: Apache-2.0
// Writes inputs to begin with into FOLDER/TARGET, from real messages, every method among them: fuzz_seeds
// FOLDER
#include <string.h>
#include <sys/stat.h>

#include "common/memory/blob.h"
#include "proto/model/limits.h"
#include "proto/rights/ticket.h"
#include "proto/stream/stream_hello.h"
#include "proto/wire/codec.h"
#include "proto/wire/frame.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/message.h"
#include "tests/fuzz/seeds.h"

#define CHANNEL_FIRST_ID UINT64_C(0x100000001) // of a channel's first call (common/base/handle.h)

static const char *out;

void seed_put(struct seed *seed, const void *bytes, size_t len)
{
    seed->bytes = realloc(seed->bytes, seed->len + len + 1);
    FUZZ_CHECK(seed->bytes);
    if (len > 0)
        memcpy(seed->bytes + seed->len, bytes, len);
    seed->len += len;
}

void seed_u8(struct seed *seed, uint8_t value)
{
    seed_put(seed, &value, 1);
}

void seed_u16(struct seed *seed, size_t value)
{
    seed_u8(seed, (uint8_t)value);
    seed_u8(seed, (uint8_t)(value >> 8));
}

void seed_write(struct seed *seed, const char *target, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", out, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/seed-%s", out, target, name);
    FILE *file = fopen(path, "wb");
    FUZZ_CHECK(file && fwrite(seed->bytes, 1, seed->len, file) == seed->len && fclose(file) == 0);
    free(seed->bytes);
    *seed = (struct seed){0};
}

static void seed_texts(const char *target, const char *const *texts)
{
    for (int i = 0; texts[i]; i++) {
        struct seed seed = {0};
        char name[16];
        seed_u8(&seed, (uint8_t)(texts[i][0] - '0'));
        seed_put(&seed, texts[i] + 1, strlen(texts[i] + 1));
        snprintf(name, sizeof name, "%d", i);
        seed_write(&seed, target, name);
    }
}

// ---- messages by their descriptors ----------------------------------------------------------------------

static void fill(struct fuzz_input *in, uint8_t *form, size_t *at, const ProtobufCMessageDescriptor *type,
                 int depth)
{
    (void)in;
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        form[(*at)++] = (uint8_t)i;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            if (depth < 3)
                fill(in, form, at, field->descriptor, depth + 1);
            form[(*at)++] = 0xff;
        } else if (field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_BYTES) {
            form[(*at)++] = 0x42;
            form[(*at)++] = 'a';
            form[(*at)++] = 'b';
        } else {
            form[(*at)++] = 1;
        }
    }
}

ProtobufCMessage *seed_full(const ProtobufCMessageDescriptor *type)
{
    static const struct fuzz_known nothing;
    static uint8_t form[1 << 16];
    size_t len = 0;
    fill(NULL, form, &len, type, 0);
    struct fuzz_input in = {form, len};
    return fuzz_message(&in, type, &nothing);
}

static void form_number(struct seed *seed, uint64_t value)
{
    if (value >> 8 == SEED_KNOWN(0) >> 8) {
        seed_u8(seed, (uint8_t)(0x60 + (value & 0x3f)));
    } else if (value < 0x60) {
        seed_u8(seed, (uint8_t)value);
    } else {
        seed_u8(seed, 0xec);
        seed_put(seed, &value, sizeof value);
    }
}

static void form_text(struct seed *seed, const void *bytes, size_t len)
{
    const char *text = bytes;
    if (len >= 2 && text[0] == '?') {
        seed_u8(seed, (uint8_t)atoi(text + 1));
    } else {
        FUZZ_CHECK(len < 0x3f);
        seed_u8(seed, (uint8_t)(0x40 | len));
        seed_put(seed, bytes, len);
    }
}

static void form_value(struct seed *seed, const ProtobufCFieldDescriptor *field, const void *at)
{
    uint64_t value = 0;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        form_text(seed, *(char *const *)at, strlen(*(char *const *)at));
        break;
    case PROTOBUF_C_TYPE_BYTES:
        form_text(seed, ((const ProtobufCBinaryData *)at)->data, ((const ProtobufCBinaryData *)at)->len);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        seed_message(seed, *(ProtobufCMessage *const *)at);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        seed_u8(seed, *(const protobuf_c_boolean *)at ? 1 : 0);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        memcpy(&value, at, 8);
        form_number(seed, value);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        form_number(seed, (uint64_t) * (const double *)at);
        break;
    default:
        memcpy(&value, at, 4);
        form_number(seed, value);
    }
}

static bool is_unset(const ProtobufCFieldDescriptor *field, const uint8_t *at)
{
    static const uint8_t zeros[16];
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        return !**(char *const *)(const void *)at;
    case PROTOBUF_C_TYPE_BYTES:
        return ((const ProtobufCBinaryData *)(const void *)at)->len == 0;
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return memcmp(at, zeros, 8) == 0;
    default:
        return memcmp(at, zeros, 4) == 0;
    }
}

static size_t element(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 8;
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

void seed_message(struct seed *seed, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const uint8_t *at = (const uint8_t *)message + field->offset;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)(const void *)((const uint8_t *)message + field->quantifier_offset);
            const uint8_t *values = *(uint8_t *const *)(const void *)at;
            for (size_t k = 0; k < n; k++) {
                seed_u8(seed, (uint8_t)i);
                form_value(seed, field, values + k * element(field->type));
            }
        } else if (!is_unset(field, at)) {
            seed_u8(seed, (uint8_t)i);
            form_value(seed, field, at);
        }
    }
    seed_u8(seed, 0xff);
}

// ---- frames ---------------------------------------------------------------------------------------------

static void frame_record(struct seed *seed, const struct proto_outgoing *outgoing)
{
    struct proto_scratch scratch = {0};
    struct proto_gather gather;
    struct proto_prefix prefix;
    FUZZ_CHECK(proto_frame_encode(&scratch, outgoing, PROTO_PAYLOAD_MAX, &gather, NULL) == COMMON_OK);
    uint8_t *bytes = malloc(gather.bytes);
    size_t len = 0;
    FUZZ_CHECK(bytes);
    for (size_t i = 0; i < gather.n; i++) {
        memcpy(bytes + len, gather.iov[i].iov_base, gather.iov[i].iov_len);
        len += gather.iov[i].iov_len;
    }
    FUZZ_CHECK(proto_prefix_decode(bytes, &prefix, NULL) == COMMON_OK);
    seed_u8(seed, (uint8_t)(outgoing->kind | (outgoing->summed ? FUZZ_SUM : 0)));
    seed_u16(seed, prefix.header_len);
    seed_u16(seed, prefix.payload_len);
    seed_put(seed, bytes + PROTO_PREFIX_BYTES, prefix.header_len);
    seed_put(seed, bytes + proto_frame_payload_at(prefix.header_len), prefix.payload_len);
    free(bytes);
    proto_scratch_fini(&scratch);
}

static void hello_record(struct seed *seed, uint32_t role, struct proto_hello *hello)
{
    Banyan__Pb__LinkHelloRequest request = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    Banyan__Pb__LinkProofRequest proof = BANYAN__PB__LINK_PROOF_REQUEST__INIT;
    static const struct common_secret secret = {{1, 2, 3}}; // as server.c's
    uint8_t mac[COMMON_MAC_BYTES];
    memset(hello, 0, sizeof *hello);
    for (int i = 0; i < PROTO_NONCE_BYTES; i++)
        hello->accept_nonce[i] = (uint8_t)i; // world.c's
    hello->dial_role = role;
    hello->accept_role = BANYAN__PB__ROLE__ROLE_WORKER;
    request.version = PROTO_VERSION;
    request.role = (Banyan__Pb__Role)role;
    request.nonce = (ProtobufCBinaryData){PROTO_NONCE_BYTES, hello->dial_nonce};
    request.name = (char *)"peer";
    frame_record(seed, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                .method = BANYAN__PB__METHOD__METHOD_LINK_HELLO,
                                                .request = 2,
                                                .remaining_ns = 1000000000,
                                                .body = &request.base});
    if (proto_role_is_daemon(role)) {
        FUZZ_CHECK(proto_hello_proof(&secret, hello, true, mac));
        proof.proof = (ProtobufCBinaryData){sizeof mac, mac};
    }
    frame_record(seed, &(struct proto_outgoing){
                           .kind = PROTO_FRAME_REQUEST,
                           .method = BANYAN__PB__METHOD__METHOD_LINK_PROOF,
                           .request = 4,
                           .remaining_ns = 1000000000,
                           .credentials = proto_role_is_daemon(role) ? NULL : "a token of the tests",
                           .body = &proof.base});
}

static void seed_frames(void)
{
    static const uint8_t rows[128];
    const struct common_slice slice = {rows, 64};
    const struct proto_tensor_out tensors[] = {
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {64}, .pieces = &slice, .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {64}, .pieces = &slice, .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {64}, .pieces = &slice, .n_pieces = 1}};
    for (uint32_t method = 1; method < PROTO_METHOD_LIMIT; method++) {
        const struct proto_method_info *info = proto_codec_method(method);
        for (int reply = 0; info && reply < 2; reply++) {
            char name[32];
            struct seed packed = {0}, frame = {0};
            const ProtobufCMessageDescriptor *type = reply ? info->reply : info->request;
            if (!type)
                continue;
            ProtobufCMessage *body = seed_full(type);
            size_t len = protobuf_c_message_get_packed_size(body);
            uint8_t *bytes = malloc(len + 1);
            FUZZ_CHECK(bytes);
            protobuf_c_message_pack(body, bytes);
            snprintf(name, sizeof name, "%u-%s", method, reply ? "reply" : "request");
            seed_u8(&packed, (uint8_t)(method | (reply ? 0x80 : 0)));
            seed_put(&packed, bytes, len);
            free(bytes);
            seed_write(&packed, "codec", name);
            struct proto_outgoing outgoing = {.kind = reply ? PROTO_FRAME_REPLY : PROTO_FRAME_REQUEST,
                                              .method = method,
                                              .request = 6,
                                              .remaining_ns = reply ? 0 : 1000000000,
                                              .body = body,
                                              .tensors = tensors,
                                              .n_tensors = method % 4,
                                              .summed = method & 1};
            frame_record(&frame, &outgoing);
            seed_write(&frame, "frame", name);
            if (!reply && method >= BANYAN__PB__METHOD__METHOD_HEALTH_CHECK) {
                struct proto_hello hello;
                struct seed stream = {0}, nng = {0};
                uint32_t role = 1 + method % 3;
                seed_u8(&stream, (uint8_t)(method % 5));
                hello_record(&stream, role, &hello);
                frame_record(&stream, &outgoing);
                outgoing.request++;
                frame_record(&stream, &outgoing);
                frame_record(&stream, &(struct proto_outgoing){.kind = PROTO_FRAME_ONE_WAY,
                                                               .method = BANYAN__PB__METHOD__METHOD_CANCEL,
                                                               .request = outgoing.request});
                seed_write(&stream, "stream", name);
                outgoing.credentials = "a token of the tests";
                seed_u8(&nng, (uint8_t)(method % 5));
                frame_record(&nng, &outgoing);
                frame_record(&nng, &outgoing);
                seed_write(&nng, "nng", name);
            }
            fuzz_message_end(body);
        }
    }
}

// A step that is right, of two items: one appends rows that two runs hold, the other only reads; and its
// answer.
static void seed_steps(void)
{
    static const uint8_t rows[256];
    const struct common_slice q = {rows, 192}, kv = {rows, 128};
    const struct proto_tensor_out tensors[] = {
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {192}, .pieces = &q, .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {128}, .pieces = &kv, .n_pieces = 1},
        {.dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {128}, .pieces = &kv, .n_pieces = 1}};
    Banyan__Pb__StepItem items[2] = {BANYAN__PB__STEP_ITEM__INIT, BANYAN__PB__STEP_ITEM__INIT},
                         *both[] = {items, items + 1};
    Banyan__Pb__AppendRun runs[2] = {BANYAN__PB__APPEND_RUN__INIT, BANYAN__PB__APPEND_RUN__INIT},
                          *pair[] = {runs, runs + 1};
    Banyan__Pb__StepRequest request = BANYAN__PB__STEP_REQUEST__INIT;
    Banyan__Pb__StepItemResult results[2] = {BANYAN__PB__STEP_ITEM_RESULT__INIT,
                                             BANYAN__PB__STEP_ITEM_RESULT__INIT},
                               *all[] = {results, results + 1};
    Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
    Banyan__Pb__StepReply reply = BANYAN__PB__STEP_REPLY__INIT;
    uint32_t holders[] = {0, 3};
    struct seed seed = {0};
    for (int i = 0; i < 2; i++) {
        items[i].session = 7;
        items[i].rows = items[i].kv_heads = items[i].q_heads = (uint32_t)(2 - i);
        items[i].q_bytes = i ? 64 : 128;
        items[i].visible = 9;
        runs[i].chunk = 5;
        runs[i].first = (uint64_t)i;
        runs[i].rows = 1;
        runs[i].holders = holders;
        runs[i].n_holders = 2;
    }
    items[0].append = pair;
    items[0].n_append = 2;
    items[0].write = 1;
    items[0].write_end = 2;
    items[0].k_bytes = items[0].v_bytes = 128;
    request.term = request.plan = request.step = 1;
    request.items = both;
    request.n_items = 2;
    frame_record(&seed, &(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                 .method = BANYAN__PB__METHOD__METHOD_STEP,
                                                 .request = 1,
                                                 .remaining_ns = 1000000000,
                                                 .body = &request.base,
                                                 .tensors = tensors,
                                                 .n_tensors = 3});
    seed_write(&seed, "frame", "step");
    status.code = COMMON_ABORTED;
    status.message = (char *)"why";
    results[1].status = &status;
    reply.items = all;
    reply.n_items = 2;
    frame_record(&seed, &(struct proto_outgoing){.kind = PROTO_FRAME_REPLY,
                                                 .method = BANYAN__PB__METHOD__METHOD_STEP,
                                                 .request = 1,
                                                 .body = &reply.base,
                                                 .tensors = tensors,
                                                 .n_tensors = 2});
    seed_write(&seed, "frame", "step-reply");
}

// ---- the rest -------------------------------------------------------------------------------------------

static void seed_sp(void)
{
    static const uint8_t hello[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    static const uint8_t messages[] = {0,    0, 0, 0, 0, 0, 0, 12, 0x80, 0, 0, 1, 1,    2, 3, 4,
                                       5,    6, 7, 8, 0, 0, 0, 0,  0,    0, 0, 8, 0,    0, 0, 1,
                                       0x80, 0, 0, 2, 0, 0, 0, 0,  0,    0, 2, 8, 0x80, 0, 0, 3};
    static const uint8_t more[520];
    struct seed seed = {0};
    seed_u8(&seed, 6);
    seed_u8(&seed, 3);
    seed_put(&seed, hello, sizeof hello);
    seed_put(&seed, messages, sizeof messages);
    seed_put(&seed, more, sizeof more);
    seed_write(&seed, "sp", "messages");
}

static void seed_tickets(void)
{
    static const struct common_secret secret = {{1, 2, 3}};
    const struct proto_ticket ticket = {.session = 7,
                                        .incarnation = 1,
                                        .term = 2,
                                        .first = 3,
                                        .count = 400,
                                        .expires_wall_ns = UINT64_C(1) << 60};
    struct seed seed = {0};
    uint8_t bytes[PROTO_TICKET_MAX];
    size_t len = proto_ticket_make(&secret, &ticket, bytes);
    seed_u8(&seed, 0);
    seed_put(&seed, bytes, len - COMMON_MAC_BYTES);
    seed_write(&seed, "ticket", "form");
    seed_u8(&seed, 1);
    seed_put(&seed, bytes, len);
    seed_write(&seed, "ticket", "whole");
}

static void seed_specs(void)
{
    ProtobufCMessage *full = seed_full(&banyan__pb__spec__descriptor);
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__LayerKind kind = BANYAN__PB__LAYER_KIND__INIT, *kinds[] = {&kind};
    uint32_t of_layers[] = {0, 0, UINT32_MAX}, shares[] = {0, 1, 0};
    float slopes[] = {0.5f, 0.25f};
    struct seed seed = {0};
    uint8_t bytes[1024];
    seed_put(&seed, bytes, protobuf_c_message_pack(full, bytes));
    seed_write(&seed, "spec", "full");
    spec.layers = 2;
    spec.q_heads = spec.kv_heads = 2;
    spec.k_dim = spec.v_dim = 4;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_INT8;
    spec.window = 64;
    spec.forget = 16;
    spec.alibi = spec.sinks = slopes;
    spec.n_alibi = spec.n_sinks = 2;
    seed_put(&seed, bytes, banyan__pb__spec__pack(&spec, bytes));
    seed_write(&seed, "spec", "alike");
    spec = (Banyan__Pb__Spec)BANYAN__PB__SPEC__INIT;
    spec.layers = 3;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_BF16;
    kind.q_heads = kind.kv_heads = 1;
    kind.k_dim = kind.v_dim = 8;
    kind.v_in_k = true;
    kind.mask_chunk = 32;
    spec.kinds = kinds;
    spec.n_kinds = 1;
    spec.layer_kind = of_layers;
    spec.shares = shares;
    spec.n_layer_kind = spec.n_shares = 3;
    seed_put(&seed, bytes, banyan__pb__spec__pack(&spec, bytes));
    seed_write(&seed, "spec", "kinds");
    fuzz_message_end(full);
}

static void seed_files(void)
{
    static const char *const json =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"I8\","
        "\"shape\":[3],"
        "\"data_offsets\":[16,19]},\"c\":{\"dtype\":\"BF16\",\"shape\":[1,119],\"data_offsets\":[18,256]},"
        "\"__metadata__\":{\"format\":\"pt\"}}";
    struct seed seed = {0};
    uint64_t head = strlen(json);
    static const uint8_t data[256];
    seed_u8(&seed, 1);
    seed_put(&seed, json, strlen(json));
    seed_write(&seed, "safetensors", "json");
    seed_u8(&seed, 0);
    seed_put(&seed, &head, sizeof head);
    seed_put(&seed, json, strlen(json));
    seed_put(&seed, data, sizeof data);
    seed_write(&seed, "safetensors", "file");
    seed_u8(&seed, 3);
    seed_put(&seed, "BANYAN BACKUP\n\0\0\1\0\0\0\0\0\0\0", 24);
    seed_put(&seed, data, 104);
    seed_put(&seed, "SQLite format 3", 16);
    seed_put(&seed, data, sizeof data);
    seed_write(&seed, "backup", "head");
}

static void seed_options(void)
{
    static const char config[] =
        "# comment\nflag = true\ntext = \" of \\\"us\\\" \"\nword = two\nnumber = 12\n"
        "size = 64K\nduration = 250us\nreal = 1.5\n";
    static const char *const lines[] = {
        "2listen = tcp://127.0.0.1:1\nstore = x.db\nheartbeat = 1s\nreplicas = "
        "2\n|--max-workers=4|--max-bytes|1G|--log-level=debug",
        "6insecure = true\ncluster = \"us\"\n|--http=127.0.0.1:1|--audit|1000",
        ";name = w0\nstore = dir\nfsync = "
        "always\n|--threads=1|--bind=none|--scrub=24|--store-limit=2G|--numa=none",
        "3coordinator = tcp://a:1,tcp://b:2\nmemory = "
        "2M\n|--listen|tcp://127.0.0.1:0|--advertise=h|--token-file=t",
        "9|--help",
        "8|--version",
        "0|--store=:memory:|--insecure|x",
        NULL};
    struct seed seed = {0};
    seed_put(&seed, config, sizeof config - 1);
    seed_write(&seed, "config", "all");
    for (int i = 0; lines[i]; i++) {
        char name[16];
        seed_u8(&seed, (uint8_t)(lines[i][0] - '0'));
        seed_put(&seed, lines[i] + 1, strlen(lines[i] + 1));
        for (size_t k = 0; k < seed.len; k++)
            if (seed.bytes[k] == '|')
                seed.bytes[k] = 0;
        seed_u8(&seed, 0);
        snprintf(name, sizeof name, "%d", i);
        seed_write(&seed, "options", name);
    }
}

// What a server sends to channel.c's client: the two answers of the hello, then those to its calls, whose ids
// are handles.
static void seed_channel(void)
{
    static const uint32_t methods[] = {16, 44, 37, 32}; // channel.c
    Banyan__Pb__LinkHelloReply hello = BANYAN__PB__LINK_HELLO_REPLY__INIT;
    Banyan__Pb__LinkProofReply proof = BANYAN__PB__LINK_PROOF_REPLY__INIT;
    uint8_t nonce[PROTO_NONCE_BYTES] = {1};
    hello.version = PROTO_VERSION;
    hello.role = BANYAN__PB__ROLE__ROLE_COORDINATOR;
    hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    for (uint64_t cut = 0; cut < 3; cut++) {
        struct seed seed = {0};
        char name[16];
        seed_u8(&seed, (uint8_t)cut);
        frame_record(&seed, &(struct proto_outgoing){
                                .kind = PROTO_FRAME_REPLY, .method = 1, .request = 1, .body = &hello.base});
        frame_record(&seed, &(struct proto_outgoing){
                                .kind = PROTO_FRAME_REPLY, .method = 2, .request = 2, .body = &proof.base});
        for (uint64_t i = 0; i < 4; i++) {
            ProtobufCMessage *body = seed_full(proto_codec_method(methods[i])->reply);
            Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
            status.code = COMMON_ABORTED;
            status.message = (char *)"why";
            frame_record(&seed, &(struct proto_outgoing){.kind = PROTO_FRAME_REPLY,
                                                         .method = methods[i],
                                                         .request = CHANNEL_FIRST_ID + i,
                                                         .status = cut == 1 ? &status : NULL,
                                                         .body = cut == 1 ? NULL : body});
            fuzz_message_end(body);
        }
        snprintf(name, sizeof name, "%u", (unsigned)cut);
        seed_write(&seed, "channel", name);
    }
}

static void seed_http(void)
{
    static const char *const requests[] = {
        "GET /livez?verbose HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n",
        "HEAD /readyz?exclude=a%20b HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "GET /api/v1/sessions?after=1&watch=1 HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer x\r\n"
        "If-None-Match: \"a\"\r\nSec-Fetch-Site: none\r\nX-Banyan: 1\r\n\r\n",
        "POST /livez HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
        "GET /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        NULL};
    static const char *const paths[] = {"/",
                                        "/app.js",
                                        "/api/v1/cluster",
                                        "/api/v1/workers",
                                        "/api/v1/plans",
                                        "/api/v1/plans/0000000000000001",
                                        "/api/v1/sessions",
                                        "/api/v1/sessions/0000000000000001",
                                        "/api/v1/sessions/0000000000000001/mass",
                                        "/api/v1/sessions/0000000000000001/trace",
                                        "/api/v1/events",
                                        NULL};
    static const char *const queries[] = {"", "limit=10&after=3", "sort=name&order=desc&filter=a%20b",
                                          "watch=1&layer=2&bins=8&heads=1"};
    struct seed seed = {0};
    for (int i = 0; requests[i]; i++) {
        char name[16];
        seed_u8(&seed, (uint8_t)i);
        seed_put(&seed, requests[i], strlen(requests[i]));
        snprintf(name, sizeof name, "%d", i);
        seed_write(&seed, "http", name);
    }
    for (int i = 0; paths[i]; i++) {
        char name[16];
        seed_u8(&seed, i % 2 ? 0x30 : 0x3f & ~2);
        seed_put(&seed, paths[i], strlen(paths[i]) + 1);
        seed_put(&seed, queries[i % 4], strlen(queries[i % 4]) + 1);
        if (i % 2 == 0) {
            seed_put(&seed, "127.0.0.1:80", 13);
            seed_put(&seed, "\"tag\"", 6);
            seed_put(&seed, "same-origin", 12);
        }
        seed_put(&seed, "1", 2);
        snprintf(name, sizeof name, "%d", i);
        seed_write(&seed, "dashboard", name);
    }
}

int main(int argc, char **argv)
{
    static const char *const texts[] = {"0nng+tcp://127.0.0.1:7411",
                                        "0tcp://[::1]:0,unix:///run/b.sock",
                                        "0tcp://0.0.0.0:65535",
                                        "0tcp://host.example:1",
                                        "100-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                        "1aaaaaaaaaaaaaaaabbbbbbbbc",
                                        "2verbose&exclude=a%20b&after=%41+x&q",
                                        "3text/plain;q=0.5, application/openmetrics-text; version=1.0.0",
                                        "3[::1]:8080",
                                        "3localhost:80",
                                        "464K",
                                        "41T",
                                        "4250us",
                                        "41h",
                                        "418446744073709551615",
                                        NULL};
    static const char *const secrets[] = {
        "10123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef\n",
        "0a token of 8\n",
        "012345678",
        "0\n",
        "1xyz",
        NULL};
    if (argc != 2) {
        fprintf(stderr, "Usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    out = argv[1];
    seed_frames();
    seed_steps();
    seed_sp();
    seed_tickets();
    seed_specs();
    seed_files();
    seed_options();
    seed_texts("text", texts);
    seed_texts("secret", secrets);
    seed_channel();
    seed_http();
    seed_cluster();
    seed_snapshot();
    seed_disk();
    seed_tls();
    return 0;
}
