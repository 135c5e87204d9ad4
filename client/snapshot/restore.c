// SPDX-License-Identifier: Apache-2.0
// banyan_session_restore, banyan_snapshot_check. A snapshot's rows are attached, file by file, straight to
// the workers, and committed. The first rows of the last layer are committed last, so that the session has no
// token until it has all, but those that it has forgotten; and so that its floor does not rise meanwhile
// (coordinator/place/forget.h).
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/core/error.h"
#include "client/lib/states.h"
#include "client/snapshot/crew.h"
#include "client/snapshot/failure.h"
#include "client/snapshot/snapshot_dir.h"
#include "client/snapshot/snapshot_session.h"
#include "client/snapshot/spec_json.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"

struct source { // a snapshot that is read
    struct snapshot_dir *dir;
    struct snapshot snapshot;
    banyan_spec spec;
    struct snapshot_spec_memory *spec_memory;
    struct snapshot_form *form;
    banyan_session *to;
};

static void source_close(struct source *source)
{
    snapshot_dir_close(source->dir);
    snapshot_clear(&source->snapshot);
    snapshot_spec_free(source->spec_memory);
    free(source->form);
}

static enum common_code read_spec(struct source *source, const char *path, struct common_error *err)
{
    const char *wrong;
    struct common_error inner = {0};
    source->spec_memory = snapshot_spec_parse(source->snapshot.spec, &source->spec, &wrong);
    if (!source->spec_memory && !wrong)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (!source->spec_memory)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s/manifest.json: 'spec': '%s' is wrong, or its list has the wrong length",
                                path, wrong);
    if (source->snapshot.floor && !source->spec.forget)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s/manifest.json: 'floor' is %" PRIu64 ", and the 'spec' does not forget",
                                path, source->snapshot.floor);
    enum common_code code = snapshot_form_of(&source->spec, source->snapshot.floor, &source->form, &inner);
    return code == COMMON_OK
               ? code
               : common_error_set(err, code, "%s/manifest.json: 'spec': %s", path, inner.message);
}

// Everything that can be wrong with a snapshot without its rows. The source is to be closed in any case.
static banyan_code source_open(struct source *source, const char *path, banyan_error *error)
{
    struct common_error err = {0}, inner = {0};
    if (!path)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the path is NULL");
    enum common_code code = snapshot_dir_open(path, &source->dir, &err);
    if (code == COMMON_OK)
        code = snapshot_dir_manifest(source->dir, &source->snapshot, &err);
    if (code == COMMON_OK)
        code = read_spec(source, path, &err);
    if (code == COMMON_OK) {
        code = snapshot_check(&source->snapshot, &source->form->shape, &inner);
        if (code != COMMON_OK)
            common_error_set(&err, code, "%s/%s", path, inner.message);
    }
    if (code == COMMON_OK)
        code = snapshot_dir_look(source->dir, &source->snapshot, &err);
    return code == COMMON_OK ? BANYAN_OK : snapshot_file_failure(&err, error);
}

static uint64_t file_bytes(const struct source *source, const struct snapshot_file *file)
{
    return file->tokens * snapshot_row_bytes(&source->form->shape, file->layer);
}

static banyan_snapshot describe(const struct source *source)
{
    const struct snapshot *s = &source->snapshot;
    banyan_snapshot about = {
        .tokens = s->length, .longest_layer = s->length, .forgotten = s->floor, .files = s->n_files};
    for (size_t i = 0; i < s->n_files; i++) {
        about.bytes += file_bytes(source, &s->files[i]);
        about.stored_bytes += s->files[i].stored;
    }
    return about;
}

banyan_code banyan_snapshot_check(const char *path, banyan_snapshot *out, banyan_error *error)
{
    struct source source = {0};
    banyan_code code = source_open(&source, path, error);
    if (code == BANYAN_OK && out)
        *out = describe(&source);
    source_close(&source);
    return code;
}

static banyan_code put_file(void *arg, size_t nth, uint64_t *bytes, banyan_error *error)
{
    const struct source *source = arg;
    const struct snapshot_file *file = snapshot_nth(&source->snapshot, nth);
    struct snapshot_rows rows;
    struct common_error err = {0};
    if (snapshot_dir_read(source->dir, &source->snapshot, &source->form->shape, file, &rows, &err) !=
        COMMON_OK)
        return snapshot_file_failure(&err, error);
    banyan_code code = snapshot_put_rows(source->to, file, &rows, error);
    free(rows.memory);
    *bytes = code == BANYAN_OK ? file_bytes(source, file) : 0;
    return code;
}

// All files but one on several threads, then that one.
static banyan_code put_all(struct source *source, const banyan_restore_options *options, uint32_t threads,
                           uint64_t total, banyan_error *error)
{
    size_t n = source->snapshot.n_files;
    struct snapshot_crew crew = {.n = n ? n - 1 : 0,
                                 .run = put_file,
                                 .arg = source,
                                 .progress = options->progress,
                                 .progress_arg = options->progress_arg,
                                 .total_bytes = total};
    banyan_code code = snapshot_crew_run(&crew, threads, error);
    if (code == BANYAN_OK && n) {
        crew.first = n - 1;
        crew.n = n;
        code = snapshot_crew_run(&crew, 1, error);
    }
    return code;
}

static banyan_code check_state(const struct source *source, banyan_error *error)
{
    banyan_session_info info;
    banyan_code code = banyan_session_get_info(source->to, &info, error);
    if (code != BANYAN_OK)
        return code;
    uint64_t length = info.length, floor = info.forgotten;
    banyan_session_info_free(&info);
    if (length != source->snapshot.length)
        return client_error_set(error, BANYAN_INTERNAL,
                                "the new session has %" PRIu64 " tokens and the snapshot %" PRIu64, length,
                                source->snapshot.length);
    if (floor != source->snapshot.floor)
        return client_error_set(error, BANYAN_INTERNAL,
                                "the new session's floor is %" PRIu64 " and the snapshot's %" PRIu64, floor,
                                source->snapshot.floor);
    return BANYAN_OK;
}

static void choose(banyan_spec *spec, const banyan_restore_options *options)
{
    spec->replicas = options->replicas ? options->replicas : spec->replicas;
    spec->members = options->members ? options->members : spec->members;
    spec->chunk_tokens = options->chunk_tokens ? options->chunk_tokens : spec->chunk_tokens;
    spec->idle_ttl_ns = options->idle_ttl_ns ? options->idle_ttl_ns : spec->idle_ttl_ns;
}

// It is not whole: it goes, or the failure says that it is still there.
static void forsake(banyan_session *session, banyan_error *error)
{
    banyan_error why;
    size_t used = error ? strlen(error->message) : 0;
    if (banyan_session_delete(session, &why) != BANYAN_OK && error)
        snprintf(error->message + used, sizeof error->message - used,
                 "; session 0x%016" PRIx64 ", which is incomplete, could not be deleted: %s",
                 banyan_session_id(session), why.message);
    banyan_session_close(session);
}

static banyan_code fill(struct source *source, const banyan_restore_options *options, uint32_t threads,
                        uint64_t total, banyan_error *error)
{
    COMMON_FAILPOINT("restore_created");
    banyan_code code = put_all(source, options, threads, total, error);
    return code == BANYAN_OK ? check_state(source, error) : code;
}

// The states that the snapshot has, if it has some, of the new session.
static banyan_code fill_states(const struct source *source, const char *path,
                               const banyan_restore_options *options, uint32_t threads, banyan_error *error)
{
    banyan_restore_options quiet = *options;
    struct source states = {0};
    size_t room = strlen(path) + sizeof "/" SNAPSHOT_STATES;
    char *inner = malloc(room);
    if (!inner)
        return snapshot_no_memory(error);
    snprintf(inner, room, "%s/" SNAPSHOT_STATES, path);
    banyan_code code = BANYAN_OK;
    if (access(inner, F_OK) == 0) {
        quiet.progress = NULL;
        code = source_open(&states, inner, error);
        if (code == BANYAN_OK)
            code = client_states_make(source->to, &states.spec, &states.to, error);
        if (code == BANYAN_OK) {
            code = put_all(&states, &quiet, threads, 0, error);
            if (code == BANYAN_OK)
                code = check_state(&states, error);
            banyan_session_close(states.to);
        }
        source_close(&states);
    }
    free(inner);
    return code;
}

banyan_code banyan_session_restore(banyan_client *client, const char *path,
                                   const banyan_restore_options *options, banyan_session **out,
                                   banyan_snapshot *about, banyan_error *error)
{
    static const banyan_restore_options defaults;
    options = options ? options : &defaults;
    if (!client || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "the client or out is NULL");
    uint64_t began_ns = common_clock_ns();
    struct source source = {0};
    banyan_snapshot made;
    uint32_t threads = options->threads;
    banyan_code code = snapshot_threads(&threads, error);
    if (code == BANYAN_OK)
        code = source_open(&source, path, error);
    if (code != BANYAN_OK)
        goto end;
    choose(&source.spec, options);
    made = describe(&source);
    code = banyan_session_create_at(client, &source.spec, options->name, source.snapshot.floor, &source.to,
                                    error);
    if (code != BANYAN_OK)
        goto end;
    code = fill(&source, options, threads, made.bytes, error);
    if (code == BANYAN_OK)
        code = fill_states(&source, path, options, threads, error);
    if (code != BANYAN_OK) {
        forsake(source.to, error);
        goto end;
    }
    made.session = banyan_session_id(source.to);
    made.took_ns = common_clock_ns() - began_ns;
    if (about)
        *about = made;
    *out = source.to;
end:
    source_close(&source);
    return code;
}
