// SPDX-License-Identifier: Apache-2.0
#include <assert.h>
#include <stdio.h>

#include "coordinator/state.h"

struct coordinator_gather *
coordinator_gather_new(void (*done)(void *arg, enum common_code code, const char *text), void *arg)
{
    struct coordinator_gather *gather = coordinator_alloc(sizeof(*gather));
    *gather = (struct coordinator_gather){.pending = 1, .done = done, .arg = arg}; // one for the seal
    return gather;
}

void coordinator_gather_add(struct coordinator_gather *gather)
{
    gather->pending++;
}

void coordinator_gather_finish(struct coordinator_gather *gather, enum common_code code, const char *text)
{
    assert(gather->pending > 0);
    if (gather->code == COMMON_OK && code != COMMON_OK) {
        gather->code = code;
        snprintf(gather->text, sizeof(gather->text), "%s", text);
    }
    if (--gather->pending)
        return;
    gather->done(gather->arg, gather->code, gather->text);
    free(gather);
}

void coordinator_gather_seal(struct coordinator_gather *gather)
{
    coordinator_gather_finish(gather, COMMON_OK, "");
}

void coordinator_gather_stored(void *gather, enum common_code code, const char *text)
{
    coordinator_gather_finish(gather, code, text);
}

void *coordinator_scratch(struct coordinator *c, size_t bytes)
{
    if (bytes > c->scratch_bytes) {
        void *scratch = realloc(c->scratch, bytes);
        if (!scratch)
            return NULL;
        c->scratch = scratch;
        c->scratch_bytes = bytes;
    }
    return c->scratch;
}
