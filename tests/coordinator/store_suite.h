// SPDX-License-Identifier: Apache-2.0
// What the files of the store's tests share: a store in a folder of its own, and what was read when it was
// opened.
#ifndef TESTS_COORDINATOR_STORE_SUITE_H
#define TESTS_COORDINATOR_STORE_SUITE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "coordinator/session/rangeset.h"
#include "coordinator/store/store.h"

extern char store_folder[64], store_path[128];
extern struct common_loop *store_loop;
extern uint32_t store_done,
    store_failed; // batches that were submitted here and have ended, and those not well

struct store_seen {
    struct common_error *err;
    uint32_t workers, sessions, members, chunks, lost;
    uint64_t session, incarnation, epoch, instance, chunk_sum, key, cut, floor;
    char prefixes[128]; // session:incarnation:ttl:pinned:hashes, in their order
    char name[132], spec[16], holder[65];
    struct coordinator_rangeset ranges;
    uint32_t n_ranges;
    char followers[64]; // "1:w1 1:w2": by chunk
    char seals[64];     // "1:77 2:88": by chunk
    char draining[64];  // "w0: why", of the last worker
    uint32_t tenant;    // of the last session
    char tenants[64];   // "1:a 2:b"
    char quotas[96];    // "1:bytes=5"
    uint64_t id_key[2];
    uint32_t id_keys, tokens;
    struct coordinator_token_row token; // the last one
};

// A reader that writes down what it gets.
struct coordinator_store_reader store_reader(struct store_seen *seen);
enum common_code store_open(struct store_seen *seen, struct coordinator_store **out,
                            struct common_error *err);
void store_submit(struct coordinator_store *store, struct coordinator_batch *batch);
void store_close(struct coordinator_store *store); // waits for everything that was submitted

int store_child_status(pid_t pid); // waits for it; as waitpid says

int store_setup(void **state);
int store_teardown(void **state);

// Tests: store_faults.c
void store_full_disk(void **state);
void store_deletes_when_full(void **state);
void store_commit_that_fails(void **state);
void store_half_a_batch(void **state);
void store_numbers_wait(void **state);
void store_full_sync(void **state);
void store_killed_again_and_again(void **state);

// Tests: store_backup.c
void store_is_backed_up(void **state);
void store_backup_is_given_up(void **state);
void store_in_memory_has_no_backup(void **state);

#endif
