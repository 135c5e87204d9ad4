// SPDX-License-Identifier: Apache-2.0
// Numbers with units: reading and writing them. The parser of command lines is in options.c.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/cli/options.h"

struct unit {
    const char *suffix;
    uint64_t factor;
};

// Reads digits; *end points behind them. Signs, spaces, empty text and numbers past 64 bits are refused.
static bool read_digits(const char *text, const char **end, uint64_t *out)
{
    uint64_t value = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9'; c++)
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value))
            return false;
    *end = c;
    *out = value;
    return c != text;
}

static enum common_code parse_with_units(const char *text, const struct unit *units, uint64_t *out)
{
    const char *end;
    uint64_t value;
    if (!read_digits(text, &end, &value))
        return COMMON_INVALID_ARGUMENT;
    for (; units->suffix; units++)
        if (strcmp(end, units->suffix) == 0) {
            if (__builtin_mul_overflow(value, units->factor, &value))
                return COMMON_INVALID_ARGUMENT;
            *out = value;
            return COMMON_OK;
        }
    return COMMON_INVALID_ARGUMENT;
}

static void write_with_units(uint64_t value, const struct unit *units, char *buf, size_t len)
{
    const struct unit *best = units; // the first has no fraction of any value
    for (const struct unit *u = units; u->suffix; u++)
        if (value % u->factor == 0 && u->factor > best->factor)
            best = u;
    snprintf(buf, len, "%" PRIu64 "%s", value / best->factor, value ? best->suffix : "");
}

enum common_code common_parse_u64(const char *text, uint64_t *out)
{
    static const struct unit units[] = {{"", 1}, {0}};
    return parse_with_units(text, units, out);
}

static const struct unit sizes[] = {
    {"", 1},
    {"K", UINT64_C(1) << 10},
    {"M", UINT64_C(1) << 20},
    {"G", UINT64_C(1) << 30},
    {"T", UINT64_C(1) << 40},
    {0},
};

// A bare number is seconds: what is written has its unit.
static const struct unit bare[] = {{"", COMMON_NS_PER_S}, {0}}, times[] = {{"ns", 1},
                                                                           {"us", COMMON_NS_PER_US},
                                                                           {"ms", COMMON_NS_PER_MS},
                                                                           {"s", COMMON_NS_PER_S},
                                                                           {"m", 60 * COMMON_NS_PER_S},
                                                                           {"h", 3600 * COMMON_NS_PER_S},
                                                                           {0}};

// Read, but not written: 24h stays what people know it as.
static const struct unit days[] = {{"d", 24 * 3600 * COMMON_NS_PER_S}, {0}};

enum common_code common_parse_size(const char *text, uint64_t *out)
{
    return parse_with_units(text, sizes, out);
}

enum common_code common_parse_duration(const char *text, uint64_t *out_ns)
{
    enum common_code code = parse_with_units(text, times, out_ns);
    if (code != COMMON_OK)
        code = parse_with_units(text, days, out_ns);
    return code == COMMON_OK ? code : parse_with_units(text, bare, out_ns);
}

void common_write_size(uint64_t bytes, char *buf, size_t len)
{
    write_with_units(bytes, sizes, buf, len);
}

void common_write_duration(uint64_t ns, char *buf, size_t len)
{
    write_with_units(ns, times, buf, len);
}

const char *common_option_part(const char *arg, size_t nth, size_t *len, bool *is_word)
{
    if (!arg || !strchr(arg, '|'))
        return NULL;
    for (; nth && arg; nth--) {
        arg = strchr(arg, '|');
        arg = arg ? arg + 1 : NULL;
    }
    if (!arg)
        return NULL;
    *len = strcspn(arg, "|");
    *is_word = true;
    for (size_t i = 0; i < *len; i++)
        *is_word = *is_word && !(arg[i] >= 'A' && arg[i] <= 'Z');
    return arg;
}

unsigned common_word_distance(const char *a, const char *b)
{
    unsigned row[65];
    size_t len = strnlen(b, 64);
    for (size_t j = 0; j <= len; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < len; j++) {
            unsigned change = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            unsigned insert = row[j] + 1, drop = row[j + 1] + 1;
            row[j + 1] = change < insert ? change : insert;
            row[j + 1] = row[j + 1] < drop ? row[j + 1] : drop;
        }
    }
    return row[len];
}

const char *common_format_bytes(uint64_t bytes, char *buf, size_t len)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(buf, len, "%" PRIu64 " B", bytes);
        return buf;
    }
    double value = (double)bytes;
    size_t i = 0;
    while (value >= 1023.95 && i < 6) { // what would be printed as 1024.0
        value /= 1024;
        i++;
    }
    snprintf(buf, len, "%.1f %s", value, names[i]);
    return buf;
}

const char *common_format_ns(uint64_t ns, char *buf, size_t len)
{
    if (ns < 1000) {
        snprintf(buf, len, "%" PRIu64 " ns", ns);
        return buf;
    }
    static const struct {
        const char *name;
        double ns, below;
    } units[] = {{"us", 1e3, 999.95}, {"ms", 1e6, 999.95}, {"s", 1e9, 119.95}, {"min", 60e9, 119.95}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if ((double)ns / units[i].ns < units[i].below) {
            snprintf(buf, len, "%.1f %s", (double)ns / units[i].ns, units[i].name);
            return buf;
        }
    snprintf(buf, len, "%.1f h", (double)ns / 3600e9);
    return buf;
}
