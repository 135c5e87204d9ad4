// SPDX-License-Identifier: Apache-2.0
// A session with a window forgets what that has left behind: its floor rises while it is stepped. A floor
// that was stored does not fall, also after the death of the coordinator, and workers give memory back no
// matter which coordinator sent them the floor.
#include <signal.h>

#include "common/base/clock.h"
#include "tests/e2e/support.h"
#include "tests/failpoints/act.h"

enum { TOKENS = 240, WINDOW = 20, MARGIN = 24 };

#define CALL_NS (5 * COMMON_NS_PER_S)

static bool passes(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_ABORTED;
}

// Each row once: one that had no answer is sent again.
static bool append_all(struct act *act, banyan_session *session, const struct context *c)
{
    uint64_t until = act_until();
    for (uint64_t p = 0; p < TOKENS;) {
        struct step step = {.session = session, .first = p, .rows = 1, .seed = p, .timeout_ns = CALL_NS};
        step_append(&step, c);
        banyan_code code = step_run(script_client(act->script), &step);
        bool right = code != BANYAN_OK || context_agrees(c, 0, p, 1, 0, step.made_q, step.o, step.lse,
                                                         ERR->message, sizeof(ERR->message));
        step_free(&step);
        if (!right)
            return act_wrong(act, "a wrong answer: %s", ERR->message);
        p += code == BANYAN_OK;
        if (code != BANYAN_OK && (!passes(code) || act_out_of_time(until)))
            return act_wrong(act, "a step: %s: %s", banyan_code_name(code), ERR->message);
        if (!act->mend())
            return act_wrong(act, "a daemon does not come back");
    }
    return true;
}

// What the session says of itself: its floor, and the bytes that workers hold.
static bool look(struct act *act, banyan_session *session, uint64_t *floor, uint64_t *bytes)
{
    for (uint64_t until = act_until(); !act_out_of_time(until); support_sleep_ms(10)) {
        banyan_session_info info;
        if (!act->mend())
            return act_wrong(act, "a daemon does not come back");
        if (banyan_session_get_info(session, &info, ERR) != BANYAN_OK)
            continue;
        *floor = info.forgotten;
        *bytes = info.bytes;
        banyan_session_info_free(&info);
        return true;
    }
    return act_wrong(act, "the session does not say how much it holds");
}

static bool has_forgotten(struct act *act, banyan_session *session, const struct context *c)
{
    uint64_t floor, later, bytes, all = (uint64_t)act->replicas * TOKENS * (c->k_row + c->v_row);
    if (!look(act, session, &floor, &bytes))
        return false;
    if (floor < TOKENS / 2)
        return act_wrong(act, "the floor is at %d of %d tokens", (int)floor, TOKENS);
    harness_cluster_signal(act->cluster, HARNESS_COORDINATOR, SIGKILL);
    for (uint64_t until = act_until();; support_sleep_ms(50)) {
        if (!look(act, session, &later, &bytes))
            return false;
        if (later < floor)
            return act_wrong(act, "the floor was at %d and is at %d", (int)floor, (int)later);
        if (bytes < all / 2)
            return true;
        if (act_out_of_time(until))
            return act_wrong(act, "%d bytes are held of what was forgotten", (int)bytes);
    }
}

bool act_forget(struct act *act)
{
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 2,
                              .kv_heads = 1,
                              .k_dim = 16,
                              .v_dim = 16,
                              .kv_type = BANYAN_F32,
                              .window = WINDOW,
                              .forget = MARGIN,
                              .chunk_tokens = SCRIPT_CHUNK,
                              .members = 3,
                              .replicas = act->replicas};
    struct context c;
    banyan_session *session;
    if (banyan_session_create(script_client(act->script), &spec, "window", &session, ERR) != BANYAN_OK)
        return act_wrong(act, "a create: %s", ERR->message);
    context_init(&c, &spec, TOKENS);
    context_random(&c, 0, TOKENS, 6);
    act->arm();
    bool ok = append_all(act, session, &c) && has_forgotten(act, session, &c);
    banyan_session_close(session);
    ok = ok && (script_drop(act->script, "window") || act_wrong(act, "%s", script_wrong(act->script)));
    context_free(&c);
    return ok;
}
