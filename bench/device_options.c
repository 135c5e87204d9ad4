// SPDX-License-Identifier: Apache-2.0
#include "bench/device_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lists.h"
#include "bench/main.h"
#include "common/cli/options.h"
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

static enum kernels_kv_type kv_find(const char *text, size_t len)
{
    for (unsigned kv = KERNELS_KV_F32; kv <= KERNELS_KV_FP8; kv++) {
        if (strlen(kv_names[kv]) == len && !memcmp(kv_names[kv], text, len))
            return kv;
    }
    return 0;
}

static const struct lists_program program = {.name = "device", .kv_find = kv_find, .shown = 64};

// "cuda:0"
static bool parse_device(const char *wanted, struct device_options *o)
{
    const char *colon = strchr(wanted, ':');
    size_t len = colon ? (size_t)(colon - wanted) : 0, digits = colon ? strlen(colon + 1) : 0;
    if (len < 1 || len >= sizeof o->name || strspn(wanted, "abcdefghijklmnopqrstuvwxyz0123456789-") != len ||
        digits < 1 || digits > 4 || strspn(colon + 1, "0123456789") != digits)
        return lists_wrong(&program, "device", "it must be NAME:INDEX such as cuda:0");
    memcpy(o->name, wanted, len);
    o->name[len] = '\0';
    o->index = (uint32_t)strtoul(colon + 1, NULL, 10);
    return true;
}

enum common_code device_options_parse(int argc, char **argv, struct device_options *o)
{
    const char *context = NULL, *kv = NULL, *group = NULL, *rows = NULL, *batch = NULL, *device = "cuda:0";
    *o = (struct device_options){.context = lists_default(LISTS_CONTEXT),
                                 .kv = lists_default(LISTS_KV),
                                 .group = lists_default(LISTS_GROUP),
                                 .rows = lists_default(LISTS_ROWS),
                                 .batch = lists_default(LISTS_BATCH),
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
        lists_option(LISTS_CONTEXT, &context),
        lists_option(LISTS_KV, &kv),
        lists_option(LISTS_GROUP, &group),
        lists_option(LISTS_ROWS, &rows),
        lists_option(LISTS_BATCH, &batch),
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
        {.name = "v-in-k",
         .type = COMMON_OPTION_U64,
         .out = &o->v_in_k,
         .arg = "N",
         .help = "values are the first N elements of keys (latents: --dim 576 --v-in-k 512\n"
                 "--kv-heads 1), which are read once; 0: they have separate rows (default 0)",
         .max = 1024},
        {.name = "rotate",
         .type = COMMON_OPTION_SIZE,
         .out = &o->rotate_bytes,
         .arg = "SIZE",
         .help = "bytes of K and V read before any of them is read again, so that no cache serves\n"
                 "them: short contexts are stored in several copies, as far as memory allows\n"
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
        {.name = "json", .type = COMMON_OPTION_FLAG, .out = &o->json, .help = "one JSON object per line"},
        {0},
    };
    const struct common_command command = {
        .program = "device",
        .synopsis = "[options]",
        .about = "Times attention on a device with its own memory, using the module that a worker would load "
                 "(kernels/device.h),\n"
                 "beside the speed of its memory: a plain read, and a copy from device to device of the same "
                 "bytes, which count\n"
                 "twice (read and written). All are sampled in turns.\n"
                 "\n"
                 "us_submit_to_done is one step alone: from before the call to the answer on the host. "
                 "us_per_step is the time\n"
                 "between two steps with as many in progress as the device takes, which hides the host's "
                 "latency. bytes_per_s and\n"
                 "the ratios use us_per_step and the bytes of K and V (with scales) that a step must read, "
                 "once each. Figures are\n"
                 "medians. On an emulated device no figure is a speed.",
        .options = table,
    };
    enum common_code code = bench_parse(&command, argc, argv);
    if (code != COMMON_OK)
        return code;
    if (o->v_in_k > o->dim) {
        lists_wrong(&program, "v-in-k", "values inside keys cannot be longer than keys");
        return COMMON_INVALID_ARGUMENT;
    }
    bool ok = parse_device(device, o) && lists_parse(&program, LISTS_CONTEXT, context, &o->context) &&
              lists_parse(&program, LISTS_KV, kv, &o->kv) &&
              lists_parse(&program, LISTS_GROUP, group, &o->group) &&
              lists_parse(&program, LISTS_ROWS, rows, &o->rows) &&
              lists_parse(&program, LISTS_BATCH, batch, &o->batch);
    return ok ? COMMON_OK : COMMON_INVALID_ARGUMENT;
}
