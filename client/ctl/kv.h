// SPDX-License-Identifier: Apache-2.0
// K and V of a .safetensors file for a session: found by name, checked against its spec, and turned into what
// the library takes.
//
// K and V are of the session's KV type, [tokens][kv_heads][dim]. A session of type int8 or fp8 takes I8 or
// F8_E4M3 with their scales, F32 [tokens][kv_heads], as "<name of K>_scale" and "<name of V>_scale"; or F32
// without scales, which is quantised here.
#ifndef CLIENT_CTL_KV_H
#define CLIENT_CTL_KV_H

#include "client/ctl/ctl.h"
#include "common/tensor/safetensors.h"

struct ctl_kv { // tensors of one layer; NULL: not in the file
    const struct common_safetensor *k, *v, *k_scale, *v_scale;
};

// CTL_REFUSED, reported on stderr: the layer takes no K and V; or k is missing, or v where V does not lie in
// K. prefix: of the tensors' names.
enum ctl_exit ctl_kv_wanted(const struct ctl_kv *kv, const banyan_spec *spec, uint32_t layer,
                            const char *prefix);

// [any][heads][dim] of the type; says what is there and what should be.
enum ctl_exit ctl_kv_shape(const struct common_safetensor *t, enum common_dtype dtype, uint32_t heads,
                           uint32_t dim);
// Whether the tensors fit this layer of a session and each other; reported on stderr. k is not NULL, and v is
// where V does not lie in K.
enum ctl_exit ctl_kv_check(const struct ctl_kv *kv, const banyan_spec *spec, uint32_t layer);

struct ctl_kv_rows { // as the library takes them
    const void *k, *v;
    const float *k_scale, *v_scale;
    void *memory; // to be freed
};

// Of tensors that were checked. CTL_INTERNAL: out of memory.
enum ctl_exit ctl_kv_rows(const struct ctl_kv *kv, const banyan_spec *spec, struct ctl_kv_rows *out);

#endif
