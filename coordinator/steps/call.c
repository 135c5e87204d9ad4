// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/call.h"

#include <stdlib.h>

#include "common/memory/block.h"
#include "coordinator/session/table.h"
#include "coordinator/steps/mass.h"
#include "proto/model/mass.h"

void coordinator_call_unref(struct coordinator_call *call)
{
    if (--call->refs)
        return;
    call->steps->bytes -= call->o_bytes + call->lse_bytes;
    for (uint32_t i = 0; i < call->n_items; i++) {
        free(call->items[i].failure);
        coordinator_item_take_missing(&call->items[i], NULL);
        free(call->items[i].look.traces);
        coordinator_masses_free(call->items[i].look.masses);
    }
    proto_step_result_free(call->result);
    common_blob_unref(call->blob);
    free(call->traces);
    common_block_give(call->out);
    common_block_give(call);
}

bool coordinator_call_room(struct coordinator_call *call)
{
    if (!call->out)
        call->out = common_block_take(call->o_bytes + call->lse_bytes, COMMON_BLOCK_DAEMONS);
    return call->out != NULL;
}

const uint8_t *coordinator_call_o(const struct coordinator_call *call)
{
    return call->result ? call->result->tensors[0] : call->out;
}

const uint8_t *coordinator_call_lse(const struct coordinator_call *call)
{
    return call->result ? call->result->tensors[1] : call->out ? call->out + call->o_bytes : NULL;
}

void coordinator_call_take_masses(struct coordinator_call *call, struct coordinator_masses *masses)
{
    size_t values = masses->rows * masses->heads * coordinator_masses_columns(masses);
    bool fits =
        call->mass_values + values <= PROTO_MASS_CALL_MAX &&
        call->o_bytes + call->lse_bytes + (call->mass_values + values) * sizeof(float) <= PROTO_PAYLOAD_MAX;
    if (masses->failure.code == COMMON_OK && !fits)
        proto_status_set(&masses->failure, COMMON_RESOURCE_EXHAUSTED, "LIMIT",
                         "the call asks for too many masses: ask for fewer bins, rows or items at a time");
    else if (masses->failure.code == COMMON_OK)
        call->mass_values += values;
}

struct coordinator_session *coordinator_call_session(const struct coordinator_call *call, uint64_t id)
{
    struct coordinator_session *s = coordinator_session_find(call->steps->sessions, id);
    return s && coordinator_session_is_for(s, &call->who) ? s : NULL;
}

struct proto_request *coordinator_call_take_request(struct coordinator_call *call)
{
    struct proto_request *request = call->request;
    if (!request)
        return NULL;
    call->request = NULL;
    common_list_remove(&call->link);
    call->refs++;
    return request;
}
