// SPDX-License-Identifier: Apache-2.0
// A measurement while the loop runs: memory that the team has touched, then attention over it, as at the start
// (measure.h), but over a fixed amount of keys: a machine that has become slow takes longer for it.
#include "worker/steps/probe.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kernels/attention.h"
#include "worker/core/state.h"
#include "worker/memory/memory.h"
#include "worker/processors/measure.h"

#define PROBE_MEMORY   (UINT64_C(64) << 20) // beyond the caches, as at the start
#define RUNS_OF_A_TASK 8

struct worker_probe {
    struct worker *worker;
    const struct kernels_attention *kernel;
    struct worker_memory *memory;
    uint8_t *data;
    uint64_t runs, total; // in memory; to be computed
    bool touched;
    uint64_t since_ns;
    struct worker_job job;
    float q[WORKER_MEASURE_Q_FLOATS];
};

static uint64_t probe_bytes(const struct worker_probe *probe)
{
    return probe->runs * WORKER_MEASURE_RUN_BYTES;
}

static void probe_end(struct worker_probe *probe)
{
    struct worker *worker = probe->worker;
    worker->flight_bytes -= probe_bytes(probe);
    worker_memory_release(probe->memory, probe->data);
    worker_memory_free(probe->memory);
    free(probe);
    worker->probe = NULL;
    worker->n_prepares--;
    worker_hand_emptied(worker);
}

static void touch_task(void *arg, uint32_t task, void *scratch)
{
    struct worker_probe *probe = arg;
    (void)scratch;
    memset(probe->data + task * WORKER_MEASURE_RUN_BYTES, 0x3c, WORKER_MEASURE_RUN_BYTES); // small numbers
}

static void run_task(void *arg, uint32_t task, void *scratch)
{
    struct worker_probe *probe = arg;
    for (uint64_t i = 0; i < RUNS_OF_A_TASK; i++) {
        uint64_t at = (uint64_t)task * RUNS_OF_A_TASK + i;
        if (at < probe->total)
            worker_measure_run(probe->kernel, probe->data + at % probe->runs * WORKER_MEASURE_RUN_BYTES,
                               probe->q, scratch);
    }
}

static void probe_done(void *arg, bool complete)
{
    struct worker_probe *probe = arg;
    struct worker *worker = probe->worker;
    uint64_t now = common_clock_ns();
    if (complete && !probe->touched) {
        probe->touched = true;
        probe->since_ns = now;
        probe->job =
            (struct worker_job){.tasks = (uint32_t)((probe->total + RUNS_OF_A_TASK - 1) / RUNS_OF_A_TASK),
                                .scratch_bytes = worker_measure_scratch(probe->kernel),
                                .run = run_task,
                                .done = probe_done,
                                .arg = probe};
        worker_team_submit(worker->team, &probe->job);
        return;
    }
    if (complete) {
        double bytes = (double)probe->total * (double)WORKER_MEASURE_RUN_BYTES;
        worker_pace_probed(&worker->pace, (uint64_t)(bytes * 1e9 / (double)worker->pace.bandwidth),
                           now - probe->since_ns);
    }
    probe_end(probe);
}

void worker_probe_begin(struct worker *worker)
{
    const struct kernels_attention *kernel = worker_measure_default();
    uint64_t room = worker->flight_limit > worker->flight_bytes ? worker->flight_limit - worker->flight_bytes
                                                                : 0,
             most = room / 2 < PROBE_MEMORY ? room / 2 : PROBE_MEMORY;
    double wanted = (double)worker->pace.bandwidth / 1e9 * (double)worker->pace.probe_ns /
                    (double)WORKER_MEASURE_RUN_BYTES;
    if (worker->device || worker->probe || worker->draining || worker->n_steps + worker->n_prepares > 0 ||
        !kernel || most < WORKER_MEASURE_RUN_BYTES)
        return;
    struct worker_probe *probe = calloc(1, sizeof *probe);
    if (!probe)
        return;
    probe->worker = worker;
    probe->kernel = kernel;
    probe->total = wanted < 1 ? 1 : wanted > 1e6 ? 1000000 : (uint64_t)wanted;
    probe->runs =
        most / WORKER_MEASURE_RUN_BYTES < probe->total ? most / WORKER_MEASURE_RUN_BYTES : probe->total;
    probe->memory = worker_memory_host(probe_bytes(probe), worker_team_place(worker->team));
    probe->data = probe->memory ? worker_memory_alloc(probe->memory, probe_bytes(probe), UINT64_MAX) : NULL;
    if (!probe->data) {
        worker_memory_free(probe->memory);
        free(probe);
        return;
    }
    worker_measure_query(probe->q);
    worker->flight_bytes += probe_bytes(probe);
    worker->n_prepares++;
    worker->probe = probe;
    probe->job = (struct worker_job){
        .tasks = (uint32_t)probe->runs, .run = touch_task, .done = probe_done, .arg = probe};
    worker_team_submit(worker->team, &probe->job);
}

void worker_probe_stop(struct worker *worker)
{
    if (worker->probe)
        worker_team_cancel(worker->team, &worker->probe->job);
}
