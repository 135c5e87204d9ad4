// SPDX-License-Identifier: Apache-2.0
#include "client/lib/core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/core/internal.h"
#include "proto/rpc/status.h"

_Static_assert((int)BANYAN_UNAUTHENTICATED == (int)COMMON_UNAUTHENTICATED &&
                   (int)BANYAN_ABORTED == (int)COMMON_ABORTED &&
                   (int)BANYAN_OUT_OF_RANGE == (int)COMMON_OUT_OF_RANGE,
               "codes are the same numbers everywhere");
_Static_assert(sizeof((banyan_error *)0)->ranges / sizeof(banyan_range) >= PROTO_STATUS_RANGES,
               "all ranges fit");

const char *banyan_code_name(banyan_code code)
{
    return common_code_name((enum common_code)code);
}

const char *banyan_version(void)
{
    return BANYAN_VERSION;
}

void client_copy_text(char *out, size_t len, const char *text)
{
    size_t n = text ? strnlen(text, len - 1) : 0;
    if (n > 0)
        memcpy(out, text, n);
    out[n] = '\0';
}

banyan_code client_error_set(banyan_error *error, banyan_code code, const char *fmt, ...)
{
    if (!error)
        return code;
    char message[sizeof error->message]; // an argument may lie in *error
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    memset(error, 0, sizeof *error);
    error->code = code;
    memcpy(error->message, message, sizeof message);
    return code;
}

void client_error_from_pb(const Banyan__Pb__Status *status, banyan_error *error)
{
    struct proto_status plain;
    proto_status_from_pb(status, &plain);
    memset(error, 0, sizeof *error);
    error->code = (banyan_code)plain.code;
    client_copy_text(error->message, sizeof error->message, plain.message);
    client_copy_text(error->reason, sizeof error->reason, plain.reason);
    error->retry_ns = plain.retry_ns;
    if (plain.n_workers > 0)
        client_copy_text(error->worker, sizeof error->worker, plain.workers[0]);
    for (uint32_t i = 0; i < plain.n_ranges && i < PROTO_STATUS_RANGES; i++)
        error->ranges[error->n_ranges++] = (banyan_range){plain.ranges[i].first, plain.ranges[i].count};
}

banyan_code client_check_blocking(struct banyan_client *client, banyan_error *error)
{
    if (!client)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the client is NULL");
    if (atomic_load(&client->closing))
        return client_error_set(error, BANYAN_CANCELLED, "the client is disconnected");
    if (common_loop_is_owner(client->loop))
        return client_error_set(
            error, BANYAN_FAILED_PRECONDITION,
            "a blocking call inside a callback would deadlock: use the asynchronous form, or another thread");
    return BANYAN_OK;
}
