// SPDX-License-Identifier: Apache-2.0
// Speed of attention on a device beside that of its memory, in the same run, through kernels/device.h alone.
// A round takes a sample of everything: steps in a row, a step alone, a copy, a plain read. The figures are
// medians of the rounds.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/device_data.h"
#include "bench/device_options.h"
#include "bench/device_run.h"
#include "bench/main.h"

#define SAMPLE_NS      1e7 // a row of steps or of copies takes about so long
#define ROW_MOST       1000u
#define ALWAYS_CHECKED 4096u // keys
#define DATA_SHARE     0.66  // of the device's memory, for K, V and the room to copy into

struct bench {
    const struct device_options *o;
    const struct kernels_device_ops *ops;
    struct kernels_device *handle;
    struct kernels_device_info info;
    bool emulated;
    char device[160];
};

struct figures {
    double done_ns[DEVICE_SAMPLES_MOST], step_ns[DEVICE_SAMPLES_MOST]; // alone; in a row
    double read[DEVICE_SAMPLES_MOST], copy[DEVICE_SAMPLES_MOST];       // bytes per second
    double of_bound;                                                   // < 0: not checked
    uint32_t row, copy_row;                                            // steps and copies in a row
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *samples, uint64_t n)
{
    double sorted[DEVICE_SAMPLES_MOST];
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static double least(const double *samples, uint64_t n)
{
    double best = samples[0];
    for (uint64_t i = 1; i < n; i++)
        best = fmin(best, samples[i]);
    return best;
}

static bool fail(const struct bench *b, const struct device_shape *s, const struct common_error *err)
{
    fprintf(stderr, "device: %s: %s, context %u, group %u, rows %u, batch %u: %s\n", b->device,
            device_options_kv_name(s->kv), s->context, s->group, s->rows, s->batch, err->message);
    return false;
}

// ---- reporting

static void print_head(const struct bench *b)
{
    if (b->o->json)
        return;
    char text[32];
    snprintf(text, sizeof text, "%.0f MiB", (double)b->o->rotate_bytes / (1 << 20));
    printf("%s, kernels %s. K and V of fewer than %s are stored in several copies, read in turn.\n",
           b->device, b->info.kernel, text);
    if (b->emulated)
        printf("This device is emulated: no figure below is a speed.\n");
    printf("%-5s %7s %5s %4s %5s %6s %10s %10s %10s %8s %8s %8s %6s %6s %6s\n", "kv", "context", "group",
           "rows", "batch", "copies", "us to done", "best", "us a step", "GB/s", "copy", "read", "ratio",
           "ratio_r", "bound");
}

static void print_samples(const char *name, const double *samples, uint64_t n, double unit)
{
    printf(", \"%s\": [", name);
    for (uint64_t i = 0; i < n; i++)
        printf(i ? ", %.6g" : "%.6g", samples[i] / unit);
    printf("]");
}

static void report(const struct bench *b, const struct device_data *data, const struct figures *f)
{
    const struct device_shape *s = &data->shape;
    uint64_t n = b->o->samples;
    double done_us = median(f->done_ns, n) / 1e3, step_us = median(f->step_ns, n) / 1e3;
    double speed = (double)device_shape_bytes(s) / step_us * 1e6;
    double read = median(f->read, n), copy = median(f->copy, n);
    if (!b->o->json) {
        printf("%-5s %7u %5u %4u %5u %6u %10.1f %10.1f %10.1f %8.1f %8.1f %8.1f %6.3f %6.3f ",
               device_options_kv_name(s->kv), s->context, s->group, s->rows, s->batch, data->copies, done_us,
               least(f->done_ns, n) / 1e3, step_us, speed / 1e9, copy / 1e9, read / 1e9, speed / copy,
               speed / read);
        if (f->of_bound < 0)
            printf("%6s", "-");
        else
            printf("%6.3f", f->of_bound);
        puts(b->emulated ? " emulated" : "");
        fflush(stdout);
        return;
    }
    printf(
        "{\"bench\": \"device\", \"kernel\": \"%s\", \"device\": \"%s\", \"emulated\": %s, \"kv\": \"%s\", "
        "\"context\": %u, \"group\": %u, \"rows\": %u, \"batch\": %u, \"kv_heads\": %u, \"dim\": %u, "
        "\"v_in_k\": %u, ",
        b->info.kernel, b->device, b->emulated ? "true" : "false", device_options_kv_name(s->kv), s->context,
        s->group, s->rows, s->batch, s->kv_heads, s->dim, s->v_in_k);
    printf("\"bytes\": %llu, \"copies\": %u, \"bytes_per_s\": %.6g, \"read_bytes_per_s\": %.6g, "
           "\"copy_bytes_per_s\": %.6g, \"ratio\": %.4g, \"ratio_read\": %.4g, ",
           (unsigned long long)device_shape_bytes(s), data->copies, speed, read, copy, speed / copy,
           speed / read);
    printf("\"us_submit_to_done\": %.6g, \"us_submit_to_done_best\": %.6g, \"us_per_step\": %.6g, "
           "\"us_per_step_best\": %.6g, \"in_flight\": %u, \"steps\": %u",
           done_us, least(f->done_ns, n) / 1e3, step_us, least(f->step_ns, n) / 1e3, b->info.in_flight,
           f->row);
    if (f->of_bound >= 0)
        printf(", \"of_bound\": %.3g", f->of_bound);
    print_samples("done_samples", f->done_ns, n, 1e3);
    print_samples("step_samples", f->step_ns, n, 1e3);
    print_samples("read_samples", f->read, n, 1);
    print_samples("copy_samples", f->copy, n, 1);
    printf("}\n");
    fflush(stdout);
}

// ---- measuring

static uint32_t row_of(double ns, uint32_t fewest)
{
    double n = ns > 0 ? ceil(SAMPLE_NS / ns) : ROW_MOST;
    return n < fewest ? fewest : n > ROW_MOST ? ROW_MOST : (uint32_t)n;
}

// The answers over the first and the last copy.
static enum common_code check(const struct bench *b, struct device_steps *steps, struct figures *f,
                              struct common_error *err)
{
    const struct device_data *data = steps->data;
    enum common_code code = COMMON_OK;
    double ns;
    struct kernels_partial *outs = calloc(data->shape.batch, sizeof *outs);
    if (!outs)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a check");
    f->of_bound = -1;
    for (uint32_t copy = 0; code == COMMON_OK; copy = data->copies - 1) {
        code = device_steps_one(steps, copy, &ns, outs, err);
        if (code != COMMON_OK || (!b->o->check && data->shape.context > ALWAYS_CHECKED))
            break;
        double error = device_data_error(data, copy, outs);
        if (!(error <= f->of_bound))
            f->of_bound = error;
        if (!(error <= 1))
            code =
                common_error_set(err, COMMON_INTERNAL, "a wrong answer: error %g of what is allowed", error);
        if (copy == data->copies - 1)
            break;
    }
    free(outs);
    return code;
}

// Untimed: everything twice, so that graphs are captured and clocks are up; how many make a sample.
static enum common_code warm(struct device_steps *steps, struct figures *f, struct common_error *err)
{
    double ns = 0, bytes_per_s = 0;
    enum common_code code = device_steps_rate(steps, 4 * steps->in_flight, &ns, err);
    f->row = row_of(ns, 2 * steps->in_flight);
    if (code == COMMON_OK)
        code = device_steps_copy(steps, 4, &bytes_per_s, err);
    f->copy_row = row_of(2e9 * (double)device_shape_stored(&steps->data->shape) / bytes_per_s, 4);
    return code;
}

static enum common_code sample(const struct bench *b, struct device_steps *steps, struct figures *f,
                               uint64_t round, struct common_error *err)
{
    // The row first: the step alone then meets a device that is awake and owes no copy
    enum common_code code = device_steps_rate(steps, f->row, &f->step_ns[round], err);
    if (code == COMMON_OK)
        code = device_steps_one(steps, device_steps_turn(steps), &f->done_ns[round], NULL, err);
    if (code == COMMON_OK)
        code = device_steps_copy(steps, f->copy_row, &f->copy[round], err);
    if (code == COMMON_OK)
        code = b->ops->bandwidth(b->handle, &f->read[round], err);
    return code;
}

static bool measure(const struct bench *b, struct device_data *data, const struct device_shape *shape)
{
    struct common_error err = {0};
    struct device_steps steps = {0};
    struct figures f = {.of_bound = -1};
    const char *problem;
    enum common_code code = device_data_queries(data, shape, &err);
    if (code == COMMON_OK && (problem = b->ops->spec_problem(&data->spec)) != NULL)
        code = common_error_set(&err, COMMON_UNIMPLEMENTED, "%.300s", problem);
    if (code == COMMON_OK)
        code = device_steps_init(&steps, data, b->info.in_flight, &err);
    if (code == COMMON_OK)
        code = check(b, &steps, &f, &err);
    if (code == COMMON_OK)
        code = warm(&steps, &f, &err);
    for (uint64_t round = 0; code == COMMON_OK && round < b->o->samples; round++)
        code = sample(b, &steps, &f, round, &err);
    if (code == COMMON_OK)
        report(b, data, &f);
    device_steps_fini(&steps);
    return code == COMMON_OK || fail(b, shape, &err);
}

// ---- the table

static struct device_shape shape_at(const struct device_options *o, uint32_t batch, uint32_t context,
                                    uint32_t kv)
{
    return (struct device_shape){.kv = (enum kernels_kv_type)o->kv.at[kv],
                                 .context = (uint32_t)o->context.at[context],
                                 .batch = (uint32_t)o->batch.at[batch],
                                 .kv_heads = (uint32_t)o->kv_heads,
                                 .group = (uint32_t)o->group.at[0],
                                 .rows = (uint32_t)o->rows.at[0],
                                 .dim = (uint32_t)o->dim,
                                 .v_in_k = (uint32_t)o->v_in_k};
}

// So many that --rotate bytes are touched, as far as memory allows. 0: not one fits.
static uint32_t copies_of(const struct bench *b, const struct device_shape *s)
{
    double stored = (double)device_shape_stored(s);
    double wanted = ceil((double)b->o->rotate_bytes / stored);
    double room = floor(DATA_SHARE * (double)b->info.limit_bytes / (2 * stored));
    return (uint32_t)fmin(wanted, room);
}

// All groups and rows over one filling of the device.
static bool sweep_queries(const struct bench *b, struct device_shape shape)
{
    const struct device_options *o = b->o;
    struct common_error err = {0};
    struct device_data data;
    uint32_t copies = copies_of(b, &shape);
    bool ok = copies > 0;
    if (!ok) {
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED,
                         "K and V take %.2f GiB, twice, of %.2f GiB: ask for less (--context, --kv, --batch)",
                         (double)device_shape_stored(&shape) / (1 << 30),
                         (double)b->info.limit_bytes / (1 << 30));
        return fail(b, &shape, &err);
    }
    ok = device_data_init(&data, b->ops, b->handle, &shape, copies, &err) == COMMON_OK ||
         fail(b, &shape, &err);
    for (uint32_t g = 0; g < o->group.n; g++) {
        for (uint32_t r = 0; ok && r < o->rows.n; r++) {
            shape.group = (uint32_t)o->group.at[g];
            shape.rows = (uint32_t)o->rows.at[r];
            if (shape.rows > shape.context)
                fprintf(stderr, "device: context %u has no %u rows, skipped\n", shape.context, shape.rows);
            else
                ok = measure(b, &data, &shape);
        }
    }
    device_data_fini(&data);
    return ok;
}

static bool sweep(const struct bench *b)
{
    bool ok = true;
    print_head(b);
    for (uint32_t n = 0; n < b->o->batch.n; n++)
        for (uint32_t c = 0; c < b->o->context.n; c++)
            for (uint32_t k = 0; ok && k < b->o->kv.n; k++)
                ok = sweep_queries(b, shape_at(b->o, n, c, k));
    return ok;
}

int main(int argc, char **argv)
{
    struct device_options o;
    struct common_error err = {0};
    struct bench b = {.o = &o};
    enum common_code code = device_options_parse(argc, argv, &o);
    if (code != COMMON_OK)
        return bench_parse_status(code);
    code = device_run_open(o.name, o.index, o.module, &b.ops, &b.handle, &err);
    if (code != COMMON_OK) {
        fprintf(stderr, "device: %s:%u: %s\n", o.name, o.index, err.message);
        return 1;
    }
    b.ops->info(b.handle, &b.info);
    b.emulated = strstr(b.info.name, "mulated") != NULL;
    snprintf(b.device, sizeof b.device, "%s:%u (%.95s)", o.name, o.index, b.info.name);
    bool ok = sweep(&b);
    b.ops->close(b.handle);
    return ok ? 0 : 1;
}
