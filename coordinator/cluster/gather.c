// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/gather.h"

#include <assert.h>
#include <stdio.h>

#include "coordinator/core.h"

static void gather_complete(void *arg)
{
    struct coordinator_gather *gather = arg;
    gather->done(gather->arg, gather->code, gather->text);
    free(gather);
}

struct coordinator_gather *coordinator_gather_new(struct coordinator_turn *turn, coordinator_gather_fn done,
                                                  void *arg)
{
    struct coordinator_gather *gather = coordinator_alloc(sizeof(*gather));
    *gather =
        (struct coordinator_gather){.turn = turn, .pending = 1, .done = done, .arg = arg}; // one: the seal
    gather->completion = (struct coordinator_completion){.fn = gather_complete, .arg = gather};
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
    if (!--gather->pending)
        coordinator_turn_complete(gather->turn, &gather->completion);
}

void coordinator_gather_seal(struct coordinator_gather *gather)
{
    coordinator_gather_finish(gather, COMMON_OK, "");
}
