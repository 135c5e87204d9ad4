// SPDX-License-Identifier: Apache-2.0
// Partial answers: the missing ranges of a reply.
#ifndef CLIENT_LIB_PARTIAL_H
#define CLIENT_LIB_PARTIAL_H

#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"
#include "proto/banyan.pb-c.h"

// Of a reply's missing ranges, item after item.
struct client_missing_reader {
    const uint8_t *bytes;
    size_t left;
};
// INTERNAL: what the reply declares is malformed, or was not asked for. RESOURCE_EXHAUSTED.
banyan_code client_partial_take(struct client_missing_reader *reader, const Banyan__Pb__AttendItemResult *pb,
                                banyan_partial *out, banyan_error *error);
void client_partial_clear(banyan_partial *partial); // results to nothing, without freeing; NULL is allowed

#endif
