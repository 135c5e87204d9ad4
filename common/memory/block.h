// SPDX-License-Identifier: Apache-2.0
// Memory for what comes and goes with every message and step: buffers of links, frames, answers, what a step
// is computed in. A block that is given back is kept for the next who asks for its size, as it is: with its
// pages, and with what is in it. So a daemon that does the same again and again asks the system for nothing,
// takes no page fault, and wipes nothing.
//
// Sizes are in classes, four to each doubling, and a block fits everything of its class: what is asked for
// again is found again. From 64 KiB on blocks are mapped apart from malloc's heap. There an aligned block
// leaves a hole that the next one of its size does not fit into (glibc before 2.38, bug 14581), and small,
// lasting allocations settle in it: a worker that took puts of 1 MiB occupied twice what it accounted for.
//
//           take                         give                     clean
//     ─────────────▶  in somebody's  ──────────────▶  kept, as it ──────▶ kept, zeros
//                     hands          ◀──────────────  was left
//                                     take, same owner
//
// Who wipes, and when. A wipe a message costs as much as the message's own copy, and protects from nothing
// while the same plan's or client's next message is written over it. What must not happen is that something
// of a session is found after its end, or is handed to another client. So a block is wiped once, where its
// contents change hands:
//   - taken by another owner than its last: before it is handed out;
//   - kept when rows have gone for good (common_block_hand_over: a session, a chunk or a layer was dropped), or handed out
//     before that and given back after it: within a second, or before it is handed out, whichever is first;
//   - kept, and not requested for a second or two;
//   - given back to the system.
// A wipe is of the bytes that were asked for since the last one: no other bytes are written.
//
// Any thread, unless said otherwise.
#ifndef COMMON_BLOCK_H
#define COMMON_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMMON_BLOCK_ALIGN 64
#define COMMON_BLOCK_KEEP  ((size_t)64 << 20) // bytes kept at most, of a process

// The owner of what daemons send each other and compute: frames of plans carry sessions of all tenants.
// Others are links of clients, a number each.
#define COMMON_BLOCK_DAEMONS 0
uint64_t common_block_owner(void); // a new one

// At least `bytes`, aligned; what is in them is undefined, but nothing of another owner. NULL: memory is
// short.
void *common_block_take(size_t bytes, uint64_t owner);
void *common_block_zeros(size_t bytes); // of COMMON_BLOCK_DAEMONS, zeroed
void common_block_give(void *block);    // NULL is allowed

// Rows have gone for good: a session or a part of one has ended. What was handed out until now is wiped
// before it is kept longer than until the next common_block_clean. Cheap.
void common_block_hand_over(void);

// Wipes what is to be wiped among the kept blocks, at most some `most` bytes: true when there is more. `age`:
// a period of about a second has passed since the last call with it; what was not requested in a whole one is
// wiped, too.
bool common_block_clean(size_t most, bool age);

#endif
