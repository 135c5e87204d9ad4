// SPDX-License-Identifier: Apache-2.0
// Commands for scripts: wait ready|workers|drained|whole. They look again and again until it is so, also
// while nothing answers at the coordinator's endpoint: it may be starting, or another one may be taking over.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/wait.h"
#include "common/base/clock.h"

#define LOOK_NS       (200 * COMMON_NS_PER_MS)
#define LOOKS_TO_TELL 10 // that have failed in the same way, before that is reported outside a status line
#define CALL_LEAST_NS COMMON_NS_PER_S

struct until_seen {        // by one look
    bool over;             // it is so
    enum ctl_exit refused; // it never will be, and `now` says why; OK: it may
    char now[448];         // how it is now
};

// Asks the cluster. What the calls say is returned, and the wait goes on without an answer.
typedef banyan_code (*until_fn)(struct ctl *ctl, const char *arg, struct until_seen *seen,
                                banyan_error *error);

static uint64_t limit_ns = UINT64_MAX; // --timeout; none was given
static uint64_t workers_wanted;        // of wait workers, from check_workers

// ---- the wait ---------------------------------------------------------------------------------------------

struct until_line { // on stderr
    bool terminal;
    unsigned fails; // looks in a row without an answer
    bool told;
};

static void line_show(struct until_line *line, const struct until_seen *seen, bool answered)
{
    line->fails = answered ? 0 : line->fails + 1;
    line->told = line->told && !answered;
    if (line->terminal) {
        fprintf(stderr, "\r\033[Kwaiting: %.110s", seen->now);
        fflush(stderr);
    } else if (line->fails >= LOOKS_TO_TELL && !line->told) {
        ctl_say(CTL_OK, "waiting: %s", seen->now);
        line->told = true;
    }
}

static void line_end(const struct until_line *line)
{
    if (line->terminal)
        fputs("\r\033[K", stderr);
}

// No answer, or not in time: that may change.
static bool may_pass(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED;
}

static void pause_look(uint64_t left_ns)
{
    uint64_t ns = left_ns < LOOK_NS ? left_ns : LOOK_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static enum ctl_exit print_end(const struct ctl *ctl, const struct until_seen *seen, uint64_t waited_ns)
{
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:o}", "now", seen->now, "waited_ns", ctl_json_u64(waited_ns)));
    else
        printf("%s\n", seen->now);
    return CTL_OK;
}

static enum ctl_exit until(struct ctl *ctl, const char *arg, until_fn look)
{
    struct until_line line = {.terminal = isatty(STDERR_FILENO) && !ctl->json};
    uint64_t limit = limit_ns != UINT64_MAX ? limit_ns : ctl->limit_ns, began_ns = common_clock_ns();
    if (limit < ctl->timeout_ns) // what --timeout is to other commands, it is not here
        ctl->timeout_ns = limit > CALL_LEAST_NS ? limit : CALL_LEAST_NS;
    for (;;) {
        struct until_seen seen = {.refused = CTL_OK};
        banyan_error error = {0};
        banyan_code code = ctl->client ? BANYAN_OK : ctl_connect(ctl, &error);
        if (code == BANYAN_OK)
            code = look(ctl, arg, &seen, &error);
        uint64_t waited_ns = common_clock_ns() - began_ns;
        if (may_pass(code))
            snprintf(seen.now, sizeof seen.now, "%s", error.message);
        else if (code != BANYAN_OK || seen.over || seen.refused != CTL_OK) {
            line_end(&line);
            return !ctl->client             ? ctl_connect_fail(&error)
                   : code != BANYAN_OK      ? ctl_fail(&error)
                   : seen.refused != CTL_OK ? ctl_say(seen.refused, "%s", seen.now)
                                            : print_end(ctl, &seen, waited_ns);
        }
        line_show(&line, &seen, code == BANYAN_OK);
        if (waited_ns >= limit) {
            char text[32];
            line_end(&line);
            return ctl_say(CTL_TIMEOUT, "not %s%s: %s", limit ? "within " : "now",
                           limit ? common_format_ns(limit, text, sizeof text) : "", seen.now);
        }
        pause_look(limit - waited_ns);
    }
}

// ---- what is waited for -----------------------------------------------------------------------------------

static uint32_t count_state(const banyan_cluster_info *info, const char *state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < info->n_workers; i++)
        n += strcmp(info->workers[i].state, state) == 0;
    return n;
}

static const char *are(uint64_t n, const char *one, const char *many)
{
    return n == 1 ? one : many;
}

// As the coordinator's /readyz has it: it serves, and a worker is active.
static banyan_code look_ready(struct ctl *ctl, const char *arg, struct until_seen *seen, banyan_error *error)
{
    (void)arg;
    banyan_cluster_info info;
    banyan_code code = banyan_cluster_get_info(ctl->client, &info, error);
    if (code != BANYAN_OK)
        return code;
    uint32_t active = count_state(&info, "active");
    seen->over = info.readiness[0] ? strcmp(info.readiness, "ready") == 0 : active > 0; // an older build
    if (info.restricted)
        snprintf(seen->now, sizeof seen->now,
                 seen->over ? "the cluster is ready" : "the cluster is not ready: %s", info.readiness);
    else
        snprintf(seen->now, sizeof seen->now, "the coordinator is serving, and %u of %u %s active", active,
                 info.n_workers, are(info.n_workers, "worker is", "workers are"));
    banyan_cluster_info_free(&info);
    return BANYAN_OK;
}

static banyan_code look_workers(struct ctl *ctl, const char *arg, struct until_seen *seen,
                                banyan_error *error)
{
    (void)arg;
    banyan_cluster_info info;
    banyan_code code = banyan_cluster_get_info(ctl->client, &info, error);
    if (code != BANYAN_OK)
        return code;
    uint32_t active = count_state(&info, "active");
    if (info.restricted) {
        seen->refused = CTL_PERMISSION;
        snprintf(seen->now, sizeof seen->now,
                 "a token of the access '%s' does not show workers: 'banyanctl wait ready' waits until the "
                 "cluster is ready",
                 info.access);
        banyan_cluster_info_free(&info);
        return BANYAN_OK;
    }
    seen->over = active >= workers_wanted;
    snprintf(seen->now, sizeof seen->now, "%u %s active", active, are(active, "worker is", "workers are"));
    if (!seen->over)
        snprintf(seen->now, sizeof seen->now, "%u of %" PRIu64 " workers are active", active, workers_wanted);
    banyan_cluster_info_free(&info);
    return BANYAN_OK;
}

static banyan_code look_drained(struct ctl *ctl, const char *worker, struct until_seen *seen,
                                banyan_error *error)
{
    static struct ctl_drain_seen drain;
    char bytes[32];
    banyan_code code = banyan_worker_get_drain(ctl->client, worker, &drain.now, error);
    if (code == BANYAN_NOT_FOUND) {
        seen->refused = CTL_NOT_FOUND;
        snprintf(seen->now, sizeof seen->now, "there is no worker '%.64s': 'banyanctl workers' lists them",
                 worker);
        return BANYAN_OK;
    }
    if (code != BANYAN_OK)
        return code;
    if (!drain.now.draining) {
        seen->refused = CTL_STATE;
        snprintf(seen->now, sizeof seen->now, "%s is not drained: 'banyanctl worker drain %s' starts that",
                 worker, worker);
    } else if (ctl_drain_over(&drain)) {
        seen->over = true;
        snprintf(seen->now, sizeof seen->now, "%s is drained: it has no chunks and can be stopped", worker);
    } else {
        snprintf(seen->now, sizeof seen->now, "%s has %" PRIu64 " chunks (%s) of %" PRIu64 " sessions%s%s",
                 worker, drain.now.chunks, common_format_bytes(drain.now.bytes, bytes, sizeof bytes),
                 drain.now.sessions, drain.now.stuck[0] ? "; " : "", drain.now.stuck);
    }
    return BANYAN_OK;
}

// Of those that are neither degraded nor unavailable a session has all its copies, and they serve.
static banyan_code count_sessions(struct ctl *ctl, uint32_t *degraded, uint32_t *unavailable,
                                  banyan_error *error)
{
    banyan_session_list list;
    banyan_code code = banyan_session_get_list(ctl->client, &list, error);
    if (code != BANYAN_OK)
        return code;
    for (uint32_t i = 0; i < list.n; i++) {
        *degraded += strcmp(list.sessions[i].state, "degraded") == 0;
        *unavailable += strcmp(list.sessions[i].state, "unavailable") == 0;
    }
    banyan_session_list_free(&list);
    return BANYAN_OK;
}

// The list of sessions may be long: it is asked for when all else is right.
static banyan_code look_whole(struct ctl *ctl, const char *arg, struct until_seen *seen, banyan_error *error)
{
    (void)arg;
    banyan_cluster_info info;
    uint32_t degraded = 0, unavailable = 0;
    banyan_code code = banyan_cluster_get_info(ctl->client, &info, error);
    if (code != BANYAN_OK)
        return code;
    static const char own[] = " of the chunks of this tenant's sessions";
    bool restricted = info.restricted;
    uint64_t thin = info.thin_chunks;
    uint32_t unsure = count_state(&info, "joining") + count_state(&info, "suspect");
    banyan_cluster_info_free(&info);
    if (thin || unsure) {
        snprintf(seen->now, sizeof seen->now,
                 "%" PRIu64 " %s too few copies; workers that are joining or have just lost their link: %u",
                 thin, are(thin, "chunk has", "chunks have"), unsure);
        return BANYAN_OK;
    }
    code = count_sessions(ctl, &degraded, &unavailable, error);
    if (code != BANYAN_OK)
        return code;
    seen->over = !degraded && !unavailable;
    if (seen->over)
        snprintf(seen->now, sizeof seen->now, "all copies are present%s", restricted ? own : "");
    else
        snprintf(
            seen->now, sizeof seen->now,
            "%u %s degraded, and %u unavailable: 'banyanctl sessions' and 'banyanctl workers' show which",
            degraded, are(degraded, "session is", "sessions are"), unavailable);
    return BANYAN_OK;
}

// ---- the table --------------------------------------------------------------------------------------------

static enum ctl_exit run_ready(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return until(ctl, NULL, look_ready);
}

static enum ctl_exit run_workers(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return until(ctl, NULL, look_workers);
}

static enum ctl_exit run_drained(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    return until(ctl, args[0], look_drained);
}

static enum ctl_exit run_whole(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    return until(ctl, NULL, look_whole);
}

static enum ctl_exit check_workers(int n_args, char **args)
{
    (void)n_args;
    if (common_parse_u64(args[0], &workers_wanted) == COMMON_OK && workers_wanted && workers_wanted <= 4096)
        return CTL_OK;
    return ctl_say(CTL_USAGE, "'%.40s' is not a number of workers, 1 to 4096", args[0]);
}

static const struct common_option until_options[] = {
    {"timeout", 0, COMMON_OPTION_DURATION, &limit_ns, "TIME",
     "Total time to wait before exiting with 6; 0: check once. Default: no limit.", 0, 0},
    {0},
};

const struct ctl_command ctl_until_commands[] = {
    {"wait ready", "", "wait until the coordinator serves and a worker is active",
     "Returns when the coordinator serves and at least one worker is active, that is, when its /readyz "
     "reports\n"
     "ready. It may be started after this command.",
     until_options, 0, 0, run_ready, NULL},
    {"wait workers", "N", "wait until N workers are active",
     "Returns when at least N workers are active, including draining ones.", until_options, 1, 1, run_workers,
     check_workers},
    {"wait drained", "WORKER", "wait until a draining worker can be stopped",
     "Returns when a worker has no chunks left and can be stopped without loss. 'worker drain' starts that; "
     "without\n"
     "it, this exits with 9.",
     until_options, 1, 1, run_drained, NULL},
    {"wait whole", "", "wait until all chunks have all their copies",
     "Returns when no chunk has too few copies, no session is degraded or unavailable, and no worker is "
     "joining or\n"
     "has just lost its link: the cluster then survives the next loss of a worker.\n"
     "If all copies of a chunk are lost, it never returns: give --timeout.",
     until_options, 0, 0, run_whole, NULL},
    {0},
};
