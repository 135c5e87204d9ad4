// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/variants.h"

// Change it when the rules of attention.h or split.h, or the order of any summation, change.
#define KERNELS_RULES "6"

static const struct kernels_attention *const kernels[] = {
#ifdef KERNELS_X86_64
    &kernels_amx,      &kernels_avx512,           &kernels_avx2,
#endif
#ifdef KERNELS_ARM64
    &kernels_neon,
#endif
    &kernels_portable, &kernels_reference_kernel,
};

const char *kernels_spec_problem(const struct kernels_spec *spec)
{
    const uint32_t most = 65535;
    if (kernels_kv_bytes(spec->kv_type) == 0)
        return "unknown KV type";
    if (spec->k_dim == 0 || spec->k_dim > most || spec->v_dim == 0 || spec->v_dim > most)
        return "head dims must be 1 to 65535";
    if (spec->q_heads == 0 || spec->q_heads > most || spec->kv_heads == 0 || spec->kv_heads > most)
        return "head counts must be 1 to 65535";
    if (spec->q_heads % spec->kv_heads)
        return "query heads must be a multiple of KV heads";
    if (!isfinite(spec->scale))
        return "scale must be finite";
    if (!isfinite(spec->soft_cap) || spec->soft_cap < 0)
        return "soft cap must be finite and not negative";
    for (uint32_t h = 0; spec->alibi && h < spec->q_heads; h++) {
        if (!isfinite(spec->alibi[h]))
            return "ALiBi slopes must be finite";
    }
    if (spec->not_causal && (spec->window || spec->mask_chunk || spec->alibi))
        return "without a causal mask there is no window, no chunked mask and no ALiBi";
    if (spec->v_in_k && spec->v_dim > spec->k_dim)
        return "values inside keys cannot be longer than keys";
    return NULL;
}

uint32_t kernels_kv_bytes(enum kernels_kv_type type)
{
    switch (type) {
    case KERNELS_KV_F32:
        return 4;
    case KERNELS_KV_F16:
    case KERNELS_KV_BF16:
        return 2;
    case KERNELS_KV_INT8:
    case KERNELS_KV_FP8:
        return 1;
    }
    return 0;
}

bool kernels_kv_scaled(enum kernels_kv_type type)
{
    return type == KERNELS_KV_INT8 || type == KERNELS_KV_FP8;
}

uint32_t kernels_attention_count(void)
{
    return sizeof(kernels) / sizeof(kernels[0]);
}

const struct kernels_attention *kernels_attention_at(uint32_t i)
{
    return i < kernels_attention_count() ? kernels[i] : NULL;
}

bool kernels_attention_usable(const struct kernels_attention *kernel)
{
    return !kernel->usable || kernel->usable();
}

bool kernels_attention_supports(const struct kernels_attention *kernel, const struct kernels_spec *spec)
{
    return !kernel->supports || kernel->supports(spec);
}

const struct kernels_attention *kernels_attention_find(const char *name)
{
    for (uint32_t i = 0; i < kernels_attention_count(); i++) {
        if (!strcmp(kernels[i]->name, name))
            return kernels_attention_usable(kernels[i]) ? kernels[i] : NULL;
    }
    return NULL;
}

const struct kernels_attention *kernels_attention_default(const struct kernels_spec *spec)
{
    const char *wanted = getenv("BANYAN_KERNEL");
    if (wanted && *wanted) {
        const struct kernels_attention *kernel = kernels_attention_find(wanted);
        return kernel && kernels_attention_supports(kernel, spec) ? kernel : NULL;
    }
    const struct kernels_attention *best = NULL;
    for (uint32_t i = 0; i < kernels_attention_count(); i++) {
        if (kernels_attention_usable(kernels[i]) && kernels_attention_supports(kernels[i], spec) &&
            (!best || kernels[i]->rank > best->rank))
            best = kernels[i];
    }
    return best;
}

uint64_t kernels_attention_scratch(const struct kernels_attention *kernel, const struct kernels_spec *spec,
                                   uint32_t rows, uint32_t jobs)
{
    uint64_t bytes = kernel->scratch_bytes ? kernel->scratch_bytes(spec, rows, jobs) : 0;
    return (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
}

static uint64_t hash(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3ULL; // FNV-1a
    return (h ^ 0xff) * 0x100000001b3ULL;
}

uint64_t kernels_attention_digest(const struct kernels_attention *kernel)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    h = hash(h, kernel->name);
    h = hash(h, "rules " KERNELS_RULES);
    return hash(h, __VERSION__);
}
