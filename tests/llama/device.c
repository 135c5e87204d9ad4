// SPDX-License-Identifier: Apache-2.0
#include "tests/llama/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>

#include "tests/llama/cache_internal.h"

static struct cache_devices pair;
static char text[65536];
static size_t used;
static enum ggml_log_level level;

static void on_log(enum ggml_log_level of, const char *piece, void *context)
{
    (void)context;
    if (of != GGML_LOG_LEVEL_CONT)
        level = of;
    if (level != GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_ERROR)
        return;
    size_t n = strlen(piece), room = sizeof text - 1 - used;
    memcpy(text + used, piece, n < room ? n : room);
    used += n < room ? n : room;
    text[used] = '\0';
}

void device_open(const char *path)
{
    ggml_log_set(on_log, NULL);
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    cache_must(cpu, "ggml has no CPU backend");
    pair.cpu = ggml_backend_dev_init(cpu, NULL);
    cache_must(pair.cpu, "ggml's CPU backend does not start");
    // Its threads wait for each other in loops: where tests run side by side, one is fastest.
    ggml_backend_set_n_threads_t set_threads =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu),
                                                                        "ggml_backend_set_n_threads");
    cache_must(set_threads, "the threads of ggml's CPU backend cannot be set");
    set_threads(pair.cpu, 1);
    if (strcmp(path, "CPU") == 0)
        return;
    setenv("BANYAN_LOCAL", "2", 0);
    setenv("BANYAN_LOCAL_THREADS", "1", 0);
    setenv("BANYAN_LOCAL_MEMORY", "1G", 0);
    if (!ggml_backend_load(path)) {
        fprintf(stderr, "%s is not loaded: %s\n", path, text);
        exit(1);
    }
    ggml_backend_dev_t own = ggml_backend_dev_by_name("Banyan0");
    cache_must(own, "there is no device Banyan0");
    pair.own = ggml_backend_dev_init(own, NULL);
    if (!pair.own) {
        fprintf(stderr, "Banyan0 does not start: %s\n", text);
        exit(1);
    }
}

void device_close(void)
{
    if (pair.own)
        ggml_backend_free(pair.own);
    ggml_backend_free(pair.cpu);
}

struct cache_devices device_pair(void)
{
    return pair;
}

bool device_is_cpu(void)
{
    return !pair.own;
}

const char *device_log(void)
{
    return text;
}

void device_log_clear(void)
{
    used = 0;
    text[0] = '\0';
}
