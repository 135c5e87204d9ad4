// SPDX-License-Identifier: Apache-2.0
// What ggml loads: ggml_backend_init.
#ifndef BANYAN_LLAMA_PLUGIN_H
#define BANYAN_LLAMA_PLUGIN_H

#include <ggml-backend.h>

ggml_backend_dev_t plugin_device(void);

#endif
