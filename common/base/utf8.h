// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include <stddef.h>
#include <stdint.h>

// Bytes of the character that stands here, RFC 3629; 0: none does. *code: its number.
size_t common_utf8_character(const char *text, size_t len, uint32_t *code);

#endif
