// SPDX-License-Identifier: Apache-2.0
// Specs, as callers and as messages have them. Any thread.
#ifndef CLIENT_LIB_SPEC_H
#define CLIENT_LIB_SPEC_H

#include "client/lib/core/internal.h"
#include "proto/banyan.pb-c.h"

// Takes a spec as the coordinator says it (or as the caller asked for it). Any thread.
// *layers [pb->layers] is to be freed, and what *out points to by client_spec_free.
banyan_code client_spec_from_pb(const Banyan__Pb__Spec *pb, banyan_spec *out, struct client_layer **layers,
                                banyan_error *error);
void client_spec_free(banyan_spec *spec);
// The message borrows from the caller's spec. *memory is to be freed after it.
banyan_code client_spec_to_pb(const banyan_spec *spec, Banyan__Pb__Spec *pb, void **memory,
                              banyan_error *error);

#endif
