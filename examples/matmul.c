// SPDX-License-Identifier: Apache-2.0
#include "examples/matmul.h"

#include <stdlib.h>
#include <string.h>

#include "examples/pool.h"

#define PANEL 32 // outputs of a panel: two vectors of 16
#define TILE  4  // rows that share one read of a panel

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

typedef float vec __attribute__((vector_size(64)));

int matrix_pack(struct matrix *matrix, const float *w, uint32_t out, uint32_t in)
{
    size_t n_panels = (out + PANEL - 1) / PANEL;
    size_t bytes = n_panels * in * PANEL * sizeof(float);
    matrix->in = in;
    matrix->out = out;
    matrix->panels = aligned_alloc(64, bytes);
    if (!matrix->panels)
        return -1;
    memset(matrix->panels, 0, bytes);
    for (uint32_t o = 0; o < out; o++)
        for (uint32_t i = 0; i < in; i++)
            matrix->panels[((size_t)(o / PANEL) * in + i) * PANEL + o % PANEL] = w[(size_t)o * in + i];
    return 0;
}

void matrix_free(struct matrix *matrix)
{
    free(matrix->panels);
    matrix->panels = NULL;
}

// One panel against up to four rows; absent rows repeat the last one, so that there is one order of
// additions.
CLONES static void panel_rows(const float *panel, uint32_t in, const float *const x[TILE],
                              float y[TILE][PANEL])
{
    vec a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0}, d0 = {0}, d1 = {0};
    for (uint32_t i = 0; i < in; i++) {
        vec w0 = *(const vec *)(panel + (size_t)i * PANEL),
            w1 = *(const vec *)(panel + (size_t)i * PANEL + 16);
        a0 += w0 * x[0][i];
        a1 += w1 * x[0][i];
        b0 += w0 * x[1][i];
        b1 += w1 * x[1][i];
        c0 += w0 * x[2][i];
        c1 += w1 * x[2][i];
        d0 += w0 * x[3][i];
        d1 += w1 * x[3][i];
    }
    const vec all[TILE * 2] = {a0, a1, b0, b1, c0, c1, d0, d1};
    memcpy(y, all, sizeof(all));
}

struct apply {
    const struct matrix *matrix;
    const float *x;
    float *y;
    uint32_t rows;
};

static void apply_panel(void *arg, unsigned p)
{
    const struct apply *a = arg;
    const struct matrix *m = a->matrix;
    const float *panel = m->panels + (size_t)p * m->in * PANEL;
    uint32_t first = p * PANEL, n = m->out - first < PANEL ? m->out - first : PANEL;
    for (uint32_t r = 0; r < a->rows; r += TILE) {
        const float *x[TILE];
        _Alignas(64) float y[TILE][PANEL];
        for (uint32_t t = 0; t < TILE; t++)
            x[t] = a->x + (size_t)(r + t < a->rows ? r + t : a->rows - 1) * m->in;
        panel_rows(panel, m->in, x, y);
        for (uint32_t t = 0; t < TILE && r + t < a->rows; t++)
            memcpy(a->y + (size_t)(r + t) * m->out + first, y[t], n * sizeof(float));
    }
}

void matrix_apply(const struct matrix *matrix, struct pool *pool, const float *x, uint32_t rows, float *y)
{
    struct apply a = {matrix, x, y, rows};
    unsigned panels = (matrix->out + PANEL - 1) / PANEL;
    if ((size_t)matrix->in * matrix->out * rows < 300000) { // waking a thread costs more than it saves
        for (unsigned p = 0; p < panels; p++)
            apply_panel(&a, p);
        return;
    }
    pool_run(pool, panels, apply_panel, &a);
}
