// SPDX-License-Identifier: Apache-2.0
#include "common/trail/trail_form.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/utf8.h"

#define PREV   ",\"prev\":\""
#define HASH   ",\"hash\":\""
#define SHORT_ 16 // bytes that are kept free for what closes the objects that are open, and for "cut"

// ---- the body -----------------------------------------------------------------------------------

static bool put(struct common_trail_body *body, const char *text, size_t len)
{
    if (body->cut || len > sizeof body->text - SHORT_ - body->depth - body->len) {
        body->cut = true;
        return false;
    }
    memcpy(body->text + body->len, text, len);
    body->len += len;
    return true;
}

// All of a member, or nothing of it.
static void put_member(struct common_trail_body *body, const char *key, const char *value, size_t len)
{
    char head[64];
    size_t before = body->len;
    bool first = body->len == 0 || body->text[body->len - 1] == '{';
    int n = snprintf(head, sizeof head, "%s\"%s\":", first ? "" : ",", key);
    if (!put(body, head, (size_t)n) || !put(body, value, len))
        body->len = before;
}

static bool turns_text(uint32_t code)
{
    return (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

// A character between quotes: bytes of it in `out`.
static size_t escape(const char *at, size_t bytes, uint32_t code, char out[8])
{
    if (!bytes)
        return (size_t)snprintf(out, 8, "\\ufffd");
    if (code == '"' || code == '\\')
        return (size_t)snprintf(out, 8, "\\%c", (char)code);
    if (code < 0x20 || (code >= 0x7f && code < 0xa0) || turns_text(code))
        return (size_t)snprintf(out, 8, "\\u%04x", (unsigned)code);
    memcpy(out, at, bytes);
    return bytes;
}

void common_trail_put_bytes(struct common_trail_body *body, const char *key, const char *text, size_t len)
{
    char value[COMMON_TRAIL_TEXT + 8];
    size_t n = 0;
    value[n++] = '"';
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        char one[8];
        size_t bytes = common_utf8_character(text + i, len - i, &code);
        size_t escaped = escape(text + i, bytes, code, one);
        if (n + escaped > COMMON_TRAIL_TEXT)
            break;
        memcpy(value + n, one, escaped);
        n += escaped;
        i += bytes ? bytes : 1;
    }
    value[n++] = '"';
    put_member(body, key, value, n);
}

void common_trail_put_text(struct common_trail_body *body, const char *key, const char *text)
{
    if (text)
        common_trail_put_bytes(body, key, text, strlen(text));
}

void common_trail_put_number(struct common_trail_body *body, const char *key, uint64_t number)
{
    char value[24];
    put_member(body, key, value, (size_t)snprintf(value, sizeof value, "%" PRIu64, number));
}

void common_trail_put_id(struct common_trail_body *body, const char *key, uint64_t id)
{
    char value[24];
    int n = snprintf(value, sizeof value, "\"0x%016" PRIx64 "\"", id);
    if (id)
        put_member(body, key, value, (size_t)n);
}

void common_trail_put_flag(struct common_trail_body *body, const char *key)
{
    put_member(body, key, "true", 4);
}

void common_trail_put_open(struct common_trail_body *body, const char *key)
{
    size_t before = body->len;
    put_member(body, key, "{", 1);
    body->depth += body->len > before;
}

void common_trail_put_shut(struct common_trail_body *body)
{
    if (!body->depth)
        return;
    body->depth--;
    body->text[body->len++] = '}';
}

// ---- sums ---------------------------------------------------------------------------------------

static EVP_MD_CTX *inside(const struct common_trail_sum *sum)
{
    return (EVP_MD_CTX *)sum;
}

struct common_trail_sum *common_trail_sum_new(void)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL))
        return (struct common_trail_sum *)ctx;
    EVP_MD_CTX_free(ctx);
    return NULL;
}

bool common_trail_sum_add(struct common_trail_sum *sum, const void *data, size_t len)
{
    return sum && EVP_DigestUpdate(inside(sum), data, len);
}

bool common_trail_sum_hex(const struct common_trail_sum *sum, char out[COMMON_TRAIL_HASH + 1])
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    EVP_MD_CTX *copy = EVP_MD_CTX_new();
    bool good = sum && copy && EVP_MD_CTX_copy_ex(copy, inside(sum)) &&
                EVP_DigestFinal_ex(copy, bytes, &len) && len == COMMON_TRAIL_HASH / 2;
    for (unsigned i = 0; good && i < len; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", bytes[i]);
    EVP_MD_CTX_free(copy);
    return good;
}

void common_trail_sum_free(struct common_trail_sum *sum)
{
    EVP_MD_CTX_free(inside(sum));
}

static bool sum_of(const char *text, size_t len, char out[COMMON_TRAIL_HASH + 1])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (!EVP_Digest(text, len, bytes, &n, EVP_sha256(), NULL) || n != COMMON_TRAIL_HASH / 2)
        return false;
    for (unsigned i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[COMMON_TRAIL_HASH] = '\0';
    return true;
}

// ---- a line -------------------------------------------------------------------------------------

static size_t put_time(uint64_t wall_ns, char *out, size_t bytes)
{
    time_t seconds = (time_t)(wall_ns / COMMON_NS_PER_S);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    size_t n = strftime(out, bytes, "%Y-%m-%dT%H:%M:%S", &utc);
    return n + (size_t)snprintf(out + n, bytes - n, ".%06uZ",
                                (unsigned)(wall_ns % COMMON_NS_PER_S / COMMON_NS_PER_US));
}

size_t common_trail_compose(struct common_trail_place *place, const struct common_trail_body *body,
                            char out[COMMON_TRAIL_LINE])
{
    size_t n = (size_t)snprintf(out, COMMON_TRAIL_LINE, "{\"seq\":%" PRIu64 ",\"time\":\"", place->seq);
    n += put_time(place->wall_ns, out + n, COMMON_TRAIL_LINE - n);
    n += (size_t)snprintf(out + n, COMMON_TRAIL_LINE - n, "\",%.*s", (int)body->len, body->text);
    for (unsigned i = 0; i < body->depth; i++)
        out[n++] = '}';
    n += (size_t)snprintf(out + n, COMMON_TRAIL_LINE - n, "%s" PREV "%s\"", body->cut ? ",\"cut\":true" : "",
                          place->prev);
    if (!sum_of(out, n, place->hash))
        return 0;
    return n + (size_t)snprintf(out + n, COMMON_TRAIL_LINE - n, HASH "%s\"}\n", place->hash);
}

static bool is_hash(const char *text)
{
    for (size_t i = 0; i < COMMON_TRAIL_HASH; i++)
        if (!text[i] || !strchr("0123456789abcdef", text[i]))
            return false;
    return true;
}

enum common_trail_form common_trail_examine(const char *line, size_t len, struct common_trail_place *out)
{
    static const char begin[] = "{\"seq\":";
    const size_t prev_bytes = sizeof PREV - 1 + COMMON_TRAIL_HASH + 1;
    struct common_trail_place place = {0};
    char hash[COMMON_TRAIL_HASH + 1];
    if (len >= COMMON_TRAIL_LINE || len < sizeof begin + prev_bytes + COMMON_TRAIL_TAIL)
        return COMMON_TRAIL_OTHER;
    const char *tail = line + len - COMMON_TRAIL_TAIL, *prev = tail - prev_bytes;
    if (memcmp(line, begin, sizeof begin - 1) != 0 || memcmp(tail, HASH, sizeof HASH - 1) != 0 ||
        memcmp(line + len - 2, "\"}", 2) != 0 || !is_hash(tail + sizeof HASH - 1))
        return COMMON_TRAIL_OTHER;
    if (!sum_of(line, len - COMMON_TRAIL_TAIL, hash) ||
        memcmp(hash, tail + sizeof HASH - 1, COMMON_TRAIL_HASH) != 0)
        return COMMON_TRAIL_CHANGED;
    const char *digit = line + sizeof begin - 1;
    for (; *digit >= '0' && *digit <= '9' && place.seq < UINT64_MAX / 10 - 1; digit++)
        place.seq = place.seq * 10 + (uint64_t)(*digit - '0');
    if (*digit != ',' || memcmp(prev, PREV, sizeof PREV - 1) != 0 || !is_hash(prev + sizeof PREV - 1))
        return COMMON_TRAIL_OTHER; // forged, with a right sum
    memcpy(place.prev, prev + sizeof PREV - 1, COMMON_TRAIL_HASH);
    memcpy(place.hash, hash, COMMON_TRAIL_HASH);
    *out = place;
    return COMMON_TRAIL_WHOLE;
}

// Texts of others are escaped: a quote in front of a key is our own.
static const char *behind(const char *line, size_t len, const char *key)
{
    char want[64];
    int n = snprintf(want, sizeof want, "\"%s\":", key);
    const char *at = memmem(line, len, want, (size_t)n);
    return at ? at + n : NULL;
}

bool common_trail_is(const char *line, size_t len, const char *what)
{
    size_t n = strlen(what);
    const char *at = behind(line, len, "what");
    return at && (size_t)(line + len - at) > n + 2 && at[0] == '"' && memcmp(at + 1, what, n) == 0 &&
           at[n + 1] == '"';
}

bool common_trail_number(const char *line, size_t len, const char *key, uint64_t *out)
{
    const char *at = behind(line, len, key), *end = line + len;
    uint64_t number = 0;
    if (!at || at == end || *at < '0' || *at > '9')
        return false;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (number > UINT64_MAX / 10 - 1)
            return false;
        number = number * 10 + (uint64_t)(*at - '0');
    }
    *out = number;
    return true;
}

bool common_trail_hash(const char *line, size_t len, const char *key, char out[COMMON_TRAIL_HASH + 1])
{
    const char *at = behind(line, len, key);
    if (!at || (size_t)(line + len - at) < COMMON_TRAIL_HASH + 2 || *at != '"' || !is_hash(at + 1))
        return false;
    memcpy(out, at + 1, COMMON_TRAIL_HASH);
    out[COMMON_TRAIL_HASH] = '\0';
    return true;
}
