// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/snapshot_session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "client/lib/session/spec.h"
#include "common/base/failpoint.h"
#include "proto/model/spec.h"

#define PIN_TRIES     5   // the session may be truncated between its length and the fork
#define COMMIT_CHUNKS 511 // of one commit, at most

enum common_code snapshot_form_of(const banyan_spec *spec, uint64_t floor, struct snapshot_form **out,
                                  struct common_error *err)
{
    Banyan__Pb__Spec pb;
    banyan_error error;
    void *memory = NULL;
    if (client_spec_to_pb(spec, &pb, &memory, &error) != BANYAN_OK)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "%s", error.message);
    enum common_code code = proto_spec_check(&pb, err);
    struct snapshot_form *form = code == COMMON_OK ? calloc(1, sizeof *form) : NULL;
    if (code == COMMON_OK && !form)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory");
    if (code == COMMON_OK) {
        form->shape = (struct snapshot_shape){.n_layers = pb.layers,
                                              .dtype = (enum common_dtype)pb.kv_type,
                                              .layers = form->layers};
        for (uint32_t l = 0; l < pb.layers; l++) {
            const struct proto_layer layer = proto_spec_layer(&pb, l);
            if (proto_spec_stores(&pb, l))
                form->layers[l] =
                    (struct snapshot_layer){layer.kv_heads, layer.k_dim, layer.v_row ? layer.v_dim : 0,
                                            proto_spec_forgotten(&pb, l, floor)};
        }
        *out = form;
    }
    free(memory);
    return code;
}

// ---- the pin --------------------------------------------------------------------------------------------

// The fork's own, which stays: the session may have forgotten more between the question and the fork.
static banyan_code floor_of(banyan_session *pinned, uint64_t *out, banyan_error *error)
{
    banyan_session_info info;
    banyan_code code = banyan_session_get_info(pinned, &info, error);
    if (code != BANYAN_OK)
        return code;
    *out = info.forgotten;
    banyan_session_info_free(&info);
    return BANYAN_OK;
}

// Truncated, or so much longer that it has forgotten what that length needs.
static bool has_gone_on(const banyan_error *error)
{
    return error->code == BANYAN_OUT_OF_RANGE || error->code == BANYAN_ABORTED ||
           strcmp(error->reason, "FORGOTTEN") == 0;
}

// All up to that length is present, and workers that are away, or were lost, had more: how much is unknown.
static banyan_code lacks_rows(const banyan_session_info *info, banyan_error *why)
{
    return client_error_set(why, BANYAN_UNAVAILABLE,
                            "the session may have more than %" PRIu64
                            " tokens, on workers that are not connected: wait for them. If they are lost for "
                            "good, truncate the session to what is left, then take the snapshot",
                            info->length);
}

// It will not be read. One that cannot be deleted now goes by itself.
static void forsake(banyan_session *pinned)
{
    (void)banyan_session_delete(pinned, NULL);
    banyan_session_close(pinned);
}

banyan_code snapshot_pin(banyan_session *session, uint64_t ttl_ns, uint64_t number, banyan_session **out,
                         banyan_session_info *info, banyan_error *error)
{
    banyan_error why;
    banyan_code code = BANYAN_OK;
    for (int i = 0; i < PIN_TRIES; i++) {
        char name[80];
        banyan_session_info found;
        banyan_session *pinned;
        code = banyan_session_get_info(session, &found, &why);
        if (code != BANYAN_OK)
            break;
        snprintf(name, sizeof name, "snapshot-of-0x%016" PRIx64 "-%" PRIu64 "-%d", found.id, number, i);
        code = banyan_session_pin(session, found.length, ttl_ns, name, &pinned, &why);
        bool made = code == BANYAN_OK;
        if (made && found.unknown_chunks > 0)
            code = lacks_rows(&found, &why);
        if (made && code == BANYAN_OK)
            code = floor_of(pinned, &found.forgotten, &why);
        if (code == BANYAN_OK) {
            *out = pinned;
            *info = found;
            return BANYAN_OK;
        }
        banyan_session_info_free(&found);
        if (made)
            forsake(pinned);
        if (made || !has_gone_on(&why))
            break;
    }
    if (error)
        *error = why;
    return code;
}

// ---- rows -----------------------------------------------------------------------------------------------

banyan_code snapshot_read_rows(banyan_session *pinned, const struct snapshot_file *file,
                               const struct common_safetensor *tensors, size_t n, uint8_t *data,
                               banyan_error *error)
{
    void *k = NULL, *v = NULL;
    float *k_scale = NULL, *v_scale = NULL;
    for (size_t i = 0; i < n; data += tensors[i].bytes, i++) {
        const char *which = strrchr(tensors[i].name, '.') + 1;
        if (strcmp(which, "k") == 0)
            k = data;
        else if (strcmp(which, "v") == 0)
            v = data;
        else if (strcmp(which, "k_scale") == 0)
            k_scale = (float *)data;
        else
            v_scale = (float *)data;
    }
    return banyan_read_rows(pinned, file->layer, file->first, file->tokens, k, k_scale, v, v_scale, error);
}

banyan_code snapshot_put_rows(banyan_session *session, const struct snapshot_file *file,
                              const struct snapshot_rows *rows, banyan_error *error)
{
    banyan_code code =
        rows->k_scale
            ? banyan_attach_scaled(session, file->layer, file->first, file->tokens, rows->k, rows->k_scale,
                                   rows->v, rows->v_scale, error)
            : banyan_attach(session, file->layer, file->first, file->tokens, rows->k, rows->v, error);
    COMMON_FAILPOINT("restore_attached");
    uint64_t most = (uint64_t)banyan_session_spec(session)->chunk_tokens * COMMIT_CHUNKS;
    for (uint64_t left = file->tokens; code == BANYAN_OK && left > 0;) {
        uint64_t n = left < most ? left : most;
        left -= n;
        code = banyan_commit(session, file->layer, file->first + left, n, error);
    }
    COMMON_FAILPOINT("restore_committed");
    return code;
}
