// SPDX-License-Identifier: Apache-2.0
// Frames from inputs. A prefix has a checksum, and a frame may have one, which no mutation hits: so an input
// says what a frame is to be, and the sums are computed. One record of an input:
//
//   | what u8 | header bytes u16 | payload bytes u16 | header | payload |
//
//   what   bits 0-1: the kind; 0: the payload alone, raw
//          bit 2: the lengths that the prefix says are others: u32 and u64 follow before the header
//          bit 3: where the header begins with a sum, it is put right
//          bit 4: the version is 0
#ifndef TESTS_FUZZ_FRAMES_H
#define TESTS_FUZZ_FRAMES_H

#include "tests/fuzz/fuzz.h"

enum { FUZZ_RAW = 0, FUZZ_LIES = 4, FUZZ_SUM = 8, FUZZ_OLD = 16 };

// The next record's bytes as they travel: *len of them, a multiple of 64 unless raw, aligned to 64; free
// them. NULL: the input is at its end.
uint8_t *fuzz_frame(struct fuzz_input *in, size_t *len);
// All that are left, one behind the other, each at its place; free it.
uint8_t *fuzz_frames(struct fuzz_input *in, size_t *len);

#endif
