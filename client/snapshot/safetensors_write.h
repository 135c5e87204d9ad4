// SPDX-License-Identifier: Apache-2.0
// Writer of .safetensors files: 8 bytes header length, JSON header padded with spaces to a multiple of 8, raw
// little-endian tensors. Blocks.
#ifndef CLIENT_SAFETENSORS_WRITE_H
#define CLIENT_SAFETENSORS_WRITE_H

#include <stddef.h>

#include "common/tensor/safetensors.h"

// Writes `path` whole or not at all (a temporary file beside it is renamed), where it is a regular file or
// not there. What a link leads to, a device or a pipe is opened and written. Of each tensor `name`, `dtype`
// (F32, F16, BF16, I8, F8_E4M3), dims and data are read; `bytes` must be their product. INVALID_ARGUMENT for
// a tensor that does not fit its shape or a name twice; INTERNAL, with the system's reason, when the file
// cannot be written.
enum common_code client_safetensors_write(const char *path, const struct common_safetensor *tensors,
                                          size_t n_tensors, struct common_error *err);

// What such a file begins with: header length and header; the tensors' bytes follow, in their order, without
// gaps. `data` is not read. *out is to be freed.
enum common_code client_safetensors_head(const struct common_safetensor *tensors, size_t n_tensors,
                                         void **out, size_t *out_len, struct common_error *err);

#endif
