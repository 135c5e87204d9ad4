// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/audit_sum.h"

#include <math.h>

#include "proto/model/limits.h"

void coordinator_audit_sum_init(struct coordinator_audit_sum *sum, double *o, uint32_t v_dim)
{
    *sum = (struct coordinator_audit_sum){.top = -INFINITY, .o = o};
    for (uint32_t d = 0; d < v_dim; d++)
        o[d] = 0;
}

// Rescales to a larger top. What has no weight stays none, whatever its o is.
static void raise_top(struct coordinator_audit_sum *sum, double top, uint32_t v_dim)
{
    double shrink = sum->s > 0 ? exp(sum->top - top) : 0;
    shrink = isnan(sum->s) ? NAN : shrink;
    sum->s = shrink == 0 ? 0 : sum->s * shrink;
    for (uint32_t d = 0; d < v_dim; d++)
        sum->o[d] = shrink == 0 ? 0 : sum->o[d] * shrink;
    sum->top = top;
}

void coordinator_audit_sum_add(struct coordinator_audit_sum *sum, const double *part, uint32_t v_dim)
{
    double lse = part[0], weight;
    const double *o = part + PROTO_AUDIT_HEAD;
    if (!(part[3] > 0))
        return; // it has seen nothing
    sum->x_abs = fmax(sum->x_abs, part[1]);
    sum->v_abs = fmax(sum->v_abs, part[2]);
    sum->keys += part[3];
    if (lse == -INFINITY)
        return; // no key of it weighs anything
    if (lse > sum->top)
        raise_top(sum, lse, v_dim);
    weight = isnan(lse) ? NAN : exp(lse - sum->top);
    if (weight == 0)
        return;
    sum->s += weight;
    for (uint32_t d = 0; d < v_dim; d++)
        sum->o[d] += weight * o[d];
}

// Off by how much of what is allowed. What is not finite must be so in the same way.
static double fraction(double got, double want, double allowed)
{
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    double off = fabs(got - want);
    return isfinite(off) && allowed > 0 ? off / allowed : INFINITY;
}

static void note(struct coordinator_audit_verdict *verdict, double got, double want, double allowed,
                 int32_t dim)
{
    double error = fraction(got, want, allowed);
    if (error > verdict->error)
        *verdict = (struct coordinator_audit_verdict){error, got, want, allowed, dim};
}

struct coordinator_audit_verdict coordinator_audit_sum_judge(struct coordinator_audit_sum *sum, double sink,
                                                             const float *o, float lse, uint32_t v_dim)
{
    struct coordinator_audit_verdict verdict = {.dim = -1};
    double want = sink, o_abs = 0;
    if (sum->keys > 0) {
        if (sink > sum->top)
            raise_top(sum, sink, v_dim);
        if (sink != -INFINITY) {
            sum->s += exp(sink - sum->top);
            sum->x_abs = fmax(sum->x_abs, fabs(sink));
        }
        want = sum->top + log(sum->s);
        for (uint32_t d = 0; d < v_dim; d++) {
            sum->o[d] /= sum->s; // NaN where nothing weighs anything
            o_abs = fmax(o_abs, fabs(sum->o[d]));
        }
    }
    note(&verdict, (double)lse, want, 2e-6 * fmax(1, sum->x_abs), -1);
    double allowed =
        2e-6 * fmax(1, sum->x_abs / 16) * fmax(o_abs, sum->keys > 0 ? sum->v_abs / sqrt(sum->keys) : 0);
    for (uint32_t d = 0; d < v_dim; d++)
        note(&verdict, (double)o[d], sum->o[d], allowed, (int32_t)d);
    return verdict;
}
