// SPDX-License-Identifier: Apache-2.0
// proto/rights/pass.c. Input: u8 what, then (bit 0) a pass as it is presented, or what it says, u8 which byte
// of it is then another, u8 how.
#include <string.h>

#include "proto/rights/pass.h"
#include "tests/fuzz/fuzz.h"

static const struct common_secret secret = {{1, 2, 3}}, another = {{3, 2, 1}};

enum { NOW_S = 1000 };

static void check_made(struct fuzz_input *in)
{
    struct proto_identity who = {.tenant = fuzz_u32(in), .token = fuzz_u64(in)}, out;
    uint8_t access = fuzz_u8(in);
    uint64_t expires = fuzz_u64(in);
    uint8_t which = fuzz_u8(in), change = fuzz_u8(in);
    char text[PROTO_PASS_CHARS + 1];
    who.access = (enum proto_access)(access % (PROTO_ACCESSES + 1));
    bool good = expires > NOW_S && who.access < PROTO_ACCESSES;
    FUZZ_CHECK(proto_pass_make(&secret, &who, expires, text) && strlen(text) == PROTO_PASS_CHARS);
    FUZZ_CHECK(proto_pass_check(&secret, text, PROTO_PASS_CHARS, NOW_S, &out) == good);
    if (good)
        FUZZ_CHECK(out.tenant == who.tenant && out.token == who.token && out.access == who.access &&
                   !out.name[0]);
    // It is one of this cluster alone, whole, until it expires, as it was made.
    FUZZ_CHECK(!proto_pass_check(&another, text, PROTO_PASS_CHARS, NOW_S, &out));
    FUZZ_CHECK(!proto_pass_check(&secret, text, which % PROTO_PASS_CHARS, NOW_S, &out));
    FUZZ_CHECK(!proto_pass_check(&secret, text, PROTO_PASS_CHARS, expires, &out));
    text[which % PROTO_PASS_CHARS] ^= (char)(change ? change : 1);
    FUZZ_CHECK(!proto_pass_check(&secret, text, PROTO_PASS_CHARS, NOW_S, &out));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct proto_identity out;
    if (fuzz_u8(&in) & 1) {                          // a MAC that was not made is right in no input
        char *exact = malloc(in.left ? in.left : 1); // no byte behind it is read
        FUZZ_CHECK(exact);
        if (in.left > 0)
            memcpy(exact, in.at, in.left);
        FUZZ_CHECK(!proto_pass_check(&secret, exact, in.left, NOW_S, &out));
        free(exact);
    } else {
        check_made(&in);
    }
    return 0;
}
