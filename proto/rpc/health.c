// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/health.h"

#include "common/base/clock.h"
#include "common/metrics/room.h"
#include "common/secure/tls.h"

void proto_health_examine(Banyan__Pb__HealthCheckReply *reply, const char *store_path,
                          const struct common_tls *tls)
{
    struct common_room room;
    common_room_look(store_path, &room);
    reply->wall_ns = common_clock_wall_ns();
    reply->files = room.files;
    reply->files_max = room.files_max;
    reply->memory_bytes = room.memory_bytes;
    reply->memory_available_bytes = room.memory_available_bytes;
    reply->disk_bytes = room.disk_bytes;
    reply->disk_free_bytes = room.disk_free_bytes;
    reply->tls_expires_s = tls ? common_tls_expires_s(tls) : 0;
    reply->tls_ca_expires_s = tls ? common_tls_ca_expires_s(tls) : 0;
}
