// SPDX-License-Identifier: Apache-2.0
// Masses and traces of a reply.
#ifndef CLIENT_LIB_MASS_H
#define CLIENT_LIB_MASS_H

#include <stddef.h>

#include "client/banyan.h"
#include "proto/banyan.pb-c.h"

struct client_mass_reader { // a reply's masses, item after item
    char **names;           // [n_names]
    size_t n_names;
    const float *values;
    size_t left;
};
// Takes the next item's; its wishes stay. pb NULL: the answer has none. INTERNAL: it makes no sense. The
// results are the caller's to free.
banyan_code client_mass_take(struct client_mass_reader *reader, const Banyan__Pb__MassInfo *pb,
                             banyan_mass *out, banyan_error *error);
void client_mass_clear(banyan_mass *mass); // results to nothing, without freeing; NULL is allowed
void client_trace_from_pb(const Banyan__Pb__WorkerTrace *pb, banyan_worker_trace *out);

#endif
