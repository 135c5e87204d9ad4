// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/watchers.h"
#include "coordinator/cluster/hide.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/answer.h"
#include "coordinator/steps/lane.h"
#include "coordinator/steps/mass_message.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/spec.h"

#define WAIT_MOST     (50 * COMMON_NS_PER_S)   // below the 60 s after which nng sends a request again
#define ANSWER_NS     (100 * COMMON_NS_PER_MS) // left of a call's time for its answer
#define TRACES_TOTAL  4096                     // of one answer: a header has room for them
#define TRACES_A_STEP 1024

// ---- what they want -----------------------------------------------------------------------------

static bool matches(const struct coordinator_watcher *w, const struct coordinator_seen *seen)
{
    const struct coordinator_masses *m = seen->masses;
    if (seen->incarnation != w->s->incarnation || (w->layer && w->layer != seen->layer + 1) ||
        (w->trace && !seen->n_traces))
        return false;
    if (!w->mass_bins)
        return true;
    // Why there are none is an answer, too.
    return m && (m->failure.code != COMMON_OK || !w->mass_heads ||
                 m->heads == proto_spec_layer(w->s->spec, seen->layer).q_heads);
}

static void combine_wishes(struct coordinator_watch *watch)
{
    const struct coordinator_watcher *first = watch->watchers;
    watch->trace = watch->mass_heads = false;
    watch->mass_bins = 0;
    watch->layer = first ? first->layer : 0;
    for (const struct coordinator_watcher *w = first; w; w = w->next) {
        watch->trace = watch->trace || w->trace;
        watch->mass_heads = watch->mass_heads || w->mass_heads;
        watch->mass_bins = w->mass_bins > watch->mass_bins ? w->mass_bins : watch->mass_bins;
        watch->layer = w->layer == watch->layer ? watch->layer : 0;
    }
    uint32_t heads = proto_spec_most_q_heads(watch->s->spec); // two watchers' wishes together may be too many
    if (watch->mass_heads && watch->mass_bins > PROTO_WATCH_VALUES_MAX / heads)
        watch->mass_bins = PROTO_WATCH_VALUES_MAX / heads;
}

// ---- answering ----------------------------------------------------------------------------------

struct answer { // what a reply is made of
    Banyan__Pb__WatchedStep steps[PROTO_WATCH_STEPS_MAX], *list[PROTO_WATCH_STEPS_MAX];
    struct coordinator_masses *masses[PROTO_WATCH_STEPS_MAX];
    Banyan__Pb__WorkerTrace traces[TRACES_TOTAL], *trace_list[TRACES_TOTAL];
    uint32_t n_traces;
};

static void fill_traces(struct answer *answer, const struct coordinator_seen *seen,
                        Banyan__Pb__WatchedStep *m)
{
    uint32_t n = seen->n_traces < TRACES_A_STEP ? seen->n_traces : TRACES_A_STEP;
    m->traces = &answer->trace_list[answer->n_traces];
    for (; m->n_traces < n && answer->n_traces < TRACES_TOTAL; m->n_traces++, answer->n_traces++) {
        Banyan__Pb__WorkerTrace *to = &answer->traces[answer->n_traces];
        coordinator_trace_message(&seen->traces[m->n_traces], to);
        answer->trace_list[answer->n_traces] = to;
    }
}

static void fill_step(struct answer *answer, const struct coordinator_seen *seen, Banyan__Pb__WatchedStep *m)
{
    uint64_t now = common_clock_ns();
    *m = (Banyan__Pb__WatchedStep)BANYAN__PB__WATCHED_STEP__INIT;
    m->step = seen->step;
    m->layer = seen->layer;
    m->first = seen->first;
    m->rows = seen->rows;
    m->visible = seen->visible;
    m->append = seen->append;
    m->age_ns = now - seen->at_ns;
    m->total_ns = seen->total_ns;
    m->tree_ns = seen->tree_ns;
    m->mass_ns = seen->mass_ns;
    m->missing_tokens = seen->left_out;
    m->coordinator_ns = coordinator_own_ns(seen->total_ns, seen->tree_ns, seen->mass_ns);
    m->attempts = seen->attempts;
    fill_traces(answer, seen, m);
}

struct sent { // the masses are copied: what is kept may give way while the answer is on its way
    struct common_slice piece;
    float values[];
};

static void answer_watcher(struct coordinator_watch *watch, const struct coordinator_watcher *w)
{
    struct answer *answer = coordinator_alloc(sizeof(*answer));
    uint32_t n = 0, from = watch->n_seen;
    while (from > 0 && n < w->steps)
        n += matches(w, watch->seen[--from]);
    Banyan__Pb__SessionWatchReply m = BANYAN__PB__SESSION_WATCH_REPLY__INIT;
    for (uint32_t i = from; i < watch->n_seen; i++) {
        if (!matches(w, watch->seen[i]))
            continue;
        answer->masses[m.n_steps] = w->mass_bins ? watch->seen[i]->masses : NULL;
        fill_step(answer, watch->seen[i], &answer->steps[m.n_steps]);
        answer->list[m.n_steps] = &answer->steps[m.n_steps];
        m.n_steps++;
    }
    m.steps = answer->list;
    bool shown = coordinator_shows_workers(proto_request_identity(w->request));
    for (uint32_t i = 0; i < answer->n_traces && !shown; i++)
        answer->traces[i].worker = (char *)"";
    struct coordinator_mass_message masses;
    struct sent *sent = NULL;
    if (coordinator_mass_message_init(&masses, answer->masses, m.n_steps, shown))
        sent = malloc(sizeof(*sent) + masses.tensor.dims[0] * sizeof(float));
    if (!sent) {
        proto_request_fail(w->request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL,
                           0);
        coordinator_mass_message_fini(&masses);
        free(answer);
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < masses.tensor.n_pieces; i++) {
        memcpy((uint8_t *)sent->values + at, masses.tensor.pieces[i].data, masses.tensor.pieces[i].len);
        at += masses.tensor.pieces[i].len;
    }
    sent->piece = (struct common_slice){sent->values, at};
    masses.tensor.pieces = &sent->piece;
    masses.tensor.n_pieces = masses.tensor.n_pieces ? 1 : 0;
    for (size_t i = 0; i < m.n_steps; i++)
        answer->steps[i].mass = masses.infos[i];
    m.n_workers = masses.n_names;
    m.workers = masses.names;
    proto_request_reply(w->request, &m.base, &masses.tensor, masses.tensor.n_pieces, free, sent);
    coordinator_mass_message_fini(&masses);
    free(answer);
}

static void watcher_leave(struct coordinator_watch *watch, struct coordinator_watcher *w)
{
    struct coordinator_watcher **at = &watch->watchers;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    watch->n_watchers--;
    watch->steps->n_looks -= w->request == NULL;
    if (w->use)
        coordinator_quota_give(w->use, COORDINATOR_QUOTA_WATCHES, 1);
    combine_wishes(watch);
    common_timer_free(w->timer);
    free(w);
}

static void answer_now(void *arg)
{
    struct coordinator_watcher *w = arg;
    if (w->request)
        answer_watcher(w->s->lane->watch, w);
    watcher_leave(w->s->lane->watch, w);
}

static void watcher_cancelled(void *arg)
{
    struct coordinator_watcher *w = arg;
    proto_request_fail(w->request, COMMON_CANCELLED, "the caller has disconnected", NULL, 0);
    watcher_leave(w->s->lane->watch, w);
}

void coordinator_watchers_saw(struct coordinator_watch *watch, const struct coordinator_seen *seen)
{
    for (struct coordinator_watcher *w = watch->watchers, *next; w; w = next) {
        next = w->next;
        if (!matches(w, seen))
            continue;
        if (w->incarnation != seen->incarnation) { // what came before the truncate is no longer reported
            w->incarnation = seen->incarnation;
            w->left = w->steps;
        }
        if (--w->left == 0)
            answer_now(w);
    }
}

void coordinator_watchers_end(struct coordinator_watch *watch, enum common_code code, const char *text)
{
    while (watch->watchers) {
        struct coordinator_watcher *w = watch->watchers;
        if (w->request)
            proto_request_fail(w->request, code, text, NULL, 0);
        watcher_leave(watch, w);
    }
}

void coordinator_watchers_stop(struct coordinator_steps *steps)
{
    for (struct coordinator_watch *watch = steps->watches; watch; watch = watch->next)
        coordinator_watchers_end(watch, COMMON_UNAVAILABLE, "the coordinator is stopping");
}

static void watcher_enter(struct coordinator_watch *watch, struct coordinator_watcher *w)
{
    w->next = watch->watchers;
    watch->watchers = w;
    watch->n_watchers++;
    watch->steps->n_looks += w->request == NULL;
    watch->touched_ns = common_clock_ns();
    combine_wishes(watch);
}

bool coordinator_watchers_look(struct coordinator_steps *steps, struct coordinator_session *s,
                               const struct coordinator_look *look)
{
    struct coordinator_watch *watch = s->lane ? s->lane->watch : NULL;
    for (const struct coordinator_watcher *w = watch ? watch->watchers : NULL; w; w = w->next)
        if (!w->request && w->trace == !look->mass_bins)
            return true;
    if (steps->n_looks >= COORDINATOR_LOOKS_MAX)
        return false;
    // Perhaps in another session's place: so what can be refused without it has been.
    watch = coordinator_watch_of(steps, s);
    if (!watch || watch->n_watchers >= COORDINATOR_WATCHERS_MAX)
        return false;
    struct coordinator_watcher *w = coordinator_alloc(sizeof(*w));
    *w = (struct coordinator_watcher){.s = s,
                                      .steps = look->steps,
                                      .left = look->steps,
                                      .incarnation = s->incarnation,
                                      .mass_bins = look->mass_bins,
                                      .trace = look->mass_bins == 0};
    if (common_timer_new(steps->core->loop, answer_now, w, &w->timer) != COMMON_OK) {
        free(w);
        return false;
    }
    watcher_enter(watch, w);
    common_timer_start(w->timer, look->wait_ns, false);
    return true;
}

// ---- the call -----------------------------------------------------------------------------------

static enum common_code check_watch(const Banyan__Pb__SessionWatchRequest *m,
                                    const struct coordinator_session *s, struct proto_status *status)
{
    uint64_t heads = m->mass_heads ? proto_spec_most_q_heads(s->spec) : 1;
    if (m->steps < 1 || m->steps > PROTO_WATCH_STEPS_MAX)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "%u steps: 1 to %u may be watched", m->steps, PROTO_WATCH_STEPS_MAX);
    if (m->layer > s->spec->layers)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "layer %u does not exist: the session has %u", m->layer - 1, s->spec->layers);
    if (m->wait_ns > WAIT_MOST)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "a watch waits at most 50 s");
    if (!m->trace && !m->mass_bins)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "neither traces nor masses were requested");
    if (m->mass_bins > PROTO_WATCH_BINS_MAX || heads * m->mass_bins > PROTO_WATCH_VALUES_MAX)
        return proto_status_set(status, COMMON_INVALID_ARGUMENT, PROTO_REASON_NONE,
                                "%u bins of %" PRIu64
                                " heads: a watch has at most %u bins, %u with the heads",
                                m->mass_bins, heads, PROTO_WATCH_BINS_MAX, PROTO_WATCH_VALUES_MAX);
    return COMMON_OK;
}

void coordinator_handle_session_watch(struct coordinator_steps *steps, struct proto_request *request)
{
    const Banyan__Pb__SessionWatchRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(steps->sessions, request, m->session);
    struct proto_status status;
    enum common_code code = s ? check_watch(m, s, &status) : coordinator_session_unknown(m->session, &status);
    struct coordinator_watch *watch = code == COMMON_OK ? coordinator_watch_of(steps, s) : NULL;
    if (code == COMMON_OK && (!watch || watch->n_watchers >= COORDINATOR_WATCHERS_MAX))
        code = proto_status_set(&status, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_LIMIT,
                                "too many watches are open: try again later");
    struct coordinator_use *use =
        coordinator_use_of(steps->sessions->quotas, proto_request_identity(request)->tenant);
    if (code == COMMON_OK)
        code = coordinator_quota_take(use, COORDINATOR_QUOTA_WATCHES, 1, &status);
    if (code != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    struct coordinator_watcher *w = coordinator_alloc(sizeof(*w));
    *w = (struct coordinator_watcher){.s = s,
                                      .request = request,
                                      .use = use,
                                      .steps = m->steps,
                                      .left = m->steps,
                                      .incarnation = s->incarnation,
                                      .layer = m->layer,
                                      .mass_bins = m->mass_bins,
                                      .trace = m->trace,
                                      .mass_heads = m->mass_heads};
    if (common_timer_new(steps->core->loop, answer_now, w, &w->timer) != COMMON_OK) {
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, "the coordinator is out of memory", NULL, 0);
        coordinator_quota_give(use, COORDINATOR_QUOTA_WATCHES, 1);
        free(w);
        return;
    }
    watcher_enter(watch, w);
    uint64_t left = common_clock_left(proto_request_deadline(request));
    left = left > ANSWER_NS ? left - ANSWER_NS : 0;
    common_timer_start(w->timer, m->wait_ns < left ? m->wait_ns : left, false);
    proto_request_on_cancel(request, watcher_cancelled, w);
}
