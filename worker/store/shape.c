// SPDX-License-Identifier: Apache-2.0
#include "worker/store/shape.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory/blob.h"
#include "proto/model/kv.h"
#include "proto/model/spec.h"

static struct worker_head head_of(const struct worker_form *form, uint32_t tokens)
{
    struct worker_head head = {.bytes = 0};
    for (uint32_t part = 0; part < WORKER_PARTS; part++) {
        head.at[part] = head.bytes;
        head.bytes += common_align64((size_t)tokens * form->row[part]);
    }
    return head;
}

static struct worker_form form_new(uint32_t kv_type, uint32_t chunk_tokens, const struct proto_layer *layer)
{
    uint32_t element = proto_kv_element_bytes(kv_type), scale = proto_kv_scaled(kv_type) ? sizeof(float) : 0;
    struct worker_form form = {.kv_heads = layer->kv_heads, .k_wire = layer->k_row, .v_wire = layer->v_row};
    form.row[WORKER_PART_K] = layer->k_dim * element;
    form.row[WORKER_PART_V] = layer->v_in_k ? 0 : layer->v_dim * element;
    form.row[WORKER_PART_K_SCALE] = scale;
    form.row[WORKER_PART_V_SCALE] = layer->v_in_k ? 0 : scale;
    for (enum worker_part part = 0; part < WORKER_PARTS; part++)
        if (form.row[part])
            form.parts[form.n_parts++] = part;
    form.in_page = head_of(&form, WORKER_PAGE_TOKENS);
    form.in_block = head_of(&form, chunk_tokens);
    form.page_bytes = form.kv_heads * form.in_page.bytes;
    form.block_bytes = form.kv_heads * form.in_block.bytes;
    return form;
}

struct worker_shape *worker_shape_new(const Banyan__Pb__Spec *spec)
{
    struct worker_shape *shape = calloc(1, sizeof *shape + spec->layers);
    uint32_t n_forms = spec->n_kinds ? (uint32_t)spec->n_kinds : 1;
    struct worker_form *forms = calloc(n_forms, sizeof *forms);
    if (!shape || !forms) {
        free(shape);
        free(forms);
        return NULL;
    }
    shape->refs = 1;
    shape->layers = spec->layers;
    shape->chunk_tokens = spec->chunk_tokens ? spec->chunk_tokens : WORKER_CHUNK_TOKENS;
    shape->kv_type = spec->kv_type;
    shape->forms = forms;
    shape->n_forms = n_forms;
    for (uint32_t l = 0; l < spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(spec, l);
        uint32_t kind = spec->n_kinds ? spec->layer_kind[l] : 0;
        shape->form_of[l] = proto_spec_stores(spec, l) ? (uint8_t)kind : WORKER_FORM_NONE;
        if (!proto_spec_stores(spec, l))
            continue;
        forms[kind] = form_new(shape->kv_type, shape->chunk_tokens, &layer);
        shape->k_wire = layer.k_row > shape->k_wire ? layer.k_row : shape->k_wire;
        shape->v_wire = layer.v_row > shape->v_wire ? layer.v_row : shape->v_wire;
    }
    return shape;
}

struct worker_shape *worker_shape_ref(struct worker_shape *shape)
{
    shape->refs++;
    return shape;
}

void worker_shape_unref(struct worker_shape *shape)
{
    if (!shape || --shape->refs > 0)
        return;
    free(shape->forms);
    free(shape);
}

bool worker_shape_equal(const struct worker_shape *a, const struct worker_shape *b)
{
    if (a == b)
        return true;
    if (a->layers != b->layers || a->chunk_tokens != b->chunk_tokens || a->kv_type != b->kv_type)
        return false;
    for (uint32_t l = 0; l < a->layers; l++) {
        const struct worker_form *x = worker_shape_form(a, l), *y = worker_shape_form(b, l);
        if (!x != !y || (x && (x->kv_heads != y->kv_heads || memcmp(x->row, y->row, sizeof x->row) != 0)))
            return false;
    }
    return true;
}

uint64_t worker_shape_bytes(const struct worker_shape *shape)
{
    return sizeof *shape + shape->layers + shape->n_forms * sizeof *shape->forms;
}
