// SPDX-License-Identifier: Apache-2.0
// Why nng does not reach an endpoint: nng itself does not report failed attempts to connect.
#ifndef PROTO_NNG_PROBE_H
#define PROTO_NNG_PROBE_H

#include <stdint.h>

#include "proto/rpc/endpoint.h"

// Connects once, beside nng, and reports the outcome for people: the name has no address, nothing listens,
// what listens does not speak nng, or it does and has only not answered. Blocks, for time_ns at most. Any
// thread but a loop's.
void proto_nng_probe(const struct proto_endpoint *endpoint, uint64_t time_ns, char out[COMMON_ERROR_BYTES]);

#endif
