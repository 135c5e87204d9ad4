// SPDX-License-Identifier: Apache-2.0
// SipHash-2-4: a keyed pseudorandom function of short messages (Aumasson and Bernstein 2012,
// https://www.aumasson.jp/siphash/siphash.pdf). Without the key its values tell nothing of the message. Not a
// hash to find equal contents with (hash.h), and no proof of the sender (secret.h): 64 bits are too few for
// that.
#ifndef COMMON_SIPHASH_H
#define COMMON_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

// key: the paper's k0 and k1, each the little-endian number of 8 bytes of its key. Any thread.
uint64_t common_siphash(const uint64_t key[2], const void *data, size_t len);

#endif
