// SPDX-License-Identifier: Apache-2.0
#include "worker/steps/finish.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/hash/hash.h"
#include "common/memory/blob.h"
#include "kernels/partial.h"
#include "proto/model/spec.h"
#include "worker/core/state.h"

void worker_item_fail(const struct worker *worker, struct proto_step_result_item *item, enum common_code code,
                      enum proto_reason reason, const char *text)
{
    item->code = code;
    snprintf(item->message, sizeof item->message, "%s", text);
    item->reason = reason;
    snprintf(item->worker, sizeof item->worker, "%s", worker->name);
}

// Whether what was seen is what the layout demands.
static void check_cover(const struct worker *worker, const struct proto_step_item *item,
                        struct proto_step_result_item *result)
{
    char text[192];
    if (result->code == COMMON_NOT_FOUND) { // the coordinator has the session: a member has lost it
        result->code = COMMON_DATA_LOSS;
        result->reason = PROTO_REASON_COVERAGE;
    }
    if (result->code == COMMON_UNAVAILABLE) // the coordinator knows which ranges
        result->reason = PROTO_REASON_MISSING_RANGE;
    if (result->code != COMMON_OK)
        return;
    if (result->cover_tokens != item->cover_tokens || result->cover_sum != item->cover_sum) {
        snprintf(text, sizeof text,
                 "%" PRIu64 " tokens were covered where the layout has %" PRIu64
                 ", or different ones: a chunk is missing, stale or counted twice",
                 result->cover_tokens, item->cover_tokens);
        worker_item_fail(worker, result, COMMON_DATA_LOSS, PROTO_REASON_COVERAGE, text);
    } else if (result->appends != item->cover_appends) {
        snprintf(text, sizeof text, "%u copies of appended rows were stored where the layout has %u",
                 result->appends, item->cover_appends);
        worker_item_fail(worker, result, COMMON_DATA_LOSS, PROTO_REASON_COVERAGE, text);
    }
}

struct common_blob *worker_finish(struct worker *worker, const struct proto_step *step, uint64_t plan_digest,
                                  struct common_blob *partials, struct proto_step_result *result)
{
    size_t o_bytes = 0, lse_bytes = 0; // both less than the partials' bytes, which were checked
    for (uint32_t i = 0; i < step->n_items; i++) {
        size_t rows = (size_t)step->items[i].rows * step->items[i].q_heads;
        o_bytes += rows * step->items[i].v_dim * sizeof(float);
        lse_bytes += rows * sizeof(float);
    }
    struct common_blob *blob = common_blob_new(common_align64(o_bytes) + lse_bytes);
    if (!blob)
        return NULL;
    float *o = (float *)blob->data, *lse = (float *)(blob->data + common_align64(o_bytes));
    result->tensors[0] = o;
    result->tensors[1] = lse;
    result->tensor_bytes[0] = o_bytes;
    result->tensor_bytes[1] = lse_bytes;
    result->n_tensors = 2;
    size_t offset = 0;
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct proto_step_item *item = &step->items[i];
        struct proto_step_result_item *r = &result->items[i];
        size_t rows = (size_t)item->rows * item->q_heads;
        struct worker_session *session = worker_map_get(&worker->sessions, item->session);
        check_cover(worker, item, r);
        if (r->code == COMMON_OK && !session)
            worker_item_fail(worker, r, COMMON_NOT_FOUND, PROTO_REASON_NONE,
                             "the session was dropped meanwhile");
        if (r->code == COMMON_OK) {
            struct kernels_partial view;
            const struct proto_layer layer = proto_spec_layer(session->spec->pb, item->layer);
            uint32_t group = layer.q_heads / layer.kv_heads;
            kernels_partial_view(partials->data + offset, item->rows, item->q_heads, item->v_dim, &view);
            kernels_partial_finish(&view, layer.sinks ? layer.sinks + item->kv_head * group : NULL, o, lse);
            r->digest = common_mix64(r->digest ^ plan_digest);
        } else {
            memset(o, 0, rows * item->v_dim * sizeof(float));
            memset(lse, 0, rows * sizeof(float));
        }
        o += rows * item->v_dim;
        lse += rows;
        offset += kernels_partial_bytes(item->rows, item->q_heads, item->v_dim);
    }
    return blob;
}
