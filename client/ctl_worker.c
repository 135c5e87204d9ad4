// SPDX-License-Identifier: Apache-2.0
// Workers in and out of use, and the balance between them: worker drain, worker resume, rebalance.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl_wait.h"
#include "common/clock.h"

#define EMPTY_POLLS 10 // sessions let go of a worker soon after its last chunk has gone

static struct {
    const char *reason;
    bool wait, dry_run;
    uint64_t wait_ns; // 0: for ever
} given;

#define WAIT_OPTIONS                                                                                         \
    {"wait",                                                                                                 \
     'w',                                                                                                    \
     COMMON_OPTION_FLAG,                                                                                     \
     &given.wait,                                                                                            \
     NULL,                                                                                                   \
     "Return when it is done. On a terminal a bar shows how far it is. Interrupt it, and it\ngoes on.",      \
     0,                                                                                                      \
     0},                                                                                                     \
    {                                                                                                        \
        "wait-timeout", 0, COMMON_OPTION_DURATION, &given.wait_ns, "TIME",                                   \
            "Wait no longer than this, and exit with 6; --timeout is of each call. Default: no limit.", 0, 0 \
    }

static enum ctl_exit say_not_found(const banyan_error *error, const char *worker)
{
    if (error->code == BANYAN_NOT_FOUND)
        return ctl_say(CTL_NOT_FOUND, "there is no worker '%s': 'banyanctl workers' lists them", worker);
    return ctl_fail(error);
}

static json_t *drain_json(const char *worker, const banyan_drain *drain)
{
    return json_pack("{s:s, s:b, s:o, s:o, s:o, s:s}", "worker", worker, "draining", drain->draining,
                     "chunks", ctl_json_u64(drain->chunks), "bytes", ctl_json_u64(drain->bytes), "sessions",
                     ctl_json_u64(drain->sessions), "stuck", drain->stuck);
}

// ---- worker drain -----------------------------------------------------------------------------------------

static unsigned empty_polls;
static banyan_drain seen; // by the last look

static enum ctl_exit look_at_drain(struct ctl *ctl, const char *worker, struct ctl_wait_left *left)
{
    banyan_error error;
    if (banyan_worker_get_drain(ctl->client, worker, &seen, &error) != BANYAN_OK)
        return say_not_found(&error, worker);
    if (!seen.draining)
        return ctl_say(CTL_STATE, "%s is used again: somebody has resumed it", worker);
    empty_polls = seen.chunks ? 0 : empty_polls + 1;
    left->chunks = seen.chunks;
    left->bytes = seen.bytes;
    left->over = empty_polls && (!seen.sessions || empty_polls >= EMPTY_POLLS);
    snprintf(left->stuck, sizeof left->stuck, "%s", seen.stuck);
    return CTL_OK;
}

static enum ctl_exit run_drain(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    const char *worker = args[0];
    banyan_error error;
    char bytes[32];
    if (banyan_worker_drain(ctl->client, worker, given.reason, &seen, &error) != BANYAN_OK)
        return say_not_found(&error, worker);
    if (given.wait) {
        enum ctl_exit exit_code = ctl_wait(ctl, worker, worker, given.wait_ns, look_at_drain);
        if (exit_code != CTL_OK)
            return exit_code;
    }
    if (ctl->json)
        ctl_print_json(drain_json(worker, &seen));
    else if (!seen.chunks)
        printf("%s is drained: it has no chunks and can be stopped\n", worker);
    else
        printf("%s is being drained: %" PRIu64 " chunks (%s) of %" PRIu64 " sessions are left%s%s\n"
               "  'banyanctl worker drain %s --wait' waits for it\n",
               worker, seen.chunks, common_format_bytes(seen.bytes, bytes, sizeof bytes), seen.sessions,
               seen.stuck[0] ? ": " : "", seen.stuck, worker);
    return CTL_OK;
}

// ---- worker resume ----------------------------------------------------------------------------------------

static enum ctl_exit run_resume(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_drain drain;
    banyan_error error;
    if (banyan_worker_resume(ctl->client, args[0], &drain, &error) != BANYAN_OK)
        return say_not_found(&error, args[0]);
    if (ctl->json)
        ctl_print_json(drain_json(args[0], &drain));
    else if (drain.draining)
        printf("%s is leaving by itself: it is used again once it has been started again\n", args[0]);
    else
        printf("%s is used again; 'banyanctl rebalance' gives it its part of what there is\n", args[0]);
    return CTL_OK;
}

// ---- rebalance --------------------------------------------------------------------------------------------

static struct { // of the balance that is waited for
    uint64_t chunks, bytes;
    uint64_t chunks_before, bytes_before; // that had moved
    uint64_t moved;
} balance;

static enum ctl_exit look_at_balance(struct ctl *ctl, const char *name, struct ctl_wait_left *left)
{
    banyan_cluster_info info;
    banyan_error error;
    (void)name;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    bool same = info.moved_chunks >= balance.chunks_before; // else the coordinator was started again
    uint64_t bytes = same ? info.moved_bytes - balance.bytes_before : info.moved_bytes;
    balance.moved = same ? info.moved_chunks - balance.chunks_before : info.moved_chunks;
    left->over = !info.wished_chunks && !info.moves;
    left->chunks = balance.moved < balance.chunks ? balance.chunks - balance.moved : 0;
    left->bytes = bytes < balance.bytes ? balance.bytes - bytes : 0;
    if (info.wished_chunks && !info.moves)
        snprintf(
            left->stuck, sizeof left->stuck,
            "no chunk can move now: their sessions are not whole, or rows of them were attached and are not "
            "all committed");
    banyan_cluster_info_free(&info);
    return CTL_OK;
}

static json_t *moves_json(const banyan_balance *b)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < b->n_moves; i++) {
        const banyan_chunk_move *m = &b->moves[i];
        json_array_append_new(rows, json_pack("{s:o, s:o, s:s, s:s, s:o}", "session", ctl_json_id(m->session),
                                              "first", ctl_json_u64(m->first), "from", m->from, "to", m->to,
                                              "bytes", ctl_json_u64(m->bytes)));
    }
    return rows;
}

static void print_balance(struct ctl *ctl, const banyan_balance *b)
{
    static const struct ctl_column columns[] = {
        {"session", "SESSION", CTL_TEXT}, {"first", "FIRST TOKEN", CTL_COUNT}, {"from", "FROM", CTL_TEXT},
        {"to", "TO", CTL_TEXT},           {"bytes", "BYTES", CTL_BYTES},       {0},
    };
    char bytes[32];
    if (ctl->json) {
        ctl_print_json(json_pack("{s:b, s:o, s:o, s:o}", "dry_run", given.dry_run, "chunks",
                                 ctl_json_u64(b->chunks), "bytes", ctl_json_u64(b->bytes), "moves",
                                 moves_json(b)));
        return;
    }
    if (given.dry_run)
        ctl_print_rows(ctl, moves_json(b), columns);
    if (!b->chunks)
        printf(
            "nothing to move: each worker has as much as it is fast, or the rest is being moved already\n");
    else
        printf("%" PRIu64 " chunks (%s) %s\n", b->chunks, common_format_bytes(b->bytes, bytes, sizeof bytes),
               given.dry_run ? "would move"
               : given.wait  ? "were to move"
                             : "are moving");
    if (given.wait && !given.dry_run && b->chunks)
        printf("%" PRIu64 " chunks have moved meanwhile\n", balance.moved);
}

static enum ctl_exit run_rebalance(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    banyan_cluster_info before;
    banyan_balance plan;
    banyan_error error;
    enum ctl_exit exit_code = CTL_OK;
    if (banyan_cluster_get_info(ctl->client, &before, &error) != BANYAN_OK)
        return ctl_fail(&error);
    balance.chunks_before = before.moved_chunks;
    balance.bytes_before = before.moved_bytes;
    banyan_cluster_info_free(&before);
    if (banyan_rebalance(ctl->client, given.dry_run, &plan, &error) != BANYAN_OK)
        return ctl_fail(&error);
    balance.chunks = plan.chunks;
    balance.bytes = plan.bytes;
    if (given.wait && !given.dry_run)
        exit_code = ctl_wait(ctl, "the balance", "", given.wait_ns, look_at_balance);
    if (exit_code == CTL_OK)
        print_balance(ctl, &plan);
    banyan_balance_free(&plan);
    return exit_code;
}

// ---- the table --------------------------------------------------------------------------------------------

static enum ctl_exit check_wait(int n_args, char **args)
{
    (void)n_args;
    (void)args;
    if (given.wait_ns && !given.wait)
        return ctl_say(CTL_USAGE, "--wait-timeout goes with --wait");
    return CTL_OK;
}

static enum ctl_exit check_drain(int n_args, char **args)
{
    if (given.reason && strlen(given.reason) > 128)
        return ctl_say(CTL_USAGE, "--reason has at most 128 bytes");
    return check_wait(n_args, args);
}

static const struct common_option drain_options[] = {
    {"reason", 'r', COMMON_OPTION_STRING, &given.reason, "TEXT",
     "Why, for those who look at 'banyanctl workers': at most 128 bytes. Default: none.", 0, 0},
    WAIT_OPTIONS,
    {0},
};

static const struct common_option rebalance_options[] = {
    {"dry-run", 'n', COMMON_OPTION_FLAG, &given.dry_run, NULL, "Only show what would move.", 0, 0},
    WAIT_OPTIONS,
    {0},
};

const struct ctl_command ctl_worker_commands[] = {
    {"worker drain", "WORKER", "take a worker out of use: its chunks move to others",
     "Moves a worker's chunks to other workers while their sessions are used, and gives it no new ones. Once "
     "it has none\nit can be stopped, and nothing is lost. It stays drained, also when it is started again, "
     "until 'worker resume'.",
     drain_options, 1, 1, run_drain, check_drain},
    {"worker resume", "WORKER", "use a worker again that was drained",
     "The worker gets new chunks again. What has moved stays where it is until 'rebalance'.", NULL, 1, 1,
     run_resume, NULL},
    {"rebalance", "", "move chunks, so that each worker has as much as it is fast",
     "Makes a plan of chunks that should move, from the workers' speeds and from what they hold now, and "
     "carries it out\nwhile sessions are used. Another one takes its place. --dry-run shows the plan.",
     rebalance_options, 0, 0, run_rebalance, check_wait},
    {0},
};
