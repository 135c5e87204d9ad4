// SPDX-License-Identifier: Apache-2.0
// The faces of a dynamic ggml backend: one registration, one device "Banyan0", its buffer type and its
// backend (a stream of graphs).
#include "client/llama/plugin.h"

#include <ggml-backend-impl.h>
#include <ggml-impl.h>
#include <stdlib.h>
#include <string.h>

#include "client/llama/buffer.h"
#include "client/llama/cluster.h"
#include "client/llama/host.h"
#include "client/llama/step.h"

static const char device_name[] = "Banyan0", description[] = "keys and values in a Banyan cluster";

// ---- backend ----------------------------------------------------------------------------------------

static const char *backend_name(ggml_backend_t backend)
{
    (void)backend;
    return device_name;
}

static void backend_free(ggml_backend_t backend)
{
    free(backend);
}

static enum ggml_status graph_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    char why[CACHE_WHY];
    (void)backend;
    if (step_compute(graph, why))
        return GGML_STATUS_SUCCESS;
    GGML_LOG_ERROR("banyan: %s\n", why);
    return GGML_STATUS_FAILED;
}

static ggml_guid_t backend_guid(void)
{
    static ggml_guid guid = {0x62, 0x61, 0x6e, 0x79, 0x61, 0x6e, 0x2d, 0x6b,
                             0x76, 0x2d, 0x63, 0x61, 0x63, 0x68, 0x65, 0x31};
    return &guid;
}

static ggml_backend_t init_backend(ggml_backend_dev_t device, const char *parameters)
{
    char why[CACHE_WHY];
    (void)parameters;
    if (!cluster_client(why, sizeof why)) {
        GGML_LOG_ERROR("banyan: %s\n", why);
        return NULL;
    }
    ggml_backend_t backend = calloc(1, sizeof *backend);
    if (!backend)
        return NULL;
    *backend = (struct ggml_backend){
        .guid = backend_guid(),
        .iface = {.get_name = backend_name, .free = backend_free, .graph_compute = graph_compute},
        .device = device,
    };
    return backend;
}

// ---- device -------------------------------------------------------------------------------------------

static const char *get_name(ggml_backend_dev_t device)
{
    (void)device;
    return device_name;
}

static const char *get_description(ggml_backend_dev_t device)
{
    (void)device;
    return description;
}

static void get_memory(ggml_backend_dev_t device, size_t *available, size_t *total)
{
    (void)device;
    cluster_memory(available, total);
}

static enum ggml_backend_dev_type get_type(ggml_backend_dev_t device)
{
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_GPU; // the only kind that llama.cpp puts a cache on
}

static void get_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props)
{
    memset(props, 0, sizeof *props);
    props->name = device_name;
    props->description = description;
    props->type = get_type(device);
    get_memory(device, &props->memory_free, &props->memory_total);
}

static ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t device)
{
    (void)device;
    return buffer_type();
}

static bool supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op)
{
    (void)device;
    return step_claims(op);
}

static bool supports_buft(ggml_backend_dev_t device, ggml_backend_buffer_type_t type)
{
    (void)device;
    return type == buffer_type() || ggml_backend_buft_is_host(type);
}

// ---- registration ---------------------------------------------------------------------------------------

static const char *reg_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "Banyan";
}

static size_t device_count(ggml_backend_reg_t reg)
{
    (void)reg;
    return 1;
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t reg, size_t index)
{
    (void)reg;
    GGML_ASSERT(index == 0);
    return plugin_device();
}

static struct ggml_backend_reg registration = {
    .iface = {.get_name = reg_name, .get_device_count = device_count, .get_device = get_device},
};

ggml_backend_dev_t plugin_device(void)
{
    static struct ggml_backend_device device = {
        .iface = {.get_name = get_name,
                  .get_description = get_description,
                  .get_memory = get_memory,
                  .get_type = get_type,
                  .get_props = get_props,
                  .init_backend = init_backend,
                  .get_buffer_type = get_buffer_type,
                  .supports_op = supports_op,
                  .supports_buft = supports_buft},
    };
    device.reg = &registration;
    return &device;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);
__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void)
{
    char why[CACHE_WHY];
    registration.api_version = host_api(why, sizeof why);
    if (registration.api_version == 0 || !cluster_settings(why, sizeof why)) {
        GGML_LOG_ERROR("banyan: %s\n", why);
        return NULL;
    }
    return &registration;
}
