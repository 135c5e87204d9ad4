// SPDX-License-Identifier: Apache-2.0
// Speed of the local attention kernels beside a plain read of the same bytes and the FMA units, in the same
// run, on the same threads. What is timed is a worker's whole share of a step (kernels/split.h): the cut into
// tasks, the tasks, the merge. Samples are interleaved: kernel, plain read, FMA, kernel, ... and the figures
// are those of the medians.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/attention_cost.h"
#include "bench/attention_run.h"
#include "common/options.h"

enum { LIST_MOST = 16, KERNELS_MOST = 16, SAMPLES_MOST = 64, FEW_SAMPLES = 3 };
#define SLOW_NS 3000000000u // a call that takes longer is timed FEW_SAMPLES times only

struct list {
    uint64_t at[LIST_MOST];
    uint32_t n;
};

struct options {
    struct list context, kv, group, rows;
    uint64_t kv_heads, dim, threads, samples;
    const char *kernel;
    enum reader_isa isa;
    bool json, probe, cost;
};

struct subject { // what is timed beside the plain read
    const struct kernels_attention *kernel;
    struct attention_call call;
    double ns[SAMPLES_MOST];
    uint32_t samples, most;
};

struct floors { // what the machine itself can do, a sample a round
    struct attention_reading reading;
    uint64_t read_bytes; // that it was chosen for
    double read_ns[SAMPLES_MOST], fma[READER_AVX512 + 1][SAMPLES_MOST];
    uint32_t samples;
};

static const uint64_t contexts[] = {4096, 16384, 65536, 131072, 262144}, groups[] = {1, 4, 8},
                      rows[] = {1, 4, 64};

// ---- options

static bool wrong(const char *option, const char *why)
{
    fprintf(stderr, "attention: --%s: %s; try 'attention --help'\n", option, why);
    return false;
}

// Numbers separated by commas, each a size (4096, 128K) or a KV type, within [1, most].
static bool parse_list(const char *option, const char *text, uint64_t most, struct list *out)
{
    bool types = most == 0;
    char what[160];
    out->n = 0;
    while (text) {
        const char *comma = strchr(text, ',');
        size_t len = comma ? (size_t)(comma - text) : strlen(text);
        char one[24] = "";
        uint64_t value = 0;
        if (len < sizeof one)
            memcpy(one, text, len);
        if (types)
            value = attention_kv_find(text, len);
        bool ok = types ? value != 0
                        : *one && common_parse_size(one, &value) == COMMON_OK && value > 0 && value <= most;
        if (!ok) {
            if (types)
                snprintf(what, sizeof what, "'%.*s' is not one of f32, f16, bf16, int8, fp8", (int)len, text);
            else
                snprintf(what, sizeof what, "'%.*s' is not a number from 1 to %llu", (int)len, text,
                         (unsigned long long)most);
            return wrong(option, what);
        }
        if (out->n == LIST_MOST)
            return wrong(option, "too many values");
        out->at[out->n++] = value;
        text = comma ? comma + 1 : NULL;
    }
    return true;
}

static void default_list(struct list *list, const uint64_t *values, uint32_t n)
{
    memcpy(list->at, values, n * sizeof *values);
    list->n = n;
}

static bool parse_kernels(const char *names)
{
    if (!names || !strcmp(names, "all"))
        return true;
    char copy[256], *rest = NULL;
    if (snprintf(copy, sizeof copy, "%s", names) >= (int)sizeof copy)
        return wrong("kernel", "too long");
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (!kernels_attention_find(name)) {
            char what[512];
            size_t at =
                (size_t)snprintf(what, sizeof what, "'%.64s' is no kernel that works here; there are", name);
            for (uint32_t i = 0; i < kernels_attention_count(); i++) {
                const struct kernels_attention *kernel = kernels_attention_at(i);
                if (kernels_attention_usable(kernel) && at < sizeof what)
                    at += (size_t)snprintf(what + at, sizeof what - at, " %s", kernel->name);
            }
            return wrong("kernel", what);
        }
    }
    return true;
}

static enum common_code parse(int argc, char **argv, struct options *o)
{
    const char *context = NULL, *kv = NULL, *group = NULL, *row = NULL, *isa = NULL;
    bool quick = false;
    uint32_t cpus = attention_team_cpus();
    *o = (struct options){.kv_heads = 8, .dim = 128, .threads = cpus, .samples = 9};
    const struct common_option table[] = {
        {.name = "context",
         .type = COMMON_OPTION_STRING,
         .out = &context,
         .arg = "N,...",
         .help = "keys (default 4K,16K,64K,128K,256K)"},
        {.name = "kv",
         .type = COMMON_OPTION_STRING,
         .out = &kv,
         .arg = "TYPE,...",
         .help = "f32, f16, bf16, int8, fp8 (default: all)"},
        {.name = "group",
         .type = COMMON_OPTION_STRING,
         .out = &group,
         .arg = "N,...",
         .help = "query heads a KV head (default 1,4,8)"},
        {.name = "rows",
         .type = COMMON_OPTION_STRING,
         .out = &row,
         .arg = "N,...",
         .help = "query rows, the last ones of the context (default 1,4,64)"},
        {.name = "kv-heads",
         .type = COMMON_OPTION_U64,
         .out = &o->kv_heads,
         .arg = "N",
         .help = "KV heads (default 8)",
         .min = 1,
         .max = 256},
        {.name = "dim",
         .type = COMMON_OPTION_U64,
         .out = &o->dim,
         .arg = "N",
         .help = "head dim (default 128)",
         .min = 1,
         .max = 1024},
        {.name = "threads",
         .type = COMMON_OPTION_U64,
         .out = &o->threads,
         .arg = "N",
         .help = "threads, each on a CPU of its own (default: all CPUs)",
         .min = 1,
         .max = cpus},
        {.name = "kernel",
         .type = COMMON_OPTION_STRING,
         .out = &o->kernel,
         .arg = "NAME,...",
         .help = "kernels, or 'all' (default: the one that a worker would take)"},
        {.name = "isa",
         .type = COMMON_OPTION_STRING,
         .out = &isa,
         .arg = "NAME",
         .help = "instructions of the plain read and of the FMA peak: portable, avx2 or avx512\n"
                 "(default: the best here)"},
        {.name = "samples",
         .type = COMMON_OPTION_U64,
         .out = &o->samples,
         .arg = "N",
         .help = "samples of everything (default 9; 3 of a call above 3 s)",
         .min = 1,
         .max = SAMPLES_MOST},
        {.name = "quick",
         .type = COMMON_OPTION_FLAG,
         .out = &quick,
         .help = "small contexts (512, 1000), 2 KV heads, 3 samples: does it work at all?"},
        {.name = "probe",
         .type = COMMON_OPTION_FLAG,
         .out = &o->probe,
         .help = "only what the machine can do: every reader at every number of threads, FMA peaks"},
        {.name = "cost",
         .type = COMMON_OPTION_FLAG,
         .out = &o->cost,
         .help =
             "processor time of one job of one KV head in cache, for contexts of 16 to 4096 keys, 1 row:\n"
             "the least of 60 batches on one thread, so that a busy machine will do"},
        {.name = "json", .type = COMMON_OPTION_FLAG, .out = &o->json, .help = "one JSON object a line"},
        {0},
    };
    const struct common_command command = {
        .program = "attention",
        .synopsis = "[options]",
        .about = "Times attention over a context held as a worker holds it, beside a plain read of the same "
                 "bytes by the\nsame threads and the peak of the FMA units, interleaved. Results are first "
                 "compared with the float64\nreference. Without options the whole table: about ten minutes "
                 "on two cores, 2.5 GB of memory.",
        .options = table,
    };
    struct common_error err = {0};
    enum common_code code = common_options_parse(&command, argc, argv, NULL, &err);
    if (code != COMMON_OK)
        return code;
    if (o->cost) {
        default_list(&o->context, (const uint64_t[]){16, 64, 256, 1024, 4096}, 5);
        o->kv_heads = 1;
    } else if (quick) {
        default_list(&o->context, (const uint64_t[]){512, 1000}, 2);
        o->kv_heads = 2;
        o->samples = 3;
    } else {
        default_list(&o->context, contexts, sizeof contexts / sizeof *contexts);
    }
    default_list(&o->group, groups, sizeof groups / sizeof *groups);
    default_list(&o->rows, rows, o->cost ? 1 : sizeof rows / sizeof *rows);
    default_list(&o->kv,
                 (const uint64_t[]){KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16, KERNELS_KV_INT8,
                                    KERNELS_KV_FP8},
                 5);
    if ((context && !parse_list("context", context, 1u << 26, &o->context)) ||
        (kv && !parse_list("kv", kv, 0, &o->kv)) || (group && !parse_list("group", group, 256, &o->group)) ||
        (row && !parse_list("rows", row, 4096, &o->rows)) || !parse_kernels(o->kernel))
        return COMMON_INVALID_ARGUMENT;
    o->isa = READER_AVX512;
    while (!reader_isa_usable(o->isa))
        o->isa--;
    if (isa) {
        enum reader_isa best = o->isa;
        for (o->isa = READER_PORTABLE; o->isa <= best && strcmp(isa, reader_isa_name(o->isa)) != 0; o->isa++)
            ;
        if (o->isa > best) {
            wrong("isa", "not one of portable, avx2, avx512, or not of this CPU");
            return COMMON_INVALID_ARGUMENT;
        }
    }
    return COMMON_OK;
}

// ---- measuring

static bool slow(const struct kernels_attention *kernel)
{
    return !strcmp(kernel->name, "reference");
}

// The kernels asked for that support a spec. Who names none gets a worker's choice, the reference excepted.
static uint32_t choose_kernels(const struct options *o, const struct kernels_spec *spec,
                               const struct kernels_attention **out)
{
    uint32_t n = 0;
    if (!o->kernel) {
        out[0] = kernels_attention_default(spec);
        return out[0] && !slow(out[0]);
    }
    bool all = !strcmp(o->kernel, "all");
    for (uint32_t i = 0; i < kernels_attention_count() && n < KERNELS_MOST; i++) {
        const struct kernels_attention *kernel = kernels_attention_at(i);
        size_t len = strlen(kernel->name);
        const char *at = o->kernel;
        while (!all && at && (strncmp(at, kernel->name, len) || (at[len] && at[len] != ',')))
            at = (at = strchr(at, ',')) ? at + 1 : NULL;
        if ((all ? !slow(kernel) : at != NULL) && kernels_attention_usable(kernel) &&
            kernels_attention_supports(kernel, spec))
            out[n++] = kernel;
    }
    return n;
}

static void sample_floors(const struct options *o, const struct attention_data *data,
                          struct attention_team *team, struct floors *floors)
{
    uint64_t stored = attention_shape_stored(&data->shape);
    uint32_t at = floors->samples++;
    floors->read_ns[at] = (double)attention_read_run(team, data->memory, stored, &floors->reading);
    for (enum reader_isa isa = READER_PORTABLE; isa <= o->isa; isa++) {
        if (isa == o->isa || isa == READER_AVX2)
            floors->fma[isa][at] = attention_fma_run(team, isa);
    }
}

static void report(const struct options *o, const struct attention_shape *s, const struct subject *subject,
                   const struct floors *floors)
{
    double bytes = (double)attention_shape_bytes(s), flops = (double)attention_shape_flops(s);
    double ns = attention_median(subject->ns, subject->samples), best = subject->ns[0];
    double read_ns = attention_median(floors->read_ns, floors->samples);
    double peak = attention_median(floors->fma[o->isa], floors->samples);
    double speed = bytes * 1e9 / ns, read = bytes * 1e9 / read_ns, rate = flops * 1e9 / ns;
    // The roofline: memory, or the arithmetic at one FMA a product.
    double roof = fmin(read, peak * bytes / flops);
    for (uint32_t i = 1; i < subject->samples; i++)
        best = fmin(best, subject->ns[i]);
    if (!o->json) {
        printf("%-16s %-5s %7u %5u %4u %9.1f %7.2f %7.2f %6.3f %8.1f %6.3f %6.3f\n", subject->kernel->name,
               attention_kv_name(s->kv), s->context, s->group, s->rows, ns / 1e3, speed / 1e9, read / 1e9,
               speed / read, rate / 1e9, rate / peak, speed / roof);
        fflush(stdout);
        return;
    }
    printf(
        "{\"bench\": \"attention\", \"kernel\": \"%s\", \"kv\": \"%s\", \"context\": %u, \"group\": %u, "
        "\"rows\": %u, \"threads\": %u, \"bytes_per_s\": %.6g, \"read_bytes_per_s\": %.6g, \"ratio\": %.4f, ",
        subject->kernel->name, attention_kv_name(s->kv), s->context, s->group, s->rows, (unsigned)o->threads,
        speed, read, speed / read);
    printf("\"kv_heads\": %u, \"dim\": %u, \"ns\": %.0f, \"best_ns\": %.0f, \"flops_per_s\": %.6g, "
           "\"fma_peak\": %.6g, \"fma_ratio\": %.4f, \"fma_isa\": \"%s\", \"roof_ratio\": %.4f, ",
           s->kv_heads, s->dim, ns, best, rate, peak, rate / peak, reader_isa_name(o->isa), speed / roof);
    printf("\"reader\": \"%s\", \"reader_piece\": %llu, \"samples\": [", floors->reading.reader->name,
           (unsigned long long)floors->reading.piece);
    for (uint32_t i = 0; i < subject->samples; i++)
        printf(i ? ", %.0f" : "%.0f", subject->ns[i]);
    printf("], \"read_samples\": [");
    for (uint32_t i = 0; i < floors->samples; i++)
        printf(i ? ", %.0f" : "%.0f", floors->read_ns[i]);
    printf("]}\n");
    fflush(stdout);
}

static bool begin(struct subject *subject, const struct attention_data *data, struct attention_team *team,
                  uint32_t samples)
{
    if (!attention_call_init(&subject->call, data, subject->kernel, team))
        return false;
    uint64_t ns = attention_call_run(&subject->call); // touches all memory that it needs
    double error = attention_call_error(&subject->call);
    if (!(error <= 1)) {
        fprintf(stderr,
                "attention: %s is wrong: %s, context %u, group %u, rows %u: error %g of what is allowed\n",
                subject->kernel->name, attention_kv_name(data->shape.kv), data->shape.context,
                data->shape.group, data->shape.rows, error);
        return false;
    }
    subject->most = ns > SLOW_NS && samples > FEW_SAMPLES ? FEW_SAMPLES : samples;
    return true;
}

static bool cost(const struct options *o, struct attention_data *data, const struct kernels_attention *kernel)
{
    const struct attention_shape *s = &data->shape;
    struct attention_cost cost;
    if (!attention_cost_measure(data, kernel, &cost))
        return false;
    double cycles = cost.ns * cost.ghz;
    printf(o->json ? "{\"bench\": \"attention_cost\", \"kernel\": \"%s\", \"kv\": \"%s\", \"context\": %u, "
                     "\"group\": %u, \"rows\": %u, \"dim\": %u, \"ns\": %.1f, \"median_ns\": %.1f, "
                     "\"ns_per_key\": %.4g, \"cycles_per_key\": %.4g, \"bytes_per_cycle\": %.4g, "
                     "\"flops_per_cycle\": %.4g, \"ghz\": %.3g}\n"
                   : "%-16s %-5s %6u %5u %4u %4u %10.0f %10.0f %8.3f %8.2f %8.2f %8.2f %6.2f\n",
           kernel->name, attention_kv_name(s->kv), s->context, s->group, s->rows, s->dim, cost.ns,
           cost.median_ns, cost.ns / s->context, cycles / s->context,
           (double)attention_shape_bytes(s) / cycles, (double)attention_shape_flops(s) / cycles, cost.ghz);
    fflush(stdout);
    return true;
}

static bool measure(const struct options *o, struct attention_data *data, const struct attention_shape *shape,
                    struct attention_team *team, struct floors *floors)
{
    if (!attention_data_fill(data, shape, team))
        return false;
    struct kernels_spec spec;
    struct kernels_item item;
    attention_data_item(data, NULL, &spec, &item);
    const struct kernels_attention *kernels[KERNELS_MOST];
    uint32_t n = choose_kernels(o, &spec, kernels);
    if (n == 0) {
        fprintf(stderr, "attention: %s: no fast kernel supports it here, skipped\n",
                attention_kv_name(shape->kv));
        return true;
    }
    bool ok = true;
    for (uint32_t i = 0; o->cost && ok && i < n; i++)
        ok = cost(o, data, kernels[i]);
    if (o->cost)
        return ok;
    struct subject *subjects = calloc(n, sizeof *subjects);
    ok = subjects != NULL;
    for (uint32_t i = 0; ok && i < n; i++) {
        subjects[i].kernel = kernels[i];
        ok = begin(&subjects[i], data, team, (uint32_t)o->samples);
    }
    uint64_t stored = attention_shape_stored(shape);
    if (ok && floors->read_bytes != stored) {
        floors->reading = attention_read_choose(team, data->memory, stored, o->isa);
        floors->read_bytes = stored;
    }
    floors->samples = 0;
    for (uint32_t round = 0; ok && round < o->samples; round++) {
        for (uint32_t i = 0; i < n; i++) {
            if (round < subjects[i].most)
                subjects[i].ns[subjects[i].samples++] = (double)attention_call_run(&subjects[i].call);
        }
        sample_floors(o, data, team, floors);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (ok)
            report(o, shape, &subjects[i], floors);
        if (subjects)
            attention_call_fini(&subjects[i].call);
    }
    free(subjects);
    return ok;
}

static struct attention_shape shape_at(const struct options *o, uint32_t context, uint32_t kv, uint32_t group,
                                       uint32_t row)
{
    return (struct attention_shape){.kv = (enum kernels_kv_type)o->kv.at[kv],
                                    .context = (uint32_t)o->context.at[context],
                                    .kv_heads = (uint32_t)o->kv_heads,
                                    .group = (uint32_t)o->group.at[group],
                                    .rows = (uint32_t)o->rows.at[row],
                                    .dim = (uint32_t)o->dim};
}

static bool sweep(const struct options *o, struct attention_data *data, struct attention_team *team)
{
    struct floors floors = {0};
    bool ok = true;
    if (!o->json && o->cost)
        printf("%-16s %-5s %6s %5s %4s %4s %10s %10s %8s %8s %8s %8s %6s\n", "kernel", "kv", "keys", "group",
               "rows", "dim", "ns", "median", "ns/key", "cyc/key", "B/cyc", "flop/cyc", "GHz");
    else if (!o->json)
        printf("%-16s %-5s %7s %5s %4s %9s %7s %7s %6s %8s %6s %6s\n", "kernel", "kv", "context", "group",
               "rows", "us", "GB/s", "read", "ratio", "Gflop/s", "of FMA", "of roof");
    for (uint32_t c = 0; c < o->context.n; c++) {
        for (uint32_t k = 0; k < o->kv.n; k++) {
            floors.read_bytes = 0; // choose anew, since the machine may have changed
            for (uint32_t g = 0; g < o->group.n; g++) {
                for (uint32_t r = 0; ok && r < o->rows.n; r++) {
                    struct attention_shape shape = shape_at(o, c, k, g, r);
                    if (shape.rows > shape.context)
                        fprintf(stderr, "attention: context %u has no %u rows, skipped\n", shape.context,
                                shape.rows);
                    else
                        ok = measure(o, data, &shape, team, &floors);
                }
            }
        }
    }
    return ok;
}

// Every reader at every number of threads over the largest of the contexts, and FMA peaks.
static bool probe(const struct options *o, const struct attention_shape *shape)
{
    for (uint32_t threads = 1; threads <= o->threads; threads++) {
        struct attention_team *team = attention_team_new(threads);
        struct attention_data data = {0};
        uint64_t bytes = attention_shape_stored(shape);
        if (!team || !attention_data_init(&data, bytes, (uint64_t)shape->kv_heads * shape->context) ||
            !attention_data_fill(&data, shape, team)) {
            attention_data_fini(&data);
            attention_team_free(team);
            return false;
        }
        for (uint32_t i = 0; i < reader_count; i++) {
            struct attention_reading how = {&reader_list[i], (uint64_t)2 << 20};
            double ns[SAMPLES_MOST];
            if (reader_list[i].isa > o->isa || !reader_isa_usable(reader_list[i].isa))
                continue;
            for (uint32_t s = 0; s < o->samples; s++)
                ns[s] = (double)attention_read_run(team, data.memory, bytes, &how);
            double speed = (double)bytes * 1e9 / attention_median(ns, (uint32_t)o->samples);
            printf(o->json ? "{\"bench\": \"attention_probe\", \"reader\": \"%s\", \"threads\": %u, "
                             "\"bytes\": %llu, \"read_bytes_per_s\": %.6g}\n"
                           : "%-24s %2u threads, %llu bytes: %7.2f GB/s\n",
                   reader_list[i].name, threads, (unsigned long long)bytes, o->json ? speed : speed / 1e9);
        }
        for (enum reader_isa isa = READER_PORTABLE; isa <= o->isa; isa++) {
            double peak[SAMPLES_MOST];
            for (uint32_t s = 0; s < o->samples; s++)
                peak[s] = attention_fma_run(team, isa);
            double flops = attention_median(peak, (uint32_t)o->samples);
            printf(o->json ? "{\"bench\": \"attention_probe\", \"fma_isa\": \"%s\", \"threads\": %u, "
                             "\"fma_peak\": %.6g}\n"
                           : "fma %-20s %2u threads: %7.1f Gflop/s\n",
                   reader_isa_name(isa), threads, o->json ? flops : flops / 1e9);
        }
        fflush(stdout);
        attention_data_fini(&data);
        attention_team_free(team);
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o;
    enum common_code code = parse(argc, argv, &o);
    if (code != COMMON_OK)
        return code == COMMON_CANCELLED ? 0 : 2;
    uint64_t bytes = 0, runs = 0;
    struct attention_shape largest = {0};
    for (uint32_t c = 0; c < o.context.n; c++) {
        for (uint32_t k = 0; k < o.kv.n; k++) {
            struct attention_shape shape = shape_at(&o, c, k, 0, 0);
            uint64_t most = (shape.context + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK * o.kv_heads;
            runs = most > runs ? most : runs;
            if (attention_shape_stored(&shape) > bytes) {
                bytes = attention_shape_stored(&shape);
                largest = shape;
            }
        }
    }
    uint64_t free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes > free_bytes / 10 * 9) {
        fprintf(stderr,
                "attention: the largest context takes %.1f GiB and %.1f GiB are free: ask for less "
                "(--context, --kv, --kv-heads, --dim)\n",
                (double)bytes / (1 << 30), (double)free_bytes / (1 << 30));
        return 1;
    }
    if (o.probe)
        return probe(&o, &largest) ? 0 : 1;
    struct attention_team *team = attention_team_new((uint32_t)o.threads);
    struct attention_data data = {0};
    bool ok = team && attention_data_init(&data, bytes, runs) && sweep(&o, &data, team);
    attention_data_fini(&data);
    attention_team_free(team);
    return ok ? 0 : 1;
}
