// SPDX-License-Identifier: Apache-2.0
// A session's spec for people and files: JSON with the names of banyan_spec's fields. Layers that are alike
// have their fields beside "layers"; others have "kinds" (a list of objects), "layer_kind", "shares" and
// "layer_sinks" (lists with an entry a layer, null: nothing held, nothing shared, no sinks).
#ifndef CLIENT_CTL_SPEC_H
#define CLIENT_CTL_SPEC_H

#include "client/ctl/ctl.h"

// What the layer is; q_heads 0: it holds nothing in the session.
banyan_kind ctl_layer_kind(const banyan_spec *spec, uint32_t layer);

const char *ctl_type_name(banyan_kv_type type);
banyan_kv_type ctl_type_parse(const char *name); // 0: none

json_t *ctl_spec_json(const banyan_spec *spec);
json_t *
ctl_spec_lines(const banyan_spec *spec); // a list of lines, one a kind; where layers are alike, what has no
                                         // field of its own

struct ctl_spec_file;
// Reads a file; what the spec points to lives until the file is freed. Reports a failure on stderr.
enum ctl_exit ctl_spec_read(const char *path, banyan_spec *spec, struct ctl_spec_file **out);
// The same of JSON that is there already. NULL: *wrong names the field that is wrong, or it is NULL: out of
// memory.
struct ctl_spec_file *ctl_spec_parse(const json_t *from, banyan_spec *spec, const char **wrong);
void ctl_spec_file_free(struct ctl_spec_file *file); // NULL is allowed

#endif
