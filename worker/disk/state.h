// SPDX-License-Identifier: Apache-2.0
// The inside of a worker's disk, shared by the files of this folder.
#ifndef WORKER_DISK_STATE_H
#define WORKER_DISK_STATE_H

#include "worker/disk/disk.h"
#include "worker/disk/queue.h"
#include "worker/files/files.h"
#include "worker/files/image.h"
#include "worker/files/record.h"
#include "worker/files/thread.h"
#include "worker/session/session.h"
#include "worker/store/backing.h"

struct worker_ids { // a list
    uint64_t *ids;
    uint32_t n, cap;
};

enum { WORKER_BOOT_BYTES = 64 };

enum worker_disk_state { // DISK_NEW ──load──▶ DISK_OPEN ──close──▶ DISK_CLOSED, at any time
    WORKER_DISK_NEW,     // files are read, and not written for what memory does
    WORKER_DISK_OPEN,
    WORKER_DISK_CLOSED
};

struct worker_seal { // of the seal job: one chunk
    uint64_t id, serial, end;
    uint64_t bytes; // of the sealed file
    int result;     // 0: its sealed file lies beside it
    bool damaged;   // the log was
    bool taken;     // its sealed file goes in the log's place
    bool unsure;    // what the disk has of the log is unknown
};

enum { SEALS_MAX = 64 };

struct worker_disk {
    struct worker_backing backing; // first (backing.c)
    struct common_loop *loop;
    // What is changed: from the load to the close the queue's, else the directory's own. reader: for the loop where it must
    // read (worker_disk_read_layer)
    struct worker_files *files, *directory, *reader, *thread_files;
    struct worker_queue *queue; // NULL: it is not open, or is not any more
    uint64_t mended;            // the newest of all chunks' (keep.h), or a later batch
    uint64_t taken;             // the batch with all that was behind when it was asked for last; 0: none
    uint64_t settles;           // the newest in which a chunk's log says what was taken back
    struct worker_disk_thread *thread;
    struct worker_lane *lanes; // [WORKER_FETCH_LANES] that read layers (fetch.h)
    char *path;
    enum worker_fsync fsync;
    enum worker_disk_state state;
    uint64_t scrub_ns, attach_ns, waiting;
    uint64_t *term;
    struct worker_store *store;
    struct worker_map *sessions;
    struct common_timer *timer;
    struct worker_disk_stats stats;
    struct common_buckets thread_synced; // the sync job's, while it runs
    bool told;                           // that something failed
    bool ahead; // rows were taken back, and the log of a chunk that is behind does not have this
    char boot[WORKER_BOOT_BYTES]; // which start of the machine this is
    bool dark;                    // a loss of power may have taken what the files had
    bool unsafe;                  // what was written before this process may not be on the disk
    uint64_t serial;              // of chunks' files
    // Work to do: ids of chunks, and of sessions
    struct worker_ids retry, full, unsynced_chunks, touched, unsynced_sessions;
    bool unlisted;    // there was no memory to list some: see worker_disk_relist
    bool astray;      // what may not be on the disk yet is in no list of files to sync
    uint32_t layouts; // sessions whose chunks the files lack
    uint8_t *rows;    // room to read a chunk's rows into, rows_bytes
    uint64_t rows_bytes;
    // The append that comes next
    uint64_t append_session, append_term, append_write;
    // Jobs: at most one of each kind is under way
    struct worker_disk_job seal_job, sync_job, scrub_job;
    bool sealing, naming, syncing, scrubbing; // naming: sealed files go in the logs' places
    uint64_t sync_after; // the batch that the sync job waits for, which writes what it syncs; 0: it has begun
    struct worker_disk_wait named;
    struct worker_seal seals[SEALS_MAX];
    uint32_t n_seals;
    struct worker_ids sync_chunks, sync_sessions; // the sync job's; those that failed are left in it
    struct worker_ids scrubs;                     // the chunks of this round that are still to be read
    uint64_t sync_next_ns, scrub_next_ns, scrub_every_ns;
    uint64_t scrub_id, scrub_serial, scrub_end; // the one that is being read, and its bytes
    int scrub_result;                           // 0, or what was wrong
    uint64_t nudge_next_ns;
    uint64_t
        looks;  // at sessions, while chunks were read: one for each layer of each, where nothing is shared
    bool hurry; // full chunks are sealed at once: memory is short
    struct worker_ids lost; // chunks whose files are damaged, and whose rows memory has not
    void (*damaged)(void *arg, struct worker_chunk *chunk);
    void (*sealed)(void *arg); // memory may be had that could not before
    void (*wanted)(void *arg, struct worker_chunk *chunk);
    void *told_arg;
};

// Adds an id. False: no memory, nothing has changed.
bool worker_ids_add(struct worker_ids *list, uint64_t id);
void worker_ids_free(struct worker_ids *list);

// A file does not take what it has to: counted, and logged once until all do again.
enum common_code worker_disk_refused(struct worker_disk *disk, int why, struct common_error *err);

// So much waits that a write would be refused: nothing is begun.
bool worker_disk_full(const struct worker_disk *disk);
// The file's bytes outlive a loss of power before anything that is asked for later is done. 0 or a negative errno.
int worker_disk_sync(struct worker_disk *disk, const char *name);
// The same before who waits from now on goes on.
int worker_disk_sync_soon(struct worker_disk *disk, const char *name);
// Names of a folder, this file's among them, likewise, in order.
int worker_disk_sync_names(struct worker_disk *disk, const char *folder, const char *name);
// Changes go no longer through the queue: all of them have been done.
void worker_disk_queue_end(struct worker_disk *disk);
// A file is damaged: out of the way, logged and counted. what: of which chunk and session.
void worker_disk_quarantine(struct worker_disk *disk, const char *name, const char *what);
// The chunk is behind: it is rewritten.
void worker_disk_later(struct worker_disk *disk, struct worker_chunk *chunk);
// It may be full: looked at when it is quiet.
void worker_disk_consider(struct worker_disk *disk, struct worker_chunk *chunk);
bool worker_disk_chunk_full(const struct worker_chunk *chunk); // whether all layers have all their rows
// Rows have come: where memory is nearly full, chunks that are full are sealed, so that they may leave it.
void worker_disk_nudge(struct worker_disk *disk);

extern const struct worker_backing_ops worker_disk_backing_ops; // backing.c

// disk.c
// Changes go through the queue from now on.
enum common_code worker_disk_queue_begin(struct worker_disk *disk, struct common_error *err);

// mark.c
// The directory is this worker's, or becomes it. Of the two files that say so one that is damaged is put into quarantine/ and
// made again. FAILED_PRECONDITION: it is another's, or nothing whole says whose; nothing has changed then. UNAVAILABLE.
enum common_code worker_disk_mark(struct worker_disk *disk, const struct worker_disk_options *options,
                                  struct common_error *err);

// boot.c
// Whether the machine has lost its power since. boot: of this start; NULL: as the system says.
enum common_code worker_disk_boot_read(struct worker_disk *disk, const char *boot, struct common_error *err);
// All has been read, and is written from now on: so that the next process can tell. UNAVAILABLE.
enum common_code worker_disk_boot_open(struct worker_disk *disk, struct common_error *err);
void worker_disk_boot_close(struct worker_disk *disk); // all is on the disk, and nothing is written any more

// chunks.c
bool worker_disk_chunk_anew(struct worker_disk *disk, struct worker_chunk *chunk, int *why); // from memory
// The logs of a session's chunks say which rows were taken back: its own log, which says what came next, goes after them.
// False: one cannot be written.
bool worker_disk_withdrawals_ready(struct worker_disk *disk, const struct worker_session *session, int *why);
int worker_disk_unsynced(struct worker_disk *disk, struct worker_chunk *chunk); // its log has grown
// What was taken back of the session's appends is off the disk: 0, or a negative errno.
int worker_disk_withdrawn(struct worker_disk *disk, const struct worker_session *session);

// This file of the session takes what comes only where the logs of its chunks have taken what was taken back.
int worker_disk_needs(struct worker_disk *disk, const struct worker_session *session, const char *name);

// sessions.c
// Its file failed to take something: it is rewritten.
void worker_disk_session_failed(struct worker_disk *disk, struct worker_session *session, uint64_t batch);
void worker_disk_session_name(uint64_t id, char out[WORKER_NAME_BYTES]);
int worker_disk_session_unsynced(struct worker_disk *disk, struct worker_session *session); // it has grown
int worker_disk_session_anew(struct worker_disk *disk, struct worker_session *session);
int worker_disk_session_write(struct worker_disk *disk, struct worker_session *session); // what it lacks
// Lists again what the files lack, where there was no memory to: a session or a chunk that is not listed
// would be behind forever. `unlisted` stays where there still is none.
void worker_disk_relist(struct worker_disk *disk);
// Sessions whose chunks are not in the files: false when that stays so.
bool worker_disk_layouts_ready(struct worker_disk *disk, int *why);
// Reads a session's log, and cuts off a torn end. 0 or a negative errno, -EBADMSG when it is damaged.
struct worker_session_image;
int worker_session_image_read(struct worker_files *files, uint64_t id, struct worker_session_image **out);
void worker_session_image_free(struct worker_session_image *image); // NULL is allowed
// Whether it has this append.
bool worker_session_image_knows(const struct worker_session_image *image, uint64_t term, uint64_t write);
uint32_t worker_session_image_chunks(const struct worker_session_image *image);
uint64_t worker_session_image_chunk(const struct worker_session_image *image, uint32_t nth); // its id
// Whether it has the chunk, and has not forgotten the layer of it.
bool worker_session_image_needs(const struct worker_session_image *image, uint64_t chunk, uint64_t first,
                                uint32_t layer);
// The session that it describes, with chunks that have no rows yet, is put into the map. What it has forgotten comes
// when all sessions are there: worker_session_image_forget.
enum common_code worker_session_image_restore(const struct worker_session_image *image,
                                              struct worker_disk *disk, struct worker_session **out,
                                              struct common_error *err);
void worker_session_image_forget(const struct worker_session_image *image, struct worker_disk *disk);

// fetch.c
enum common_code worker_disk_lanes_new(struct worker_disk *disk);
void worker_disk_lanes_free(struct worker_disk *disk); // what is being read ends before; NULL is allowed

// work.c
enum common_code worker_disk_work(struct worker_disk *disk,
                                  struct common_error *err); // starts timer and thread
void worker_disk_rest(struct worker_disk *disk);             // ends both
// Writes what the files lack. False: they do not take it.
bool worker_disk_catch_up(struct worker_disk *disk);

#endif
