// SPDX-License-Identifier: Apache-2.0
// The faults that strike an operation, each with what mends it.
#include "tests/coordinator/hermetic/moments.h"

static void kill_coordinator(struct scene *scene)
{
    sim_coordinator_kill(scene->cluster);
    restart(scene->cluster);
}

static void kill_once_durable(struct scene *scene) // and before the coordinator gets the answer
{
    sim_disk_silence(SIM_DISK_PATH, true);
    sim_run_until_idle();
    kill_coordinator(scene);
}

static void kill_before_durable(struct scene *scene)
{
    sim_disk_stall(SIM_DISK_PATH, true);
    sim_run_until_idle();
    kill_coordinator(scene);
}

static void stop_coordinator(struct scene *scene)
{
    sim_coordinator_stop(scene->cluster);
    restart(scene->cluster);
}

static void stop_on_full_disk(struct scene *scene)
{
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_coordinator_stop(scene->cluster);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    restart(scene->cluster);
}

static void freeze_coordinator(struct scene *scene)
{
    sim_loop_freeze(scene->cluster->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    sim_loop_thaw(scene->cluster->loop);
}

static void fill_disk(struct scene *scene)
{
    sim_disk_fail(SIM_DISK_PATH, UINT32_MAX, COMMON_RESOURCE_EXHAUSTED);
    sim_wait(scene->call);
    sim_run_until_idle();
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
}

static void fail_disk_once(struct scene *scene)
{
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_UNAVAILABLE);
    sim_wait(scene->call);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
}

static void cut_first(struct scene *scene)
{
    sim_net_cut(scene->cluster->loop, scene->cluster->workers[0]->loop);
}

static void cut_second(struct scene *scene)
{
    sim_net_cut(scene->cluster->loop, scene->cluster->workers[1]->loop);
}

static void cut_all(struct scene *scene)
{
    sim_net_cut(scene->cluster->loop, NULL);
}

// A worker is away when the coordinator is killed, and comes back to the next one, late.
static void kill_beside_a_worker_that_is_away(struct scene *scene)
{
    sim_net_part(NULL, scene->cluster->workers[1]->loop);
    sim_advance(COMMON_NS_PER_S);
    kill_coordinator(scene);
    sim_advance(COMMON_NS_PER_S);
    sim_net_mend(NULL, scene->cluster->workers[1]->loop);
}

// It gets what it was sent before, only after the coordinator's next life has begun.
static void kill_beside_a_frozen_worker(struct scene *scene)
{
    sim_loop_freeze(scene->cluster->workers[0]->loop);
    sim_wait(scene->call);
    kill_coordinator(scene);
    sim_loop_thaw(scene->cluster->workers[0]->loop);
}

static void cut_edge(struct scene *scene)
{
    sim_net_cut(scene->cluster->workers[0]->loop, scene->cluster->workers[1]->loop);
}

static void part_for_a_while(struct scene *scene, const struct sim_worker *worker)
{
    sim_net_part(NULL, worker->loop);
    sim_advance(2 * COMMON_NS_PER_S); // its grace is over
    sim_net_mend(NULL, worker->loop);
    (void)scene;
}

static void part_first(struct scene *scene)
{
    part_for_a_while(scene, scene->cluster->workers[0]);
}

static void part_second(struct scene *scene)
{
    part_for_a_while(scene, scene->cluster->workers[1]);
}

static void freeze_first(struct scene *scene)
{
    sim_loop_freeze(scene->cluster->workers[0]->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    sim_loop_thaw(scene->cluster->workers[0]->loop);
}

static void lose_answers(struct scene *scene) // of the second worker, until they come all at once
{
    sim_net_hold(scene->cluster->workers[1]->loop, scene->cluster->loop);
    sim_advance(2 * COMMON_NS_PER_S);
    sim_net_heal();
}

static void kill_first(struct scene *scene)
{
    sim_worker_kill(scene->cluster->workers[0]);
    sim_worker_start(scene->cluster->workers[0]);
}

static void kill_second(struct scene *scene)
{
    sim_worker_kill(scene->cluster->workers[1]);
    sim_worker_start(scene->cluster->workers[1]);
}

static void kill_for_a_while(struct scene *scene, struct sim_worker *worker)
{
    sim_worker_kill(worker);
    sim_wait(scene->call); // without it
    sim_advance(2 * COMMON_NS_PER_S);
    sim_worker_start(worker);
}

static void kill_first_for_long(struct scene *scene)
{
    kill_for_a_while(scene, scene->cluster->workers[0]);
}

static void kill_second_for_long(struct scene *scene)
{
    kill_for_a_while(scene, scene->cluster->workers[1]);
}

static void cancel_call(struct scene *scene)
{
    sim_cancel(scene->call);
}

const struct fault moment_faults[MOMENT_FAULTS] = {
    {"the coordinator is killed", kill_coordinator, RESTARTS},
    {"the coordinator is killed once all is durable", kill_once_durable, RESTARTS},
    {"the coordinator is killed before more is durable", kill_before_durable, RESTARTS},
    {"the coordinator is stopped", stop_coordinator, RESTARTS},
    {"the coordinator is stopped on a full disk", stop_on_full_disk, RESTARTS},
    {"the coordinator is frozen", freeze_coordinator, NEITHER},
    {"the disk is full", fill_disk, NEITHER},
    {"the disk fails once", fail_disk_once, NEITHER},
    {"the first worker's link breaks", cut_first, NEITHER},
    {"the second worker's link breaks", cut_second, NEITHER},
    {"every link breaks", cut_all, NEITHER},
    {"the coordinator is killed, a worker away", kill_beside_a_worker_that_is_away, RESTARTS},
    {"the coordinator is killed, a worker frozen", kill_beside_a_frozen_worker, RESTARTS},
    {"the edge between the workers breaks", cut_edge, NEITHER},
    {"the first worker is away", part_first, NEITHER},
    {"the second worker is away", part_second, NEITHER},
    {"the first worker is frozen", freeze_first, NEITHER},
    {"the second worker's answers are late", lose_answers, NEITHER},
    {"the first worker is killed", kill_first, LOSES},
    {"the second worker is killed", kill_second, LOSES},
    {"the first worker is killed, and away for long", kill_first_for_long, LOSES},
    {"the second worker is killed, and away for long", kill_second_for_long, LOSES},
    {"the client gives up", cancel_call, NEITHER},
};

bool moment_fills_disk(const struct fault *fault)
{
    return fault->strike == fill_disk;
}

bool moment_allows(const struct scene *scene, const struct operation *operation, const struct fault *fault,
                   enum common_code code)
{
    if (fault->effect == LOSES && scene->replicas > 1 && operation->step)
        return code == COMMON_OK;
    return code == COMMON_OK || code == COMMON_UNAVAILABLE || code == COMMON_DEADLINE_EXCEEDED ||
           (code == COMMON_RESOURCE_EXHAUSTED &&
            (fault->strike == fill_disk || fault->strike == stop_on_full_disk)) ||
           (code == COMMON_CANCELLED && fault->strike == cancel_call) ||
           (code == COMMON_DATA_LOSS && scene->loses);
}
