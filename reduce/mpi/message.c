// SPDX-License-Identifier: Apache-2.0
#include "reduce/mpi/message.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/hash/hash.h"

struct head {
    struct mpi_message_key key;
    uint32_t n_items, n_texts, n_traces, reserved;
    uint64_t partials; // bytes, 0 or those of the step
};

struct item {
    uint64_t cover_tokens, cover_sum, digest;
    uint32_t appends, code;
};

struct text { // of a failed item
    uint32_t item;
    char message[256], reason[32], worker[65];
};

struct layout {
    size_t items, texts, traces, partials, end;
};

static bool lay_out(uint32_t n_items, uint32_t n_texts, uint32_t n_traces, size_t partials,
                    struct layout *out)
{
    out->items = sizeof(struct head);
    out->texts = out->items + n_items * sizeof(struct item); // counts are below 2^13: no sum wraps
    out->traces = out->texts + n_texts * sizeof(struct text);
    out->traces = (out->traces + 7) & ~(size_t)7;
    out->partials = common_align64(out->traces + n_traces * sizeof(struct proto_trace));
    out->end = out->partials + partials;
    return partials <= INT_MAX && out->end <= INT_MAX;
}

void mpi_message_key_of(const struct proto_step *step, struct mpi_message_key *out)
{
    *out = (struct mpi_message_key){.term = step->term,
                                    .plan = step->plan,
                                    .plan_epoch = step->plan_epoch,
                                    .step = step->step,
                                    .attempt = step->attempt,
                                    .version = MPI_MESSAGE_VERSION};
}

int mpi_message_tag(const struct mpi_message_key *key)
{
    uint64_t tag = common_mix64(key->step ^ common_mix64(key->plan ^ common_mix64(key->term)));
    return (int)(common_mix64(tag ^ key->attempt) >> 34);
}

bool mpi_message_limit(uint32_t n_items, uint32_t traces, size_t partials, size_t *out)
{
    struct layout at;
    uint32_t texts = n_items < MPI_MESSAGE_TEXTS ? n_items : MPI_MESSAGE_TEXTS;
    bool ok = lay_out(n_items, texts, traces, partials, &at);
    *out = at.end;
    return ok;
}

struct common_blob *mpi_message_encode(const struct mpi_message_key *key,
                                       const struct proto_step_result *result,
                                       const struct common_blob *partials)
{
    struct head head = {.key = *key, .n_items = result->n_items, .n_traces = result->n_traces};
    struct layout at;
    for (uint32_t i = 0; i < result->n_items && head.n_texts < MPI_MESSAGE_TEXTS; i++)
        head.n_texts += result->items[i].code != COMMON_OK;
    head.partials = partials ? partials->len : 0;
    if (!lay_out(head.n_items, head.n_texts, head.n_traces, head.partials, &at))
        return NULL;
    struct common_blob *blob = common_blob_new(at.end);
    if (!blob)
        return NULL;
    memcpy(blob->data, &head, sizeof head);
    struct item *items = (struct item *)(blob->data + at.items);
    struct text *texts = (struct text *)(blob->data + at.texts);
    uint32_t n_texts = 0;
    for (uint32_t i = 0; i < result->n_items; i++) {
        const struct proto_step_result_item *from = &result->items[i];
        items[i] = (struct item){.cover_tokens = from->cover_tokens,
                                 .cover_sum = from->cover_sum,
                                 .digest = from->digest,
                                 .appends = from->appends,
                                 .code = (uint32_t)from->code};
        if (from->code == COMMON_OK || n_texts == head.n_texts)
            continue;
        struct text *text = &texts[n_texts++];
        text->item = i;
        memcpy(text->message, from->message, sizeof text->message);
        memcpy(text->reason, from->reason, sizeof text->reason);
        memcpy(text->worker, from->worker, sizeof text->worker);
    }
    memset(blob->data + at.texts + n_texts * sizeof *texts, 0,
           at.traces - at.texts - n_texts * sizeof *texts);
    if (head.n_traces > 0)
        memcpy(blob->data + at.traces, result->traces, head.n_traces * sizeof *result->traces);
    size_t traces_end = at.traces + head.n_traces * sizeof *result->traces;
    memset(blob->data + traces_end, 0, at.partials - traces_end);
    if (partials)
        memcpy(blob->data + at.partials, partials->data, partials->len);
    return blob;
}

static bool ends(const char *text, size_t len)
{
    return memchr(text, 0, len) != NULL;
}

// The counts of a head and the bytes that they come to.
static bool head_fits(const struct head *head, const struct mpi_message_key *key, uint32_t n_items,
                      uint32_t traces, size_t partials, size_t len, struct layout *at)
{
    return memcmp(&head->key, key, sizeof *key) == 0 && head->n_items == n_items &&
           head->n_texts <= MPI_MESSAGE_TEXTS && head->n_texts <= n_items && head->n_traces <= traces &&
           (head->partials == 0 || head->partials == partials) &&
           lay_out(head->n_items, head->n_texts, head->n_traces, (size_t)head->partials, at) &&
           at->end == len;
}

static bool take_texts(const struct text *texts, uint32_t n, struct proto_step_result *result)
{
    for (uint32_t t = 0; t < n; t++) {
        const struct text *from = &texts[t];
        if (from->item >= result->n_items || !ends(from->message, sizeof from->message) ||
            !ends(from->reason, sizeof from->reason) || !ends(from->worker, sizeof from->worker))
            return false;
        struct proto_step_result_item *to = &result->items[from->item];
        memcpy(to->message, from->message, sizeof to->message);
        memcpy(to->reason, from->reason, sizeof to->reason);
        memcpy(to->worker, from->worker, sizeof to->worker);
    }
    return true;
}

static bool take_traces(const void *traces, uint32_t n, struct proto_step_result *result)
{
    if (n > 0)
        memcpy(result->traces, traces, n * sizeof *result->traces);
    result->n_traces = n;
    for (uint32_t i = 0; i < n; i++)
        if (!ends(result->traces[i].worker, sizeof result->traces[i].worker))
            return false;
    return true;
}

enum common_code mpi_message_decode(const struct mpi_message_key *key, uint32_t n_items, uint32_t traces,
                                    size_t partials, struct common_blob *blob, size_t len,
                                    struct proto_step_result **out, struct common_error *err)
{
    struct head head;
    struct layout at;
    if (len < sizeof head || len > blob->len)
        return common_error_set(err, COMMON_INTERNAL, "invalid result of %zu bytes", len);
    memcpy(&head, blob->data, sizeof head);
    if (!head_fits(&head, key, n_items, traces, partials, len, &at))
        return common_error_set(err, COMMON_INTERNAL, "the result belongs to another step");
    struct proto_step_result *result = proto_step_result_new(n_items, traces);
    if (!result)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a result");
    const struct item *items = (const struct item *)(blob->data + at.items);
    bool ok = true;
    for (uint32_t i = 0; i < n_items; i++) {
        ok &= items[i].code <= 16; // canonical codes
        result->items[i].code = (enum common_code)items[i].code;
        result->items[i].cover_tokens = items[i].cover_tokens;
        result->items[i].cover_sum = items[i].cover_sum;
        result->items[i].digest = items[i].digest;
        result->items[i].appends = items[i].appends;
    }
    ok = ok && take_texts((const struct text *)(blob->data + at.texts), head.n_texts, result) &&
         take_traces(blob->data + at.traces, head.n_traces, result);
    if (!ok) {
        proto_step_result_free(result);
        return common_error_set(err, COMMON_INTERNAL, "the result is malformed");
    }
    if (head.partials > 0) {
        result->tensors[0] = blob->data + at.partials;
        result->tensor_bytes[0] = (size_t)head.partials;
        result->n_tensors = 1;
    }
    result->blob = common_blob_ref(blob);
    *out = result;
    return COMMON_OK;
}
