// SPDX-License-Identifier: Apache-2.0
#include "coordinator/options.h"

#include "common/base/clock.h"
#include "coordinator/events.h"

void coordinator_options_default(struct coordinator_options *options)
{
    *options = (struct coordinator_options){.cluster = "banyan",
                                            .store_path = ":memory:",
                                            .max_workers = 256,
                                            .max_sessions = 65536,
                                            .max_clients = 1024,
                                            .max_requests = 16384,
                                            .max_steps = 65536,
                                            .max_bytes = UINT64_C(1) << 30,
                                            .max_session_tokens = UINT64_C(1) << 26,
                                            .heartbeat_ns = 600 * COMMON_NS_PER_MS,
                                            .move_bytes_per_s = UINT64_C(128) << 20,
                                            .slow_after_ns = 10 * COMMON_NS_PER_S,
                                            .scrub_ns = 24 * 3600 * COMMON_NS_PER_S,
                                            .grace_ns = 250 * COMMON_NS_PER_MS,
                                            .keep_bytes = UINT64_C(64) << 20,
                                            .audit_madds = UINT64_C(128) << 20,
                                            .prefix_bytes = COORDINATOR_PREFIX_SHARE,
                                            .ticket_ns = 120 * COMMON_NS_PER_S,
                                            .events = COORDINATOR_EVENTS_DEFAULT};
}
