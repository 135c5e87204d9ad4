// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/states.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/session/table.h"

#define DIGITS 16

uint64_t coordinator_states_owner(const char *name)
{
    size_t begin = sizeof(COORDINATOR_STATES_PREFIX) - 1;
    if (strncmp(name, COORDINATOR_STATES_PREFIX, begin) != 0)
        return 0;
    name += begin;
    if (strlen(name) != DIGITS || strspn(name, "0123456789abcdef") != DIGITS)
        return 0;
    return strtoull(name, NULL, 16);
}

struct coordinator_session *coordinator_states_of(const struct coordinator_session *s)
{
    char name[COORDINATOR_NAME_BYTES];
    snprintf(name, sizeof(name), COORDINATOR_STATES_PREFIX "%016" PRIx64, s->id);
    return coordinator_session_named(s->sessions, s->tenant, name);
}

enum common_code coordinator_states_check(const struct coordinator_sessions *sessions, uint32_t tenant,
                                          const char *name, struct proto_status *status)
{
    uint64_t owner = coordinator_states_owner(name);
    const struct coordinator_session *s = owner ? coordinator_session_find(sessions, owner) : NULL;
    if (!owner)
        return COMMON_OK;
    if (!s || s->tenant != tenant)
        return coordinator_session_unknown(owner, status);
    if (coordinator_states_owner(s->name))
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "session %s holds states, and has none of its own", s->name);
    return COMMON_OK;
}

bool coordinator_states_left(const struct coordinator_session *s)
{
    uint64_t owner = coordinator_states_owner(s->name);
    return owner && !coordinator_session_any(s->sessions, owner);
}
