// SPDX-License-Identifier: Apache-2.0
#include "client/llama/buffer.h"

#include <ggml-backend-impl.h>
#include <ggml-impl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/llama/cluster.h"
#include "client/llama/host.h"
#include "client/llama/plugin.h"

struct buffer {
    void *base;
    size_t size;
    struct cache *cache; // NULL: no tensor of a cache lies in it
    // Of its layers, for say_where
    int first, last, layers;
    const struct ggml_tensor *k; // of one of them
    bool said;
};

enum { ALIGNMENT = 128 };

static void free_buffer(ggml_backend_buffer_t buffer)
{
    struct buffer *own = buffer->context;
    cache_free(own->cache);
    munmap(own->base, own->size);
    free(own);
}

static void *get_base(ggml_backend_buffer_t buffer)
{
    return ((struct buffer *)buffer->context)->base;
}

// llama.cpp names the tensors of its caches so, and no others.
static bool named_as_cache(const struct ggml_tensor *tensor)
{
    return strncmp(tensor->name, "cache_", 6) == 0 && !tensor->view_src && tensor->op == GGML_OP_NONE;
}

static enum ggml_status init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor)
{
    struct buffer *own = buffer->context;
    if (named_as_cache(tensor) && !own->cache) {
        own->cache = cache_new();
        if (!own->cache)
            return GGML_STATUS_ALLOC_FAILED;
    }
    int layer;
    if (sscanf(tensor->name, "cache_k_l%d", &layer) == 1 && !tensor->view_src) {
        own->first = own->layers == 0 || layer < own->first ? layer : own->first;
        own->last = own->layers == 0 || layer > own->last ? layer : own->last;
        own->layers++;
        own->k = tensor;
    }
    return GGML_STATUS_SUCCESS;
}

// Which layers' keys and values are where: llama.cpp clears a cache when it has made it. As a warning, since
// llama-server shows no information of ggml by default.
static void say_where(struct buffer *own)
{
    char where[256];
    if (own->said || own->layers == 0)
        return;
    own->said = true;
    cluster_where(where, sizeof where);
    GGML_LOG_WARN("banyan: keys and values of %d layer%s (%d to %d; %s, %lld cells %s) are in %s\n",
                  own->layers, own->layers == 1 ? "" : "s", own->first, own->last,
                  ggml_type_name(own->k->type), (long long)own->k->ne[1],
                  own->k->ne[2] == 1 ? "for all sequences" : "for each sequence", where);
}

struct cache *buffer_cache(const struct ggml_tensor *root)
{
    if (!root->buffer || root->buffer->iface.get_base != get_base || !named_as_cache(root))
        return NULL;
    return ((struct buffer *)root->buffer->context)->cache;
}

bool buffer_is_cache(const struct ggml_tensor *op)
{
    for (int i = -1; i < GGML_MAX_SRC; i++) {
        const struct ggml_tensor *tensor = i < 0 ? op : cache_source(op->src[i]);
        const struct ggml_tensor *root = tensor && tensor->view_src ? tensor->view_src : tensor;
        if (root && root->buffer && root->buffer->buft == buffer_type() && named_as_cache(root))
            return true;
    }
    return false;
}

static size_t offset_in(const struct ggml_tensor *tensor, size_t offset)
{
    return (tensor->view_src ? tensor->view_offs : 0) + offset;
}

static const struct ggml_tensor *root_of(const struct ggml_tensor *tensor)
{
    return tensor->view_src ? tensor->view_src : tensor;
}

static void memset_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t size)
{
    (void)buffer;
    struct cache *cache = buffer_cache(root_of(tensor));
    if (cache)
        cache_lose(cache, "its cells were overwritten with one value");
    else
        memset((char *)tensor->data + offset, value, size);
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t size)
{
    (void)buffer;
    struct cache *cache = buffer_cache(root_of(tensor));
    if (cache)
        cache_put_rows(cache, root_of(tensor), data, offset_in(tensor, offset), size);
    else
        memcpy((char *)tensor->data + offset, data, size);
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t size)
{
    (void)buffer;
    struct cache *cache = buffer_cache(root_of(tensor));
    if (!cache)
        memcpy(data, (const char *)tensor->data + offset, size);
    else if (!cache_get_rows(cache, root_of(tensor), data, offset_in(tensor, offset), size))
        GGML_LOG_ERROR("banyan: %s: %s; the state that is being saved cannot be restored\n", tensor->name,
                       cache->why);
}

static bool cpy_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *src, struct ggml_tensor *dst)
{
    (void)buffer;
    const struct ggml_tensor *from = root_of(src), *to = root_of(dst);
    struct cache *cache = buffer_cache(to);
    if (!cache) {
        if (buffer_cache(from) || src->buffer->iface.get_base != get_base)
            return false;
        memcpy(dst->data, src->data, ggml_nbytes(src));
        return true;
    }
    if (!buffer_cache(from))
        return false; // a state's rows: ggml reads and sets them
    if (buffer_cache(from) == cache && from == to && src->ne[1] == from->ne[1] &&
        offset_in(src, 0) % from->nb[2] == 0 && offset_in(dst, 0) % to->nb[2] == 0)
        cache_copy(cache, (uint32_t)(offset_in(src, 0) / from->nb[2]),
                   (uint32_t)(offset_in(dst, 0) / to->nb[2]));
    else
        cache_lose(cache, "cells were copied in a way that sessions cannot follow");
    return true;
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    struct buffer *own = buffer->context;
    say_where(own);
    if (own->cache)
        cache_clear(own->cache);
    else if (value == 0)
        (void)madvise(own->base, own->size, MADV_DONTNEED);
    else
        memset(own->base, value, own->size);
}

static const struct ggml_backend_buffer_i buffer_interface = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .init_tensor = init_tensor,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .cpy_tensor = cpy_tensor,
    .clear = clear,
};

static const char *type_name(ggml_backend_buffer_type_t type)
{
    (void)type;
    return "Banyan";
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size)
{
    struct buffer *own = calloc(1, sizeof *own);
    if (!own)
        return NULL;
    own->size = size;
    // cppcheck-suppress invalidFunctionArg ; no file: -1
    own->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (own->base == MAP_FAILED) {
        GGML_LOG_ERROR("banyan: cannot reserve %zu bytes of addresses\n", size);
        free(own);
        return NULL;
    }
    return ggml_backend_buffer_init(type, buffer_interface, own, size);
}

static size_t get_alignment(ggml_backend_buffer_type_t type)
{
    (void)type;
    return ALIGNMENT;
}

ggml_backend_buffer_type_t buffer_type(void)
{
    static struct host_type_2 type_2 = {.get_name = type_name,
                                        .alloc_buffer = alloc_buffer,
                                        .get_alignment = get_alignment};
    static struct host_type_3 type_3 = {.get_name = type_name,
                                        .alloc_buffer = alloc_buffer,
                                        .get_alignment = get_alignment};
    type_2.device = type_3.device = plugin_device();
    return (ggml_backend_buffer_type_t)(host_api(NULL, 0) == 3 ? (void *)&type_3 : (void *)&type_2);
}
