// SPDX-License-Identifier: Apache-2.0
// Other libraries' attention over the same contents, in a process of their own (attention_peers.py), called
// between our samples. Optional: nothing else in the bench needs Python.
#ifndef BENCH_ATTENTION_PEER_H
#define BENCH_ATTENTION_PEER_H

#include "bench/attention_data.h"

enum { ATTENTION_PEERS_MOST = 8 };

struct attention_peer {
    char name[32], version[32];
};

struct attention_peers; // the process

// Starts it; before the team, whose binding it would inherit. NULL: cannot, said on stderr.
struct attention_peers *attention_peers_start(const char *python);

// Has it make the contents of data; out: the peers that apply. Returns how many; 0 also when it is gone.
uint32_t attention_peers_setup(struct attention_peers *peers, const struct attention_data *data,
                               uint32_t threads, struct attention_peer *out);

// Nanoseconds of a call, 0 if it failed (said on stderr).
uint64_t attention_peers_run(struct attention_peers *peers, const struct attention_peer *peer);

// The largest |difference| to o [rows][q_heads][dim] over the largest |o|; NaN if it failed.
double attention_peers_compare(struct attention_peers *peers, const struct attention_peer *peer,
                               const struct attention_data *data, const float *o);

void attention_peers_stop(struct attention_peers *peers); // NULL is allowed

#endif
