// SPDX-License-Identifier: Apache-2.0
// The step that the service keeps of a session.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/core/wait.h"
#include "client/lib/session/spec.h"
#include "common/base/clock.h"
#include "proto/model/limits.h"
#include "proto/model/spec.h"

_Static_assert(BANYAN_KEPT_ROWS == PROTO_KEPT_ROWS_MAX, "the API has room for all rows that are kept");

struct asking { // the waiter's
    struct client_wait wait;
    banyan_session *session;
    banyan_kept_step *out;
    banyan_code code;
    banyan_error error;
};

struct kept_call {
    struct client_call call; // first
    struct asking *waiter;
};

void banyan_kept_step_free(banyan_kept_step *step)
{
    if (!step)
        return;
    free(step->q); // o and lse lie behind it
    *step = (banyan_kept_step){0};
}

static banyan_code senseless(banyan_error *error)
{
    return client_error_set(error, BANYAN_INTERNAL, "the coordinator's answer is malformed");
}

// Sizes are the session's: what the answer says about itself is not trusted.
static banyan_code take_rows(const struct proto_message *message, const banyan_spec *spec,
                             banyan_kept_step *step, banyan_error *error)
{
    Banyan__Pb__Spec pb;
    void *memory = NULL;
    banyan_code code = client_spec_to_pb(spec, &pb, &memory, error);
    if (code != BANYAN_OK)
        return code;
    const struct proto_layer layer =
        step->layer < pb.layers ? proto_spec_layer(&pb, step->layer) : (struct proto_layer){0};
    free(memory);
    size_t pairs = (size_t)step->n * layer.q_heads,
           counts[3] = {pairs * layer.k_dim, pairs * layer.v_dim, pairs};
    if (proto_layer_local(&layer))
        return senseless(error);
    for (int i = 0; i < 3; i++)
        if (message->tensors[i].bytes != counts[i] * sizeof(float))
            return senseless(error);
    step->q_heads = layer.q_heads;
    step->k_dim = layer.k_dim;
    step->v_dim = layer.v_dim;
    step->q = malloc((counts[0] + counts[1] + counts[2]) * sizeof(float));
    if (!step->q)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    step->o = step->q + counts[0];
    step->lse = step->o + counts[1];
    memcpy(step->q, message->tensors[0].data, counts[0] * sizeof(float));
    memcpy(step->o, message->tensors[1].data, counts[1] * sizeof(float));
    memcpy(step->lse, message->tensors[2].data, counts[2] * sizeof(float));
    return BANYAN_OK;
}

static banyan_code take_step(const struct proto_message *message, const banyan_spec *spec,
                             banyan_kept_step *out, banyan_error *error)
{
    const Banyan__Pb__SessionStepReply *pb =
        (const Banyan__Pb__SessionStepReply *)(message ? message->body : NULL);
    if (!pb)
        return senseless(error);
    *out = (banyan_kept_step){0};
    if (!pb->rows)
        return BANYAN_OK;
    if (message->n_tensors != 3 || pb->n_positions < 1 || pb->n_positions > BANYAN_KEPT_ROWS ||
        pb->audit > BANYAN_AUDIT_WRONG || !pb->visible)
        return senseless(error);
    banyan_kept_step step = {.incarnation = pb->incarnation,
                             .first = pb->first,
                             .rows = pb->rows,
                             .layer = pb->layer,
                             .append = pb->append,
                             .visible = pb->visible,
                             .block_first = pb->block_first,
                             .block_count = pb->block_count,
                             .plan_digest = pb->plan_digest,
                             .age_ns = pb->age_ns,
                             .audited = (banyan_audited)pb->audit,
                             .n = (uint32_t)pb->n_positions};
    client_copy_text(step.workers, sizeof step.workers, pb->workers);
    memcpy(step.positions, pb->positions, pb->n_positions * sizeof *pb->positions);
    banyan_code code = take_rows(message, spec, &step, error);
    if (code == BANYAN_OK)
        *out = step;
    return code;
}

static void on_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                    const banyan_error *error)
{
    struct asking *a = ((struct kept_call *)call)->waiter;
    a->code = code;
    if (code == BANYAN_OK)
        a->code = take_step(message, &a->session->spec, a->out, &a->error);
    else
        a->error = *error;
    client_wait_signal(&a->wait);
}

static void start(void *arg)
{
    client_call_start(&((struct kept_call *)arg)->call);
}

banyan_code banyan_session_get_kept_step(banyan_session *session, banyan_kept_step *out, banyan_error *error)
{
    if (!session || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    struct banyan_client *client = session->client;
    banyan_code code = client_check_blocking(client, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionStepRequest request = BANYAN__PB__SESSION_STEP_REQUEST__INIT;
    request.session = session->id;
    struct asking waiter = {.session = session, .out = out};
    struct kept_call call = {.call = {.client = client,
                                      .method = BANYAN__PB__METHOD__METHOD_SESSION_STEP,
                                      .body = &request.base,
                                      .deadline_ns = common_clock_after(client->timeout_ns),
                                      .idempotent = true,
                                      .done = on_done},
                             .waiter = &waiter};
    common_loop_mail(client->loop, &call.call.mail, start, &call);
    client_wait_for(&waiter.wait);
    if (waiter.code != BANYAN_OK && error)
        *error = waiter.error;
    return waiter.code;
}
