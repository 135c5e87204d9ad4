// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/lane.h"

#include "coordinator/session/session.h"
#include "coordinator/steps/item.h"
#include "coordinator/steps/sight.h"

struct coordinator_lane *coordinator_lane_of(struct coordinator_steps *steps, struct coordinator_session *s)
{
    (void)steps;
    if (s->lane)
        return s->lane;
    struct coordinator_lane *lane = coordinator_alloc(sizeof(*lane));
    lane->s = s;
    common_list_init(&lane->waiting);
    common_list_init(&lane->moved);
    s->lane = lane;
    return lane;
}

bool coordinator_lane_behind(const struct coordinator_lane *lane, const struct coordinator_item *item)
{
    return lane && lane->appending != item && (lane->appending || !common_list_empty(&lane->waiting)) &&
           (item->ask.append || coordinator_item_looks_ahead(item, lane->s));
}

bool coordinator_lane_wait(struct coordinator_lane *lane, struct coordinator_item *item)
{
    if (lane->s->n_waiting >= COORDINATOR_WAITING_MAX)
        return false;
    coordinator_item_set_state(item, COORDINATOR_ITEM_WAITING);
    lane->s->n_waiting++;
    if (lane->appending == item) // it has had its turn: the others wait for it
        common_list_push(lane->waiting.next, &item->link);
    else
        common_list_push(&lane->waiting, &item->link);
    return true;
}

void coordinator_lane_leave(struct coordinator_lane *lane, struct coordinator_item *item)
{
    common_list_remove(&item->link);
    lane->s->n_waiting--;
}

void coordinator_lane_moved(struct coordinator_steps *steps, struct coordinator_lane *lane)
{
    if (common_list_empty(&lane->waiting) || !common_list_empty(&lane->moved))
        return;
    common_list_push(&steps->lanes, &lane->moved);
    coordinator_turn_mark(&steps->core->turn, COORDINATOR_PHASE_STEPS);
}

void coordinator_lane_append_over(struct coordinator_steps *steps, struct coordinator_lane *lane,
                                  struct coordinator_item *item)
{
    if (!lane || lane->appending != item)
        return;
    lane->appending = NULL;
    coordinator_lane_moved(steps, lane);
}
