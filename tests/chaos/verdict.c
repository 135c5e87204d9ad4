// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/verdict.h"

#include <inttypes.h>
#include <stdio.h>

bool verdict_holds(const struct verdict_run *run, char *why, size_t why_len)
{
    if (run->failed_steps) {
        snprintf(why, why_len, "%" PRIu64 " steps failed of sessions that had all their copies",
                 run->failed_steps);
        return false;
    }
    if (run->minutes < VERDICT_LONG_MINUTES)
        return true;
    for (size_t i = 0; i < run->n_classes; i++) {
        const struct verdict_class *c = &run->classes[i];
        if (!c->chosen || c->made >= VERDICT_EACH_CLASS)
            continue;
        snprintf(why, why_len,
                 "%s came %" PRIu64 " times: a run of this length has each class %d times or more", c->name,
                 c->made, VERDICT_EACH_CLASS);
        return false;
    }
    if (run->all_classes && !(run->rate_ratio >= VERDICT_RATE_RATIO)) {
        snprintf(why, why_len, "%.3f of the steps a second without faults: %.2f is the least",
                 run->rate_ratio, VERDICT_RATE_RATIO);
        return false;
    }
    return true;
}
