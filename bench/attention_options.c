// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_options.h"

#include <stdio.h>
#include <string.h>

#include "bench/attention_data.h"
#include "bench/attention_team.h"
#include "bench/lists.h"
#include "bench/main.h"
#include "common/cli/options.h"
#include "kernels/attention.h"

static const struct lists_program program = {.name = "attention",
                                             .kv_find = attention_kv_find,
                                             .shown = SIZE_MAX};

static bool parse_kernels(const char *names)
{
    if (!names || !strcmp(names, "all"))
        return true;
    char copy[256], *rest = NULL;
    if (snprintf(copy, sizeof copy, "%s", names) >= (int)sizeof copy)
        return lists_wrong(&program, "kernel", "too long");
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (!kernels_attention_find(name)) {
            char what[512];
            size_t at =
                (size_t)snprintf(what, sizeof what,
                                 "'%.64s' is not a kernel that works on this machine; these do:", name);
            for (uint32_t i = 0; i < kernels_attention_count(); i++) {
                const struct kernels_attention *kernel = kernels_attention_at(i);
                if (kernels_attention_usable(kernel) && at < sizeof what)
                    at += (size_t)snprintf(what + at, sizeof what - at, " %s", kernel->name);
            }
            return lists_wrong(&program, "kernel", what);
        }
    }
    return true;
}

// The spec that the options make.
static bool parse_masks(struct attention_options *o)
{
    o->v_dim = o->v_dim ? o->v_dim : o->dim;
    const struct kernels_spec spec = {.kv_type = KERNELS_KV_F32,
                                      .k_dim = (uint32_t)o->dim,
                                      .v_dim = (uint32_t)o->v_dim,
                                      .q_heads = 1,
                                      .kv_heads = 1,
                                      .window = o->window,
                                      .mask_chunk = o->mask_chunk,
                                      .not_causal = o->not_causal,
                                      .v_in_k = o->v_in_k};
    const char *problem = kernels_spec_problem(&spec);
    if (problem)
        return lists_wrong(&program, o->v_in_k ? "v-in-k" : "not-causal", problem);
    if (o->peers &&
        (o->v_dim != o->dim || o->v_in_k || o->window || o->mask_chunk || o->block || o->not_causal))
        return lists_wrong(&program, "peers", "only keys and values of one size under a causal mask");
    return true;
}

enum common_code attention_options_parse(int argc, char **argv, struct attention_options *o)
{
    const char *context = NULL, *kv = NULL, *group = NULL, *row = NULL, *isa = NULL;
    bool quick = false;
    uint32_t cpus = attention_team_cpus();
    *o = (struct attention_options){.kv_heads = 8, .dim = 128, .threads = cpus, .samples = 9};
    const struct common_option table[] = {
        lists_option(LISTS_CONTEXT, &context),
        lists_option(LISTS_KV, &kv),
        lists_option(LISTS_GROUP, &group),
        lists_option(LISTS_ROWS, &row),
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
        {.name = "v-dim",
         .type = COMMON_OPTION_U64,
         .out = &o->v_dim,
         .arg = "N",
         .help = "head dim of values (default: that of keys)",
         .min = 1,
         .max = 1024},
        {.name = "v-in-k",
         .type = COMMON_OPTION_FLAG,
         .out = &o->v_in_k,
         .help =
             "values are the first elements of keys (MLA: --kv-heads 1 --dim 576 --v-dim 512 --group 128)"},
        {.name = "window",
         .type = COMMON_OPTION_U64,
         .out = &o->window,
         .arg = "N",
         .help = "number of positions that a row sees (default 0: all)",
         .max = UINT32_MAX},
        {.name = "mask-chunk",
         .type = COMMON_OPTION_U64,
         .out = &o->mask_chunk,
         .arg = "N",
         .help = "rows see positions from its last multiple onwards (default 0: all)",
         .max = UINT32_MAX},
        {.name = "block",
         .type = COMMON_OPTION_U64,
         .out = &o->block,
         .arg = "N",
         .help = "the last N positions see each other (default 0: none)",
         .max = UINT32_MAX},
        {.name = "not-causal",
         .type = COMMON_OPTION_FLAG,
         .out = &o->not_causal,
         .help = "rows also see keys after their own position"},
        {.name = "threads",
         .type = COMMON_OPTION_U64,
         .out = &o->threads,
         .arg = "N",
         .help = "threads, each on its own CPU (default: all CPUs)",
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
         .max = ATTENTION_SAMPLES_MOST},
        {.name = "quick",
         .type = COMMON_OPTION_FLAG,
         .out = &quick,
         .help = "small contexts (512, 1000), 2 KV heads, 3 samples: does it work at all?"},
        {.name = "probe",
         .type = COMMON_OPTION_FLAG,
         .out = &o->probe,
         .help = "only the machine's limits: every reader at every number of threads, FMA peaks"},
        {.name = "cost",
         .type = COMMON_OPTION_FLAG,
         .out = &o->cost,
         .help =
             "processor time of one job of one KV head in cache, for contexts of 16 to 4096 keys, 1 row:\n"
             "the least of 60 batches on one thread, so that a busy machine will do"},
        {.name = "peers",
         .type = COMMON_OPTION_STRING,
         .out = &o->peers,
         .arg = "PYTHON",
         .help = "also time PyTorch and ONNX Runtime, if this Python has them, in the same rounds"},
        {.name = "json", .type = COMMON_OPTION_FLAG, .out = &o->json, .help = "one JSON object per line"},
        {0},
    };
    const struct common_command command = {
        .program = "attention",
        .synopsis = "[options]",
        .about = "Times attention over a context stored as on a worker, beside a plain read of the same "
                 "bytes by the same\n"
                 "threads and the peak of the FMA units, interleaved. Results are first compared with the "
                 "float64\n"
                 "reference. Without options, prints the whole table: about ten minutes on two cores, 2.5 GB "
                 "of memory.",
        .options = table,
    };
    enum common_code code = bench_parse(&command, argc, argv);
    if (code != COMMON_OK)
        return code;
    if (!parse_masks(o))
        return COMMON_INVALID_ARGUMENT;
    o->context = lists_default(LISTS_CONTEXT);
    o->kv = lists_default(LISTS_KV);
    o->group = lists_default(LISTS_GROUP);
    o->rows = lists_default(LISTS_ROWS);
    if (o->cost) {
        o->context = (struct lists_values){{16, 64, 256, 1024, 4096}, 5};
        o->rows = (struct lists_values){{1}, 1};
        o->kv_heads = 1;
    } else if (quick) {
        o->context = (struct lists_values){{512, 1000}, 2};
        o->kv_heads = 2;
        o->samples = 3;
    }
    if (!lists_parse(&program, LISTS_CONTEXT, context, &o->context) ||
        !lists_parse(&program, LISTS_KV, kv, &o->kv) ||
        !lists_parse(&program, LISTS_GROUP, group, &o->group) ||
        !lists_parse(&program, LISTS_ROWS, row, &o->rows) || !parse_kernels(o->kernel))
        return COMMON_INVALID_ARGUMENT;
    o->isa = READER_AVX512;
    while (!reader_isa_usable(o->isa))
        o->isa--;
    if (isa) {
        enum reader_isa best = o->isa;
        for (o->isa = READER_PORTABLE; o->isa <= best && strcmp(isa, reader_isa_name(o->isa)) != 0; o->isa++)
            ;
        if (o->isa > best) {
            lists_wrong(&program, "isa", "not one of portable, avx2, avx512, or not of this CPU");
            return COMMON_INVALID_ARGUMENT;
        }
    }
    return COMMON_OK;
}

bool attention_options_has(const char *names, const char *name)
{
    size_t len = strlen(name);
    while (names && (strncmp(names, name, len) || (names[len] && names[len] != ',')))
        names = (names = strchr(names, ',')) ? names + 1 : NULL;
    return names != NULL;
}
