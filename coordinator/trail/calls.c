// SPDX-License-Identifier: Apache-2.0
#include "coordinator/trail/calls.h"

#include <stddef.h>

#include "coordinator/tenants/quota.h"
#include "proto/model/limits.h"
#include "proto/wire/codec.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name
#define CHANGES      COORDINATOR_TRAIL_CHANGES
#define READS        COORDINATOR_TRAIL_READS
#define NOT          COORDINATOR_TRAIL_NOT

typedef struct coordinator_trail_call call;
typedef struct common_trail_body body;

// ---- what differs from the table --------------------------------------------------------------------

static void look_create(const void *asked, const void *reply, call *out)
{
    (void)asked;
    out->session = reply ? ((const Banyan__Pb__SessionCreateReply *)reply)->session : 0;
}

static void look_drain(const void *asked, const void *reply, call *out)
{
    const Banyan__Pb__WorkerDrainRequest *m = asked;
    (void)reply;
    if (m->ask)
        *out = (call){.kind = NOT};
    else if (m->resume)
        out->what = "worker.resume";
    else if (m->cordon)
        out->what = "worker.cordon";
}

static void look_rebalance(const void *asked, const void *reply, call *out)
{
    (void)reply;
    if (((const Banyan__Pb__RebalanceRequest *)asked)->dry_run)
        *out = (call){.kind = NOT};
}

static void look_scrub(const void *asked, const void *reply, call *out)
{
    (void)reply;
    if (((const Banyan__Pb__ScrubRequest *)asked)->ask)
        *out = (call){.kind = NOT};
}

static void look_backup(const void *asked, const void *reply, call *out)
{
    const Banyan__Pb__BackupRequest *m = asked;
    (void)reply;
    if (m->accept)
        *out = (call){.kind = CHANGES, .what = "backup.accept"};
    else if (m->end)
        *out = (call){.kind = NOT};
}

// ---- arguments ------------------------------------------------------------------------------------------

static void args_create(const void *asked, body *out)
{
    const Banyan__Pb__SessionCreateRequest *m = asked;
    common_trail_put_text(out, "name", m->name[0] ? m->name : NULL);
    if (m->spec) {
        common_trail_put_number(out, "layers", m->spec->layers);
        common_trail_put_number(out, "replicas", m->spec->replicas);
        common_trail_put_number(out, "idle_ttl_ns", m->spec->idle_ttl_ns);
    }
}

static void args_fork(const void *asked, body *out)
{
    const Banyan__Pb__SessionForkRequest *m = asked;
    common_trail_put_id(out, "of", m->session);
    common_trail_put_text(out, "name", m->name[0] ? m->name : NULL);
    common_trail_put_number(out, "length", m->length);
}

static void look_fork(const void *asked, const void *reply, call *out)
{
    (void)asked;
    out->session = reply ? ((const Banyan__Pb__SessionForkReply *)reply)->session : 0;
}

static void args_truncate(const void *asked, body *out)
{
    const Banyan__Pb__SessionTruncateRequest *m = asked;
    if (m->settle)
        common_trail_put_flag(out, "settle");
    else
        common_trail_put_number(out, "length", m->length);
}

static void args_keep(const void *asked, body *out)
{
    const Banyan__Pb__PrefixKeepRequest *m = asked;
    common_trail_put_number(out, "chunks", m->prefix.len / PROTO_PREFIX_HASH);
    common_trail_put_number(out, "ttl_ns", m->ttl_ns);
    if (m->pin)
        common_trail_put_flag(out, "pin");
}

static void args_attach_open(const void *asked, body *out)
{
    const Banyan__Pb__AttachOpenRequest *m = asked;
    common_trail_put_number(out, "first", m->first);
    common_trail_put_number(out, "count", m->count);
}

static void args_attach_commit(const void *asked, body *out)
{
    const Banyan__Pb__AttachCommitRequest *m = asked;
    common_trail_put_number(out, "layer", m->layer);
    common_trail_put_number(out, "first", m->first);
    common_trail_put_number(out, "count", m->count);
}

static void args_read_open(const void *asked, body *out)
{
    const Banyan__Pb__ReadOpenRequest *m = asked;
    common_trail_put_number(out, "first", m->first);
    common_trail_put_number(out, "count", m->count);
}

static void args_quarantine_drop(const void *asked, body *out)
{
    common_trail_put_text(out, "worker", ((const Banyan__Pb__QuarantineDropRequest *)asked)->worker);
}

static void args_drain(const void *asked, body *out)
{
    const Banyan__Pb__WorkerDrainRequest *m = asked;
    common_trail_put_text(out, "worker", m->worker);
    common_trail_put_text(out, "reason", m->reason[0] ? m->reason : NULL);
}

static void args_forget(const void *asked, body *out)
{
    common_trail_put_text(out, "worker", ((const Banyan__Pb__WorkerForgetRequest *)asked)->worker);
}

static void args_token_create(const void *asked, body *out)
{
    const Banyan__Pb__TokenCreateRequest *m = asked;
    common_trail_put_text(out, "name", m->name);
    common_trail_put_text(out, "access", m->access);
    common_trail_put_text(out, "tenant", m->tenant[0] ? m->tenant : NULL);
    common_trail_put_number(out, "life_s", m->life_s);
}

static void args_quota_set(const void *asked, body *out)
{
    const Banyan__Pb__QuotaSetRequest *m = asked;
    common_trail_put_text(out, "tenant", m->tenant[0] ? m->tenant : NULL);
    for (size_t i = 0; i < m->n_quotas; i++) {
        enum coordinator_quota_kind kind;
        if (coordinator_quota_parse(m->quotas[i]->name, &kind)) // others are refused
            common_trail_put_number(out, coordinator_quota_names[kind], m->quotas[i]->max);
    }
}

static void args_token_revoke(const void *asked, body *out)
{
    const Banyan__Pb__TokenRevokeRequest *m = asked;
    common_trail_put_id(out, "token", m->id);
    common_trail_put_text(out, "name", m->name[0] ? m->name : NULL);
}

static void args_backup(const void *asked, body *out)
{
    if (((const Banyan__Pb__BackupRequest *)asked)->without_absent)
        common_trail_put_flag(out, "without_absent");
}

// ---- the table --------------------------------------------------------------------------------------------

// Of these the body's `session` is the session that is meant.
#define SESSION_OF(type) (offsetof(Banyan__Pb__##type, session) + 1)

static const struct row {
    enum coordinator_trail_kind kind;
    const char *what;
    size_t session; // where the body has it, plus 1; 0: nowhere
    void (*look)(const void *asked, const void *reply, call *out); // NULL: it is as it stands here
    void (*args)(const void *asked, body *out);                    // NULL: none
} rows[PROTO_METHOD_LIMIT] = {
    [METHOD(SESSION_CREATE)] = {CHANGES, "session.create", 0, look_create, args_create},
    [METHOD(SESSION_DELETE)] = {CHANGES, "session.delete", SESSION_OF(SessionDeleteRequest), NULL, NULL},
    [METHOD(SESSION_TRUNCATE)] = {CHANGES, "session.truncate", SESSION_OF(SessionTruncateRequest), NULL,
                                  args_truncate},
    [METHOD(SESSION_FORK)] = {CHANGES, "session.fork", 0, look_fork, args_fork},
    [METHOD(PREFIX_KEEP)] = {CHANGES, "prefix.keep", SESSION_OF(PrefixKeepRequest), NULL, args_keep},
    [METHOD(PREFIX_DROP)] = {CHANGES, "prefix.drop", SESSION_OF(PrefixDropRequest), NULL, NULL},
    [METHOD(ATTACH_OPEN)] = {CHANGES, "attach.open", SESSION_OF(AttachOpenRequest), NULL, args_attach_open},
    [METHOD(ATTACH_COMMIT)] = {CHANGES, "attach.commit", SESSION_OF(AttachCommitRequest), NULL,
                               args_attach_commit},
    [METHOD(QUARANTINE_DROP)] = {CHANGES, "quarantine.drop", SESSION_OF(QuarantineDropRequest), NULL,
                                 args_quarantine_drop},
    [METHOD(WORKER_DRAIN)] = {CHANGES, "worker.drain", 0, look_drain, args_drain},
    [METHOD(WORKER_FORGET)] = {CHANGES, "worker.forget", 0, NULL, args_forget},
    [METHOD(REBALANCE)] = {CHANGES, "rebalance", 0, look_rebalance, NULL},
    [METHOD(SCRUB)] = {CHANGES, "scrub", SESSION_OF(ScrubRequest), look_scrub, NULL},
    [METHOD(TOKEN_CREATE)] = {CHANGES, "token.create", 0, NULL, args_token_create},
    [METHOD(TOKEN_REVOKE)] = {CHANGES, "token.revoke", 0, NULL, args_token_revoke},
    [METHOD(QUOTA_SET)] = {CHANGES, "quota.set", 0, NULL, args_quota_set},
    [METHOD(READ_OPEN)] = {READS, "read.open", SESSION_OF(ReadOpenRequest), NULL, args_read_open},
    [METHOD(BACKUP)] = {READS, "backup", 0, look_backup, args_backup},
    // Pieces of a backup that is recorded
    [METHOD(BACKUP_READ)] = {NOT, NULL, 0, NULL, NULL},
    // Steps, thousands a second: docs/operating/audit.md
    [METHOD(ATTEND)] = {NOT, NULL, 0, NULL, NULL},
    // What only says something
    [METHOD(CLUSTER_INFO)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_OPEN)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_CLOSE)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_INFO)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_LIST)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_PLAN)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_WATCH)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(SESSION_STEP)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(PREFIX_FIND)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(PREFIX_LIST)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(QUARANTINE_LIST)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(EVENTS)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(TOKEN_LIST)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(QUOTA_SHOW)] = {NOT, NULL, 0, NULL, NULL},
    // Of workers: that one has joined, and has gone, is an event (trail.c)
    [METHOD(REGISTER)] = {NOT, NULL, 0, NULL, NULL},
    [METHOD(HEARTBEAT)] = {NOT, NULL, 0, NULL, NULL},
};

static const struct row *row_of(uint32_t method)
{
    return method < PROTO_METHOD_LIMIT && rows[method].kind ? &rows[method] : NULL;
}

bool coordinator_trail_knows(uint32_t method)
{
    return row_of(method) != NULL;
}

struct coordinator_trail_call coordinator_trail_call(uint32_t method, const ProtobufCMessage *asked,
                                                     const ProtobufCMessage *reply)
{
    const struct row *row = row_of(method);
    if (!row || row->kind == NOT)
        return (call){.kind = NOT};
    call out = {.kind = row->kind, .what = row->what};
    if (row->session)
        out.session = *(const uint64_t *)((const char *)asked + row->session - 1);
    if (row->look)
        row->look(asked, reply, &out);
    return out;
}

void coordinator_trail_call_args(uint32_t method, const ProtobufCMessage *asked,
                                 struct common_trail_body *out)
{
    const struct row *row = row_of(method);
    if (row && row->args)
        row->args(asked, out);
}

bool coordinator_trail_may_have_changed(enum common_code code)
{
    switch (code) {
    case COMMON_OK:
    case COMMON_CANCELLED:
    case COMMON_UNKNOWN:
    case COMMON_DEADLINE_EXCEEDED:
    case COMMON_INTERNAL:
    case COMMON_UNAVAILABLE:
    case COMMON_DATA_LOSS:
        return true;
    default:
        return false;
    }
}
