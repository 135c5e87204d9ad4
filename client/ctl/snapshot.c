// SPDX-License-Identifier: Apache-2.0
// Command: session snapshot. The session is pinned by a fork at its shortest layer's length, which shares its
// full chunks and has a copy of the tail; the fork's rows are read from the workers, file by file, and the
// fork is deleted. So the snapshot is of one point, and steps of the session wait for the fork only.
#include "client/ctl/snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/spec.h"
#include "client/ctl/work.h"
#include "client/lib/core/internal.h"
#include "client/lib/rows/seals.h"
#include "client/snapshot/safetensors_write.h"
#include "client/snapshot/snapshot_dir.h"
#include "client/snapshot/snapshot_session.h"
#include "common/base/failpoint.h"
#include "common/hash/hash.h"

#define PIN_TTL_NS (300 * COMMON_NS_PER_S) // of the fork, after its last ticket has ended

static struct {
    bool zstd;
    uint64_t threads, file_bytes;
} snapshot_options = {.threads = 2, .file_bytes = SNAPSHOT_ROWS_BYTES};

static const struct common_option options[] = {
    {"zstd", 0, COMMON_OPTION_FLAG, &snapshot_options.zstd, NULL, "Compress each file.", 0, 0},
    {"threads", 0, COMMON_OPTION_U64, &snapshot_options.threads, "N",
     "Files at a time; each takes up to 128 MiB of memory here. Default: 2.", 1, 16},
    {"file-size", 0, COMMON_OPTION_SIZE, &snapshot_options.file_bytes, "SIZE",
     "Most bytes of K and V in a file. Default: 64M.", 4096, SNAPSHOT_ROWS_BYTES},
    {0},
};

// ---- one file ---------------------------------------------------------------------------------------------

struct taking {
    banyan_session *pin;
    const struct snapshot_form *form;
    struct snapshot *snapshot;
    struct snapshot_dir *dir;
};

static enum ctl_exit take_file(void *arg, size_t nth, uint64_t *bytes, struct ctl_problem *problem)
{
    const struct taking *t = arg;
    struct snapshot_file *file = &t->snapshot->files[nth];
    struct snapshot_names names;
    struct common_safetensor tensors[4];
    struct common_error err = {0};
    char name[SNAPSHOT_NAME_BYTES];
    void *head = NULL;
    banyan_error error;
    size_t head_len = 0, n = snapshot_tensors(&t->form->shape, file, &names, tensors);
    uint64_t rows = file->tokens * snapshot_row_bytes(&t->form->shape, file->layer);
    snapshot_file_name(t->snapshot, file, name);
    enum common_code code = client_safetensors_head(tensors, n, &head, &head_len, &err);
    uint8_t *all = code == COMMON_OK ? malloc(head_len + rows) : NULL;
    enum ctl_exit exit_code = CTL_OK;
    if (code == COMMON_OK && !all)
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (code == COMMON_OK) {
        memcpy(all, head, head_len); // a multiple of 8: scales, which come first, lie where floats may
        exit_code = snapshot_read_rows(t->pin, file, tensors, n, all + head_len, &error) == BANYAN_OK
                        ? CTL_OK
                        : ctl_problem_cluster(problem, &error);
    }
    if (code == COMMON_OK && exit_code == CTL_OK) {
        file->bytes = head_len + rows;
        file->sum = common_xxh3(all, file->bytes, 0);
        code = snapshot_dir_write(t->dir, name, all, file->bytes, t->snapshot->zstd, &file->stored, &err);
        *bytes = rows;
    }
    free(all);
    free(head);
    return code == COMMON_OK ? exit_code : ctl_problem_file(problem, &err);
}

// ---- all of it --------------------------------------------------------------------------------------------

static json_t *describe(const banyan_session_info *info)
{
    char now[32] = "";
    time_t clock = time(NULL);
    struct tm utc;
    json_t *lengths = json_array();
    for (uint32_t i = 0; i < info->n_layers; i++)
        json_array_append_new(lengths, ctl_json_u64(info->layer_lengths[i]));
    if (gmtime_r(&clock, &utc))
        strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:o, s:s, s:s, s:s, s:o, s:o}", "id", ctl_json_id(info->id), "name", info->name,
                     "taken", now, "by", banyan_version(), "layer_lengths", lengths, "forgotten",
                     ctl_json_u64(info->forgotten));
}

static void unpin(banyan_session *pinned)
{
    banyan_error error;
    if (banyan_session_delete(pinned, &error) != BANYAN_OK)
        fprintf(stderr,
                "banyanctl: session 0x%016" PRIx64
                ", which held the snapshot's rows, could not be deleted (%s): it is deleted automatically "
                "after some minutes without use\n",
                banyan_session_id(pinned), error.message);
    banyan_session_close(pinned);
}

static enum ctl_exit take_all(struct ctl *ctl, struct taking *t, struct ctl_work *work)
{
    struct ctl_problem problem = {.exit = CTL_OK};
    struct common_error err = {0};
    *work = (struct ctl_work){
        .what = "snapshot", .quiet = ctl->json, .n = t->snapshot->n_files, .run = take_file, .arg = t};
    for (size_t i = 0; i < t->snapshot->n_files; i++)
        work->total_bytes +=
            t->snapshot->files[i].tokens * snapshot_row_bytes(&t->form->shape, t->snapshot->files[i].layer);
    banyan_error error;
    if (client_seals_begin(t->pin, t->snapshot->length, &error) != BANYAN_OK)
        return ctl_fail(&error);
    enum ctl_exit exit_code = ctl_work_run(work, (uint32_t)snapshot_options.threads, &problem);
    if (exit_code != CTL_OK)
        return ctl_problem_tell(&problem);
    if (client_seals_check(t->pin, &error) != BANYAN_OK)
        return ctl_fail(&error);
    COMMON_FAILPOINT("snapshot_files_taken");
    char *text = snapshot_text(t->snapshot);
    if (!text)
        return ctl_say(CTL_INTERNAL, "out of memory");
    if (snapshot_dir_write(t->dir, "manifest.json", text, strlen(text), false, NULL, &err) != COMMON_OK) {
        ctl_problem_file(&problem, &err);
        exit_code = ctl_problem_tell(&problem);
    }
    COMMON_FAILPOINT("snapshot_manifest_written");
    free(text);
    return exit_code;
}

static void report(const struct ctl *ctl, const struct snapshot *snapshot, const banyan_session_info *info,
                   const struct ctl_work *work, const char *path)
{
    uint64_t stored = 0, longest = 0;
    char size[32], on_disk[32], took[32], more[96] = "";
    for (size_t i = 0; i < snapshot->n_files; i++)
        stored += snapshot->files[i].stored;
    for (uint32_t i = 0; i < info->n_layers; i++)
        longest = info->layer_lengths[i] > longest ? info->layer_lengths[i] : longest;
    if (ctl->json) {
        ctl_print_json(
            json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "session", ctl_json_id(info->id),
                      "path", path, "tokens", ctl_json_u64(snapshot->length), "longest_layer",
                      ctl_json_u64(longest), "forgotten", ctl_json_u64(snapshot->floor), "files",
                      ctl_json_u64(snapshot->n_files), "bytes", ctl_json_u64(work->done_bytes),
                      "stored_bytes", ctl_json_u64(stored), "took_ns", ctl_json_u64(work->took_ns)));
        return;
    }
    if (longest > snapshot->length)
        snprintf(more, sizeof more, " (the shortest layer's; the longest has %" PRIu64 ")", longest);
    printf("%s: %" PRIu64 " tokens%s, %s in %zu files of %s, in %s\n", path, snapshot->length, more,
           common_format_bytes(work->done_bytes, size, sizeof size), snapshot->n_files,
           common_format_bytes(stored, on_disk, sizeof on_disk),
           common_format_ns(work->took_ns, took, sizeof took));
}

// Of a pinned session; the folder is there or not when this returns.
static enum ctl_exit take_snapshot(struct ctl *ctl, banyan_session *pinned, const banyan_session_info *info,
                                   const banyan_spec *spec, const char *path)
{
    struct snapshot_form *form = NULL;
    struct snapshot snapshot = {.zstd = snapshot_options.zstd,
                                .length = info->length,
                                .floor = info->forgotten,
                                .spec = ctl_spec_json(spec),
                                .info = describe(info)};
    struct taking t = {.pin = pinned, .snapshot = &snapshot};
    struct ctl_work work = {0};
    struct ctl_problem problem;
    struct common_error err = {0};
    enum ctl_exit exit_code = CTL_OK;
    enum common_code code = snapshot_form_of(spec, info->forgotten, &form, &err);
    if (code == COMMON_OK &&
        (!snapshot.spec || !snapshot.info ||
         !snapshot_plan(&snapshot, &form->shape, snapshot_options.file_bytes, spec->chunk_tokens)))
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (code == COMMON_OK)
        code = snapshot_dir_make(path, &t.dir, &err);
    if (code == COMMON_OK) {
        t.form = form;
        exit_code = take_all(ctl, &t, &work);
        if (exit_code == CTL_OK)
            code = snapshot_dir_finish(t.dir, &err);
        else
            snapshot_dir_discard(t.dir);
    }
    if (code != COMMON_OK) {
        ctl_problem_file(&problem, &err);
        exit_code = ctl_problem_tell(&problem);
    }
    if (exit_code == CTL_OK)
        report(ctl, &snapshot, info, &work, path);
    snapshot_clear(&snapshot);
    free(form);
    return exit_code;
}

static enum ctl_exit check_snapshot(int n_args, char **args)
{
    (void)n_args;
    if (access(args[1], F_OK) == 0)
        return ctl_say(CTL_STATE, "%s already exists: a snapshot creates its folder", args[1]);
    return CTL_OK;
}

static enum ctl_exit run_snapshot(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session, *pinned;
    banyan_session_info info;
    banyan_error error;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    ctl_work_guard();
    if (snapshot_pin(session, PIN_TTL_NS, (uint64_t)getpid(), &pinned, &info, &error) != BANYAN_OK)
        exit_code = ctl_fail(&error);
    if (exit_code == CTL_OK) {
        COMMON_FAILPOINT("snapshot_pinned");
        // With the session's own spec: the fork's has another time to live.
        exit_code = take_snapshot(ctl, pinned, &info, banyan_session_spec(session), args[1]);
        banyan_session_info_free(&info);
        if (exit_code == CTL_DATA_LOSS) // a memory that is wrong is found, and used no more
            (void)banyan_scrub_begin(ctl->client, banyan_session_id(session), NULL, &error);
        unpin(pinned);
        COMMON_FAILPOINT("snapshot_unpinned");
    }
    banyan_session_close(session);
    return exit_code;
}

const struct ctl_command ctl_snapshot_commands[] = {
    {"session snapshot", "SESSION DIR", "write a session's rows and spec to a new folder",
     "Writes a consistent copy of a session to a new folder while the session is in use: manifest.json and "
     ".safetensors\n"
     "files of up to 64 MiB of K and V each. It holds the tokens that all layers have (those of the "
     "shortest). Steps\n"
     "wait only for a fork. For a session that forgets (--forget) it holds the remaining rows and the floor.",
     options, 2, 2, run_snapshot, check_snapshot},
    {"session restore", "DIR", "create a session from a snapshot",
     "Creates a session from a folder written by 'session snapshot', in this or another cluster, on any "
     "number of\n"
     "workers. Every file is checked against manifest.json. If anything is wrong, no session is left behind. "
     "The\n"
     "session's tokens become visible when all of them have arrived. If the original had forgotten rows, the "
     "new\n"
     "session has the same floor and refuses what lies behind it (FORGOTTEN).",
     ctl_restore_options, 1, 1, ctl_restore_run, ctl_restore_check},
    {"session verify", "SESSION", "recompute steps of a session in float64 and compare", ctl_verify_about,
     ctl_verify_options, 1, 1, ctl_verify_run, NULL},
    {0},
};
