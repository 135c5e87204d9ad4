// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/access.h"

#include "proto/wire/codec.h"

#define R (1u << PROTO_ACCESS_READ_ONLY)
#define U (1u << PROTO_ACCESS_USER)
#define O (1u << PROTO_ACCESS_OPERATOR)
#define A (1u << PROTO_ACCESS_ADMIN)

// Read-only and user touch their own tenant's sessions alone, whatever the method: that is for the look-up of
// a session (session/table.h), not for this table. Operators see what is known of all sessions, but no K, V
// or answers.
static const uint8_t table[PROTO_METHOD_LIMIT] = {
    [BANYAN__PB__METHOD__METHOD_HEALTH_CHECK] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_CLUSTER_INFO] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_CREATE] = U | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_OPEN] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_CLOSE] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_DELETE] = U | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_INFO] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_LIST] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE] = U | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_FORK] = U | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_PLAN] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_WATCH] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_SESSION_STEP] = R | U | A, // it has q and o
    [BANYAN__PB__METHOD__METHOD_ATTACH_OPEN] = U | A,
    [BANYAN__PB__METHOD__METHOD_ATTACH_COMMIT] = U | A,
    [BANYAN__PB__METHOD__METHOD_READ_OPEN] = R | U | A,
    [BANYAN__PB__METHOD__METHOD_ATTEND] = R | U | A, // read-only: where nothing is appended
    [BANYAN__PB__METHOD__METHOD_PREFIX_FIND] = R | U | A,
    [BANYAN__PB__METHOD__METHOD_PREFIX_KEEP] = U | A,
    [BANYAN__PB__METHOD__METHOD_PREFIX_LIST] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_PREFIX_DROP] = U | O | A,
    [BANYAN__PB__METHOD__METHOD_EVENTS] = R | U | O | A,
    [BANYAN__PB__METHOD__METHOD_QUARANTINE_LIST] = O | A,
    [BANYAN__PB__METHOD__METHOD_QUARANTINE_DROP] = O | A,
    [BANYAN__PB__METHOD__METHOD_WORKER_DRAIN] = O | A,
    [BANYAN__PB__METHOD__METHOD_WORKER_FORGET] = O | A,
    [BANYAN__PB__METHOD__METHOD_REBALANCE] = O | A,
    [BANYAN__PB__METHOD__METHOD_SCRUB] = O | A,
    [BANYAN__PB__METHOD__METHOD_BACKUP] = O | A,
    [BANYAN__PB__METHOD__METHOD_BACKUP_READ] = O | A,
    [BANYAN__PB__METHOD__METHOD_QUOTA_SET] = A,
    [BANYAN__PB__METHOD__METHOD_QUOTA_SHOW] =
        R | U | O | A, // their own tenant's, but for operators and admins
    [BANYAN__PB__METHOD__METHOD_TOKEN_CREATE] = A,
    [BANYAN__PB__METHOD__METHOD_TOKEN_LIST] = A,
    [BANYAN__PB__METHOD__METHOD_TOKEN_REVOKE] = A,
};

bool coordinator_access_known(uint32_t method)
{
    return method < PROTO_METHOD_LIMIT && table[method] != 0;
}

bool coordinator_access_allows(enum proto_access access, uint32_t method)
{
    return method < PROTO_METHOD_LIMIT && access > PROTO_ACCESS_NONE && access < PROTO_ACCESSES &&
           (table[method] >> access & 1);
}

static bool appends(const struct proto_message *message)
{
    const Banyan__Pb__AttendRequest *m = (const void *)message->body;
    for (size_t i = 0; i < m->n_items; i++)
        if (m->items[i]->append)
            return true;
    return false;
}

enum common_code coordinator_access_permits(const struct proto_request *request, struct common_error *err)
{
    const struct proto_message *message = proto_request_message(request);
    const struct proto_identity *who = proto_request_identity(request);
    uint32_t method = message->header->method;
    if (proto_request_is_daemon(request))
        return COMMON_OK;
    // Only methods that are served come here, and each of them has a name.
    if (!coordinator_access_allows(who->access, method))
        return common_error_set(err, COMMON_PERMISSION_DENIED,
                                "a token with access '%s' does not permit %s: an admin can create another "
                                "('banyanctl token create')",
                                proto_access_name(who->access), proto_codec_method(method)->name);
    if (who->access == PROTO_ACCESS_READ_ONLY && method == BANYAN__PB__METHOD__METHOD_ATTEND &&
        appends(message))
        return common_error_set(err, COMMON_PERMISSION_DENIED,
                                "a token with access 'read-only' does not permit appends: an admin can "
                                "create another ('banyanctl token create')");
    return COMMON_OK;
}
