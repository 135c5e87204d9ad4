// SPDX-License-Identifier: Apache-2.0
// A session that begins with a floor. The coordinator counts the chunks that are forgotten as a whole; the
// chunk of a layer in which the forgotten end is held as any other, so it gets rows there that are never
// read: zeros. All chunks below get their holders here, some at a time: however many there are, no other
// session waits for them.
#include "client/lib/rows/floor.h"

#include <stdlib.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "proto/model/spec.h"

#define PIECE_BYTES  (UINT64_C(1) << 20) // of K
#define PLACE_CHUNKS 512                 // of one AttachOpen, at most

struct zeros { // of `most` rows; and scales of 1 where the type has them
    void *rows;
    float *scales;
    uint64_t most;
};

static banyan_code zeros_new(const struct client_layer *layer, struct zeros *out, banyan_error *error)
{
    size_t row = layer->k_row > layer->v_row ? layer->k_row : layer->v_row;
    uint64_t most = PIECE_BYTES / row + 1;
    void *rows = calloc(most, row);
    float *scales = layer->scale_row ? malloc(most * layer->scale_row) : NULL;
    if (!rows || (layer->scale_row && !scales)) {
        free(rows);
        free(scales);
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    }
    for (size_t i = 0; i < most * layer->scale_row / sizeof(float); i++)
        scales[i] = 1;
    *out = (struct zeros){.rows = rows, .scales = scales, .most = most};
    return BANYAN_OK;
}

static banyan_code fill_layer(banyan_session *session, uint32_t nth, uint64_t first, uint64_t end,
                              banyan_error *error)
{
    const struct client_layer *layer = &session->layers[nth];
    struct zeros zeros = {0};
    banyan_code code = zeros_new(layer, &zeros, error);
    if (code != BANYAN_OK)
        return code;
    for (uint64_t at = first, n; at < end && code == BANYAN_OK; at += n) {
        const void *v = layer->v_row ? zeros.rows : NULL;
        n = zeros.most < end - at ? zeros.most : end - at;
        code = layer->scale_row ? banyan_attach_scaled(session, nth, at, n, zeros.rows, zeros.scales, v,
                                                       v ? zeros.scales : NULL, error)
                                : banyan_attach(session, nth, at, n, zeros.rows, v, error);
    }
    if (code == BANYAN_OK)
        code = banyan_commit(session, nth, first, end - first, error);
    free(zeros.rows);
    free(zeros.scales);
    return code;
}

// Chunks of positions [0, end).
static banyan_code place(const banyan_session *session, uint64_t end, banyan_error *error)
{
    uint64_t most = (uint64_t)session->spec.chunk_tokens * PLACE_CHUNKS;
    banyan_code code = BANYAN_OK;
    for (uint64_t at = 0; at < end && code == BANYAN_OK; at += most) {
        Banyan__Pb__AttachOpenRequest request = BANYAN__PB__ATTACH_OPEN_REQUEST__INIT;
        request.session = session->id;
        request.first = at;
        request.count = most < end - at ? most : end - at;
        code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_ATTACH_OPEN, &request.base, true, 0,
                            NULL, NULL, error);
    }
    return code;
}

banyan_code client_floor_fill(banyan_session *session, const Banyan__Pb__Spec *spec, uint64_t floor,
                              banyan_error *error)
{
    uint64_t past = 0;
    for (uint32_t l = 0; l < spec->layers; l++) {
        uint64_t end = proto_spec_forgotten(spec, l, floor);
        past = end > past ? end : past;
    }
    banyan_code code = place(session, past, error);
    for (uint32_t l = 0; l < spec->layers && code == BANYAN_OK; l++) {
        uint64_t end = proto_spec_forgotten(spec, l, floor), whole = end - end % session->spec.chunk_tokens;
        if (whole < end)
            code = fill_layer(session, l, whole, end, error);
    }
    return code;
}
