// SPDX-License-Identifier: Apache-2.0
// Names of hosts, as the machine's files have them now.
#ifndef COMMON_RESOLVER_H
#define COMMON_RESOLVER_H

#include <stdbool.h>

#include "common/loop/loop.h"

struct evdns_base;

// Frees the resolver of the last look-up, *resolver, and makes a new one: what stands in /etc/hosts and
// /etc/resolv.conf now counts, and a machine that is starting may get them later. Without the latter, or a
// name server in it, names of /etc/hosts are found all the same. No look-up may be under way with *resolver,
// which is NULL at first; the loop's thread alone; does not block but to read the two files. False: no
// memory, and *resolver is NULL.
bool common_resolver_renew(struct common_loop *loop, struct evdns_base **resolver);

// What has been asked of it is cancelled by then. libevent reports that in a later turn, and looks at the
// resolver: it goes after that. NULL is allowed.
void common_resolver_free(struct common_loop *loop, struct evdns_base *resolver);

#endif
