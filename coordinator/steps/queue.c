// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/queue.h"

#include "coordinator/cluster/plan.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/item.h"

#define WEIGHT 1 // of every tenant

static struct coordinator_queue *queue_of(struct coordinator_steps *steps, struct coordinator_plan *plan)
{
    if (plan->queue)
        return plan->queue;
    struct coordinator_queue *queue = coordinator_alloc(sizeof(*queue));
    queue->steps = steps;
    queue->plan = plan;
    coordinator_fair_init(&queue->small);
    coordinator_fair_init(&queue->big);
    common_list_init(&queue->dirty);
    common_list_push(&steps->queues, &queue->link);
    plan->queue = queue;
    return queue;
}

static struct coordinator_fair *fair_of(struct coordinator_queue *queue, const struct coordinator_item *item)
{
    return item->way.apart ? &queue->big : &queue->small;
}

void coordinator_queue_mark(struct coordinator_queue *queue)
{
    if (!common_list_empty(&queue->dirty))
        return;
    common_list_push(&queue->steps->dirty, &queue->dirty);
    coordinator_turn_mark(&queue->steps->core->turn, COORDINATOR_PHASE_FRAMES);
}

void coordinator_queue_put(struct coordinator_queue *queue, struct coordinator_item *item)
{
    coordinator_fair_push(fair_of(queue, item), item->way.s->tenant, WEIGHT, &item->link);
}

void coordinator_queue_push(struct coordinator_steps *steps, struct coordinator_plan *plan,
                            struct coordinator_item *item)
{
    struct coordinator_queue *queue = queue_of(steps, plan);
    coordinator_queue_put(queue, item);
    coordinator_queue_mark(queue);
}

void coordinator_queue_leave(struct coordinator_item *item)
{
    coordinator_fair_remove(fair_of(item->way.plan->queue, item), &item->link);
}
