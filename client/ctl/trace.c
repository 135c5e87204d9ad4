// SPDX-License-Identifier: Apache-2.0
// session trace: where the time of a session's last steps went, as JSON or as a tree with timelines.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/watch.h"

#define BAR 40 // columns of a timeline

// ---- traces -------------------------------------------------------------------------------------

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
            used += (size_t)snprintf(out + used, len - used, "%s", marks[ctl_watch_utf8()][p]);
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
    json_t *object = ctl_watch_step_json(s), *workers = json_array();
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
                                                {"timeline", "QUEUE, COMPUTE, WAIT IN THE TREE", CTL_TEXT},
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
        printf("%sstep %" PRIu64 " layer %u, %u row%s at %" PRIu64 "%s, attempt %u", i ? "\n" : "", s->step,
               s->layer, s->rows, s->rows == 1 ? "" : "s", s->first, s->append ? " appended" : "",
               s->attempts);
        if (s->missing)
            printf(", without %" PRIu64 " missing tokens", s->missing);
        printf("\n");
        draw_trace(ctl, &s->trace);
    }
}

enum ctl_exit ctl_run_trace(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    struct ctl_seen seen = {0};
    enum ctl_exit exit_code = ctl_watch_look(ctl, args[0], 0, &seen);
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
    } else if (ctl_watch_given.each) {
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
    ctl_watch_end(&seen);
    return CTL_OK;
}
