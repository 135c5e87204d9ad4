// SPDX-License-Identifier: Apache-2.0
// audit-log show: the records of an audit log, for people.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "client/ctl/trail.h"
#include "common/base/clock.h"

#define REST_NS (250 * COMMON_NS_PER_MS)

static struct {
    bool follow;
    const char *since, *who;
} given;
static char since[32]; // as records have it

struct shower {
    const struct ctl *ctl;
    const char *path;
    struct common_trail_chain chain;
    bool written; // to standard output
};

// ---- one record -----------------------------------------------------------------------------------------------

static bool is_who(json_t *record)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(record, "who"), key, value)
    {
        const char *text = json_string_value(value);
        if (text && strcmp(text, given.who) == 0)
            return true;
    }
    return false;
}

static bool is_wanted(json_t *record)
{
    const char *time = json_string_value(json_object_get(record, "time"));
    if (given.since && (!time || strcmp(time, since) < 0))
        return false;
    return !given.who || is_who(record);
}

// A text of the record, as it may go to a terminal: whatever controls one is escaped again.
static void print_text(const char *before, const char *text, int width)
{
    struct common_trail_body body = {.len = 0};
    common_trail_put_text(&body, "", text ? text : "");
    int len = (int)body.len - 5; // without "":"…"
    printf("%s%.*s%*s", before, len, body.text + 4, width > len ? width - len : 0, "");
}

static void print_who(json_t *record)
{
    static const char *const keys[] = {"daemon", "name", "tenant", "access", "token", "says"};
    json_t *who = json_object_get(record, "who");
    const char *before = "  ";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = json_string_value(json_object_get(who, keys[i]));
        if (!text)
            continue;
        printf("%s", before);
        print_text(strcmp(keys[i], "says") == 0 ? "says " : "", text, 0);
        before = " ";
    }
    const char *from = json_string_value(json_object_get(record, "from"));
    if (from)
        print_text(" from ", from, 0);
}

static void print_args(json_t *record)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(record, "args"), key, value)
    {
        if (json_is_string(value)) {
            print_text("  ", key, 0);
            print_text("=", json_string_value(value), 0);
        } else {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
            print_text("  ", key, 0);
            printf("=%s", text ? text : "?");
            free(text);
        }
    }
}

static void print_record(const struct shower *s, const struct ctl_trail_line *line, json_t *record)
{
    if (s->ctl->json) {
        printf("%.*s\n", (int)line->len, line->text);
        return;
    }
    const char *session = json_string_value(json_object_get(record, "session"));
    print_text("", json_string_value(json_object_get(record, "time")), 27);
    print_text("  ", json_string_value(json_object_get(record, "what")), 20);
    print_text("  ", json_string_value(json_object_get(record, "result")), 0);
    print_who(record);
    if (session)
        print_text("  session=", session, 0);
    print_args(record);
    putchar('\n');
}

// ---- files ----------------------------------------------------------------------------------------------------

static void tell_bad(const struct shower *s)
{
    fprintf(stderr, "banyanctl: %s: line %" PRIu64 ": %s\n", s->path, s->chain.first_line, s->chain.why);
}

static void take_line(struct shower *s, const struct ctl_trail_line *line)
{
    enum common_trail_verdict verdict =
        common_trail_chain_take(&s->chain, line->text, line->len, line->ended);
    if (verdict == COMMON_TRAIL_BAD)
        tell_bad(s);
    if (verdict == COMMON_TRAIL_HELD)
        return;
    json_t *record = json_loadb(line->text, line->len, JSON_REJECT_DUPLICATES, NULL);
    if (record && is_wanted(record))
        print_record(s, line, record);
    json_decref(record);
}

// Whether the path is another file now: the one that is open was moved away.
static bool is_rotated(const char *path, FILE *file)
{
    struct stat now, open_one;
    return stat(path, &now) == 0 && fstat(fileno(file), &open_one) == 0 &&
           (now.st_ino != open_one.st_ino || now.st_dev != open_one.st_dev);
}

// All lines that are there; one that has not been written to its end yet is read again later, where
// `follows`.
static void take_lines(struct shower *s, FILE *file, struct ctl_trail_line *line, bool follows)
{
    off_t begin = ftello(file);
    while (ctl_trail_line(file, line)) {
        if (!line->ended && follows) {
            fseeko(file, begin, SEEK_SET);
            return;
        }
        take_line(s, line);
        begin = ftello(file);
    }
}

static enum ctl_exit follow_file(struct shower *s, FILE **file, struct ctl_trail_line *line)
{
    while ((s->written = fflush(stdout) == 0)) {
        bool rotated = is_rotated(s->path, *file);
        clearerr(*file);
        take_lines(s, *file, line, !rotated);
        if (rotated) {
            FILE *next = ctl_trail_open(s->path);
            if (!next)
                return CTL_FILE;
            fclose(*file);
            *file = next;
            common_trail_chain_next_file(&s->chain);
            continue;
        }
        nanosleep(&(struct timespec){0, (long)REST_NS}, NULL);
    }
    return ctl_say(CTL_FILE, "cannot write to standard output");
}

static enum ctl_exit show_file(struct shower *s, bool last)
{
    struct ctl_trail_line line = {0};
    FILE *file = ctl_trail_open(s->path);
    bool follows = given.follow && last;
    if (!file)
        return CTL_FILE;
    common_trail_chain_next_file(&s->chain);
    take_lines(s, file, &line, follows);
    enum ctl_exit exit_code = ferror(file) ? ctl_trail_unreadable(s->path) : CTL_OK;
    if (exit_code == CTL_OK && follows)
        exit_code = follow_file(s, &file, &line);
    else if (common_trail_chain_end(&s->chain) == COMMON_TRAIL_BAD)
        tell_bad(s);
    free(line.text);
    if (file)
        fclose(file);
    return exit_code;
}

enum ctl_exit ctl_trail_show(struct ctl *ctl, int n_args, char **args)
{
    struct shower s = {.ctl = ctl, .written = true};
    enum ctl_exit exit_code = CTL_OK;
    common_trail_chain_init(&s.chain);
    for (int i = 0; i < n_args && exit_code == CTL_OK; i++) {
        s.path = args[i];
        exit_code = show_file(&s, i + 1 == n_args);
    }
    if (exit_code == CTL_OK && s.chain.bad)
        exit_code = ctl_say(CTL_DATA_LOSS, "the audit log has been altered");
    common_trail_chain_fini(&s.chain);
    return exit_code;
}

// ---- the command line -------------------------------------------------------------------------------------------

enum ctl_exit ctl_trail_show_check(int n_args, char **args)
{
    uint64_t ns;
    struct tm utc;
    (void)n_args;
    (void)args;
    if (!given.since)
        return CTL_OK;
    if (!ctl_moment_parse(given.since, &ns))
        return ctl_say(CTL_USAGE, "--since: '%.40s' is not a time (10m, 2026-11-25T17:00:00Z)", given.since);
    time_t seconds = (time_t)(ns / COMMON_NS_PER_S);
    gmtime_r(&seconds, &utc);
    strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%S", &utc);
    return CTL_OK;
}

const struct common_option ctl_trail_show_options[] = {
    {"follow", 'f', COMMON_OPTION_FLAG, &given.follow, NULL,
     "Print new records as they are written, also in the next file when this one is moved\naway, until "
     "interrupted.",
     0, 0},
    {"since", 's', COMMON_OPTION_STRING, &given.since, "WHEN",
     "Records since a time: 10m (ago), 2026-11-25T17:00:00Z, or local time without the Z.\nDefault: all.", 0,
     0},
    {"who", 'w', COMMON_OPTION_STRING, &given.who, "NAME",
     "Only records of this caller: the name of a token, a tenant or a worker, the id of a\n"
     "token, or the name that a client gave.",
     0, 0},
    {0},
};
