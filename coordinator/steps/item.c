// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/item.h"

#include "coordinator/session/session.h"
#include "coordinator/steps/call.h"

#define TO(state) (1u << COORDINATOR_ITEM_##state)
const struct common_machine coordinator_item_machine = {
    .name = "item",
    .n = COORDINATOR_ITEM_STATES,
    .states = {"new", "waiting", "placing", "queued", "flying", "retrying", "undoing", "done"},
    .next =
        {
            [COORDINATOR_ITEM_NEW] =
                TO(WAITING) | TO(PLACING) | TO(QUEUED) | TO(RETRYING) | TO(UNDOING) | TO(DONE),
            [COORDINATOR_ITEM_WAITING] = TO(NEW) | TO(UNDOING) | TO(DONE),
            [COORDINATOR_ITEM_PLACING] = TO(NEW) | TO(UNDOING) | TO(DONE),
            [COORDINATOR_ITEM_QUEUED] = TO(FLYING) | TO(RETRYING) | TO(UNDOING) | TO(DONE),
            [COORDINATOR_ITEM_FLYING] = TO(RETRYING) | TO(UNDOING) | TO(DONE),
            [COORDINATOR_ITEM_RETRYING] = TO(NEW) | TO(UNDOING) | TO(DONE),
            [COORDINATOR_ITEM_UNDOING] = TO(RETRYING) | TO(DONE),
            [COORDINATOR_ITEM_DONE] = 0,
        },
};

void coordinator_item_set_state(struct coordinator_item *item, enum coordinator_item_state state)
{
    common_machine_move(&coordinator_item_machine, item->state, state);
    item->state = state;
}

struct coordinator_steps *coordinator_item_steps(const struct coordinator_item *item)
{
    return item->call->steps;
}

struct proto_layer coordinator_item_layer(const struct coordinator_item *item)
{
    return proto_spec_layer(item->way.s->spec, item->ask.layer);
}

struct proto_status *coordinator_item_failure(struct coordinator_item *item)
{
    if (!item->failure)
        item->failure = coordinator_alloc(sizeof(*item->failure));
    return item->failure;
}

bool coordinator_item_refuse(struct coordinator_item *item, enum common_code code, const char *reason,
                             const char *text)
{
    proto_status_set(coordinator_item_failure(item), code, reason, "%s", text);
    item->failure->session = item->ask.session;
    item->failure->layer = item->ask.layer;
    return false;
}

const float *coordinator_item_lse(const struct coordinator_item *item)
{
    const uint8_t *lse = coordinator_call_lse(item->call);
    return lse ? (const float *)(const void *)(lse + item->reply.lse_offset) : NULL;
}

const float *coordinator_item_o(const struct coordinator_item *item)
{
    const uint8_t *o = coordinator_call_o(item->call);
    return o ? (const float *)(const void *)(o + item->reply.o_offset) : NULL;
}

void coordinator_item_enter(struct coordinator_item *item)
{
    struct coordinator_steps *steps = coordinator_item_steps(item);
    common_list_push(&steps->fresh, &item->link);
    coordinator_turn_mark(&steps->core->turn, COORDINATOR_PHASE_STEPS);
}

// ---- what it leaves out -------------------------------------------------------------------------

static void count_missing(struct coordinator_item *item, bool more)
{
    struct coordinator_steps *steps = coordinator_item_steps(item);
    uint64_t bytes = item->way.missing.n * sizeof(*item->way.missing.ranges);
    steps->bytes = more ? steps->bytes + bytes : steps->bytes - bytes;
    item->call->n_missing += more ? item->way.missing.n : -item->way.missing.n;
}

void coordinator_item_take_missing(struct coordinator_item *item, const struct coordinator_missing *missing)
{
    count_missing(item, false);
    coordinator_missing_free(&item->way.missing);
    if (missing)
        item->way.missing = *missing;
    count_missing(item, true);
}

void coordinator_item_clip_missing(struct coordinator_item *item, uint64_t from, uint64_t to)
{
    count_missing(item, false);
    coordinator_missing_clip(&item->way.missing, from, to);
    count_missing(item, true);
}
