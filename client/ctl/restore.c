// SPDX-License-Identifier: Apache-2.0
// Command: session restore.
#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/snapshot.h"
#include "client/ctl/work.h"

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

enum ctl_exit ctl_restore_check(int n_args, char **args)
{
    (void)n_args;
    banyan_error error;
    return banyan_snapshot_check(args[0], NULL, &error) == BANYAN_OK ? CTL_OK : ctl_fail(&error);
}

static void report(const struct ctl *ctl, const banyan_snapshot *made)
{
    char size[32], took[32];
    if (ctl->json)
        ctl_print_json(json_pack("{s:o, s:s, s:o, s:o, s:o, s:o}", "session", ctl_json_id(made->session),
                                 "name", restore.name ? restore.name : "", "tokens",
                                 ctl_json_u64(made->tokens), "forgotten", ctl_json_u64(made->forgotten),
                                 "bytes", ctl_json_u64(made->bytes), "took_ns", ctl_json_u64(made->took_ns)));
    else
        printf("restored session 0x%016" PRIx64 "%s%s: %" PRIu64 " tokens, %s in %s\n", made->session,
               restore.name ? " " : "", restore.name ? restore.name : "", made->tokens,
               common_format_bytes(made->bytes, size, sizeof size),
               common_format_ns(made->took_ns, took, sizeof took));
}

enum ctl_exit ctl_restore_run(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_session *session;
    banyan_snapshot made;
    banyan_error error;
    struct ctl_progress progress = ctl_progress_begin("restore", ctl->json);
    const banyan_restore_options how = {.name = restore.name,
                                        .replicas = (uint32_t)restore.replicas,
                                        .members = (uint32_t)restore.members,
                                        .chunk_tokens = (uint32_t)restore.chunk_tokens,
                                        .idle_ttl_ns = restore.ttl_ns,
                                        .threads = (uint32_t)restore.threads,
                                        .progress = ctl_progress_draw,
                                        .progress_arg = &progress};
    ctl_work_guard();
    banyan_code code = banyan_session_restore(ctl->client, args[0], &how, &session, &made, &error);
    ctl_progress_end(&progress);
    if (code != BANYAN_OK)
        return ctl_fail(&error);
    report(ctl, &made);
    banyan_session_close(session);
    return CTL_OK;
}
