// SPDX-License-Identifier: Apache-2.0
#include "coordinator/steps/mass_message.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/cluster/hide.h"

#define NAMES_MAX 1024

struct room { // everything lies in one block, in this order
    Banyan__Pb__MassInfo *infos;
    uint64_t *tokens;
    Banyan__Pb__MassInfo **info_list;
    char **names;
    struct common_slice *pieces;
    uint32_t *workers;
};

static uint32_t index_of(struct coordinator_mass_message *out, char *name)
{
    for (size_t i = 0; i < out->n_names; i++)
        if (strcmp(out->names[i], name) == 0)
            return (uint32_t)i;
    if (out->n_names == NAMES_MAX)
        return UINT32_MAX;
    out->names[out->n_names] = name;
    return (uint32_t)out->n_names++;
}

static void fill(struct coordinator_mass_message *out, struct room *at, Banyan__Pb__MassInfo *info,
                 const struct coordinator_masses *m, bool named)
{
    size_t values = m->rows * m->heads * coordinator_masses_columns(m);
    *info = (Banyan__Pb__MassInfo)BANYAN__PB__MASS_INFO__INIT;
    info->visible = m->visible;
    if (m->failure.code != COMMON_OK) {
        struct proto_status failure = m->failure;
        coordinator_status_for(named, &failure);
        info->status = proto_status_to_pb(&failure);
        return;
    }
    info->rows = m->rows;
    info->heads = m->heads;
    info->bins = m->bins;
    info->bin_tokens = m->bin_tokens;
    info->n_workers = info->n_tokens = m->n_workers;
    info->workers = at->workers;
    info->tokens = at->tokens;
    for (uint32_t w = 0; w < m->n_workers; w++) {
        *at->workers++ = index_of(out, m->names[w]);
        *at->tokens++ = m->tokens[w];
    }
    at->pieces[out->tensor.n_pieces++] = (struct common_slice){m->values, values * sizeof(float)};
    out->tensor.dims[0] += values;
}

static bool number_names(struct coordinator_mass_message *out)
{
    out->numbered = calloc(out->n_names + 1, sizeof(*out->numbered));
    if (!out->numbered)
        return false;
    for (size_t i = 0; i < out->n_names; i++) {
        snprintf(out->numbered[i], sizeof(*out->numbered), "worker-%zu", i);
        out->names[i] = out->numbered[i];
    }
    return true;
}

bool coordinator_mass_message_init(struct coordinator_mass_message *out,
                                   struct coordinator_masses *const *masses, size_t n, bool named)
{
    size_t workers = 0, names;
    for (size_t i = 0; i < n; i++)
        workers += masses[i] ? masses[i]->n_workers : 0;
    names = workers < NAMES_MAX ? workers : NAMES_MAX;
    struct room at;
    size_t bytes = n * (sizeof(*at.infos) + sizeof(void *) + sizeof(*at.pieces)) +
                   workers * (sizeof(*at.tokens) + sizeof(*at.workers)) + names * sizeof(char *);
    *out = (struct coordinator_mass_message){.n = n, .block = calloc(1, bytes + 1)};
    if (!out->block)
        return false;
    at.infos = out->block;
    at.tokens = (uint64_t *)(void *)(at.infos + n);
    at.info_list = (Banyan__Pb__MassInfo **)(void *)(at.tokens + workers);
    at.names = (char **)(void *)(at.info_list + n);
    at.pieces = (struct common_slice *)(void *)(at.names + names);
    at.workers = (uint32_t *)(void *)(at.pieces + n);
    out->infos = at.info_list;
    out->names = at.names;
    out->tensor =
        (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32, .n_dims = 1, .pieces = at.pieces};
    for (size_t i = 0; i < n; i++) {
        if (!masses[i])
            continue;
        out->infos[i] = &at.infos[i];
        fill(out, &at, &at.infos[i], masses[i], named);
    }
    return named || number_names(out);
}

void coordinator_mass_message_fini(struct coordinator_mass_message *message)
{
    for (size_t i = 0; message->block && i < message->n; i++)
        if (message->infos[i])
            proto_status_pb_free(message->infos[i]->status);
    free(message->numbered);
    free(message->block);
    *message = (struct coordinator_mass_message){0};
}
