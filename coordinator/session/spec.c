// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/spec.h"

#include <string.h>

#include "coordinator/core.h"
#include "coordinator/session/session.h"
#include "proto/model/spec.h"

enum common_code coordinator_spec_check(Banyan__Pb__Spec *m, struct proto_status *status)
{
    struct common_error err;
    if (proto_spec_check(m, &err) != COMMON_OK)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "the specification is wrong: %s", err.message);
    if (m->replicas > COORDINATOR_REPLICAS_MAX)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "replicas is %u: a chunk has at most %d holders", m->replicas,
                                COORDINATOR_REPLICAS_MAX);
    m->chunk_tokens = m->chunk_tokens ? m->chunk_tokens : 256;
    m->replicas = m->replicas ? m->replicas : 1;
    proto_spec_fill(m);
    return COMMON_OK;
}

Banyan__Pb__Spec *coordinator_spec_copy(const Banyan__Pb__Spec *spec)
{
    size_t bytes = banyan__pb__spec__get_packed_size(spec);
    uint8_t *packed = coordinator_alloc(bytes + 1);
    banyan__pb__spec__pack(spec, packed);
    Banyan__Pb__Spec *copy = banyan__pb__spec__unpack(NULL, bytes, packed);
    free(packed);
    if (!copy)
        abort();
    return copy;
}

enum common_code coordinator_name_check(const char *name, struct proto_status *status)
{
    size_t len = strlen(name);
    if (len >= COORDINATOR_NAME_BYTES)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "the name has %zu characters: a session's name has at most %d", len,
                                COORDINATOR_NAME_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
            return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                    "a session's name must be printable");
    if (len && (name[0] == ' ' || name[len - 1] == ' '))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "a session's name must not begin or end with a space");
    // As ids are shown: a name that is another session's id would be taken for that session.
    if (strncmp(name, "0x", 2) == 0 && len > 2 && strspn(name + 2, "0123456789abcdefABCDEF") == len - 2)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "a session's name must not be a number like 0x12ab, as ids are");
    return COMMON_OK;
}
