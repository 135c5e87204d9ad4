// SPDX-License-Identifier: Apache-2.0
#include "research/paper_check.h"

#include <math.h>
#include <stdlib.h>

bool paper_exact_init(struct paper_exact *exact, const struct paper_geometry *g)
{
    exact->o = calloc((size_t)g->q_heads * g->dim, sizeof *exact->o);
    exact->rows = calloc(g->q_heads, sizeof *exact->rows);
    for (uint32_t h = 0; exact->rows && h < g->q_heads; h++)
        exact->rows[h].lse = -INFINITY;
    return exact->o && exact->rows;
}

void paper_exact_fini(struct paper_exact *exact)
{
    free(exact->o);
    free(exact->rows);
    *exact = (struct paper_exact){0};
}

void paper_exact_merge(struct paper_exact *into, const struct paper_exact *from,
                       const struct paper_geometry *g)
{
    for (uint32_t h = 0; h < g->q_heads; h++) {
        struct kernels_reference_row *a = &into->rows[h];
        const struct kernels_reference_row *b = &from->rows[h];
        double *o = into->o + (size_t)h * g->dim;
        const double *p = from->o + (size_t)h * g->dim;
        if (b->keys == 0)
            continue;
        double top = fmax(a->lse, b->lse), wa = exp(a->lse - top), wb = exp(b->lse - top);
        a->o_abs = 0;
        for (uint32_t d = 0; d < g->dim; d++) {
            o[d] = (wa * o[d] + wb * p[d]) / (wa + wb);
            a->o_abs = fmax(a->o_abs, fabs(o[d]));
        }
        a->lse = top + log(wa + wb);
        a->x_abs = fmax(a->x_abs, b->x_abs);
        a->v_abs = fmax(a->v_abs, b->v_abs);
        a->keys += b->keys;
    }
}

// NaN counts as infinitely wrong.
static double worse(double error, double by, double most)
{
    double ratio = fabs(error) / by;
    return isnan(ratio) ? INFINITY : fmax(most, ratio);
}

struct paper_error paper_check(const struct paper_exact *exact, const struct paper_geometry *g,
                               const float *o, const float *lse)
{
    struct paper_error error = {0, 0};
    for (uint32_t h = 0; h < g->q_heads; h++) {
        const struct kernels_reference_row *row = &exact->rows[h];
        for (uint32_t d = 0; d < g->dim; d++) {
            double off = o[(size_t)h * g->dim + d] - exact->o[(size_t)h * g->dim + d];
            error.rel = worse(off, row->o_abs, error.rel);
            error.bound = worse(off, kernels_reference_bound_o(row), error.bound);
        }
        if (lse)
            error.bound = worse(lse[h] - row->lse, kernels_reference_bound_lse(row), error.bound);
    }
    return error;
}
