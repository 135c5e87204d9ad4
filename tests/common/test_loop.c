// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/loop/resolver.h"

static struct common_loop *loop;

static int setup(void **state)
{
    (void)state;
    return common_loop_new(&loop) == COMMON_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    common_loop_free(loop);
    loop = NULL;
    return 0;
}

static void count_up(void *arg)
{
    (*(int *)arg)++;
}

static void test_posted_before_stop_has_run(void **state)
{
    (void)state;
    static struct common_mail mails[1000];
    for (int round = 0; round < 3; round++) { // a loop can run again
        int count = 0;
        for (int i = 0; i < 1000; i++)
            common_loop_mail(loop, &mails[i], count_up, &count);
        assert_int_equal(count, 0);
        common_loop_stop(loop);
        common_loop_run(loop);
        assert_int_equal(count, 1000);
    }
}

struct chain {
    struct common_mail mail;
    int left;
};

static void post_again(void *arg)
{
    struct chain *chain = arg;
    if (--chain->left > 0)
        common_loop_mail(loop, &chain->mail, post_again, chain);
}

// Stop comes first, and yet the chain of posts from the loop itself runs to its end.
static void test_stop_waits_for_the_mailbox(void **state)
{
    (void)state;
    struct chain chain = {.left = 100};
    common_loop_mail(loop, &chain.mail, post_again, &chain);
    common_loop_stop(loop);
    common_loop_run(loop);
    assert_int_equal(chain.left, 0);
}

// Mail lies in what it is about: nothing is left of it, and it may be used again.
static void test_mail(void **state)
{
    (void)state;
    struct common_mail mails[10];
    int count = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 10; i++)
            common_loop_mail(loop, &mails[i], count_up, &count);
        common_loop_stop(loop);
        common_loop_run(loop);
        assert_int_equal(count, 10 * (round + 1));
    }
}

// A mail's memory may go before the loop does: the address sanitizer reports it when it is read.
static void test_mail_that_never_ran_is_dropped(void **state)
{
    (void)state;
    struct common_mail *mails = calloc(10, sizeof *mails);
    assert_non_null(mails);
    int count = 0;
    for (int i = 0; i < 10; i++)
        common_loop_mail(loop, &mails[i], count_up, &count);
    memset(mails, 0xff, 10 * sizeof *mails); // and code that follows such a pointer crashes
    free(mails);
    common_loop_free(loop);
    loop = NULL;
    assert_int_equal(count, 0);
    common_loop_free(NULL);
}

enum { POSTERS = 4, POSTS = 20000 };

struct poster {
    pthread_t thread;
    int next_expected; // loop thread only
    int out_of_order, not_owner;
};

struct parcel {
    struct common_mail mail;
    struct poster *from;
    int number;
};

static void receive(void *arg)
{
    struct parcel *parcel = arg;
    struct poster *from = parcel->from;
    from->out_of_order += parcel->number != from->next_expected;
    from->not_owner += !common_loop_is_owner(loop);
    from->next_expected = parcel->number + 1;
    free(parcel);
}

static void *post_many(void *arg)
{
    for (int i = 0; i < POSTS; i++) {
        struct parcel *parcel = malloc(sizeof *parcel);
        *parcel = (struct parcel){.from = arg, .number = i};
        common_loop_mail(loop, &parcel->mail, receive, parcel);
    }
    return NULL;
}

static void test_each_thread_keeps_its_order(void **state)
{
    (void)state;
    struct poster posters[POSTERS] = {0};
    assert_int_equal(common_loop_start_thread(loop, "test-loop"), COMMON_OK);
    for (int i = 0; i < POSTERS; i++)
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_many, &posters[i]), 0);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(posters[i].thread, NULL);
    common_loop_stop(loop);
    common_loop_join(loop);
    for (int i = 0; i < POSTERS; i++) {
        assert_int_equal(posters[i].next_expected, POSTS);
        assert_int_equal(posters[i].out_of_order, 0);
        assert_int_equal(posters[i].not_owner, 0);
    }
}

static void test_owner(void **state)
{
    (void)state;
    assert_true(common_loop_is_owner(loop)); // it does not run
    assert_int_equal(common_loop_start_thread(loop, "test-loop"), COMMON_OK);
    assert_false(common_loop_is_owner(loop)); // from the first moment on
    common_loop_stop(loop);
    common_loop_join(loop);
    assert_true(common_loop_is_owner(loop));
    common_loop_join(loop); // harmless
}

struct call_test {
    int depth;
    bool on_loop;
    uint64_t sum;
};

static void called(void *arg)
{
    struct call_test *t = arg;
    t->on_loop = common_loop_is_owner(loop);
    if (++t->depth < 3)
        common_loop_call(loop, called, t); // from the loop thread: direct
}

static void test_call_waits_and_nests(void **state)
{
    (void)state;
    struct call_test t = {0};
    common_loop_call(loop, called, &t); // it does not run: on this thread
    assert_int_equal(t.depth, 3);
    assert_int_equal(common_loop_start_thread(loop, "test-loop"), COMMON_OK);
    t = (struct call_test){0};
    common_loop_call(loop, called, &t);
    assert_int_equal(t.depth, 3);
    assert_true(t.on_loop);
    common_loop_stop(loop);
    common_loop_join(loop);
}

static void add_one(void *arg)
{
    ((struct call_test *)arg)->sum++; // no lock: the loop thread alone
}

static struct call_test shared;

static void *call_many(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2000; i++)
        common_loop_call(loop, add_one, &shared);
    return NULL;
}

static void test_calls_from_many_threads(void **state)
{
    (void)state;
    shared.sum = 0;
    pthread_t threads[POSTERS];
    assert_int_equal(common_loop_start_thread(loop, "test-loop"), COMMON_OK);
    for (int i = 0; i < POSTERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_many, NULL), 0);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    common_loop_stop(loop);
    common_loop_join(loop);
    assert_int_equal(shared.sum, POSTERS * 2000);
}

// Start and stop in a hurry: stop may come before the thread has begun to run.
static void test_start_and_stop_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        int count = 0;
        struct common_mail mail;
        assert_int_equal(common_loop_start_thread(loop, "test-loop"), COMMON_OK);
        common_loop_mail(loop, &mail, count_up, &count);
        common_loop_stop(loop);
        common_loop_join(loop);
        assert_int_equal(count, 1);
    }
}

static void write_to_nobody(void *arg)
{
    int *fd = arg;
    assert_int_equal(write(*fd, "x", 1), -1);
    *fd = errno;
}

// A library's loop writes to any descriptor that it is given, in a program that may not ignore SIGPIPE.
static void test_its_thread_outlives_a_peer_that_left(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    int told = fds[1];
    void (*before)(int) = signal(SIGPIPE, SIG_DFL);
    assert_int_equal(common_loop_start_thread(loop, "test-loop"), COMMON_OK);
    common_loop_call(loop, write_to_nobody, &told);
    common_loop_stop(loop);
    common_loop_join(loop);
    signal(SIGPIPE, before);
    assert_int_equal(told, EPIPE);
    close(fds[1]);
}

struct timer_test {
    struct common_timer *timer, *other;
    int fired, wanted;
    uint64_t at_ns;
};

static void on_fire(void *arg)
{
    struct timer_test *t = arg;
    t->at_ns = common_clock_ns();
    if (++t->fired == t->wanted)
        common_loop_stop(loop);
}

static void test_one_shot_is_never_early(void **state)
{
    (void)state;
    static const uint64_t delays[] = {
        0, 1, 999, COMMON_NS_PER_MS, 5 * COMMON_NS_PER_MS + 1, 20 * COMMON_NS_PER_MS};
    for (size_t i = 0; i < sizeof delays / sizeof *delays; i++) {
        struct timer_test t = {.wanted = 1};
        assert_int_equal(common_timer_new(loop, on_fire, &t, &t.timer), COMMON_OK);
        uint64_t start = common_clock_ns();
        common_timer_start(t.timer, delays[i], false);
        common_loop_run(loop);
        assert_int_equal(t.fired, 1);
        assert_true(t.at_ns >= start + delays[i]);
        common_timer_free(t.timer);
    }
}

static void test_repeat_until_stopped(void **state)
{
    (void)state;
    struct timer_test t = {.wanted = 5};
    assert_int_equal(common_timer_new(loop, on_fire, &t, &t.timer), COMMON_OK);
    common_timer_start(t.timer, COMMON_NS_PER_MS, true);
    common_loop_run(loop);
    assert_int_equal(t.fired, 5);
    common_timer_stop(t.timer);
    common_timer_stop(t.timer); // harmless
    // Stopped, it stays silent while another timer runs its course.
    struct timer_test later = {.wanted = 1};
    assert_int_equal(common_timer_new(loop, on_fire, &later, &later.timer), COMMON_OK);
    common_timer_start(later.timer, 10 * COMMON_NS_PER_MS, false);
    common_loop_run(loop);
    assert_int_equal(t.fired, 5);
    common_timer_free(later.timer);
    common_timer_free(t.timer);
    common_timer_free(NULL);
}

#define MISSED_NS (5 * COMMON_NS_PER_MS)

static void sleep_once(void *arg)
{
    struct timer_test *t = arg;
    if (++t->fired == 1) {
        usleep(10 * MISSED_NS / 1000);
        t->at_ns = common_clock_ns();
    }
    if (t->fired == t->wanted)
        common_loop_stop(loop);
}

// A loop that stood still fires once for all it has missed, and then one period at a time.
static void test_missed_turns_are_not_made_up_for(void **state)
{
    (void)state;
    struct timer_test t = {.wanted = 6};
    assert_int_equal(common_timer_new(loop, sleep_once, &t, &t.timer), COMMON_OK);
    common_timer_start(t.timer, MISSED_NS, true);
    common_loop_run(loop);
    assert_true(common_clock_ns() - t.at_ns >= (unsigned)(t.wanted - 2) * MISSED_NS);
    common_timer_free(t.timer);
}

static void test_start_again_moves_the_time(void **state)
{
    (void)state;
    struct timer_test t = {.wanted = 1}, never = {.wanted = 1};
    assert_int_equal(common_timer_new(loop, on_fire, &t, &t.timer), COMMON_OK);
    assert_int_equal(common_timer_new(loop, on_fire, &never, &never.timer), COMMON_OK);
    common_timer_start(never.timer, UINT64_MAX, false); // no wrap into the past
    common_timer_start(t.timer, COMMON_NS_PER_MS, true);
    uint64_t start = common_clock_ns();
    common_timer_start(t.timer, 20 * COMMON_NS_PER_MS, false); // later, and no longer periodic
    common_loop_run(loop);
    assert_int_equal(t.fired, 1);
    assert_true(t.at_ns >= start + 20 * COMMON_NS_PER_MS);
    common_timer_start(t.timer, 0, false); // a one-shot timer that fired can start again
    t.wanted = 2;
    common_loop_run(loop);
    assert_int_equal(t.fired, 2);
    assert_int_equal(never.fired, 0);
    common_timer_free(t.timer);
    common_timer_free(never.timer);
}

static void free_both(void *arg)
{
    struct timer_test *t = arg;
    t->fired++;
    common_timer_free(t->timer); // itself
    common_timer_free(t->other); // another one, still armed
    common_loop_stop(loop);
}

static void test_a_timer_may_free_itself_and_others(void **state)
{
    (void)state;
    for (int repeat = 0; repeat < 2; repeat++) {
        struct timer_test t = {0};
        assert_int_equal(common_timer_new(loop, free_both, &t, &t.timer), COMMON_OK);
        assert_int_equal(common_timer_new(loop, on_fire, &t, &t.other), COMMON_OK);
        common_timer_start(t.timer, COMMON_NS_PER_MS, repeat);
        common_timer_start(t.other, 3600 * COMMON_NS_PER_S, repeat);
        common_loop_run(loop);
        assert_int_equal(t.fired, 1);
    }
}

struct turns {
    struct common_deferred *deferred;
    struct event *events[2];
    char text[8];
    int left;
};

static void note(struct turns *t, char c)
{
    size_t n = strlen(t->text);
    assert_true(n + 1 < sizeof(t->text));
    t->text[n] = c;
}

static void ready(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    note(arg, 'h');
    common_deferred_mark(((struct turns *)arg)->deferred);
}

static void at_the_end(void *arg)
{
    struct turns *t = arg;
    note(t, 'd');
    if (--t->left > 0)
        common_deferred_mark(t->deferred);
    else
        common_loop_stop(loop);
}

// Two sockets are ready in the same turn: what both mark runs once, after both; and again when it marks
// itself.
static void test_deferred_runs_after_all_handlers(void **state)
{
    (void)state;
    struct turns t = {.left = 2};
    int fds[2];
    assert_int_equal(common_deferred_new(loop, at_the_end, &t, &t.deferred), COMMON_OK);
    for (int i = 0; i < 2; i++) {
        fds[i] = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
        assert_true(fds[i] >= 0);
        t.events[i] = event_new(common_loop_base(loop), fds[i], EV_READ, ready, &t);
        assert_int_equal(event_add(t.events[i], NULL), 0);
    }
    common_loop_run(loop);
    assert_string_equal(t.text, "hhdd");
    common_deferred_mark(t.deferred); // marked, and never run
    common_deferred_free(t.deferred);
    common_deferred_free(NULL);
    for (int i = 0; i < 2; i++) {
        event_free(t.events[i]);
        close(fds[i]);
    }
}

struct handlers {
    struct common_deferred *deferred;
    struct event *events[2];
    char text[8];
    bool free_it;
};

static void entering(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct handlers *h = arg;
    common_loop_enter(loop);
    common_deferred_mark(h->deferred);
    common_deferred_mark(h->deferred); // once
    strcat(h->text, "h");
    common_loop_leave(loop);
    strcat(h->text, "l");
}

static void deferred_in_time(void *arg)
{
    struct handlers *h = arg;
    strcat(h->text, "d");
    common_loop_stop(loop);
    if (h->free_it) {
        common_deferred_free(h->deferred);
        h->deferred = NULL;
    }
}

// One handler is ready: what it marks runs as it leaves. Two are: it runs once, behind both.
static void test_deferred_runs_at_leave_when_nothing_else_is_ready(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        struct handlers h = {.free_it = n == 1};
        int fds[2];
        assert_int_equal(common_deferred_new(loop, deferred_in_time, &h, &h.deferred), COMMON_OK);
        for (int i = 0; i < n; i++) {
            fds[i] = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
            assert_true(fds[i] >= 0);
            h.events[i] = event_new(common_loop_base(loop), fds[i], EV_READ, entering, &h);
            assert_int_equal(event_add(h.events[i], NULL), 0);
        }
        common_loop_run(loop);
        assert_string_equal(h.text, n == 1 ? "hdl" : "hlhld");
        for (int i = 0; i < n; i++) {
            event_free(h.events[i]);
            close(fds[i]);
        }
        common_deferred_free(h.deferred);
    }
    struct handlers h = {0};
    assert_int_equal(common_deferred_new(loop, deferred_in_time, &h, &h.deferred), COMMON_OK);
    common_loop_enter(loop);
    common_deferred_mark(h.deferred);
    common_deferred_free(h.deferred); // marked, and never run
    common_loop_leave(loop);
    assert_string_equal(h.text, "");
}

struct stopped { // what a process sees that is stopped while its loop waits
    int fd;
    bool read, read_first;
    struct common_timer *timer;
};

static void on_word(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct stopped *s = arg;
    char byte;
    s->read = read(fd, &byte, 1) == 1;
}

static void on_patience_over(void *arg)
{
    struct stopped *s = arg;
    s->read_first = s->read;
    common_loop_stop(loop);
}

static int stopped_main(int fd, int ready_fd)
{
    struct stopped s = {.fd = fd};
    struct event *event = event_new(common_loop_base(loop), fd, EV_READ | EV_PERSIST, on_word, &s);
    if (!event || event_add(event, NULL) != 0 ||
        common_timer_new(loop, on_patience_over, &s, &s.timer) != COMMON_OK || write(ready_fd, "", 1) != 1)
        return 2;
    common_timer_start(s.timer, COMMON_NS_PER_S, false);
    common_loop_run(loop);
    return s.read_first ? 0 : 1;
}

// What came while the process was stopped is read before its timers judge that nothing came.
static void test_a_stopped_process_reads_before_it_judges(void **state)
{
    (void)state;
    int to_child[2], from_child[2], status;
    char byte;
    assert_int_equal(pipe(to_child), 0);
    assert_int_equal(pipe(from_child), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(stopped_main(to_child[0], from_child[1]));
    assert_int_equal(read(from_child[0], &byte, 1), 1);
    usleep(300 * 1000); // it waits in its poll by now
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(write(to_child[1], "", 1), 1);
    usleep(1500 * 1000);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    for (int i = 0; i < 2; i++) {
        close(to_child[i]);
        close(from_child[i]);
    }
}

enum { TIMERS = 500 };

static struct crowd {
    struct common_timer *timer;
    uint64_t due_from_ns, due_to_ns; // it is due between them: the clock was read before and after its start
    bool fired, stopped;
} crowd[TIMERS];
static uint64_t crowd_passed_ns; // the latest due_from_ns of those that fired
static int crowd_fired, crowd_left;

static void on_crowd(void *arg)
{
    struct crowd *one = arg;
    assert_false(one->stopped || one->fired);
    assert_true(one->due_to_ns >= crowd_passed_ns); // in the order of their times, whatever was taken out
    if (one->due_from_ns > crowd_passed_ns)
        crowd_passed_ns = one->due_from_ns;
    one->fired = true;
    crowd_fired++;
    crowd_left--;
    struct crowd *other = &crowd[(size_t)crowd_fired * 7919 % TIMERS];
    if (!other->fired && !other->stopped) {
        common_timer_stop(other->timer);
        other->stopped = true;
        crowd_left--;
    }
    if (crowd_left == 0)
        common_loop_stop(loop);
}

static void test_a_crowd_of_timers_keeps_its_order(void **state)
{
    (void)state;
    uint64_t drawn = 1;
    for (int i = 0; i < TIMERS; i++)
        assert_int_equal(common_timer_new(loop, on_crowd, &crowd[i], &crowd[i].timer), COMMON_OK);
    for (int round = 0; round < 2; round++) // the second time they are in the heap already
        for (int i = 0; i < TIMERS; i++) {
            drawn = drawn * UINT64_C(6364136223846793005) + 1;
            uint64_t delay = (drawn >> 40) % (20 * COMMON_NS_PER_MS);
            crowd[i].due_from_ns = common_clock_ns() + delay;
            common_timer_start(crowd[i].timer, delay, false);
            crowd[i].due_to_ns = common_clock_ns() + delay;
        }
    crowd_left = TIMERS;
    common_loop_run(loop);
    assert_true(crowd_fired >= TIMERS / 2);
    for (int i = 0; i < TIMERS; i++)
        common_timer_free(crowd[i].timer);
}

static void on_lookup(int result, struct evutil_addrinfo *found, void *arg)
{
    (void)found;
    *(int *)arg = result;
}

static void release(void *thing)
{
    (*(int *)thing)++;
}

// A look-up that is cancelled as the process ends: libevent reports that later, and has memory until then.
static void test_a_look_up_that_is_cancelled_at_the_end(void **state)
{
    (void)state;
    for (int turns = 0; turns < 2; turns++) {
        struct evdns_base *resolver = NULL;
        struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
        int result = 0, released[2] = {0};
        assert_int_equal(common_loop_new(&loop), COMMON_OK);
        assert_true(common_resolver_renew(loop, &resolver));
        evdns_base_clear_nameservers_and_suspend(resolver);
        assert_int_equal(evdns_base_nameserver_ip_add(resolver, "127.0.0.1:9"), 0);
        evdns_base_resume(resolver);
        struct evdns_getaddrinfo_request *lookup =
            evdns_getaddrinfo(resolver, "nobody.invalid", "1", &hints, on_lookup, &result);
        assert_non_null(lookup);
        evdns_getaddrinfo_cancel(lookup);
        common_resolver_free(loop, resolver);
        if (turns)
            event_base_loop(common_loop_base(loop), EVLOOP_NONBLOCK);
        assert_true(common_loop_leave_behind(loop, release, &released[0]));
        assert_true(common_loop_leave_behind(loop, release, &released[1]));
        assert_int_equal(released[0], 0); // a second has not passed
        common_loop_free(loop);
        assert_int_equal(result, EVUTIL_EAI_CANCEL);
        assert_int_equal(released[0] + released[1], 2);
    }
    loop = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_posted_before_stop_has_run, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_waits_for_the_mailbox, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mail, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mail_that_never_ran_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_thread_keeps_its_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_owner, setup, teardown),
        cmocka_unit_test_setup_teardown(test_call_waits_and_nests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_calls_from_many_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_start_and_stop_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_its_thread_outlives_a_peer_that_left, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_shot_is_never_early, setup, teardown),
        cmocka_unit_test_setup_teardown(test_repeat_until_stopped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missed_turns_are_not_made_up_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_start_again_moves_the_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_crowd_of_timers_keeps_its_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_timer_may_free_itself_and_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deferred_runs_after_all_handlers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deferred_runs_at_leave_when_nothing_else_is_ready, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_stopped_process_reads_before_it_judges, setup, teardown),
        cmocka_unit_test(test_a_look_up_that_is_cancelled_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
