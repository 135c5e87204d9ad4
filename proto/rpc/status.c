// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum common_code proto_status_set(struct proto_status *status, enum common_code code, const char *reason,
                                  const char *fmt, ...)
{
    struct proto_status fresh = {.code = code};
    snprintf(fresh.reason, sizeof fresh.reason, "%s", reason ? reason : "");
    va_list args;
    va_start(args, fmt);
    vsnprintf(fresh.message, sizeof fresh.message, fmt, args);
    va_end(args);
    *status = fresh;
    return code;
}

void proto_status_add_range(struct proto_status *status, uint64_t first, uint64_t count)
{
    if (status->n_ranges < PROTO_STATUS_RANGES) {
        status->ranges[status->n_ranges++] = (struct proto_range){first, count};
        return;
    }
    struct proto_range *last = &status->ranges[PROTO_STATUS_RANGES - 1];
    uint64_t end = first + count < first ? UINT64_MAX : first + count;
    uint64_t last_end = last->first + last->count < last->first ? UINT64_MAX : last->first + last->count;
    if (first < last->first)
        last->first = first;
    last->count = (end > last_end ? end : last_end) - last->first;
}

void proto_status_add_worker(struct proto_status *status, const char *name)
{
    if (status->n_workers < PROTO_STATUS_WORKERS)
        snprintf(status->workers[status->n_workers++], sizeof status->workers[0], "%s", name);
}

// Status, detail, ranges and copies of all strings in one allocation; their sizes are those of the struct.
struct packed_status {
    Banyan__Pb__Status status;
    Banyan__Pb__Detail detail, *details[1];
    Banyan__Pb__Range ranges[PROTO_STATUS_RANGES], *range_list[PROTO_STATUS_RANGES];
    char *worker_list[PROTO_STATUS_WORKERS];
    struct proto_status copy;
};

// Of a failure for whose words there is no memory. It is no verdict, whatever the failure was: so that no
// append is taken for refused, or rows for lost, without its reason.
#define NO_MEMORY "the server is out of memory for the reason of a failure: try again"
static Banyan__Pb__Detail no_memory_detail = {
    .base = PROTOBUF_C_MESSAGE_INIT(&banyan__pb__detail__descriptor), .reason = (char *)"UNCONFIRMED"};
static Banyan__Pb__Detail *no_memory_details[] = {&no_memory_detail};
static Banyan__Pb__Status no_memory = {.base = PROTOBUF_C_MESSAGE_INIT(&banyan__pb__status__descriptor),
                                       .code = COMMON_UNAVAILABLE,
                                       .message = (char *)NO_MEMORY,
                                       .n_details = 1,
                                       .details = no_memory_details};

Banyan__Pb__Status *proto_status_to_pb(const struct proto_status *status)
{
    struct packed_status *p = malloc(sizeof *p);
    if (!p)
        return &no_memory;
    p->copy = *status;
    banyan__pb__status__init(&p->status);
    p->status.code = (uint32_t)status->code;
    p->status.message = p->copy.message;
    if (!status->reason[0] && !status->session && !status->chunk && !status->layer && !status->n_ranges &&
        !status->n_workers && !status->retry_ns)
        return &p->status;
    banyan__pb__detail__init(&p->detail);
    p->detail.reason = p->copy.reason;
    p->detail.session = status->session;
    p->detail.layer = status->layer;
    p->detail.chunk = status->chunk;
    p->detail.retry_ns = status->retry_ns;
    for (uint32_t i = 0; i < status->n_ranges; i++) {
        banyan__pb__range__init(&p->ranges[i]);
        p->ranges[i].first = status->ranges[i].first;
        p->ranges[i].count = status->ranges[i].count;
        p->range_list[i] = &p->ranges[i];
    }
    for (uint32_t i = 0; i < status->n_workers; i++)
        p->worker_list[i] = p->copy.workers[i];
    p->detail.n_ranges = status->n_ranges;
    p->detail.ranges = p->range_list;
    p->detail.n_workers = status->n_workers;
    p->detail.workers = p->worker_list;
    p->details[0] = &p->detail;
    p->status.n_details = 1;
    p->status.details = p->details;
    return &p->status;
}

void proto_status_pb_free(Banyan__Pb__Status *pb)
{
    if (pb != &no_memory)
        free(pb); // the first member of its allocation
}

void proto_status_from_pb(const Banyan__Pb__Status *pb, struct proto_status *out)
{
    struct proto_status fresh = {.code = COMMON_OK};
    if (pb) {
        fresh.code = common_code_valid((int)pb->code) ? (enum common_code)pb->code : COMMON_UNKNOWN;
        snprintf(fresh.message, sizeof fresh.message, "%s", pb->message);
    }
    // One detail is what this end makes of several: the first.
    if (pb && pb->n_details > 0) {
        const Banyan__Pb__Detail *detail = pb->details[0];
        snprintf(fresh.reason, sizeof fresh.reason, "%s", detail->reason);
        fresh.session = detail->session;
        fresh.layer = detail->layer;
        fresh.chunk = detail->chunk;
        fresh.retry_ns = detail->retry_ns;
        for (size_t i = 0; i < detail->n_ranges; i++)
            proto_status_add_range(&fresh, detail->ranges[i]->first, detail->ranges[i]->count);
        for (size_t i = 0; i < detail->n_workers; i++)
            proto_status_add_worker(&fresh, detail->workers[i]);
    }
    *out = fresh;
}

void proto_request_fail_status(struct proto_request *request, const struct proto_status *status)
{
    Banyan__Pb__Status *pb = proto_status_to_pb(status);
    proto_request_fail(request, (enum common_code)pb->code, pb->message, pb->details, pb->n_details);
    proto_status_pb_free(pb);
}
