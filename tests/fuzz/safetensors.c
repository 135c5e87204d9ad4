// SPDX-License-Identifier: Apache-2.0
// common/tensor/safetensors.c. Input: u8 what, then the file, or (bit 0) its JSON alone, whose length is put
// before it.
#include <string.h>

#include "common/tensor/safetensors.h"
#include "tests/fuzz/fuzz.h"

enum { DATA = 256 }; // bytes behind a JSON that comes alone

static uint8_t sink; // all bytes are read

static void read_file(const uint8_t *bytes, size_t len)
{
    struct common_safetensors *file;
    struct common_error err;
    uint8_t sum = 0;
    if (common_safetensors_parse(bytes, len, &file, &err) != COMMON_OK) {
        FUZZ_CHECK(err.message[0]);
        return;
    }
    for (size_t i = 0; i < common_safetensors_count(file); i++) {
        const struct common_safetensor *tensor = common_safetensors_at(file, i);
        const uint8_t *at = tensor->data;
        FUZZ_CHECK(tensor->n_dims <= COMMON_SAFETENSORS_DIMS && tensor->bytes <= len);
        FUZZ_CHECK(tensor->bytes == 0 || (at >= bytes + 8 && at + tensor->bytes <= bytes + len));
        for (size_t k = 0; k < tensor->bytes; k++)
            sum ^= at[k];
        FUZZ_CHECK(common_safetensors_find(file, tensor->name));
        *(volatile uint8_t *)&sink = sum;
    }
    common_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (!(fuzz_u8(&in) & 1)) {
        read_file(in.at, in.left);
        return 0;
    }
    uint64_t head = in.left; // little-endian
    uint8_t *bytes = calloc(1, 8 + in.left + DATA);
    FUZZ_CHECK(bytes);
    memcpy(bytes, &head, 8);
    if (in.left > 0)
        memcpy(bytes + 8, in.at, in.left);
    read_file(bytes, 8 + in.left + DATA);
    free(bytes);
    return 0;
}
