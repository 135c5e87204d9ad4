// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/dispatch.h"

#include <stdlib.h>

#include "coordinator/cluster/plan.h"
#include "coordinator/steps/queue.h"
#include "coordinator/steps/run.h"
#include "coordinator/steps/sending.h"

static void queue_free(struct coordinator_queue *queue)
{
    common_list_remove(&queue->link);
    common_list_remove(&queue->dirty);
    coordinator_plan_queue_gone(queue->plan);
    coordinator_fair_fini(&queue->small);
    coordinator_fair_fini(&queue->big);
    free(queue);
}

// Its plan has retired. Nothing is pushed to it any more: who is sent another way waits for a while first.
static void reroute_all(struct coordinator_fair *fair)
{
    for (struct common_list *link; (link = coordinator_fair_next(fair));) {
        coordinator_fair_remove(fair, link);
        coordinator_item_reroute(common_list_entry(link, struct coordinator_item, link));
    }
}

static void queue_pump(struct coordinator_queue *queue)
{
    const struct coordinator_plan *plan = queue->plan;
    if (queue->steps->core->stopping)
        return;
    if (plan->state == COORDINATOR_PLAN_RETIRED) {
        reroute_all(&queue->small);
        reroute_all(&queue->big);
        if (!queue->small_in_flight && !queue->big_in_flight)
            queue_free(queue);
        return;
    }
    if (plan->state != COORDINATOR_PLAN_READY)
        return;
    if (queue->small.n && !queue->small_in_flight)
        coordinator_frame_send_small(queue);
    while (queue->big.n && queue->big_in_flight < COORDINATOR_BIG_FRAMES)
        coordinator_frame_send_big(queue);
}

void coordinator_queues_take_plans(struct coordinator_steps *steps)
{
    struct coordinator_plan *plan;
    while ((plan = coordinator_plans_take_changed(steps->cluster)))
        if (plan->queue)
            coordinator_queue_mark(plan->queue);
}

void coordinator_queues_drain(struct coordinator_steps *steps)
{
    while (!common_list_empty(&steps->dirty)) {
        struct coordinator_queue *queue =
            common_list_entry(steps->dirty.next, struct coordinator_queue, dirty);
        common_list_remove(&queue->dirty);
        queue_pump(queue);
    }
}

void coordinator_queues_free(struct coordinator_steps *steps)
{
    while (!common_list_empty(&steps->queues))
        queue_free(common_list_entry(steps->queues.next, struct coordinator_queue, link));
}
