// SPDX-License-Identifier: Apache-2.0
// One session: its shape, its layers' lengths, and who holds which of its tokens.
//
// Chunks go round the members, so a long context has as many ranges as chunks. An answer has some RANGES at
// most: gaps of a worker that are narrower than `grain` tokens are closed, 0 where the ranges are exact. What
// lies on a screen's pixel is right in any case.
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/dashboard/ask.h"
#include "coordinator/session/session.h"
#include "proto/model/spec.h"

#define RANGES 4096

struct lane { // of one worker
    struct coordinator_worker *w;
    uint64_t tokens, chunks; // that it serves
    struct run {
        uint64_t first, end;
        json_t *ranges; // [first, count] …
    } serves, follows;
};

struct sweep {
    uint64_t grain;
    uint32_t n;
    struct lane *lanes; // [n]
    uint32_t *of;       // by worker's slot: lane + 1
    struct run lost;
    uint64_t sealed, thin;
};

static void run_end(struct run *run)
{
    if (run->end > run->first)
        json_array_append_new(run->ranges, json_pack("[o, o]", coordinator_dashboard_u64(run->first),
                                                     coordinator_dashboard_u64(run->end - run->first)));
    run->first = run->end = 0;
}

static void run_add(struct run *run, uint64_t first, uint64_t end, uint64_t grain)
{
    if (run->end > run->first && first > run->end + grain)
        run_end(run);
    if (run->end == run->first)
        run->first = first;
    run->end = end;
}

static struct lane *lane_of(struct sweep *sweep, struct coordinator_worker *w, uint32_t most)
{
    uint32_t *at = &sweep->of[w->slot];
    if (!*at && sweep->n == most) // a holder is a member
        return NULL;
    if (!*at) {
        sweep->lanes[sweep->n] =
            (struct lane){.w = w, .serves = {.ranges = json_array()}, .follows = {.ranges = json_array()}};
        *at = ++sweep->n;
    }
    return &sweep->lanes[*at - 1];
}

static void sweep_chunk(struct sweep *sweep, const struct coordinator_session *s,
                        const struct coordinator_chunk *chunk, uint64_t end_of_all)
{
    uint64_t first = (uint64_t)chunk->index * s->layout.chunk_tokens, end = first + s->layout.chunk_tokens;
    end = end < end_of_all ? end : end_of_all;
    sweep->sealed += chunk->seal != 0;
    if (end <= first) // placed ahead: no rows yet
        return;
    if (chunk->lost) {
        run_add(&sweep->lost, first, end, sweep->grain);
        return;
    }
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        struct lane *lane = lane_of(sweep, coordinator_chunk_holder(chunk, i), s->n_members);
        if (!lane)
            continue;
        run_add(i ? &lane->follows : &lane->serves, first, end, sweep->grain);
        lane->tokens += i ? 0 : end - first;
        lane->chunks += i == 0;
    }
}

// [{worker, state, tokens, chunks, serves, follows}], by their first chunk.
static json_t *holders_json(struct sweep *sweep, const struct coordinator_session *s)
{
    uint64_t end = coordinator_session_end(s);
    sweep->lanes = coordinator_alloc((s->n_members + 1) * sizeof(*sweep->lanes));
    sweep->of = coordinator_alloc((s->sessions->cluster->n_workers + 1) * sizeof(*sweep->of));
    sweep->lost.ranges = json_array();
    if (s->layout.n > RANGES / 2)
        sweep->grain = end / RANGES * (s->n_members + 1);
    for (uint32_t i = 0; i < s->layout.n; i++)
        sweep_chunk(sweep, s, &s->layout.chunks[i], end);
    json_t *holders = json_array();
    for (uint32_t i = 0; i < sweep->n; i++) {
        struct lane *lane = &sweep->lanes[i];
        run_end(&lane->serves);
        run_end(&lane->follows);
        json_array_append_new(holders, json_pack("{s:o, s:b, s:o, s:o, s:o, s:o}", "worker",
                                                 coordinator_dashboard_text(lane->w->name), "active",
                                                 coordinator_worker_active(lane->w), "tokens",
                                                 coordinator_dashboard_u64(lane->tokens), "chunks",
                                                 coordinator_dashboard_u64(lane->chunks), "serves",
                                                 lane->serves.ranges, "follows", lane->follows.ranges));
    }
    run_end(&sweep->lost);
    free(sweep->lanes);
    free(sweep->of);
    return holders;
}

static const char *kv_type_name(Banyan__Pb__Dtype type)
{
    switch (type) {
    case BANYAN__PB__DTYPE__DTYPE_F32:
        return "f32";
    case BANYAN__PB__DTYPE__DTYPE_F16:
        return "f16";
    case BANYAN__PB__DTYPE__DTYPE_BF16:
        return "bf16";
    case BANYAN__PB__DTYPE__DTYPE_INT8:
        return "int8";
    case BANYAN__PB__DTYPE__DTYPE_FP8_E4M3:
        return "fp8";
    default:
        return "?";
    }
}

// Its first layer's shape; layers of other kinds differ.
static json_t *spec_json(const struct coordinator_session *s)
{
    struct proto_layer layer = proto_spec_layer(s->spec, s->first_layer);
    return json_pack("{s:i, s:i, s:i, s:i, s:s, s:o, s:i, s:i, s:i, s:o, s:o}", "q_heads", (int)layer.q_heads,
                     "kv_heads", (int)layer.kv_heads, "k_dim", (int)layer.k_dim, "v_dim", (int)layer.v_dim,
                     "kv_type", kv_type_name(s->spec->kv_type), "window",
                     coordinator_dashboard_u64(layer.window), "kinds", (int)s->spec->n_kinds, "chunk_tokens",
                     (int)s->layout.chunk_tokens, "replicas", (int)s->spec->replicas, "token_bytes",
                     coordinator_dashboard_u64(s->token_bytes), "idle_ttl_ns",
                     coordinator_dashboard_u64(s->spec->idle_ttl_ns));
}

COORDINATOR_DASHBOARD_ASK(session)
{
    (void)query;
    struct coordinator_session *s;
    struct sweep sweep = {0};
    uint64_t now = common_clock_ns();
    enum common_code code = coordinator_dashboard_find(d, id, &s, err);
    if (code != COMMON_OK)
        return code;
    json_t *lengths = json_array(), *holders = holders_json(&sweep, s);
    for (uint32_t l = 0; l < s->spec->layers; l++)
        json_array_append_new(lengths, coordinator_dashboard_u64(coordinator_session_layer_length(s, l)));
    *out = json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "id",
                     coordinator_dashboard_id(s->id), "name", coordinator_dashboard_text(s->name), "state",
                     coordinator_session_state_text(s), "epoch", coordinator_dashboard_u64(s->layout.epoch),
                     "incarnation", coordinator_dashboard_u64(s->incarnation), "length",
                     coordinator_dashboard_u64(coordinator_session_length(s)), "end",
                     coordinator_dashboard_u64(coordinator_session_end(s)), "forgotten",
                     coordinator_dashboard_u64(s->floor), "chunks", coordinator_dashboard_u64(s->layout.n),
                     "sealed", coordinator_dashboard_u64(sweep.sealed), "thin_chunks",
                     coordinator_dashboard_u64(s->thin), "steps", coordinator_dashboard_u64(s->steps),
                     "idle_ns", coordinator_dashboard_u64(now > s->last_used_ns ? now - s->last_used_ns : 0),
                     "grain", coordinator_dashboard_u64(sweep.grain), "spec", spec_json(s));
    json_object_set_new(*out, "lengths", lengths);
    json_object_set_new(*out, "holders", holders);
    json_object_set_new(*out, "lost", sweep.lost.ranges);
    json_object_set_new(*out, "plan", s->plan ? coordinator_dashboard_id(s->plan->id) : json_null());
    return COMMON_OK;
}
