// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/exact.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/rows/read.h"
#include "common/base/clock.h"
#include "proto/model/kv.h"

#define PIECE_BYTES (UINT64_C(4) << 20) // read at a time
#define AHEAD_TRIES 40                  // 50 ms apart: until all layers have the token

struct rows { // of the step, and one copy of what they see
    struct exact_row *rows[BANYAN_KEPT_ROWS];
    uint64_t from, to;
};

static void rows_free(struct rows *r)
{
    for (size_t i = 0; i < BANYAN_KEPT_ROWS; i++)
        exact_row_free(r->rows[i]);
}

// False: out of memory.
static bool rows_new(const banyan_kept_step *step, const struct proto_layer *layer, uint32_t kv_type,
                     struct rows *out)
{
    *out = (struct rows){.from = UINT64_MAX};
    for (uint32_t i = 0; i < step->n; i++) {
        struct exact_row *row =
            exact_row_new(layer, (banyan_kv_type)kv_type, step->positions[i], step->visible,
                          step->q + (size_t)i * layer->q_heads * layer->k_dim);
        if (!row)
            return false;
        exact_row_in_block(row, step->visible, step->block_first, step->block_first + step->block_count);
        out->rows[i] = row;
        out->from = exact_row_from(row) < out->from ? exact_row_from(row) : out->from;
        out->to = exact_row_to(row) > out->to ? exact_row_to(row) : out->to;
    }
    return true;
}

// Rows can be read that all layers have: the step may be of a token that is under way.
static bool all_layers_have(banyan_session *session, uint64_t end)
{
    for (int i = 0; i < AHEAD_TRIES; i++) {
        banyan_session_info info;
        banyan_error error;
        if (banyan_session_get_info(session, &info, &error) != BANYAN_OK)
            return true; // the read says why
        bool there = info.length >= end;
        banyan_session_info_free(&info);
        if (there)
            return true;
        usleep(50000);
    }
    return false;
}

static banyan_code out_of_memory(banyan_error *error)
{
    return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
}

// Reads one copy of what the rows see, piece by piece.
static banyan_code read_copy(banyan_session *session, const struct proto_layer *layer, uint32_t kv_type,
                             uint32_t copy, const struct rows *r, uint32_t n, banyan_error *error)
{
    size_t scales = proto_kv_scaled(kv_type) ? layer->kv_heads * sizeof(float) : 0, k = layer->k_row - scales,
           v = layer->v_row ? layer->v_row - scales : 0;
    uint64_t most = PIECE_BYTES / (layer->k_row + layer->v_row);
    most = most ? most : 1;
    uint8_t *codes = malloc(most * (k + v) + 1);
    float *scale = malloc(2 * most * scales + 1);
    banyan_code code = codes && scale ? BANYAN_OK : out_of_memory(error);
    for (uint64_t at = r->from, count; at < r->to && code == BANYAN_OK; at += count) {
        count = most < r->to - at ? most : r->to - at;
        void *v_codes = v ? codes + most * k : NULL;
        float *k_scale = scales ? scale : NULL,
              *v_scale = scales && v ? scale + most * layer->kv_heads : NULL;
        code = client_read_copy(session, layer->source, at, count, copy, codes, k_scale, v_codes, v_scale,
                                error);
        for (uint32_t i = 0; i < n && code == BANYAN_OK; i++)
            exact_row_add(r->rows[i], at, count, codes, k_scale, v_codes, v_scale);
    }
    free(codes);
    free(scale);
    return code;
}

static void judge(struct ctl_kept *kept, const struct proto_layer *layer, const struct rows *r, uint32_t copy)
{
    const banyan_kept_step *step = &kept->step;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct exact_verdict v =
            exact_row_judge(r->rows[i], step->o + (size_t)i * layer->q_heads * layer->v_dim,
                            step->lse + (size_t)i * layer->q_heads);
        double worst = v.o > v.lse ? v.o : v.lse;
        if (worst > kept->o && worst > kept->lse) {
            kept->position = step->positions[i];
            kept->head = v.head;
            kept->copy = copy;
            kept->got = v.got;
            kept->want = v.want;
        }
        kept->o = v.o > kept->o ? v.o : kept->o;
        kept->lse = v.lse > kept->lse ? v.lse : kept->lse;
    }
}

// Whether the session has lost rows that the step saw: then it is none of ours that they cannot be read.
static bool is_gone(banyan_session *session, const banyan_kept_step *step)
{
    banyan_kept_step now;
    banyan_error error;
    if (banyan_session_get_kept_step(session, &now, &error) != BANYAN_OK)
        return false;
    bool gone = now.rows == 0 || now.incarnation != step->incarnation;
    banyan_kept_step_free(&now);
    return gone;
}

enum ctl_exit ctl_kept_verify(banyan_session *session, const Banyan__Pb__Spec *spec, uint32_t copies,
                              uint64_t layer_id, struct ctl_kept *kept, struct ctl_problem *problem)
{
    banyan_error error;
    banyan_code code = banyan_session_get_kept_step(session, &kept->step, &error);
    if (code == BANYAN_UNIMPLEMENTED) // a coordinator of an older build keeps none
        return CTL_OK;
    if (code == BANYAN_OK && layer_id != CTL_VERIFY_ANY_LAYER && kept->step.layer != layer_id)
        banyan_kept_step_free(&kept->step);
    if (code == BANYAN_OK && kept->step.rows == 0)
        return CTL_OK;
    const struct proto_layer layer =
        code == BANYAN_OK ? proto_spec_layer(spec, kept->step.layer) : (struct proto_layer){0};
    for (uint32_t copy = 0; copy < copies && code == BANYAN_OK; copy++) {
        struct rows r;
        code = rows_new(&kept->step, &layer, spec->kv_type, &r) ? BANYAN_OK : out_of_memory(&error);
        kept->ahead = code == BANYAN_OK && copy == 0 && !all_layers_have(session, r.to);
        if (kept->ahead) {
            rows_free(&r);
            return CTL_OK;
        }
        if (code == BANYAN_OK)
            code = read_copy(session, &layer, spec->kv_type, copy, &r, kept->step.n, &error);
        if (code == BANYAN_OK)
            judge(kept, &layer, &r, copy);
        rows_free(&r);
    }
    if (code == BANYAN_OK)
        return CTL_OK;
    kept->gone = kept->step.rows && is_gone(session, &kept->step);
    return kept->gone ? CTL_OK : ctl_problem_cluster(problem, &error);
}

bool ctl_kept_is_wrong(const struct ctl_kept *kept)
{
    return kept->step.rows && !kept->gone && !kept->ahead &&
           (!(kept->o <= 1) || !(kept->lse <= 1) || kept->step.audited == BANYAN_AUDIT_WRONG);
}

static const char *verdict_of(const struct ctl_kept *kept)
{
    return kept->gone ? "gone" : kept->ahead ? "ahead" : ctl_kept_is_wrong(kept) ? "WRONG" : "ok";
}

json_t *ctl_kept_json(const struct ctl_kept *kept)
{
    static const char *const audited[] = {"no", "right", "wrong"};
    const banyan_kept_step *step = &kept->step;
    if (!step->rows)
        return json_null();
    char digest[20];
    snprintf(digest, sizeof digest, "%016" PRIx64, step->plan_digest);
    json_t *row = json_pack("{s:i, s:o, s:o, s:i, s:o, s:b, s:o, s:s, s:s, s:s}", "layer", (int)step->layer,
                            "first", ctl_json_u64(step->first), "rows", ctl_json_u64(step->rows), "rows_kept",
                            (int)step->n, "visible", ctl_json_u64(step->visible), "append", step->append,
                            "age_ns", ctl_json_u64(step->age_ns), "plan_digest", digest, "audited",
                            audited[step->audited], "verdict", verdict_of(kept));
    json_object_set_new(row, "o_error", kept->o < 1e300 ? json_real(kept->o) : json_null());
    json_object_set_new(row, "lse_error", kept->lse < 1e300 ? json_real(kept->lse) : json_null());
    return row;
}

void ctl_kept_tell(const struct ctl_kept *kept)
{
    const banyan_kept_step *step = &kept->step;
    char age[32];
    if (!step->rows) {
        printf("no step of this session is kept\n");
        return;
    }
    common_format_ns(step->age_ns, age, sizeof age);
    if (kept->gone) {
        printf("the kept step saw rows that no longer belong to the session\n");
    } else if (kept->ahead) {
        printf("the kept step is of a token that not all layers have: try again\n");
    } else if (ctl_kept_is_wrong(kept) && kept->o <= 1 && kept->lse <= 1) {
        ctl_say(CTL_OK,
                "the kept step is WRONG, as an audit found, answered %s ago: layer %" PRIu32
                ", rows at %" PRIu64 ", plan digest %016" PRIx64
                ", members: %s. It agrees with the rows that the holders have now",
                age, step->layer, step->first, step->plan_digest, step->workers);
    } else if (!ctl_kept_is_wrong(kept)) {
        printf("the kept step is right: layer %" PRIu32 ", %" PRIu64 " rows at %" PRIu64 ", %" PRIu32
               " of them kept, answered %s ago, error %.3g of what is allowed, lse %.3g%s\n",
               step->layer, step->rows, step->first, step->n, age, kept->o, kept->lse,
               step->audited == BANYAN_AUDIT_RIGHT ? ", audited" : "");
    } else {
        ctl_say(CTL_OK,
                "the kept step is WRONG: layer %" PRIu32 ", position %" PRIu64 ", query head %" PRIu32
                ", answered %s ago: it was %.9g, and float64 over its rows (copy %" PRIu32
                ") gives %.9g (%.3g of what is allowed); plan digest %016" PRIx64 "%s%s%s",
                step->layer, kept->position, kept->head, age, kept->got, kept->copy, kept->want,
                kept->o > kept->lse ? kept->o : kept->lse, step->plan_digest,
                step->audited == BANYAN_AUDIT_WRONG ? "; an audit also found it wrong" : "",
                step->workers[0] ? "; members: " : "", step->workers);
    }
}
