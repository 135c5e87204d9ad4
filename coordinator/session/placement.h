// SPDX-License-Identifier: Apache-2.0
// Which workers get a session's next chunk, and who else a copy of it. Pure.
#ifndef COORDINATOR_PLACEMENT_H
#define COORDINATOR_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_candidate { // an active worker
    uint64_t free_bytes;       // of memory, promises taken off
    uint64_t open_bytes; // of them, what chunks that are there already will take as they are appended to
    uint64_t bandwidth;  // bytes of K and V per second, > 0
    uint64_t load_bytes; // placed on it for all sessions
    uint64_t tokens;     // of this session, placed on it
    bool member;         // of this session already
    bool apart;          // no member, and some member and it do not reach each other (edges.h)
    uint64_t follows;    // tokens of this session of which it has a copy, and does not serve
    uint32_t host;       // number of its host
};

// The session should have `width` members. While it has fewer, or no member has memory left, the non-member
// that would be done first with everything it holds joins. Else the member that would be done first with this
// session: smallest (tokens + one chunk) / bandwidth. Who is apart joins only where nobody else has memory. Ties: the
// lower index. Memory that is open counts as taken, as long as somebody has some that is not. UINT32_MAX: nobody has
// memory for the chunk.
uint32_t coordinator_placement_choose(const struct coordinator_candidate *candidates, uint32_t n,
                                      uint32_t width, uint32_t chunk_tokens, uint64_t chunk_bytes);

// Who gets one more copy of a chunk that `has[0..n_has)` have already. No two copies share a host as long as there is
// a host with none, whether anybody there has memory or not. A member goes first: the one that would be done first
// if it had to serve all that it has. Else the non-member that would be done first with everything it holds joins, if it
// is not apart: a session with fewer copies goes on, and one whose two members do not reach each other does not. Open
// memory counts as above.
// UINT32_MAX: nobody, so the chunk has fewer copies than it should.
uint32_t coordinator_placement_follow(const struct coordinator_candidate *candidates, uint32_t n,
                                      const uint32_t *has, uint32_t n_has, uint32_t chunk_tokens,
                                      uint64_t chunk_bytes);

// Who serves each chunk of a session, of those who have it, so that all are done soonest: speeds by worker. Chunks of
// one holder count where they are; of the others each goes to who would be done first then, the one that serves now
// before others as good.
struct coordinator_spread_chunk {
    uint32_t n;         // copies, the first one serves now
    uint32_t holder[4]; // workers
    uint32_t serves;    // out: which copy
};
// Writes `serves` of all. False: who is done last would not be done a tenth sooner; `serves` is 0 then.
// load: [workers] room to count in.
bool coordinator_placement_spread(struct coordinator_spread_chunk *chunks, uint32_t n, const uint64_t *speeds,
                                  uint64_t *load, uint32_t workers);

#endif
