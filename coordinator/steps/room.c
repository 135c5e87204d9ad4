// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/room.h"

#include "coordinator/steps/attend.h"
#include "coordinator/steps/audit.h"
#include "coordinator/steps/dispatch.h"
#include "coordinator/steps/frame.h"
#include "coordinator/steps/lanes.h"
#include "coordinator/steps/run.h"
#include "coordinator/steps/sending.h"
#include "coordinator/steps/watchers.h"

static void drain_steps(void *arg)
{
    struct coordinator_steps *steps = arg;
    coordinator_queues_take_plans(steps);
    coordinator_lanes_drain(steps);
    coordinator_items_drain(steps);
}

static void drain_frames(void *arg)
{
    coordinator_frames_cancel(arg);
    coordinator_queues_drain(arg);
}

enum common_code coordinator_steps_init(struct coordinator_steps *steps, struct coordinator_core *core,
                                        struct coordinator_cluster *cluster,
                                        struct coordinator_sessions *sessions)
{
    steps->core = core;
    steps->cluster = cluster;
    steps->sessions = sessions;
    struct common_list *lists[] = {&steps->calls,  &steps->fresh, &steps->retries, &steps->lanes,
                                   &steps->queues, &steps->dirty, &steps->flying,  &steps->keep.all};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        common_list_init(lists[i]);
    coordinator_turn_set(&core->turn, COORDINATOR_PHASE_STEPS, drain_steps, steps);
    coordinator_turn_set(&core->turn, COORDINATOR_PHASE_FRAMES, drain_frames, steps);
    enum common_code code = coordinator_calls_init(steps);
    if (code == COMMON_OK)
        code = coordinator_audits_init(steps);
    return code == COMMON_OK ? coordinator_items_init(steps) : code;
}

void coordinator_steps_stop(struct coordinator_steps *steps)
{
    if (!steps->deadlines || !steps->retry)
        return;
    coordinator_calls_stop(steps);
    coordinator_audits_stop(steps);
    coordinator_watchers_stop(steps);
    coordinator_items_stop(steps);
}

void coordinator_steps_fini(struct coordinator_steps *steps)
{
    if (!steps->core)
        return;
    coordinator_audits_free(steps);
    coordinator_queues_free(steps);
    common_timer_free(steps->deadlines);
    common_timer_free(steps->retry);
    coordinator_frames_free(steps);
}
