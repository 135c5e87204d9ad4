// SPDX-License-Identifier: Apache-2.0
// Why a call has failed, for programs: no program compares the sentence that comes with it. A reason crosses
// the wire as a number (Detail.number in banyan.proto) and keeps it forever: a new one goes to the end.
// client/banyan.h has the same numbers, with what each of them means and what to do.
#ifndef PROTO_REASON_H
#define PROTO_REASON_H

#include <stdint.h>

#define PROTO_REASONS(X)                                                                                     \
    X(TOKEN, 1)                                                                                              \
    X(HOLE, 2)                                                                                               \
    X(FORGOTTEN, 3)                                                                                          \
    X(HASH_MISMATCH, 4)                                                                                      \
    X(OLD_TICKET, 5)                                                                                         \
    X(MISSING_RANGE, 6)                                                                                      \
    X(WORKER_LOST, 7)                                                                                        \
    X(QUARANTINE, 8)                                                                                         \
    X(RESTORED, 9)                                                                                           \
    X(COVERAGE, 10)                                                                                          \
    X(OLD_EPOCH, 11)                                                                                         \
    X(OLD_PLAN, 12)                                                                                          \
    X(COLD, 13)                                                                                              \
    X(FULL, 14)                                                                                              \
    X(OLD_INCARNATION, 15)                                                                                   \
    X(OLD_WRITE, 16)                                                                                         \
    X(UNCONFIRMED, 17)                                                                                       \
    X(OLD_COMMIT, 18)                                                                                        \
    X(OLD_TERM, 19)                                                                                          \
    X(QUOTA, 20)                                                                                             \
    X(AUDIT_LOG, 21)                                                                                         \
    X(LIMIT, 22)                                                                                             \
    X(OTHER_BYTES, 23)                                                                                       \
    X(TLS, 24)                                                                                               \
    X(CREDENTIALS, 25)                                                                                       \
    X(ACCESS, 26)                                                                                            \
    X(UNREACHABLE, 27)                                                                                       \
    X(NO_ANSWER, 28)                                                                                         \
    X(NO_WORKER, 29)                                                                                         \
    X(NO_SESSION, 30)                                                                                        \
    X(UNKNOWN_WORKER, 31)                                                                                    \
    X(NAME_TAKEN, 32)                                                                                        \
    X(PAST_END, 33)                                                                                          \
    X(STORE, 34)                                                                                             \
    X(FILE, 35)

#define PROTO_REASON_ENUM(name, number) PROTO_REASON_##name = (number),
enum proto_reason {
    PROTO_REASON_NONE = 0, // the status code is enough, or the peer's reason is newer than this build
    PROTO_REASONS(PROTO_REASON_ENUM) PROTO_REASON_COUNT
};
#undef PROTO_REASON_ENUM

// "HOLE"; "" for NONE and for a number outside the enum. Static storage.
const char *proto_reason_name(enum proto_reason reason);

// What a peer sent. A number of a newer build is NONE. Builds that send names alone leave the number 0: then
// the name counts. Neither may be trusted to be anything in particular; name is not NULL.
enum proto_reason proto_reason_of(uint32_t number, const char *name);

#endif
