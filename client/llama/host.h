// SPDX-License-Identifier: Apache-2.0
// The ggml that has loaded this plug-in. It may be another one than the plug-in was compiled with: ggml
// numbers its interface for backends, yet changes it without a new number, too. So nothing is believed: at
// load, each function of the host that calls a backend is called with a table of probes in the backend's
// place, and which of them answers says where the host looks for its members. Tensors that the host makes are
// read with the structs compiled here.
//
//     API   ggml            struct ggml_backend_buffer_type_i
//     2     0.20 … 0.25     get_name alloc_buffer get_alignment get_max_size get_alloc_size is_host
//     3     0.26 …          get_name alloc_buffer alloc_buffer_n get_alignment get_max_size get_alloc_size
//                           get_alloc_size_n is_host
#ifndef BANYAN_LLAMA_HOST_H
#define BANYAN_LLAMA_HOST_H

#include <ggml-backend.h>
#include <stdbool.h>
#include <stddef.h>

// The buffer type's table in each API. What is NULL is optional, and ggml's own default holds.
struct host_type_2 {
    const char *(*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    void *get_max_size, *get_alloc_size, *is_host;
    ggml_backend_dev_t device;
    void *context;
};
struct host_type_3 {
    const char *(*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
    void *alloc_buffer_n;
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    void *get_max_size, *get_alloc_size, *get_alloc_size_n, *is_host;
    ggml_backend_dev_t device;
    void *context;
};

// The number of the interface that the host has: 2 or 3. 0: another one, or its structs are not those that
// the plug-in was compiled with; why: a sentence. The first call measures, and must be made before another
// thread can make one: ggml_backend_init's.
int host_api(char *why, size_t why_bytes);

#endif
