// SPDX-License-Identifier: Apache-2.0
#include "tests/llama/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/llama/device.h"
#include "tests/llama/exact.h"

// ggml's CPU in float32 sums without care; this much says that harness and reference mean the same attention.
#define SINGLE_LIMIT 20
// Where a mask of float16 rounds ALiBi's distances, from 2,048 on, which the device does not.
#define ROUNDED_LIMIT 1000
// With ggml's CPU as the device: float16 sums, and q in the type of K.
#define TYPED_LIMIT 20000

static struct check_errors worst;

void check_begin(void)
{
    memset(&worst, 0, sizeof worst);
}

struct check_errors check_errors(void)
{
    return worst;
}

static double error_on_cpu(const struct cache *cache, const struct cache_answer *answer, int a,
                           enum ggml_type type)
{
    float *o = cache_on_cpu(cache, answer, a, type);
    double error = exact_error(cache, answer, a, o);
    free(o);
    return error;
}

void check_answer(const struct cache *cache, struct cache_answer *answer)
{
    struct check_errors here = {0};
    for (int a = 0; a < answer->attentions; a++) {
        here.own = fmax(here.own, exact_error(cache, answer, a, answer->o[a]));
        here.single = fmax(here.single, error_on_cpu(cache, answer, a, GGML_TYPE_F32));
        if (cache->shape.k == cache->shape.v)
            here.typed = fmax(here.typed, error_on_cpu(cache, answer, a, cache->shape.k));
    }
    worst.own = fmax(worst.own, here.own);
    worst.single = fmax(worst.single, here.single);
    worst.typed = fmax(worst.typed, here.typed);
    double single_limit = cache->shape.max_bias > 0 && answer->n_kv > 2048 ? ROUNDED_LIMIT : SINGLE_LIMIT;
    int rows = answer->step.rows;
    cache_answer_free(answer);
    if (here.own > (device_is_cpu() ? TYPED_LIMIT : 1))
        fail_msg("%d rows: %g of the bound; ggml's CPU in float32: %g, in the cache's type: %g", rows,
                 here.own, here.single, here.typed);
    if (here.single > single_limit)
        fail_msg("%d rows: ggml's CPU in float32 has %g of the bound; the device %g", rows, here.single,
                 here.own);
}

void check_step(struct cache *cache, const struct cache_step *step)
{
    struct cache_answer answer;
    device_log_clear();
    enum ggml_status status = cache_run(cache, step, &answer);
    if (status != GGML_STATUS_SUCCESS)
        fail_msg("%d rows in %d streams: status %d: %s", step->rows, step->streams, status, device_log());
    if (device_log()[0])
        fail_msg("an evaluation that succeeded logged: %s", device_log());
    check_answer(cache, &answer);
}

void check_append(struct cache *cache, int rows)
{
    check_step(cache, &(struct cache_step){.streams = cache->shape.streams, .rows = rows});
}

void check_refused(struct cache *cache, const struct cache_step *step, const char *names)
{
    struct cache_answer answer;
    device_log_clear();
    enum ggml_status status = cache_run(cache, step, &answer);
    if (status == GGML_STATUS_SUCCESS) {
        cache_answer_free(&answer);
        fail_msg("it was answered; expected was a refusal that names %s", names);
    }
    if (!strstr(device_log(), names))
        fail_msg("status %d without a sentence that names %s: '%s'", status, names, device_log());
}
