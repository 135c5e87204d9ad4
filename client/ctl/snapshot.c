// SPDX-License-Identifier: Apache-2.0
// Command: session snapshot.
#include "client/ctl/snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "client/ctl/work.h"

static struct {
    bool zstd;
    uint64_t threads, file_bytes;
} given = {.threads = 2, .file_bytes = UINT64_C(64) << 20};

static const struct common_option options[] = {
    {"zstd", 0, COMMON_OPTION_FLAG, &given.zstd, NULL, "Compress each file.", 0, 0},
    {"threads", 0, COMMON_OPTION_U64, &given.threads, "N",
     "Files at a time; each takes up to 128 MiB of memory here. Default: 2.", 1, 16},
    {"file-size", 0, COMMON_OPTION_SIZE, &given.file_bytes, "SIZE",
     "Most bytes of K and V in a file. Default: 64M.", 4096, UINT64_C(64) << 20},
    {0},
};

static void report(const struct ctl *ctl, const banyan_snapshot *taken, const char *path)
{
    char size[32], on_disk[32], took[32], more[96] = "";
    if (ctl->json) {
        ctl_print_json(json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "session",
                                 ctl_json_id(taken->session), "path", path, "tokens",
                                 ctl_json_u64(taken->tokens), "longest_layer",
                                 ctl_json_u64(taken->longest_layer), "forgotten",
                                 ctl_json_u64(taken->forgotten), "files", ctl_json_u64(taken->files), "bytes",
                                 ctl_json_u64(taken->bytes), "stored_bytes",
                                 ctl_json_u64(taken->stored_bytes), "took_ns", ctl_json_u64(taken->took_ns)));
        return;
    }
    if (taken->longest_layer > taken->tokens)
        snprintf(more, sizeof more, " (the shortest layer's; the longest has %" PRIu64 ")",
                 taken->longest_layer);
    printf("%s: %" PRIu64 " tokens%s, %s in %" PRIu64 " files of %s, in %s\n", path, taken->tokens, more,
           common_format_bytes(taken->bytes, size, sizeof size), taken->files,
           common_format_bytes(taken->stored_bytes, on_disk, sizeof on_disk),
           common_format_ns(taken->took_ns, took, sizeof took));
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
    banyan_session *session;
    banyan_snapshot taken;
    banyan_error error;
    enum ctl_exit exit_code = ctl_session_open(ctl, args[0], &session);
    if (exit_code != CTL_OK)
        return exit_code;
    struct ctl_progress progress = ctl_progress_begin("snapshot", ctl->json);
    const banyan_snapshot_options how = {.zstd = given.zstd,
                                         .threads = (uint32_t)given.threads,
                                         .file_bytes = given.file_bytes,
                                         .progress = ctl_progress_draw,
                                         .progress_arg = &progress};
    ctl_work_guard();
    banyan_code code = banyan_session_snapshot(session, args[1], &how, &taken, &error);
    ctl_progress_end(&progress);
    if (code == BANYAN_OK)
        report(ctl, &taken, args[1]);
    else
        exit_code = ctl_fail(&error);
    if (code == BANYAN_OK && taken.fork_left)
        ctl_say(
            CTL_OK,
            "session 0x%016" PRIx64
            ", which held the snapshot's rows, could not be deleted: it is deleted automatically after some "
            "minutes without use",
            taken.fork_left);
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
