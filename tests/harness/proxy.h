// SPDX-License-Identifier: Apache-2.0
// Links between processes that a test can break: a thread that accepts connections at an endpoint and passes
// what they say on to another one. Functions may be called from any thread; what they ask for is done when
// they return.
//
//     worker ──▶ route ──▶ coordinator          PASS     bytes go through, but those that are swallowed
//                                               HOLD     nothing goes through, both ends stay open
//                                               REFUSE   who dials is turned away
#ifndef TESTS_HARNESS_PROXY_H
#define TESTS_HARNESS_PROXY_H

#include <stdbool.h>
#include <stdint.h>

struct harness_proxy;

enum harness_proxy_mode { HARNESS_PASS, HARNESS_HOLD, HARNESS_REFUSE };
enum harness_proxy_side { HARNESS_DIALLER, HARNESS_LISTENER };

#define HARNESS_PROXY_ROUTES 64

// NULL when there is no thread or no memory.
struct harness_proxy *harness_proxy_start(void);
void harness_proxy_stop(struct harness_proxy *proxy); // NULL is allowed

// A route from a port of this address (NULL: 127.0.0.1) to `target`: "tcp://HOST:PORT" or "unix://PATH". The
// number of the route; -1 with a line on stderr when it cannot listen.
int harness_proxy_add(struct harness_proxy *proxy, const char *address, const char *target);
// Where dialers find a route: "tcp://ADDRESS:PORT". Valid until stop.
const char *harness_proxy_endpoint(const struct harness_proxy *proxy, int route);

// A route in front of a unix socket that its owner advertises by itself, as a worker its edge endpoint.
// Whenever `gate` is dialled, the owner is there: its socket is moved aside and the route takes its place, if
// that has not happened yet. Before the owner is started again: harness_proxy_vacate.
int harness_proxy_add_before(struct harness_proxy *proxy, const char *path, int gate);
void harness_proxy_vacate(struct harness_proxy *proxy, int route);

void harness_proxy_set(struct harness_proxy *proxy, int route, enum harness_proxy_mode mode);
// From now on what this side of a route's connections sends is read, so acknowledged, and thrown away; those
// that come later are accepted and treated likewise. dialler: of connections of this process alone (a route
// before a unix socket can see whose they are); 0: of all. With on false all of the route passes again.
void harness_proxy_swallow(struct harness_proxy *proxy, int route, enum harness_proxy_side side, int dialler,
                           bool on);
// Ends all connections of a route, both ends with a reset where they are TCP.
void harness_proxy_reset(struct harness_proxy *proxy, int route);
// Half open: one end of each connection is reset, the other stays open and what it says is thrown away.
void harness_proxy_halve(struct harness_proxy *proxy, int route, enum harness_proxy_side reset);
// Resets what harness_proxy_halve has left.
void harness_proxy_reset_halves(struct harness_proxy *proxy, int route);
// How many connections a route has. dialler: of this process alone (as of harness_proxy_swallow); 0: of all.
unsigned harness_proxy_connections(struct harness_proxy *proxy, int route, int dialler);

#endif
