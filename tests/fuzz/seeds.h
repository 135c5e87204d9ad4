// SPDX-License-Identifier: Apache-2.0
// What the parts of the program of seeds share (seeds.c).
#ifndef TESTS_FUZZ_SEEDS_H
#define TESTS_FUZZ_SEEDS_H

#include <protobuf-c/protobuf-c.h>

#include "tests/fuzz/fuzz.h"

struct seed { // bytes of an input
    uint8_t *bytes;
    size_t len;
};

void seed_put(struct seed *seed, const void *bytes, size_t len);
void seed_u8(struct seed *seed, uint8_t value);
void seed_u16(struct seed *seed, size_t value);
void seed_write(struct seed *seed, const char *target, const char *name); // into a file; empty afterwards

// Of a field's number: what the cluster's targets know by then (message.h), the nth of it.
#define SEED_KNOWN(nth) (UINT64_C(0xfeedfeed00000000) + (nth))
// A message in the form of message.c. A text "?n" is the nth that is known.
void seed_message(struct seed *seed, const ProtobufCMessage *message);
// One with every field, of small values; end it with fuzz_message_end.
ProtobufCMessage *seed_full(const ProtobufCMessageDescriptor *type);

void seed_cluster(void);  // seeds_cluster.c: coordinator, members, worker
void seed_snapshot(void); // seeds_snapshot.c
void seed_disk(void);     // seeds_disk.c
void seed_tls(void);      // seeds_tls.c: tls, certificate, pass, trail

#endif
