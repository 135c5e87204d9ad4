// SPDX-License-Identifier: Apache-2.0
#include "bench/lists.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *option, *arg, *help;
    uint64_t most; // of a value; 0: KV types
    struct lists_values usual;
} kinds[] = {
    [LISTS_CONTEXT] = {"context",
                       "N,...",
                       "keys (default 4K,16K,64K,128K,256K)",
                       1u << 26,
                       {{4096, 16384, 65536, 131072, 262144}, 5}},
    [LISTS_KV] = {"kv",
                  "TYPE,...",
                  "f32, f16, bf16, int8, fp8 (default: all)",
                  0,
                  {{KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16, KERNELS_KV_INT8, KERNELS_KV_FP8}, 5}},
    [LISTS_GROUP] = {"group", "N,...", "query heads a KV head (default 1,4,8)", 256, {{1, 4, 8}, 3}},
    [LISTS_ROWS] =
        {"rows", "N,...", "query rows, the last ones of the context (default 1,4,64)", 4096, {{1, 4, 64}, 3}},
    [LISTS_BATCH] =
        {"batch", "N,...", "sequences a step, each with K and V of its own (default 1)", 1024, {{1}, 1}},
};

bool lists_wrong(const struct lists_program *program, const char *option, const char *why)
{
    fprintf(stderr, "%s: --%s: %s; try '%s --help'\n", program->name, option, why, program->name);
    return false;
}

struct common_option lists_option(enum lists_kind kind, const char **text)
{
    return (struct common_option){.name = kinds[kind].option,
                                  .type = COMMON_OPTION_STRING,
                                  .out = text,
                                  .arg = kinds[kind].arg,
                                  .help = kinds[kind].help};
}

struct lists_values lists_default(enum lists_kind kind)
{
    return kinds[kind].usual;
}

// A size within [1, most]. 0: it is not.
static uint64_t parse_size(const char *text, size_t len, uint64_t most)
{
    char one[24] = "";
    uint64_t value = 0;
    if (len < sizeof one)
        memcpy(one, text, len);
    return *one && common_parse_size(one, &value) == COMMON_OK && value <= most ? value : 0;
}

static bool wrong_value(const struct lists_program *program, enum lists_kind kind, const char *text,
                        size_t len)
{
    char what[160]; // cuts short what a program shows whole
    int shown = (int)(len < program->shown ? len : program->shown);
    if (kinds[kind].most == 0)
        snprintf(what, sizeof what, "'%.*s' is not one of f32, f16, bf16, int8, fp8", shown, text);
    else
        snprintf(what, sizeof what, "'%.*s' is not a number from 1 to %llu", shown, text,
                 (unsigned long long)kinds[kind].most);
    return lists_wrong(program, kinds[kind].option, what);
}

bool lists_parse(const struct lists_program *program, enum lists_kind kind, const char *text,
                 struct lists_values *out)
{
    struct lists_values list = {.n = 0};
    uint64_t most = kinds[kind].most;
    if (!text)
        return true;
    while (text) {
        const char *comma = strchr(text, ',');
        size_t len = comma ? (size_t)(comma - text) : strlen(text);
        uint64_t value = most == 0 ? program->kv_find(text, len) : parse_size(text, len, most);
        if (value == 0)
            return wrong_value(program, kind, text, len);
        if (list.n == LISTS_MOST)
            return lists_wrong(program, kinds[kind].option, "too many values");
        list.at[list.n++] = value;
        text = comma ? comma + 1 : NULL;
    }
    *out = list;
    return true;
}
