// SPDX-License-Identifier: Apache-2.0
// A file of the audit log: common/trail/trail_form.c and trail_chain.c, which verify and show it, and
// common/trail/trail.c, which goes on with it. Input: records | what u8 | ... |, each a line or several.
// Hashes are computed, so that chains are whole where nothing breaks them.
#include <string.h>

#include "common/trail/trail.h"
#include "common/trail/trail_chain.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/world.h"

enum { RECORD, RAW, TORN, TELLS, LOST, ALTERED, CUT, KINDS, FILE_MAX = 1 << 20 };

struct log { // a file, and what is known of it
    char *text;
    size_t len;
    struct common_trail_place place; // of the last record that was chained
    size_t torn_at;                  // where the part of a record begins that TORN has left
    bool pure;                       // nothing but records, and parts of records that are declared
    bool tells;                      // the last part of a record must still be declared
    uint64_t records;
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_enter_folder();
    fuzz_quiet();
    return 0;
}

static void append(struct log *log, const void *bytes, size_t len)
{
    if (len > FILE_MAX - log->len) {
        log->pure = false;
        return;
    }
    if (len > 0)
        memcpy(log->text + log->len, bytes, len);
    log->len += len;
}

static void body_of(struct fuzz_input *in, struct common_trail_body *body)
{
    size_t len, want = fuzz_u8(in);
    body->len = 0;
    body->depth = 0;
    body->cut = false;
    common_trail_put_text(body, "what", "session.create");
    common_trail_put_number(body, "session", want);
    const uint8_t *text = fuzz_bytes(in, want, &len);
    common_trail_put_open(body, "args");
    common_trail_put_bytes(body, "name", (const char *)text, len);
    common_trail_put_shut(body);
}

static size_t compose(struct log *log, const struct common_trail_body *body, char line[COMMON_TRAIL_LINE])
{
    memcpy(log->place.prev, log->place.hash, sizeof log->place.prev);
    log->place.seq++;
    size_t len = common_trail_compose(&log->place, body, line);
    FUZZ_CHECK(len > 0 && len <= COMMON_TRAIL_LINE && line[len - 1] == '\n');
    FUZZ_CHECK(!memchr(line, '\n', len - 1));
    struct common_trail_place seen;
    FUZZ_CHECK(common_trail_examine(line, len - 1, &seen) == COMMON_TRAIL_WHOLE);
    FUZZ_CHECK(seen.seq == log->place.seq && strcmp(seen.hash, log->place.hash) == 0 &&
               strcmp(seen.prev, log->place.prev) == 0);
    return len;
}

// The record that says of the part before it what it is.
static void tell(struct log *log)
{
    struct common_trail_body body = {.len = 0};
    char line[COMMON_TRAIL_LINE], hex[COMMON_TRAIL_HASH + 1];
    struct common_trail_sum *sum = common_trail_sum_new();
    FUZZ_CHECK(sum && common_trail_sum_add(sum, log->text + log->torn_at, log->len - log->torn_at) &&
               common_trail_sum_hex(sum, hex));
    common_trail_sum_free(sum);
    common_trail_put_text(&body, "what", "log.torn");
    common_trail_put_open(&body, "args");
    common_trail_put_number(&body, "bytes", log->len - log->torn_at);
    common_trail_put_text(&body, "sha256", hex);
    common_trail_put_shut(&body);
    append(log, line, compose(log, &body, line));
    log->pure = log->pure && log->tells;
    log->tells = false;
    log->records++;
}

static void add(struct log *log, struct fuzz_input *in)
{
    struct common_trail_body body;
    char line[COMMON_TRAIL_LINE];
    uint8_t what = fuzz_u8(in) % KINDS;
    if (what == RAW) {
        size_t len, want = fuzz_u16(in);
        const uint8_t *bytes = fuzz_bytes(in, want, &len);
        log->pure = log->pure && len == 0;
        append(log, bytes, len);
        return;
    }
    if (what == TELLS) {
        tell(log);
        return;
    }
    const struct common_trail_place before = log->place;
    body_of(in, &body);
    size_t len = compose(log, &body, line);
    if (what == RECORD) {
        log->pure = log->pure && !log->tells;
        log->records++;
    } else if (what == TORN || what == CUT) { // a crash; CUT: without the end of its line
        len = fuzz_u16(in) % (len - 1);
        log->place = before;
        log->pure = log->pure && !log->tells && len > 0 && what == TORN;
        log->tells = true;
        log->torn_at = log->len;
        if (what == TORN)
            line[len++] = '\n';
    } else if (what == ALTERED) {
        line[fuzz_u16(in) % (len - 1)] ^= (char)(fuzz_u8(in) | 1);
        log->pure = false;
    } else { // LOST: the next one shows it
        log->pure = false;
        len = 0;
    }
    append(log, line, len);
}

static void check_line(const char *line, size_t len) // as `show` reads it
{
    uint64_t number;
    char hash[COMMON_TRAIL_HASH + 1];
    common_trail_is(line, len, "session.create");
    common_trail_number(line, len, "session", &number);
    if (common_trail_hash(line, len, "sha256", hash))
        FUZZ_CHECK(strlen(hash) == COMMON_TRAIL_HASH);
}

static struct common_trail_chain verify(const char *text, size_t len)
{
    struct common_trail_chain chain;
    common_trail_chain_init(&chain);
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        char *line = malloc(n + 1); // no byte behind it is read
        FUZZ_CHECK(line);
        memcpy(line, text + at, n);
        enum common_trail_verdict verdict = common_trail_chain_take(&chain, line, n, end != NULL);
        FUZZ_CHECK(verdict != COMMON_TRAIL_BAD ||
                   (chain.why[0] && chain.first_line >= 1 && chain.lines >= 1));
        check_line(line, n);
        free(line);
        at += n + (end != NULL);
    }
    common_trail_chain_end(&chain);
    FUZZ_CHECK(chain.records <= chain.line && chain.torn <= chain.records &&
               strlen(chain.head) == COMMON_TRAIL_HASH);
    return chain;
}

// The daemon goes on with the file: its last line is then a record, and a chain that was whole still is.
static void go_on(const struct log *log, bool whole)
{
    struct common_trail *trail;
    struct common_error err;
    struct common_trail_body body = {.len = 0};
    static char text[FILE_MAX + 4 * COMMON_TRAIL_LINE];
    fuzz_write_file("audit", log->text, log->len);
    if (common_trail_open("audit", "server", &trail, &err) != COMMON_OK) {
        FUZZ_CHECK(err.message[0] && !whole);
        return;
    }
    common_trail_put_text(&body, "what", "session.delete");
    FUZZ_CHECK(common_trail_write(trail, &body));
    common_trail_close(trail);
    FILE *file = fopen("audit", "rb");
    FUZZ_CHECK(file);
    size_t len = fread(text, 1, sizeof text, file);
    fclose(file);
    FUZZ_CHECK(len > log->len && text[len - 1] == '\n' && memcmp(text, log->text, log->len) == 0);
    struct common_trail_chain chain = verify(text, len);
    FUZZ_CHECK(!whole || chain.bad == 0);
    FUZZ_CHECK(chain.records > log->records || !whole);
    common_trail_chain_fini(&chain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[FILE_MAX];
    struct fuzz_input in = {data, size};
    struct log log = {.text = text, .pure = true, .place = {.wall_ns = 1}};
    memcpy(log.place.hash, COMMON_TRAIL_NONE, sizeof log.place.hash);
    fuzz_world_begin();
    uint8_t goes_on = fuzz_u8(&in);
    while (in.left > 0)
        add(&log, &in);
    struct common_trail_chain chain = verify(log.text, log.len);
    bool whole = log.pure && !log.tells;
    if (whole)
        FUZZ_CHECK(chain.bad == 0 && chain.records == log.records && chain.seq == log.records);
    common_trail_chain_fini(&chain);
    if (goes_on & 1)
        go_on(&log, whole);
    return 0;
}
