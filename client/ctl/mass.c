// SPDX-License-Identifier: Apache-2.0
// session mass: which part of the context a session's last steps looked at, as JSON or as a map.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/ctl/watch.h"

#define LABEL 27 // columns before a line of the map
#define TOP   5  // stretches that are named

// ---- masses: JSON -------------------------------------------------------------------------------

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *numbers(const float *x, size_t n)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, number((double)x[i]));
    return array;
}

// Of a head: [bins], [workers], sink.
static json_t *head_json(const banyan_mass *m, uint32_t h)
{
    return json_pack("{s:o, s:o, s:o}", "bins", numbers(m->bin + (size_t)h * m->n_bins, m->n_bins), "workers",
                     numbers(m->worker + (size_t)h * m->n_workers, m->n_workers), "sink",
                     number((double)m->sink[h]));
}

static json_t *mass_json(const banyan_watched_step *s)
{
    const banyan_mass *m = &s->mass;
    json_t *object = ctl_watch_step_json(s);
    if (m->n_bins == 0) {
        json_object_set_new(object, "error", json_string(m->message));
        return object;
    }
    json_t *workers = json_array();
    for (uint32_t w = 0; w < m->n_workers; w++)
        json_array_append_new(workers, json_pack("{s:s, s:o}", "name", m->workers[w].name, "tokens",
                                                 ctl_json_u64(m->workers[w].tokens)));
    json_t *heads = json_array();
    for (uint32_t h = 0; h < m->heads; h++)
        json_array_append_new(heads, head_json(m, h));
    json_object_set_new(object, "bin_tokens", ctl_json_u64(m->bin_tokens));
    json_object_set_new(object, "workers", workers);
    json_object_set_new(object, "mean_of_heads", json_boolean(!ctl_watch_given.heads));
    json_object_set_new(object, "heads", heads);
    return object;
}

// ---- masses: drawn ------------------------------------------------------------------------------

static uint32_t width(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    uint64_t n = 0;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        n = size.ws_col;
    if (n == 0 && (!columns || common_parse_u64(columns, &n) != COMMON_OK))
        n = 100;
    return n < LABEL + 20 ? 20 : n > LABEL + 200 ? 200 : (uint32_t)n - LABEL;
}

// Each level is half of the next; the last one is at least half of the largest.
static const char *shade(double mass, double most)
{
    static const char *const fine[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const plain[] = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};
    int level = 0;
    if (isnan(mass))
        return "?";
    for (double x = mass; level < 8 && x > 0 && x * 256 >= most; x /= 2)
        level++;
    return ctl_watch_utf8() ? fine[level] : plain[level];
}

// Columns of one stretch, where there are fewer of them than cells.
static uint32_t width_of(uint32_t n, uint32_t cells)
{
    uint32_t wide = cells / n;
    return wide < 1 ? 1 : wide > 6 ? 6 : wide;
}

static void draw_row(const char *label, const float *bins, uint32_t n, uint32_t cells)
{
    double cell[256] = {0}, most = 0;
    uint32_t wide = width_of(n, cells);
    cells = n < cells ? n : cells;
    for (uint32_t b = 0; b < n; b++)
        cell[(uint64_t)b * cells / n] += (double)bins[b];
    for (uint32_t i = 0; i < cells; i++)
        most = fmax(most, cell[i]);
    printf("%-*s|", LABEL - 2, label);
    for (uint32_t i = 0; i < cells * wide; i++)
        fputs(shade(cell[i / wide], most), stdout);
    printf("|\n");
}

static void draw_steps(const struct ctl_seen *seen, uint32_t cells)
{
    const banyan_watch *watch = &seen->watch;
    char label[64];
    uint32_t drawn = 0;
    uint64_t end = 0;
    for (uint32_t i = 0; i < watch->n; i++) {
        const banyan_watched_step *s = &watch->steps[i];
        const banyan_mass *m = &s->mass;
        if (m->n_bins == 0) {
            printf("step %" PRIu64 " layer %u: no masses: %s\n", s->step, s->layer, m->message);
            continue;
        }
        for (uint32_t h = 0; h < m->heads; h++) {
            int used = snprintf(label, sizeof label, "step %" PRIu64 " layer %u", s->step, s->layer);
            if (m->heads > 1)
                snprintf(label + used, sizeof label - (size_t)used, " head %u", h);
            draw_row(label, m->bin + (size_t)h * m->n_bins, m->n_bins, cells);
        }
        drawn = m->n_bins < cells ? m->n_bins * width_of(m->n_bins, cells) : cells;
        end = m->visible;
    }
    if (drawn == 0)
        return;
    char last[32];
    int digits = snprintf(last, sizeof last, "%" PRIu64, end);
    printf("%*s%-*d%s\n", LABEL - 1, "position ", (int)drawn > digits ? (int)drawn + 1 - digits : 1, 0, last);
}

// Means over the steps that were drawn, weighed alike.
struct means {
    uint32_t n; // of rows
    double sink;
    double *bins; // [n_bins] of the newest step's layout; steps with another one are left out
    uint32_t n_bins;
    uint64_t bin_tokens, visible;
    json_t *workers; // an object a worker
};

static json_t *worker_of(json_t *workers, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(workers, i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
            return one;
    }
    one = json_pack("{s:s, s:i, s:f}", "name", name, "tokens", 0, "mass", 0.0);
    json_array_append_new(workers, one);
    return one;
}

static void add_step(struct means *means, const banyan_mass *m)
{
    for (uint32_t h = 0; h < m->heads; h++) {
        means->n++;
        means->sink += (double)m->sink[h];
        for (uint32_t w = 0; w < m->n_workers; w++) {
            json_t *one = worker_of(means->workers, m->workers[w].name);
            double mass = json_real_value(json_object_get(one, "mass"));
            double more = (double)m->worker[(size_t)h * m->n_workers + w];
            json_object_set_new(one, "tokens", ctl_json_u64(m->workers[w].tokens));
            json_object_set_new(one, "mass", json_real(isfinite(more) ? mass + more : mass));
        }
        for (uint32_t b = 0; b < means->n_bins && m->bin_tokens == means->bin_tokens && b < m->n_bins; b++)
            means->bins[b] += (double)m->bin[(size_t)h * m->n_bins + b];
    }
}

static void print_top(struct means *means)
{
    printf("\nHighest attention, on average (an even share is %.4g %%):\n", 100.0 / means->n_bins);
    for (int i = 0; i < TOP && i < (int)means->n_bins; i++) {
        uint32_t most = 0;
        for (uint32_t b = 1; b < means->n_bins; b++)
            most = means->bins[b] > means->bins[most] ? b : most;
        uint64_t from = most * means->bin_tokens, to = from + means->bin_tokens;
        to = to < means->visible ? to : means->visible;
        printf("  tokens %10" PRIu64 " to %10" PRIu64 "  %6.2f %%\n", from, to - 1,
               100 * means->bins[most] / means->n);
        means->bins[most] = -1;
    }
}

static void print_means(const struct ctl *ctl, const struct ctl_seen *seen)
{
    struct means means = {.workers = json_array()};
    const banyan_mass *newest = NULL;
    for (uint32_t i = 0; i < seen->watch.n; i++)
        newest = seen->watch.steps[i].mass.n_bins ? &seen->watch.steps[i].mass : newest;
    if (newest) {
        means.n_bins = newest->n_bins;
        means.bin_tokens = newest->bin_tokens;
        means.visible = newest->visible;
        means.bins = calloc(means.n_bins, sizeof *means.bins);
    }
    if (!means.bins) {
        json_decref(means.workers);
        return;
    }
    for (uint32_t i = 0; i < seen->watch.n; i++)
        if (seen->watch.steps[i].mass.n_bins)
            add_step(&means, &seen->watch.steps[i].mass);
    print_top(&means);
    if (means.sink > 0 || seen->spec->sinks)
        printf("  the attention sinks%*s%6.2f %%\n", 14, "", 100 * means.sink / means.n);
    size_t i;
    json_t *one;
    char text[2][32];
    json_array_foreach(means.workers, i, one)
    {
        uint64_t tokens = (uint64_t)json_integer_value(json_object_get(one, "tokens"));
        snprintf(text[0], sizeof text[0], "%.2f %%",
                 100 * json_real_value(json_object_get(one, "mass")) / means.n);
        snprintf(text[1], sizeof text[1], "%.2f %%", 100 * (double)tokens / (double)means.visible);
        json_object_set_new(one, "mass", json_string(text[0]));
        json_object_set_new(one, "share", json_string(text[1]));
    }
    static const struct ctl_column columns[] = {{"name", "WORKER", CTL_TEXT},
                                                {"tokens", "TOKENS", CTL_COUNT},
                                                {"share", "TOKEN SHARE", CTL_TEXT},
                                                {"mass", "MASS SHARE", CTL_TEXT},
                                                {0}};
    printf("\n");
    ctl_print_rows(ctl, means.workers, columns);
    free(means.bins);
}

enum ctl_exit ctl_run_mass(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    struct ctl_seen seen = {0};
    uint32_t cells = width();
    uint32_t bins = ctl_watch_given.bins ? (uint32_t)ctl_watch_given.bins : cells;
    enum ctl_exit exit_code = ctl_watch_look(ctl, args[0], bins, &seen);
    if (exit_code != CTL_OK)
        return exit_code;
    if (ctl->json) {
        json_t *steps = json_array();
        for (uint32_t i = 0; i < seen.watch.n; i++)
            json_array_append_new(steps, mass_json(&seen.watch.steps[i]));
        ctl_print_json(
            json_pack("{s:o, s:o}", "session", ctl_json_id(banyan_session_id(seen.session)), "steps", steps));
    } else {
        char age[32];
        printf("Attention mass of the last row of each step, %s; the newest was answered %s ago.\n"
               "Half as much mass is one step lower; empty below 1/256 of the row's largest.\n"
               "\n",
               ctl_watch_given.heads ? "by query head" : "mean over the query heads",
               common_format_ns(seen.watch.steps[seen.watch.n - 1].age_ns, age, sizeof age));
        draw_steps(&seen, cells);
        print_means(ctl, &seen);
    }
    ctl_watch_end(&seen);
    return CTL_OK;
}
