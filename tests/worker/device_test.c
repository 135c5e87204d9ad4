// SPDX-License-Identifier: Apache-2.0
// A device behind its module: choosing it, its memory, jobs in line, cancelling, and being lost. argv[1]: the
// emulated module; argv[2]: "driver", of too old a one, "none", or which kernel faults.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log/log.h"
#include "worker/memory/memory.h"
#include "worker/processors/device.h"

enum { DIM = 64, KEYS = 16, JOBS = 12 };

static const char *module;

static const struct kernels_spec spec = {
    .kv_type = KERNELS_KV_F32, .k_dim = DIM, .v_dim = DIM, .q_heads = 1, .kv_heads = 1, .scale = 0.125f};

static const char *dev = "/proc/self"; // device files: none of NVIDIA's
static char no_device[PROTO_NO_DEVICE_MAX + 1];

static enum common_code open_device(const char *wanted, const char *path, struct worker_device **out)
{
    struct worker_device_options options = {
        .wanted = wanted, .module = path, .limit_bytes = 64 << 20, .dev = dev};
    struct common_error err;
    memset(no_device, 'x', sizeof no_device);
    enum common_code code = worker_device_open(&options, out, no_device, &err);
    assert_non_null(memchr(no_device, '\0', sizeof no_device));
    return code;
}

static void it_is_chosen_by_name(void **state)
{
    (void)state;
    struct worker_device *device = NULL;
    assert_int_equal(open_device("cpu", NULL, &device), COMMON_OK);
    assert_null(device);
    assert_int_equal(open_device("auto", NULL, &device), COMMON_OK); // there is none beside this program
    assert_null(device);
    assert_string_equal(no_device, "");
    static const char *const wrong[] = {"",        "cuda",   "cuda:",  ":0",      "cuda:x",
                                        "cuda:0x", "CUDA:0", "../x:0", "cuda:-1", "cuda:123456"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(open_device(wrong[i], module, &device), COMMON_INVALID_ARGUMENT);
    assert_int_equal(open_device("cuda:0", "/nowhere/banyan-cuda.so", &device), COMMON_FAILED_PRECONDITION);
    assert_int_equal(open_device("auto", "/nowhere/banyan-cuda.so", &device), COMMON_FAILED_PRECONDITION);
    assert_int_equal(open_device("cuda:0", "/proc/self/exe", &device), COMMON_FAILED_PRECONDITION);
    assert_int_equal(open_device("rocm:0", module, &device), COMMON_FAILED_PRECONDITION);
    assert_int_not_equal(open_device("cuda:9999", module, &device), COMMON_OK);
    assert_int_equal(open_device("auto", module, &device), COMMON_OK);
    assert_non_null(device);
    assert_true(strncmp(worker_device_text(device), "cuda:0 (", 8) == 0);
    assert_string_equal(worker_device_text(NULL), "cpu");
    assert_string_equal(no_device, "");
    worker_device_close(device);
    worker_device_close(NULL);
}

// Without a module, and with one that sees no device: news where there is hardware, and where it was looked
// for.
static void why_there_is_no_device(void **state)
{
    (void)state;
    struct worker_device *device = NULL;
    char folder[] = "/tmp/banyan-device-test-XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/nvidia0", folder);
    common_log_set_level(COMMON_LOG_ERROR);
    dev = folder;
    for (int there = 0; there < 2; there++) {
        if (there)
            assert_int_equal(close(creat(file, 0600)), 0);
        assert_int_equal(open_device("auto", NULL, &device), COMMON_OK);
        assert_null(device);
        assert_int_equal(no_device[0] != '\0',
                         there); // which one lies beside this program depends on the build
        assert_int_equal(open_device("auto", module, &device), COMMON_OK);
        assert_null(device);
        assert_int_equal(strstr(no_device, "no CUDA device") != NULL, there);
        assert_int_equal(open_device("cpu", module, &device), COMMON_OK);
        assert_string_equal(no_device, "");
    }
    unlink(file);
    rmdir(folder);
    dev = "/proc/self";
}

// It computes on the processor, and says so as a warning, with both versions.
static void an_old_driver_is_warned_of(void **state)
{
    (void)state;
    struct worker_device *device = NULL;
    char path[] = "/tmp/banyan-device-test-XXXXXX", said[4096] = "";
    int file = mkstemp(path), kept = dup(STDERR_FILENO);
    assert_true(file >= 0 && kept >= 0);
    fflush(stderr);
    assert_int_equal(dup2(file, STDERR_FILENO), STDERR_FILENO);
    common_log_set_level(COMMON_LOG_WARN);
    enum common_code automatic = open_device("auto", module, &device);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    ssize_t n = pread(file, said, sizeof said - 1, 0);
    close(file);
    close(kept);
    unlink(path);
    assert_int_equal(automatic, COMMON_OK);
    assert_null(device);
    assert_true(n > 0);
    assert_non_null(strstr(said, "CUDA 12.4"));
    assert_non_null(strstr(said, "CUDA 13.0"));
    assert_non_null(strstr(no_device, "CUDA 12.4")); // the driver says itself that it is there
    assert_non_null(strstr(no_device, "CUDA 13.0"));
    assert_int_equal(open_device("cuda:0", module, &device), COMMON_FAILED_PRECONDITION);
}

static void bytes_go_and_come_back(void **state)
{
    (void)state;
    struct worker_device *device = NULL;
    struct common_error err;
    assert_int_equal(open_device("cuda:0", module, &device), COMMON_OK);
    struct worker_memory *memory = worker_memory_of_device(32 << 20, device);
    uint8_t *block = worker_memory_alloc(memory, 100 * 64, UINT64_MAX),
            *other = worker_memory_alloc(memory, 100 * 64, UINT64_MAX);
    assert_true(block && other && worker_memory_device(memory) == device);
    uint8_t wire[100 * 200], back[100 * 64];
    for (size_t i = 0; i < sizeof wire; i++)
        wire[i] = (uint8_t)(i * 7);
    struct worker_piece pieces[100]; // more than go at once
    for (size_t i = 0; i < 100; i++)
        pieces[i] =
            (struct worker_piece){.memory = block + i * 64, .host = wire + i * 200, .width = 64, .height = 1};
    worker_memory_write(memory, pieces, 100);
    // All but a strip, and the strip by rows
    const struct worker_copy copies[] = {
        {.to = other, .from = block, .width = 64 * 90, .height = 1},
        {.to = other + 64 * 90,
         .to_pitch = 64,
         .from = block + 64 * 90,
         .from_pitch = 64,
         .width = 60,
         .height = 10},
        {.to = other + 64 * 90 + 60,
         .to_pitch = 64,
         .from = block + 64 * 90 + 60,
         .from_pitch = 64,
         .width = 4,
         .height = 10},
    };
    worker_memory_copy(memory, copies, 3);
    struct worker_piece all = {
        .memory = other, .pitch = 64, .host = back, .host_pitch = 64, .width = 64, .height = 100};
    worker_memory_read(memory, &all, 1);
    for (size_t i = 0; i < 100; i++)
        assert_memory_equal(back + i * 64, wire + i * 200, 64);
    assert_null(worker_memory_alloc(memory, 33 << 20, UINT64_MAX));
    assert_null(worker_memory_alloc(memory, 1 << 20, 100));
    assert_false(worker_memory_lost(memory, &err));
    worker_memory_release(memory, block);
    worker_memory_release(memory, other);
    assert_int_equal(worker_memory_held(memory), 0);
    worker_memory_free(memory);
    worker_device_close(device);
}

struct line { // jobs, and what became of them
    struct common_loop *loop;
    struct common_mail mail; // what the loop begins with
    struct worker_device *device;
    struct worker_memory *memory;
    uint8_t *block;
    struct kernels_device_run run;
    float q[DIM];
    struct job {
        struct line *line;
        struct worker_device_job job;
        struct kernels_device_item item;
        float m, s, o[DIM];
        enum common_code code;
        bool cancelled; // while it waited
        uint32_t place; // of its end among the others, from 1
    } jobs[JOBS];
    uint32_t ended, lost;
};

static void job_done(void *arg, enum common_code code, const struct common_error *err)
{
    struct job *job = arg;
    assert_int_equal(job->place, 0); // once
    assert_true(code == COMMON_OK || err->code == code);
    job->code = code;
    job->place = ++job->line->ended;
    if (job->line->ended == JOBS)
        common_loop_stop(job->line->loop);
}

static void job_lost(void *arg, const struct common_error *err)
{
    struct line *line = arg;
    assert_int_equal(err->code, COMMON_UNAVAILABLE);
    line->lost++;
}

static void line_start(struct line *line)
{
    float keys[KEYS * DIM];
    memset(line, 0, sizeof *line);
    assert_int_equal(common_loop_new(&line->loop), COMMON_OK);
    assert_int_equal(open_device("cuda:0", module, &line->device), COMMON_OK);
    worker_device_attach(line->device, line->loop, job_lost, line);
    line->memory = worker_memory_of_device(32 << 20, line->device);
    line->block = worker_memory_alloc(line->memory, 2 * sizeof keys, UINT64_MAX);
    assert_non_null(line->block);
    for (uint32_t i = 0; i < KEYS * DIM; i++)
        keys[i] = (float)(i / DIM); // equal logits: the mean of the values, (0 + ... + 15) / 16
    for (int of_v = 0; of_v < 2; of_v++) {
        struct worker_piece piece = {.memory = line->block + of_v * sizeof keys,
                                     .host = (uint8_t *)keys,
                                     .width = sizeof keys,
                                     .height = 1};
        worker_memory_write(line->memory, &piece, 1);
    }
    line->run = (struct kernels_device_run){.k = (uintptr_t)line->block,
                                            .v = (uintptr_t)line->block + sizeof keys,
                                            .head_stride = 64,
                                            .rows = KEYS};
    for (int i = 0; i < JOBS; i++) {
        struct job *job = &line->jobs[i];
        job->line = line;
        job->item = (struct kernels_device_item){
            .spec = &spec,
            .rows = 1,
            .q_first = KEYS - 1,
            .visible = KEYS,
            .q = line->q, // zeros
            .q_row_stride = DIM,
            .q_head_stride = DIM,
            .run_count = 1,
            .runs = &line->run,
            .out = {.rows = 1, .heads = 1, .dv = DIM, .m = &job->m, .s = &job->s, .o = job->o}};
        job->job = (struct worker_device_job){.items = &job->item, .n = 1, .done = job_done, .arg = job};
    }
}

static void line_end(struct line *line)
{
    worker_memory_release(line->memory, line->block);
    worker_memory_free(line->memory);
    worker_device_close(line->device);
    common_loop_free(line->loop);
}

static void assert_answer(const struct job *job)
{
    for (uint32_t i = 0; i < DIM; i++)
        assert_float_equal(job->o[i] / job->s, 7.5, 1e-4);
}

static void submit_all(void *arg)
{
    struct line *line = arg;
    for (int i = 0; i < JOBS; i++)
        worker_device_submit(line->device, &line->jobs[i].job); // more than the device takes at once
}

static void jobs_wait_in_line(void **state)
{
    (void)state;
    static struct line line;
    line_start(&line);
    assert_in_range(worker_device_info(line.device)->in_flight, 1, JOBS - 1);
    common_loop_mail(line.loop, &line.mail, submit_all, &line);
    common_loop_run(line.loop);
    for (uint32_t i = 0; i < JOBS; i++) {
        assert_int_equal(line.jobs[i].code, COMMON_OK);
        assert_int_equal(line.jobs[i].place, i + 1);
        assert_answer(&line.jobs[i]);
    }
    assert_int_equal(line.lost, 0);
    line_end(&line);
}

static void submit_and_cancel(void *arg)
{
    struct line *line = arg;
    submit_all(line);
    const int cancelled[] = {JOBS - 1, JOBS - 3, 0}; // the last in line, one in it, and one that has begun
    for (int i = 0; i < 3; i++) {
        struct job *job = &line->jobs[cancelled[i]];
        job->cancelled = job->job.waiting; // where this thread was held up, the device may have begun all
        worker_device_cancel(line->device, &job->job);
    }
    assert_false(line->jobs[0].cancelled);
    assert_int_equal(line->ended, 0); // never on this stack
}

static void what_waits_can_be_cancelled(void **state)
{
    (void)state;
    static struct line line;
    line_start(&line);
    common_loop_mail(line.loop, &line.mail, submit_and_cancel, &line);
    common_loop_run(line.loop);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(line.jobs[i].code, line.jobs[i].cancelled ? COMMON_CANCELLED : COMMON_OK);
        if (!line.jobs[i].cancelled)
            assert_answer(&line.jobs[i]);
    }
    line_end(&line);
}

// The environment is read when the first device of the process is opened, so this runs in a process of its
// own (argv[2]): the fault comes with a kernel of about the eighth job, which waited for earlier ones' ends.
static void a_lost_device_ends_everything(void **state)
{
    (void)state;
    static struct line line;
    struct common_error err;
    line_start(&line);
    common_loop_mail(line.loop, &line.mail, submit_all, &line);
    common_loop_run(line.loop);
    uint32_t good = 0;
    for (int i = 0; i < JOBS; i++) {
        assert_true(line.jobs[i].code == COMMON_OK || line.jobs[i].code == COMMON_UNAVAILABLE);
        if (line.jobs[i].code == COMMON_OK) {
            assert_int_equal(good, i); // none after the first failure
            assert_answer(&line.jobs[i]);
            good++;
        }
    }
    assert_in_range(good, 1, JOBS - 2); // what was under way with it fails too
    assert_int_equal(line.lost, 1);
    assert_true(worker_memory_lost(line.memory, &err));
    assert_int_equal(err.code, COMMON_UNAVAILABLE);
    uint8_t byte = 1;
    struct worker_piece piece = {.memory = line.block, .host = &byte, .width = 1, .height = 1};
    worker_memory_write(line.memory, &piece, 1);
    worker_memory_read(line.memory, &piece, 1);
    assert_int_equal(byte, 0); // nothing is read from it
    line_end(&line);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_chosen_by_name),
        cmocka_unit_test(bytes_go_and_come_back),
        cmocka_unit_test(jobs_wait_in_line),
        cmocka_unit_test(what_waits_can_be_cancelled),
    };
    const struct CMUnitTest fault[] = {cmocka_unit_test(a_lost_device_ends_everything)};
    if (argc < 2)
        return 2;
    module = argv[1];
    const struct CMUnitTest driver[] = {cmocka_unit_test(an_old_driver_is_warned_of)};
    if (argc > 2 && strcmp(argv[2], "driver") == 0)
        return setenv("BANYAN_EMULATED_DRIVER", "12040", 1) == 0
                   ? cmocka_run_group_tests_name("driver", driver, NULL, NULL)
                   : 2;
    const struct CMUnitTest none[] = {cmocka_unit_test(why_there_is_no_device)};
    if (argc > 2 && strcmp(argv[2], "none") == 0)
        return setenv("BANYAN_EMULATED_DEVICES", "0", 1) == 0
                   ? cmocka_run_group_tests_name("none", none, NULL, NULL)
                   : 2;
    if (argc > 2)
        return setenv("BANYAN_EMULATED_FAULT", argv[2], 1) == 0
                   ? cmocka_run_group_tests_name("lost", fault, NULL, NULL)
                   : 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
