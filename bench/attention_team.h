// SPDX-License-Identifier: Apache-2.0
// The threads of a measurement. Thread i runs on the i-th CPU that this process may use, thread 0 being the
// caller of run. The others park between measurements; a measurement first wakes them, waits until all are
// there, and only then starts its clock, so a sample holds one hand-over among spinning threads (under a
// microsecond) and no wake-up.
#ifndef BENCH_ATTENTION_TEAM_H
#define BENCH_ATTENTION_TEAM_H

#include <stdint.h>

#define ATTENTION_TEAM_MOST 256u

struct attention_team;
typedef void attention_work(void *arg, uint32_t thread);

// CPUs that this process may use, at most ATTENTION_TEAM_MOST.
uint32_t attention_team_cpus(void);

// Binds the calling thread, too, until free. NULL: the system has no threads for it, said on stderr.
struct attention_team *attention_team_new(uint32_t threads); // 1 .. attention_team_cpus()
uint32_t attention_team_threads(const struct attention_team *team);

// Runs work(arg, i) once on each thread; returns nanoseconds from the start until the last has ended.
uint64_t attention_team_run(struct attention_team *team, attention_work *work, void *arg);

// The caller of new may run where it might before. NULL is allowed.
void attention_team_free(struct attention_team *team);

#endif
