// SPDX-License-Identifier: Apache-2.0
// What a session's last steps looked at, and where their time went: of what is kept (steps/watch.h). With
// ?watch=1 its next steps are looked at, too: an answer never waits for them, the next one has them. So a
// page that is open costs the session what a watch costs, for LOOK_NS after its last answer at most, and at
// most so many steps each time.
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/dashboard/ask.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/watchers.h"

#define LOOK_NS  (10 * COMMON_NS_PER_S)
#define BINS_MAX 256  // of a page's heat map
#define TRACES   4096 // of one answer

static json_t *step_json(const struct coordinator_seen *seen, uint64_t now)
{
    json_t *o =
        json_pack("{s:o, s:i, s:o, s:i, s:o, s:b, s:i}", "step", coordinator_dashboard_u64(seen->step),
                  "layer", (int)seen->layer, "first", coordinator_dashboard_u64(seen->first), "rows",
                  (int)seen->rows, "visible", coordinator_dashboard_u64(seen->visible), "append",
                  seen->append, "attempts", (int)seen->attempts);
    json_object_set_new(o, "age_ns", coordinator_dashboard_u64(now > seen->at_ns ? now - seen->at_ns : 0));
    json_object_set_new(o, "left_out", coordinator_dashboard_u64(seen->left_out));
    return o;
}

// ---- masses -------------------------------------------------------------------------------------

// Of a column, the mean over its heads.
static json_t *column_json(const struct coordinator_masses *m, size_t column)
{
    double sum = 0;
    for (uint32_t h = 0; h < m->heads; h++)
        sum += (double)m->values[h * coordinator_masses_columns(m) + column];
    return coordinator_dashboard_real(sum / m->heads);
}

static json_t *mass_json(const struct coordinator_seen *seen, uint64_t now)
{
    const struct coordinator_masses *m = seen->masses;
    json_t *o = step_json(seen, now), *bins = json_array(), *workers = json_array();
    bool failed = m->failure.code != COMMON_OK;
    for (uint32_t b = 0; b < m->bins && !failed; b++)
        json_array_append_new(bins, column_json(m, b));
    for (uint32_t w = 0; w < m->n_workers && !failed; w++)
        json_array_append_new(
            workers, json_pack("{s:o, s:o, s:o}", "worker", coordinator_dashboard_text(m->names[w]), "tokens",
                               coordinator_dashboard_u64(m->tokens[w]), "mass", column_json(m, m->bins + w)));
    json_object_set_new(o, "bin_tokens", coordinator_dashboard_u64(m->bin_tokens));
    json_object_set_new(o, "bins", bins);
    json_object_set_new(o, "workers", workers);
    json_object_set_new(o, "sink", failed ? json_null() : column_json(m, m->bins + m->n_workers));
    json_object_set_new(o, "failure", failed ? coordinator_dashboard_text(m->failure.message) : json_null());
    return o;
}

// ---- traces -------------------------------------------------------------------------------------

static json_t *trace_json(const struct coordinator_seen *seen, uint64_t now)
{
    json_t *o = step_json(seen, now), *workers = json_array();
    for (uint32_t i = 0; i < seen->n_traces; i++) {
        const struct proto_trace *t = &seen->traces[i];
        json_array_append_new(workers,
                              json_pack("{s:o, s:i, s:i, s:o, s:o, s:o, s:o}", "worker",
                                        coordinator_dashboard_text(t->worker), "rank", (int)t->rank, "parent",
                                        (int)t->parent, "tokens", coordinator_dashboard_u64(t->tokens),
                                        "queue_ns", coordinator_dashboard_u64(t->queue_ns), "compute_ns",
                                        coordinator_dashboard_u64(t->compute_ns), "wait_ns",
                                        coordinator_dashboard_u64(t->wait_ns)));
    }
    json_object_set_new(o, "total_ns", coordinator_dashboard_u64(seen->total_ns));
    json_object_set_new(o, "tree_ns", coordinator_dashboard_u64(seen->tree_ns));
    json_object_set_new(o, "mass_ns", coordinator_dashboard_u64(seen->mass_ns));
    json_object_set_new(o, "coordinator_ns",
                        coordinator_dashboard_u64(
                            coordinator_own_ns(seen->total_ns, seen->tree_ns, seen->mass_ns)));
    json_object_set_new(o, "workers", workers);
    return o;
}

// ---- both ---------------------------------------------------------------------------------------

// The newest steps that have it, at most `most` of them, oldest first.
static json_t *seen_json(const struct coordinator_watch *watch, uint64_t incarnation, bool mass,
                         uint64_t most)
{
    json_t *steps = json_array();
    uint64_t now = common_clock_ns(), traces = 0;
    for (uint32_t i = watch ? watch->n_seen : 0; i > 0 && json_array_size(steps) < most; i--) {
        const struct coordinator_seen *seen = watch->seen[i - 1];
        if (seen->incarnation != incarnation || (mass ? !seen->masses : !seen->n_traces))
            continue;
        traces += mass ? 0 : seen->n_traces;
        if (traces > TRACES)
            break;
        json_array_insert_new(steps, 0, mass ? mass_json(seen, now) : trace_json(seen, now));
    }
    return steps;
}

static enum common_code look(struct coordinator_dashboard *d, const char *query, uint64_t id, bool mass,
                             json_t **out, struct common_error *err)
{
    struct coordinator_session *s;
    uint64_t steps = 0, bins = 0, watch = 0;
    enum common_code code = coordinator_dashboard_find(d, id, &s, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "steps", 16, 1, PROTO_WATCH_STEPS_MAX, &steps, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "bins", 128, 1, BINS_MAX, &bins, err);
    if (code == COMMON_OK)
        code = coordinator_dashboard_number(query, "watch", 0, 0, 1, &watch, err);
    if (code != COMMON_OK)
        return code;
    struct coordinator_look wish = {.steps = (uint32_t)steps,
                                    .mass_bins = mass ? (uint32_t)bins : 0,
                                    .wait_ns = LOOK_NS};
    bool looking = watch && coordinator_watchers_look(&d->c->steps, s, &wish);
    *out = json_pack("{s:o, s:b, s:b, s:o}", "session", coordinator_dashboard_id(s->id), "watching", looking,
                     "full", watch && !looking, "steps",
                     seen_json(s->lane ? s->lane->watch : NULL, s->incarnation, mass, steps));
    return COMMON_OK;
}

COORDINATOR_DASHBOARD_ASK(mass)
{
    return look(d, query, id, true, out, err);
}

COORDINATOR_DASHBOARD_ASK(trace)
{
    return look(d, query, id, false, out, err);
}
