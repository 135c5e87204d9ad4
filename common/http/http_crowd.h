// SPDX-License-Identifier: Apache-2.0
// How many connections --http has at a time: COMMON_HTTP_CONNECTIONS, so that those who open thousands of
// them take neither the daemon's descriptors nor the place of who asks whether it lives. Private to common/;
// http.h has what others use.
//
//   connections    beyond 64: those addresses that have the most lose some, until 48 are left. None is accepted for 1 ms
//   48 ─────────── meanwhile
//
// evhttp's own time is for each piece of a request. So a connection that has sent no whole request for ten
// seconds, or none for a minute after the last one, is closed here, however slowly it goes on.
//
// An address is one of IPv4, or 64 bits of IPv6. Loop thread.
#ifndef COMMON_HTTP_CROWD_H
#define COMMON_HTTP_CROWD_H

#include <stdbool.h>

#include "common/loop/loop.h"
#include "common/metrics/metrics.h"

struct common_http_crowd; // opaque
struct evconnlistener;

// Of what this listener accepts, which outlives it. NULL: no memory.
struct common_http_crowd *common_http_crowd_new(struct common_loop *loop, struct evconnlistener *listener);
void common_http_crowd_free(struct common_http_crowd *crowd); // NULL is allowed

// One has been accepted, by the listener's callback, and is not among the loop's events yet.
void common_http_crowd_enter(struct common_http_crowd *crowd);

// A whole request has come over this descriptor, and is being answered.
void common_http_crowd_asked(struct common_http_crowd *crowd, int fd);

// While one asks. False: no memory.
bool common_http_crowd_metrics(struct common_http_crowd *crowd, struct common_metrics *table);

#endif
