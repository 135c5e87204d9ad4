// SPDX-License-Identifier: Apache-2.0
// The directory of a worker's store in memory (worker/files/files.h), with all that can happen to one: it
// becomes full, its reader dies, the machine loses its power, and bytes of it change. Needs nothing of the
// simulator.
#ifndef TESTS_SIM_SIM_FILES_H
#define TESTS_SIM_SIM_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/files/files.h"

struct sim_file {
    char name[64];
    uint8_t *bytes;
    size_t len, cap;
    size_t synced; // as much of it outlives a loss of power
};

struct sim_change {        // of names, that a loss of power may take back
    char from[64], to[64]; // "": there was none, or is none
    struct sim_file gone;  // what was removed or replaced
    bool has_gone;
};

struct sim_files { // the directory
    struct sim_file *files;
    size_t n, cap;
    uint32_t boots;             // losses of power
    struct sim_change *changes; // since their folders were synced
    size_t n_changes, cap_changes;
    uint64_t moves;         // files that were moved or removed so far
    uint64_t dies_at;       // the process dies before that one; 0: it does not
    uint64_t torn_again;    // logs without their ends that a loss of power has put beside their sealed files
    uint64_t room;          // bytes that still fit; what does not is written in part. UINT64_MAX: any
    uint64_t life;          // handles of another life get EIO from everything
    uint64_t writes;        // calls so far
    uint64_t fail_at;       // the call that fails with EIO, and those after it; 0: none
    const char *refused;    // what is written to files with this in their name fails likewise; NULL: none
    bool no_sync;           // syncs fail
    uint64_t calls;         // of any kind
    uint64_t reads;         // likewise, of files that are there
    uint64_t no_reads_from; // the read that fails with EMFILE, as where a process has no descriptor left
    uint64_t no_reads_to;   // and those after it, up to this one; 0: none
    void (*beside)(void);   // called before each call; NULL: nothing is
    void (*syncing)(void);  // likewise, during each sync of a file: it takes what this takes
};

void sim_files_init(struct sim_files *directory);
void sim_files_end(struct sim_files *directory);
struct worker_files *sim_files_open(struct sim_files *directory);

// The process that has handles dies: what it still does changes nothing.
void sim_files_kill(struct sim_files *directory);
// And the machine with it: of what was not synced a part that `chance` says is gone, here and there a sector
// of it alone. Of names the last changes are taken back, in the order of a journal: with files that had gone,
// or had been replaced.
void sim_files_power(struct sim_files *directory, uint64_t chance);
// Flips one bit of one file with this in its name. False: there are no bytes.
bool sim_files_flip(struct sim_files *directory, const char *part, uint64_t chance);
// A chunk's or a session's file is gone. False: there is none.
bool sim_files_lose(struct sim_files *directory, uint64_t chance);

struct sim_file *sim_files_find(struct sim_files *directory, const char *name); // NULL: there is none
// How many files have a name with this in it.
size_t sim_files_count(const struct sim_files *directory, const char *part);

#endif
