// SPDX-License-Identifier: Apache-2.0
// The file of the audit log (docs/operating/audit.md): records are added at its end, each chained to the one
// before it (common/trail/trail_form.h). The chain goes on over restarts, and over rotation into the next
// file. What is in the file is never changed and never taken away: bytes of a record that was not written to
// its end stay, and the next record says how many they are and what their sum is. What could not be written
// at all is counted, and the next record says so.
//
//   whole record ─ whole record ─ part of a reco\n ─ log.torn {bytes, sha256} ─ log.lost {records} ─ whole record ─
//        └── prev ────┘    └────────────── prev ─────────┘      └── prev ─────────┘
//
// Nothing is synced: what is written survives the end of the process, and not a power loss. A write blocks as
// one to the page cache does, and while the disk hangs: a loop writes by common/trail/trail_writer.h. One
// thread at a time.
#ifndef COMMON_TRAIL_H
#define COMMON_TRAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/trail/trail_form.h"

struct common_trail;

// Opens the file, or makes it with mode 0600, verifies its last record, goes on behind it, and writes one
// that says so ("log.begun", "log.opened"). `who` is the program's name in such records of its own. One
// process at a time has a file. FAILED_PRECONDITION: it cannot be opened, is a link, belongs to another user,
// others can write it, another process has it, or it is no audit log; RESOURCE_EXHAUSTED. That nothing can be
// written to it is no failure here.
enum common_code common_trail_open(const char *path, const char *who, struct common_trail **out,
                                   struct common_error *err);
void common_trail_close(struct common_trail *trail); // NULL is allowed

// Writes a record. False: it is not in the file, and counts as lost. The log says when that begins and when
// it is over.
bool common_trail_write(struct common_trail *trail, const struct common_trail_body *body);
// Likewise, of what happened at wall_ns.
bool common_trail_write_at(struct common_trail *trail, const struct common_trail_body *body,
                           uint64_t wall_ns);
// So many records, the first of them at since_ns (monotonic), came to nothing before they were given to it:
// they count as lost, and the next record says so. `why`: for people.
void common_trail_lose(struct common_trail *trail, uint64_t n, uint64_t since_ns, const char *why);

// Whether the last try to write was good; else why not, for people.
bool common_trail_works(const struct common_trail *trail);
const char *common_trail_trouble(const struct common_trail *trail);
// Where it does not work: tries to write the records about lost ones.
void common_trail_retry(struct common_trail *trail);

// The file was moved away: makes a new one at the path, whose first record ("log.rotated") names the last
// hash of the old one, and the log names that hash. The same file is there still: nothing changes.
// FAILED_PRECONDITION: something else is there, or it cannot be made; the old one stays in use.
enum common_code common_trail_reopen(struct common_trail *trail, struct common_error *err);

struct common_trail_counts {
    uint64_t written, lost; // records of this process
    uint64_t seq;           // of the last record in the file
    const char *head;       // its hash
};
void common_trail_counts(const struct common_trail *trail, struct common_trail_counts *out);

#endif
