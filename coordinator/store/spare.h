// SPDX-License-Identifier: Apache-2.0
// Space for deletes on a full disk. SQLite writes a delete to its log before anything becomes free, so
// PATH-spare keeps COORDINATOR_SPARE_BYTES of the disk for that.
//
//   NONE ──regain──▶ HELD ──lend──▶ LENT      NONE: there is no room for it; writes go on. HELD: so do they.
//                      ▲               │      LENT: its space is free for batches that free some; others are
//                      └──── regain ───┘      refused, because they would take it.
//
// Regaining empties the log first, so the space that deletes took comes back. No threads here: as sql.h.
#ifndef COORDINATOR_SPARE_H
#define COORDINATOR_SPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/store/sql.h"

#define COORDINATOR_SPARE_BYTES (4 << 20) // as long as the log becomes (SQLite's wal_autocheckpoint)

struct coordinator_spare {
    int fd; // -1: the store is in memory, or the file cannot be opened: it stays NONE
    enum { COORDINATOR_SPARE_NONE, COORDINATOR_SPARE_HELD, COORDINATOR_SPARE_LENT } state;
    uint64_t tried_ns;
};

// path: of the store, with its hold; NULL: in memory.
void coordinator_spare_open(struct coordinator_spare *spare, const char *path);
void coordinator_spare_close(struct coordinator_spare *spare);

// False: it is not HELD.
bool coordinator_spare_lend(struct coordinator_spare *spare);
// Tries to become HELD, at most once a second. Outside of a transaction.
void coordinator_spare_regain(struct coordinator_spare *spare, struct coordinator_sql *sql);

// Whether these operations make space, or need next to none of it while they record what is gone.
bool coordinator_spare_serves(const struct coordinator_op *ops, uint32_t n);

#endif
