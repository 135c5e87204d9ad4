// SPDX-License-Identifier: Apache-2.0
// Watching: a call that waits at the coordinator until steps have been seen.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/wait.h"
#include "client/lib/steps/mass.h"

struct watching { // the waiter's
    struct client_wait wait;
    banyan_watch *out;
    banyan_code code;
    banyan_error error;
};

void banyan_watch_free(banyan_watch *watch)
{
    if (!watch)
        return;
    for (uint32_t i = 0; i < watch->n; i++) {
        banyan_trace_free(&watch->steps[i].trace);
        banyan_mass_free(&watch->steps[i].mass);
    }
    free(watch->steps);
    *watch = (banyan_watch){0};
}

static banyan_code take_step(const Banyan__Pb__WatchedStep *pb, struct client_mass_reader *masses,
                             banyan_watched_step *out, banyan_error *error)
{
    *out = (banyan_watched_step){
        .step = pb->step,
        .layer = pb->layer,
        .rows = pb->rows,
        .attempts = pb->attempts,
        .first = pb->first,
        .visible = pb->visible,
        .append = pb->append,
        .missing = pb->missing_tokens,
        .age_ns = pb->age_ns,
        .trace = {.total_ns = pb->total_ns,
                  .coordinator_ns = pb->coordinator_ns,
                  .tree_ns = pb->tree_ns,
                  .mass_ns = pb->mass_ns},
    };
    if (pb->n_traces > CLIENT_WORKERS_MAX)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator's traces are malformed");
    out->trace.workers = calloc(pb->n_traces + 1, sizeof *out->trace.workers);
    if (!out->trace.workers)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < pb->n_traces; i++)
        client_trace_from_pb(pb->traces[i], &out->trace.workers[out->trace.n_workers++]);
    return pb->mass ? client_mass_take(masses, pb->mass, &out->mass, error) : BANYAN_OK;
}

static banyan_code take_watch(const struct proto_message *message, banyan_watch *out, banyan_error *error)
{
    const Banyan__Pb__SessionWatchReply *reply =
        (const Banyan__Pb__SessionWatchReply *)(message ? message->body : NULL);
    if (!reply || message->n_tensors > 1)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator's answer is malformed");
    struct client_mass_reader masses = {.names = reply->workers, .n_names = reply->n_workers};
    if (message->n_tensors == 1) {
        masses.values = message->tensors[0].data;
        masses.left = message->tensors[0].bytes / sizeof(float);
    }
    banyan_watch watch = {.steps = calloc(reply->n_steps + 1, sizeof *watch.steps)};
    banyan_code code =
        watch.steps ? BANYAN_OK : client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < reply->n_steps && code == BANYAN_OK; i++)
        code = take_step(reply->steps[i], &masses, &watch.steps[watch.n++], error);
    if (code == BANYAN_OK)
        *out = watch;
    else
        banyan_watch_free(&watch);
    return code;
}

struct watch_call {
    struct client_call call; // first
    struct watching *waiter;
};

static void on_watch_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                          const banyan_error *error)
{
    struct watching *w = ((struct watch_call *)call)->waiter;
    w->code = code;
    if (code == BANYAN_OK)
        w->code = take_watch(message, w->out, &w->error);
    else
        w->error = *error;
    client_wait_signal(&w->wait);
}

static void start_watch(void *arg)
{
    client_call_start(&((struct watch_call *)arg)->call);
}

banyan_code banyan_session_watch(banyan_session *session, const banyan_watch_options *options,
                                 banyan_watch *out, banyan_error *error)
{
    if (!session || !options || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    struct banyan_client *client = session->client;
    banyan_code code = client_check_blocking(client, error);
    if (code != BANYAN_OK)
        return code;
    if (!options->all_layers && options->layer >= session->spec.layers)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "layer %u: the session has layers 0 to %u",
                                options->layer, session->spec.layers - 1);
    if (options->wait_ns > 50 * COMMON_NS_PER_S)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "a watch waits at most 50 s");
    Banyan__Pb__SessionWatchRequest request = BANYAN__PB__SESSION_WATCH_REQUEST__INIT;
    request.session = session->id;
    request.steps = options->steps ? options->steps : 1;
    request.wait_ns = options->wait_ns;
    request.layer = options->all_layers ? 0 : options->layer + 1;
    request.trace = options->trace;
    request.mass_bins = options->mass_bins;
    request.mass_heads = options->mass_per_head;
    struct watching waiter = {.out = out};
    struct watch_call call = {.call = {.client = client,
                                       .method = BANYAN__PB__METHOD__METHOD_SESSION_WATCH,
                                       .body = &request.base,
                                       .deadline_ns =
                                           common_clock_after(options->wait_ns + client->timeout_ns),
                                       .idempotent = true,
                                       .done = on_watch_done},
                              .waiter = &waiter};
    common_loop_mail(client->loop, &call.call.mail, start_watch, &call);
    client_wait_for(&waiter.wait);
    if (waiter.code != BANYAN_OK && error)
        *error = waiter.error;
    return waiter.code;
}
