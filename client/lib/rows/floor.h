// SPDX-License-Identifier: Apache-2.0
// The floor of a session that forgets.
#ifndef CLIENT_LIB_FLOOR_H
#define CLIENT_LIB_FLOOR_H

#include <stdint.h>

#include "client/banyan.h"
#include "proto/banyan.pb-c.h"

// A session that has just been made with this floor: each layer gets all of what counts as forgotten (floor.c). After a
// failure it is not whole. A caller's thread.
banyan_code client_floor_fill(banyan_session *session, const Banyan__Pb__Spec *spec, uint64_t floor,
                              banyan_error *error);

#endif
