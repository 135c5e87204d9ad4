// SPDX-License-Identifier: Apache-2.0
// The dialling end's state: the acceptor reads who dials from it, where the real transport has a packed
// hello. Private to the simulator.
#ifndef TESTS_SIM_SIM_DIAL_H
#define TESTS_SIM_SIM_DIAL_H

#include "proto/rpc/transport.h"
#include "tests/sim/sim_link.h"

enum sim_dial_state { SIM_BACKOFF, SIM_DIALLING, SIM_READY };

struct sim_dial {
    struct proto_channel *channel;
    enum sim_dial_state state;
    char endpoint[PROTO_ENDPOINT_MAX];
    bool nng;
    struct sim_link *link;      // DIALLING and READY
    struct common_timer *timer; // backoff, and the time for the hello
    uint64_t backoff_ns, heard_ns;
    struct proto_scratch scratch;
};

#endif
