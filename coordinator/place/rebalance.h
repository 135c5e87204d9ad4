// SPDX-License-Identifier: Apache-2.0
// A balance: which chunks should go to which worker, so that each has as much of all sessions as it is fast. It is made
// on request, from the layouts as they are then, and moved.h carries it out; a newer one takes its place.
//
// Each worker's part is its share of the sum of speeds. Chunks leave those that have more than theirs, by half a chunk
// or more, for whoever is then the furthest below; never for a host that another copy is on, nor for want of memory.
#ifndef COORDINATOR_REBALANCE_H
#define COORDINATOR_REBALANCE_H

struct coordinator_sessions;
struct proto_request;

void coordinator_handle_rebalance(void *arg, struct proto_request *request); // arg: the room of sessions

// With each tick. Chunks that slow workers serve (cluster/slow.h) go to others by themselves: of each session what is
// more than their part of all workers' speeds, to its other members, or else to one that is not slow. At most once in
// 30 times --slow-after, and not before spread.h has given what it can to other holders. They do not come back by
// themselves when the worker is well again.
void coordinator_rebalance_slow(struct coordinator_sessions *sessions);
void coordinator_rebalance_ended(struct coordinator_sessions *sessions); // with each tick: says so, once

#endif
