// SPDX-License-Identifier: Apache-2.0
#include "coordinator/trail/flood.h"

#include <string.h>

#include "common/hash/hash.h"

const char *coordinator_trail_address(const char *peer)
{
    const char *at = strrchr(peer, '@'); // a name may have one, an address has none
    return at ? at + 1 : peer;
}

static uint64_t host_of(const char *peer)
{
    const char *address = coordinator_trail_address(peer), *port = strrchr(address, ':');
    return common_xxh3(address, port ? (size_t)(port - address) : strlen(address), 0);
}

static void begin(struct coordinator_trail_flood *flood, uint64_t now_ns, uint64_t length_ns)
{
    *flood = (struct coordinator_trail_flood){.from_ns = now_ns, .length_ns = length_ns};
}

bool coordinator_trail_flood_admits(struct coordinator_trail_flood *flood, const char *peer, uint64_t now_ns)
{
    uint64_t host = host_of(peer);
    if (!flood->length_ns || (!flood->held && now_ns - flood->from_ns >= flood->length_ns))
        begin(flood, now_ns, COORDINATOR_TRAIL_FLOOD_NS);
    uint32_t i = 0;
    while (i < COORDINATOR_TRAIL_FLOOD_MOST && flood->hosts[i].told && flood->hosts[i].host != host)
        i++;
    if (flood->told >= COORDINATOR_TRAIL_FLOOD_MOST || i == COORDINATOR_TRAIL_FLOOD_MOST ||
        flood->hosts[i].told >= COORDINATOR_TRAIL_FLOOD_HOST) {
        flood->held++;
        return false;
    }
    flood->hosts[i].host = host;
    flood->hosts[i].told++;
    flood->told++;
    return true;
}

uint64_t coordinator_trail_flood_over(struct coordinator_trail_flood *flood, uint64_t now_ns, bool end)
{
    uint64_t held = flood->held, length_ns = flood->length_ns;
    if (!held || (!end && now_ns - flood->from_ns < length_ns))
        return 0;
    begin(flood, now_ns, length_ns < COORDINATOR_TRAIL_FLOOD_MOST_NS ? 2 * length_ns : length_ns);
    return held;
}
