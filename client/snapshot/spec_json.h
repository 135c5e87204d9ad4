// SPDX-License-Identifier: Apache-2.0
// A session's spec for files: JSON with the names of banyan_spec's fields. Layers that are alike have their
// fields beside "layers"; others have "kinds" (a list of objects), "layer_kind", "shares" and "layer_sinks"
// (lists with an entry a layer, null: nothing held, nothing shared, no sinks).
#ifndef CLIENT_SNAPSHOT_SPEC_JSON_H
#define CLIENT_SNAPSHOT_SPEC_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "client/banyan.h"

// What the layer is; q_heads 0: it holds nothing in the session.
banyan_kind snapshot_layer_kind(const banyan_spec *spec, uint32_t layer);

const char *snapshot_type_name(banyan_kv_type type);
banyan_kv_type snapshot_type_parse(const char *name); // 0: none

json_t *snapshot_spec_json(const banyan_spec *spec); // NULL: out of memory

struct snapshot_spec_memory;
// What the spec points to lives until the memory is freed. NULL: *wrong names the field that is wrong, or it
// is NULL: out of memory.
struct snapshot_spec_memory *snapshot_spec_parse(const json_t *from, banyan_spec *spec, const char **wrong);
void snapshot_spec_free(struct snapshot_spec_memory *memory); // NULL is allowed

#endif
