// SPDX-License-Identifier: Apache-2.0
// What fuzz targets share. A target is one file with LLVMFuzzerTestOneInput: clang's libFuzzer calls it with
// inputs that it invents, replay.c with those that are kept (corpus/TARGET). The same input always does the
// same: a target sees no clock, no chance and no file but its own.
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Returns 0. What must not be ends the process (FUZZ_CHECK, assertions, sanitizers).
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
// Once, before the first input.
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define FUZZ_CHECK(holds)                                                                                    \
    do {                                                                                                     \
        if (!(holds)) {                                                                                      \
            fprintf(stderr, "%s:%d: %s: does not hold: %s\n", __FILE__, __LINE__, __func__, #holds);         \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

// ---- an input, taken apart from its front; behind its end there are zeros -------------------------------

struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

uint8_t fuzz_u8(struct fuzz_input *in);
uint16_t fuzz_u16(struct fuzz_input *in); // little-endian, as the next two
uint32_t fuzz_u32(struct fuzz_input *in);
uint64_t fuzz_u64(struct fuzz_input *in);
// At most `want` bytes; *len says how many are there.
const uint8_t *fuzz_bytes(struct fuzz_input *in, size_t want, size_t *len);
// The same as a string, of what comes before the next zero byte; free it.
char *fuzz_text(struct fuzz_input *in, size_t most);

// ---- for targets that need files ------------------------------------------------------------------------

// Makes a folder of this process's own the working directory; it is removed at exit.
void fuzz_enter_folder(void);
void fuzz_write_file(const char *name, const void *data, size_t len); // mode 0600

void fuzz_quiet(void); // logs nothing, and prints nothing on stdout

#endif
