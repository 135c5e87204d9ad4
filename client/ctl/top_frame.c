// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/top.h"
#include "common/base/clock.h"

#define LINE_MAX_BYTES 512
#define HEAD_LINES     5 // of a frame beside its workers
#define WIDTH_MAX      100

const struct ctl_top_sort_key ctl_top_sorts[CTL_TOP_SORTS] = {
    [CTL_TOP_NAME] = {"name", 'n'},   [CTL_TOP_STATE] = {"state", 's'}, [CTL_TOP_MEMORY] = {"memory", 'm'},
    [CTL_TOP_SPEED] = {"speed", 'p'}, [CTL_TOP_SEEN] = {"seen", 'e'},   [CTL_TOP_TOKENS] = {"tokens", 't'},
    [CTL_TOP_STEPS] = {"steps", 'c'},
};

struct row {
    const banyan_worker_info *w;
    double steps_per_s; // NaN: not known
};

// ---- numbers ----------------------------------------------------------------------------------------------

static double rate(uint64_t now, uint64_t before, const struct ctl_top_look *a, const struct ctl_top_look *b)
{
    if (!b->at_ns || a->at_ns <= b->at_ns || now < before)
        return NAN; // there is no look before, or it is of another life
    return (double)(now - before) * 1e9 / (double)(a->at_ns - b->at_ns);
}

static double worker_rate(const banyan_worker_info *w, const struct ctl_top_look *now,
                          const struct ctl_top_look *before)
{
    for (uint32_t i = 0; before->at_ns && i < before->info.n_workers; i++)
        if (strcmp(before->info.workers[i].name, w->name) == 0)
            return rate(w->steps, before->info.workers[i].steps, now, before);
    return NAN;
}

static const char *format_rate(double per_s, char out[32])
{
    if (isnan(per_s))
        strcpy(out, "-");
    else
        snprintf(out, 32, per_s < 100 ? "%.1f" : "%.0f", per_s);
    return out;
}

// Six digits at most.
static const char *format_count(uint64_t n, char out[32])
{
    static const char units[] = "kMGTPE";
    double x = (double)n;
    int unit = -1;
    for (; n >= 1000000 && x >= 1000 && unit < 5; unit++)
        x /= 1000;
    if (unit < 0)
        snprintf(out, 32, "%" PRIu64, n);
    else
        snprintf(out, 32, "%.1f%c", x, units[unit]);
    return out;
}

static const char *format_speed(uint64_t bytes_per_s, char out[40])
{
    char bytes[32];
    if (bytes_per_s)
        snprintf(out, 40, "%s/s", common_format_bytes(bytes_per_s, bytes, sizeof bytes));
    else
        strcpy(out, "-");
    return out;
}

static unsigned percent(uint64_t part, uint64_t whole)
{
    return whole ? (unsigned)((double)part * 100 / (double)whole + 0.5) : 0;
}

// ---- order ------------------------------------------------------------------------------------------------

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? 1 : a > b ? -1 : 0; // the largest first
}

static int compare_rate(double a, double b)
{
    double x = isnan(a) ? -1 : a, y = isnan(b) ? -1 : b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int compare_rows(const void *a, const void *b, void *arg)
{
    const struct row *x = a, *y = b;
    const struct ctl_top_view *view = arg;
    int order = 0;
    switch (view->sort) {
    case CTL_TOP_STATE:
        order = strcmp(x->w->state, y->w->state);
        break;
    case CTL_TOP_MEMORY:
        order = compare_u64(x->w->used_bytes, y->w->used_bytes);
        break;
    case CTL_TOP_SPEED:
        order = compare_u64(x->w->bandwidth, y->w->bandwidth);
        break;
    case CTL_TOP_SEEN:
        order = compare_u64(x->w->seen_bandwidth, y->w->seen_bandwidth);
        break;
    case CTL_TOP_TOKENS:
        order = compare_u64(x->w->tokens, y->w->tokens);
        break;
    case CTL_TOP_STEPS:
        order = compare_rate(x->steps_per_s, y->steps_per_s);
        break;
    default:
        break;
    }
    order = order ? order : strverscmp(x->w->name, y->w->name); // w2 before w10
    return view->reverse ? -order : order;
}

static struct row *rows_of(const struct ctl_top_look *now, const struct ctl_top_look *before,
                           const struct ctl_top_view *view)
{
    struct row *rows = calloc(now->info.n_workers + 1, sizeof *rows);
    if (!rows)
        abort();
    for (uint32_t i = 0; i < now->info.n_workers; i++)
        rows[i] = (struct row){&now->info.workers[i], worker_rate(&now->info.workers[i], now, before)};
    qsort_r(rows, now->info.n_workers, sizeof *rows, compare_rows, (void *)view);
    return rows;
}

// ---- lines ------------------------------------------------------------------------------------------------

static unsigned width_of(const struct ctl_top_view *view)
{
    return view->width && view->width < WIDTH_MAX ? view->width : WIDTH_MAX;
}

// Cut to the width, without a part of a character, and without what a terminal would obey.
__attribute__((format(printf, 4, 5))) static void put_line(FILE *out, const struct ctl_top_view *view,
                                                           const char *sgr, const char *fmt, ...)
{
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    unsigned columns = 0;
    char *at = line;
    for (; *at; at++) {
        bool continues = ((unsigned char)*at & 0xc0) == 0x80;
        if (!continues && columns++ == width_of(view))
            break;
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    }
    *at = '\0';
    bool dressed = view->color && sgr;
    // Cleared before: behind a full line that would take its last character
    fprintf(out, "%s%s%s%s\n", view->live ? "\033[K" : "", dressed ? sgr : "", line, dressed ? "\033[m" : "");
}

static const char *color_of(const banyan_worker_info *w)
{
    if (strcmp(w->state, "active") == 0)
        return w->slow || w->draining ? "\033[33m" : NULL;
    return strcmp(w->state, "lost") == 0 ? "\033[31m" : "\033[33m";
}

static void put_worker(FILE *out, const struct row *row, const struct ctl_top_view *view)
{
    const banyan_worker_info *w = row->w;
    char state[48], used[32], speed[40], seen[40], tokens[32], steps[32];
    snprintf(state, sizeof state, "%s%s%s", w->state, w->draining ? ", draining" : "",
             w->slow ? ", slow" : "");
    put_line(out, view, color_of(w), "%-16.16s %-17.17s %10s %4u%% %11s %11s %9s %9s", w->name, state,
             common_format_bytes(w->used_bytes, used, sizeof used), percent(w->used_bytes, w->capacity_bytes),
             format_speed(w->bandwidth, speed), format_speed(w->seen_bandwidth, seen),
             format_count(w->tokens, tokens), format_rate(row->steps_per_s, steps));
}

struct sums {
    uint32_t active;
    uint64_t used, capacity;
};

static struct sums sums_of(const banyan_cluster_info *info)
{
    struct sums sums = {0};
    for (uint32_t i = 0; i < info->n_workers; i++) {
        sums.active += strcmp(info->workers[i].state, "active") == 0;
        sums.used += info->workers[i].used_bytes;
        sums.capacity += info->workers[i].capacity_bytes;
    }
    return sums;
}

static void put_cluster(FILE *out, const struct ctl_top_look *now, const struct ctl_top_look *before,
                        const struct ctl_top_view *view)
{
    const banyan_cluster_info *info = &now->info;
    struct sums sums = sums_of(info);
    char up[32], used[32], capacity[32], steps[32], answer[32], count[32];
    if (info->restricted) { // as many lines as below
        put_line(out, view, NULL, "cluster %s, term %" PRIu64 ", up %s, %s, at %s", info->cluster, info->term,
                 common_format_ns(info->uptime_ns, up, sizeof up), info->readiness, view->endpoint);
        put_line(out, view, NULL, "sessions of %s %s, answers in %s", info->tenant,
                 format_count(info->sessions, count),
                 common_format_ns(now->answer_ns, answer, sizeof answer));
        put_line(out, view, NULL, "no workers are shown to a token of the access '%s'", info->access);
        return;
    }
    put_line(out, view, NULL, "cluster %s, term %" PRIu64 ", up %s, %u of %u workers active, at %s",
             info->cluster, info->term, common_format_ns(info->uptime_ns, up, sizeof up), sums.active,
             info->n_workers, view->endpoint);
    put_line(out, view, NULL,
             "sessions %s, steps/s %s, memory %s of %s (%u%%), clients %" PRIu64 ", answers in %s",
             format_count(info->sessions, count),
             format_rate(rate(info->steps, before->info.steps, now, before), steps),
             common_format_bytes(sums.used, used, sizeof used),
             common_format_bytes(sums.capacity, capacity, sizeof capacity), percent(sums.used, sums.capacity),
             info->clients, common_format_ns(now->answer_ns, answer, sizeof answer));
    put_line(out, view, info->thin_chunks ? "\033[33m" : NULL,
             "chunks %" PRIu64 ", with too few copies %" PRIu64 ", moving %" PRIu64, info->chunks,
             info->thin_chunks, info->moves);
}

// Which keys there are; the order that is on stands in brackets.
static void put_keys(FILE *out, const struct ctl_top_view *view)
{
    char line[LINE_MAX_BYTES] = "sort:";
    size_t n = strlen(line);
    for (int i = 0; i < CTL_TOP_SORTS; i++) {
        bool on = (int)view->sort == i;
        n += (size_t)snprintf(line + n, sizeof line - n, " %s%c %s%s", on ? "[" : "", ctl_top_sorts[i].key,
                              ctl_top_sorts[i].word, on ? "]" : "");
    }
    put_line(out, view, "\033[2m", "%s   %sr reverse%s   q quit", line, view->reverse ? "[" : "",
             view->reverse ? "]" : "");
}

static void put_trouble(FILE *out, const struct ctl_top_view *view)
{
    if (view->trouble)
        put_line(out, view, "\033[31m", "no answer for %" PRIu64 " s: %s", view->trouble_ns / COMMON_NS_PER_S,
                 view->trouble);
}

void ctl_top_draw(FILE *out, const struct ctl_top_look *now, const struct ctl_top_look *before,
                  const struct ctl_top_view *view)
{
    put_trouble(out, view);
    if (!now->at_ns) {
        put_line(out, view, NULL, "%s", view->trouble ? "still trying; q quits" : "asking ...");
        return;
    }
    put_cluster(out, now, before, view);
    put_line(out, view, "\033[7m", "%-16s %-17s %10s %5s %11s %11s %9s %9s", "WORKER", "STATE", "MEMORY",
             "USED", "SPEED", "SEEN", "TOKENS", "STEPS/S");
    struct row *rows = rows_of(now, before, view);
    uint32_t n = now->info.n_workers, taken = HEAD_LINES + (view->trouble != NULL) + 1;
    uint32_t room = view->height > taken + 1 ? view->height - taken : 1;
    uint32_t shown = !view->height || n <= room ? n : room - 1;
    for (uint32_t i = 0; i < shown; i++)
        put_worker(out, &rows[i], view);
    if (shown < n)
        put_line(out, view, NULL, "and %u more", n - shown);
    free(rows);
    if (view->live)
        put_keys(out, view);
}

// ---- JSON -------------------------------------------------------------------------------------------------

static json_t *real_or_null(double x)
{
    return isnan(x) ? json_null() : json_real(x);
}

static json_t *worker_json(const struct row *row)
{
    const banyan_worker_info *w = row->w;
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", w->name, "host",
                     w->host, "state", w->state, "draining", w->draining, "slow", w->slow, "capacity_bytes",
                     ctl_json_u64(w->capacity_bytes), "used_bytes", ctl_json_u64(w->used_bytes), "bandwidth",
                     ctl_json_u64(w->bandwidth), "seen_bandwidth",
                     w->seen_bandwidth ? ctl_json_u64(w->seen_bandwidth) : json_null(), "tokens",
                     ctl_json_u64(w->tokens), "steps", ctl_json_u64(w->steps), "steps_per_s",
                     real_or_null(row->steps_per_s));
}

json_t *ctl_top_json(const struct ctl_top_look *now, const struct ctl_top_look *before,
                     const struct ctl_top_view *view)
{
    const banyan_cluster_info *info = &now->info;
    struct sums sums = sums_of(info);
    struct row *rows = rows_of(now, before, view);
    json_t *workers = json_array();
    for (uint32_t i = 0; i < info->n_workers; i++)
        json_array_append_new(workers, worker_json(&rows[i]));
    free(rows);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "cluster",
                     info->cluster, "endpoint", view->endpoint, "term", ctl_json_u64(info->term), "uptime_ns",
                     ctl_json_u64(info->uptime_ns), "answer_ns", ctl_json_u64(now->answer_ns),
                     "workers_active", (int)sums.active, "sessions", ctl_json_u64(info->sessions), "steps",
                     ctl_json_u64(info->steps), "steps_per_s",
                     real_or_null(rate(info->steps, before->info.steps, now, before)), "used_bytes",
                     ctl_json_u64(sums.used), "capacity_bytes", ctl_json_u64(sums.capacity), "clients",
                     ctl_json_u64(info->clients), "chunks", ctl_json_u64(info->chunks), "thin_chunks",
                     ctl_json_u64(info->thin_chunks), "workers", workers);
}
