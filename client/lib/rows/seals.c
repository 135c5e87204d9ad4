// SPDX-License-Identifier: Apache-2.0
#include "client/lib/rows/seals.h"

#include <stdlib.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/session/spec.h"
#include "proto/model/spec.h"
#include "proto/sums/rows_sum.h"

struct rows { // of one layer of one chunk, that have come
    uint64_t sum, count;
};

struct client_seals {
    uint32_t layers, chunk_tokens;
    uint64_t n;        // chunks that may be full
    bool *keeps;       // [layers] whether the seal is of it
    uint64_t *seals;   // [n]
    struct rows *rows; // [n][layers]
};

void client_seals_free(struct client_seals *seals)
{
    if (!seals)
        return;
    free(seals->keeps);
    free(seals->seals);
    free(seals->rows);
    free(seals);
}

static struct client_seals *seals_new(uint32_t layers, uint32_t chunk_tokens, uint64_t length)
{
    struct client_seals *seals = calloc(1, sizeof *seals);
    if (!seals)
        return NULL;
    seals->layers = layers;
    seals->chunk_tokens = chunk_tokens;
    seals->n = length / chunk_tokens;
    seals->keeps = calloc(layers, sizeof *seals->keeps);
    seals->seals = calloc(seals->n + 1, sizeof *seals->seals);
    seals->rows = seals->n < SIZE_MAX / layers ? calloc(seals->n * layers + 1, sizeof *seals->rows) : NULL;
    if (seals->keeps && seals->seals && seals->rows)
        return seals;
    client_seals_free(seals);
    return NULL;
}

banyan_code client_seals_begin(struct banyan_session *session, uint64_t length, banyan_error *error)
{
    Banyan__Pb__Spec pb;
    void *memory = NULL;
    banyan_code code = client_spec_to_pb(&session->spec, &pb, &memory, error);
    if (code != BANYAN_OK)
        return code;
    struct client_seals *seals = seals_new(pb.layers, session->spec.chunk_tokens, length);
    for (uint32_t l = 0; seals && l < pb.layers; l++)
        seals->keeps[l] = proto_spec_keeps(&pb, l);
    free(memory);
    if (!seals)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    client_seals_free(session->seals);
    session->seals = seals;
    return BANYAN_OK;
}

void client_seals_add(struct client_seals *seals, uint32_t layer, uint64_t first, uint64_t count,
                      uint64_t sum, uint64_t seal)
{
    uint64_t chunk = seals ? first / seals->chunk_tokens : 0;
    if (!seals || chunk >= seals->n)
        return;
    struct rows *rows = &seals->rows[chunk * seals->layers + layer];
    rows->sum += sum;
    rows->count += count;
    if (seal) // it is for good, and of the rows that have come already, too
        seals->seals[chunk] = seal;
}

// Whether what has come of the chunk is what was sealed, or cannot be compared.
static bool is_right(const struct client_seals *seals, uint64_t chunk)
{
    const struct rows *rows = &seals->rows[chunk * seals->layers];
    uint64_t seal = 0;
    for (uint32_t l = 0; l < seals->layers; l++) {
        if (!seals->keeps[l])
            continue;
        if (rows[l].count != seals->chunk_tokens)
            return true;
        seal = proto_seal_add(seal, l, rows[l].sum);
    }
    return !seals->seals[chunk] || proto_seal_done(seal) == seals->seals[chunk];
}

banyan_code client_seals_check(const struct banyan_session *session, banyan_error *error)
{
    const struct client_seals *seals = session->seals;
    for (uint64_t i = 0; seals && i < seals->n; i++) {
        if (is_right(seals, i))
            continue;
        client_error_set(error, BANYAN_DATA_LOSS,
                         "tokens %llu to %llu do not match their seal: a worker's memory is wrong. A scrub "
                         "is looking for it ('banyanctl scrub --wait' waits for that): then try again",
                         (unsigned long long)i * seals->chunk_tokens,
                         (unsigned long long)(i + 1) * seals->chunk_tokens - 1);
        if (error)
            client_copy_text(error->reason, sizeof error->reason, "HASH_MISMATCH");
        return BANYAN_DATA_LOSS;
    }
    return BANYAN_OK;
}
