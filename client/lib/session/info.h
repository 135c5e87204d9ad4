// SPDX-License-Identifier: Apache-2.0
// What the coordinator says of a session.
#ifndef CLIENT_LIB_INFO_H
#define CLIENT_LIB_INFO_H

#include "client/banyan.h"
#include "proto/banyan.pb-c.h"

banyan_code client_info_from_pb(const Banyan__Pb__SessionInfoReply *pb, banyan_session_info *out,
                                banyan_error *error);

#endif
