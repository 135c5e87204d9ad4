// SPDX-License-Identifier: Apache-2.0
// How a caller waits for the I/O thread. Any thread.
#ifndef CLIENT_LIB_WAIT_H
#define CLIENT_LIB_WAIT_H

#include <stdint.h>

struct client_wait { // one waiter, one signal
    _Atomic uint32_t done;
};
void client_wait_signal(struct client_wait *wait); // the waiter may be gone when this returns
void client_wait_for(struct client_wait *wait);

#endif
