// SPDX-License-Identifier: Apache-2.0
// Text as tokens: bytes of a file where the vocabulary is 256, else decimal token ids separated by white
// space.
#ifndef EXAMPLES_TEXT_H
#define EXAMPLES_TEXT_H

#include <stdint.h>

#include "common/base/status.h"

// Reads tokens [skip, skip + want) into *out (free it), *n of them where the file ends before. NOT_FOUND;
// RESOURCE_EXHAUSTED.
enum common_code text_read(const char *path, uint32_t vocab, uint64_t skip, uint64_t want, uint32_t **out,
                           uint64_t *n, struct common_error *err);

#endif
