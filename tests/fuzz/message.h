// SPDX-License-Identifier: Apache-2.0
// Messages of any type from inputs, by their descriptors, so that mutations change fields and not the form.
// What answers have said (ids, numbers, names, tickets) is known from then on, and an input can name it: so
// requests are about sessions, chunks and terms that exist.
#ifndef TESTS_FUZZ_MESSAGE_H
#define TESTS_FUZZ_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "tests/fuzz/fuzz.h"

enum { FUZZ_KNOWN = 64, FUZZ_KNOWN_BYTES = 160 };

struct fuzz_known { // zeroed: nothing. The newest replaces the oldest
    uint64_t numbers[FUZZ_KNOWN];
    struct {
        uint8_t bytes[FUZZ_KNOWN_BYTES];
        size_t len;
    } texts[FUZZ_KNOWN];
    unsigned n_numbers, n_texts;
};

void fuzz_know_number(struct fuzz_known *known, uint64_t number);
void fuzz_know_text(struct fuzz_known *known, const void *bytes, size_t len);
void fuzz_know_message(struct fuzz_known *known, const ProtobufCMessage *message); // all that it says

// A message of this type; NULL is never returned. End it.
ProtobufCMessage *fuzz_message(struct fuzz_input *in, const ProtobufCMessageDescriptor *type,
                               const struct fuzz_known *known);
void fuzz_message_end(ProtobufCMessage *message);

#endif
