// SPDX-License-Identifier: Apache-2.0
// The numbers of commits. Each has one of its own, higher than all before, also those of earlier terms, so
// that workers know by whom rows are frozen. Whoever has ended will send nothing about its rows any more.
#ifndef COORDINATOR_COMMITS_H
#define COORDINATOR_COMMITS_H

#include <stdbool.h>
#include <stdint.h>

#define COORDINATOR_COMMIT_TERM_SHIFT 40 // numbers of a term start at term << 40

struct coordinator_commit { // one under way; part of the object that carries it out
    struct coordinator_commit *next, *before;
    uint64_t number, session;
};

struct coordinator_commits {                // zeroed: none
    struct coordinator_commit *head, *tail; // under way, by number
    uint64_t last;                          // number given
};

void coordinator_commit_begin(struct coordinator_commits *commits, struct coordinator_commit *commit,
                              uint64_t term, uint64_t session); // gives it its number

// It is durable, or never will be.
void coordinator_commit_end(struct coordinator_commits *commits, const struct coordinator_commit *commit);

// All commits with a number below this are over, those of earlier terms included. Never 0, never falls. session: of
// this one; 0: of all.
uint64_t coordinator_commits_settled(const struct coordinator_commits *commits, uint64_t term,
                                     uint64_t session);

#endif
