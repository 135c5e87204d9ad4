// SPDX-License-Identifier: Apache-2.0
// Command: events. What the coordinator has kept of what has happened and, with --follow, what comes.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "common/base/clock.h"
#include "proto/model/event.h"

#define WAIT_NS      (30 * COMMON_NS_PER_S)
#define REST_NS      COMMON_NS_PER_S // without an answer
#define FOLLOW_LIMIT 10
#define NOT_GIVEN    UINT64_MAX
#define NAMES_MAX    64

static struct {
    bool follow;
    const char *since, *kinds, *severity, *worker, *session;
    uint64_t limit;
} given = {.limit = NOT_GIVEN};

static struct { // --kind, taken apart; its words
    char text[1024];
    const char *list[NAMES_MAX];
} names;

static banyan_events_options asks; // where it goes on, too
static uint64_t after;             // --since N: of the first coordinator that answers

// ---- the command line ---------------------------------------------------------------------------------------

static bool kinds_parse(void)
{
    char *rest = NULL;
    if (strlen(given.kinds) >= sizeof names.text)
        return false;
    strcpy(names.text, given.kinds);
    for (char *one = strtok_r(names.text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (!proto_event_kinds(one) || asks.n_kinds == NAMES_MAX) {
            ctl_say(CTL_USAGE, "unknown event kind '%.40s': 'banyanctl help events' lists them", one);
            return false;
        }
        names.list[asks.n_kinds++] = one;
    }
    asks.kinds = names.list;
    return true;
}

static bool number_parse(const char *text, size_t len, uint64_t *out)
{
    char digits[24];
    if (!len || len >= sizeof digits || strspn(text, "0123456789") < len)
        return false;
    memcpy(digits, text, len);
    digits[len] = '\0';
    return common_parse_u64(digits, out) == COMMON_OK;
}

static bool since_parse(void)
{
    size_t term = strcspn(given.since, "/");
    if (number_parse(given.since, strlen(given.since), &after))
        return true;
    if (given.since[term] == '/')
        return number_parse(given.since, term, &asks.term) && asks.term &&
               number_parse(given.since + term + 1, strlen(given.since + term + 1), &asks.seq);
    return ctl_moment_parse(given.since, &asks.since_ns);
}

static enum ctl_exit check_events(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    if (given.kinds && !kinds_parse())
        return CTL_USAGE;
    if (given.since && !since_parse())
        return ctl_say(
            CTL_USAGE,
            "--since: '%.40s' is neither a time (10m, 2026-11-25T17:00:00Z) nor the number of an event "
            "(120, or TERM/120)",
            given.since);
    if (given.worker && strlen(given.worker) > 64)
        return ctl_say(CTL_USAGE, "--worker: a name has at most 64 characters");
    if (given.session && (!given.session[0] || strlen(given.session) > 128))
        return ctl_say(CTL_USAGE, "--session: a name has 1 to 128 characters");
    asks.severity = given.severity;
    asks.worker = given.worker;
    asks.session_name = given.session;
    if (given.session) {
        char *end;
        asks.session = strtoull(given.session, &end, 0);
        asks.session = *end ? 0 : asks.session;
    }
    return CTL_OK;
}

// ---- one event ----------------------------------------------------------------------------------------------

static void write_time(const banyan_event *e, bool utc, char *out, size_t bytes)
{
    time_t seconds = (time_t)(e->time_ns / COMMON_NS_PER_S);
    char day[40];
    struct tm at;
    if (utc)
        gmtime_r(&seconds, &at);
    else
        localtime_r(&seconds, &at);
    strftime(day, sizeof day, utc ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &at);
    snprintf(out, bytes, "%s.%03u%s", day, (unsigned)(e->time_ns % COMMON_NS_PER_S / COMMON_NS_PER_MS),
             utc ? "Z" : "");
}

static void write_about(const banyan_event *e, char *out, size_t bytes)
{
    char session[160] = "";
    if (e->session_name[0])
        snprintf(session, sizeof session, "%s", e->session_name);
    else if (e->session)
        snprintf(session, sizeof session, "0x%016" PRIx64, e->session);
    snprintf(out, bytes, "%s%s%s", e->worker, e->worker[0] && session[0] ? ", " : "", session);
}

static void write_text(const banyan_event *e, char *out, size_t bytes)
{
    int n = snprintf(out, bytes, "%s", e->text);
    if (e->count > 1 && n >= 0 && (size_t)n < bytes)
        snprintf(out + n, bytes - (size_t)n, " (%u times)", e->count);
}

static json_t *event_json(const banyan_event *e)
{
    char time[48];
    write_time(e, true, time, sizeof time);
    json_t *row = json_pack("{s:o, s:o, s:s, s:s, s:s}", "term", ctl_json_u64(e->term), "seq",
                            ctl_json_u64(e->seq), "time", time, "severity", e->severity, "kind", e->kind);
    json_object_set_new(row, "worker", e->worker[0] ? json_string(e->worker) : json_null());
    json_object_set_new(row, "session", e->session ? ctl_json_id(e->session) : json_null());
    json_object_set_new(row, "session_name", e->session_name[0] ? json_string(e->session_name) : json_null());
    json_object_set_new(row, "epoch", e->epoch ? ctl_json_u64(e->epoch) : json_null());
    json_object_set_new(row, "count", ctl_json_u64(e->count));
    json_object_set_new(row, "text", json_string(e->text));
    return row;
}

// ---- all that are there -------------------------------------------------------------------------------------

struct kept { // the newest of those that match
    banyan_event *list;
    size_t n, cap;
};

static bool wanted(const banyan_event *e)
{
    return e->seq > after;
}

static bool keep(struct kept *kept, const banyan_event *e)
{
    if (kept->n == kept->cap) {
        size_t cap = kept->cap ? 2 * kept->cap : 256;
        banyan_event *grown = realloc(kept->list, cap * sizeof *grown);
        if (!grown)
            return false;
        kept->list = grown;
        kept->cap = cap;
    }
    kept->list[kept->n++] = *e;
    return true;
}

static void tell_gap(const banyan_events *page)
{
    if (page->anew)
        fprintf(stderr,
                "banyanctl: the coordinator has restarted, or another one is serving (term %" PRIu64 ")\n",
                page->term);
    if (page->lost)
        fprintf(stderr,
                "banyanctl: %" PRIu64
                " events were lost: newer ones replaced them in the coordinator's memory\n",
                page->lost);
}

// `asks` has come behind them then.
static enum ctl_exit read_all(struct ctl *ctl, struct kept *out)
{
    banyan_events page = {.more = true};
    banyan_error error;
    while (page.more) {
        if (banyan_events_read(ctl->client, &asks, &page, &error) != BANYAN_OK)
            return ctl_fail(&error);
        tell_gap(&page);
        bool room = true;
        for (uint32_t i = 0; i < page.n && room; i++)
            room = !wanted(&page.events[i]) || keep(out, &page.events[i]);
        asks.term = page.term;
        asks.seq = page.seq;
        banyan_events_free(&page);
        if (!room)
            return ctl_say(CTL_EXHAUSTED, "out of memory");
    }
    after = 0; // what comes is behind it, or another coordinator's
    return CTL_OK;
}

static void print_table(struct ctl *ctl, const struct kept *kept, size_t from)
{
    static const struct ctl_column columns[] = {
        {"time", "TIME", CTL_TEXT},   {"severity", "SEVERITY", CTL_TEXT}, {"kind", "KIND", CTL_TEXT},
        {"about", "ABOUT", CTL_TEXT}, {"text", "WHAT", CTL_TEXT},         {0},
    };
    json_t *rows = json_array();
    for (size_t i = from; i < kept->n; i++) {
        const banyan_event *e = &kept->list[i];
        json_t *row = event_json(e);
        if (!ctl->json) {
            char time[48], about[256], text[300];
            write_time(e, false, time, sizeof time);
            write_about(e, about, sizeof about);
            write_text(e, text, sizeof text);
            json_object_set_new(row, "time", json_string(time));
            json_object_set_new(row, "about", json_string(about));
            json_object_set_new(row, "text", json_string(text));
        }
        json_array_append_new(rows, row);
    }
    if (json_array_size(rows) == 0)
        fprintf(stderr, "no events\n");
    ctl_print_rows(ctl, rows, columns);
}

// ---- those that come ----------------------------------------------------------------------------------------

static bool print_line(const struct ctl *ctl, const banyan_event *e)
{
    if (ctl->json) {
        json_t *row = event_json(e);
        json_dumpf(row, stdout, JSON_COMPACT);
        json_decref(row);
        putchar('\n');
    } else {
        static const char *const colors[] = {"", "\033[33m", "\033[31m"};
        char time[48], about[256], text[300];
        enum proto_event_severity severity = PROTO_EVENT_INFO;
        bool colored = ctl_want_color() && proto_event_severity_parse(e->severity, &severity) && severity;
        write_time(e, false, time, sizeof time);
        write_about(e, about, sizeof about);
        write_text(e, text, sizeof text);
        printf("%s  %s%-5s%s  %-20s  %s%s%s\n", time, colored ? colors[severity] : "", e->severity,
               colored ? "\033[m" : "", e->kind, about, about[0] ? ": " : "", text);
    }
    return fflush(stdout) == 0;
}

static enum ctl_exit follow(struct ctl *ctl, const struct kept *kept, size_t from)
{
    bool away = false, written = true;
    for (size_t i = from; i < kept->n && written; i++)
        written = print_line(ctl, &kept->list[i]);
    asks.wait_ns = WAIT_NS;
    while (written) {
        banyan_events page;
        banyan_error error;
        banyan_code code = banyan_events_read(ctl->client, &asks, &page, &error);
        if (code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED) {
            if (!away)
                fprintf(stderr, "banyanctl: no answer; still trying: %s\n", error.message);
            away = true;
            nanosleep(&(struct timespec){(time_t)(REST_NS / COMMON_NS_PER_S), 0}, NULL);
            continue;
        }
        if (code != BANYAN_OK)
            return ctl_fail(&error);
        away = false;
        tell_gap(&page);
        for (uint32_t i = 0; i < page.n && written; i++)
            written = print_line(ctl, &page.events[i]);
        asks.term = page.term;
        asks.seq = page.seq;
        banyan_events_free(&page);
    }
    return ctl_say(CTL_FILE, "cannot write to standard output");
}

static enum ctl_exit run_events(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    struct kept kept = {0};
    enum ctl_exit exit_code = read_all(ctl, &kept);
    if (exit_code == CTL_OK) {
        uint64_t limit = given.limit != NOT_GIVEN       ? given.limit
                         : given.follow && !given.since ? FOLLOW_LIMIT
                                                        : NOT_GIVEN;
        size_t from = kept.n > limit ? kept.n - (size_t)limit : 0;
        if (given.follow)
            exit_code = follow(ctl, &kept, from);
        else
            print_table(ctl, &kept, from);
    }
    free(kept.list);
    return exit_code;
}

static const struct common_option events_options[] = {
    {"follow", 'f', COMMON_OPTION_FLAG, &given.follow, NULL,
     "Print new events as they happen, one per line (with -o json: one object per line),\n"
     "until interrupted, across restarts of the coordinator.",
     0, 0},
    {"since", 's', COMMON_OPTION_STRING, &given.since, "WHEN",
     "Events since a time: 10m (ago), 2026-11-25T17:00:00Z, or local time without the Z; or\n"
     "those after the event with this number: 120, or TERM/120. Default: all.",
     0, 0},
    {"kind", 'k', COMMON_OPTION_STRING, &given.kinds, "KIND,...",
     "Only these kinds, or groups of kinds: the word before the dash. Default: all.", 0, 0},
    {"severity", 0, COMMON_OPTION_STRING, &given.severity, "info|warn|error",
     "Only this severity and above. Default: info.", 0, 0},
    {"worker", 0, COMMON_OPTION_STRING, &given.worker, "WORKER", "Only events about this worker.", 0, 0},
    {"session", 0, COMMON_OPTION_STRING, &given.session, "SESSION",
     "Only events about this session: an id or a name, even if it no longer exists.", 0, 0},
    {"limit", 'n', COMMON_OPTION_U64, &given.limit, "N",
     "Only the newest N. Default: all that are kept; 10 with --follow and no --since.", 0, UINT32_MAX},
    {0},
};

#define KIND_LINE(kind, name, most, seconds, what) "\n  " name ": " what "."

const struct ctl_command ctl_events_commands[] = {
    {"events", "", "list events: workers joining and leaving, sessions losing copies, refusals",
     "Lists the coordinator's events, the oldest first: workers joining and leaving, sessions losing copies, "
     "epochs,\n"
     "refusals, each with its reason. It keeps the newest 4096 (--events) in memory since its start. "
     "Frequent events of\n"
     "one kind are grouped into one with a count. Event numbers rise; a line on standard error notes missing "
     "events and\n"
     "restarts of the coordinator.\n"
     "Kinds:" PROTO_EVENT_KINDS(KIND_LINE),
     events_options, 0, 0, run_events, check_events},
    {0},
};
