// SPDX-License-Identifier: Apache-2.0
// Reader of .safetensors files (8 bytes header length, JSON header, raw little-endian tensors). The file is
// mapped read-only; every offset, shape and size is checked against the file before anything is handed out.
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum common_dtype {
    COMMON_DTYPE_F32 = 1,
    COMMON_DTYPE_F16 = 2,
    COMMON_DTYPE_BF16 = 3,
    COMMON_DTYPE_I8 = 4,
    COMMON_DTYPE_F8_E4M3 = 5,
    COMMON_DTYPE_OTHER = 6
};

#define COMMON_SAFETENSORS_DIMS 8

struct common_safetensor {
    const char *name; // owned by the file
    enum common_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[COMMON_SAFETENSORS_DIMS];
    const void *data; // inside the mapping; alignment is the file's: may be 1
    size_t bytes;
};

struct common_safetensors; // opaque

// INVALID_ARGUMENT with the offending tensor named; NOT_FOUND when the file cannot be opened.
enum common_code common_safetensors_open(const char *path, struct common_safetensors **out,
                                         struct common_error *err);
// The same of a file's bytes in memory, which stays the caller's and must live until close.
enum common_code common_safetensors_parse(const void *data, size_t len, struct common_safetensors **out,
                                          struct common_error *err);
void common_safetensors_close(struct common_safetensors *file); // NULL is allowed

size_t common_safetensors_count(const struct common_safetensors *file);
const struct common_safetensor *common_safetensors_at(const struct common_safetensors *file, size_t index);
const struct common_safetensor *common_safetensors_find(const struct common_safetensors *file,
                                                        const char *name);

#endif
