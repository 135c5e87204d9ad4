// SPDX-License-Identifier: Apache-2.0
// The limits of messages: everything that a receiver compares before it allocates. The numbers in brackets in
// banyan.proto are the same ones, for its readers; tests/proto/codec_test.c holds the two together.
#ifndef PROTO_LIMITS_H
#define PROTO_LIMITS_H

#define PROTO_HEADER_MAX  (1024 * 1024) // bytes of a packed header; what it may unpack to is bounded too
#define PROTO_TENSORS_MAX 64            // of a message
#define PROTO_DIMS_MAX    4             // of a tensor

// Of a spec: sizes of rows and of a layer's rows cannot wrap within them.
#define PROTO_LAYERS_MAX   1024u
#define PROTO_KV_HEADS_MAX 1024u // query heads, too
#define PROTO_KV_DIM_MAX   1024u
#define PROTO_KINDS_MAX    64u
#define PROTO_SPEC_BYTES   (128u * 1024) // packed: a spec travels beside lists that have limits of their own

#define PROTO_LISTEN_MAX          16           // endpoints at which a coordinator listens
#define PROTO_MEMBERS_MAX         4096         // workers of a cluster, of a plan
#define PROTO_BACKUP_HEAD         128          // bytes before the copy in a backup's file
#define PROTO_BACKUP_PIECE        (256 * 1024) // of a backup, that travels at a time and is summed at a time
#define PROTO_QUARANTINE_PAGE_MAX 4096         // sessions of one QuarantineList reply
#define PROTO_QUOTAS_MAX          16u          // of one tenant
#define PROTO_QUOTA_TENANTS_MAX   64u          // of one QuotaShow reply

#define PROTO_STEP_ITEMS_MAX    4096
#define PROTO_STEP_HOLDERS_MAX  16
#define PROTO_STEP_ROWS_MAX     4096
#define PROTO_COLLECTIVE_ID_MAX 128 // bytes
#define PROTO_TRACE_BYTES       25  // common/base/trace.h; or none

#define PROTO_NO_DEVICE_MAX     191                 // bytes of why a worker computes on its processor
#define PROTO_EDGES_DOWN_MAX    64                  // named in a heartbeat
#define PROTO_LACKING_MAX       64u                 // sessions in a heartbeat
#define PROTO_WORKER_LIMITS_MAX 24                  // sent in a heartbeat
#define PROTO_COMMIT_RANGES_MAX 4096u               // of one RowsCommit
#define PROTO_PULL_RANGES_MAX   4096u               // of one ChunkPull
#define PROTO_READ_BYTES_MAX    (UINT64_C(4) << 20) // K and V of one ChunkRead of more than one row
#define PROTO_ABORT_EXCEPT_MAX  4096u               // sessions that one RowsAbort leaves alone
#define PROTO_LAYOUT_CHUNKS_MAX 1024u               // of one LayoutSet
#define PROTO_COMMIT_CHUNKS_MAX 1024u               // of an attach or a commit
#define PROTO_COMMIT_DROP_MAX   64u                 // ranges of one RowsAbort

#define PROTO_PREFIX_HASH     16u           // bytes of a hash of a prefix
#define PROTO_HASHES_BYTES    (512u * 1024) // of all hashes of one: 32,768 chunks
#define PROTO_PREFIX_LIST_MAX 256u          // kept sessions of one answer

#define PROTO_MASS_WORKERS_MAX 1024u // named in an answer with masses
#define PROTO_WATCH_STEPS_MAX  64u

#define PROTO_EVENTS_MAX      256u // of one answer
#define PROTO_EVENT_KINDS_MAX 64u  // of a filter. There are no more kinds than that, so a filter is 64 bits

#define PROTO_KEPT_ROWS_MAX    4u   // of a step that is kept, of an audit
#define PROTO_AUDIT_CHUNKS_MAX 256u // of one call
#define PROTO_AUDIT_HEAD       4u   // numbers of a row and head before its o: see AuditRequest

// X(message, field, most): elements of a repeated field, bytes of a string or bytes field. Strings and bytes
// that are not here have at most 1024 bytes.
#define PROTO_LIMITS(X)                                                                                      \
    X(tensor, dims, PROTO_DIMS_MAX)                                                                          \
    X(detail, reason, 64)                                                                                    \
    X(detail, ranges, 16)                                                                                    \
    X(detail, workers, 16)                                                                                   \
    X(status, message, 1024)                                                                                 \
    X(status, details, 16)                                                                                   \
    X(header, credentials, 256)                                                                              \
    X(header, tensors, PROTO_TENSORS_MAX)                                                                    \
    X(header, body, PROTO_HEADER_MAX)                                                                        \
    X(link_hello_request, nonce, 32)                                                                         \
    X(link_hello_request, name, 128)                                                                         \
    X(link_hello_reply, nonce, 32)                                                                           \
    X(link_hello_reply, proof, 32)                                                                           \
    X(link_hello_reply, name, 128)                                                                           \
    X(link_proof_request, proof, 32)                                                                         \
    X(health_check_reply, edges_down, PROTO_EDGES_DOWN_MAX)                                                  \
    X(spec, alibi, PROTO_KV_HEADS_MAX)                                                                       \
    X(spec, sinks, PROTO_KV_HEADS_MAX)                                                                       \
    X(spec, kinds, PROTO_KINDS_MAX)                                                                          \
    X(spec, layer_kind, PROTO_LAYERS_MAX)                                                                    \
    X(spec, shares, PROTO_LAYERS_MAX)                                                                        \
    X(spec, layer_sinks, PROTO_LAYERS_MAX)                                                                   \
    X(layer_kind, alibi, PROTO_KV_HEADS_MAX)                                                                 \
    X(layer_sinks, sinks, PROTO_KV_HEADS_MAX)                                                                \
    X(layer_info, committed, 64)                                                                             \
    X(session_create_request, prefix, PROTO_HASHES_BYTES)                                                    \
    X(prefix_find_request, prefix, PROTO_HASHES_BYTES)                                                       \
    X(prefix_keep_request, prefix, PROTO_HASHES_BYTES)                                                       \
    X(prefix_keep_reply, why, 255)                                                                           \
    X(prefix_info, tenant, 64)                                                                               \
    X(prefix_list_reply, prefixes, PROTO_PREFIX_LIST_MAX)                                                    \
    X(session_info_reply, layers, PROTO_LAYERS_MAX)                                                          \
    X(session_info_reply, member_bytes, 1024)                                                                \
    X(session_info_reply, members, 1024)                                                                     \
    X(session_info_reply, tenant, 64)                                                                        \
    X(session_list_reply, sessions, 256)                                                                     \
    X(session_plan_reply, nodes, PROTO_MEMBERS_MAX)                                                          \
    X(attach_chunk, holders, PROTO_STEP_HOLDERS_MAX)                                                         \
    X(attach_open_reply, ticket, 512)                                                                        \
    X(attach_open_reply, chunks, 1024)                                                                       \
    X(attach_open_reply, workers, 1024)                                                                      \
    X(attach_open_reply, pass, 128)                                                                          \
    X(attach_commit_request, sums, PROTO_COMMIT_CHUNKS_MAX)                                                  \
    X(chunk_put_request, ticket, 512)                                                                        \
    X(chunk_read_request, ticket, 512)                                                                       \
    X(attend_request, items, PROTO_STEP_ITEMS_MAX)                                                           \
    X(attend_item, trace, PROTO_TRACE_BYTES)                                                                 \
    X(attend_reply, items, PROTO_STEP_ITEMS_MAX)                                                             \
    X(attend_reply, traces, 1024)                                                                            \
    X(attend_reply, workers, PROTO_MASS_WORKERS_MAX)                                                         \
    X(mass_info, workers, PROTO_MASS_WORKERS_MAX)                                                            \
    X(mass_info, tokens, PROTO_MASS_WORKERS_MAX)                                                             \
    X(watched_step, traces, 1024)                                                                            \
    X(session_watch_reply, steps, PROTO_WATCH_STEPS_MAX)                                                     \
    X(session_watch_reply, workers, PROTO_MASS_WORKERS_MAX)                                                  \
    X(session_step_reply, positions, PROTO_KEPT_ROWS_MAX)                                                    \
    X(session_step_reply, workers, 512)                                                                      \
    X(audit_request, positions, PROTO_KEPT_ROWS_MAX)                                                         \
    X(audit_request, chunks, PROTO_AUDIT_CHUNKS_MAX)                                                         \
    X(cluster_info_reply, workers, PROTO_MEMBERS_MAX)                                                        \
    X(cluster_info_reply, endpoints, PROTO_LISTEN_MAX)                                                       \
    X(cluster_info_reply, limits, 64)                                                                        \
    X(cluster_info_reply, pass, 128)                                                                         \
    X(cluster_info_reply, tenant, 64)                                                                        \
    X(cluster_info_reply, readiness, 160)                                                                    \
    X(cluster_info_reply, access, 16)                                                                        \
    X(token_create_request, name, 64)                                                                        \
    X(token_create_request, access, 16)                                                                      \
    X(token_create_request, tenant, 64)                                                                      \
    X(token_create_reply, token, 64)                                                                         \
    X(token_info, name, 64)                                                                                  \
    X(token_info, access, 16)                                                                                \
    X(token_info, tenant, 64)                                                                                \
    X(token_list_reply, tokens, 256)                                                                         \
    X(token_revoke_request, name, 64)                                                                        \
    X(limit, name, 64)                                                                                       \
    X(limit, flag, 64)                                                                                       \
    X(limit, worker, 64)                                                                                     \
    X(worker_info, drain_reason, 128)                                                                        \
    X(worker_info, drain_by, 64)                                                                             \
    X(worker_info, version, 31)                                                                              \
    X(worker_info, no_device, PROTO_NO_DEVICE_MAX)                                                           \
    X(worker_drain_request, worker, 64)                                                                      \
    X(worker_drain_request, reason, 128)                                                                     \
    X(worker_forget_request, worker, 64)                                                                     \
    X(rebalance_reply, moves, 1024)                                                                          \
    X(backup_reply, head, PROTO_BACKUP_HEAD)                                                                 \
    X(backup_read_reply, data, PROTO_BACKUP_PIECE)                                                           \
    X(events_request, kinds, PROTO_EVENT_KINDS_MAX)                                                          \
    X(events_request, severity, 8)                                                                           \
    X(events_request, worker, 64)                                                                            \
    X(events_request, session_name, 128)                                                                     \
    X(event, kind, 32)                                                                                       \
    X(event, severity, 8)                                                                                    \
    X(event, worker, 64)                                                                                     \
    X(event, session_name, 128)                                                                              \
    X(event, text, 255)                                                                                      \
    X(events_reply, events, PROTO_EVENTS_MAX)                                                                \
    X(quarantine_list_reply, sessions, PROTO_QUARANTINE_PAGE_MAX)                                            \
    X(quota_use, name, 32)                                                                                   \
    X(tenant_quotas, tenant, 64)                                                                             \
    X(tenant_quotas, quotas, PROTO_QUOTAS_MAX)                                                               \
    X(quota_set_request, tenant, 64)                                                                         \
    X(quota_show_request, tenant, 64)                                                                        \
    X(quota_set_request, quotas, PROTO_QUOTAS_MAX)                                                           \
    X(quota_show_reply, tenants, PROTO_QUOTA_TENANTS_MAX)                                                    \
    X(plan_install_request, members, PROTO_MEMBERS_MAX)                                                      \
    X(heartbeat_request, lacking, PROTO_LACKING_MAX)                                                         \
    X(heartbeat_request, edges_down, PROTO_EDGES_DOWN_MAX)                                                   \
    X(heartbeat_request, limits, PROTO_WORKER_LIMITS_MAX)                                                    \
    X(layout_set_request, chunks, 1024)                                                                      \
    X(layout_set_reply, put, 1024)                                                                           \
    X(layout_set_request, lengths, PROTO_LAYERS_MAX)                                                         \
    X(chunk_report, present, 64)                                                                             \
    X(rows_prepare_reply, chunks, 1024)                                                                      \
    X(rows_commit_request, ranges, PROTO_COMMIT_RANGES_MAX)                                                  \
    X(chunk_pull_request, ranges, PROTO_PULL_RANGES_MAX)                                                     \
    X(rows_abort_request, except, PROTO_ABORT_EXCEPT_MAX)                                                    \
    X(rows_abort_request, drop, PROTO_COMMIT_DROP_MAX)                                                       \
    X(inventory_chunk, layer_rows, PROTO_LAYERS_MAX)                                                         \
    X(inventory_session, chunks, 65536)                                                                      \
    X(inventory_session, lengths, PROTO_LAYERS_MAX)                                                          \
    X(inventory_session, unconfirmed, PROTO_LAYERS_MAX)                                                      \
    X(inventory_reply, sessions, 65536)                                                                      \
    X(append_run, holders, PROTO_STEP_HOLDERS_MAX)                                                           \
    X(step_item, append, PROTO_STEP_ROWS_MAX + 1)                                                            \
    X(step_item, trace, PROTO_TRACE_BYTES)                                                                   \
    X(step_request, items, PROTO_STEP_ITEMS_MAX)                                                             \
    X(collective, id, PROTO_COLLECTIVE_ID_MAX)                                                               \
    X(step_reply, items, PROTO_STEP_ITEMS_MAX)                                                               \
    X(step_reply, traces, PROTO_MEMBERS_MAX)

#endif
