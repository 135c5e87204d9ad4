// SPDX-License-Identifier: Apache-2.0
// How a caller's thread waits for the I/O thread. A file of its own, so that the simulator has another one in
// its place (tests/sim/sim_caller.c).
#include "client/lib/core/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/lib/core/internal.h"

void client_wait_signal(struct client_wait *wait)
{
    // The waiter's frame may be gone after the store. The wake then hits an address without a waiter.
    _Atomic uint32_t *word = &wait->done;
    atomic_store_explicit(word, 1, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void client_wait_for(struct client_wait *wait)
{
    while (!atomic_load_explicit(&wait->done, memory_order_acquire))
        syscall(SYS_futex, &wait->done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}
