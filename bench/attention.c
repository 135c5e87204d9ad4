// SPDX-License-Identifier: Apache-2.0
// Speed of the attention kernels: one attention call over a context, as a worker computes it
// (kernels/split.h).
//
//   attention [--json] [--kernel NAME] [--kv f32|f16|bf16] [--context N] [--kv-heads N] [--group N] [--dim N]
//   [--rows N]
//             [--threads N]
//
// bytes_per_s counts K and V once; flops_per_s counts 2 flops per product in q.k and in p.v, for all rows
// (not causal).
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/float16.h"
#include "kernels/split.h"

struct options {
    bool json;
    const char *kernel, *kv;
    uint32_t context, kv_heads, group, dim, rows, threads;
};

struct team {
    struct kernels_split split;
    atomic_uint next;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *allocate(uint64_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes ? bytes : 1)) {
        fprintf(stderr, "attention: no memory for %llu bytes\n", (unsigned long long)bytes);
        exit(1);
    }
    return p;
}

static void *member(void *arg)
{
    struct team *team = arg;
    void *scratch = allocate(kernels_split_scratch(team->split.item));
    for (uint32_t i; (i = atomic_fetch_add(&team->next, 1)) < team->split.tasks;)
        kernels_split_run(&team->split, i, scratch);
    free(scratch);
    return NULL;
}

static double attend(const struct kernels_item *item, uint32_t threads, void *workspace,
                     const struct kernels_partial *out)
{
    struct team team;
    pthread_t ids[64];
    double start = now();
    kernels_split_init(&team.split, item, workspace);
    atomic_init(&team.next, 0);
    uint32_t started = 1;
    while (started < threads && !pthread_create(&ids[started], NULL, member, &team))
        started++;
    member(&team);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(ids[i], NULL);
    kernels_split_merge(&team.split, out);
    return now() - start;
}

static uint32_t noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state;
}

// n elements in about -1 .. 1
static void *elements(enum kernels_kv_type type, uint64_t n, uint32_t seed)
{
    char *data = allocate(n * kernels_kv_bytes(type));
    for (uint64_t i = 0; i < n; i++) {
        float x = (float)(int32_t)noise(&seed) * 0x1p-31f;
        uint16_t h = type == KERNELS_KV_F16 ? common_f16_from_float(x) : common_bf16_from_float(x);
        if (type == KERNELS_KV_F32)
            ((float *)(void *)data)[i] = x;
        else
            ((uint16_t *)(void *)data)[i] = h;
    }
    return data;
}

static void measure(const struct options *o, const struct kernels_attention *kernel,
                    enum kernels_kv_type type)
{
    const uint32_t chunk = 256;
    struct kernels_spec spec = {.kv_type = type,
                                .k_dim = o->dim,
                                .v_dim = o->dim,
                                .q_heads = o->kv_heads * o->group,
                                .kv_heads = o->kv_heads,
                                .scale = (float)(1 / sqrt(o->dim))};
    uint32_t count = (o->context + chunk - 1) / chunk;
    uint64_t per_chunk = (uint64_t)chunk * o->dim, row_bytes = (uint64_t)o->dim * kernels_kv_bytes(type);
    char *k = elements(type, per_chunk * count * o->kv_heads, 1),
         *v = elements(type, per_chunk * count * o->kv_heads, 2);
    float *q = elements(KERNELS_KV_F32, (uint64_t)o->rows * spec.q_heads * o->dim, 3);
    struct kernels_run *runs = allocate((uint64_t)count * o->kv_heads * sizeof(*runs));
    for (uint32_t i = 0; i < count * o->kv_heads; i++) {
        uint32_t at = i % count * chunk;
        runs[i] = (struct kernels_run){.k = k + i * chunk * row_bytes,
                                       .v = v + i * chunk * row_bytes,
                                       .first = at,
                                       .rows = o->context - at < chunk ? o->context - at : chunk};
    }
    struct kernels_item item = {.spec = &spec,
                                .kernel = kernel,
                                .rows = o->rows,
                                .q_first = o->context,
                                .visible = o->context,
                                .q = q,
                                .q_row_stride = (uint64_t)spec.q_heads * o->dim,
                                .q_head_stride = o->dim,
                                .chunk_tokens = chunk,
                                .run_count = count,
                                .runs = runs};
    void *workspace = allocate(kernels_split_bytes(&item));
    struct kernels_partial out;
    void *block = allocate(kernels_partial_bytes(o->rows, spec.q_heads, o->dim));
    kernels_partial_view(block, o->rows, spec.q_heads, o->dim, &out);
    double best = attend(&item, o->threads, workspace, &out), begun = now();
    for (int i = 0; i < 1000 && now() - begun < 1; i++) {
        double s = attend(&item, o->threads, workspace, &out);
        best = s < best ? s : best;
    }
    double bytes = 2.0 * (double)row_bytes * o->context * o->kv_heads;
    double flops = 4.0 * o->dim * o->context * (double)spec.q_heads * o->rows;
    const char *format =
        o->json ? "{\"bench\":\"attention\",\"kernel\":\"%s\",\"kv\":\"%s\",\"context\":%u,\"kv_heads\":%u,"
                  "\"group\":%u,\"dim\":%u,\"rows\":%u,\"threads\":%u,\"us\":%.1f,\"bytes_per_s\":%.4g,"
                  "\"flops_per_s\":%.4g}\n"
                : "%-16s %-5s context %7u  heads %2u x %u  dim %3u  rows %3u  threads %u: %9.1f us  "
                  "%.3g bytes/s  %.3g flop/s\n";
    printf(format, kernel->name, o->kv, o->context, o->kv_heads, o->group, o->dim, o->rows, o->threads,
           best * 1e6, bytes / best, flops / best);
    fflush(stdout);
    free(k);
    free(v);
    free(q);
    free(runs);
    free(workspace);
    free(block);
}

static uint32_t number(const char *text, uint32_t most)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (!*text || *end || n == 0 || n > most) {
        fprintf(stderr, "attention: '%s' is no number from 1 to %u\n", text, most);
        exit(2);
    }
    return (uint32_t)n;
}

int main(int argc, char **argv)
{
    struct options o = {
        .kv = "bf16", .context = 131072, .kv_heads = 8, .group = 4, .dim = 128, .rows = 1, .threads = 1};
    static const struct option known[] = {{"json", 0, 0, 'j'},     {"kernel", 1, 0, 'k'},
                                          {"kv", 1, 0, 't'},       {"context", 1, 0, 'c'},
                                          {"kv-heads", 1, 0, 'h'}, {"group", 1, 0, 'g'},
                                          {"dim", 1, 0, 'd'},      {"rows", 1, 0, 'r'},
                                          {"threads", 1, 0, 'n'},  {0, 0, 0, 0}};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'j':
            o.json = true;
            break;
        case 'k':
            o.kernel = optarg;
            break;
        case 't':
            o.kv = optarg;
            break;
        case 'c':
            o.context = number(optarg, 1u << 24);
            break;
        case 'h':
            o.kv_heads = number(optarg, 256);
            break;
        case 'g':
            o.group = number(optarg, 256);
            break;
        case 'd':
            o.dim = number(optarg, 1024);
            break;
        case 'r':
            o.rows = number(optarg, 4096);
            break;
        case 'n':
            o.threads = number(optarg, 64);
            break;
        default:
            return 2;
        }
    }
    enum kernels_kv_type type = !strcmp(o.kv, "f32")    ? KERNELS_KV_F32
                                : !strcmp(o.kv, "f16")  ? KERNELS_KV_F16
                                : !strcmp(o.kv, "bf16") ? KERNELS_KV_BF16
                                                        : 0;
    if (!type || (o.kernel && !kernels_attention_find(o.kernel))) {
        fprintf(stderr, "attention: no such %s\n", type ? "kernel on this machine" : "KV type");
        return 2;
    }
    for (uint32_t i = 0; i < kernels_attention_count(); i++) {
        const struct kernels_attention *kernel = kernels_attention_at(i);
        bool chosen = o.kernel ? !strcmp(o.kernel, kernel->name) : strcmp(kernel->name, "reference") != 0;
        if (chosen && kernels_attention_usable(kernel))
            measure(&o, kernel, type);
    }
    return 0;
}
