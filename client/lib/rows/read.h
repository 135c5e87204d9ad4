// SPDX-License-Identifier: Apache-2.0
// Rows, as banyan_read_rows reads them.
#ifndef CLIENT_LIB_READ_H
#define CLIENT_LIB_READ_H

#include <stdint.h>

#include "client/banyan.h"

#define CLIENT_ANY_COPY UINT32_MAX
// banyan_read_rows, of each chunk from its holder number copy % holders alone: to compare copies. A caller's thread.
banyan_code client_read_copy(banyan_session *session, uint32_t layer, uint64_t first, uint64_t count,
                             uint32_t copy, void *k, float *k_scale, void *v, float *v_scale,
                             banyan_error *error);

#endif
