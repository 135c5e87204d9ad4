// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/chaos/faults.h"
#include "tests/chaos/quiet.h"
#include "tests/e2e/support.h"

enum { DAEMONS = FAULTS_WORKERS + 1, SAMPLES = 4000, EVERY_MS = 2000 };

#define FLAT_BYTES (UINT64_C(4) << 20)

static struct soak {
    uint64_t steps, seed;
    bool json, flat, failed;
    size_t n;
    struct sample {
        uint64_t step, bytes[DAEMONS];
    } samples[SAMPLES];
    double slope[DAEMONS]; // bytes a step, of the second half
    struct load_counts counts;
} soak;

static const char *name_of(int daemon)
{
    static const char *const names[DAEMONS] = {"w0", "w1", "w2", "w3", "coordinator"};
    return names[daemon];
}

static void take_sample(struct faults *faults, uint64_t step)
{
    struct sample *s = &soak.samples[soak.n];
    if (soak.n == SAMPLES)
        return;
    soak.n++;
    s->step = step;
    for (int i = 0; i < DAEMONS; i++)
        s->bytes[i] = support_resident_bytes(harness_cluster_pid(
            faults_cluster(faults), i < FAULTS_WORKERS ? (uint32_t)i : HARNESS_COORDINATOR));
    if (soak.json)
        return;
    printf("%10" PRIu64 " steps:", step);
    for (int i = 0; i < DAEMONS; i++)
        printf("  %s %.1f MiB", name_of(i), (double)s->bytes[i] / (1 << 20));
    printf("\n");
}

// Least squares over the second half: at the start, pools fill.
static double slope_of(int daemon)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = soak.n / 2; i < soak.n; i++) {
        double step = (double)soak.samples[i].step, bytes = (double)soak.samples[i].bytes[daemon];
        n++, x += step, y += bytes, xx += step * step, xy += step * bytes;
    }
    double d = n * xx - x * x;
    return d > 0 ? (n * xy - x * y) / d : 0;
}

static void memory_stays_flat(void **state)
{
    (void)state;
    struct faults *faults = faults_start(&(struct faults_options){.seed = soak.seed});
    struct load_options options = {.seed = soak.seed};
    for (int i = 0; i < LOAD_CLIENTS; i++)
        options.endpoints[i] = faults_endpoint(faults, i);
    struct load *load = load_start(&options);
    do {
        support_sleep_ms(EVERY_MS);
        load_get(load, &soak.counts);
        take_sample(faults, soak.counts.steps);
    } while (soak.counts.steps < soak.steps && !load_wrong(load));
    bool ended = load_end(load);
    load_get(load, &soak.counts);
    char wrong[700];
    snprintf(wrong, sizeof(wrong), "%s", ended ? "" : load_wrong(load));
    load_free(load);
    int problems = faults_stop(faults, !ended);
    soak.flat = true;
    for (int i = 0; i < DAEMONS; i++) {
        soak.slope[i] = slope_of(i);
        uint64_t middle = soak.samples[soak.n / 2].bytes[i], last = soak.samples[soak.n - 1].bytes[i];
        soak.flat = soak.flat && last < middle + FLAT_BYTES;
    }
    if (!ended)
        fail_msg("%s", wrong);
    assert_int_equal(problems, 0);
    if (!soak.flat)
        fail_msg("a daemon's memory grows");
}

int quiet_soak(uint64_t seed, uint64_t steps, bool json)
{
    soak = (struct soak){.seed = seed, .steps = steps, .json = json};
    uint64_t begun = common_clock_ns();
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_stays_flat)};
    int failed = cmocka_run_group_tests_name("soak", tests, NULL, NULL);
    printf("{\"seed\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"seconds\": %.0f, \"flat\": %s", seed,
           soak.counts.steps, (double)(common_clock_ns() - begun) / 1e9, soak.flat ? "true" : "false");
    for (int i = 0; soak.n && i < DAEMONS; i++)
        printf(", \"%s\": {\"middle_kib\": %" PRIu64 ", \"last_kib\": %" PRIu64 ", \"bytes_per_step\": %.3f}",
               name_of(i), soak.samples[soak.n / 2].bytes[i] >> 10, soak.samples[soak.n - 1].bytes[i] >> 10,
               soak.slope[i]);
    printf(", \"wrong\": %" PRIu64 ", \"failed_steps\": %" PRIu64 "}\n", soak.counts.wrong,
           soak.counts.failed_steps);
    return failed;
}
