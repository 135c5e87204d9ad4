// SPDX-License-Identifier: Apache-2.0
// As much of ggml's header as cache.c needs to compile, for locks_test.c, which has no tensor and no
// llama.cpp.
#ifndef TESTS_LLAMA_STUB_GGML_H
#define TESTS_LLAMA_STUB_GGML_H

#include <stddef.h>
#include <stdint.h>

enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16 };
enum ggml_op { GGML_OP_NONE, GGML_OP_CPY };

struct ggml_tensor {
    enum ggml_type type;
    enum ggml_op op;
    int64_t ne[4];
    int32_t op_params[16];
    struct ggml_tensor *src[10], *view_src;
    size_t view_offs;
    char name[64];
};

#endif
