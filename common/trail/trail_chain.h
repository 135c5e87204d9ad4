// SPDX-License-Identifier: Apache-2.0
// Follows the chain of an audit log line by line (docs/operating/audit.md), over one file or several that
// follow each other, and says of each line what it is. Pure; one thread.
#ifndef COMMON_TRAIL_CHAIN_H
#define COMMON_TRAIL_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/trail/trail_form.h"

enum common_trail_verdict {
    COMMON_TRAIL_GOOD, // a record, chained to the one before it
    COMMON_TRAIL_HELD, // no record: the next one must say so
    COMMON_TRAIL_TORN, // a good record, which says of the lines before it that a crash has left them: first_line and lines
    COMMON_TRAIL_BAD, // the chain is broken at first_line: `why`
};

struct common_trail_chain {
    uint64_t line; // of the file, from 1
    uint64_t records, torn, bad;
    bool begun, resumes; // resumes: what stands before the next record is not known
    uint64_t seq, first_seq;
    char head[COMMON_TRAIL_HASH + 1], first_prev[COMMON_TRAIL_HASH + 1];
    struct { // lines that are no records, since the last one
        uint64_t lines, first_line, bytes;
        uint64_t changed; // the first of them that was a record; 0: none
        struct common_trail_sum *sum;
    } gap;
    // Of the last line:
    uint64_t first_line, lines;
    char why[160];
};

void common_trail_chain_init(struct common_trail_chain *chain);
void common_trail_chain_fini(struct common_trail_chain *chain);
void common_trail_chain_next_file(struct common_trail_chain *chain); // lines are counted from the start

// A line, without its '\n'; `ended`: it has one.
enum common_trail_verdict common_trail_chain_take(struct common_trail_chain *chain, const char *line,
                                                  size_t len, bool ended);
// The file is over. GOOD, or BAD: lines are held that no record speaks of.
enum common_trail_verdict common_trail_chain_end(struct common_trail_chain *chain);

#endif
