// SPDX-License-Identifier: Apache-2.0
#include "client/llama/host.h"

#include <dlfcn.h>
#include <ggml-backend-impl.h>
#include <ggml.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- probes ---------------------------------------------------------------------------------------------

enum { SLOTS = 24 }; // more than any table of ggml has

typedef void *(*slot_function)(void);

static int answered; // the slot whose function was called last
static char anything[64];

// It may be called as a function of any type: arguments are left alone, and what it returns is a pointer that
// is not NULL, a status, a number or true.
#define SLOT(n)                                                                                              \
    static void *slot_##n(void)                                                                              \
    {                                                                                                        \
        answered = n;                                                                                        \
        return anything;                                                                                     \
    }
SLOT(0)
SLOT(1)
SLOT(2)
SLOT(3)
SLOT(4)
SLOT(5)
SLOT(6)
SLOT(7)
SLOT(8)
SLOT(9)
SLOT(10)
SLOT(11)
SLOT(12)
SLOT(13)
SLOT(14)
SLOT(15)
SLOT(16)
SLOT(17)
SLOT(18)
SLOT(19)
SLOT(20)
SLOT(21)
SLOT(22)
SLOT(23)

struct table {
    slot_function at[SLOTS];
};

static const struct table probes = {{slot_0,  slot_1,  slot_2,  slot_3,  slot_4,  slot_5,  slot_6,  slot_7,
                                     slot_8,  slot_9,  slot_10, slot_11, slot_12, slot_13, slot_14, slot_15,
                                     slot_16, slot_17, slot_18, slot_19, slot_20, slot_21, slot_22, slot_23}};

static const char *wrong; // what the host does otherwise; NULL: nothing so far

static void expect(bool holds, const char *what)
{
    if (!holds && !wrong)
        wrong = what;
}

// The call is made, and the member must be what it reaches.
#define REACHES(call, type, member)                                                                          \
    do {                                                                                                     \
        answered = -1;                                                                                       \
        (void)(call);                                                                                        \
        expect(answered == (int)(offsetof(type, member) / sizeof(void *)), #type "." #member);               \
    } while (0)

// void functions
#define REACHES_BY(call, type, member) REACHES(((call), 0), type, member)

// The host reads the member, and gives what the probe has there.
#define READS(call, type, member)                                                                            \
    expect((void *)(call) == (void *)probes.at[offsetof(type, member) / sizeof(void *)], #type "." #member)

static int probe_type(void)
{
    ggml_backend_buffer_type_t type = (ggml_backend_buffer_type_t)(void *)&probes;
    answered = -1;
    (void)ggml_backend_buft_get_alignment(type);
    int api = answered == (int)(offsetof(struct host_type_2, get_alignment) / sizeof(void *))   ? 2
              : answered == (int)(offsetof(struct host_type_3, get_alignment) / sizeof(void *)) ? 3
                                                                                                : 0;
    REACHES(ggml_backend_buft_name(type), struct host_type_3, get_name);
    REACHES(ggml_backend_buft_alloc_buffer(type, 1), struct host_type_3, alloc_buffer);
    if (api == 2) {
        REACHES(ggml_backend_buft_get_max_size(type), struct host_type_2, get_max_size);
        REACHES(ggml_backend_buft_is_host(type), struct host_type_2, is_host);
        READS(ggml_backend_buft_get_device(type), struct host_type_2, device);
    } else if (api == 3) {
        REACHES(ggml_backend_buft_get_max_size(type), struct host_type_3, get_max_size);
        REACHES(ggml_backend_buft_is_host(type), struct host_type_3, is_host);
        READS(ggml_backend_buft_get_device(type), struct host_type_3, device);
    } else {
        expect(false, "struct ggml_backend_buffer_type_i.get_alignment");
    }
    return api;
}

static void probe_device(void)
{
    ggml_backend_dev_t device = (ggml_backend_dev_t)(void *)&probes;
    size_t available, total;
    unsigned char props[512], zero = 0;
    REACHES(ggml_backend_dev_name(device), struct ggml_backend_device, iface.get_name);
    REACHES(ggml_backend_dev_description(device), struct ggml_backend_device, iface.get_description);
    REACHES_BY(ggml_backend_dev_memory(device, &available, &total), struct ggml_backend_device,
               iface.get_memory);
    REACHES(ggml_backend_dev_type(device), struct ggml_backend_device, iface.get_type);
    REACHES(ggml_backend_dev_init(device, NULL), struct ggml_backend_device, iface.init_backend);
    REACHES(ggml_backend_dev_buffer_type(device), struct ggml_backend_device, iface.get_buffer_type);
    REACHES(ggml_backend_dev_supports_op(device, NULL), struct ggml_backend_device, iface.supports_op);
    REACHES(ggml_backend_dev_supports_buft(device, NULL), struct ggml_backend_device, iface.supports_buft);
    READS(ggml_backend_dev_backend_reg(device), struct ggml_backend_device, reg);
    // It clears as many bytes as it means by the struct.
    memset(props, 0xff, sizeof props);
    REACHES_BY(ggml_backend_dev_get_props(device, (struct ggml_backend_dev_props *)(void *)props),
               struct ggml_backend_device, iface.get_props);
    for (size_t i = 0; i < sizeof(struct ggml_backend_dev_props); i++)
        zero |= props[i];
    expect(zero == 0 && props[sizeof(struct ggml_backend_dev_props)] == 0xff,
           "the size of struct ggml_backend_dev_props");
}

static void probe_backend(void)
{
    ggml_backend_t backend = (ggml_backend_t)(void *)&probes;
    READS(ggml_backend_guid(backend), struct ggml_backend, guid);
    READS(ggml_backend_get_device(backend), struct ggml_backend, device);
    REACHES(ggml_backend_name(backend), struct ggml_backend, iface.get_name);
    REACHES_BY(ggml_backend_free(backend), struct ggml_backend, iface.free);
    REACHES_BY(ggml_backend_synchronize(backend), struct ggml_backend, iface.synchronize);
    REACHES(ggml_backend_graph_compute_async(backend, NULL), struct ggml_backend, iface.graph_compute);
    REACHES_BY(ggml_backend_event_wait(backend, (ggml_backend_event_t)(void *)anything), struct ggml_backend,
               iface.event_wait);
}

static void probe_buffer(struct ggml_tensor *tensor)
{
    union {
        struct table table;
        struct ggml_backend_buffer_i iface;
    } from = {.table = probes};
    ggml_backend_buffer_type_t type = (ggml_backend_buffer_type_t)(void *)&probes;
    ggml_backend_buffer_t buffer = ggml_backend_buffer_init(type, from.iface, anything, sizeof anything);
    expect(buffer->buft == type && buffer->context == anything && buffer->size == sizeof anything,
           "the size of struct ggml_backend_buffer_i");
    if (wrong)
        return; // freeing it would call what is not there
    tensor->buffer = buffer;
    tensor->data = anything;
    REACHES(ggml_backend_buffer_get_base(buffer), struct ggml_backend_buffer, iface.get_base);
    REACHES(ggml_backend_buffer_init_tensor(buffer, tensor), struct ggml_backend_buffer, iface.init_tensor);
    REACHES_BY(ggml_backend_tensor_memset(tensor, 0, 0, 1), struct ggml_backend_buffer, iface.memset_tensor);
    REACHES_BY(ggml_backend_tensor_set(tensor, anything, 0, 1), struct ggml_backend_buffer, iface.set_tensor);
    REACHES_BY(ggml_backend_tensor_get(tensor, anything, 0, 1), struct ggml_backend_buffer, iface.get_tensor);
    REACHES_BY(ggml_backend_buffer_clear(buffer, 0), struct ggml_backend_buffer, iface.clear);
    REACHES_BY(ggml_backend_buffer_reset(buffer), struct ggml_backend_buffer, iface.reset);
    REACHES_BY(ggml_backend_buffer_free(buffer), struct ggml_backend_buffer, iface.free_buffer);
}

// ---- tensors and enums ------------------------------------------------------------------------------------

static void probe_names(void)
{
    static const struct {
        enum ggml_op op;
        const char *name;
    } ops[] = {{GGML_OP_NONE, "NONE"},         {GGML_OP_CPY, "CPY"},
               {GGML_OP_RESHAPE, "RESHAPE"},   {GGML_OP_VIEW, "VIEW"},
               {GGML_OP_PERMUTE, "PERMUTE"},   {GGML_OP_TRANSPOSE, "TRANSPOSE"},
               {GGML_OP_SET_ROWS, "SET_ROWS"}, {GGML_OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"},
               {GGML_OP_ROPE, "ROPE"}};
    static const struct {
        enum ggml_type type;
        const char *name;
    } types[] = {{GGML_TYPE_F32, "f32"},   {GGML_TYPE_F16, "f16"}, {GGML_TYPE_BF16, "bf16"},
                 {GGML_TYPE_Q8_0, "q8_0"}, {GGML_TYPE_I32, "i32"}, {GGML_TYPE_I64, "i64"}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        expect(strcmp(ggml_op_name(ops[i].op), ops[i].name) == 0, "enum ggml_op");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        expect(strcmp(ggml_type_name(types[i].type), types[i].name) == 0, "enum ggml_type");
}

// What the host makes of the operations that the plug-in serves.
static void probe_tensors(struct ggml_context *context)
{
    struct ggml_tensor *cells = ggml_new_tensor_2d(context, GGML_TYPE_F16, 32, 8),
                       *view = ggml_view_2d(context, cells, 32, 4, cells->nb[1], 2 * cells->nb[1]),
                       *rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, 32, 2),
                       *indices = ggml_new_tensor_1d(context, GGML_TYPE_I64, 2),
                       *put = ggml_set_rows(context, cells, rows, indices),
                       *mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, 4, 64),
                       *attention = ggml_flash_attn_ext(context, rows, view, view, mask, 0.5f, 4.0f, 8.0f),
                       *sinks = ggml_new_tensor_1d(context, GGML_TYPE_F32, 1);
    ggml_flash_attn_ext_add_sinks(attention, sinks);
    ggml_set_name(cells, "cache_k_l0");
    float params[3];
    memcpy(params, attention->op_params, sizeof params);
    expect(cells->type == GGML_TYPE_F16 && cells->ne[0] == 32 && cells->ne[1] == 8 && cells->ne[2] == 1 &&
               cells->nb[1] == 64 && cells->op == GGML_OP_NONE && strcmp(cells->name, "cache_k_l0") == 0 &&
               view->view_src == cells && view->view_offs == 128 && view->op == GGML_OP_VIEW,
           "struct ggml_tensor");
    expect(put->op == GGML_OP_SET_ROWS && put->src[0] == rows && put->src[1] == indices &&
               put->view_src == cells,
           "ggml_set_rows");
    expect(attention->op == GGML_OP_FLASH_ATTN_EXT && attention->src[0] == rows &&
               attention->src[1] == view && attention->src[2] == view && attention->src[3] == mask &&
               attention->src[4] == sinks && params[0] == 0.5f && params[1] == 4.0f && params[2] == 8.0f,
           "ggml_flash_attn_ext");
}

static void probe_all(int *api)
{
    struct ggml_context *context =
        ggml_init((struct ggml_init_params){.mem_size = 64 << 10, .no_alloc = true});
    probe_names();
    *api = probe_type();
    probe_device();
    probe_backend();
    if (!context)
        wrong = "no memory";
    if (!wrong)
        probe_tensors(context);
    if (!wrong)
        probe_buffer(ggml_new_tensor_1d(context, GGML_TYPE_F32, 16));
    ggml_free(context);
}

// ---- the number -----------------------------------------------------------------------------------------

// That of a backend which came with the host; 0: there is none, or ggml's registry is out of sight.
static int registered_api(void)
{
    static const char *const names[] = {"libggml.so.0", "libggml.so"};
    void *registry = NULL;
    for (size_t i = 0; !registry && i < sizeof names / sizeof *names; i++)
        registry = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
    if (!registry)
        return 0;
    size_t (*count)(void);
    ggml_backend_reg_t (*get)(size_t);
    *(void **)&count = dlsym(registry, "ggml_backend_reg_count");
    *(void **)&get = dlsym(registry, "ggml_backend_reg_get");
    int api = count && get && count() > 0 ? get(0)->api_version : 0; // the first member in every version
    dlclose(registry);
    return api;
}

int host_api(char *why, size_t why_bytes)
{
    static int api;
    static char said[400];
    if (api == 0 && !said[0]) {
        int registered = registered_api();
        probe_all(&api);
        if (wrong || (registered > 0 && registered != api)) {
            snprintf(said, sizeof said,
                     "this llama.cpp has ggml %s, whose interface for backends (number %d) libggml-banyan.so "
                     "cannot serve: it serves 2 and 3, as ggml 0.20 to 0.26 have them%s%s; build the "
                     "plug-in from newer sources of Banyan",
                     ggml_version(), registered ? registered : api, wrong ? "; what differs is " : "",
                     wrong ? wrong : "");
            api = 0;
        }
    }
    if (api == 0 && why)
        snprintf(why, why_bytes, "%s", said);
    return api;
}
