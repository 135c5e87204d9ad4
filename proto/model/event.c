// SPDX-License-Identifier: Apache-2.0
#include "proto/model/event.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name, *about;
    uint32_t most, seconds;
} kinds[PROTO_EVENT_KIND_COUNT] = {
#define PROTO_EVENT_ONE(kind, name, most, seconds, what) [PROTO_EVENT_##kind] = {name, what, most, seconds},
    PROTO_EVENT_KINDS(PROTO_EVENT_ONE)
#undef PROTO_EVENT_ONE
};
static const char *const severities[PROTO_EVENT_SEVERITIES] = {"info", "warn", "error"};

_Static_assert(PROTO_EVENT_KIND_COUNT <= PROTO_EVENT_KINDS_MAX, "a filter is 64 bits");

const char *proto_event_kind_name(enum proto_event_kind kind)
{
    assert(kind < PROTO_EVENT_KIND_COUNT);
    return kinds[kind].name;
}

const char *proto_event_kind_about(enum proto_event_kind kind)
{
    assert(kind < PROTO_EVENT_KIND_COUNT);
    return kinds[kind].about;
}

uint32_t proto_event_kind_most(enum proto_event_kind kind)
{
    assert(kind < PROTO_EVENT_KIND_COUNT);
    return kinds[kind].most;
}

uint32_t proto_event_kind_seconds(enum proto_event_kind kind)
{
    assert(kind < PROTO_EVENT_KIND_COUNT);
    return kinds[kind].seconds;
}

const char *proto_event_severity_name(enum proto_event_severity severity)
{
    assert(severity < PROTO_EVENT_SEVERITIES);
    return severities[severity];
}

uint64_t proto_event_kinds(const char *word)
{
    size_t len = strlen(word);
    uint64_t found = 0;
    for (int i = 0; len && i < PROTO_EVENT_KIND_COUNT; i++) {
        const char *name = kinds[i].name;
        if (strcmp(name, word) == 0)
            return UINT64_C(1) << i;
        if (strcspn(name, "-") == len && memcmp(name, word, len) == 0)
            found |= UINT64_C(1) << i;
    }
    return found;
}

bool proto_event_severity_parse(const char *word, enum proto_event_severity *out)
{
    for (int i = 0; i < PROTO_EVENT_SEVERITIES; i++)
        if (strcmp(severities[i], word) == 0) {
            *out = (enum proto_event_severity)i;
            return true;
        }
    return false;
}
