// SPDX-License-Identifier: Apache-2.0
// A measurement of speed while the worker serves. Loop thread.
#ifndef WORKER_PROBE_H
#define WORKER_PROBE_H

struct worker;

// Measures again how fast it computes, beside its loop, where nothing else is in hand: for worker->pace. A step that comes
// ends it. Otherwise, and on a device, nothing.
void worker_probe_begin(struct worker *worker);
void worker_probe_stop(struct worker *worker);

#endif
