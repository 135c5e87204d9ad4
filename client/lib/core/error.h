// SPDX-License-Identifier: Apache-2.0
// Errors, as callers get them. Any thread.
#ifndef CLIENT_LIB_ERROR_H
#define CLIENT_LIB_ERROR_H

#include <stddef.h>

#include "client/banyan.h"
#include "proto/banyan.pb-c.h"

// Fills *error (NULL is allowed) and returns code.
banyan_code client_error_set(banyan_error *error, banyan_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// The peer's status with its details.
void client_error_from_pb(const Banyan__Pb__Status *status, banyan_error *error);
// Refuses a blocking call on the I/O thread (it would wait for itself) and any call while the client closes.
banyan_code client_check_blocking(struct banyan_client *client, banyan_error *error);
// Copies a string from a peer into a field; what does not fit is cut.
void client_copy_text(char *out, size_t len, const char *text);

#endif
