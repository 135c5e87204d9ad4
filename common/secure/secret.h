// SPDX-License-Identifier: Apache-2.0
// Secrets, tokens and their proofs. Their files are ours alone, or credentials that systemd hands over
// (CREDENTIALS_DIRECTORY). HMAC-SHA256 and random bytes come from libcrypto.
#ifndef COMMON_SECRET_H
#define COMMON_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define COMMON_SECRET_BYTES 32
#define COMMON_MAC_BYTES    32
#define COMMON_TOKEN_MAX    256

struct common_secret {
    uint8_t bytes[COMMON_SECRET_BYTES];
};

// Reads a secret file (64 hex digits and a newline). Refuses a file that others may read or write (mode &
// 077), a symbolic link, another owner, other contents. A process that is not root's takes those of root's
// files, too, that only root can write and that a group of the process may read (0440, 0640). NOT_FOUND when
// it is absent.
enum common_code common_secret_load(const char *path, struct common_secret *out, struct common_error *err);

// As load, but makes the file (mode 0600, O_EXCL, complete or not at all) when it is absent.
enum common_code common_secret_load_or_create(const char *path, struct common_secret *out,
                                              struct common_error *err);

// Reads a client token: one line of 8..256 printable characters. Same rules for the file. `out` is
// NUL-terminated.
enum common_code common_token_load(const char *path, char out[COMMON_TOKEN_MAX + 1],
                                   struct common_error *err);

// Reads a small private file whole (`what` it is, for sentences), by the same rules. *len <= cap; a longer
// file is INVALID_ARGUMENT. The caller wipes buf, also after an error.
enum common_code common_private_read(const char *path, const char *what, char *buf, size_t cap, size_t *len,
                                     struct common_error *err);

// HMAC-SHA256 over the concatenation of parts. Each part is preceded by its length (8 bytes little endian),
// so that ("ab","c") and ("a","bc") differ. False: no memory; `out` must not be used.
struct common_slice;
__attribute__((warn_unused_result)) bool common_mac(const struct common_secret *secret,
                                                    const struct common_slice *parts, size_t n_parts,
                                                    uint8_t out[COMMON_MAC_BYTES]);

#define COMMON_SHA256_BYTES 32
// False: no memory; `out` must not be used.
__attribute__((warn_unused_result)) bool common_sha256(const void *data, size_t len,
                                                       uint8_t out[COMMON_SHA256_BYTES]);

bool common_bytes_equal(const void *a, const void *b, size_t len); // constant time

#endif
