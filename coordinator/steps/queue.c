// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/queue.h"

#include "coordinator/cluster/plan.h"
#include "coordinator/steps/frame.h"
#include "coordinator/steps/item.h"

static struct coordinator_queue *queue_of(struct coordinator_steps *steps, struct coordinator_plan *plan)
{
    if (plan->queue)
        return plan->queue;
    struct coordinator_queue *queue = coordinator_alloc(sizeof(*queue));
    queue->steps = steps;
    queue->plan = plan;
    proto_list_init(&queue->small);
    proto_list_init(&queue->big);
    proto_list_init(&queue->dirty);
    proto_list_push(&steps->queues, &queue->link);
    plan->queue = queue;
    return queue;
}

static void queue_free(struct coordinator_queue *queue)
{
    proto_list_remove(&queue->link);
    proto_list_remove(&queue->dirty);
    coordinator_plan_queue_gone(queue->plan);
    free(queue);
}

void coordinator_queue_mark(struct coordinator_queue *queue)
{
    if (!proto_list_empty(&queue->dirty))
        return;
    proto_list_push(&queue->steps->dirty, &queue->dirty);
    coordinator_turn_mark(&queue->steps->core->turn, COORDINATOR_PHASE_FRAMES);
}

void coordinator_queue_push(struct coordinator_steps *steps, struct coordinator_plan *plan,
                            struct coordinator_item *item)
{
    struct coordinator_queue *queue = queue_of(steps, plan);
    proto_list_push(item->way.slabs.n > 1 || item->apart ? &queue->big : &queue->small, &item->link);
    coordinator_queue_mark(queue);
}

// Its plan has retired.
static void reroute_all(struct proto_list *list)
{
    struct proto_list all;
    proto_list_move(list, &all);
    while (!proto_list_empty(&all)) {
        struct coordinator_item *item = proto_list_entry(all.next, struct coordinator_item, link);
        proto_list_remove(&item->link);
        coordinator_item_reroute(item);
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
    if (!proto_list_empty(&queue->small) && !queue->small_in_flight)
        coordinator_frame_send_small(queue);
    while (!proto_list_empty(&queue->big) && queue->big_in_flight < COORDINATOR_BIG_FRAMES)
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
    while (!proto_list_empty(&steps->dirty)) {
        struct coordinator_queue *queue =
            proto_list_entry(steps->dirty.next, struct coordinator_queue, dirty);
        proto_list_remove(&queue->dirty);
        queue_pump(queue);
    }
}

void coordinator_queues_free(struct coordinator_steps *steps)
{
    while (!proto_list_empty(&steps->queues))
        queue_free(proto_list_entry(steps->queues.next, struct coordinator_queue, link));
}
