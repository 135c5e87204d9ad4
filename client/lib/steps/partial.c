// SPDX-License-Identifier: Apache-2.0
// What a partial answer declares.
#include "client/lib/steps/partial.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "proto/model/missing.h"

void client_partial_clear(banyan_partial *partial)
{
    if (partial)
        *partial = (banyan_partial){0};
}

void banyan_partial_free(banyan_partial *partial)
{
    if (!partial)
        return;
    free(partial->missing);
    client_partial_clear(partial);
}

static banyan_code senseless(banyan_error *error)
{
    return client_error_set(error, BANYAN_INTERNAL, "what the coordinator declares as missing is malformed");
}

// Ascending, apart, none of them empty.
static bool in_order(const banyan_range *ranges, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t end = ranges[i].first + ranges[i].count;
        if (end <= ranges[i].first || (i + 1 < n && ranges[i + 1].first <= end))
            return false;
    }
    return true;
}

banyan_code client_partial_take(struct client_missing_reader *reader, const Banyan__Pb__AttendItemResult *pb,
                                banyan_partial *out, banyan_error *error)
{
    _Static_assert(sizeof(banyan_range) == PROTO_MISSING_RANGE_BYTES, "ranges lie as they are sent");
    size_t bytes = pb->missing * (size_t)PROTO_MISSING_RANGE_BYTES;
    if (!out && pb->missing)
        return client_error_set(error, BANYAN_INTERNAL,
                                "the coordinator sent a partial answer that was not allowed");
    if (!out)
        return BANYAN_OK;
    client_partial_clear(out);
    if (pb->missing > PROTO_MISSING_MAX || bytes > reader->left)
        return senseless(error);
    out->seen = pb->seen;
    if (!bytes)
        return BANYAN_OK;
    out->missing = malloc(bytes);
    if (!out->missing)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    memcpy(out->missing, reader->bytes, bytes);
    out->n = pb->missing;
    reader->bytes += bytes;
    reader->left -= bytes;
    if (in_order(out->missing, out->n))
        return BANYAN_OK;
    banyan_partial_free(out);
    return senseless(error);
}
