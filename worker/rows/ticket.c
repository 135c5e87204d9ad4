// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/ticket.h"

#include "common/base/clock.h"
#include "worker/core/state.h"

uint64_t worker_ticket_clock_ns(const struct worker *worker)
{
    return worker->clock_zero_ns ? worker->clock_zero_ns + common_clock_ns() : common_clock_wall_ns();
}

enum common_code worker_ticket_check(const struct worker *worker, const ProtobufCBinaryData *data,
                                     const struct worker_wanted *wanted, struct proto_ticket *out,
                                     struct common_error *err)
{
    enum common_code code = proto_ticket_check(&worker->secret, wanted->permit, data->data, data->len,
                                               worker_ticket_clock_ns(worker), out, err);
    if (code != COMMON_OK)
        return code;
    if (out->term < worker->term)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the ticket is from term %" PRIu64 ", and term %" PRIu64
                                " has begun: open the %s again",
                                out->term, worker->term,
                                wanted->permit == PROTO_TICKET_PUT ? "attach" : "read");
    if (wanted->session != out->session)
        return common_error_set(err, COMMON_PERMISSION_DENIED, "the ticket is for another session");
    if (wanted->first < out->first || wanted->first - out->first > out->count ||
        wanted->count > out->count - (wanted->first - out->first))
        return common_error_set(err, COMMON_PERMISSION_DENIED, "the ticket is for other positions");
    return COMMON_OK;
}
