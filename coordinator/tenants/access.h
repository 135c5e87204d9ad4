// SPDX-License-Identifier: Apache-2.0
// Which access may call which method of clients: the one table. docs/operating/tenants.md shows it to people,
// and tests/coordinator/tenants_test.c holds the two together.
#ifndef COORDINATOR_ACCESS_H
#define COORDINATOR_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/rights/access.h"
#include "proto/rpc/rpc.h"

// Whether the table has the method at all: all that clients may call are in it, others nobody may.
bool coordinator_access_known(uint32_t method);

// Without what the call says: an append is more than an attend (coordinator_access_permits).
bool coordinator_access_allows(enum proto_access access, uint32_t method);

// Whether who asks may have this done. PERMISSION_DENIED with a sentence. Daemons: always, their roles were
// looked at.
enum common_code coordinator_access_permits(const struct proto_request *request, struct common_error *err);

#endif
