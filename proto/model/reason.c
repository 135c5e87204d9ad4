// SPDX-License-Identifier: Apache-2.0
#include "proto/model/reason.h"

#include <string.h>

#define NAME(name, number) [PROTO_REASON_##name] = #name,
static const char *const names[PROTO_REASON_COUNT] = {[PROTO_REASON_NONE] = "", PROTO_REASONS(NAME)};
#undef NAME

const char *proto_reason_name(enum proto_reason reason)
{
    return (uint32_t)reason < PROTO_REASON_COUNT ? names[reason] : "";
}

enum proto_reason proto_reason_of(uint32_t number, const char *name)
{
    if (number != 0)
        return number < PROTO_REASON_COUNT ? (enum proto_reason)number : PROTO_REASON_NONE;
    for (uint32_t i = 1; i < PROTO_REASON_COUNT; i++)
        if (strcmp(names[i], name) == 0)
            return (enum proto_reason)i;
    return PROTO_REASON_NONE;
}
