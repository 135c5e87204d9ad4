// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/lanes.h"

#include <stdlib.h>

#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/keep.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/run.h"
#include "coordinator/steps/sight.h"
#include "coordinator/steps/watch.h"

static void let_in(struct coordinator_lane *lane)
{
    struct coordinator_session *s = lane->s;
    while (!common_list_empty(&lane->waiting) && coordinator_session_open(s)) {
        struct coordinator_item *item = common_list_entry(lane->waiting.next, struct coordinator_item, link);
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
    while (!common_list_empty(&lane->waiting)) {
        struct coordinator_item *item = common_list_entry(lane->waiting.next, struct coordinator_item, link);
        coordinator_lane_leave(lane, item);
        coordinator_item_refuse(item, code, "", text);
        coordinator_item_finish(item);
    }
    coordinator_watch_lane_gone(lane);
    coordinator_keep_lane_gone(steps, lane);
    common_list_remove(&lane->moved);
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
            coordinator_lane_moved(steps, s->lane);
    while (!common_list_empty(&steps->lanes)) {
        struct coordinator_lane *lane = common_list_entry(steps->lanes.next, struct coordinator_lane, moved);
        common_list_remove(&lane->moved);
        let_in(lane);
    }
}
