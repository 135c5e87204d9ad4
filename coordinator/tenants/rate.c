// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tenants/rate.h"

#include <assert.h>

#define ONE INT64_C(1000000000) // billionths

void coordinator_rate_set(struct coordinator_rate *rate, uint64_t per_s, uint64_t now_ns)
{
    assert(per_s <= COORDINATOR_RATE_MOST);
    *rate = (struct coordinator_rate){.per_s = per_s, .at_ns = now_ns, .level = (int64_t)per_s * ONE};
}

static int64_t level_at(const struct coordinator_rate *rate, uint64_t now_ns)
{
    int64_t full = (int64_t)rate->per_s * ONE;
    uint64_t passed_ns = now_ns > rate->at_ns ? now_ns - rate->at_ns : 0,
             lacks = (uint64_t)(full - rate->level);
    if (!rate->per_s || passed_ns > lacks / rate->per_s)
        return full;
    return rate->level + (int64_t)(passed_ns * rate->per_s); // at most `lacks`
}

bool coordinator_rate_take(struct coordinator_rate *rate, uint64_t n, uint64_t now_ns, uint64_t *wait_ns)
{
    int64_t full = (int64_t)rate->per_s * ONE, wanted = (int64_t)n * ONE;
    assert(n <= UINT32_MAX);
    if (!rate->per_s)
        return true;
    rate->level = level_at(rate, now_ns);
    rate->at_ns = now_ns > rate->at_ns ? now_ns : rate->at_ns;
    int64_t enough = wanted < full ? wanted : full;
    if (rate->level < enough) {
        *wait_ns = rate->at_ns + ((uint64_t)(enough - rate->level) + rate->per_s - 1) / rate->per_s - now_ns;
        return false;
    }
    rate->level -= wanted;
    return true;
}

uint64_t coordinator_rate_used(const struct coordinator_rate *rate, uint64_t now_ns)
{
    return (uint64_t)((int64_t)rate->per_s * ONE - level_at(rate, now_ns) + ONE - 1) / (uint64_t)ONE;
}
