// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/lane.h"

#include "coordinator/sessions/session.h"
#include "coordinator/sessions/table.h"
#include "coordinator/steps/admit.h"
#include "coordinator/steps/item.h"
#include "coordinator/steps/keep.h"
#include "coordinator/steps/watch.h"

struct coordinator_lane *coordinator_lane_of(struct coordinator_steps *steps, struct coordinator_session *s)
{
    (void)steps;
    if (s->lane)
        return s->lane;
    struct coordinator_lane *lane = coordinator_alloc(sizeof(*lane));
    lane->s = s;
    proto_list_init(&lane->waiting);
    proto_list_init(&lane->moved);
    s->lane = lane;
    return lane;
}

bool coordinator_lane_behind(const struct coordinator_lane *lane, const struct coordinator_item *item)
{
    return lane && lane->appending != item && (lane->appending || !proto_list_empty(&lane->waiting)) &&
           (item->ask.append || coordinator_item_looks_ahead(item, lane->s));
}

bool coordinator_lane_wait(struct coordinator_lane *lane, struct coordinator_item *item)
{
    if (lane->s->n_waiting >= COORDINATOR_WAITING_MAX)
        return false;
    coordinator_item_set_state(item, COORDINATOR_ITEM_WAITING);
    lane->s->n_waiting++;
    if (lane->appending == item) // it has had its turn: the others wait for it
        proto_list_push(lane->waiting.next, &item->link);
    else
        proto_list_push(&lane->waiting, &item->link);
    return true;
}

void coordinator_lane_leave(struct coordinator_lane *lane, struct coordinator_item *item)
{
    proto_list_remove(&item->link);
    lane->s->n_waiting--;
}

static void lane_moved(struct coordinator_steps *steps, struct coordinator_lane *lane)
{
    if (proto_list_empty(&lane->waiting) || !proto_list_empty(&lane->moved))
        return;
    proto_list_push(&steps->lanes, &lane->moved);
    coordinator_turn_mark(&steps->core->turn, COORDINATOR_PHASE_STEPS);
}

void coordinator_lane_append_over(struct coordinator_steps *steps, struct coordinator_lane *lane,
                                  struct coordinator_item *item)
{
    if (!lane || lane->appending != item)
        return;
    lane->appending = NULL;
    lane_moved(steps, lane);
}

static void let_in(struct coordinator_lane *lane)
{
    struct coordinator_session *s = lane->s;
    while (!proto_list_empty(&lane->waiting) && coordinator_session_open(s)) {
        struct coordinator_item *item = proto_list_entry(lane->waiting.next, struct coordinator_item, link);
        if (lane->appending && lane->appending != item &&
            (item->ask.append || coordinator_item_looks_ahead(item, s)))
            break;
        coordinator_lane_leave(lane, item);
        coordinator_item_set_state(item, COORDINATOR_ITEM_NEW);
        coordinator_item_go(item);
    }
}

// The session is gone.
static void lane_end(struct coordinator_steps *steps, struct coordinator_lane *lane)
{
    struct coordinator_session *s = lane->s;
    const char *text;
    enum common_code code = coordinator_gone(steps->core, &text);
    lane->appending = NULL;
    while (!proto_list_empty(&lane->waiting)) {
        struct coordinator_item *item = proto_list_entry(lane->waiting.next, struct coordinator_item, link);
        coordinator_lane_leave(lane, item);
        coordinator_item_refuse(item, code, "", text);
        coordinator_item_finish(item);
    }
    coordinator_watch_lane_gone(lane);
    coordinator_keep_lane_gone(steps, lane);
    proto_list_remove(&lane->moved);
    s->lane = NULL;
    free(lane);
}

void coordinator_lanes_drain(struct coordinator_steps *steps)
{
    struct coordinator_session *s;
    while ((s = coordinator_sessions_take_gone(steps->sessions)))
        if (s->lane)
            lane_end(steps, s->lane);
    while ((s = coordinator_sessions_take_opened(steps->sessions)))
        if (s->lane)
            lane_moved(steps, s->lane);
    while (!proto_list_empty(&steps->lanes)) {
        struct coordinator_lane *lane = proto_list_entry(steps->lanes.next, struct coordinator_lane, moved);
        proto_list_remove(&lane->moved);
        let_in(lane);
    }
}
