// SPDX-License-Identifier: Apache-2.0
#include "bench/device_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/options.h"
#include "kernels/attention.h"

static const char *const kv_names[] = {[KERNELS_KV_F32] = "f32",
                                       [KERNELS_KV_F16] = "f16",
                                       [KERNELS_KV_BF16] = "bf16",
                                       [KERNELS_KV_INT8] = "int8",
                                       [KERNELS_KV_FP8] = "fp8"};

const char *device_options_kv_name(uint64_t kv)
{
    return kv_names[kv];
}

static bool wrong(const char *option, const char *why)
{
    fprintf(stderr, "device: --%s: %s; try 'device --help'\n", option, why);
    return false;
}

// A size (4096, 128K) within [1, most] or, where most is 0, a KV type. 0: neither.
static uint64_t parse_value(const char *text, uint64_t most)
{
    uint64_t value = 0;
    if (most > 0)
        return *text && common_parse_size(text, &value) == COMMON_OK && value <= most ? value : 0;
    for (uint64_t kv = KERNELS_KV_F32; kv <= KERNELS_KV_FP8; kv++)
        value = strcmp(text, kv_names[kv]) == 0 ? kv : value;
    return value;
}

// Values separated by commas. NULL leaves the list as it is.
static bool parse_list(const char *option, const char *text, uint64_t most, struct device_list *out)
{
    if (text)
        out->n = 0;
    while (text) {
        const char *comma = strchr(text, ',');
        size_t len = comma ? (size_t)(comma - text) : strlen(text);
        char one[24] = "", what[160];
        if (len < sizeof one)
            memcpy(one, text, len);
        uint64_t value = parse_value(one, most);
        if (value == 0 && most == 0)
            snprintf(what, sizeof what, "'%.*s' is not one of f32, f16, bf16, int8, fp8",
                     (int)(len < 64 ? len : 64), text);
        else if (value == 0)
            snprintf(what, sizeof what, "'%.*s' is not a number from 1 to %llu", (int)(len < 64 ? len : 64),
                     text, (unsigned long long)most);
        if (value == 0)
            return wrong(option, what);
        if (out->n == DEVICE_LIST_MOST)
            return wrong(option, "too many values");
        out->at[out->n++] = value;
        text = comma ? comma + 1 : NULL;
    }
    return true;
}

// "cuda:0"
static bool parse_device(const char *wanted, struct device_options *o)
{
    const char *colon = strchr(wanted, ':');
    size_t len = colon ? (size_t)(colon - wanted) : 0, digits = colon ? strlen(colon + 1) : 0;
    if (len < 1 || len >= sizeof o->name || strspn(wanted, "abcdefghijklmnopqrstuvwxyz0123456789-") != len ||
        digits < 1 || digits > 4 || strspn(colon + 1, "0123456789") != digits)
        return wrong("device", "it is NAME:INDEX as cuda:0");
    memcpy(o->name, wanted, len);
    o->name[len] = '\0';
    o->index = (uint32_t)strtoul(colon + 1, NULL, 10);
    return true;
}

static bool parse(const struct common_command *command, int argc, char **argv, enum common_code *code)
{
    int rest = argc;
    struct common_error err = {0};
    *code = common_options_parse(command, argc, argv, &rest, &err);
    if (*code == COMMON_OK && rest < argc)
        *code = common_error_set(&err, COMMON_INVALID_ARGUMENT,
                                 "unexpected argument '%.100s'; try 'device --help'", argv[rest]);
    if (*code != COMMON_OK && *code != COMMON_CANCELLED)
        fprintf(stderr, "device: %s\n", err.message);
    return *code == COMMON_OK;
}

enum common_code device_options_parse(int argc, char **argv, struct device_options *o)
{
    const char *context = NULL, *kv = NULL, *group = NULL, *rows = NULL, *batch = NULL, *device = "cuda:0";
    *o = (struct device_options){
        .context = {{4096, 16384, 65536, 131072, 262144}, 5},
        .kv = {{KERNELS_KV_F32, KERNELS_KV_F16, KERNELS_KV_BF16, KERNELS_KV_INT8, KERNELS_KV_FP8}, 5},
        .group = {{1, 4, 8}, 3},
        .rows = {{1, 4, 64}, 3},
        .batch = {{1}, 1},
        .kv_heads = 8,
        .dim = 128,
        .samples = 9,
        .rotate_bytes = (uint64_t)256 << 20};
    const struct common_option table[] = {
        {.name = "device",
         .type = COMMON_OPTION_STRING,
         .out = &device,
         .arg = "NAME:INDEX",
         .help = "(default cuda:0)"},
        {.name = "module",
         .type = COMMON_OPTION_STRING,
         .out = &o->module,
         .arg = "PATH",
         .help = "its module (default: banyan-NAME.so beside the program or in ../lib)"},
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
         .out = &rows,
         .arg = "N,...",
         .help = "query rows, the last ones of the context (default 1,4,64)"},
        {.name = "batch",
         .type = COMMON_OPTION_STRING,
         .out = &batch,
         .arg = "N,...",
         .help = "sequences a step, each with K and V of its own (default 1)"},
        {.name = "kv-heads",
         .type = COMMON_OPTION_U64,
         .out = &o->kv_heads,
         .arg = "N",
         .help = "KV heads (default 8)",
         .min = 1,
         .max = 64},
        {.name = "dim",
         .type = COMMON_OPTION_U64,
         .out = &o->dim,
         .arg = "N",
         .help = "head dim (default 128)",
         .min = 1,
         .max = 1024},
        {.name = "rotate",
         .type = COMMON_OPTION_SIZE,
         .out = &o->rotate_bytes,
         .arg = "SIZE",
         .help = "bytes of K and V that are read before any of them is read again, so that no cache\n"
                 "serves them: short contexts lie there in several copies, as far as memory allows\n"
                 "(default 256M)",
         .min = 1,
         .max = (uint64_t)1 << 40},
        {.name = "samples",
         .type = COMMON_OPTION_U64,
         .out = &o->samples,
         .arg = "N",
         .help = "samples of everything, interleaved (default 9)",
         .min = 1,
         .max = DEVICE_SAMPLES_MOST},
        {.name = "check",
         .type = COMMON_OPTION_FLAG,
         .out = &o->check,
         .help = "compare the first answer of every point with the float64 reference;\n"
                 "contexts of up to 4096 keys always are"},
        {.name = "json", .type = COMMON_OPTION_FLAG, .out = &o->json, .help = "one JSON object a line"},
        {0},
    };
    const struct common_command command = {
        .program = "device",
        .synopsis = "[options]",
        .about =
            "Times attention on a device with memory of its own, by the module that a worker would load "
            "(kernels/device.h),\nbeside what its memory does: a plain read, and a copy from device to "
            "device "
            "of the same bytes, which counts\ntwice (read and written). All are sampled in turns.\n\n"
            "us_submit_to_done is one step alone: from before the call to the answer on the host. "
            "us_per_step "
            "is the time\nbetween two steps with as many under way as the device takes: the host's latency "
            "is "
            "hidden. bytes_per_s and the\nratios are of us_per_step: the bytes of K and V (scales too) that "
            "a "
            "step must read, once each. Figures are\nmedians. On an emulated device no figure is a speed.",
        .options = table,
    };
    enum common_code code;
    if (!parse(&command, argc, argv, &code))
        return code;
    bool ok = parse_device(device, o) && parse_list("context", context, 1u << 26, &o->context) &&
              parse_list("kv", kv, 0, &o->kv) && parse_list("group", group, 256, &o->group) &&
              parse_list("rows", rows, 4096, &o->rows) && parse_list("batch", batch, 1024, &o->batch);
    return ok ? COMMON_OK : COMMON_INVALID_ARGUMENT;
}
