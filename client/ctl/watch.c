// SPDX-License-Identifier: Apache-2.0
// session mass, session trace: watching a session, and the commands' options.
#include <langinfo.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/watch.h"
#include "common/base/clock.h"

#define STEPS_MAX 64
#define BINS_MAX  1024

struct ctl_watch_options ctl_watch_given = {.layer = UINT64_MAX, .wait_ns = 5 * COMMON_NS_PER_S};

void ctl_watch_end(struct ctl_seen *seen)
{
    banyan_watch_free(&seen->watch);
    banyan_session_close(seen->session);
}

static uint32_t steps_of_a_token(const banyan_spec *spec)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < spec->layers; l++)
        n += spec->n_kinds == 0 || spec->layer_kind[l] != BANYAN_LAYER_LOCAL;
    return n;
}

static uint32_t most_heads(const banyan_spec *spec)
{
    uint32_t most = spec->n_kinds ? 1 : spec->q_heads;
    for (uint32_t i = 0; i < spec->n_kinds; i++)
        most = spec->kinds[i].q_heads > most ? spec->kinds[i].q_heads : most;
    return most;
}

enum ctl_exit ctl_watch_look(struct ctl *ctl, const char *name, uint32_t bins, struct ctl_seen *out)
{
    banyan_error error;
    char wait[32];
    enum ctl_exit exit_code = ctl_session_open(ctl, name, &out->session);
    if (exit_code != CTL_OK)
        return exit_code;
    out->spec = banyan_session_spec(out->session);
    uint64_t layers = ctl_watch_given.layer == UINT64_MAX ? steps_of_a_token(out->spec) : 1;
    banyan_watch_options options = {
        .steps = (uint32_t)(ctl_watch_given.steps ? ctl_watch_given.steps
                            : layers < STEPS_MAX  ? layers
                                                  : STEPS_MAX),
        .wait_ns = ctl_watch_given.wait_ns,
        .all_layers = ctl_watch_given.layer == UINT64_MAX,
        .layer = (uint32_t)ctl_watch_given.layer,
        .trace = bins == 0,
        .mass_bins = bins,
        .mass_per_head = ctl_watch_given.heads,
    };
    if (ctl_watch_given.heads && !ctl_watch_given.steps)
        options.steps = 1;
    if (ctl_watch_given.heads && bins > 65536 / most_heads(out->spec))
        options.mass_bins = 65536 / most_heads(out->spec);
    if (banyan_session_watch(out->session, &options, &out->watch, &error) != BANYAN_OK)
        exit_code = ctl_fail(&error);
    else if (out->watch.n == 0)
        exit_code = ctl_say(CTL_TIMEOUT,
                            "no step of session %s arrived within %s, and no matching step is kept\n"
                            "  steps are kept only while watched: try again while the session is in use, or "
                            "with a longer --wait",
                            name, common_format_ns(ctl_watch_given.wait_ns, wait, sizeof wait));
    if (exit_code != CTL_OK)
        ctl_watch_end(out);
    return exit_code;
}

json_t *ctl_watch_step_json(const banyan_watched_step *s)
{
    return json_pack("{s:o, s:i, s:o, s:i, s:o, s:b, s:o, s:i, s:o}", "step", ctl_json_u64(s->step), "layer",
                     (int)s->layer, "first", ctl_json_u64(s->first), "rows", (int)s->rows, "visible",
                     ctl_json_u64(s->visible), "append", s->append, "age_ns", ctl_json_u64(s->age_ns),
                     "attempts", (int)s->attempts, "missing", ctl_json_u64(s->missing));
}

bool ctl_watch_utf8(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

#define STEPS_OPTION                                                                                         \
    {                                                                                                        \
        "steps", 'n', COMMON_OPTION_U64, &ctl_watch_given.steps, "N",                                        \
            "Number of steps; a step is one layer's attention call. Default: one per layer.", 1, STEPS_MAX   \
    }
#define LAYER_OPTION                                                                                         \
    {                                                                                                        \
        "layer", 'l', COMMON_OPTION_U64, &ctl_watch_given.layer, "N", "Only this layer. Default: all.", 0,   \
            1023                                                                                             \
    }
#define WAIT_OPTION                                                                                          \
    {                                                                                                        \
        "wait", 'w', COMMON_OPTION_DURATION, &ctl_watch_given.wait_ns, "TIME",                               \
            "How long to wait for new steps before showing kept ones. Default: 5s.", 0, 50 * COMMON_NS_PER_S \
    }

static const struct common_option mass_options[] = {
    STEPS_OPTION,
    LAYER_OPTION,
    {"heads", 0, COMMON_OPTION_FLAG, &ctl_watch_given.heads, NULL,
     "Show each query head separately, for one step unless --steps is given.", 0, 0},
    {"bins", 'b', COMMON_OPTION_U64, &ctl_watch_given.bins, "N",
     "Most parts to divide the context into. Default: what the terminal shows.", 1, BINS_MAX},
    WAIT_OPTION,
    {0},
};

static const struct common_option trace_options[] = {
    STEPS_OPTION,
    LAYER_OPTION,
    {"each", 0, COMMON_OPTION_FLAG, &ctl_watch_given.each, NULL, "Show each step instead of their mean.", 0,
     0},
    WAIT_OPTION,
    {0},
};

const struct ctl_command ctl_watch_commands[] = {
    {"session mass", "SESSION", "show which parts of the context recent steps attended to",
     "Draws the attention mass over the context for the session's next steps or, if none arrive in time, for "
     "the last ones\n"
     "that were watched or whose client requested it. The session's client is not affected: workers compute "
     "the masses\n"
     "beside the steps.",
     mass_options, 1, 1, ctl_run_mass, NULL},
    {"session trace", "SESSION", "show where the time of recent steps went",
     "Draws the tree of workers with the time that each spent waiting for its turn (queue), computing, and "
     "waiting for its\n"
     "children, for the session's next steps or, if none arrive in time, for the last ones that were watched "
     "or whose\n"
     "client requested it.",
     trace_options, 1, 1, ctl_run_trace, NULL},
    {0},
};
