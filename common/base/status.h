// SPDX-License-Identifier: Apache-2.0
// The one status type. Codes and numbers are gRPC's canonical ones, so that they can cross the wire as they
// are. A function that can fail returns a code and, where it takes a `struct common_error *`, puts the
// sentence for the user there. A NULL error pointer is allowed everywhere.
#ifndef COMMON_STATUS_H
#define COMMON_STATUS_H

#include <stdbool.h>

enum common_code {
    COMMON_OK = 0,
    COMMON_CANCELLED = 1,
    COMMON_UNKNOWN = 2,
    COMMON_INVALID_ARGUMENT = 3, // wrong whatever the state: shape, size, enum
    COMMON_DEADLINE_EXCEEDED = 4,
    COMMON_NOT_FOUND = 5, // unknown, zero or deleted handle
    COMMON_ALREADY_EXISTS = 6,
    COMMON_PERMISSION_DENIED = 7,   // known caller, not his to do; another session's ticket
    COMMON_RESOURCE_EXHAUSTED = 8,  // memory, quota, queue: nothing was changed
    COMMON_FAILED_PRECONDITION = 9, // the state forbids it: other bytes at an acknowledged position, a hole
    COMMON_ABORTED = 10,            // overtaken: epoch, term or incarnation rose; may be sent again
    COMMON_OUT_OF_RANGE = 11,       // position beyond the end
    COMMON_UNIMPLEMENTED = 12,
    COMMON_INTERNAL = 13,    // our bug
    COMMON_UNAVAILABLE = 14, // a peer is not there now; may be sent again
    COMMON_DATA_LOSS = 15,   // no holder is left for a committed token
    COMMON_UNAUTHENTICATED = 16,
    COMMON_CODE_COUNT = 17,
    COMMON_IN_PROGRESS = 100, // not a failure: the answer comes later. Never crosses the wire
};

#define COMMON_ERROR_BYTES 384

struct common_error {
    enum common_code code;
    char message[COMMON_ERROR_BYTES]; // UTF-8, one line, says what to do
};

// Fills *err (may be NULL) and returns code, so that `return common_error_set(err, ...)` reads well.
enum common_code common_error_set(struct common_error *err, enum common_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// "INVALID_ARGUMENT"; "CODE_?" for a number outside the enum. Static storage.
const char *common_code_name(enum common_code code);

// Whether `value` (from the wire) is one of the canonical codes 0..16.
bool common_code_valid(int value);

#endif
