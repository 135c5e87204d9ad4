// SPDX-License-Identifier: Apache-2.0
// Sessions of 16-token chunks that are full and sealed, and copies that are made wrong. Each fails the test
// where it can't do what it says.
#ifndef TESTS_HERMETIC_SEALED_H
#define TESTS_HERMETIC_SEALED_H

#include <stdint.h>

struct coordinator_chunk;
struct sim_call;
struct sim_cluster;

struct coordinator_chunk *sealed_chunk(struct sim_cluster *cluster, uint64_t session, uint32_t index);
uint64_t sealed_seal(struct sim_cluster *cluster, uint64_t session, uint32_t index); // 0: none yet
// Waits until the first so many chunks have a seal.
void sealed_wait(struct sim_cluster *cluster, uint64_t session, uint32_t chunks);
// A new session, all of whose chunks are sealed.
uint64_t sealed_new(struct sim_cluster *cluster, uint32_t replicas, uint32_t tokens);
// A bit of that copy in its worker's memory.
void sealed_flip(struct sim_cluster *cluster, uint64_t session, uint32_t index, uint32_t copy);
// Asks for a comparison of all copies, and waits for it. Returns the last answer.
struct sim_call *sealed_scrub(struct sim_cluster *cluster, uint64_t session);
// A session of two chunks whose second one is full and has no seal, and of which the copies in the mask
// `wrong` differ, each in its own way.
uint64_t sealed_wrongly(struct sim_cluster *cluster, uint32_t replicas, uint32_t wrong);

#endif
