// SPDX-License-Identifier: Apache-2.0
// What HTTP's queries and Host headers say. Pure.
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/http/http.h"

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// [from, to) with its escapes undone. False: it does not fit, or is not text.
static bool unescape(const char *from, const char *to, char *out, size_t room)
{
    size_t n = 0;
    for (; from < to; from++) {
        int c = (unsigned char)*from;
        if (c == '+') {
            c = ' ';
        } else if (c == '%') {
            int high = to - from > 2 ? hex_digit(from[1]) : -1, low = high < 0 ? -1 : hex_digit(from[2]);
            if (low < 0)
                return false;
            c = high * 16 + low;
            from += 2;
        }
        if (n + 1 >= room || c < 0x20 || c == 0x7f)
            return false;
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return true;
}

enum common_http_value common_http_query(const char *query, const char *word, char *out, size_t room)
{
    size_t len = strlen(word);
    for (const char *at = query; at && *at; at += strcspn(at, "&"), at += *at == '&') {
        if (strncmp(at, word, len) != 0 || (at[len] && !strchr("=&", at[len])))
            continue;
        const char *value = at + len + (at[len] == '=');
        if (unescape(value, value + (at[len] == '=' ? strcspn(value, "&") : 0), out, room))
            return COMMON_HTTP_GIVEN;
        out[0] = '\0'; // what has come so far has no end
        return COMMON_HTTP_BAD;
    }
    return COMMON_HTTP_ABSENT;
}

// Of "host", "host:port" and "[host]:port": how long the host is.
static size_t host_len(const char *header)
{
    const char *bracket = header[0] == '[' ? strchr(header, ']') : NULL;
    return bracket ? (size_t)(bracket - header) + 1 : strcspn(header, ":");
}

bool common_http_host_is(const char *header, const char *host)
{
    size_t len = host_len(header);
    return len == strlen(host) && strncasecmp(header, host, len) == 0;
}

bool common_http_host_is_address(const char *header)
{
    size_t len = host_len(header);
    bool brackets = header[0] == '[' && len > 2;
    char host[64];
    struct in6_addr unused;
    if (len - 2 * brackets >= sizeof host)
        return false;
    snprintf(host, sizeof host, "%.*s", (int)(len - 2 * brackets), header + brackets);
    return inet_pton(brackets ? AF_INET6 : AF_INET, host, &unused) == 1;
}
