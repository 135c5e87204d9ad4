// SPDX-License-Identifier: Apache-2.0
#include "proto/rights/pass.h"

#include <string.h>

#include "common/memory/blob.h"

#define PREFIX "bp_"

static bool pass_mac(const struct common_secret *secret, const uint8_t bytes[PROTO_PASS_BYTES],
                     uint8_t out[COMMON_MAC_BYTES])
{
    const struct common_slice parts[] = {{"banyan pass", 11}, {bytes, PROTO_PASS_BYTES}};
    return common_mac(secret, parts, 2, out);
}

// The fields and their proof are a synthetic IV (Rogaway and Shrimpton 2006): the proof is over the fields in
// the clear, and what hides them is made of the proof. Both ways the same.
static bool pass_hide(const struct common_secret *secret, uint8_t bytes[PROTO_PASS_BYTES + COMMON_MAC_BYTES])
{
    uint8_t pad[COMMON_MAC_BYTES];
    _Static_assert(PROTO_PASS_BYTES <= COMMON_MAC_BYTES, "one pad");
    const struct common_slice parts[] = {{"banyan pass hidden", 18},
                                         {bytes + PROTO_PASS_BYTES, COMMON_MAC_BYTES}};
    if (!common_mac(secret, parts, 2, pad))
        return false;
    for (size_t i = 0; i < PROTO_PASS_BYTES; i++)
        bytes[i] ^= pad[i];
    return true;
}

static void put(uint8_t *at, uint64_t value, int n)
{
    for (int i = n - 1; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
}

static uint64_t get(const uint8_t *at, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value = value << 8 | at[i];
    return value;
}

bool proto_pass_make(const struct common_secret *secret, const struct proto_identity *who, uint64_t expires_s,
                     char out[PROTO_PASS_CHARS + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t bytes[PROTO_PASS_BYTES + COMMON_MAC_BYTES];
    put(bytes, who->tenant, 4);
    put(bytes + 4, who->token, 8);
    put(bytes + 12, who->access, 1);
    put(bytes + 13, expires_s, 8);
    if (!pass_mac(secret, bytes, bytes + PROTO_PASS_BYTES) || !pass_hide(secret, bytes))
        return false;
    memcpy(out, PREFIX, 3);
    for (size_t i = 0; i < sizeof bytes; i++) {
        out[3 + 2 * i] = digits[bytes[i] >> 4];
        out[4 + 2 * i] = digits[bytes[i] & 15];
    }
    out[PROTO_PASS_CHARS] = '\0';
    return true;
}

static int digit(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool proto_pass_check(const struct common_secret *secret, const void *credentials, size_t len, uint64_t now_s,
                      struct proto_identity *out)
{
    const uint8_t *text = credentials;
    uint8_t bytes[PROTO_PASS_BYTES + COMMON_MAC_BYTES], mac[COMMON_MAC_BYTES];
    if (len != PROTO_PASS_CHARS || memcmp(text, PREFIX, 3) != 0)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++) {
        int high = digit(text[3 + 2 * i]), low = digit(text[4 + 2 * i]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    if (!pass_hide(secret, bytes) || !pass_mac(secret, bytes, mac) ||
        !common_bytes_equal(mac, bytes + PROTO_PASS_BYTES, sizeof mac))
        return false;
    uint64_t access = get(bytes + 12, 1);
    if (now_s >= get(bytes + 13, 8) || access >= PROTO_ACCESSES)
        return false;
    *out = (struct proto_identity){.tenant = (uint32_t)get(bytes, 4),
                                   .access = (enum proto_access)access,
                                   .token = get(bytes + 4, 8)};
    return true;
}
