// SPDX-License-Identifier: Apache-2.0
// At which addresses a worker listens, and which of its own it advertises.
//
//   coordinator is on   --edge-listen   it listens at      it advertises
//   this host           not given       127.0.0.1          127.0.0.1
//   another one         not given       all addresses      the one by which it reaches the coordinator
//   any                 0.0.0.0, [::]   all addresses      the one by which it reaches the coordinator
//   any                 one address     that address       that address
//   another one         loopback        –                  refused: nothing there could dial it
//
// With --advertise HOST it advertises HOST. "This host": a loopback address, localhost or a unix socket.
#ifndef WORKER_ADDRESS_H
#define WORKER_ADDRESS_H

#include <stdbool.h>

#include "common/base/status.h"
#include "worker/daemon/worker.h"

// guarded: the public endpoint may be plain tcp where others reach it (--insecure).
// Fills in what was not given: config->listen and edge_listen are NULL then. May look up the coordinator's name and block
// for that; one without an address yet passes. INVALID_ARGUMENT with a sentence: a wrong --advertise, or an edge endpoint
// that no coordinator could dial.
enum common_code worker_address_settle(struct worker_config *config, bool guarded, struct common_error *err);

#endif
