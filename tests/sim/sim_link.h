// SPDX-License-Identifier: Apache-2.0
// Links, between the two ends of the simulated transport (sim_channel.c dials, sim_server.c accepts). Private
// to the simulator.
#ifndef TESTS_SIM_SIM_LINK_H
#define TESTS_SIM_SIM_LINK_H

#include "common/memory/blob.h"
#include "proto/rpc/transport.h"
#include "tests/sim/sim_event.h"

enum sim_message_kind {
    SIM_DIAL,     // to the acceptor: a link is asked for
    SIM_ACCEPTED, // to the dialler
    SIM_REFUSED,  // to the dialler, with code and text; the link is over
    SIM_FRAME,
    SIM_CLOSED, // the other end closed, after all that it sent
    SIM_BROKEN, // the link broke: overtakes everything, is never held
};

struct sim_message {
    struct sim_message *next;
    enum sim_message_kind kind;
    uint64_t due_ns;
    struct common_blob *blob; // of a frame
    enum common_code code;
    char text[160];
};

enum sim_side { SIM_DIALLER, SIM_ACCEPTOR };

struct sim_link;

// Takes a message; it may close its end. False: not now (it is delivered again after sim_link_resume).
typedef bool (*sim_take_fn)(void *owner, struct sim_message *message);

struct sim_way { // towards one end
    struct sim_link *link;
    enum sim_side to;
    struct sim_event event;
    struct sim_message *head, **tail;
    uint64_t last_ns; // nothing overtakes
    size_t bytes;
    bool stuck; // head is due, and held or not taken
};

// A machine: by its name, which is the same when its process has another life. The loop may have any address
// then, also that of one before, and is looked at where there is no name.
struct sim_place {
    const struct common_loop *loop;
    char name[24];
};

struct sim_link {
    struct sim_link *next, *prev;
    struct common_loop *loops[2]; // by side
    struct sim_place places[2];
    void *owners[2]; // NULL once that end is closed
    sim_take_fn take[2];
    struct sim_way ways[2]; // towards that side
    bool gone[2];           // that side has forgotten the link: what arrives for it is answered with a reset
    bool reset;             // which is on its way
    bool swallows[2];       // what that side sends does not arrive
    unsigned refs;          // open ends, and a delivery under way
};

// Whether what either end sends arrives: what a host acknowledges, whatever its process does.
bool sim_link_carries(const struct sim_link *link);

bool sim_net_listens(const char *endpoint); // some process
// Begins a link from a dialler: the way towards the listener of `endpoint` carries SIM_DIAL. NULL: there is
// no listener, or the network between them is down.
struct sim_link *sim_link_dial(struct common_loop *loop, const char *endpoint, sim_take_fn take, void *owner);

// One end is of a build that speaks an older version of the wire.
bool sim_link_versions_differ(const struct sim_link *link);

// Sends from a side. A muted loop sends nothing but its close.
void sim_link_send(struct sim_link *link, enum sim_side from, struct sim_message *message);
struct sim_message *sim_message_new(enum sim_message_kind kind);
void sim_message_free(struct sim_message *message);
struct common_blob *sim_gather_blob(const struct proto_gather *gather);

// Closes an end: what it sent arrives, then SIM_CLOSED; what was on its way to it is gone.
void sim_link_close(struct sim_link *link, enum sim_side side);
void sim_link_resume(struct sim_link *link, enum sim_side side); // messages that were not taken arrive again

// A request that has come: its rules (sim_serve.h), then dispatch. Before a server's requests go: those held
// of it.
void sim_serve(struct proto_request *request, bool authentic);
void sim_serve_closed(const struct proto_server *server);

// Who listens where. Acceptors get SIM_DIAL with link->owners[SIM_ACCEPTOR] NULL: `accept` sets owner and
// take.
struct sim_listener {
    struct sim_listener *next;
    char endpoint[PROTO_ENDPOINT_MAX];
    struct common_loop *loop;
    void (*accept)(struct sim_listener *listener, struct sim_link *link);
    void *owner;
};
bool sim_listener_add(struct sim_listener *listener); // false: the address is taken
void sim_listener_remove(struct sim_listener *listener);
uint16_t sim_port(void); // one that is free

#endif
