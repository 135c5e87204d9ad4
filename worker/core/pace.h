// SPDX-License-Identifier: Apache-2.0
// How fast this worker computes while it serves, against what it has reported to the coordinator: the time
// that work should take at the reported bandwidth, and the time that it took. Sums since the start; a
// heartbeat carries them, and the coordinator judges (coordinator/cluster/pace.h). Waiting for other
// processes counts nowhere. Pure: times come in. Loop thread.
//
//   work      ██ A ██          ██ C ██            planned_ns: of A, B and C
//                ███ B ███
//   taken     ├──────────┤     ├──────┤           taken_ns: while anything is computed, once
//
// What counts: stretches whose work takes `least_ns` at least as planned, so that it is reading K and V that takes the
// time; and that nothing else of this process had a part in (hashes of attached rows, attention masses).
//
// Kernels are not equally good at all shapes. What a kind of work reached here at best is what is expected of it, down
// to a quarter of the reported bandwidth: a shape that is slow everywhere is no fault of this machine. The first
// stretch of a kind only teaches that.
#ifndef WORKER_PACE_H
#define WORKER_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define WORKER_PACE_LEAST_NS                                                                                 \
    UINT64_C(200000) // ten hand-offs to the team; a kernel's launch on a device is less
#define WORKER_PACE_PROBE_NS UINT64_C(20000000) // of a measurement in between, as planned (measure.h)
#define WORKER_PACE_KINDS    16

struct worker_pace {
    uint64_t bandwidth; // reported: bytes of K and V per second; 0: nothing is counted
    uint64_t least_ns, probe_ns;
    uint64_t planned_ns, taken_ns; // sums
    // The stretch under way:
    uint32_t computing; // parts of it that have not ended
    bool unclean, mixed;
    uint64_t since_ns, kind;
    double work; // bytes
    struct {
        uint64_t kind;
        double best; // of the reported bandwidth, at most 1
    } kinds[WORKER_PACE_KINDS];
    uint32_t next_kind; // whose place the next new one takes
};

void worker_pace_init(struct worker_pace *pace, uint64_t bandwidth);

// What an item costs, as bytes of K and V of the measurement that the bandwidth comes from (measure.h): that has two
// multiply-adds a byte, so work with more of them counts for more.
static inline double worker_pace_work(double bytes, double madds)
{
    return bytes > madds / 2 ? bytes : madds / 2;
}

// Work begins, alone or beside other work. False: it is too little to be looked at, and does not end here.
// kind: of kernels and shapes; 0: of several, which is not counted. clean: nothing else is computed by this process.
bool worker_pace_begin(struct worker_pace *pace, double work, uint64_t kind, bool clean, uint64_t now_ns);
void worker_pace_end(struct worker_pace *pace, bool clean, uint64_t now_ns);
// A measurement in between: the same kernel over as much as takes planned_ns.
void worker_pace_probed(struct worker_pace *pace, uint64_t planned_ns, uint64_t taken_ns);

#endif
