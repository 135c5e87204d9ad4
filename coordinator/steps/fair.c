// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/fair.h"

#include <assert.h>
#include <stdlib.h>

struct coordinator_fair_flow {
    struct coordinator_fair_flow *chain; // of its bucket, or of the spare ones
    struct common_list link;             // in fair.fresh or fair.ring
    struct common_list items;
    uint32_t tenant, weight;
    int64_t credit; // below 1: it sends nothing. At least -COORDINATOR_FAIR_COST_MOST
    bool fresh;
};

void coordinator_fair_init(struct coordinator_fair *fair)
{
    *fair = (struct coordinator_fair){0};
    common_list_init(&fair->fresh);
    common_list_init(&fair->ring);
}

void coordinator_fair_fini(struct coordinator_fair *fair)
{
    assert(!fair->n);
    for (int i = 0; i < COORDINATOR_FAIR_BUCKETS; i++) {
        for (struct coordinator_fair_flow *flow; (flow = fair->buckets[i]);) {
            fair->buckets[i] = flow->chain;
            free(flow);
        }
    }
    for (struct coordinator_fair_flow *flow; (flow = fair->spare);) {
        fair->spare = flow->chain;
        free(flow);
    }
}

static struct coordinator_fair_flow *flow_enter(struct coordinator_fair *fair, uint32_t tenant)
{
    struct coordinator_fair_flow *flow = fair->spare,
                                 **bucket = &fair->buckets[tenant % COORDINATOR_FAIR_BUCKETS];
    if (flow)
        fair->spare = flow->chain;
    else if (!(flow = malloc(sizeof(*flow))))
        abort();
    *flow = (struct coordinator_fair_flow){.chain = *bucket, .tenant = tenant, .fresh = true};
    common_list_init(&flow->items);
    common_list_push(&fair->fresh, &flow->link);
    *bucket = flow;
    return flow;
}

static struct coordinator_fair_flow *flow_of(struct coordinator_fair *fair, uint32_t tenant)
{
    if (fair->last && fair->last->tenant == tenant)
        return fair->last;
    struct coordinator_fair_flow *flow = fair->buckets[tenant % COORDINATOR_FAIR_BUCKETS];
    while (flow && flow->tenant != tenant)
        flow = flow->chain;
    return fair->last = flow ? flow : flow_enter(fair, tenant);
}

static void flow_leave(struct coordinator_fair *fair, struct coordinator_fair_flow *flow)
{
    struct coordinator_fair_flow **at = &fair->buckets[flow->tenant % COORDINATOR_FAIR_BUCKETS];
    while (*at != flow)
        at = &(*at)->chain;
    *at = flow->chain;
    common_list_remove(&flow->link);
    fair->last = fair->last == flow ? NULL : fair->last;
    flow->chain = fair->spare;
    fair->spare = flow;
}

void coordinator_fair_push(struct coordinator_fair *fair, uint32_t tenant, uint32_t weight,
                           struct common_list *item)
{
    struct coordinator_fair_flow *flow = flow_of(fair, tenant);
    assert(weight > 0);
    if (!flow->weight) // it is new: its first turn has begun
        flow->credit = weight;
    flow->weight = weight;
    common_list_push(&flow->items, item);
    fair->n++;
}

static struct coordinator_fair_flow *head_of(const struct coordinator_fair *fair)
{
    const struct common_list *list = common_list_empty(&fair->fresh) ? &fair->ring : &fair->fresh;
    return common_list_entry(list->next, struct coordinator_fair_flow, link);
}

static void turn_over(struct coordinator_fair *fair, struct coordinator_fair_flow *flow)
{
    flow->fresh = false;
    common_list_remove(&flow->link);
    common_list_push(&fair->ring, &flow->link);
}

struct common_list *coordinator_fair_next(struct coordinator_fair *fair)
{
    while (fair->n) {
        struct coordinator_fair_flow *flow = head_of(fair);
        if (flow->credit < 1) {
            flow->credit += flow->weight;
            turn_over(fair, flow);
        } else if (!common_list_empty(&flow->items)) {
            return flow->items.next;
        } else if (flow->fresh) {
            turn_over(fair, flow);
        } else {
            flow_leave(fair, flow);
        }
    }
    return NULL;
}

void coordinator_fair_take(struct coordinator_fair *fair, struct common_list *item, uint32_t cost)
{
    struct coordinator_fair_flow *flow = head_of(fair);
    assert(flow->items.next == item && cost > 0);
    flow->credit -= cost < COORDINATOR_FAIR_COST_MOST ? cost : COORDINATOR_FAIR_COST_MOST;
    coordinator_fair_remove(fair, item);
}

void coordinator_fair_remove(struct coordinator_fair *fair, struct common_list *item)
{
    assert(fair->n > 0);
    common_list_remove(item);
    fair->n--;
}

uint32_t coordinator_fair_cost(uint64_t rows, uint64_t tokens, uint64_t token_bytes)
{
    const uint64_t most = (uint64_t)(COORDINATOR_FAIR_COST_MOST - 1) * COORDINATOR_FAIR_UNIT;
    if (!rows || !tokens || !token_bytes)
        return 1;
    if (token_bytes > most / rows || tokens > most / (rows * token_bytes))
        return COORDINATOR_FAIR_COST_MOST;
    return 1 + (uint32_t)(rows * tokens * token_bytes / COORDINATOR_FAIR_UNIT);
}
