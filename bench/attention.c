// SPDX-License-Identifier: Apache-2.0
// Speed of the local attention kernels beside a plain read of the same bytes and the FMA units, in the same
// run, on the same threads. What is timed is a worker's whole share of a step (kernels/split.h): the cut into
// tasks, the tasks, the merge. Samples are interleaved: kernel, plain read, FMA, kernel, ... and the figures
// are those of the medians.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/attention_cost.h"
#include "bench/attention_options.h"
#include "bench/attention_peer.h"
#include "bench/attention_run.h"
#include "bench/main.h"

enum { KERNELS_MOST = 16, FEW_SAMPLES = 3 };
#define DIFFERENCE_MOST 0.05        // of a peer, of the largest value: they compute in the KV type
#define SLOW_NS         3000000000u // a call that takes longer is timed FEW_SAMPLES times only

struct subject {                            // what is timed beside the plain read: a kernel of ours or a peer
    const struct kernels_attention *kernel; // NULL: a peer
    struct attention_call call;
    struct attention_peer peer;
    double difference; // of a peer's result to ours
    double ns[ATTENTION_SAMPLES_MOST];
    uint32_t samples, most;
};

struct bench {
    const struct attention_options *o;
    struct attention_data *data;
    struct attention_team *team;
    struct attention_peers *peers; // NULL: none asked for
};

struct floors { // what the machine itself can do, a sample a round
    struct attention_reading reading;
    uint64_t read_bytes; // that it was chosen for
    double read_ns[ATTENTION_SAMPLES_MOST], fma[ATTENTION_SAMPLES_MOST];
    uint32_t samples;
};

// ---- measuring

static bool slow(const struct kernels_attention *kernel)
{
    return !strcmp(kernel->name, "reference");
}

// The kernels asked for that support a spec. Who names none gets a worker's choice, the reference excepted.
static uint32_t choose_kernels(const struct attention_options *o, const struct kernels_spec *spec,
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
        if ((all ? !slow(kernel) : attention_options_has(o->kernel, kernel->name)) &&
            kernels_attention_usable(kernel) && kernels_attention_supports(kernel, spec))
            out[n++] = kernel;
    }
    return n;
}

static void sample_floors(const struct bench *b, struct floors *floors)
{
    uint64_t stored = attention_shape_stored(&b->data->shape);
    uint32_t at = floors->samples++;
    floors->read_ns[at] = (double)attention_read_run(b->team, b->data->memory, stored, &floors->reading);
    floors->fma[at] = attention_fma_run(b->team, b->o->isa);
}

static void report(const struct attention_options *o, const struct attention_shape *s,
                   const struct subject *subject, const struct floors *floors)
{
    double bytes = (double)attention_shape_bytes(s), flops = (double)attention_shape_flops(s);
    double ns = attention_median(subject->ns, subject->samples), best = subject->ns[0];
    double read_ns = attention_median(floors->read_ns, floors->samples);
    double peak = attention_median(floors->fma, floors->samples);
    double speed = bytes * 1e9 / ns, read = (double)attention_shape_held(s) * 1e9 / read_ns,
           rate = flops * 1e9 / ns;
    const char *name = subject->kernel ? subject->kernel->name : subject->peer.name;
    // The roofline: memory, or the arithmetic at one FMA a product.
    double roof = fmin(read, peak * bytes / flops);
    for (uint32_t i = 1; i < subject->samples; i++)
        best = fmin(best, subject->ns[i]);
    if (!o->json) {
        printf("%-18s %-5s %7u %5u %4u %9.1f %7.2f %7.2f %6.3f %8.1f %6.3f %6.3f\n", name,
               attention_kv_name(s->kv), s->context, s->group, s->rows, ns / 1e3, speed / 1e9, read / 1e9,
               speed / read, rate / 1e9, rate / peak, speed / roof);
        fflush(stdout);
        return;
    }
    printf(
        "{\"bench\": \"attention\", \"%s\": \"%s\", \"kv\": \"%s\", \"context\": %u, \"group\": %u, "
        "\"rows\": %u, \"threads\": %u, \"bytes_per_s\": %.6g, \"read_bytes_per_s\": %.6g, \"ratio\": %.4f, ",
        subject->kernel ? "kernel" : "peer", name, attention_kv_name(s->kv), s->context, s->group, s->rows,
        (unsigned)o->threads, speed, read, speed / read);
    printf("\"v_dim\": %u, \"v_in_k\": %s, \"window\": %llu, \"mask_chunk\": %llu, \"block\": %llu, "
           "\"not_causal\": %s, ",
           s->v_dim, s->v_in_k ? "true" : "false", (unsigned long long)s->window,
           (unsigned long long)s->mask_chunk, (unsigned long long)s->block, s->not_causal ? "true" : "false");
    printf("\"kv_heads\": %u, \"dim\": %u, \"ns\": %.0f, \"best_ns\": %.0f, \"flops_per_s\": %.6g, "
           "\"fma_peak\": %.6g, \"fma_ratio\": %.4f, \"fma_isa\": \"%s\", \"roof_ratio\": %.4f, ",
           s->kv_heads, s->dim, ns, best, rate, peak, rate / peak, reader_isa_name(o->isa), speed / roof);
    if (!subject->kernel)
        printf("\"version\": \"%s\", \"difference\": %.3g, ", subject->peer.version, subject->difference);
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

static uint32_t most_samples(const struct bench *b, uint64_t ns)
{
    return ns > SLOW_NS && b->o->samples > FEW_SAMPLES ? FEW_SAMPLES : (uint32_t)b->o->samples;
}

static bool begin_kernel(const struct bench *b, struct subject *subject)
{
    const struct attention_shape *s = &b->data->shape;
    if (!attention_call_init(&subject->call, b->data, subject->kernel, b->team))
        return false;
    uint64_t ns = attention_call_run(&subject->call); // touches all memory that it needs
    double error = attention_call_error(&subject->call);
    if (!(error <= 1)) {
        fprintf(stderr,
                "attention: %s is wrong: %s, context %u, group %u, rows %u: error %g of what is allowed\n",
                subject->kernel->name, attention_kv_name(s->kv), s->context, s->group, s->rows, error);
        return false;
    }
    subject->most = most_samples(b, ns);
    return true;
}

static bool cost(const struct attention_options *o, struct attention_data *data,
                 const struct kernels_attention *kernel)
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

// Calls each peer that applies once, to compare it; out has room for ATTENTION_PEERS_MOST. Returns how many
// do the same work as ours, which has just run.
static uint32_t begin_peers(const struct bench *b, const struct attention_call *ours, struct subject *out)
{
    struct attention_peer found[ATTENTION_PEERS_MOST];
    uint32_t n = 0,
             of = b->peers ? attention_peers_setup(b->peers, b->data, (uint32_t)b->o->threads, found) : 0;
    for (uint32_t i = 0; i < of; i++) {
        double difference = attention_peers_compare(b->peers, &found[i], b->data, ours->o);
        uint64_t ns = attention_peers_run(b->peers, &found[i]);
        if (!(difference <= DIFFERENCE_MOST))
            fprintf(stderr, "attention: %s differs from ours by %g of the largest value, skipped\n",
                    found[i].name, difference);
        if (!ns || !(difference <= DIFFERENCE_MOST))
            continue;
        out[n++] = (struct subject){.peer = found[i], .difference = difference, .most = most_samples(b, ns)};
    }
    return n;
}

// A sample of each, in turns; a peer that fails has fewer.
static void sample_all(const struct bench *b, struct subject *subjects, uint32_t n, struct floors *floors)
{
    floors->samples = 0;
    for (uint32_t round = 0; round < b->o->samples; round++) {
        bool floored = false;
        for (uint32_t i = 0; i < n; i++) {
            struct subject *subject = &subjects[i];
            if (!subject->kernel && !floored) { // peers come last
                sample_floors(b, floors);
                floored = true;
            }
            if (round >= subject->most)
                continue;
            double ns = (double)(subject->kernel ? attention_call_run(&subject->call)
                                                 : attention_peers_run(b->peers, &subject->peer));
            if (ns > 0)
                subject->ns[subject->samples++] = ns;
        }
        if (!floored)
            sample_floors(b, floors);
    }
}

static bool measure(const struct bench *b, const struct attention_shape *shape, struct floors *floors)
{
    if (!attention_data_fill(b->data, shape, b->team))
        return false;
    struct kernels_spec spec;
    struct kernels_item item;
    attention_data_item(b->data, NULL, &spec, &item);
    const struct kernels_attention *kernels[KERNELS_MOST];
    uint32_t n_kernels = choose_kernels(b->o, &spec, kernels), n = 0;
    if (n_kernels == 0)
        fprintf(stderr, "attention: %s: no fast kernel supports it here, skipped\n",
                attention_kv_name(shape->kv));
    bool ok = true;
    for (uint32_t i = 0; b->o->cost && ok && i < n_kernels; i++)
        ok = cost(b->o, b->data, kernels[i]);
    if (b->o->cost || n_kernels == 0)
        return ok;
    struct subject *subjects = calloc(n_kernels + ATTENTION_PEERS_MOST, sizeof *subjects);
    ok = subjects != NULL;
    for (; ok && n < n_kernels; n++) {
        subjects[n].kernel = kernels[n];
        ok = begin_kernel(b, &subjects[n]);
    }
    if (ok)
        n += begin_peers(b, &subjects[0].call, subjects + n);
    uint64_t stored = attention_shape_stored(shape);
    if (ok && floors->read_bytes != stored) {
        floors->reading = attention_read_choose(b->team, b->data->memory, stored, b->o->isa);
        floors->read_bytes = stored;
    }
    if (ok)
        sample_all(b, subjects, n, floors);
    for (uint32_t i = 0; i < n; i++) {
        if (ok && subjects[i].samples > 0)
            report(b->o, shape, &subjects[i], floors);
        if (subjects[i].kernel)
            attention_call_fini(&subjects[i].call);
    }
    free(subjects);
    return ok;
}

static struct attention_shape shape_at(const struct attention_options *o, uint32_t context, uint32_t kv,
                                       uint32_t group, uint32_t row)
{
    return (struct attention_shape){.kv = (enum kernels_kv_type)o->kv.at[kv],
                                    .context = (uint32_t)o->context.at[context],
                                    .kv_heads = (uint32_t)o->kv_heads,
                                    .group = (uint32_t)o->group.at[group],
                                    .rows = (uint32_t)o->rows.at[row],
                                    .dim = (uint32_t)o->dim,
                                    .v_dim = (uint32_t)o->v_dim,
                                    .v_in_k = o->v_in_k,
                                    .not_causal = o->not_causal,
                                    .window = o->window,
                                    .mask_chunk = o->mask_chunk,
                                    .block = o->block};
}

static bool sweep(const struct bench *b)
{
    const struct attention_options *o = b->o;
    struct floors floors = {0};
    bool ok = true;
    if (!o->json && o->cost)
        printf("%-16s %-5s %6s %5s %4s %4s %10s %10s %8s %8s %8s %8s %6s\n", "kernel", "kv", "keys", "group",
               "rows", "dim", "ns", "median", "ns/key", "cyc/key", "B/cyc", "flop/cyc", "GHz");
    else if (!o->json)
        printf("%-18s %-5s %7s %5s %4s %9s %7s %7s %6s %8s %6s %6s\n", "kernel", "kv", "context", "group",
               "rows", "us", "GB/s", "read", "ratio", "Gflop/s", "of FMA", "of roof");
    for (uint32_t c = 0; c < o->context.n; c++) {
        for (uint32_t k = 0; k < o->kv.n; k++) {
            floors.read_bytes = 0; // choose again, since the machine may have changed
            for (uint32_t g = 0; g < o->group.n; g++) {
                for (uint32_t r = 0; ok && r < o->rows.n; r++) {
                    struct attention_shape shape = shape_at(o, c, k, g, r);
                    if (shape.rows > shape.context)
                        fprintf(stderr, "attention: context %u has no %u rows, skipped\n", shape.context,
                                shape.rows);
                    else if (shape.block > shape.context)
                        fprintf(stderr, "attention: context %u has no block of %llu, skipped\n",
                                shape.context, (unsigned long long)shape.block);
                    else
                        ok = measure(b, &shape, &floors);
                }
            }
        }
    }
    return ok;
}

// Every reader at every number of threads over the largest of the contexts, and FMA peaks.
static bool probe(const struct attention_options *o, const struct attention_shape *shape)
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
            double ns[ATTENTION_SAMPLES_MOST];
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
            double peak[ATTENTION_SAMPLES_MOST];
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

// What the system could give, page cache included.
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
        ;
    if (file)
        fclose(file);
    return kib << 10;
}

int main(int argc, char **argv)
{
    struct attention_options o;
    enum common_code code = attention_options_parse(argc, argv, &o);
    if (code != COMMON_OK)
        return bench_parse_status(code);
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
    if (bytes > available_bytes() / 10 * 9) {
        fprintf(stderr,
                "attention: the largest context takes %.1f GiB and %.1f GiB are free: ask for less "
                "(--context, --kv, --kv-heads, --dim)\n",
                (double)bytes / (1 << 30), (double)available_bytes() / (1 << 30));
        return 1;
    }
    if (o.probe)
        return probe(&o, &largest) ? 0 : 1;
    struct attention_data data = {0};
    struct bench b = {.o = &o, .data = &data};
    bool ok = !o.peers || (b.peers = attention_peers_start(o.peers)) != NULL;
    ok = ok && (b.team = attention_team_new((uint32_t)o.threads)) != NULL;
    ok = ok && attention_data_init(&data, bytes, runs) && sweep(&b);
    attention_data_fini(&data);
    attention_team_free(b.team);
    attention_peers_stop(b.peers);
    return ok ? 0 : 1;
}
