// SPDX-License-Identifier: Apache-2.0
// Workers taken out of use and back into it, and a balance: asked for here, carried out by the coordinator.
#include <stdlib.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"

// ---- drain and resume -----------------------------------------------------------------------------------

static banyan_code take_drain(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_drain *out = arg;
    const Banyan__Pb__WorkerDrainReply *reply = (const Banyan__Pb__WorkerDrainReply *)body;
    (void)error;
    *out = (banyan_drain){.draining = reply->draining,
                          .chunks = reply->chunks,
                          .bytes = reply->bytes,
                          .sessions = reply->sessions};
    client_copy_text(out->stuck, sizeof out->stuck, reply->stuck);
    return BANYAN_OK;
}

static banyan_code call_drain(banyan_client *client, Banyan__Pb__WorkerDrainRequest *request,
                              const char *worker, banyan_drain *out, banyan_error *error)
{
    banyan_drain drain = {0};
    if (!client || !worker)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    request->worker = (char *)worker;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_WORKER_DRAIN, &request->base, true, 0,
                                    take_drain, &drain, error);
    if (code == BANYAN_OK && out)
        *out = drain;
    return code;
}

banyan_code banyan_worker_drain(banyan_client *client, const char *worker, const char *reason,
                                banyan_drain *out, banyan_error *error)
{
    Banyan__Pb__WorkerDrainRequest request = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    request.reason = (char *)(reason ? reason : "");
    return call_drain(client, &request, worker, out, error);
}

banyan_code banyan_worker_cordon(banyan_client *client, const char *worker, const char *reason,
                                 banyan_drain *out, banyan_error *error)
{
    Banyan__Pb__WorkerDrainRequest request = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    request.reason = (char *)(reason ? reason : "");
    request.cordon = true;
    return call_drain(client, &request, worker, out, error);
}

banyan_code banyan_worker_resume(banyan_client *client, const char *worker, banyan_drain *out,
                                 banyan_error *error)
{
    Banyan__Pb__WorkerDrainRequest request = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    request.resume = true;
    return call_drain(client, &request, worker, out, error);
}

banyan_code banyan_worker_get_drain(banyan_client *client, const char *worker, banyan_drain *out,
                                    banyan_error *error)
{
    Banyan__Pb__WorkerDrainRequest request = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    request.ask = true;
    return call_drain(client, &request, worker, out, error);
}

banyan_code banyan_worker_forget(banyan_client *client, const char *worker, banyan_error *error)
{
    Banyan__Pb__WorkerForgetRequest request = BANYAN__PB__WORKER_FORGET_REQUEST__INIT;
    if (!client || !worker)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    request.worker = (char *)worker;
    return client_unary(client, BANYAN__PB__METHOD__METHOD_WORKER_FORGET, &request.base, true, 0, NULL, NULL,
                        error);
}

// ---- a balance ------------------------------------------------------------------------------------------

static banyan_code take_balance(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_balance *out = arg;
    const Banyan__Pb__RebalanceReply *reply = (const Banyan__Pb__RebalanceReply *)body;
    banyan_balance balance = {.chunks = reply->chunks,
                              .bytes = reply->bytes,
                              .n_moves = (uint32_t)reply->n_moves};
    if (balance.n_moves > 0)
        balance.moves = calloc(balance.n_moves, sizeof *balance.moves);
    if (balance.n_moves > 0 && !balance.moves)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    for (uint32_t i = 0; i < balance.n_moves; i++) {
        const Banyan__Pb__RebalanceMove *from = reply->moves[i];
        banyan_chunk_move *to = &balance.moves[i];
        *to = (banyan_chunk_move){.session = from->session, .first = from->first, .bytes = from->bytes};
        client_copy_text(to->from, sizeof to->from, from->from);
        client_copy_text(to->to, sizeof to->to, from->to);
    }
    *out = balance;
    return BANYAN_OK;
}

banyan_code banyan_rebalance(banyan_client *client, bool dry_run, banyan_balance *out, banyan_error *error)
{
    banyan_balance balance = {0};
    if (!client)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    Banyan__Pb__RebalanceRequest request = BANYAN__PB__REBALANCE_REQUEST__INIT;
    request.dry_run = dry_run;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_REBALANCE, &request.base, true, 0,
                                    take_balance, &balance, error);
    if (code == BANYAN_OK && out)
        *out = balance;
    else
        banyan_balance_free(&balance);
    return code;
}

void banyan_balance_free(banyan_balance *balance)
{
    if (!balance)
        return;
    free(balance->moves);
    balance->moves = NULL;
    balance->n_moves = 0;
}
