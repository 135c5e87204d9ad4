// SPDX-License-Identifier: Apache-2.0
// The forms of a record. What is put together: log_record.c.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/log/log_record.h"

#define PROGRAM_BYTES 64
#define MESSAGE_BYTES 2400 // of a JSON record: the rest is for its fields

struct out {
    char *buf;
    size_t n, max;
    bool full; // something had no room; it is not there in part
};

static void add(struct out *o, const char *text, size_t len)
{
    if (o->full || len > o->max - o->n) {
        o->full = true;
        return;
    }
    memcpy(o->buf + o->n, text, len);
    o->n += len;
}

static void add_string(struct out *o, const char *text)
{
    add(o, text, strlen(text));
}

static bool is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

static size_t add_time(const struct timespec *at, char *to, size_t len)
{
    struct tm utc;
    gmtime_r(&at->tv_sec, &utc);
    size_t n = strftime(to, len, "%Y-%m-%dT%H:%M:%S", &utc);
    return n + (size_t)snprintf(to + n, len - n, ".%06ldZ", at->tv_nsec / 1000);
}

// ---- text ---------------------------------------------------------------------------------------------------

// One record, one line: a name from a peer cannot forge another.
static void add_clean(struct out *o, const char *text, size_t len)
{
    size_t from = o->n;
    add(o, text, len);
    for (size_t i = from; i < o->n; i++)
        if ((unsigned char)o->buf[i] < 0x20 || o->buf[i] == 0x7f)
            o->buf[i] = ' ';
}

size_t common_log_record_text(const struct common_log_record *record, char *out)
{
    static const char *const names[] = {"ERROR", "WARN", "INFO", "DEBUG"};
    struct out o = {.buf = out, .max = COMMON_LOG_RECORD_BYTES - 1};
    o.n = add_time(&record->at, out, o.max);
    o.n += (size_t)snprintf(out + o.n, o.max - o.n, " %-5s %.*s: ", names[record->level], PROGRAM_BYTES,
                            record->program);
    add_clean(&o, record->text, record->len);
    o.buf[o.n++] = '\n';
    return o.n;
}

// ---- JSON ---------------------------------------------------------------------------------------------------

// One character, as it stands between quotes.
static void add_escaped(struct out *o, const char *text, size_t bytes, uint32_t code)
{
    static const char shorts[] = "\bb\ff\nn\rr\tt\"\"\\\\"; // pairs
    char buf[8];
    if (!bytes) {
        add_string(o, "\\ufffd");
        return;
    }
    for (const char *s = shorts; *s && code; s += 2)
        if (code == (unsigned char)*s) {
            buf[0] = '\\';
            buf[1] = s[1];
            add(o, buf, 2);
            return;
        }
    if (!is_control(code)) {
        add(o, text, bytes);
        return;
    }
    snprintf(buf, sizeof buf, "\\u%04x", (unsigned)code);
    add_string(o, buf);
}

// In quotes. cut: what has no room in `max` bytes ends in "..."; else nothing of it is there.
// Returns whether all of it had room.
static bool add_quoted(struct out *o, const char *text, size_t len, size_t max, bool cut)
{
    struct out in = *o;
    in.max = max && in.n + max < o->max ? in.n + max : o->max;
    in.max -= in.max - in.n > 8 ? 4 : 0; // "..." and the quote
    add_string(&in, "\"");
    for (size_t i = 0; i < len && !in.full;) {
        uint32_t code = 0;
        size_t bytes = common_utf8_character(text + i, len - i, &code);
        add_escaped(&in, text + i, bytes, code);
        i += bytes ? bytes : 1;
    }
    bool full = in.full;
    in.max = o->max;
    in.full = full && !cut;
    add_string(&in, full ? "...\"" : "\"");
    o->full = in.full;
    if (!in.full)
        o->n = in.n;
    return !full;
}

static bool same_key(const struct common_log_field *field, const char *key, size_t len)
{
    return field->key_len == len && memcmp(field->key, key, len) == 0;
}

// Names of members are unique: one that is taken has underscores behind it.
static void add_name(struct out *o, const struct common_log_record *record, size_t nth)
{
    static const char *const taken[] = {"ts", "level", "program", "message", "cut"};
    const struct common_log_field *field = &record->fields[nth];
    add_string(o, ",\"");
    add(o, field->key, field->key_len);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (same_key(field, taken[i], strlen(taken[i])))
            add_string(o, "_");
    for (size_t i = 0; i < nth; i++)
        if (same_key(&record->fields[i], field->key, field->key_len))
            add_string(o, "_");
    add_string(o, "\":");
}

size_t common_log_record_json(const struct common_log_record *record, char *out)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    static const char cut[] = ",\"cut\":true";
    char time[40];
    bool all = !record->cut;
    struct out o = {.buf = out, .max = COMMON_LOG_RECORD_BYTES - sizeof cut - 2};
    add_time(&record->at, time, sizeof time);
    add_string(&o, "{\"ts\":\"");
    add_string(&o, time);
    add_string(&o, "\",\"level\":\"");
    add_string(&o, names[record->level]);
    add_string(&o, "\",\"program\":");
    add_quoted(&o, record->program, strnlen(record->program, PROGRAM_BYTES), 0, true);
    add_string(&o, ",\"message\":");
    all = add_quoted(&o, record->text, record->len, MESSAGE_BYTES, true) && all;
    for (size_t i = 0; i < record->n_fields; i++) {
        struct out with = o;
        const struct common_log_field *field = &record->fields[i];
        add_name(&with, record, i);
        if (field->number)
            add(&with, record->text + field->from, field->len);
        else
            add_quoted(&with, record->text + field->from, field->len, 0, false);
        if (!with.full)
            o = with;
        all = all && !with.full;
    }
    o.max = COMMON_LOG_RECORD_BYTES;
    add_string(&o, all ? "}\n" : ",\"cut\":true}\n");
    return o.n;
}

// ---- the journal --------------------------------------------------------------------------------------------

static const char priorities[] = "3467"; // of syslog(3): err, warning, info, debug

size_t common_log_record_prefix(const struct common_log_record *record, char *out)
{
    struct out o = {.buf = out, .max = COMMON_LOG_RECORD_BYTES - 1};
    const char prefix[] = {'<', priorities[record->level], '>'};
    add(&o, prefix, sizeof prefix);
    add_clean(&o, record->text, record->len);
    o.buf[o.n++] = '\n';
    return o.n;
}

// NAME, its length in 64 bits, its value: the form that can hold everything. What is no character shows as
// '?', so that journalctl prints it, and does not call it a blob.
static void add_field(struct out *o, const char *prefix, const char *key, size_t key_len, const char *value,
                      size_t len)
{
    struct out with = *o;
    unsigned char size[8];
    add_string(&with, prefix);
    size_t name = with.n;
    add(&with, key, key_len);
    for (size_t i = name; i < with.n; i++)
        if (with.buf[i] >= 'a' && with.buf[i] <= 'z')
            with.buf[i] = (char)(with.buf[i] - 'a' + 'A');
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)len >> 8 * i);
    add_string(&with, "\n");
    add(&with, (const char *)size, sizeof size);
    size_t from = with.n;
    add_clean(&with, value, len);
    add_string(&with, "\n");
    if (with.full)
        return;
    for (size_t i = from; i < from + len;) {
        uint32_t code;
        size_t bytes = common_utf8_character(with.buf + i, from + len - i, &code);
        if (!bytes)
            with.buf[i] = '?';
        i += bytes ? bytes : 1;
    }
    *o = with;
}

size_t common_log_record_journal(const struct common_log_record *record, char *out)
{
    struct out o = {.buf = out, .max = COMMON_LOG_RECORD_BYTES};
    const char priority[] = {priorities[record->level], '\n'};
    add_string(&o, "PRIORITY=");
    add(&o, priority, sizeof priority);
    add_field(&o, "", "SYSLOG_IDENTIFIER", 17, record->program, strnlen(record->program, PROGRAM_BYTES));
    add_field(&o, "", "MESSAGE", 7, record->text, record->len);
    for (size_t i = 0; i < record->n_fields; i++)
        add_field(&o, "BANYAN_", record->fields[i].key, record->fields[i].key_len,
                  record->text + record->fields[i].from, record->fields[i].len);
    return o.n;
}
