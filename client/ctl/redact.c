// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/redact.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define HEX_LEAST 64

static bool begins(const char *text, size_t left, const char *word)
{
    size_t n = strlen(word);
    return left >= n && memcmp(text, word, n) == 0;
}

static size_t hex_run(const char *text, size_t left)
{
    size_t n = 0;
    while (n < left && isxdigit((unsigned char)text[n]))
        n++;
    return n;
}

// Bytes up to the first line of a private key in PEM; 0: none begins here.
static size_t key_head(const char *text, size_t left)
{
    static const char word[] = "PRIVATE KEY-----";
    const char *at =
        begins(text, left, "-----BEGIN ") ? memmem(text, left < 64 ? left : 64, word, strlen(word)) : NULL;
    return at ? (size_t)(at - text) + strlen(word) : 0;
}

// To the end of "-----END …", or of the text.
static size_t key_bytes(const char *text, size_t left)
{
    const char *end = memmem(text, left, "-----END", 8);
    return end ? (size_t)(end - text) : left;
}

size_t ctl_redact(char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        size_t left = len - at, skip = 1, hide = 0, head = key_head(text + at, left);
        if (head) {
            skip = head;
            hide = key_bytes(text + at + skip, left - skip);
        } else if (begins(text + at, left, "Bearer ")) {
            skip = strlen("Bearer ");
            while (at + skip + hide < len && !isspace((unsigned char)text[at + skip + hide]))
                hide++;
        } else if (isxdigit((unsigned char)text[at])) {
            size_t run = hex_run(text + at, left);
            skip = run < HEX_LEAST ? run : 0;
            hide = run < HEX_LEAST ? 0 : run;
        }
        for (size_t i = 0; i < hide; i++)
            if (text[at + skip + i] != '\n')
                text[at + skip + i] = 'x';
        at += skip + hide;
    }
    return len;
}
