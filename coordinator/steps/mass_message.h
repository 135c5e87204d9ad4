// SPDX-License-Identifier: Apache-2.0
// Masses as messages: one table of workers' names a reply, one info an item, the values as they are.
#ifndef COORDINATOR_MASS_MESSAGE_H
#define COORDINATOR_MASS_MESSAGE_H

#include "coordinator/steps/mass.h"
#include "proto/rpc/rpc.h"

struct coordinator_cluster;

struct coordinator_mass_message {
    Banyan__Pb__MassInfo **infos; // [n]; NULL where there are no masses
    char **names;                 // [n_names] of the reply
    size_t n_names;
    struct proto_tensor_out tensor; // with values: n_pieces > 0
    void *block;
    char (*numbered)[32]; // names, where they are hidden; NULL: they are not
    size_t n;
};
// Borrows the masses until the tensor has been sent. Without `named` workers are numbered. False: out
// of memory.
bool coordinator_mass_message_init(struct coordinator_mass_message *out,
                                   struct coordinator_masses *const *masses, size_t n, bool named);
void coordinator_mass_message_fini(struct coordinator_mass_message *message);

#endif
