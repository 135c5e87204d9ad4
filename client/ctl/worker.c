// SPDX-License-Identifier: Apache-2.0
// Workers in and out of use, and the balance between them: worker drain, cordon, resume, forget; rebalance.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/careful.h"
#include "client/ctl/wait.h"
#include "common/base/clock.h"

#define EMPTY_LOOKS 10 // sessions release a worker soon after its last chunk is gone

static struct {
    const char *reason;
    bool dry_run, lost;
    struct ctl_wait_given wait;
} given;

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

static struct ctl_drain_seen seen;

bool ctl_drain_over(struct ctl_drain_seen *drain)
{
    drain->empty_looks = drain->now.chunks ? 0 : drain->empty_looks + 1;
    return drain->empty_looks && (!drain->now.sessions || drain->empty_looks >= EMPTY_LOOKS);
}

static enum ctl_exit look_at_drain(struct ctl *ctl, const char *worker, struct ctl_wait_left *left)
{
    banyan_error error;
    if (banyan_worker_get_drain(ctl->client, worker, &seen.now, &error) != BANYAN_OK)
        return say_not_found(&error, worker);
    if (!seen.now.draining)
        return ctl_say(CTL_STATE, "%s is back in use: someone has resumed it", worker);
    left->chunks = seen.now.chunks;
    left->bytes = seen.now.bytes;
    left->over = ctl_drain_over(&seen);
    snprintf(left->stuck, sizeof left->stuck, "%s", seen.now.stuck);
    return CTL_OK;
}

static enum ctl_exit run_drain(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    const char *worker = args[0];
    banyan_error error;
    char bytes[32];
    if (banyan_worker_drain(ctl->client, worker, given.reason, &seen.now, &error) != BANYAN_OK)
        return say_not_found(&error, worker);
    if (given.wait.wait) {
        enum ctl_exit exit_code = ctl_wait(ctl, worker, "still moving", worker, &given.wait, look_at_drain);
        if (exit_code != CTL_OK)
            return exit_code;
    }
    if (ctl->json)
        ctl_print_json(drain_json(worker, &seen.now));
    else if (!seen.now.chunks)
        printf("%s is drained: it has no chunks and can be stopped\n", worker);
    else
        printf("%s is draining: %" PRIu64 " chunks (%s) of %" PRIu64 " sessions are left%s%s\n"
               "  'banyanctl worker drain %s --wait' waits for it\n",
               worker, seen.now.chunks, common_format_bytes(seen.now.bytes, bytes, sizeof bytes),
               seen.now.sessions, seen.now.stuck[0] ? ": " : "", seen.now.stuck, worker);
    return CTL_OK;
}

// ---- worker cordon ----------------------------------------------------------------------------------------

static enum ctl_exit run_cordon(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    banyan_drain drain;
    banyan_error error;
    if (banyan_worker_cordon(ctl->client, args[0], given.reason, &drain, &error) != BANYAN_OK)
        return say_not_found(&error, args[0]);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:b, s:o}", "worker", args[0], "cordoned", true, "chunks",
                                 ctl_json_u64(drain.chunks)));
    else
        printf("%s gets no new chunks and keeps its %" PRIu64 "; 'banyanctl worker uncordon %s' ends this\n",
               args[0], drain.chunks, args[0]);
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
        printf("%s is stopping by itself: it is back in use once it is started again\n", args[0]);
    else
        printf("%s is back in use; 'banyanctl rebalance' moves its share of chunks back\n", args[0]);
    return CTL_OK;
}

// ---- worker forget ----------------------------------------------------------------------------------------

static struct ctl_careful careful;

// Of what the coordinator would refuse; for its own sentence there is no call that changes nothing.
static enum ctl_exit forget_refused(const banyan_worker_info *w, const banyan_drain *has)
{
    if (strcmp(w->state, "lost") != 0 && strcmp(w->state, "absent") != 0)
        return ctl_say(CTL_STATE, "%s would not be forgotten: it is %s; drain it first, then stop it",
                       w->name, w->state);
    if (has->chunks)
        return ctl_say(CTL_STATE,
                       "%s would not be forgotten: %" PRIu64 " chunks of %" PRIu64
                       " sessions have no other copy",
                       w->name, has->chunks, has->sessions);
    if (w->quarantined_sessions)
        return ctl_say(CTL_STATE, "%s would not be forgotten: it holds %" PRIu64 " sessions in quarantine",
                       w->name, w->quarantined_sessions);
    if (has->sessions)
        return ctl_say(CTL_STATE,
                       "%s would not be forgotten now: %" PRIu64 " sessions are still releasing it", w->name,
                       has->sessions);
    return CTL_OK;
}

// Where it is a dry run, or the user is asked. One that would be refused is not asked about.
static bool forget_may(struct ctl *ctl, const char *name, enum ctl_exit *exit_code)
{
    banyan_cluster_info info;
    banyan_drain has;
    banyan_error error;
    char words[256];
    if (banyan_worker_get_drain(ctl->client, name, &has, &error) != BANYAN_OK) {
        *exit_code = say_not_found(&error, name);
        return false;
    }
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK) {
        *exit_code = ctl_fail(&error);
        return false;
    }
    const banyan_worker_info *w = NULL;
    for (uint32_t i = 0; i < info.n_workers && !w; i++)
        w = strcmp(info.workers[i].name, name) == 0 ? &info.workers[i] : NULL;
    *exit_code = w ? forget_refused(w, &has)
                   : ctl_say(CTL_NOT_FOUND, "there is no worker '%s': 'banyanctl workers' lists them", name);
    bool may = *exit_code == CTL_OK;
    if (may) {
        snprintf(words, sizeof words, "remove worker %s%s%s, which holds nothing, from the list", name,
                 w->host[0] ? " of host " : "", w->host);
        may = ctl_careful_may(ctl, &careful, words,
                              json_pack("{s:s, s:s, s:s}", "action", "worker forget", "worker", name, "host",
                                        w->host),
                              exit_code);
    }
    banyan_cluster_info_free(&info);
    return may;
}

static enum ctl_exit forget(struct ctl *ctl, const char *name)
{
    banyan_error error;
    enum ctl_exit exit_code;
    if (ctl_careful_speaks(&careful) && !forget_may(ctl, name, &exit_code))
        return exit_code;
    if (banyan_worker_forget(ctl->client, name, &error) != BANYAN_OK) {
        if (error.code == BANYAN_FAILED_PRECONDITION || error.code == BANYAN_ABORTED)
            return ctl_say(CTL_STATE, "%s is not forgotten: %s", name, error.message);
        return say_not_found(&error, name);
    }
    if (ctl->json)
        ctl_print_json(json_pack("{s:s}", "forgotten", name));
    else
        printf("%s is forgotten; a worker that joins under this name is a new one\n", name);
    return CTL_OK;
}

// Each of them by itself: one that must stay says why, and the others go.
static enum ctl_exit forget_lost(struct ctl *ctl)
{
    banyan_cluster_info info;
    banyan_error error;
    enum ctl_exit exit_code = CTL_OK;
    uint32_t n = 0;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    if (info.restricted)
        exit_code = ctl_fail_restricted(&info, "worker forget");
    for (uint32_t i = 0; i < info.n_workers; i++) {
        if (strcmp(info.workers[i].state, "lost") != 0)
            continue;
        enum ctl_exit one = forget(ctl, info.workers[i].name);
        exit_code = exit_code == CTL_OK ? one : exit_code;
        n++;
    }
    if (!n && exit_code == CTL_OK)
        fprintf(stderr, "no worker is lost\n");
    banyan_cluster_info_free(&info);
    return exit_code;
}

static enum ctl_exit check_forget(int n_args, char **args)
{
    (void)args;
    if (given.lost == (n_args == 1))
        return ctl_say(CTL_USAGE, "worker forget: give a worker, or --lost for all that are lost");
    return CTL_OK;
}

static enum ctl_exit run_forget(struct ctl *ctl, int n_args, char **args)
{
    return n_args ? forget(ctl, args[0]) : forget_lost(ctl);
}

// ---- rebalance --------------------------------------------------------------------------------------------

static struct { // of the balance that is waited for
    uint64_t chunks, bytes;
    uint64_t chunks_before, bytes_before; // that had moved
    uint64_t moved;
    uint64_t term; // of the coordinator before it was asked
} balance;

static enum ctl_exit look_at_balance(struct ctl *ctl, const char *name, struct ctl_wait_left *left)
{
    banyan_cluster_info info;
    banyan_error error;
    (void)name;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    uint64_t bytes = info.moved_bytes - balance.bytes_before;
    bool same = info.term == balance.term; // else the counts start over
    balance.moved = info.moved_chunks - balance.chunks_before;
    left->over = !info.wished_chunks && !info.moves;
    left->chunks = balance.moved < balance.chunks ? balance.chunks - balance.moved : 0;
    left->bytes = bytes < balance.bytes ? balance.bytes - bytes : 0;
    if (info.wished_chunks && !info.moves)
        snprintf(left->stuck, sizeof left->stuck,
                 "no chunk can move now: their sessions lack copies, or have attached rows that are not "
                 "committed");
    banyan_cluster_info_free(&info);
    return same ? CTL_OK : ctl_wait_same_term(ctl, balance.term, "rebalance");
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
        printf("nothing to move: load already matches worker speed, or the remaining chunks are already "
               "moving\n");
    else
        printf("%" PRIu64 " chunks (%s) %s\n", b->chunks, common_format_bytes(b->bytes, bytes, sizeof bytes),
               given.dry_run     ? "would move"
               : given.wait.wait ? "were planned"
                                 : "are moving");
    if (given.wait.wait && !given.dry_run && b->chunks)
        printf("%" PRIu64 " chunks moved\n", balance.moved);
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
    balance.term = before.term;
    banyan_cluster_info_free(&before);
    if (banyan_rebalance(ctl->client, given.dry_run, &plan, &error) != BANYAN_OK)
        return ctl_fail(&error);
    balance.chunks = plan.chunks;
    balance.bytes = plan.bytes;
    if (given.wait.wait && !given.dry_run)
        exit_code = ctl_wait(ctl, "the rebalance", "still moving", "", &given.wait, look_at_balance);
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
    return ctl_wait_check(&given.wait);
}

static enum ctl_exit check_drain(int n_args, char **args)
{
    if (given.reason && strlen(given.reason) > 128)
        return ctl_say(CTL_USAGE, "--reason has at most 128 bytes");
    return check_wait(n_args, args);
}

static const struct common_option drain_options[] = {
    {"reason", 'r', COMMON_OPTION_STRING, &given.reason, "TEXT",
     "Reason, shown by 'banyanctl workers': at most 128 bytes. Default: none.", 0, 0},
    CTL_WAIT_OPTIONS(given.wait, ""),
    {0},
};

static const struct common_option cordon_options[] = {
    {"reason", 'r', COMMON_OPTION_STRING, &given.reason, "TEXT",
     "Reason, shown by 'banyanctl workers': at most 128 bytes. Default: none.", 0, 0},
    {0},
};

static const struct common_option forget_options[] = {
    {"lost", 0, COMMON_OPTION_FLAG, &given.lost, NULL, "All workers that are lost.", 0, 0},
    CTL_CAREFUL_OPTIONS(careful),
    {0},
};

static const struct common_option rebalance_options[] = {
    {"dry-run", 'n', COMMON_OPTION_FLAG, &given.dry_run, NULL, "Only show what would move.", 0, 0},
    CTL_WAIT_OPTIONS(given.wait, ""),
    {0},
};

const struct ctl_command ctl_worker_commands[] = {
    {"worker drain", "WORKER", "take a worker out of use: its chunks move to others",
     "Moves a worker's chunks to other workers while their sessions stay in use, and gives it no new ones. "
     "Once it has\n"
     "none it can be stopped without loss. It stays drained, even after a restart, until 'worker resume'.",
     drain_options, 1, 1, run_drain, check_drain},
    {"worker cordon", "WORKER", "give a worker no new chunks",
     "The worker gets no new chunks, also no copies of lost ones, and takes no part in a rebalance. What it "
     "has "
     "stays and is\n"
     "served, and sessions go on appending to its chunks that are not full. It stays so until 'worker "
     "uncordon'.",
     cordon_options, 1, 1, run_cordon, check_drain},
    {"worker uncordon", "WORKER", "give a cordoned worker new chunks again", "The same as 'worker resume'.",
     NULL, 1, 1, run_resume, NULL},
    {"worker resume", "WORKER", "put a drained or cordoned worker back into use",
     "The worker gets new chunks again. Chunks that have moved away stay there until 'rebalance'.", NULL, 1,
     1, run_resume, NULL},
    {"worker forget", "[WORKER]", "remove lost workers from the list",
     "Removes a worker that is lost and will not return, so that 'workers' no longer lists it. Refused while "
     "it is connected\n"
     "or has the only copy of a chunk, so nothing is lost.",
     forget_options, 0, 1, run_forget, check_forget},
    {"rebalance", "", "move chunks so that load matches worker speed",
     "Plans which chunks should move, from the workers' speeds and what they hold now, and moves them while "
     "sessions stay\n"
     "in use. A new rebalance replaces the plan. --dry-run shows it.",
     rebalance_options, 0, 0, run_rebalance, check_wait},
    {0},
};
