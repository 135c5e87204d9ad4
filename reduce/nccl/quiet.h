// SPDX-License-Identifier: Apache-2.0
// Operations, and what waits for them inside CUDA.
//
// NCCL allocates and frees device memory when a communicator is formed and when it is aborted. That may wait
// for all kernels of the device, and what other threads ask of CUDA then waits, too. An operation of another
// communicator is such a kernel, and ends only when other processes have done their part. So the
// communicators of a process take turns:
//
//     operations under way   nccl_quiet_begin … nccl_quiet_end     a communicator counts once
//     forming, aborting      nccl_quiet_enter … nccl_quiet_leave   begins when none of the others has any
//
// While a thread is inside, or waits for that, this process takes no operations: it says in its answers that
// it is not in its communicators, and rank 0s go by `stream` until it says that it is. Operations whose
// frames were on their way run all the same: this is not a lock. Any thread.
#ifndef REDUCE_NCCL_QUIET_H
#define REDUCE_NCCL_QUIET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

void nccl_quiet_begin(void);
void nccl_quiet_end(void);
// Waits until no communicator has operations under way, at most to the time (CLOCK_MONOTONIC), or until *stop
// (NULL: never). False: some has. Either way the caller is inside, and must leave.
bool nccl_quiet_enter(uint64_t until_ns, const atomic_bool *stop);
void nccl_quiet_leave(void);
bool nccl_quiet_wanted(void); // a thread is inside, or waits

#endif
