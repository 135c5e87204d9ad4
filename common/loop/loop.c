// SPDX-License-Identifier: Apache-2.0
#include "common/loop/loop.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/loop/timer.h"

// Not borrowed for that long: its own thread waits at the sockets again.
#define LENT_NS (5 * COMMON_NS_PER_MS)
// What has come to the sockets for that long is looked at before a call begins.
#define UNSEEN_NS (100 * COMMON_NS_PER_US)

struct left { // common_loop_leave_behind
    struct common_loop *loop;
    void (*release)(void *thing);
    void *thing;
};

// The mailbox: posters push onto a stack with one compare-and-swap; the loop takes the whole stack with one
// exchange and turns it round. Only the push that finds the stack empty writes the eventfd, so a burst costs
// one wake-up. The loop reads the eventfd before the exchange: a push after the exchange finds the
// stack empty and writes again.
//
// Lending. The one who runs turns is `owner`; the loop goes from one thread to another by this word alone:
//
//     own thread ──end of a turn, somebody wanted it, may()──▶ lent ──common_loop_borrow──▶ a caller's thread
//          ▲                                                  │  ▲                                │
//          └──LENT_NS without a borrower, or recalled─────────┘  └──done, or given back───────────┘
//
// While it is lent the eventfd is not read. A post then, and a return of the loop with something left to do,
// recalls the loop's thread. Both orders are covered: a poster pushes and then looks whether it is lent; who
// lends it, or gives it back, says so and then looks for mail.
struct common_loop {
    struct event_base *base;
    struct event *wake_event;
    int wake_fd;
    _Atomic(struct common_mail *) mailbox; // newest first
    struct common_timers timers;
    unsigned left;                // things that go when what libevent has queued has run
    struct common_deferred *held; // marked inside the handler that has entered, oldest first
    bool entered;
    atomic_bool stopping;
    // &thread_tag of the running thread; &starting; &lent; NULL while it does not run
    _Atomic(const char *) owner;
    bool (*may)(void *arg); // be lent; NULL: never
    void *may_arg;
    pid_t pid;                 // of the process that it belongs to: a fork has no thread to give it back to
    bool borrowed, giving;     // of the owner: by a caller's thread; which ends to
    bool ended;                // stopped, and no mail is left
    atomic_uint wanted;        // not 0: it would have been borrowed
    atomic_uint borrows;       // so far
    atomic_uint users;         // threads inside common_loop_borrow and common_loop_mail
    uint64_t left_ns;          // when it was said to be lent last
    _Atomic uint32_t recalled; // a futex: its own thread is to take it back
    pthread_t thread;
    bool has_thread;
    char thread_name[16];
};

static _Thread_local char thread_tag; // its address names the thread
static const char starting, lent;     // owners that no thread equals: it is on its way; none, see above

static void wake(struct common_loop *loop)
{
    uint64_t one = 1;
    while (write(loop->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static void recall(struct common_loop *loop)
{
    atomic_store(&loop->recalled, 1);
    syscall(SYS_futex, &loop->recalled, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static struct common_mail *take_all(struct common_loop *loop)
{
    struct common_mail *newest = atomic_exchange_explicit(&loop->mailbox, NULL, memory_order_acquire);
    struct common_mail *oldest = NULL;
    while (newest) {
        struct common_mail *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

// Runs what is there now; what these functions post comes in the next turn, so that sockets have theirs.
static void run_mail(struct common_loop *loop)
{
    struct common_mail *mail = take_all(loop);
    while (mail) {
        struct common_mail *next = mail->next;
        mail->fn(mail->arg); // may post the mail again, or free it
        mail = next;
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct common_loop *loop = arg;
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        continue;
    // Read before the mail: what was posted before stop is in the stack by now.
    bool stop = atomic_load(&loop->stopping);
    run_mail(loop);
    if (!stop)
        return;
    if (atomic_load(&loop->mailbox)) {
        wake(loop); // the last functions posted more: another turn
    } else {
        loop->ended = true;
        event_base_loopbreak(loop->base);
    }
}

enum common_code common_loop_new(struct common_loop **out)
{
    enum common_code code = COMMON_RESOURCE_EXHAUSTED;
    struct common_loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return code;
    loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->wake_fd < 0)
        goto free_loop;
    struct event_config *config = event_config_new();
    if (!config)
        goto close_fd;
    if (event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0 &&
        event_config_require_features(config, EV_FEATURE_O1 | EV_FEATURE_ET) == 0) // epoll
        loop->base = event_base_new_with_config(config);
    event_config_free(config);
    if (!loop->base)
        goto close_fd;
    loop->wake_event = event_new(loop->base, loop->wake_fd, EV_READ | EV_PERSIST, on_wake, loop);
    if (!loop->wake_event || event_add(loop->wake_event, NULL) != 0)
        goto free_base;
    if (common_timers_init(&loop->timers, loop->base) != COMMON_OK)
        goto free_base;
    *out = loop;
    return COMMON_OK;

free_base:
    if (loop->wake_event)
        event_free(loop->wake_event);
    event_base_free(loop->base);
close_fd:
    close(loop->wake_fd);
free_loop:
    free(loop);
    return code;
}

struct event_base *common_loop_base(struct common_loop *loop)
{
    return loop->base;
}

// Marks it as lent. From then on a post recalls it; what was posted before is seen here.
static void let_be_lent(struct common_loop *loop)
{
    loop->borrowed = false;
    loop->left_ns = common_clock_ns();
    atomic_store(&loop->owner, &lent);
    if (atomic_load(&loop->mailbox) || atomic_load(&loop->stopping))
        recall(loop);
}

// Until it is recalled, or no longer borrowed.
static void lend(struct common_loop *loop)
{
    const struct timespec a_while = {.tv_nsec = LENT_NS}, longer = {.tv_nsec = 10 * LENT_NS};
    bool busy = false; // it has been lent for longer than that
    unsigned borrows = atomic_load(&loop->borrows);
    atomic_store(&loop->wanted, 0);
    atomic_store(&loop->recalled, 0);
    let_be_lent(loop);
    for (;;) {
        long woken =
            syscall(SYS_futex, &loop->recalled, FUTEX_WAIT_PRIVATE, 0, busy ? &longer : &a_while, NULL, 0);
        bool late = woken != 0 && errno == ETIMEDOUT, idle = atomic_load(&loop->borrows) == borrows;
        const char *before = &lent;
        borrows = atomic_load(&loop->borrows);
        busy = late && idle;
        if (late && !idle)
            continue;
        if (atomic_compare_exchange_strong(&loop->owner, &before, &thread_tag))
            return;
        // Who has borrowed it recalls us once more, where there is a reason, after giving it back: which may
        // be now.
        atomic_store(&loop->recalled, 0);
        if (atomic_load(&loop->owner) == &lent)
            recall(loop);
    }
}

void common_loop_lend(struct common_loop *loop, bool (*may)(void *arg), void *arg)
{
    assert(!loop->has_thread);
    loop->may = may;
    loop->may_arg = arg;
    loop->pid = getpid();
}

static bool borrow(struct common_loop *loop, common_loop_fn fn, void *arg, const _Atomic uint32_t *done)
{
    const char *before = &lent;
    if (!atomic_compare_exchange_strong(&loop->owner, &before, &thread_tag)) {
        atomic_store(&loop->wanted, 1);
        return false;
    }
    if (atomic_load(&loop->mailbox)) { // posted before us, by this thread perhaps: it goes first
        atomic_store(&loop->wanted, 1);
        let_be_lent(loop);
        return false;
    }
    atomic_fetch_add(&loop->borrows, 1);
    loop->borrowed = true;
    loop->giving = false;
    // A link may have ended since. Once: else it goes on for as long as there is mail, and what must not run
    // here posts itself.
    if (common_clock_ns() - loop->left_ns > UNSEEN_NS)
        event_base_loop(loop->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    common_loop_enter(loop);
    fn(arg);
    common_loop_leave(loop);
    while (!atomic_load_explicit(done, memory_order_acquire) && !loop->giving && !loop->ended)
        event_base_loop(loop->base, EVLOOP_ONCE);
    bool rest = loop->giving || loop->ended || !loop->may(loop->may_arg) ||
                event_base_get_num_events(loop->base, EVENT_BASE_COUNT_ACTIVE) > 0;
    let_be_lent(loop);
    if (rest)
        recall(loop);
    return true;
}

bool common_loop_borrow(struct common_loop *loop, common_loop_fn fn, void *arg, const _Atomic uint32_t *done)
{
    if (!loop->may || loop->pid != getpid())
        return false;
    int cancel; // a thread that is cancelled while it has the loop would never give it back
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    atomic_fetch_add(&loop->users, 1);
    bool ran = borrow(loop, fn, arg, done);
    atomic_fetch_sub(&loop->users, 1); // the loop may be gone now
    pthread_setcancelstate(cancel, NULL);
    return ran;
}

void common_loop_answered(struct common_loop *loop)
{
    assert(common_loop_is_owner(loop));
    if (loop->borrowed)
        event_base_loopbreak(loop->base);
}

bool common_loop_give_back(struct common_loop *loop)
{
    assert(common_loop_is_owner(loop));
    loop->giving = true;
    return loop->borrowed;
}

void common_loop_run(struct common_loop *loop)
{
    const char *before = atomic_exchange(&loop->owner, &thread_tag);
    assert(before == NULL || before == &starting); // two threads cannot run one loop
    (void)before;
    loop->ended = false;
    while (!loop->ended) {
        event_base_loop(loop->base, loop->may ? EVLOOP_ONCE : 0);
        if (loop->may && !loop->ended && atomic_load(&loop->wanted) && loop->may(loop->may_arg))
            lend(loop);
    }
    atomic_store(&loop->stopping, false);
    atomic_store(&loop->owner, NULL);
}

static void *thread_main(void *arg)
{
    struct common_loop *loop = arg;
    sigset_t broken_pipe; // the process is not ours: what it does about SIGPIPE is its own
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, NULL);
    pthread_setname_np(pthread_self(), loop->thread_name);
    common_loop_run(loop);
    return NULL;
}

enum common_code common_loop_start_thread(struct common_loop *loop, const char *thread_name)
{
    assert(!loop->has_thread);
    snprintf(loop->thread_name, sizeof loop->thread_name, "%s", thread_name);
    atomic_store(&loop->owner, &starting);
    if (pthread_create(&loop->thread, NULL, thread_main, loop) != 0) {
        atomic_store(&loop->owner, NULL);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    loop->has_thread = true;
    return COMMON_OK;
}

void common_loop_join(struct common_loop *loop)
{
    if (!loop->has_thread)
        return;
    pthread_join(loop->thread, NULL);
    while (atomic_load(&loop->users)) // what they wait for has ended, or will not come: they are on their way
        sched_yield();
    loop->has_thread = false;
}

void common_loop_stop(struct common_loop *loop)
{
    atomic_store(&loop->stopping, true);
    wake(loop);
    if (atomic_load(&loop->owner) == &lent)
        recall(loop);
}

void common_loop_mail(struct common_loop *loop, struct common_mail *mail, common_loop_fn fn, void *arg)
{
    struct common_mail *newest = atomic_load_explicit(&loop->mailbox, memory_order_relaxed);
    bool lends = loop->may != NULL;
    if (lends) // what is posted may end the loop: common_loop_join waits for us
        atomic_fetch_add(&loop->users, 1);
    *mail = (struct common_mail){.fn = fn, .arg = arg};
    do
        mail->next = newest;
    while (!atomic_compare_exchange_weak(&loop->mailbox, &newest, mail)); // before it looks who has the loop
    if (!newest)
        wake(loop);
    if (lends && atomic_load(&loop->owner) == &lent)
        recall(loop);
    if (lends)
        atomic_fetch_sub(&loop->users, 1);
}

struct call {
    struct common_loop *own; // runs on this one's own thread; NULL: on the thread that has the loop
    struct common_mail mail;
    common_loop_fn fn;
    void *arg;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool done;
};

static void run_call(void *arg)
{
    struct call *call = arg;
    if (call->own && common_loop_give_back(call->own)) {
        common_loop_mail(call->own, &call->mail, run_call, call);
        return;
    }
    call->fn(call->arg);
    pthread_mutex_lock(&call->mutex);
    call->done = true;
    pthread_cond_signal(&call->cond); // under the mutex: the caller's stack lives until it is released
    pthread_mutex_unlock(&call->mutex);
}

static void call_from_outside(struct common_loop *loop, common_loop_fn fn, void *arg, bool own)
{
    if (common_loop_is_owner(loop)) {
        fn(arg);
        return;
    }
    struct call call = {.own = own ? loop : NULL, .fn = fn, .arg = arg};
    pthread_mutex_init(&call.mutex, NULL);
    pthread_cond_init(&call.cond, NULL);
    common_loop_mail(loop, &call.mail, run_call, &call);
    pthread_mutex_lock(&call.mutex);
    while (!call.done)
        pthread_cond_wait(&call.cond, &call.mutex);
    pthread_mutex_unlock(&call.mutex);
    pthread_cond_destroy(&call.cond);
    pthread_mutex_destroy(&call.mutex);
}

void common_loop_call(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    call_from_outside(loop, fn, arg, false);
}

void common_loop_call_own(struct common_loop *loop, common_loop_fn fn, void *arg)
{
    call_from_outside(loop, fn, arg, true);
}

bool common_loop_is_owner(const struct common_loop *loop)
{
    const char *owner = atomic_load(&loop->owner);
    return owner == NULL || owner == &thread_tag;
}

static void release_left(evutil_socket_t fd, short what, void *arg)
{
    struct left *left = arg;
    (void)fd, (void)what;
    left->loop->left--;
    left->release(left->thing);
    free(left);
}

// An event that is due at once stands behind all that libevent has queued.
bool common_loop_leave_behind(struct common_loop *loop, void (*release)(void *thing), void *thing)
{
    const struct timeval now = {0};
    assert(common_loop_is_owner(loop));
    struct left *left = malloc(sizeof *left);
    if (!left)
        return false;
    *left = (struct left){loop, release, thing};
    if (event_base_once(loop->base, -1, EV_TIMEOUT, release_left, left, &now) != 0) {
        free(left);
        return false;
    }
    loop->left++;
    return true;
}

void common_loop_free(struct common_loop *loop)
{
    if (!loop)
        return;
    assert(!loop->has_thread && atomic_load(&loop->owner) == NULL);
    common_timers_fini(&loop->timers);
    event_free(loop->wake_event); // no mail is touched
    while (loop->left)            // and what libevent itself has queued before
        event_base_loop(loop->base, EVLOOP_NONBLOCK);
    event_base_free(loop->base);
    close(loop->wake_fd);
    free(loop);
}

struct common_timers *common_loop_timers(struct common_loop *loop)
{
    return &loop->timers;
}

struct common_deferred {
    struct common_loop *loop;
    struct common_deferred *next; // in loop->held
    bool marked, held;
    struct event *event;
    common_loop_fn fn;
    void *arg;
};

static void run_deferred(struct common_deferred *deferred)
{
    deferred->marked = false;
    deferred->fn(deferred->arg); // may free it
}

static void on_deferred(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    run_deferred(arg);
}

enum common_code common_deferred_new(struct common_loop *loop, common_loop_fn fn, void *arg,
                                     struct common_deferred **out)
{
    assert(common_loop_is_owner(loop));
    struct common_deferred *deferred = calloc(1, sizeof *deferred);
    if (!deferred)
        return COMMON_RESOURCE_EXHAUSTED;
    *deferred = (struct common_deferred){.loop = loop, .fn = fn, .arg = arg};
    deferred->event = event_new(loop->base, -1, 0, on_deferred, deferred);
    if (!deferred->event) {
        free(deferred);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *out = deferred;
    return COMMON_OK;
}

static void hold(struct common_loop *loop, struct common_deferred *deferred)
{
    struct common_deferred **at = &loop->held;
    while (*at)
        at = &(*at)->next;
    *at = deferred;
    deferred->next = NULL;
    deferred->held = true;
}

static void let_go(struct common_loop *loop, struct common_deferred *deferred)
{
    struct common_deferred **at = &loop->held;
    while (*at != deferred)
        at = &(*at)->next;
    *at = deferred->next;
    deferred->held = false;
}

// libevent puts an event that is activated by hand behind those that are active already, and runs them all
// before it polls again: that is the end of the turn. No system call, no allocation.
void common_deferred_mark(struct common_deferred *deferred)
{
    struct common_loop *loop = deferred->loop;
    assert(common_loop_is_owner(loop));
    if (deferred->marked)
        return;
    deferred->marked = true;
    if (loop->entered)
        hold(loop, deferred);
    else
        event_active(deferred->event, EV_TIMEOUT, 1);
}

void common_loop_enter(struct common_loop *loop)
{
    assert(common_loop_is_owner(loop) && !loop->entered);
    loop->entered = true;
}

void common_loop_leave(struct common_loop *loop)
{
    assert(loop->entered);
    while (loop->held) {
        struct common_deferred *deferred = loop->held;
        let_go(loop, deferred);
        if (event_base_get_num_events(loop->base, EVENT_BASE_COUNT_ACTIVE) > 0)
            event_active(deferred->event, EV_TIMEOUT, 1);
        else
            run_deferred(deferred);
    }
    loop->entered = false;
}

void common_deferred_free(struct common_deferred *deferred)
{
    if (!deferred)
        return;
    assert(common_loop_is_owner(deferred->loop));
    if (deferred->held)
        let_go(deferred->loop, deferred);
    event_free(deferred->event);
    free(deferred);
}
