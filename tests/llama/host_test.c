// SPDX-License-Identifier: Apache-2.0
// The plug-in in hosts whose interface is another one: this program's functions stand before ggml's own, and
// in each case one of them does as another ggml might. What is different is refused at load, with its name.
//     llama_host_test PLUGIN
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <ggml-backend-impl.h>
#include <ggml.h>

static enum strange {
    AS_IT_IS,
    ALIGNMENT_ELSEWHERE,
    TYPE_SMALLER,
    PROPS_LARGER,
    OPERATION_RENAMED,
    SOURCES_SWAPPED,
    COMPUTE_ELSEWHERE,
    NUMBER_4
} strange;

#define NEXT(name)                                                                                           \
    __typeof__(&(name)) next;                                                                                \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

static void *slot(const void *object, size_t index)
{
    return ((void *const *)object)[index];
}

size_t ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t type)
{
    NEXT(ggml_backend_buft_get_alignment);
    if (strange != ALIGNMENT_ELSEWHERE)
        return next(type);
    size_t (*function)(ggml_backend_buffer_type_t);
    *(void **)&function = slot(type, 6);
    return function(type);
}

ggml_backend_dev_t ggml_backend_buft_get_device(ggml_backend_buffer_type_t type)
{
    NEXT(ggml_backend_buft_get_device);
    return strange == TYPE_SMALLER ? slot(type, 5) : next(type);
}

void ggml_backend_dev_get_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props)
{
    NEXT(ggml_backend_dev_get_props);
    next(device, props);
    if (strange == PROPS_LARGER)
        memset(props + 1, 0, sizeof(void *));
}

const char *ggml_op_name(enum ggml_op op)
{
    NEXT(ggml_op_name);
    return next(strange == OPERATION_RENAMED && op == GGML_OP_SET_ROWS ? GGML_OP_DIAG : op);
}

struct ggml_tensor *ggml_set_rows(struct ggml_context *context, struct ggml_tensor *a, struct ggml_tensor *b,
                                  struct ggml_tensor *c)
{
    NEXT(ggml_set_rows);
    struct ggml_tensor *out = next(context, a, b, c);
    if (strange == SOURCES_SWAPPED) {
        out->src[0] = c;
        out->src[1] = b;
    }
    return out;
}

enum ggml_status ggml_backend_graph_compute_async(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    NEXT(ggml_backend_graph_compute_async);
    if (strange != COMPUTE_ELSEWHERE)
        return next(backend, graph);
    ggml_backend_synchronize(backend);
    return GGML_STATUS_SUCCESS;
}

static const struct {
    const char *name;
    enum strange strange;
    const char *says; // NULL: the plug-in is loaded
} cases[] = {
    {"as it is", AS_IT_IS, NULL},
    {"the alignment elsewhere", ALIGNMENT_ELSEWHERE, "ggml_backend_buffer_type_i.get_alignment"},
    {"a smaller buffer type", TYPE_SMALLER, ".device"},
    {"larger properties", PROPS_LARGER, "the size of struct ggml_backend_dev_props"},
    {"other operations", OPERATION_RENAMED, "enum ggml_op"},
    {"other sources", SOURCES_SWAPPED, "ggml_set_rows"},
    {"a backend's compute elsewhere", COMPUTE_ELSEWHERE, "iface.graph_compute"},
    {"the number 4", NUMBER_4, "number 4"},
};

static const char *plugin;
static char text[8192];

static void on_log(enum ggml_log_level level, const char *piece, void *context)
{
    (void)level, (void)context;
    strncat(text, piece, sizeof text - 1 - strlen(text));
}

// In a process of its own: a plug-in measures once.
static int load(size_t i)
{
    ggml_log_set(on_log, NULL);
    ggml_backend_reg_t cpu = ggml_backend_reg_get(0);
    int number = cpu->api_version;
    strange = cases[i].strange;
    if (strange == NUMBER_4)
        cpu->api_version = 4;
    ggml_backend_reg_t reg = ggml_backend_load(plugin);
    bool right = cases[i].says ? !reg && strstr(text, cases[i].says) && strstr(text, ggml_version())
                               : reg && reg->api_version == number;
    if (!right)
        fprintf(stderr, "%s: %s: %s\n", cases[i].name, reg ? "loaded" : "not loaded", text);
    return right ? 0 : 1;
}

static void test_hosts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t child = fork();
        int status;
        if (child == 0)
            _exit(load(i));
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_int_equal(status, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hosts)};
    if (argc != 2) {
        fprintf(stderr, "usage: llama_host_test PLUGIN\n");
        return 2;
    }
    plugin = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
