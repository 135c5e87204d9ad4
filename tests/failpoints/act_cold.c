// SPDX-License-Identifier: Apache-2.0
// A session that takes more than the workers' memory: its rows leave it for their files, and come back when a
// step reads them.
#include <string.h>

#include "common/base/clock.h"
#include "tests/e2e/support.h"
#include "tests/failpoints/act.h"

enum {
    LAYERS = 4,
    TOKENS = 448,
    PIECE = 64
}; // a token takes 2 KiB in each layer: one layer has room, not all

#define CALL_NS (5 * COMMON_NS_PER_S)

static bool passes(banyan_code code)
{
    return code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_ABORTED ||
           code == BANYAN_RESOURCE_EXHAUSTED ||
           (code == BANYAN_FAILED_PRECONDITION && ERR->reason == BANYAN_REASON_HOLE);
}

static banyan_code attach(banyan_session *session, const struct context *c, uint32_t layer, uint64_t first)
{
    banyan_code code = context_attach(session, c, layer, first, PIECE, ERR);
    return code == BANYAN_OK ? banyan_commit(session, layer, first, PIECE, ERR) : code;
}

static bool fill(struct act *act, banyan_session *session, const struct context *c)
{
    uint64_t until = act_until();
    for (uint64_t n = 0; n < LAYERS * TOKENS / PIECE;) { // all layers of some tokens, which makes chunks full
        banyan_code code = attach(session, c, n % LAYERS, n / LAYERS * PIECE);
        n += code == BANYAN_OK;
        if (code != BANYAN_OK && (!passes(code) || act_out_of_time(until)))
            return act_wrong(act, "an attach: %s: %s", banyan_code_name(code), ERR->message);
        if (!act->mend())
            return act_wrong(act, "a daemon does not come back");
        if (code != BANYAN_OK)
            support_sleep_ms(50); // until more is sealed, and may leave memory
    }
    return true;
}

static bool read_all(struct act *act, banyan_session *session, const struct context *c)
{
    uint64_t until = act_until();
    for (uint32_t n = 0; n < 2 * LAYERS;) { // each layer drives another one out
        uint64_t at = TOKENS - 1 - n;
        struct step step = {.session = session,
                            .layer = n % LAYERS,
                            .first = at,
                            .rows = 1,
                            .seed = n,
                            .timeout_ns = CALL_NS};
        banyan_code code = step_run(script_client(act->script), &step);
        bool right = code != BANYAN_OK || context_agrees(c, step.layer, at, 1, 0, step.made_q, step.o,
                                                         step.lse, ERR->message, sizeof(ERR->message));
        step_free(&step);
        if (!right)
            return act_wrong(act, "a wrong answer: %s", ERR->message);
        n += code == BANYAN_OK;
        if (code != BANYAN_OK && (!passes(code) || act_out_of_time(until)))
            return act_wrong(act, "a step: %s: %s", banyan_code_name(code), ERR->message);
        if (!act->mend())
            return act_wrong(act, "a daemon does not come back");
    }
    return true;
}

// Each chunk has its copies: some were placed while a worker was away.
static bool wait_whole(struct act *act, banyan_session *session)
{
    for (uint64_t until = act_until(); !act_out_of_time(until); support_sleep_ms(20)) {
        banyan_session_info info;
        if (!act->mend())
            return act_wrong(act, "a daemon does not come back");
        if (banyan_session_get_info(session, &info, ERR) != BANYAN_OK)
            continue;
        bool whole = strcmp(info.state, "degraded") != 0;
        banyan_session_info_free(&info);
        if (whole)
            return true;
    }
    return act_wrong(act, "the session does not get its copies back");
}

static bool damage(struct act *act, banyan_session *session, const struct context *c)
{
    return wait_whole(act, session) && script_wait_whole(act->script) &&
           (act_flip_files(act) > 0 || act_wrong(act, "the worker has no files")) &&
           read_all(act, session, c);
}

bool act_cold(struct act *act)
{
    banyan_spec spec = {.layers = LAYERS,
                        .q_heads = 4,
                        .kv_heads = 1,
                        .k_dim = 256,
                        .v_dim = 256,
                        .kv_type = BANYAN_F32,
                        .chunk_tokens = SCRIPT_CHUNK,
                        .members = 3,
                        .replicas = act->replicas};
    struct context c;
    banyan_session *session;
    context_init(&c, &spec, TOKENS);
    context_random(&c, 0, TOKENS, 5);
    act->arm();
    bool ok = banyan_session_create(script_client(act->script), &spec, "cold", &session, ERR) == BANYAN_OK;
    if (!ok)
        act_wrong(act, "a create: %s", ERR->message);
    ok = ok && fill(act, session, &c) && read_all(act, session, &c) && read_all(act, session, &c);
    if (ok && act->replicas > 1)
        ok = damage(act, session, &c);
    ok = ok && (script_drop(act->script, "cold") || act_wrong(act, "%s", script_wrong(act->script)));
    context_free(&c);
    return ok;
}
