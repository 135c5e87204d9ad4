// SPDX-License-Identifier: Apache-2.0
// common/secure/secret.c: files of secrets and tokens. Input: u8 which, then the file's bytes.
#include <string.h>

#include "common/secure/secret.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    uint8_t which = fuzz_u8(&in);
    struct common_secret secret;
    struct common_error err;
    char token[COMMON_TOKEN_MAX + 1];
    fuzz_write_file("file", in.at, in.left);
    if (which & 1) {
        if (common_secret_load("file", &secret, &err) == COMMON_OK)
            FUZZ_CHECK(in.left >= 2 * COMMON_SECRET_BYTES && in.left <= 2 * COMMON_SECRET_BYTES + 2);
        else
            FUZZ_CHECK(err.message[0]);
    } else if (common_token_load("file", token, &err) == COMMON_OK) {
        size_t len = strlen(token);
        FUZZ_CHECK(len >= 8 && len <= COMMON_TOKEN_MAX && in.left >= len && memcmp(token, in.at, len) == 0);
    } else {
        FUZZ_CHECK(err.message[0]);
    }
    return 0;
}
