// SPDX-License-Identifier: Apache-2.0
// Which of a file's tensors are K and V of which layer: layers.N.k, layers.N.v, layers.N.k_scale,
// layers.N.v_scale (ctl_kv.h says what they hold); and their way into a session.
#ifndef CLIENT_CTL_LAYERS_H
#define CLIENT_CTL_LAYERS_H

#include "client/ctl/kv.h"

#define CTL_LAYERS_ALL UINT64_MAX

// Finds the tensors of layer `only`, or of all that are there, and checks them against the spec; what is
// wrong is reported on stderr. layers: [spec->layers], zeroed. *n_layers: how many of them have K.
enum ctl_exit ctl_layers_collect(const struct common_safetensors *file, const banyan_spec *spec,
                                 uint64_t only, struct ctl_kv *layers, uint32_t *n_layers);

struct ctl_layers_sent {
    uint64_t tokens; // of the longest layer
    uint64_t bytes;  // of the file
};
// Attaches what was collected, from position `first` on, and commits it.
enum ctl_exit ctl_layers_send(banyan_session *session, const struct ctl_kv *layers, uint64_t first,
                              bool commit, struct ctl_layers_sent *sent);

// Fills in what the spec leaves at 0: layers, heads, dimensions and KV type, as the first tensors have them.
// As many query heads as KV heads: a file does not say how many. It may be no spec that can be:
// ctl_layers_collect finds that.
void ctl_layers_shape(const struct common_safetensors *file, banyan_spec *spec);

#endif
