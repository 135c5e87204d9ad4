// SPDX-License-Identifier: Apache-2.0
// session mass, session trace: what the last steps of a session looked at, and where their time went.
#include <inttypes.h>
#include <langinfo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/ctl.h"
#include "common/clock.h"

#define STEPS_MAX 64
#define BINS_MAX  1024
#define LABEL     27 // columns before a line of the map
#define BAR       40 // columns of a timeline
#define TOP       5  // stretches that are named

static uint64_t given_steps, given_layer = UINT64_MAX, given_bins;
static uint64_t given_wait_ns = 5 * COMMON_NS_PER_S;
static bool given_heads, given_each;

// ---- watching
// ------------------------------------------------------------------------------------------------------

struct seen { // an opened session and its last steps
    banyan_session *session;
    const banyan_spec *spec;
    banyan_watch watch;
};

static void seen_free(struct seen *seen)
{
    banyan_watch_free(&seen->watch);
    banyan_session_close(seen->session);
}

static enum ctl_exit look(struct ctl *ctl, const char *name, bool mass, uint32_t bins, struct seen *out)
{
    banyan_error error;
    char wait[32];
    enum ctl_exit exit_code = ctl_session_open(ctl, name, &out->session);
    if (exit_code != CTL_OK)
        return exit_code;
    out->spec = banyan_session_spec(out->session);
    uint64_t layers = given_layer == UINT64_MAX ? out->spec->layers : 1;
    banyan_watch_options options = {
        .steps = (uint32_t)(given_steps          ? given_steps
                            : layers < STEPS_MAX ? layers
                                                 : STEPS_MAX),
        .wait_ns = given_wait_ns,
        .all_layers = given_layer == UINT64_MAX,
        .layer = (uint32_t)given_layer,
        .trace = !mass,
        .mass_bins = mass ? bins : 0,
        .mass_per_head = given_heads,
    };
    if (given_heads && !given_steps)
        options.steps = 1;
    if (given_heads && bins > 65536 / out->spec->q_heads)
        options.mass_bins = 65536 / out->spec->q_heads;
    if (banyan_session_watch(out->session, &options, &out->watch, &error) != BANYAN_OK)
        exit_code = ctl_fail(&error);
    else if (out->watch.n == 0)
        exit_code = ctl_say(CTL_TIMEOUT,
                            "no step of session %s came within %s, and none such is kept\n"
                            "  nothing is kept of steps that nobody watched: ask again while it is in use, "
                            "or with a longer --wait",
                            name, common_format_ns(given_wait_ns, wait, sizeof wait));
    if (exit_code != CTL_OK)
        seen_free(out);
    return exit_code;
}

static json_t *step_json(const banyan_watched_step *s)
{
    return json_pack("{s:o, s:i, s:o, s:i, s:o, s:b, s:o, s:i}", "step", ctl_json_u64(s->step), "layer",
                     (int)s->layer, "first", ctl_json_u64(s->first), "rows", (int)s->rows, "visible",
                     ctl_json_u64(s->visible), "append", s->append, "age_ns", ctl_json_u64(s->age_ns),
                     "attempts", (int)s->attempts);
}

// ---- masses: JSON
// --------------------------------------------------------------------------------------------------

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
    json_t *object = step_json(s);
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
    json_object_set_new(object, "mean_of_heads", json_boolean(!given_heads));
    json_object_set_new(object, "heads", heads);
    return object;
}

// ---- masses: drawn
// -------------------------------------------------------------------------------------------------

static bool utf8(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

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
    return utf8() ? fine[level] : plain[level];
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

static void draw_steps(const struct seen *seen, uint32_t cells)
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
    printf("\nWhere they looked most, on average (of %.4g %% each, were all alike):\n",
           100.0 / means->n_bins);
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

static void print_means(const struct ctl *ctl, const struct seen *seen)
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
    if (seen->spec->sinks)
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
                                                {"share", "OF TOKENS", CTL_TEXT},
                                                {"mass", "OF MASS", CTL_TEXT},
                                                {0}};
    printf("\n");
    ctl_print_rows(ctl, means.workers, columns);
    free(means.bins);
}

static enum ctl_exit run_mass(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    struct seen seen = {0};
    uint32_t cells = width();
    uint32_t bins = given_bins ? (uint32_t)given_bins : cells;
    enum ctl_exit exit_code = look(ctl, args[0], true, bins, &seen);
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
               "A cell is half as high as the next where it holds half as much; empty below 1/256 of the "
               "row's largest.\n\n",
               given_heads ? "head by head" : "mean over the query heads",
               common_format_ns(seen.watch.steps[seen.watch.n - 1].age_ns, age, sizeof age));
        draw_steps(&seen, cells);
        print_means(ctl, &seen);
    }
    seen_free(&seen);
    return CTL_OK;
}

// ---- traces
// --------------------------------------------------------------------------------------------------------

static int by_rank(const void *a, const void *b)
{
    uint32_t x = ((const banyan_worker_trace *)a)->rank, y = ((const banyan_worker_trace *)b)->rank;
    return x < y ? -1 : x > y;
}

// Queue, compute and wait along the tree's time.
static void bar(const banyan_worker_trace *w, uint64_t tree_ns, char *out, size_t len)
{
    const char *const marks[2][3] = {{".", "#", "-"}, {"·", "█", "░"}};
    const uint64_t part[3] = {w->queue_ns, w->compute_ns, w->wait_ns};
    uint64_t until = 0;
    uint32_t drawn = 0;
    size_t used = 0;
    out[0] = '\0';
    for (int p = 0; p < 3; p++) {
        until += part[p];
        uint64_t to = tree_ns ? until * BAR / tree_ns : 0;
        to = to < BAR ? to : BAR;
        for (; drawn < to && used + 4 < len; drawn++)
            used += (size_t)snprintf(out + used, len - used, "%s", marks[utf8()][p]);
    }
}

static json_t *worker_json(const banyan_worker_trace *w)
{
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "worker", w->worker, "rank", (int)w->rank,
                     "parent", (int)w->parent, "tokens", ctl_json_u64(w->tokens), "queue_ns",
                     ctl_json_u64(w->queue_ns), "compute_ns", ctl_json_u64(w->compute_ns), "wait_ns",
                     ctl_json_u64(w->wait_ns));
}

static json_t *trace_json(const banyan_watched_step *s)
{
    json_t *object = step_json(s), *workers = json_array();
    for (uint32_t w = 0; w < s->trace.n_workers; w++)
        json_array_append_new(workers, worker_json(&s->trace.workers[w]));
    json_object_set_new(object, "total_ns", ctl_json_u64(s->trace.total_ns));
    json_object_set_new(object, "coordinator_ns", ctl_json_u64(s->trace.coordinator_ns));
    json_object_set_new(object, "tree_ns", ctl_json_u64(s->trace.tree_ns));
    json_object_set_new(object, "mass_ns", ctl_json_u64(s->trace.mass_ns));
    json_object_set_new(object, "workers", workers);
    return object;
}

// As a tree, unless ranks are missing.
static void draw_trace(const struct ctl *ctl, const banyan_trace *trace)
{
    char text[3][32], timeline[4 * BAR + 8];
    printf("in the service %s: coordinator %s, tree %s",
           common_format_ns(trace->total_ns, text[0], sizeof text[0]),
           common_format_ns(trace->coordinator_ns, text[1], sizeof text[1]),
           common_format_ns(trace->tree_ns, text[2], sizeof text[2]));
    if (trace->mass_ns)
        printf(", masses %s", common_format_ns(trace->mass_ns, text[0], sizeof text[0]));
    printf("\n");
    json_t *rows = json_array();
    bool whole = true;
    for (uint32_t w = 0; w < trace->n_workers; w++) {
        json_t *row = worker_json(&trace->workers[w]);
        bar(&trace->workers[w], trace->tree_ns, timeline, sizeof timeline);
        json_object_set_new(row, "timeline", json_string(timeline));
        json_array_append_new(rows, row);
        whole = whole && trace->workers[w].rank == w;
    }
    static const struct ctl_column columns[] = {{"worker", "WORKER", CTL_TEXT},
                                                {"tokens", "TOKENS", CTL_COUNT},
                                                {"queue_ns", "QUEUE", CTL_TIME},
                                                {"compute_ns", "COMPUTE", CTL_TIME},
                                                {"wait_ns", "WAIT", CTL_TIME},
                                                {"timeline", "QUEUE, COMPUTE, WAIT OF THE TREE'S TIME",
                                                 CTL_TEXT},
                                                {0}};
    if (whole)
        ctl_print_tree(ctl, rows, columns);
    else
        ctl_print_rows(ctl, rows, columns);
}

// Means over the steps that went over the newest one's members.
static void mean_trace(const banyan_watch *watch, banyan_trace *out, uint32_t *n)
{
    const banyan_trace *newest = &watch->steps[watch->n - 1].trace;
    *out = (banyan_trace){.n_workers = newest->n_workers,
                          .workers = calloc(newest->n_workers + 1, sizeof *out->workers)};
    *n = 0;
    for (uint32_t i = 0; i < watch->n && out->workers; i++) {
        const banyan_trace *t = &watch->steps[i].trace;
        bool same = t->n_workers == newest->n_workers;
        for (uint32_t w = 0; w < t->n_workers && same; w++)
            same = strcmp(t->workers[w].worker, newest->workers[w].worker) == 0;
        if (!same)
            continue;
        ++*n;
        out->total_ns += t->total_ns;
        out->coordinator_ns += t->coordinator_ns;
        out->tree_ns += t->tree_ns;
        out->mass_ns += t->mass_ns;
        for (uint32_t w = 0; w < t->n_workers; w++) {
            banyan_worker_trace *to = &out->workers[w];
            const banyan_worker_trace sum = *to;
            *to = t->workers[w];
            to->queue_ns += sum.queue_ns;
            to->compute_ns += sum.compute_ns;
            to->wait_ns += sum.wait_ns;
        }
    }
    for (uint32_t w = 0; w < out->n_workers && *n; w++) {
        out->workers[w].queue_ns /= *n;
        out->workers[w].compute_ns /= *n;
        out->workers[w].wait_ns /= *n;
    }
    if (*n == 0)
        return;
    out->total_ns /= *n;
    out->coordinator_ns /= *n;
    out->tree_ns /= *n;
    out->mass_ns /= *n;
}

static void draw_each(const struct ctl *ctl, const banyan_watch *watch)
{
    for (uint32_t i = 0; i < watch->n; i++) {
        const banyan_watched_step *s = &watch->steps[i];
        printf("%sstep %" PRIu64 " layer %u, %u row%s at %" PRIu64 "%s, attempt %u\n", i ? "\n" : "", s->step,
               s->layer, s->rows, s->rows == 1 ? "" : "s", s->first, s->append ? " appended" : "",
               s->attempts);
        draw_trace(ctl, &s->trace);
    }
}

static enum ctl_exit run_trace(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    struct seen seen = {0};
    enum ctl_exit exit_code = look(ctl, args[0], false, 0, &seen);
    if (exit_code != CTL_OK)
        return exit_code;
    for (uint32_t i = 0; i < seen.watch.n; i++)
        qsort(seen.watch.steps[i].trace.workers, seen.watch.steps[i].trace.n_workers,
              sizeof *seen.watch.steps[i].trace.workers, by_rank);
    if (ctl->json) {
        json_t *steps = json_array();
        for (uint32_t i = 0; i < seen.watch.n; i++)
            json_array_append_new(steps, trace_json(&seen.watch.steps[i]));
        ctl_print_json(
            json_pack("{s:o, s:o}", "session", ctl_json_id(banyan_session_id(seen.session)), "steps", steps));
    } else if (given_each) {
        draw_each(ctl, &seen.watch);
    } else {
        banyan_trace mean;
        uint32_t n;
        char age[32];
        mean_trace(&seen.watch, &mean, &n);
        printf("mean of %u step%s, the newest answered %s ago\n", n, n == 1 ? "" : "s",
               common_format_ns(seen.watch.steps[seen.watch.n - 1].age_ns, age, sizeof age));
        draw_trace(ctl, &mean);
        banyan_trace_free(&mean);
    }
    seen_free(&seen);
    return CTL_OK;
}

#define STEPS_OPTION                                                                                         \
    {                                                                                                        \
        "steps", 'n', COMMON_OPTION_U64, &given_steps, "N",                                                  \
            "How many steps; a step is one layer's attention call. Default: one of each layer.", 1,          \
            STEPS_MAX                                                                                        \
    }
#define LAYER_OPTION                                                                                         \
    {                                                                                                        \
        "layer", 'l', COMMON_OPTION_U64, &given_layer, "N", "Of this layer only. Default: of any.", 0, 1023  \
    }
#define WAIT_OPTION                                                                                          \
    {                                                                                                        \
        "wait", 'w', COMMON_OPTION_DURATION, &given_wait_ns, "TIME",                                         \
            "How long to wait for new steps before those that are kept are shown. Default: 5s.", 0,          \
            50 * COMMON_NS_PER_S                                                                             \
    }

static const struct common_option mass_options[] = {
    STEPS_OPTION,
    LAYER_OPTION,
    {"heads", 0, COMMON_OPTION_FLAG, &given_heads, NULL,
     "Each query head for itself, of one step unless --steps says more.", 0, 0},
    {"bins", 'b', COMMON_OPTION_U64, &given_bins, "N",
     "Stretches of the context, at most. Default: what the terminal shows.", 1, BINS_MAX},
    WAIT_OPTION,
    {0},
};

static const struct common_option trace_options[] = {
    STEPS_OPTION,
    LAYER_OPTION,
    {"each", 0, COMMON_OPTION_FLAG, &given_each, NULL, "Each step for itself, not their mean.", 0, 0},
    WAIT_OPTION,
    {0},
};

const struct ctl_command ctl_watch_commands[] = {
    {"session mass", "SESSION", "which part of the context its last steps looked at",
     "Draws the attention mass of each stretch of the context: of the session's next steps, and where none "
     "come in "
     "time, of the last ones that\nwere watched or whose client asked. The session's client notices nothing; "
     "the "
     "workers compute the masses beside the steps.",
     mass_options, 1, 1, run_mass, NULL},
    {"session trace", "SESSION", "where the time of its last steps went",
     "Draws the tree of workers with the time that each waited for its turn (queue), computed, and waited "
     "for its "
     "children: of the session's next\nsteps, and where none come in time, of the last ones that were "
     "watched or "
     "whose client asked.",
     trace_options, 1, 1, run_trace, NULL},
    {0},
};
