// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t coordinator_order_pack(const struct coordinator_order *order, char out[COORDINATOR_ORDER_BYTES])
{
    // 128 + 64 + 20 + 6 and their ends fit
    return (size_t)snprintf(out, COORDINATOR_ORDER_BYTES, "%s%c%s%c%" PRIu64 "%c%s", order->reason, 0,
                            order->by, 0, order->at_s, 0, order->cordon ? "cordon" : "");
}

static void take(const char **at, size_t *left, char *out, size_t room)
{
    size_t n = strnlen(*at, *left), kept = n < room ? n : room - 1;
    memcpy(out, *at, kept);
    out[kept] = '\0';
    n += n < *left; // its end
    *at += n;
    *left -= n;
}

void coordinator_order_unpack(const void *bytes, size_t n, struct coordinator_order *out)
{
    const char *at = n ? bytes : "";
    char number[24], kind[8];
    take(&at, &n, out->reason, sizeof(out->reason));
    take(&at, &n, out->by, sizeof(out->by));
    take(&at, &n, number, sizeof(number));
    take(&at, &n, kind, sizeof(kind));
    out->at_s = strtoull(number, NULL, 10);
    out->cordon = strcmp(kind, "cordon") == 0;
}
