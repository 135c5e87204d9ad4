// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/context.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/rounding.h"
#include "kernels/reference.h"
#include "tests/e2e/support.h"
#include "tests/kernels/data.h"
#include "tests/kernels/gather.h"

banyan_spec context_spec(uint32_t nth, uint32_t layers)
{
    static const float sinks[4] = {0.5f, -1.0f, 0, 2.0f}, alibi[4] = {0.01f, 0.02f, 0.04f, 0.08f};
    return (banyan_spec){.layers = layers,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .k_dim = 40,
                         .v_dim = 24,
                         .kv_type = (banyan_kv_type)(1 + nth % 5),
                         .chunk_tokens = 32,
                         .members = 3,
                         .replicas = 1 + nth % 3,
                         .v_in_k = nth == 5 || nth == 8,
                         .window = nth == 2 || nth == 6 ? 50 : 0,
                         .forget = nth == 6 ? 10 : 0,
                         .mask_chunk = nth == 3 ? 64 : 0,
                         .not_causal = nth == 4,
                         .soft_cap = nth == 7 ? 10 : 0,
                         .sinks = nth == 1 || nth == 7 ? sinks : NULL,
                         .alibi = nth == 1 || nth == 9 ? alibi : NULL};
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

void context_init(struct context *c, const banyan_spec *spec, uint64_t room)
{
    size_t element = rounding_bytes(spec->kv_type);
    *c = (struct context){.spec = *spec,
                          .room = room,
                          .k_row = (size_t)spec->kv_heads * spec->k_dim * element,
                          .v_row = (size_t)spec->kv_heads * spec->v_dim * element,
                          .k = allocate(spec->layers * sizeof(*c->k)),
                          .v = allocate(spec->layers * sizeof(*c->v)),
                          .k_scale = allocate(spec->layers * sizeof(*c->k_scale)),
                          .v_scale = allocate(spec->layers * sizeof(*c->v_scale))};
    bool scaled = banyan_kv_scaled(spec->kv_type);
    size_t scales = scaled ? room * spec->kv_heads * sizeof(float) : 0;
    for (uint32_t l = 0; l < spec->layers; l++) {
        c->k[l] = allocate(room * c->k_row);
        c->v[l] = allocate(room * c->v_row);
        memset(c->k[l], 0, room * c->k_row);
        memset(c->v[l], 0, room * c->v_row);
        c->k_scale[l] = scaled ? allocate(scales) : NULL;
        c->v_scale[l] = scaled ? allocate(scales) : NULL;
        if (scaled) {
            memset(c->k_scale[l], 0, scales);
            memset(c->v_scale[l], 0, scales);
        }
    }
}

void context_free(struct context *c)
{
    for (uint32_t l = 0; c->k && l < c->spec.layers; l++) {
        free(c->k[l]);
        free(c->v[l]);
        free(c->k_scale[l]);
        free(c->v_scale[l]);
    }
    free(c->k);
    free(c->v);
    free(c->k_scale);
    free(c->v_scale);
    c->k = c->v = NULL;
    c->k_scale = c->v_scale = NULL;
}

void context_copy(struct context *to, const struct context *from)
{
    context_init(to, &from->spec, from->room);
    for (uint32_t l = 0; l < from->spec.layers; l++) {
        memcpy(to->k[l], from->k[l], from->room * from->k_row);
        memcpy(to->v[l], from->v[l], from->room * from->v_row);
        if (from->k_scale[l]) {
            memcpy(to->k_scale[l], from->k_scale[l], from->room * from->spec.kv_heads * sizeof(float));
            memcpy(to->v_scale[l], from->v_scale[l], from->room * from->spec.kv_heads * sizeof(float));
        }
    }
}

void context_set(struct context *c, uint32_t layer, uint64_t position, uint32_t kv_head, const float *k,
                 const float *v)
{
    size_t element = rounding_bytes(c->spec.kv_type);
    assert_true(position < c->room);
    size_t at = position * c->spec.kv_heads + kv_head;
    rounding_pack(c->spec.kv_type, k, 1, c->spec.k_dim,
                  c->k[layer] + position * c->k_row + (size_t)kv_head * c->spec.k_dim * element,
                  c->k_scale[layer] ? c->k_scale[layer] + at : NULL);
    rounding_pack(c->spec.kv_type, v, 1, c->spec.v_dim,
                  c->v[layer] + position * c->v_row + (size_t)kv_head * c->spec.v_dim * element,
                  c->v_scale[layer] ? c->v_scale[layer] + at : NULL);
}

void context_random(struct context *c, uint64_t first, uint64_t count, uint64_t seed)
{
    struct data_random r = {seed};
    float k[1024], v[1024];
    for (uint32_t l = 0; l < c->spec.layers; l++)
        for (uint64_t p = first; p < first + count; p++)
            for (uint32_t h = 0; h < c->spec.kv_heads; h++) {
                for (uint32_t i = 0; i < c->spec.k_dim; i++)
                    k[i] = data_random_normal(&r);
                for (uint32_t i = 0; i < c->spec.v_dim; i++)
                    v[i] = data_random_normal(&r);
                context_set(c, l, p, h, k, v);
            }
}

const void *context_k(const struct context *c, uint32_t layer, uint64_t position)
{
    return c->k[layer] + position * c->k_row;
}

const void *context_v(const struct context *c, uint32_t layer, uint64_t position)
{
    return c->spec.v_in_k ? NULL : c->v[layer] + position * c->v_row;
}

const float *context_k_scale(const struct context *c, uint32_t layer, uint64_t position)
{
    return c->k_scale[layer] ? c->k_scale[layer] + position * c->spec.kv_heads : NULL;
}

const float *context_v_scale(const struct context *c, uint32_t layer, uint64_t position)
{
    bool none = c->spec.v_in_k || !c->v_scale[layer];
    return none ? NULL : c->v_scale[layer] + position * c->spec.kv_heads;
}

banyan_code context_attach(banyan_session *session, const struct context *c, uint32_t layer, uint64_t first,
                           uint64_t count, banyan_error *error)
{
    if (!banyan_kv_scaled(c->spec.kv_type))
        return banyan_attach(session, layer, first, count, context_k(c, layer, first),
                             context_v(c, layer, first), error);
    return banyan_attach_scaled(session, layer, first, count, context_k(c, layer, first),
                                context_k_scale(c, layer, first), context_v(c, layer, first),
                                context_v_scale(c, layer, first), error);
}

float *context_queries(const banyan_spec *spec, uint32_t rows, uint64_t seed)
{
    struct data_random r = {seed ^ UINT64_C(0x5157455259)};
    size_t n = (size_t)rows * spec->q_heads * spec->k_dim;
    float *q = allocate(n * sizeof(*q));
    for (size_t i = 0; i < n; i++)
        q[i] = data_random_normal(&r);
    return q;
}

// Error as a fraction of the bound. What is not finite must be so in the same way.
static double ratio(double got, double want, double bound)
{
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    double d = fabs(got - want);
    return isfinite(d) && bound > 0 ? d / bound : INFINITY;
}

// Of what is gathered.
static struct kernels_spec kernels_spec_of(const banyan_spec *s)
{
    return (struct kernels_spec){.kv_type = gather_type((enum kernels_kv_type)s->kv_type),
                                 .k_dim = s->k_dim,
                                 .v_dim = s->v_dim,
                                 .q_heads = s->q_heads,
                                 .kv_heads = s->kv_heads,
                                 .scale = s->scale != 0 ? s->scale : 1.0f / sqrtf((float)s->k_dim),
                                 .soft_cap = s->soft_cap,
                                 .window = s->window,
                                 .mask_chunk = s->mask_chunk,
                                 .not_causal = s->not_causal,
                                 .v_in_k = s->v_in_k,
                                 .alibi = s->alibi};
}

double context_lse(const struct context *c, uint32_t layer, uint64_t position, uint32_t head,
                   uint64_t visible, const float *q, uint32_t row, uint64_t from, uint64_t to, bool with_sink,
                   double *allowed)
{
    const banyan_spec *s = &c->spec;
    uint32_t h = head / (s->q_heads / s->kv_heads);
    const struct kernels_interval keys = {from, to};
    void *k = gather_rows((enum kernels_kv_type)s->kv_type, c->k[layer], s->kv_heads, s->k_dim, h, keys);
    float *k_scale = gather_scales(c->k_scale[layer], s->kv_heads, h, keys);
    struct kernels_spec ks = kernels_spec_of(s); // of this head alone, and V has nothing to say
    ks.q_heads = ks.kv_heads = ks.v_dim = 1;
    ks.v_in_k = false;
    ks.alibi = s->alibi ? s->alibi + head : NULL;
    struct kernels_run run = {
        .k = k, .v = k, .first = from, .rows = (uint32_t)(to - from), .k_scale = k_scale, .v_scale = k_scale};
    struct kernels_job job = {.spec = &ks,
                              .rows = 1,
                              .q_first = position,
                              .visible = visible,
                              .block_first = c->block_first,
                              .block_end = c->block_end,
                              .q = q + ((size_t)row * s->q_heads + head) * s->k_dim,
                              .runs = &run,
                              .run_count = to > from};
    struct kernels_reference_row result;
    double o;
    kernels_reference(&job, with_sink && s->sinks ? s->sinks + head : NULL, &o, &result);
    free(k);
    free(k_scale);
    *allowed = kernels_reference_bound_lse(&result);
    return result.lse;
}

// What lies between the missing ranges of keys all->first .. all->first + all->rows - 1.
static uint32_t runs_of(const struct context *c, const struct kernels_run *all, const banyan_spec *s,
                        struct kernels_run *runs)
{
    size_t element = kernels_kv_bytes(gather_type((enum kernels_kv_type)s->kv_type));
    uint32_t n = 0, ranges = c->partial ? c->partial->n : 0;
    uint64_t at = all->first, all_end = all->first + all->rows;
    for (uint32_t i = 0; i <= ranges && at < all_end; i++) {
        uint64_t end = i < ranges ? c->partial->missing[i].first : all_end;
        end = end < all_end ? end : all_end;
        if (end > at)
            runs[n++] =
                (struct kernels_run){.k = (const uint8_t *)all->k + (at - all->first) * s->k_dim * element,
                                     .v = (const uint8_t *)all->v + (at - all->first) * s->v_dim * element,
                                     .k_scale = all->k_scale,
                                     .v_scale = all->v_scale,
                                     .first = at,
                                     .rows = (uint32_t)(end - at)};
        uint64_t next = i < ranges ? c->partial->missing[i].first + c->partial->missing[i].count : end;
        at = next > at ? next : at; // a range may lie before the first key
    }
    return n;
}

// False: further off than is allowed; the first place is in `why`.
static bool judge(const struct context *c, uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible,
                  const float *q, const float *o, const float *lse, struct worst *worst, const char *what,
                  char *why, size_t why_len)
{
    bool right = true;
    const banyan_spec *s = &c->spec;
    uint32_t group = s->q_heads / s->kv_heads;
    uint64_t keys = visible ? visible : first + rows;
    const enum kernels_kv_type type = (enum kernels_kv_type)s->kv_type;
    struct kernels_spec ks = kernels_spec_of(s);
    double *want = allocate((size_t)rows * group * s->v_dim * sizeof(*want));
    struct kernels_reference_row *row = allocate((size_t)rows * group * sizeof(*row));
    assert_true(keys <= c->room);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        struct kernels_run *runs = allocate(((c->partial ? c->partial->n : 0) + 1) * sizeof(*runs));
        struct kernels_job job = {.spec = &ks,
                                  .kv_head = h,
                                  .rows = rows,
                                  .q_first = first,
                                  .visible = keys,
                                  .block_first = c->block_first,
                                  .block_end = c->block_end,
                                  .q = q + (size_t)h * group * s->k_dim,
                                  .q_row_stride = (uint64_t)s->q_heads * s->k_dim,
                                  .q_head_stride = s->k_dim,
                                  .runs = runs};
        const struct kernels_interval seen = gather_seen(&job);
        void *k = gather_rows(type, c->k[layer], s->kv_heads, s->k_dim, h, seen);
        void *v = gather_rows(type, c->v[layer], s->kv_heads, s->v_dim, h, seen);
        float *k_scale = gather_scales(c->k_scale[layer], s->kv_heads, h, seen);
        float *v_scale = gather_scales(c->v_scale[layer], s->kv_heads, h, seen);
        const struct kernels_run all = {.k = k,
                                        .v = v,
                                        .first = seen.from,
                                        .rows = (uint32_t)(seen.to - seen.from),
                                        .k_scale = k_scale,
                                        .v_scale = v_scale};
        assert_true(!c->partial || !k_scale); // a run's scales would have to move, too
        job.run_count = runs_of(c, &all, s, runs);
        kernels_reference(&job, s->sinks, want, row);
        for (uint32_t i = 0; i < rows * group; i++) {
            size_t at = (size_t)(i / group) * s->q_heads + (size_t)h * group + i % group;
            double bound = kernels_reference_bound_o(&row[i]), worst_o = 0;
            for (uint32_t d = 0; d < s->v_dim; d++) {
                double r = ratio(o[at * s->v_dim + d], want[(size_t)i * s->v_dim + d], bound);
                worst_o = r > worst_o ? r : worst_o;
                if (r > 1 && right)
                    snprintf(why, why_len,
                             "%s: layer %u position %" PRIu64 " head %zu dim %u: o = %.9g, the reference "
                             "says %.9g, allowed %.3g",
                             what, layer, first + i / group, at % s->q_heads, d, (double)o[at * s->v_dim + d],
                             want[(size_t)i * s->v_dim + d], bound);
                right = right && r <= 1;
            }
            double r = lse ? ratio(lse[at], row[i].lse, kernels_reference_bound_lse(&row[i])) : 0;
            if (r > 1 && right)
                snprintf(why, why_len,
                         "%s: layer %u position %" PRIu64 " head %zu: lse = %.9g, the reference says %.9g",
                         what, layer, first + i / group, at % s->q_heads, (double)lse[at], row[i].lse);
            right = right && r <= 1;
            if (worst && worst_o > worst->o) {
                worst->o = worst_o;
                snprintf(worst->what, sizeof(worst->what), "%s", what);
            }
            if (worst && r > worst->lse)
                worst->lse = r;
        }
        free(runs);
        free(k);
        free(v);
        free(k_scale);
        free(v_scale);
    }
    free(want);
    free(row);
    return right;
}

bool context_agrees(const struct context *c, uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible,
                    const float *q, const float *o, const float *lse, char *why, size_t why_len)
{
    return judge(c, layer, first, rows, visible, q, o, lse, NULL, "answer", why, why_len);
}

void context_check(const struct context *c, uint32_t layer, uint64_t first, uint32_t rows, uint64_t visible,
                   const float *q, const float *o, const float *lse, struct worst *worst, const char *what)
{
    char why[400];
    if (!judge(c, layer, first, rows, visible, q, o, lse, worst, what, why, sizeof(why)))
        fail_msg("%s", why);
}

struct whole { // lse of a row and head over all that it sees, and how far off it may be
    double lse, allowed;
};

void context_check_mass(const struct context *c, uint32_t layer, uint64_t first, uint64_t visible,
                        const float *q, const banyan_mass *mass, double *worst, const char *what)
{
    const banyan_spec *s = &c->spec;
    struct whole whole[64];
    uint64_t tokens = 0;
    visible = visible ? visible : first + mass->rows;
    assert_int_equal(mass->code, BANYAN_OK);
    assert_true(s->q_heads <= 64);
    assert_int_equal(mass->heads, mass->per_head ? s->q_heads : 1);
    assert_int_equal(mass->visible, visible);
    assert_int_equal(mass->bin_tokens % s->chunk_tokens, 0);
    assert_int_equal(mass->n_bins, (visible + mass->bin_tokens - 1) / mass->bin_tokens);
    for (uint32_t w = 0; w < mass->n_workers; w++)
        tokens += mass->workers[w].tokens;
    assert_int_equal(tokens, visible);
    for (uint32_t r = 0; r < mass->rows; r++) {
        for (uint32_t h = 0; h < s->q_heads; h++)
            whole[h].lse =
                context_lse(c, layer, first + r, h, visible, q, r, 0, visible, true, &whole[h].allowed);
        for (uint32_t h = 0; h < mass->heads; h++) {
            size_t pair = (size_t)r * mass->heads + h;
            double bins = 0, workers = 0, sink = (double)mass->sink[pair];
            uint32_t heads = mass->per_head ? 1 : s->q_heads;
            for (uint32_t b = 0; b < mass->n_bins; b++) {
                uint64_t from = b * mass->bin_tokens, to = from + mass->bin_tokens;
                double want = 0, allowed = 0;
                to = to < visible ? to : visible;
                for (uint32_t i = 0; i < heads; i++) {
                    const uint32_t of = mass->per_head ? h : i;
                    double off,
                        lse = context_lse(c, layer, first + r, of, visible, q, r, from, to, false, &off);
                    double one = lse == -INFINITY ? 0 : exp(lse - whole[of].lse);
                    want += one / heads;
                    allowed += (one * (off + whole[of].allowed) + 1e-6) / heads;
                }
                double got = (double)mass->bin[pair * mass->n_bins + b];
                if (!(fabs(got - want) <= allowed))
                    fail_msg("%s: row %u head %u bin %u: %.9g, the reference says %.9g, allowed %.3g", what,
                             r, h, b, got, want, allowed);
                if (worst)
                    *worst = fmax(*worst, fabs(got - want) / allowed);
                bins += got;
            }
            for (uint32_t w = 0; w < mass->n_workers; w++)
                workers += (double)mass->worker[pair * mass->n_workers + w];
            if (bins + sink != 0 && (fabs(bins + sink - 1) > 1e-5 || fabs(workers + sink - 1) > 1e-5))
                fail_msg("%s: row %u head %u: bins %.9g, workers %.9g, sink %.9g", what, r, h, bins, workers,
                         sink);
            assert_true(s->sinks || sink == 0);
        }
    }
}
