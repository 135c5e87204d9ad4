// SPDX-License-Identifier: Apache-2.0
// Command: session restore. A snapshot's rows are attached, file by file, straight to the workers, and
// committed. The first rows of the last layer are committed last, so that the session has no token until it
// has all, but those that it has forgotten; and so that its floor does not rise meanwhile
// (coordinator/place/forget.h).
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/snapshot.h"
#include "client/ctl/spec.h"
#include "client/ctl/work.h"
#include "client/snapshot/snapshot_dir.h"
#include "client/snapshot/snapshot_session.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"

static struct {
    const char *name;
    uint64_t replicas, members, chunk_tokens, ttl_ns, threads;
} restore = {.threads = 2};

const struct common_option ctl_restore_options[] = {
    {"name", 0, COMMON_OPTION_STRING, &restore.name, "NAME", "Name of the new session. Default: none.", 0, 0},
    {"replicas", 0, COMMON_OPTION_U64, &restore.replicas, "N",
     "Workers that hold each part. Default: as in the snapshot; likewise below.", 1, 3},
    {"members", 0, COMMON_OPTION_U64, &restore.members, "N", "Number of workers that hold the session.", 1,
     4096},
    {"chunk-tokens", 0, COMMON_OPTION_U64, &restore.chunk_tokens, "N", "Tokens per chunk.", 16, 4096},
    {"ttl", 0, COMMON_OPTION_DURATION, &restore.ttl_ns, "TIME",
     "Delete the session after this long without use.", 0, 0},
    {"threads", 0, COMMON_OPTION_U64, &restore.threads, "N",
     "Files at a time; each takes up to 128 MiB of memory here. Default: 2.", 1, 16},
    {0},
};

static struct { // of the command: open from its check to the end of its run
    struct snapshot_dir *dir;
    struct snapshot snapshot;
    banyan_spec spec;
    struct ctl_spec_file *spec_memory;
    struct snapshot_form *form;
} source;

static void source_close(void)
{
    snapshot_dir_close(source.dir);
    snapshot_clear(&source.snapshot);
    ctl_spec_file_free(source.spec_memory);
    free(source.form);
}

static enum common_code read_spec(const char *path, struct common_error *err)
{
    const char *wrong;
    struct common_error inner = {0};
    source.spec_memory = ctl_spec_parse(source.snapshot.spec, &source.spec, &wrong);
    if (!source.spec_memory && !wrong)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (!source.spec_memory)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s/manifest.json: 'spec': '%s' is wrong, or its list has the wrong length",
                                path, wrong);
    if (source.snapshot.floor && !source.spec.forget)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s/manifest.json: 'floor' is %" PRIu64 ", and the 'spec' does not forget",
                                path, source.snapshot.floor);
    enum common_code code = snapshot_form_of(&source.spec, source.snapshot.floor, &source.form, &inner);
    return code == COMMON_OK
               ? code
               : common_error_set(err, code, "%s/manifest.json: 'spec': %s", path, inner.message);
}

// Everything that can be wrong with a snapshot without its rows.
enum ctl_exit ctl_restore_check(int n_args, char **args)
{
    (void)n_args;
    struct common_error err = {0}, inner = {0};
    struct ctl_problem problem;
    enum common_code code = snapshot_dir_open(args[0], &source.dir, &err);
    if (code == COMMON_OK)
        code = snapshot_dir_manifest(source.dir, &source.snapshot, &err);
    if (code == COMMON_OK)
        code = read_spec(args[0], &err);
    if (code == COMMON_OK) {
        code = snapshot_check(&source.snapshot, &source.form->shape, &inner);
        if (code != COMMON_OK)
            common_error_set(&err, code, "%s/%s", args[0], inner.message);
    }
    if (code == COMMON_OK)
        code = snapshot_dir_look(source.dir, &source.snapshot, &err);
    if (code == COMMON_OK)
        return CTL_OK;
    source_close();
    ctl_problem_file(&problem, &err);
    return ctl_problem_tell(&problem);
}

static enum ctl_exit put_file(void *arg, size_t nth, uint64_t *bytes, struct ctl_problem *problem)
{
    const struct snapshot_file *file = snapshot_nth(&source.snapshot, nth);
    banyan_error error;
    struct snapshot_rows rows;
    struct common_error err = {0};
    if (snapshot_dir_read(source.dir, &source.snapshot, &source.form->shape, file, &rows, &err) != COMMON_OK)
        return ctl_problem_file(problem, &err);
    enum ctl_exit exit_code = snapshot_put_rows(arg, file, &rows, &error) == BANYAN_OK
                                  ? CTL_OK
                                  : ctl_problem_cluster(problem, &error);
    free(rows.memory);
    *bytes = exit_code == CTL_OK ? file->tokens * snapshot_row_bytes(&source.form->shape, file->layer) : 0;
    return exit_code;
}

// All files but one on several threads, then that one.
static enum ctl_exit put_all(struct ctl *ctl, banyan_session *session, struct ctl_work *work)
{
    struct ctl_problem problem = {.exit = CTL_OK};
    size_t n = source.snapshot.n_files;
    *work = (struct ctl_work){.what = "restore", .quiet = ctl->json, .run = put_file, .arg = session};
    for (size_t i = 0; i < n; i++)
        work->total_bytes += source.snapshot.files[i].tokens *
                             snapshot_row_bytes(&source.form->shape, source.snapshot.files[i].layer);
    work->n = n ? n - 1 : 0;
    enum ctl_exit exit_code = ctl_work_run(work, (uint32_t)restore.threads, &problem);
    if (exit_code == CTL_OK && n) {
        work->first = n - 1;
        work->n = n;
        exit_code = ctl_work_run(work, 1, &problem);
    }
    return exit_code == CTL_OK ? CTL_OK : ctl_problem_tell(&problem);
}

static enum ctl_exit check_state(banyan_session *session)
{
    banyan_session_info info;
    banyan_error error;
    if (banyan_session_get_info(session, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    uint64_t length = info.length, floor = info.forgotten;
    banyan_session_info_free(&info);
    if (length != source.snapshot.length)
        return ctl_say(CTL_INTERNAL, "the new session has %" PRIu64 " tokens and the snapshot %" PRIu64,
                       length, source.snapshot.length);
    if (floor != source.snapshot.floor)
        return ctl_say(CTL_INTERNAL, "the new session's floor is %" PRIu64 " and the snapshot's %" PRIu64,
                       floor, source.snapshot.floor);
    return CTL_OK;
}

static void report(const struct ctl *ctl, uint64_t id, const struct ctl_work *work)
{
    char size[32], took[32];
    if (ctl->json)
        ctl_print_json(json_pack("{s:o, s:s, s:o, s:o, s:o, s:o}", "session", ctl_json_id(id), "name",
                                 restore.name ? restore.name : "", "tokens",
                                 ctl_json_u64(source.snapshot.length), "forgotten",
                                 ctl_json_u64(source.snapshot.floor), "bytes", ctl_json_u64(work->done_bytes),
                                 "took_ns", ctl_json_u64(work->took_ns)));
    else
        printf("restored session 0x%016" PRIx64 "%s%s: %" PRIu64 " tokens, %s in %s\n", id,
               restore.name ? " " : "", restore.name ? restore.name : "", source.snapshot.length,
               common_format_bytes(work->done_bytes, size, sizeof size),
               common_format_ns(work->took_ns, took, sizeof took));
}

enum ctl_exit ctl_restore_run(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    banyan_session *session;
    banyan_error error;
    struct ctl_work work = {0};
    banyan_spec *spec = &source.spec;
    spec->replicas = restore.replicas ? (uint32_t)restore.replicas : spec->replicas;
    spec->members = restore.members ? (uint32_t)restore.members : spec->members;
    spec->chunk_tokens = restore.chunk_tokens ? (uint32_t)restore.chunk_tokens : spec->chunk_tokens;
    spec->idle_ttl_ns = restore.ttl_ns ? restore.ttl_ns : spec->idle_ttl_ns;
    ctl_work_guard();
    enum ctl_exit exit_code = CTL_OK;
    if (banyan_session_create_at(ctl->client, spec, restore.name, source.snapshot.floor, &session, &error) !=
        BANYAN_OK) {
        exit_code = ctl_fail(&error);
        goto close_source;
    }
    uint64_t id = banyan_session_id(session);
    COMMON_FAILPOINT("restore_created");
    exit_code = put_all(ctl, session, &work);
    if (exit_code == CTL_OK)
        exit_code = check_state(session);
    if (exit_code == CTL_OK)
        report(ctl, id, &work);
    else if (banyan_session_delete(session, &error) != BANYAN_OK)
        fprintf(stderr,
                "banyanctl: session 0x%016" PRIx64 ", which is incomplete, could not be deleted: %s\n", id,
                error.message);
    banyan_session_close(session);
close_source:
    source_close();
    return exit_code;
}
