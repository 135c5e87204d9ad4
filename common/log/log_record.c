// SPDX-License-Identifier: Apache-2.0
// From a format and its arguments to a text with the places of its fields. The forms: log_form.c.
#include "common/log/log_record.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

struct writer {
    struct common_log_record *record;
    const char *key; // of the field that is open; NULL: none is
    size_t key_len, from;
    unsigned conversions;
    bool only_decimal; // the open field has no literals, and no conversion that gives other than a number
};

static void put(struct writer *w, const char *text, size_t len)
{
    struct common_log_record *r = w->record;
    size_t room = sizeof r->text - r->len;
    if (len > room) {
        len = room;
        r->cut = true;
    }
    memcpy(r->text + r->len, text, len);
    r->len += len;
}

// ---- fields -------------------------------------------------------------------------------------------------

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
static bool is_number(const char *c, size_t len)
{
    const char *end = c + len;
    if (c < end && *c == '-')
        c++;
    if (c == end || *c < '0' || *c > '9' || (*c == '0' && c + 1 < end && c[1] >= '0' && c[1] <= '9'))
        return false;
    while (c < end && *c >= '0' && *c <= '9')
        c++;
    for (int part = 0; part < 2; part++) {
        if (c == end || (part == 0 ? *c != '.' : *c != 'e' && *c != 'E'))
            continue;
        c++;
        if (part == 1 && c < end && (*c == '+' || *c == '-'))
            c++;
        if (c == end || *c < '0' || *c > '9')
            return false;
        while (c < end && *c >= '0' && *c <= '9')
            c++;
    }
    return c == end;
}

static void field_end(struct writer *w)
{
    struct common_log_record *r = w->record;
    if (!w->key)
        return;
    if (r->n_fields < COMMON_LOG_FIELDS_MAX && !r->cut) {
        size_t len = r->len - w->from;
        r->fields[r->n_fields++] =
            (struct common_log_field){.key = w->key,
                                      .key_len = w->key_len,
                                      .from = w->from,
                                      .len = len,
                                      .number = w->only_decimal && w->conversions == 1 &&
                                                is_number(r->text + w->from, len)};
    }
    w->key = NULL;
}

// Whether the format has "key=" here; *len: of the key.
static bool key_here(const char *c, size_t *len)
{
    size_t n = 0;
    if (c[0] < 'a' || c[0] > 'z')
        return false;
    while ((c[n] >= 'a' && c[n] <= 'z') || (c[n] >= '0' && c[n] <= '9') || c[n] == '_')
        n++;
    *len = n;
    return n <= 40 && c[n] == '=';
}

static bool ends_field(const char *c)
{
    return strchr(" ,;)", *c) || ((*c == ':' || *c == '.') && (c[1] == ' ' || c[1] == '\0'));
}

// One character of the format itself, or a key with its equals sign. Returns what is behind it.
static const char *literal(struct writer *w, const char *fmt, const char *c)
{
    size_t len;
    if (w->key && ends_field(c))
        field_end(w);
    if (!w->key && (c == fmt || c[-1] == ' ' || c[-1] == '(') && key_here(c, &len)) {
        put(w, c, len + 1);
        *w = (struct writer){.record = w->record, .key = c, .key_len = len, .only_decimal = true};
        w->from = w->record->len;
        return c + len + 1;
    }
    w->only_decimal = false;
    put(w, c, 1);
    return c + 1;
}

// ---- conversions --------------------------------------------------------------------------------------------

enum length { LENGTH_INT, LENGTH_LONG, LENGTH_LONG_LONG, LENGTH_SIZE, LENGTH_MAX, LENGTH_LONG_DOUBLE };

struct conversion {
    char spec[48]; // of it alone, its stars replaced by numbers
    enum length length;
    char kind;
};

// "%-*.*s" takes its stars from the arguments. Returns what is behind it; NULL: it is none that we know.
static const char *parse(const char *c, va_list *args, struct conversion *out)
{
    char flags[8] = "", width[16] = "", precision[16] = "", length[3] = "";
    size_t n = strspn(++c, "-+ #0");
    if (n >= sizeof flags)
        return NULL;
    memcpy(flags, c, n);
    c += n;
    for (int part = 0; part < 2; part++) {
        char *to = part ? precision : width;
        if (part && *c++ != '.') {
            c--;
            break;
        }
        if (*c == '*') {
            int value = va_arg(*args, int);
            if (!part || value >= 0)
                snprintf(to, 16, part ? ".%d" : "%d", value);
            c++;
            continue;
        }
        n = strspn(c, "0123456789");
        snprintf(to, 16, part ? ".%.*s" : "%.*s", n < 10 ? (int)n : 10, c);
        c += n;
    }
    n = strspn(c, "hlzjtL");
    if (n >= sizeof length || !c[n])
        return NULL;
    memcpy(length, c, n);
    c += n;
    out->kind = *c;
    out->length = !n || length[0] == 'h'       ? LENGTH_INT
                  : length[0] == 'L'           ? LENGTH_LONG_DOUBLE
                  : length[0] == 'l' && n == 2 ? LENGTH_LONG_LONG
                  : length[0] == 'l'           ? LENGTH_LONG
                  : length[0] == 'j'           ? LENGTH_MAX
                                               : LENGTH_SIZE;
    snprintf(out->spec, sizeof out->spec, "%%%s%s%s%s%c", flags, width, precision, length, *c);
    return c + 1;
}

static int print_integer(char *to, size_t room, const struct conversion *one, va_list *args)
{
    switch (one->length) {
    case LENGTH_LONG:
        return snprintf(to, room, one->spec, va_arg(*args, long));
    case LENGTH_LONG_LONG:
        return snprintf(to, room, one->spec, va_arg(*args, long long));
    case LENGTH_SIZE:
        return snprintf(to, room, one->spec, va_arg(*args, size_t));
    case LENGTH_MAX:
        return snprintf(to, room, one->spec, va_arg(*args, intmax_t));
    default:
        return snprintf(to, room, one->spec, va_arg(*args, int));
    }
}

// As snprintf; -1: a conversion that we do not know.
static int print(char *to, size_t room, const struct conversion *one, va_list *args)
{
    switch (one->kind) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'c':
        return print_integer(to, room, one, args);
    case 's':
        return snprintf(to, room, one->spec, va_arg(*args, const char *));
    case 'p':
        return snprintf(to, room, one->spec, va_arg(*args, void *));
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
        return one->length == LENGTH_LONG_DOUBLE ? snprintf(to, room, one->spec, va_arg(*args, long double))
                                                 : snprintf(to, room, one->spec, va_arg(*args, double));
    default:
        return -1;
    }
}

// NULL: the rest cannot be printed.
static const char *convert(struct writer *w, const char *c, va_list *args)
{
    struct common_log_record *r = w->record;
    char piece[COMMON_LOG_TEXT_BYTES + 1];
    struct conversion one;
    if (c[1] == '%') {
        w->only_decimal = false;
        put(w, "%", 1);
        return c + 2;
    }
    const char *behind = parse(c, args, &one);
    int n = behind ? print(piece, sizeof piece, &one, args) : -1;
    if (n < 0)
        return NULL;
    w->conversions++;
    w->only_decimal = w->only_decimal && strchr("diufFeEgG", one.kind);
    r->cut = r->cut || (size_t)n >= sizeof piece;
    put(w, piece, (size_t)n < sizeof piece ? (size_t)n : sizeof piece - 1);
    return behind;
}

void common_log_record_fill(struct common_log_record *record, const char *fmt, va_list args)
{
    struct writer w = {.record = record};
    va_list mine; // a parameter may have decayed: a copy has an address of the type that parse takes
    va_copy(mine, args);
    record->len = record->n_fields = 0;
    record->cut = false;
    for (const char *c = fmt; c && *c;) {
        const char *at = c;
        c = *c == '%' ? convert(&w, c, &mine) : literal(&w, fmt, c);
        if (!c) {
            w.only_decimal = false;
            put(&w, at, strlen(at));
        }
    }
    va_end(mine);
    field_end(&w);
    if (record->cut)
        memcpy(record->text + sizeof record->text - 3, "...", 3);
}
