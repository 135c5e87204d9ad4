// SPDX-License-Identifier: Apache-2.0
// Hosts for workers that are network namespaces, joined by a bridge, in a network that belongs to this
// program alone and goes with it.
//
//     this program, the coordinator: 10.77.0.1 ── bridge ──┬── host 0: 10.77.0.2
//                                                          └── host 1: 10.77.0.3
#ifndef TESTS_CHAOS_NET_H
#define TESTS_CHAOS_NET_H

#include <stdbool.h>

enum { NET_HOSTS = 2 };
#define NET_HERE "10.77.0.1"

// Before any thread and any socket. NULL: the hosts are there; else why there are none (not root, no
// namespaces).
const char *net_start(void);
const char *net_address(int host);
const char *const *net_enter(int host); // a command that runs another one there: ends with NULL

enum net_cut { NET_FROM_ALL, NET_FROM_EACH_OTHER };
// Packets are swallowed; no process sees an error. NET_FROM_ALL: of this host. NET_FROM_EACH_OTHER: between
// the two.
void net_cut(enum net_cut how, int host);
void net_heal(void);

#endif
