// SPDX-License-Identifier: Apache-2.0
// What a session is: its specification and name, checked.
#ifndef COORDINATOR_SPEC_H
#define COORDINATOR_SPEC_H

#include "proto/banyan.pb-c.h"
#include "proto/rpc/status.h"

// Checks the specification and fills in its defaults.
enum common_code coordinator_spec_check(Banyan__Pb__Spec *spec, struct proto_status *status);
Banyan__Pb__Spec *coordinator_spec_copy(const Banyan__Pb__Spec *spec); // of one that is within its limits
enum common_code coordinator_name_check(const char *name, struct proto_status *status); // "" is allowed

#endif
