// SPDX-License-Identifier: Apache-2.0
#include "examples/matmul.h"

#include <stdlib.h>
#include <string.h>

#include "examples/pool.h"
#include "examples/products.h"

#define PANEL PRODUCTS_PANEL
#define TILE  PRODUCTS_ROWS

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

struct apply {
    const struct products *products;
    const struct matrix *matrix;
    const float *x;
    float *y;
    uint32_t rows;
};

// Absent rows repeat the last one, so that there is one order of additions.
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
        a->products->panel(panel, m->in, x, y[0]);
        for (uint32_t t = 0; t < TILE && r + t < a->rows; t++)
            memcpy(a->y + (size_t)(r + t) * m->out + first, y[t], n * sizeof(float));
    }
}

void matrix_apply(const struct matrix *matrix, struct pool *pool, const float *x, uint32_t rows, float *y)
{
    struct apply a = {products_best(), matrix, x, y, rows};
    unsigned panels = (matrix->out + PANEL - 1) / PANEL;
    if ((size_t)matrix->in * matrix->out * rows < 300000) { // waking a thread costs more than it saves
        for (unsigned p = 0; p < panels; p++)
            apply_panel(&a, p);
        return;
    }
    pool_run(pool, panels, apply_panel, &a);
}
