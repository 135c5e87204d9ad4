// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/commits.h"

#include <stddef.h>

static uint64_t commit_next_number(const struct coordinator_commits *commits, uint64_t term)
{
    uint64_t least = term << COORDINATOR_COMMIT_TERM_SHIFT; // the term may have been raised meanwhile
    return (commits->last < least ? least : commits->last) + 1;
}

void coordinator_commit_begin(struct coordinator_commits *commits, struct coordinator_commit *commit,
                              uint64_t term, uint64_t session)
{
    *commit = (struct coordinator_commit){.before = commits->tail,
                                          .session = session,
                                          .number = commits->last = commit_next_number(commits, term)};
    *(commits->tail ? &commits->tail->next : &commits->head) = commit;
    commits->tail = commit;
}

void coordinator_commit_end(struct coordinator_commits *commits, const struct coordinator_commit *commit)
{
    *(commit->before ? &commit->before->next : &commits->head) = commit->next;
    *(commit->next ? &commit->next->before : &commits->tail) = commit->before;
}

uint64_t coordinator_commits_settled(const struct coordinator_commits *commits, uint64_t term,
                                     uint64_t session)
{
    const struct coordinator_commit *first = commits->head;
    while (first && session && first->session != session)
        first = first->next;
    return first ? first->number : commit_next_number(commits, term);
}
