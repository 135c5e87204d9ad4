// SPDX-License-Identifier: Apache-2.0
// What a chunk and a session know of their files (disk/disk.h). The fields are the disk's. Zeroed: there is
// no file.
#ifndef WORKER_KEEP_H
#define WORKER_KEEP_H

#include <stdbool.h>
#include <stdint.h>

struct worker_keep {            // of a chunk
    uint64_t end;               // bytes of its log; 0: it has none
    uint64_t serial;            // of its file: another with each that takes the place of the one before
    uint64_t changed_ns;        // when the log last grew
    uint64_t grew;              // the batch (disk/queue.h) in which that is in the file
    uint64_t mended;            // 0, or the batch from which on its files have all again (below)
    uint64_t settles;           // the batch in which it says on the disk what was taken back
    bool sealed;                // it has a sealed file
    bool naming;                // which is not in its place yet
    bool behind;                // memory has what the files lack: they must be rewritten
    bool withdrawn;             // its log on the disk may have rows of an append that has been taken back
    bool lost;                  // the file is damaged, which was or will be reported
    bool retry, full, unsynced; // it is in the list of those that are, or may be
};

struct worker_logged { // of a session
    uint64_t end;      // bytes of its log; 0: it has none
    uint64_t mended;   // as of a chunk
    uint64_t laid;     // the batch in which it takes that it has chunks with rows
    bool touched;      // the log lacks what may be sent again
    bool layout;       // and its chunks
    bool owed;         // one of which has rows: its sender has to send it again
    bool anew;         // it must be rewritten
    bool listed, unsynced;
};

// `mended`: of a file that failed to take something, the batch in which it is rewritten. Who waits for a
// batch before that one cannot rely on the file.
#define WORKER_NOT_MENDED UINT64_MAX // it has not been rewritten yet

// It is rewritten in this batch, if needed.
static inline void worker_mend(uint64_t *mended, uint64_t batch)
{
    *mended = *mended == WORKER_NOT_MENDED ? batch : *mended;
}

#endif
