// SPDX-License-Identifier: Apache-2.0
// The emulated runtime's one thread finds what can go on, while streams that have nothing on them come and
// go.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/emulation/cuda/emulation.h"

#define STREAMS 6
#define ROUNDS  3000
#define HUNG_NS (60 * COMMON_NS_PER_S)

static atomic_bool open_now, stop;

static bool is_open(void *arg)
{
    (void)arg;
    return atomic_load(&open_now);
}

static void nothing(void *arg)
{
    (void)arg;
}

static void *come_and_go(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        cudaStream_t stream;
        if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
            cudaStreamDestroy(stream) != cudaSuccess)
            return &stop;
    }
    return NULL;
}

// Each stream waits for the one behind it, the last for what comes from outside: when that is there, nothing
// more is put on a stream, and the thread gets no further message.
static void none_is_passed_over(void **state)
{
    (void)state;
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[STREAMS];
    pthread_t thread;
    void *failed;
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
        assert_int_equal(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming), cudaSuccess);
    }
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, NULL), 0);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&open_now, false);
        assert_int_equal(emulated_enqueue(streams[STREAMS - 1], is_open, nothing, NULL, NULL), cudaSuccess);
        for (int i = STREAMS - 1; i >= 0; i--) {
            if (i < STREAMS - 1)
                assert_int_equal(cudaStreamWaitEvent(streams[i], events[i + 1], 0), cudaSuccess);
            assert_int_equal(cudaEventRecord(events[i], streams[i]), cudaSuccess);
        }
        atomic_store(&open_now, true);
        uint64_t until = common_clock_after(HUNG_NS);
        while (cudaEventQuery(events[0]) == cudaErrorNotReady)
            if (common_clock_ns() > until)
                fail_msg("round %d: what could go on does not", round);
    }
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
        assert_int_equal(cudaEventDestroy(events[i]), cudaSuccess);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(none_is_passed_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
