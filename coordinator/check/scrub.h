// SPDX-License-Identifier: Apache-2.0
// When full chunks are checked (seals.h): those without a seal as soon as they are full; those with one once in --scrub
// TIME, evenly spread, or when somebody asks. A look goes round all chunks, a part of them with each tick and each check
// that has ended, and begins a check where one is due and none of the holders has its hands full.
#ifndef COORDINATOR_SCRUB_H
#define COORDINATOR_SCRUB_H

struct coordinator_sessions;
struct proto_request;

void coordinator_scrub_tick(struct coordinator_sessions *sessions);
void coordinator_scrub_drain(struct coordinator_sessions *sessions); // phase of sessions

void coordinator_scrub_init(struct coordinator_sessions *sessions);
void coordinator_scrub_fini(struct coordinator_sessions *sessions); // who waits gets UNAVAILABLE

// Handler (proto_method.handle); arg: the room of sessions. It passes all chunks in slices, with turns for others between
// them: all who ask share what one turn may pass.
void coordinator_handle_scrub(void *arg, struct proto_request *request);

#endif
