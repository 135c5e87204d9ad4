// SPDX-License-Identifier: Apache-2.0
// Tenants do not see which workers a cluster has. No text of a failure contains a worker's name: names are in
// the list that comes with it (proto_status.workers), which tenants do not get and others read behind the text.
#ifndef COORDINATOR_HIDE_H
#define COORDINATOR_HIDE_H

#include <stddef.h>

#include "proto/rights/access.h"
#include "proto/rpc/status.h"

// Whether the caller may see workers: operators and admins may.
static inline bool coordinator_shows_workers(const struct proto_identity *who)
{
    return who->access >= PROTO_ACCESS_OPERATOR;
}

// Appends " (worker w1)" or " (workers w1, w2)" to a text of `bytes` bytes; nothing where there are no names.
// Names that do not fit are left out whole.
void coordinator_name_workers(char *text, size_t bytes, const char *const *names, size_t n);

// A failure for a caller: with the names behind its message if it may see them, else without the list.
void coordinator_status_for(bool shows_workers, struct proto_status *status);

#endif
