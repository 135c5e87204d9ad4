// SPDX-License-Identifier: Apache-2.0
// The coordinator: its rooms and what carries them. Everything belongs to the loop thread; nothing here is
// locked. Read core.h, turn.h and the rooms' own headers (cluster/cluster.h, session/sessions.h,
// steps/steps.h) next.
//
//   main, daemon, http, health, limits, service, events_service, coordinator
//        │
//        ▼
//      steps ──▶ sessions ──▶ cluster ──▶ store            each ──▶ core, turn
//      calls,    what is      workers,    what
//      frames    kept, where  trees       survives
//
// An operation that waits (for workers, for the store) lives in a heap object of its own and ends by its
// callback. It finds its session again by id, because the session may be gone by then, unless it holds the
// session exclusively or counts in `session->shared`.
#ifndef COORDINATOR_STATE_H
#define COORDINATOR_STATE_H

#include "coordinator/cluster/cluster.h"
#include "coordinator/core.h"
#include "coordinator/session/sessions.h"
#include "coordinator/steps/steps.h"
#include "coordinator/tenants/quota.h"
#include "coordinator/tenants/tenants.h"
#include "proto/rpc/rpc.h"

struct coordinator_backups;
struct coordinator_event_readers;
struct coordinator_trail;

extern const struct proto_method coordinator_methods[]; // that it serves; ends with method 0

struct coordinator {
    struct coordinator_core core;
    struct coordinator_store *store;
    struct coordinator_tenants tenants;
    struct coordinator_quotas quotas;
    struct coordinator_cluster cluster;
    struct coordinator_sessions sessions;
    struct coordinator_steps steps;
    struct proto_server *server;
    bool door_open; // only this machine reaches it, or --insecure: without any token every client is an admin
    uint64_t tokens_looked_ns;
    struct common_timer *tick; // twice per heartbeat: missed beats, idle sessions, idle plans
    struct coordinator_event_readers *event_readers; // events_service.h
    struct coordinator_trail *trail;                 // the audit log (trail/trail.h); NULL: there is none
    struct coordinator_backups *backups;             // backup_service.h; NULL: none was asked for
};

#endif
