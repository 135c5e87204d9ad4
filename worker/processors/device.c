// SPDX-License-Identifier: Apache-2.0
#include "worker/processors/device.h"

#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "worker/memory/arena.h"
#include "worker/processors/module.h"

struct worker_device {
    const struct kernels_device_ops *ops;
    struct kernels_device *handle;
    struct kernels_device_info info;
    char name[48];
    char text[160];
    struct common_loop *loop;
    void (*on_lost)(void *arg, const struct common_error *err);
    void *on_lost_arg;
    bool told;                    // that it is lost
    struct common_mail told_mail; // once
    struct common_error why;
    struct worker_device_job *waiting, **tail; // for others to end
};

// ---- the module ---------------------------------------------------------------------------------

static enum common_code module_load(const char *path, const struct kernels_device_ops **out,
                                    struct common_error *err)
{
    const void *symbol;
    enum common_code code = worker_module_open(path, KERNELS_DEVICE_SYMBOL, &symbol, err);
    if (code != COMMON_OK)
        return code;
    const struct kernels_device_ops *ops = symbol;
    if (ops->abi != KERNELS_DEVICE_ABI || ops->size != sizeof *ops)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "%.200s is not a device module of this version", path);
    *out = ops;
    return COMMON_OK;
}

// ---- choosing -----------------------------------------------------------------------------------

// "cuda:0". False: it is none.
static bool name_parse(const char *wanted, char name[32], uint32_t *index)
{
    const char *colon = strchr(wanted, ':');
    size_t len = colon ? (size_t)(colon - wanted) : 0;
    if (len < 1 || len > 31 || strspn(wanted, "abcdefghijklmnopqrstuvwxyz0123456789-") != len ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) < 1 ||
        strlen(colon + 1) > 4)
        return false;
    memcpy(name, wanted, len);
    name[len] = '\0';
    *index = (uint32_t)strtoul(colon + 1, NULL, 10);
    return true;
}

static enum common_code open_at(const struct worker_device_options *options,
                                const struct kernels_device_ops *ops, uint32_t index,
                                struct worker_device **out, struct common_error *err)
{
    struct worker_device *device = calloc(1, sizeof *device);
    if (!device)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory");
    enum common_code code = ops->open(index, options->limit_bytes, &device->handle, err);
    if (code != COMMON_OK) {
        free(device);
        return code;
    }
    device->ops = ops;
    device->tail = &device->waiting;
    ops->info(device->handle, &device->info);
    snprintf(device->name, sizeof device->name, "%.30s:%u", ops->name, index);
    snprintf(device->text, sizeof device->text, "%s (%.96s)", device->name, device->info.name);
    *out = device;
    return COMMON_OK;
}

// The device that the fewest workers of this host took.
static uint32_t share_out(const struct worker_device_options *options, const struct kernels_device_ops *ops,
                          uint32_t count)
{
    for (uint32_t slot = 0; options->place && slot < 64; slot++)
        for (uint32_t i = 0; i < count; i++)
            if (worker_place_take(options->place, slot, ops->name, i))
                return i;
    return 0;
}

// Device files of NVIDIA's driver, or its library, which a module has loaded to ask it.
static bool hardware_is_there(const char *folder)
{
    bool found = false;
    DIR *dir = opendir(folder ? folder : "/dev");
    const struct dirent *entry;
    // cppcheck-suppress readdirCalled ; the stream is this function's
    while (dir && !found && (entry = readdir(dir)))
        found = strncmp(entry->d_name, "nvidia", 6) == 0;
    if (dir)
        closedir(dir);
    void *library = found ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return found || library;
}

// The processor instead of a device. Where there is hardware, the machine was most likely meant to compute on it.
static void keep_why(const struct worker_device_options *options, const struct common_error *why,
                     char no_device[PROTO_NO_DEVICE_MAX + 1])
{
    if (why->code != COMMON_FAILED_PRECONDITION && !hardware_is_there(options->dev)) {
        common_log(options->module ? COMMON_LOG_INFO : COMMON_LOG_DEBUG, "device=cpu: %s", why->message);
        return;
    }
    snprintf(no_device, PROTO_NO_DEVICE_MAX + 1, "%.*s", PROTO_NO_DEVICE_MAX, why->message);
    for (char *at = no_device; *at; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
    common_log_warn("device=cpu: %s", why->message);
}

static enum common_code open_auto(const struct worker_device_options *options, struct worker_device **out,
                                  char no_device[PROTO_NO_DEVICE_MAX + 1], struct common_error *err)
{
    char path[4096];
    const struct kernels_device_ops *ops = NULL;
    struct common_error why = {0};
    if (!options->module && !worker_module_find("cuda", path, sizeof path)) {
        common_error_set(&why, COMMON_UNAVAILABLE,
                         "there is no module banyan-cuda.so beside the program or in ../lib");
        keep_why(options, &why, no_device);
        return COMMON_OK;
    }
    enum common_code code = module_load(options->module ? options->module : path, &ops, &why);
    if (code != COMMON_OK && options->module) // a module that was named is meant
        return common_error_set(err, code, "%s", why.message);
    uint32_t count = 0;
    if (code != COMMON_OK) {
        why.code = COMMON_UNAVAILABLE; // it does not mention hardware
    } else {
        common_error_set(&why, COMMON_UNAVAILABLE, "the module sees no device");
        count = ops->count(&why);
    }
    if (count == 0) {
        keep_why(options, &why, no_device);
        return COMMON_OK;
    }
    return open_at(options, ops, share_out(options, ops, count), out, err);
}

enum common_code worker_device_open(const struct worker_device_options *options, struct worker_device **out,
                                    char no_device[PROTO_NO_DEVICE_MAX + 1], struct common_error *err)
{
    char name[32], path[4096], unread[PROTO_NO_DEVICE_MAX + 1];
    uint32_t index;
    const struct kernels_device_ops *ops = NULL;
    *out = NULL;
    no_device = no_device ? no_device : unread;
    no_device[0] = '\0';
    if (strcmp(options->wanted, "cpu") == 0)
        return COMMON_OK;
    if (strcmp(options->wanted, "auto") == 0)
        return open_auto(options, out, no_device, err);
    if (!name_parse(options->wanted, name, &index))
        return common_error_set(
            err, COMMON_INVALID_ARGUMENT,
            "--device must be auto, cpu or NAME:INDEX such as cuda:0; try 'banyan-worker --help'");
    if (!options->module && !worker_module_find(name, path, sizeof path))
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "there is no module banyan-%s.so beside the program: give --device-module",
                                name);
    enum common_code code = module_load(options->module ? options->module : path, &ops, err);
    if (code != COMMON_OK)
        return code;
    if (strcmp(ops->name, name) != 0)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the module serves devices named %.31s, not %s", ops->name, name);
    return open_at(options, ops, index, out, err);
}

void worker_device_close(struct worker_device *device)
{
    if (!device)
        return;
    assert(!device->waiting);
    device->ops->close(device->handle);
    free(device);
}

const struct kernels_device_info *worker_device_info(const struct worker_device *device)
{
    return &device->info;
}

const char *worker_device_text(const struct worker_device *device)
{
    return device ? device->text : "cpu";
}

const char *worker_device_name(const struct worker_device *device)
{
    return device ? device->name : NULL;
}

const char *worker_device_spec_problem(const struct worker_device *device, const struct kernels_spec *spec)
{
    return device->ops->spec_problem(spec);
}

enum common_code worker_device_bandwidth(struct worker_device *device, uint64_t *bytes_per_s,
                                         struct common_error *err)
{
    double measured = 0;
    enum common_code code = device->ops->bandwidth(device->handle, &measured, err);
    if (code == COMMON_OK && !(measured >= 1 && measured < 1e18))
        return common_error_set(err, COMMON_INTERNAL,
                                "the device's bandwidth cannot be measured: give --bandwidth");
    if (code == COMMON_OK)
        *bytes_per_s = (uint64_t)measured;
    return code;
}

// ---- being lost ---------------------------------------------------------------------------------

static void device_tell_lost(void *arg)
{
    struct worker_device *device = arg;
    device->on_lost(device->on_lost_arg, &device->why);
}

static void device_see(struct worker_device *device, enum common_code code, const struct common_error *err)
{
    if (code != COMMON_UNAVAILABLE || device->told)
        return;
    device->told = true;
    device->why = *err;
    if (device->loop)
        common_loop_mail(device->loop, &device->told_mail, device_tell_lost, device);
}

void worker_device_attach(struct worker_device *device, struct common_loop *loop,
                          void (*lost)(void *arg, const struct common_error *err), void *arg)
{
    device->loop = loop;
    device->on_lost = lost;
    device->on_lost_arg = arg;
}

// ---- jobs ---------------------------------------------------------------------------------------

static void start_waiting(struct worker_device *device);

static void job_report(void *arg)
{
    struct worker_device_job *job = arg;
    struct worker_device *device = job->device;
    device_see(device, job->code, &job->err);
    job->done(job->arg, job->code, &job->err); // the job may be gone
    start_waiting(device);
}

static void job_end(struct worker_device_job *job, enum common_code code, const struct common_error *err)
{
    job->code = code;
    if (err)
        job->err = *err;
    common_loop_mail(job->device->loop, &job->mail, job_report, job);
}

static void module_done(void *arg, enum common_code code,
                        const struct common_error *err) // a thread of its own
{
    job_end(arg, code, code == COMMON_OK ? NULL : err);
}

// False: too many are under way.
static bool job_start(struct worker_device_job *job)
{
    struct worker_device *device = job->device;
    struct common_error err;
    enum common_code code =
        device->ops->submit(device->handle, job->items, job->n, job->sink, module_done, job, &err);
    if (code == COMMON_IN_PROGRESS)
        return false;
    if (code == COMMON_INVALID_ARGUMENT) { // was checked: our mistake
        char text[sizeof err.message];
        memcpy(text, err.message, sizeof text);
        code = common_error_set(&err, COMMON_INTERNAL, "the device refuses a step: %.180s", text);
    }
    if (code != COMMON_OK)
        job_end(job, code, &err);
    return true;
}

static void start_waiting(struct worker_device *device)
{
    while (device->waiting) {
        struct worker_device_job *job = device->waiting;
        job->waiting = false; // before it starts: it may end at once
        if (!job_start(job)) {
            job->waiting = true;
            return;
        }
        device->waiting = job->next;
        if (!device->waiting)
            device->tail = &device->waiting;
    }
}

void worker_device_submit(struct worker_device *device, struct worker_device_job *job)
{
    assert(job->n > 0 && device->loop);
    job->device = device;
    job->next = NULL;
    job->waiting = true;
    *device->tail = job;
    device->tail = &job->next;
    if (device->waiting == job)
        start_waiting(device);
}

void worker_device_cancel(struct worker_device *device, struct worker_device_job *job)
{
    if (!job->waiting)
        return;
    struct worker_device_job **at = &device->waiting;
    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    if (!job->next)
        device->tail = at;
    job->waiting = false;
    struct common_error err;
    job_end(job, common_error_set(&err, COMMON_CANCELLED, "cancelled"), &err);
}

// ---- memory -------------------------------------------------------------------------------------

static void *memory_map(void *arg, size_t bytes)
{
    struct worker_device *device = arg;
    struct common_error err;
    uint64_t address = 0;
    enum common_code code = device->ops->alloc(device->handle, bytes, &address, &err);
    device_see(device, code, &err);
    return code == COMMON_OK ? (void *)(uintptr_t)address : NULL;
}

static void memory_unmap(void *arg, void *base, size_t bytes)
{
    struct worker_device *device = arg;
    (void)bytes;
    device->ops->free(device->handle, (uintptr_t)base);
}

enum { PIECES = 64 };

// Hands pieces to the module, some at a time. `of` is its write or its read.
static enum common_code
pieces_move(struct worker_device *device, const struct worker_piece *pieces, uint32_t n,
            enum common_code (*of)(struct kernels_device *, const struct kernels_device_piece *, uint32_t,
                                   struct common_error *))
{
    struct kernels_device_piece out[PIECES];
    enum common_code code = COMMON_OK;
    struct common_error err;
    for (uint32_t at = 0, some; code == COMMON_OK && at < n; at += some) {
        some = n - at < PIECES ? n - at : PIECES;
        for (uint32_t i = 0; i < some; i++)
            out[i] = (struct kernels_device_piece){.device = (uintptr_t)pieces[at + i].memory,
                                                   .device_pitch = pieces[at + i].pitch,
                                                   .host = pieces[at + i].host,
                                                   .host_pitch = pieces[at + i].host_pitch,
                                                   .width = pieces[at + i].width,
                                                   .height = pieces[at + i].height};
        code = of(device->handle, out, some, &err);
    }
    assert(code == COMMON_OK || code == COMMON_UNAVAILABLE); // others would be our mistake
    device_see(device, code, &err);
    return code;
}

static void device_write(void *arg, const struct worker_piece *pieces, uint32_t n)
{
    struct worker_device *device = arg;
    pieces_move(device, pieces, n, device->ops->write);
}

static void device_read(void *arg, const struct worker_piece *pieces, uint32_t n)
{
    struct worker_device *device = arg;
    if (pieces_move(device, pieces, n, device->ops->read) == COMMON_OK)
        return;
    for (const struct worker_piece *piece = pieces; piece < pieces + n; piece++)
        for (uint64_t i = 0; i < piece->height; i++)
            memset(piece->host + i * piece->host_pitch, 0, piece->width);
}

static void device_copy(void *arg, const struct worker_copy *copies, uint32_t n)
{
    struct worker_device *device = arg;
    struct kernels_device_copy out[PIECES];
    struct common_error err;
    enum common_code code = COMMON_OK;
    for (uint32_t at = 0, some; code == COMMON_OK && at < n; at += some) {
        some = n - at < PIECES ? n - at : PIECES;
        for (uint32_t i = 0; i < some; i++)
            out[i] = (struct kernels_device_copy){.to = (uintptr_t)copies[at + i].to,
                                                  .to_pitch = copies[at + i].to_pitch,
                                                  .from = (uintptr_t)copies[at + i].from,
                                                  .from_pitch = copies[at + i].from_pitch,
                                                  .width = copies[at + i].width,
                                                  .height = copies[at + i].height};
        code = device->ops->copy(device->handle, out, some, &err);
    }
    device_see(device, code, &err);
}

static bool device_lost(void *arg, struct common_error *err)
{
    struct worker_device *device = arg;
    if (!device->told && device->ops->lost(device->handle, err))
        device_see(device, COMMON_UNAVAILABLE, err);
    if (device->told)
        common_error_set(err, COMMON_UNAVAILABLE, "the device is lost: %.200s", device->why.message);
    return device->told;
}

struct worker_memory *worker_memory_of_device(uint64_t limit_bytes, struct worker_device *device)
{
    static const struct worker_memory_ops ops = {
        .write = device_write, .read = device_read, .copy = device_copy, .lost = device_lost};
    const struct worker_arena_source source = {.map = memory_map, .unmap = memory_unmap, .arg = device};
    return worker_memory_new(limit_bytes, &source, &ops, device, device);
}
