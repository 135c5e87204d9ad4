// SPDX-License-Identifier: Apache-2.0
// Callers' threads (sim_caller.h), and in their place what client/lib/core/wait.c has for real ones.
#include "tests/sim/sim_caller.h"

#include <assert.h>
#include <stdlib.h>
#include <ucontext.h>

#include "client/lib/core/internal.h"
#include "client/lib/core/wait.h"
#include "proto/nng_probe.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_event.h"

#define STACK_BYTES (512 << 10)
#define LATE_NS     (20 * COMMON_NS_PER_US) // a thread that is woken runs so much later, at most

struct sim_caller {
    ucontext_t own, world;
    struct common_loop *loop;
    struct sim_event wake;
    struct client_wait *waits; // for this one
    void (*fn)(void *arg);
    void *arg;
    bool over;
};

static struct sim_caller *the_caller; // there is one at most
static _Alignas(64) char stack[STACK_BYTES];

// ---- from one stack to the other ------------------------------------------------------------------------

// The address sanitizer must see each change of stacks.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
static const void *world_stack;
static size_t world_stack_bytes;
#define LEAVE(kept, bottom, bytes)  __sanitizer_start_switch_fiber(kept, bottom, bytes)
#define ARRIVE(kept, bottom, bytes) __sanitizer_finish_switch_fiber(kept, bottom, bytes)
#else
static const void *const world_stack;
static const size_t world_stack_bytes;
#define LEAVE(kept, bottom, bytes)  ((void)(kept), (void)(bottom), (void)(bytes))
#define ARRIVE(kept, bottom, bytes) ((void)(kept), (void)(bottom), (void)(bytes))
#endif

static void to_world(struct sim_caller *caller)
{
    void *kept = NULL;
    LEAVE(&kept, world_stack, world_stack_bytes);
    swapcontext(&caller->own, &caller->world);
    ARRIVE(kept, &world_stack, &world_stack_bytes);
}

static void begin(void)
{
    struct sim_caller *caller = the_caller;
    ARRIVE(NULL, &world_stack, &world_stack_bytes);
    caller->fn(caller->arg);
    caller->over = true;
    LEAVE(NULL, world_stack, world_stack_bytes); // this stack is not used again
    setcontext(&caller->world);
}

// An event of the caller's process: so time stands still while it runs.
static void go_on(void *arg)
{
    struct sim_caller *caller = arg;
    void *kept = NULL;
    assert(!sim_is_caller && !caller->over);
    sim_is_caller = true;
    LEAVE(&kept, stack, sizeof stack);
    swapcontext(&caller->world, &caller->own);
    ARRIVE(kept, NULL, NULL);
    sim_is_caller = false;
}

// ---- callers --------------------------------------------------------------------------------------------

struct sim_caller *sim_caller_start(void (*fn)(void *arg), void *arg)
{
    struct sim_caller *caller = calloc(1, sizeof *caller);
    assert(!the_caller);
    if (!caller || common_loop_new(&caller->loop) != COMMON_OK || getcontext(&caller->own) != 0)
        abort();
    sim_loop_name(caller->loop, "caller");
    caller->fn = fn;
    caller->arg = arg;
    caller->own.uc_stack.ss_sp = stack;
    caller->own.uc_stack.ss_size = sizeof stack;
    makecontext(&caller->own, begin, 0);
    sim_event_init(&caller->wake, SIM_POST, caller->loop, NULL, go_on, caller);
    sim_event_arm(&caller->wake, sim_clock());
    sim_alive++;
    the_caller = caller;
    return caller;
}

bool sim_caller_over(const struct sim_caller *caller)
{
    return caller->over;
}

void sim_caller_free(struct sim_caller *caller)
{
    assert(caller->over && caller == the_caller);
    common_loop_free(caller->loop);
    free(caller);
    sim_alive--;
    the_caller = NULL;
}

struct common_loop *sim_caller_loop(struct sim_caller *caller)
{
    return caller->loop;
}

void sim_caller_sleep(uint64_t ns)
{
    sim_event_arm(&the_caller->wake, sim_clock() + ns);
    to_world(the_caller);
}

// ---- what libbanyan has outside -------------------------------------------------------------------------

void client_wait_signal(struct client_wait *wait)
{
    atomic_store(&wait->done, 1);
    if (the_caller && the_caller->waits == wait)
        sim_event_arm(&the_caller->wake, sim_clock() + sim_random(LATE_NS));
}

void client_wait_for(struct client_wait *wait)
{
    assert(sim_is_caller); // no other thread may block
    the_caller->waits = wait;
    while (!atomic_load(&wait->done))
        to_world(the_caller);
    the_caller->waits = NULL;
}

// Why nothing answers over nng, which is not here.
void proto_nng_probe(const struct proto_endpoint *endpoint, uint64_t time_ns, char out[COMMON_ERROR_BYTES])
{
    (void)endpoint, (void)time_ns;
    out[0] = '\0';
}
