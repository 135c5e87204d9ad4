// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_options.h"

#include <stdio.h>
#include <string.h>

#include "bench/attention_data.h"
#include "bench/attention_team.h"
#include "common/options.h"
#include "kernels/attention.h"

static const uint64_t contexts[] = {4096, 16384, 65536, 131072, 262144}, groups[] = {1, 4, 8},
                      rows[] = {1, 4, 64};

static bool wrong(const char *option, const char *why)
{
    fprintf(stderr, "attention: --%s: %s; try 'attention --help'\n", option, why);
    return false;
}

// Numbers separated by commas, each a size (4096, 128K) or a KV type, within [1, most].
static bool parse_list(const char *option, const char *text, uint64_t most, struct attention_list *out)
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
        if (out->n == ATTENTION_LIST_MOST)
            return wrong(option, "too many values");
        out->at[out->n++] = value;
        text = comma ? comma + 1 : NULL;
    }
    return true;
}

static void default_list(struct attention_list *list, const uint64_t *values, uint32_t n)
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

enum common_code attention_options_parse(int argc, char **argv, struct attention_options *o)
{
    const char *context = NULL, *kv = NULL, *group = NULL, *row = NULL, *isa = NULL;
    bool quick = false;
    uint32_t cpus = attention_team_cpus();
    *o = (struct attention_options){.kv_heads = 8, .dim = 128, .threads = cpus, .samples = 9};
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
         .max = ATTENTION_SAMPLES_MOST},
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
        {.name = "peers",
         .type = COMMON_OPTION_STRING,
         .out = &o->peers,
         .arg = "PYTHON",
         .help = "also time what this Python has of PyTorch and ONNX Runtime, in the same rounds"},
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
    int rest = argc;
    struct common_error err = {0};
    enum common_code code = common_options_parse(&command, argc, argv, &rest, &err);
    if (code == COMMON_OK && rest < argc)
        code = common_error_set(&err, COMMON_INVALID_ARGUMENT,
                                "unexpected argument '%s'; try 'attention --help'", argv[rest]);
    if (code != COMMON_OK) {
        if (code != COMMON_CANCELLED)
            fprintf(stderr, "attention: %s\n", err.message);
        return code;
    }
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

bool attention_options_has(const char *names, const char *name)
{
    size_t len = strlen(name);
    while (names && (strncmp(names, name, len) || (names[len] && names[len] != ',')))
        names = (names = strchr(names, ',')) ? names + 1 : NULL;
    return names != NULL;
}
