// SPDX-License-Identifier: Apache-2.0
// Masses and traces as the API has them.
#include "client/lib/steps/mass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "proto/model/mass.h"

void client_mass_clear(banyan_mass *mass)
{
    if (mass)
        *mass = (banyan_mass){.bins = mass->bins, .per_head = mass->per_head};
}

void banyan_mass_free(banyan_mass *mass)
{
    if (!mass)
        return;
    free(mass->workers);
    free(mass->bin); // worker and sink lie in it
    client_mass_clear(mass);
}

static banyan_code senseless(banyan_error *error)
{
    return client_error_set(error, BANYAN_INTERNAL, "the coordinator's masses are malformed");
}

static void take_status(const Banyan__Pb__Status *status, banyan_mass *out)
{
    banyan_error why;
    client_error_from_pb(status, &why);
    out->code = why.code;
    snprintf(out->message, sizeof out->message, "%.255s", why.message);
}

// [rows][heads][bins | workers | sink] becomes three arrays.
static void take_values(const float *from, banyan_mass *out)
{
    size_t pairs = (size_t)out->rows * out->heads;
    for (size_t i = 0; i < pairs; i++) {
        memcpy(out->bin + i * out->n_bins, from, out->n_bins * sizeof *from);
        from += out->n_bins;
        memcpy(out->worker + i * out->n_workers, from, out->n_workers * sizeof *from);
        from += out->n_workers;
        out->sink[i] = *from++;
    }
}

banyan_code client_mass_take(struct client_mass_reader *reader, const Banyan__Pb__MassInfo *pb,
                             banyan_mass *out, banyan_error *error)
{
    client_mass_clear(out);
    if (!pb || (pb->status && pb->status->code != BANYAN_OK)) {
        out->code = BANYAN_INTERNAL;
        if (pb)
            take_status(pb->status, out);
        else
            client_copy_text(out->message, sizeof out->message,
                             "the coordinator does not support attention masses");
        return BANYAN_OK;
    }
    if (pb->rows < 1 || pb->heads < 1 || pb->bins < 1 || pb->bins > PROTO_MASS_BINS_MAX ||
        pb->n_workers > PROTO_MASS_WORKERS_MAX || pb->n_tokens != pb->n_workers ||
        (uint64_t)pb->rows * pb->heads > PROTO_MASS_VALUES_MAX)
        return senseless(error);
    size_t pairs = (size_t)pb->rows * pb->heads, values = pairs * (pb->bins + pb->n_workers + 1);
    if (values > reader->left)
        return senseless(error);
    out->workers = calloc(pb->n_workers + 1, sizeof *out->workers);
    out->bin = malloc(values * sizeof *out->bin);
    if (!out->workers || !out->bin) {
        banyan_mass_free(out);
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    }
    out->rows = pb->rows;
    out->heads = pb->heads;
    out->n_bins = pb->bins;
    out->bin_tokens = pb->bin_tokens;
    out->visible = pb->visible;
    out->n_workers = (uint32_t)pb->n_workers;
    out->worker = out->bin + pairs * pb->bins;
    out->sink = out->worker + pairs * pb->n_workers;
    for (size_t w = 0; w < pb->n_workers; w++) {
        bool named = pb->workers[w] < reader->n_names;
        client_copy_text(out->workers[w].name, sizeof out->workers[w].name,
                         named ? reader->names[pb->workers[w]] : "?");
        out->workers[w].tokens = pb->tokens[w];
    }
    take_values(reader->values, out);
    reader->values += values;
    reader->left -= values;
    return BANYAN_OK;
}

void client_trace_from_pb(const Banyan__Pb__WorkerTrace *pb, banyan_worker_trace *out)
{
    *out = (banyan_worker_trace){.rank = pb->rank,
                                 .parent = pb->parent,
                                 .queue_ns = pb->queue_ns,
                                 .compute_ns = pb->compute_ns,
                                 .wait_ns = pb->wait_ns,
                                 .tokens = pb->tokens};
    client_copy_text(out->worker, sizeof out->worker, pb->worker);
}
