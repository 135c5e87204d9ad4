// SPDX-License-Identifier: Apache-2.0
// The network of a simulation: in the place of proto's transports (proto/stream/, proto/sp_*.c,
// proto/nng_channel.c). The common halves, rpc_channel.c and rpc_server.c, are the real ones, and so are
// frames and messages: what a handler sees was packed, copied and unpacked. A link joins a channel with a
// server that listens on its endpoint, in this program; a one-way of a link is in order; nothing is delivered
// on the stack of the sender.
//
//   loop A: proto_channel ──dial──▶ one way ──▶ proto_server :loop B
//                         ◀── one way ◀── answers
//
// Faults are set between loops (processes), for links that are there and for later ones. NULL: any loop.
//
// Other than in the real transports: a frame leaves its sender whole and at once (`sent` runs on the stack of
// the reply, borrowed bytes are free); a hello is one round trip without packed messages, after which proof
// or token are compared; links do not stall (30 s without a byte), and a host acknowledges
// (proto_channel_options.quiet_ns) while neither way of the link is held, whatever is swallowed; what nng and
// TCP put around frames does not exist, so nothing of it can be damaged; nng endpoints have links, too: a
// caller that goes is detected at once, calls of a lost link end with UNAVAILABLE at once and are not sent
// again, and none of the limits of a connection hold. Cancellation does not travel over nng, as in the real
// one.
#ifndef TESTS_SIM_SIM_NET_H
#define TESTS_SIM_SIM_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop/loop.h"

// Time on the way, drawn between the two for each frame; 20 us at the beginning of a world.
void sim_net_delay(uint64_t least_ns, uint64_t most_ns);

// From now on what `from` sends to `to` stays on its way (a black hole, or a peer that does not read);
// neither end sees that. Dials do not arrive, either. Release delivers it all, in order.
void sim_net_hold(const struct common_loop *from, const struct common_loop *to);
void sim_net_release(const struct common_loop *from, const struct common_loop *to);

// From now on what `from` sends to `to` is acknowledged on its way and thrown away, dials and closes as well;
// neither end sees that. So behaves a relay that swallows.
void sim_net_swallow(const struct common_loop *from, const struct common_loop *to);
void sim_net_pass(const struct common_loop *from, const struct common_loop *to);
// The same of the links that are there now, for as long as they are there, also when all is healed; later
// ones are whole.
void sim_net_swallow_links(const struct common_loop *from, const struct common_loop *to);

// Breaks all links between a and b (in both directions): what is on its way is lost, and both ends see it
// after a delay. They may dial again.
void sim_net_cut(const struct common_loop *a, const struct common_loop *b);

// As cut, but only `told` sees it. For the other end the links are half open: they stay until it sends on
// one, or until all is healed. `told` may dial again meanwhile, and then has two.
void sim_net_half_open(const struct common_loop *told, const struct common_loop *other);

// Whether this process is of a build that speaks an older version of the wire: links with others are refused.
void sim_net_old(const struct common_loop *loop, bool old);

// As cut, and dials between them are refused until mend: a network that is down and says so.
void sim_net_part(const struct common_loop *a, const struct common_loop *b);
void sim_net_mend(const struct common_loop *a, const struct common_loop *b);

// From now on one in so many of the frames that `from` sends to `to` has one bit flipped, anywhere in it.
void sim_net_flip(const struct common_loop *from, const struct common_loop *to, uint32_t one_in);
uint64_t sim_net_flipped(void); // in this world

// Forgets all faults: releases what is held, mends what is down, passes what was swallowed. Delays stay.
void sim_net_heal(void);

uint32_t sim_net_links(void);  // made and not yet closed at both ends
uint64_t sim_net_frames(void); // delivered in this world

#endif
