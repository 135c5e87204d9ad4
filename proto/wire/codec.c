// SPDX-License-Identifier: Apache-2.0
#include "proto/wire/codec.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory/block.h"
#include "proto/wire/wire.h"

// ---- methods --------------------------------------------------------------------------------------------

#define METHOD(number, service, verb, request_type, reply_type, again)                                       \
    [BANYAN__PB__METHOD__METHOD_##number] = {BANYAN__PB__METHOD__METHOD_##number, service "." verb,          \
                                             &banyan__pb__##request_type##__descriptor,                      \
                                             &banyan__pb__##reply_type##__descriptor, again}

static const struct proto_method_info methods[PROTO_METHOD_LIMIT] = {
    METHOD(LINK_HELLO, "Link", "Hello", link_hello_request, link_hello_reply, false),
    METHOD(LINK_PROOF, "Link", "Proof", link_proof_request, link_proof_reply, false),
    METHOD(HEALTH_CHECK, "Health", "Check", health_check_request, health_check_reply, true),
    METHOD(CLUSTER_INFO, "Coordinator", "ClusterInfo", cluster_info_request, cluster_info_reply, true),
    METHOD(SESSION_CREATE, "Coordinator", "SessionCreate", session_create_request, session_create_reply,
           true), // by its key
    METHOD(SESSION_OPEN, "Coordinator", "SessionOpen", session_open_request, session_info_reply, true),
    METHOD(SESSION_CLOSE, "Coordinator", "SessionClose", session_close_request, session_close_reply, true),
    METHOD(SESSION_DELETE, "Coordinator", "SessionDelete", session_delete_request, session_delete_reply,
           true),
    METHOD(SESSION_INFO, "Coordinator", "SessionInfo", session_info_request, session_info_reply, true),
    METHOD(SESSION_LIST, "Coordinator", "SessionList", session_list_request, session_list_reply, true),
    METHOD(SESSION_TRUNCATE, "Coordinator", "SessionTruncate", session_truncate_request,
           session_truncate_reply, true),
    METHOD(SESSION_FORK, "Coordinator", "SessionFork", session_fork_request, session_fork_reply, true),
    METHOD(SESSION_PLAN, "Coordinator", "SessionPlan", session_plan_request, session_plan_reply, true),
    METHOD(ATTACH_OPEN, "Coordinator", "AttachOpen", attach_open_request, attach_open_reply, true),
    METHOD(ATTACH_COMMIT, "Coordinator", "AttachCommit", attach_commit_request, attach_commit_reply, true),
    METHOD(READ_OPEN, "Coordinator", "ReadOpen", read_open_request, attach_open_reply, true),
    METHOD(ATTEND, "Coordinator", "Attend", attend_request, attend_reply, true),
    METHOD(SESSION_WATCH, "Coordinator", "SessionWatch", session_watch_request, session_watch_reply, true),
    METHOD(SESSION_STEP, "Coordinator", "SessionStep", session_step_request, session_step_reply, true),
    METHOD(QUARANTINE_LIST, "Coordinator", "QuarantineList", quarantine_list_request, quarantine_list_reply,
           true),
    METHOD(QUARANTINE_DROP, "Coordinator", "QuarantineDrop", quarantine_drop_request, quarantine_drop_reply,
           true),
    METHOD(WORKER_DRAIN, "Coordinator", "WorkerDrain", worker_drain_request, worker_drain_reply, true),
    METHOD(WORKER_FORGET, "Coordinator", "WorkerForget", worker_forget_request, worker_forget_reply, true),
    METHOD(REBALANCE, "Coordinator", "Rebalance", rebalance_request, rebalance_reply, true),
    METHOD(BACKUP, "Coordinator", "Backup", backup_request, backup_reply, false),
    METHOD(BACKUP_READ, "Coordinator", "BackupRead", backup_read_request, backup_read_reply, true),
    METHOD(SCRUB, "Coordinator", "Scrub", scrub_request, scrub_reply, true),
    METHOD(EVENTS, "Coordinator", "Events", events_request, events_reply, true),
    METHOD(TOKEN_CREATE, "Coordinator", "TokenCreate", token_create_request, token_create_reply, false),
    METHOD(TOKEN_LIST, "Coordinator", "TokenList", token_list_request, token_list_reply, true),
    METHOD(TOKEN_REVOKE, "Coordinator", "TokenRevoke", token_revoke_request, token_revoke_reply, true),
    METHOD(QUOTA_SET, "Coordinator", "QuotaSet", quota_set_request, quota_set_reply, true),
    METHOD(QUOTA_SHOW, "Coordinator", "QuotaShow", quota_show_request, quota_show_reply, true),
    METHOD(PREFIX_FIND, "Coordinator", "PrefixFind", prefix_find_request, prefix_find_reply, true),
    METHOD(PREFIX_KEEP, "Coordinator", "PrefixKeep", prefix_keep_request, prefix_keep_reply, true),
    METHOD(PREFIX_LIST, "Coordinator", "PrefixList", prefix_list_request, prefix_list_reply, true),
    METHOD(PREFIX_DROP, "Coordinator", "PrefixDrop", prefix_drop_request, prefix_drop_reply, true),
    METHOD(REGISTER, "Coordinator", "Register", register_request, register_reply, true),
    METHOD(HEARTBEAT, "Coordinator", "Heartbeat", heartbeat_request, heartbeat_reply, true),
    METHOD(CHUNK_PUT, "Worker", "ChunkPut", chunk_put_request, chunk_put_reply, true),
    METHOD(PLAN_INSTALL, "Worker", "PlanInstall", plan_install_request, plan_install_reply, true),
    METHOD(PLAN_DROP, "Worker", "PlanDrop", plan_drop_request, plan_drop_reply, true),
    METHOD(LAYOUT_SET, "Worker", "LayoutSet", layout_set_request, layout_set_reply, true),
    METHOD(SESSION_DROP, "Worker", "SessionDrop", session_drop_request, session_drop_reply, true),
    METHOD(ROWS_PREPARE, "Worker", "RowsPrepare", rows_prepare_request, rows_prepare_reply, true),
    METHOD(ROWS_COMMIT, "Worker", "RowsCommit", rows_commit_request, rows_commit_reply, true),
    METHOD(ROWS_ABORT, "Worker", "RowsAbort", rows_abort_request, rows_abort_reply, true),
    METHOD(CHUNK_COPY, "Worker", "ChunkCopy", chunk_copy_request, chunk_copy_reply, true),
    METHOD(INVENTORY, "Worker", "Inventory", inventory_request, inventory_reply, true),
    METHOD(CHUNK_PULL, "Worker", "ChunkPull", chunk_pull_request, chunk_pull_reply, true),
    METHOD(CHUNK_READ, "Worker", "ChunkRead", chunk_read_request, chunk_read_reply, true),
    METHOD(CHUNK_SUM, "Worker", "ChunkSum", chunk_sum_request, chunk_sum_reply, true),
    METHOD(STEP, "Worker", "Step", step_request, step_reply, true),
    METHOD(MASS, "Worker", "Mass", mass_request, mass_reply, true),
    METHOD(AUDIT, "Worker", "Audit", audit_request, audit_reply, true),
};

const struct proto_method_info *proto_codec_method(uint32_t method)
{
    return method < PROTO_METHOD_LIMIT && methods[method].request ? &methods[method] : NULL;
}

// ---- bounded memory -------------------------------------------------------------------------------------

struct proto_arena_block {
    struct proto_arena_block *next;
    _Alignas(16) uint8_t bytes[];
};

static void *arena_alloc(void *data, size_t size)
{
    struct proto_arena *arena = data;
    if (size > arena->budget - arena->used)
        return NULL;
    size_t rounded = (size + 15) & ~(size_t)15;
    if (rounded > (size_t)(arena->end - arena->at)) {
        size_t cap = rounded < 16 * 1024 ? 16 * 1024 : rounded;
        struct proto_arena_block *block = common_block_take(sizeof *block + cap, COMMON_BLOCK_DAEMONS);
        if (!block) {
            arena->out_of_memory = true;
            return NULL;
        }
        block->next = arena->blocks;
        arena->blocks = block;
        arena->at = block->bytes;
        arena->end = block->bytes + cap;
    }
    void *out = arena->at;
    arena->at += rounded;
    arena->used += size;
    return out;
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer; // all goes at once: proto_arena_fini
}

void proto_arena_init(struct proto_arena *arena)
{
    arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
    arena->blocks = NULL;
    arena->at = arena->inline_bytes;
    arena->end = arena->inline_bytes + sizeof arena->inline_bytes;
    arena->used = arena->budget = 0;
    arena->out_of_memory = false;
}

void proto_arena_allow(struct proto_arena *arena, size_t packed_len)
{
    assert(packed_len <= PROTO_HEADER_MAX);
    arena->budget += 32 * packed_len + 4096;
}

void proto_arena_fini(struct proto_arena *arena)
{
    for (struct proto_arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        common_block_give(block);
    }
    proto_arena_init(arena);
}

enum common_code proto_codec_unpack(struct proto_arena *arena, const ProtobufCMessageDescriptor *descriptor,
                                    const uint8_t *data, size_t len, ProtobufCMessage **out,
                                    struct common_error *err)
{
    if (len > PROTO_HEADER_MAX)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "%s is above %d bytes",
                                descriptor->short_name, PROTO_HEADER_MAX);
    enum common_code code = proto_codec_scan(descriptor, data, len, err);
    if (code != COMMON_OK)
        return code;
    proto_arena_allow(arena, len);
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &arena->allocator, len, data);
    if (!message && arena->out_of_memory)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a %s",
                                descriptor->short_name);
    if (!message)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "malformed %s, or one that unpacks to more than 32 times its size",
                                descriptor->short_name);
    *out = message;
    return COMMON_OK;
}

// ---- received frames ------------------------------------------------------------------------------------

struct proto_box {
    struct proto_message message; // first: a box is found from its message
    struct proto_box *next;
    Banyan__Pb__Header header; // its bytes fields point into the blob
    uint32_t n_described;      // tensors of the header, not yet checked against the payload
    uint64_t offsets[PROTO_TENSORS_MAX], lengths[PROTO_TENSORS_MAX];
    const uint8_t *payload;
    uint64_t payload_len;
    size_t frame_bytes;
    struct proto_arena arena;
};

enum { POOL_MAX = 256, UNKNOWN_MAX = 16, CREDENTIALS_MAX = 256 };

static struct proto_box *box_of(const struct proto_message *message)
{
    return (struct proto_box *)message;
}

void proto_pool_fini(struct proto_pool *pool)
{
    for (struct proto_box *box = pool->idle, *next; box; box = next) {
        next = box->next;
        free(box);
    }
    *pool = (struct proto_pool){0};
}

static struct proto_box *box_take(struct proto_pool *pool)
{
    struct proto_box *box = pool->idle;
    if (box) {
        pool->idle = box->next;
        pool->n_idle--;
    } else {
        box = malloc(sizeof *box);
        if (!box)
            return NULL;
        proto_arena_init(&box->arena);
    }
    box->message.header = NULL;
    box->message.body = NULL;
    box->message.blob = NULL;
    box->message.n_tensors = 0;
    return box;
}

void proto_message_release(struct proto_pool *pool, struct proto_message *message)
{
    if (!message)
        return;
    struct proto_box *box = box_of(message);
    common_blob_unref(message->blob);
    proto_arena_fini(&box->arena);
    if (pool->n_idle >= POOL_MAX) {
        free(box);
        return;
    }
    box->next = pool->idle;
    pool->idle = box;
    pool->n_idle++;
}

size_t proto_message_bytes(const struct proto_message *message)
{
    const struct proto_box *box = box_of(message);
    return box->frame_bytes + box->arena.used;
}

// ---- the header, read by hand: nothing is copied or allocated but a status ------------------------------

static bool read_tensor(struct proto_box *box, const uint8_t *data, size_t len)
{
    if (box->n_described == PROTO_TENSORS_MAX)
        return false;
    uint32_t i = box->n_described++, n_dims = 0, unknown = 0;
    uint64_t dtype = 0, dims[4] = {0}, offset = 0, bytes = 0;
    struct proto_cursor c = {data, data + len};
    while (c.at < c.end) {
        struct proto_field field;
        if (!proto_wire_field(&c, &field))
            return false;
        if (field.number == 2 && field.wire == PROTO_WIRE_BYTES) { // packed dims
            struct proto_cursor run = {field.data, field.data + field.len};
            while (run.at < run.end)
                if (n_dims == 4 || !proto_wire_varint(&run, &dims[n_dims++]))
                    return false;
        } else if (field.number >= 1 && field.number <= 4) {
            if (field.wire != PROTO_WIRE_VARINT || (field.number == 2 && n_dims == 4))
                return false;
            *(field.number == 1   ? &dtype
              : field.number == 2 ? &dims[n_dims++]
              : field.number == 3 ? &offset
                                  : &bytes) = field.value;
        } else if (++unknown > UNKNOWN_MAX) {
            return false;
        }
    }
    box->message.tensors[i].dtype = dtype <= UINT32_MAX ? (uint32_t)dtype : UINT32_MAX;
    box->message.tensors[i].n_dims = n_dims;
    memcpy(box->message.tensors[i].dims, dims, sizeof dims);
    box->offsets[i] = offset;
    box->lengths[i] = bytes;
    return true;
}

static bool read_field(struct proto_box *box, const struct proto_field *field)
{
    static const uint8_t wires[] = {0,
                                    PROTO_WIRE_VARINT,
                                    PROTO_WIRE_FIXED64,
                                    PROTO_WIRE_FIXED64,
                                    PROTO_WIRE_BYTES,
                                    PROTO_WIRE_BYTES,
                                    PROTO_WIRE_BYTES,
                                    PROTO_WIRE_BYTES};
    Banyan__Pb__Header *header = &box->header;
    ProtobufCMessage *status;
    ProtobufCBinaryData bytes = {field->len, (uint8_t *)field->data};
    if (field->wire != wires[field->number])
        return false;
    switch (field->number) {
    case 1:
        header->method = field->value <= UINT32_MAX ? (uint32_t)field->value : UINT32_MAX;
        return true;
    case 2:
        header->request = field->value;
        return true;
    case 3:
        header->remaining_ns = field->value;
        return true;
    case 4:
        header->credentials = bytes;
        return field->len <= CREDENTIALS_MAX;
    case 5:
        if (header->status || proto_codec_unpack(&box->arena, &banyan__pb__status__descriptor, field->data,
                                                 field->len, &status, NULL) != COMMON_OK)
            return false;
        header->status = (Banyan__Pb__Status *)(void *)status;
        return true;
    case 6:
        return read_tensor(box, field->data, field->len);
    default:
        header->body = bytes;
        return true;
    }
}

static bool read_header(struct proto_box *box, const uint8_t *data, size_t len)
{
    struct proto_cursor c = {data, data + len};
    uint32_t unknown = 0;
    banyan__pb__header__init(&box->header);
    box->n_described = 0;
    while (c.at < c.end) {
        struct proto_field field;
        if (!proto_wire_field(&c, &field))
            return false;
        if (field.number == 8) { // the checksum has been judged; nowhere else is it looked for
            if (field.wire != PROTO_WIRE_FIXED64 || c.at != data + 9)
                return false;
        } else if (field.number <= 7 ? !read_field(box, &field) : ++unknown > UNKNOWN_MAX) {
            return false;
        }
    }
    return true;
}

static atomic_uint_least64_t damaged;

uint64_t proto_frames_damaged(void)
{
    return atomic_load_explicit(&damaged, memory_order_relaxed);
}

static enum common_code check_sum(const struct proto_prefix *prefix, const uint8_t *frame, bool *sums,
                                  bool *summed, struct common_error *err)
{
    enum proto_sum sum = proto_frame_sum(prefix, frame);
    *summed = sum == PROTO_SUM_RIGHT;
    *sums = *sums || *summed;
    if (*summed || (sum == PROTO_SUM_NONE && !*sums))
        return COMMON_OK;
    atomic_fetch_add_explicit(&damaged, 1, memory_order_relaxed);
    return common_error_set(err, COMMON_DATA_LOSS, "damaged in transit: a frame of %u + %llu bytes %s",
                            prefix->header_len, (unsigned long long)prefix->payload_len,
                            sum == PROTO_SUM_WRONG ? "does not have its checksum" : "has lost its checksum");
}

enum common_code proto_message_open(struct proto_pool *pool, const struct proto_prefix *prefix,
                                    struct common_blob *blob, size_t offset, bool *sums,
                                    struct proto_message **out, struct common_error *err)
{
    size_t total;
    bool fits = proto_frame_total(prefix, PROTO_HEADER_MAX, SIZE_MAX / 2, &total) && offset <= blob->cap &&
                total <= blob->cap - offset;
    if (!fits)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the frame is shorter than its prefix says");
    const uint8_t *frame = blob->data + offset;
    bool summed;
    enum common_code code = check_sum(prefix, frame, sums, &summed, err);
    if (code != COMMON_OK)
        return code;
    struct proto_box *box = box_take(pool);
    if (!box)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a message");
    if (!read_header(box, frame + PROTO_PREFIX_BYTES, prefix->header_len)) {
        bool out_of_memory = box->arena.out_of_memory;
        proto_message_release(pool, &box->message);
        if (out_of_memory)
            return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a message");
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "malformed header");
    }
    box->message.header = &box->header;
    box->message.summed = summed;
    box->message.blob = common_blob_ref(blob);
    box->payload = frame + proto_frame_payload_at(prefix->header_len);
    box->payload_len = prefix->payload_len;
    box->frame_bytes = total;
    *out = &box->message;
    return COMMON_OK;
}

// Tensors lie one behind the other, each at the next multiple of 64, and fill the payload: there is one way
// to write a frame.
static enum common_code fill_tensors(struct proto_message *message, struct common_error *err)
{
    const struct proto_box *box = box_of(message);
    uint64_t end = 0;
    for (uint32_t i = 0; i < box->n_described; i++) {
        uint32_t dtype = message->tensors[i].dtype, n_dims = message->tensors[i].n_dims;
        size_t bytes = proto_dtype_size(dtype);
        if (bytes == 0 || n_dims < 1)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "tensor %u has the unknown type %u or no dimensions", i, dtype);
        for (uint32_t k = 0; k < n_dims; k++)
            if (!common_size_mul(bytes, (size_t)message->tensors[i].dims[k], &bytes) || bytes > SIZE_MAX / 2)
                return common_error_set(err, COMMON_INVALID_ARGUMENT, "the shape of tensor %u wraps", i);
        if (box->lengths[i] != bytes)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "tensor %u has %llu bytes where its shape says %zu", i,
                                    (unsigned long long)box->lengths[i], bytes);
        uint64_t offset = (end + 63) & ~UINT64_C(63);
        if (box->offsets[i] != offset || offset > box->payload_len || bytes > box->payload_len - offset)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "tensor %u is in the wrong place in the payload", i);
        message->tensors[i].data = box->payload + offset;
        message->tensors[i].bytes = bytes;
        end = offset + bytes;
    }
    if (end != box->payload_len)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "the tensors fill %llu of %llu bytes of payload", (unsigned long long)end,
                                (unsigned long long)box->payload_len);
    message->n_tensors = box->n_described;
    return COMMON_OK;
}

enum common_code proto_message_fill(struct proto_message *message,
                                    const ProtobufCMessageDescriptor *descriptor, struct common_error *err)
{
    struct proto_box *box = box_of(message);
    ProtobufCMessage *body;
    enum common_code code = fill_tensors(message, err);
    if (code == COMMON_OK)
        code = proto_codec_unpack(&box->arena, descriptor, message->header->body.data,
                                  message->header->body.len, &body, err);
    if (code != COMMON_OK) {
        message->n_tensors = 0;
        return code;
    }
    message->body = body;
    return COMMON_OK;
}
