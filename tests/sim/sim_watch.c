// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_watch.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "proto/rpc/status.h"

static void differ(struct sim_watched *to, float is, double wanted)
{
    float off = fabsf(is - (float)wanted);
    if (!(off <= to->mass_off)) // a NaN, too
        to->mass_off = off;
}

// Returns where the next step's values begin.
static const float *take_mass(struct sim_watched *to, const Banyan__Pb__MassInfo *m, const float *values,
                              uint64_t from)
{
    struct proto_status why;
    to->has_mass = true;
    if (m->status) {
        proto_status_from_pb(m->status, &why);
        to->mass_code = why.code;
        return values;
    }
    to->mass_visible = m->visible;
    for (size_t w = 0; w < m->n_tokens; w++)
        to->mass_tokens += m->tokens[w];
    for (uint32_t row = 0; row < m->rows * m->heads; row++) {
        for (uint64_t bin = 0; bin < m->bins; bin++) {
            uint64_t first = bin * m->bin_tokens, end = first + m->bin_tokens;
            first = first > from ? first : from;
            end = end < m->visible ? end : m->visible;
            differ(to, *values++, first < end ? (double)(end - first) / (double)(m->visible - from) : 0);
        }
        float all = 0; // of workers: what each has of what is seen is not said
        for (size_t w = 0; w < m->n_workers; w++, all += *values++)
            if (from == 0)
                differ(to, *values, (double)m->tokens[w] / (double)m->visible);
        differ(to, all, 1);
        differ(to, *values++, 0); // these sessions have no sink
    }
    return values;
}

static void take(struct sim_call *call, const struct proto_message *message)
{
    const Banyan__Pb__SessionWatchReply *m = (const void *)message->body;
    const float *values = message->n_tensors ? message->tensors[0].data : NULL,
                *end = values ? values + message->tensors[0].bytes / sizeof(float) : NULL;
    call->n_watched = (uint32_t)m->n_steps;
    call->watched = calloc(m->n_steps + 1, sizeof *call->watched);
    if (!call->watched)
        abort();
    for (size_t i = 0; i < m->n_steps; i++) {
        const Banyan__Pb__WatchedStep *from = m->steps[i];
        struct sim_watched *to = &call->watched[i];
        *to = (struct sim_watched){.step = from->step,
                                   .first = from->first,
                                   .visible = from->visible,
                                   .layer = from->layer,
                                   .rows = from->rows,
                                   .n_traces = (uint32_t)from->n_traces,
                                   .append = from->append,
                                   .missing = from->missing_tokens};
        for (size_t k = 0; k < from->n_traces; k++)
            to->strangers = to->strangers || from->traces[k]->worker[0] != 'w';
        if (from->mass)
            values = take_mass(to, from->mass, values,
                               call->from && from->visible ? call->from(from->layer, from->visible - 1) : 0);
    }
    assert(values == end);
}

struct sim_call *sim_watch(struct sim_client *client, uint64_t session, const struct sim_wish *wish)
{
    Banyan__Pb__SessionWatchRequest m = BANYAN__PB__SESSION_WATCH_REQUEST__INIT;
    m.session = session;
    m.steps = wish->steps;
    m.layer = wish->layer;
    m.mass_bins = wish->mass_bins;
    m.wait_ns = wish->wait_ns;
    m.trace = wish->trace;
    m.mass_heads = wish->mass_heads;
    struct sim_call *call =
        sim_call_start(client, BANYAN__PB__METHOD__METHOD_SESSION_WATCH, &m.base, NULL, 0, take);
    call->from = wish->from;
    return call;
}
