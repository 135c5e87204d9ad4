// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/watch.h"

#include <string.h>

#include "common/base/clock.h"
#include "coordinator/session/session.h"
#include "coordinator/steps/call.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/spans.h"
#include "coordinator/steps/watchers.h"
#include "proto/model/spec.h"

#define PROBE_NS (5 * COMMON_NS_PER_S)

// ---- what is kept -------------------------------------------------------------------------------

static void seen_free(struct coordinator_seen *seen)
{
    coordinator_masses_free(seen->masses);
    free(seen->traces);
    free(seen);
}

static size_t seen_bytes(const struct coordinator_seen *seen)
{
    return sizeof(*seen) + seen->n_traces * sizeof(*seen->traces) +
           (seen->masses ? sizeof(*seen->masses) + seen->masses->bytes : 0);
}

static void drop_oldest(struct coordinator_watch *watch)
{
    watch->bytes -= seen_bytes(watch->seen[0]);
    seen_free(watch->seen[0]);
    watch->n_seen--;
    memmove(watch->seen, watch->seen + 1, watch->n_seen * sizeof(struct coordinator_seen *));
}

static void keep(struct coordinator_watch *watch, struct coordinator_seen *seen)
{
    if (watch->n_seen == PROTO_WATCH_STEPS_MAX)
        drop_oldest(watch);
    watch->seen[watch->n_seen++] = seen;
    watch->bytes += seen_bytes(seen);
    while (watch->bytes > COORDINATOR_WATCH_BYTES && watch->n_seen > 1)
        drop_oldest(watch);
    watch->touched_ns = common_clock_ns();
    coordinator_watchers_saw(watch, seen);
}

static void watch_free(struct coordinator_watch *watch)
{
    struct coordinator_watch **at = &watch->steps->watches;
    while (*at != watch)
        at = &(*at)->next;
    *at = watch->next;
    watch->steps->n_watches--;
    watch->s->lane->watch = NULL;
    while (watch->n_seen)
        drop_oldest(watch);
    free(watch);
}

// Makes room for one more. False: all are being watched now.
static bool forget_one(struct coordinator_steps *steps)
{
    struct coordinator_watch *oldest = NULL;
    for (struct coordinator_watch *w = steps->watches; w; w = w->next)
        if (!w->n_watchers && (!oldest || w->touched_ns < oldest->touched_ns))
            oldest = w;
    if (oldest)
        watch_free(oldest);
    return oldest != NULL;
}

struct coordinator_watch *coordinator_watch_of(struct coordinator_steps *steps, struct coordinator_session *s)
{
    struct coordinator_lane *lane = coordinator_lane_of(steps, s);
    if (lane->watch || (steps->n_watches >= COORDINATOR_WATCHES_MAX && !forget_one(steps)))
        return lane->watch;
    struct coordinator_watch *watch = coordinator_alloc(sizeof(*watch));
    watch->steps = steps;
    watch->s = s;
    watch->touched_ns = common_clock_ns();
    watch->next = steps->watches;
    steps->watches = watch;
    steps->n_watches++;
    lane->watch = watch;
    return watch;
}

void coordinator_watch_lane_gone(struct coordinator_lane *lane)
{
    const char *text;
    if (!lane->watch)
        return;
    enum common_code code = coordinator_gone(lane->watch->steps->core, &text);
    coordinator_watchers_end(lane->watch, code, text);
    watch_free(lane->watch);
}

// ---- masses of a step that has been answered ----------------------------------------------------

struct probe {
    struct coordinator_session *s;
    struct coordinator_seen *seen;
    struct coordinator_missing missing;
    uint64_t bytes[]; // q of one row, then lse: copies, the step's own go with its answer
};

static void probed(void *arg, struct coordinator_masses *masses)
{
    struct probe *probe = arg;
    struct coordinator_session *s = probe->s;
    struct coordinator_watch *watch = s->lane ? s->lane->watch : NULL;
    probe->seen->masses = masses;
    if (watch) { // else it has given way to another meanwhile
        watch->probes -= watch->probes > 0;
        keep(watch, probe->seen);
    } else {
        seen_free(probe->seen);
    }
    coordinator_missing_free(&probe->missing);
    free(probe);
    coordinator_session_unshare(s);
}

static void probe_masses(struct coordinator_watch *watch, const struct coordinator_item *item,
                         const float *lse, struct coordinator_seen *seen)
{
    struct coordinator_session *s = watch->s;
    const struct proto_layer layer = proto_spec_layer(s->spec, item->ask.layer);
    size_t q_bytes = layer.q_heads * layer.k_dim * sizeof(float), lse_bytes = layer.q_heads * sizeof(float);
    struct probe *p = coordinator_alloc(sizeof(*p) + q_bytes + lse_bytes);
    uint8_t *q = (uint8_t *)p->bytes, *copy = q + q_bytes;
    p->s = s;
    p->seen = seen;
    if (!coordinator_missing_copy(&item->way.missing, &p->missing)) {
        free(p);
        keep(watch, seen);
        return;
    }
    memcpy(q, item->ask.q + (item->ask.rows - 1) * q_bytes, q_bytes);
    memcpy(copy, lse + (item->ask.rows - 1) * (size_t)layer.q_heads, lse_bytes);
    watch->probes++;
    coordinator_session_share(s);
    struct coordinator_mass_ask ask = {.s = s,
                                       .layer = item->ask.layer,
                                       .rows = 1,
                                       .bins = watch->mass_bins,
                                       .heads = watch->mass_heads,
                                       .first = item->ask.first + item->ask.rows - 1,
                                       .visible = item->way.visible,
                                       .block_first = item->ask.block_first,
                                       .block_count = item->ask.block_count,
                                       .deadline_ns = common_clock_after(PROBE_NS),
                                       .missing = &p->missing,
                                       .q = q,
                                       .lse = (const float *)(const void *)copy};
    coordinator_item_trace(item, ask.trace);
    coordinator_mass_start(watch->steps, &ask, probed, p);
}

// ---- a step -------------------------------------------------------------------------------------

static void take_traces(struct coordinator_seen *seen, struct coordinator_item *item)
{
    const struct coordinator_call *call = item->call;
    if (item->look.n_traces) { // it was looked at
        seen->traces = item->look.traces;
        seen->n_traces = item->look.n_traces;
        item->look.traces = NULL;
        item->look.n_traces = 0;
    } else if (call->want_trace && call->n_items == 1 && call->n_traces) { // its client asked
        seen->traces = malloc(call->n_traces * sizeof(*seen->traces));
        seen->n_traces = seen->traces ? call->n_traces : 0;
        if (seen->traces)
            memcpy(seen->traces, call->traces, call->n_traces * sizeof(*seen->traces));
    }
}

void coordinator_watch_step(struct coordinator_item *item, struct coordinator_session *s)
{
    const struct coordinator_call *call = item->call;
    bool asked = item->look.masses || (call->want_trace && call->n_items == 1);
    struct coordinator_watch *watch =
        item->look.watched || asked ? coordinator_watch_of(call->steps, s) : NULL;
    if (!watch)
        return;
    struct coordinator_seen *seen = coordinator_alloc(sizeof(*seen));
    *seen = (struct coordinator_seen){.step = s->steps,
                                      .incarnation = s->incarnation,
                                      .first = item->ask.first,
                                      .visible = item->way.visible,
                                      .at_ns = common_clock_ns(),
                                      .tree_ns = call->tree_ns,
                                      .mass_ns = call->mass_ns,
                                      .layer = item->ask.layer,
                                      .rows = item->ask.rows,
                                      .attempts = item->attempt,
                                      .append = item->ask.append,
                                      .left_out = item->left_out};
    seen->total_ns = seen->at_ns - call->arrived_ns;
    take_traces(seen, item);
    if (item->look.masses)
        seen->masses = coordinator_masses_last_row(item->look.masses);
    const float *lse = coordinator_item_lse(item);
    bool wanted =
        item->look.watched && coordinator_watch_wants(watch, item->ask.layer) && watch->mass_bins &&
        (!seen->masses ||
         (watch->mass_heads && seen->masses->heads != proto_spec_layer(s->spec, item->ask.layer).q_heads));
    if (wanted && lse && watch->probes < COORDINATOR_WATCH_PROBES) {
        coordinator_masses_free(seen->masses);
        seen->masses = NULL;
        probe_masses(watch, item, lse, seen);
    } else if (seen->masses || seen->n_traces) {
        keep(watch, seen);
    } else {
        seen_free(seen);
    }
}
