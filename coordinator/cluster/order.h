// SPDX-License-Identifier: Apache-2.0
// What an operator has ordered of a worker, as the store keeps it (coordinator_batch_drain): it is drained, or
// only gets no new chunks; why, who said so and when.
//
//   reason NUL who NUL seconds NUL "cordon" or ""
//
// Version 0.1 wrote the reason alone, and reads it alone.
#ifndef COORDINATOR_ORDER_H
#define COORDINATOR_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coordinator_order {
    char reason[129]; // for people
    char by[65];      // a token's name; "": the token file's, or a cluster without tokens
    uint64_t at_s;    // since 1970; 0: not known
    bool cordon;      // what it has stays
};

#define COORDINATOR_ORDER_BYTES 256

// Bytes written, at most COORDINATOR_ORDER_BYTES.
size_t coordinator_order_pack(const struct coordinator_order *order, char out[COORDINATOR_ORDER_BYTES]);
// Of any bytes: what is too long is cut, what is missing is empty.
void coordinator_order_unpack(const void *bytes, size_t n, struct coordinator_order *out);

#endif
