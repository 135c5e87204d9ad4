// SPDX-License-Identifier: Apache-2.0
// banyan_session_snapshot. The session is pinned by a fork at its shortest layer's length, which shares its
// full chunks and has a copy of the tail; the fork's rows are read from the workers, file by file, and the
// fork is deleted. So the snapshot is of one point, and steps of the session wait for the fork only.
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/rows/seals.h"
#include "client/lib/states.h"
#include "client/snapshot/crew.h"
#include "client/snapshot/failure.h"
#include "client/snapshot/safetensors_write.h"
#include "client/snapshot/snapshot_dir.h"
#include "client/snapshot/snapshot_session.h"
#include "client/snapshot/spec_json.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/hash/hash.h"

#define PIN_TTL_NS     (300 * COMMON_NS_PER_S) // of the fork, after its last ticket has ended
#define FILE_BYTES_MIN 4096

struct taking {
    banyan_session *pin;
    struct snapshot_form *form;
    struct snapshot snapshot;
    struct snapshot_dir *dir;
};

// ---- one file ---------------------------------------------------------------------------------------------

// The file as it will lie on the disk; free it.
static banyan_code read_file(const struct taking *t, struct snapshot_file *file, uint8_t **out,
                             uint64_t *rows, banyan_error *error)
{
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    struct common_error err = {0};
    void *head = NULL;
    size_t head_len = 0, n = snapshot_tensors(&t->form->shape, file, &names, tensors);
    *rows = file->tokens * snapshot_row_bytes(&t->form->shape, file->layer);
    if (client_safetensors_head(tensors, n, &head, &head_len, &err) != COMMON_OK)
        return snapshot_file_failure(&err, error);
    uint8_t *all = malloc(head_len + *rows);
    if (all)
        memcpy(all, head, head_len); // a multiple of 8: scales, which come first, lie where floats may
    free(head);
    if (!all)
        return snapshot_no_memory(error);
    banyan_code code = snapshot_read_rows(t->pin, file, tensors, n, all + head_len, error);
    if (code != BANYAN_OK) {
        free(all);
        return code;
    }
    file->bytes = head_len + *rows;
    file->sum = common_xxh3(all, file->bytes, 0);
    *out = all;
    return BANYAN_OK;
}

static banyan_code take_file(void *arg, size_t nth, uint64_t *bytes, banyan_error *error)
{
    struct taking *t = arg;
    struct snapshot_file *file = &t->snapshot.files[nth];
    char name[SNAPSHOT_NAME_BYTES];
    struct common_error err = {0};
    uint8_t *all = NULL;
    uint64_t rows = 0;
    banyan_code code = read_file(t, file, &all, &rows, error);
    if (code != BANYAN_OK)
        return code;
    snapshot_file_name(&t->snapshot, file, name);
    if (snapshot_dir_write(t->dir, name, all, file->bytes, t->snapshot.zstd, &file->stored, &err) !=
        COMMON_OK)
        code = snapshot_file_failure(&err, error);
    else
        *bytes = rows;
    free(all);
    return code;
}

// ---- all of it --------------------------------------------------------------------------------------------

static json_t *describe(const banyan_session_info *info)
{
    char now[32] = "", id[24];
    time_t clock = time(NULL);
    struct tm utc;
    json_t *lengths = json_array();
    bool ok = lengths != NULL;
    for (uint32_t i = 0; i < info->n_layers; i++)
        ok = json_array_append_new(lengths, json_integer((json_int_t)info->layer_lengths[i])) == 0 && ok;
    if (!ok) {
        json_decref(lengths);
        return NULL;
    }
    if (gmtime_r(&clock, &utc))
        strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(id, sizeof id, "0x%016" PRIx64, info->id);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:I}", "id", id, "name", info->name, "taken", now, "by",
                     banyan_version(), "layer_lengths", lengths, "forgotten", (json_int_t)info->forgotten);
}

static banyan_code write_manifest(struct taking *t, banyan_error *error)
{
    struct common_error err = {0};
    char *text = snapshot_text(&t->snapshot);
    if (!text)
        return snapshot_no_memory(error);
    enum common_code code =
        snapshot_dir_write(t->dir, "manifest.json", text, strlen(text), false, NULL, &err);
    COMMON_FAILPOINT("snapshot_manifest_written");
    free(text);
    return code == COMMON_OK ? BANYAN_OK : snapshot_file_failure(&err, error);
}

static banyan_code take_all(struct taking *t, const banyan_snapshot_options *options, uint32_t threads,
                            uint64_t *bytes, banyan_error *error)
{
    struct snapshot_crew crew = {.n = t->snapshot.n_files,
                                 .run = take_file,
                                 .arg = t,
                                 .progress = options->progress,
                                 .progress_arg = options->progress_arg};
    for (size_t i = 0; i < t->snapshot.n_files; i++)
        crew.total_bytes +=
            t->snapshot.files[i].tokens * snapshot_row_bytes(&t->form->shape, t->snapshot.files[i].layer);
    banyan_code code = client_seals_begin(t->pin, t->snapshot.length, error);
    if (code == BANYAN_OK)
        code = snapshot_crew_run(&crew, threads, error);
    if (code == BANYAN_OK)
        code = client_seals_check(t->pin, error);
    if (code != BANYAN_OK)
        return code;
    *bytes = crew.done_bytes;
    COMMON_FAILPOINT("snapshot_files_taken");
    return write_manifest(t, error);
}

// What it is to hold, and its folder. *t is to be cleared in any case.
static banyan_code prepare(struct taking *t, const banyan_session_info *info, const banyan_spec *spec,
                           const char *path, const banyan_snapshot_options *options, banyan_error *error)
{
    uint64_t file_bytes = options->file_bytes ? options->file_bytes : SNAPSHOT_ROWS_BYTES;
    struct common_error err = {0};
    t->snapshot = (struct snapshot){.zstd = options->zstd,
                                    .length = info->length,
                                    .floor = info->forgotten,
                                    .spec = snapshot_spec_json(spec),
                                    .info = describe(info)};
    enum common_code code = snapshot_form_of(spec, info->forgotten, &t->form, &err);
    if (code != COMMON_OK)
        return client_error_set(error, (banyan_code)code, "%s", err.message);
    if (!t->snapshot.spec || !t->snapshot.info ||
        !snapshot_plan(&t->snapshot, &t->form->shape, file_bytes, spec->chunk_tokens))
        return snapshot_no_memory(error);
    return snapshot_dir_make(path, &t->dir, &err) == COMMON_OK ? BANYAN_OK
                                                               : snapshot_file_failure(&err, error);
}

static void report(const struct snapshot *snapshot, const banyan_session_info *info, banyan_snapshot *out)
{
    *out = (banyan_snapshot){.session = info->id,
                             .tokens = snapshot->length,
                             .forgotten = snapshot->floor,
                             .files = snapshot->n_files};
    for (size_t i = 0; i < snapshot->n_files; i++)
        out->stored_bytes += snapshot->files[i].stored;
    for (uint32_t i = 0; i < info->n_layers; i++)
        out->longest_layer =
            info->layer_lengths[i] > out->longest_layer ? info->layer_lengths[i] : out->longest_layer;
}

static banyan_code take_snapshot(banyan_session *pinned, banyan_session *states,
                                 const banyan_session_info *info, const banyan_spec *spec, const char *path,
                                 const banyan_snapshot_options *options, uint32_t threads,
                                 banyan_snapshot *out, banyan_error *error);

// The session's states: a snapshot in the snapshot. Its bytes count in neither number of the progress.
static banyan_code take_states(const struct taking *t, banyan_session *states,
                               const banyan_snapshot_options *options, uint32_t threads, banyan_error *error)
{
    banyan_snapshot_options quiet = *options;
    banyan_snapshot ignored;
    banyan_session_info info;
    char *path = snapshot_dir_states(t->dir);
    quiet.progress = NULL;
    banyan_code code = path ? banyan_session_get_info(states, &info, error) : snapshot_no_memory(error);
    if (code == BANYAN_OK) {
        code = take_snapshot(states, NULL, &info, banyan_session_spec(states), path, &quiet, threads,
                             &ignored, error);
        banyan_session_info_free(&info);
    }
    free(path);
    return code;
}

// Of a pinned session and of its pinned states (NULL: there are none); the folder is there or not when this
// returns.
static banyan_code take_snapshot(banyan_session *pinned, banyan_session *states,
                                 const banyan_session_info *info, const banyan_spec *spec, const char *path,
                                 const banyan_snapshot_options *options, uint32_t threads,
                                 banyan_snapshot *out, banyan_error *error)
{
    struct taking t = {.pin = pinned};
    struct common_error err = {0};
    uint64_t bytes = 0;
    banyan_code code = prepare(&t, info, spec, path, options, error);
    if (code == BANYAN_OK)
        code = take_all(&t, options, threads, &bytes, error);
    if (code == BANYAN_OK && states)
        code = take_states(&t, states, options, threads, error);
    if (code == BANYAN_OK && snapshot_dir_finish(t.dir, &err) != COMMON_OK)
        code = snapshot_file_failure(&err, error);
    else if (code != BANYAN_OK)
        snapshot_dir_discard(t.dir);
    if (code == BANYAN_OK) {
        report(&t.snapshot, info, out);
        out->bytes = bytes;
    }
    snapshot_clear(&t.snapshot);
    free(t.form);
    return code;
}

static banyan_code check(const char *path, const banyan_snapshot_options *options, uint32_t *threads,
                         banyan_error *error)
{
    struct common_error err;
    if (!path)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the path is NULL");
    if (options->file_bytes &&
        (options->file_bytes < FILE_BYTES_MIN || options->file_bytes > SNAPSHOT_ROWS_BYTES))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "files of %" PRIu64 " bytes: 4096 to 67108864 are allowed",
                                options->file_bytes);
    if (access(path, F_OK) == 0) {
        common_error_set(&err, COMMON_ALREADY_EXISTS, "%s already exists: a snapshot creates its folder",
                         path);
        return snapshot_file_failure(&err, error);
    }
    return snapshot_threads(threads, error);
}

banyan_code banyan_session_snapshot(banyan_session *session, const char *path,
                                    const banyan_snapshot_options *options, banyan_snapshot *out,
                                    banyan_error *error)
{
    static const banyan_snapshot_options defaults;
    static atomic_uint_fast32_t calls;
    options = options ? options : &defaults;
    if (!session)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the session is NULL");
    uint64_t began_ns = common_clock_ns();
    uint64_t number = (uint64_t)getpid() << 20 | (atomic_fetch_add(&calls, 1) & 0xfffff);
    uint32_t threads = options->threads;
    char name[80];
    banyan_session *pinned, *states = NULL;
    banyan_session_info info;
    banyan_snapshot taken = {0};
    banyan_error ignored;
    banyan_code code = check(path, options, &threads, error);
    if (code == BANYAN_OK)
        code = snapshot_pin(session, PIN_TTL_NS, number, &pinned, &info, error);
    if (code != BANYAN_OK)
        return code;
    COMMON_FAILPOINT("snapshot_pinned");
    snprintf(name, sizeof name, "snapshot-of-0x%016" PRIx64 "-%" PRIu64 "-states", info.id, number);
    code = client_states_pin(session, info.incarnation, info.length, PIN_TTL_NS, name, &states, error);
    // With the session's own spec: the fork's has another time to live.
    if (code == BANYAN_OK)
        code = take_snapshot(pinned, states, &info, banyan_session_spec(session), path, options, threads,
                             &taken, error);
    banyan_session_info_free(&info);
    if (states)
        banyan_session_delete(states, &ignored); // else it goes by itself
    banyan_session_close(states);
    if (code == BANYAN_DATA_LOSS) // a memory that is wrong is found, and used no more
        (void)banyan_scrub_begin(session->client, banyan_session_id(session), NULL, &ignored);
    if (banyan_session_delete(pinned, &ignored) != BANYAN_OK)
        taken.fork_left = banyan_session_id(pinned);
    banyan_session_close(pinned);
    COMMON_FAILPOINT("snapshot_unpinned");
    taken.took_ns = common_clock_ns() - began_ns;
    if (code == BANYAN_OK && out)
        *out = taken;
    return code;
}
