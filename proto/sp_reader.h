// SPDX-License-Identifier: Apache-2.0
// nng's wire, as the serving end of REQ/REP reads it (docs/reference/wire.md, "nng"): bytes in, messages out.
// It knows no sockets and no frames. How much of a message is kept is for the owner to say, who has seen its
// beginning by then: nothing is allocated for a length that a peer has merely declared.
//
//   HELLO ─▶ LENGTH ─▶ TRACE ─▶ START ─▶ ADMIT ──proto_sp_keep──▶ BODY ─▶ SKIP ─▶ WHOLE
//              ▲         │ too deep                                         │      │
//              │         └──────────────────────────────────────▶ SKIP ─────┤      │
//              └────────────────────────────────────────────────────────────┴──────┘ proto_sp_next
//   BROKEN: from the first three
#ifndef PROTO_SP_READER_H
#define PROTO_SP_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/memory/blob.h"

#define PROTO_SP_REQ 0x30 // protocol numbers of nng's <nng/protocol/reqrep0/*.h>
#define PROTO_SP_REP 0x31

#define PROTO_SP_HELLO_BYTES 8
#define PROTO_SP_TRACE_MAX   8   // words: what nng's own REP takes (NNG_OPT_MAXTTL)
#define PROTO_SP_START_MAX   512 // bytes that the owner sees of a message before it says what to keep

// No message is longer: what is not kept is skipped, and still has to be sent.
#define PROTO_SP_MESSAGE_MAX (UINT64_C(1) << 40)

enum proto_sp_state {
    PROTO_SP_HELLO,
    PROTO_SP_LENGTH,
    PROTO_SP_TRACE,
    PROTO_SP_START,
    PROTO_SP_ADMIT,
    PROTO_SP_BODY,
    PROTO_SP_SKIP,
    PROTO_SP_WHOLE,
    PROTO_SP_BROKEN,
};

struct proto_sp_reader {
    enum proto_sp_state state;
    bool unwanted;   // SKIP: of a message that is not reported to the owner
    unsigned have;   // bytes in `small`
    unsigned want;   // START: how many there will be
    const char *why; // BROKEN
    uint64_t len;    // of the message without its trace
    uint64_t left;   // of its bytes, those still to come
    uint8_t trace[4 * PROTO_SP_TRACE_MAX];
    unsigned trace_len;
    uint8_t small[PROTO_SP_START_MAX];
    struct common_blob *blob; // what is kept of the message; NULL: nothing
    size_t kept;
    uint64_t owner; // of blobs (common/memory/block.h)
};

enum proto_sp_event {
    PROTO_SP_MORE,    // all bytes are taken
    PROTO_SP_ASK,     // `small` has the first `have` of the `len` bytes of a message: proto_sp_keep is next
    PROTO_SP_MESSAGE, // blob, trace: proto_sp_next is next
    PROTO_SP_FAILED,  // `why`: the peer does not speak this wire
};

void proto_sp_reader_init(struct proto_sp_reader *reader);
void proto_sp_reader_fini(struct proto_sp_reader *reader);

// The 8 bytes that an end with this protocol number begins with.
void proto_sp_hello(uint16_t protocol, uint8_t out[PROTO_SP_HELLO_BYTES]);

// Takes bytes up to the next event: *at and *n move on.
enum proto_sp_event proto_sp_take(struct proto_sp_reader *reader, const uint8_t **at, size_t *n);

// After ASK: keeps the message's first `bytes` (at most `len`), in one blob, and skips the others. false: out
// of memory; another number may be tried.
bool proto_sp_keep(struct proto_sp_reader *reader, size_t bytes);

// After MESSAGE: forgets it.
void proto_sp_next(struct proto_sp_reader *reader);

// Whether the next byte is the first of a message.
bool proto_sp_between(const struct proto_sp_reader *reader);

// Where the next bytes of what is kept may be read to directly, and how many; 0: only proto_sp_take will do.
size_t proto_sp_room(struct proto_sp_reader *reader, uint8_t **to);
void proto_sp_filled(struct proto_sp_reader *reader, size_t n); // that many of them have come

#endif
