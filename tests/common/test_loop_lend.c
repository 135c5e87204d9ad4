// SPDX-License-Identifier: Apache-2.0
// A loop that is lent: each caller, from however many threads and however long ago, gets its answer, one
// thread at a time runs turns, and it comes back to its own thread where there is a reason.
#include <event2/event.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/loop/loop.h"

struct asked { // on the asker's stack
    struct asked *next;
    struct common_mail mail;
    _Atomic uint32_t done;
};

static struct common_loop *loop;
static struct event *answers;
static pthread_t echo_thread, own_thread;
static int ours, theirs;            // a stream; what is written here comes back, byte for byte
static struct asked *first, **last; // asked and not answered, oldest first: the loop's
static atomic_int inside;           // threads that run something of the loop's
static atomic_uint borrowed;        // calls for which the loop was borrowed

static void *echo(void *arg)
{
    char bytes[64];
    ssize_t n;
    (void)arg;
    while ((n = read(theirs, bytes, sizeof bytes)) > 0)
        if (write(theirs, bytes, (size_t)n) != n)
            break;
    return NULL;
}

static void enter(void)
{
    if (atomic_fetch_add(&inside, 1) != 0 || !common_loop_is_owner(loop))
        abort();
}

static void leave(void)
{
    atomic_fetch_sub(&inside, 1);
}

static void on_answer(evutil_socket_t fd, short what, void *arg)
{
    char bytes[16];
    (void)what, (void)arg;
    enter();
    ssize_t n = read(fd, bytes, sizeof bytes);
    while (n-- > 0) {
        struct asked *asked = first;
        first = asked->next;
        last = first ? last : &first;
        atomic_store(&asked->done, 1);
        syscall(SYS_futex, &asked->done, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    leave();
}

static void ask(void *arg)
{
    struct asked *asked = arg;
    enter();
    asked->next = NULL;
    *last = asked;
    last = &asked->next;
    if (write(ours, "?", 1) != 1)
        abort();
    leave();
}

static bool nothing_is_asked(void *arg)
{
    (void)arg;
    return !first;
}

static void whose(void *arg)
{
    *(pthread_t *)arg = pthread_self();
}

static int setup(void **state)
{
    int fds[2];
    (void)state;
    if (common_loop_new(&loop) != COMMON_OK || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return -1;
    ours = fds[0];
    theirs = fds[1];
    first = NULL;
    last = &first;
    atomic_store(&borrowed, 0);
    evutil_make_socket_nonblocking(ours);
    answers = event_new(common_loop_base(loop), ours, EV_READ | EV_PERSIST, on_answer, NULL);
    event_add(answers, NULL);
    pthread_create(&echo_thread, NULL, echo, NULL);
    common_loop_lend(loop, nothing_is_asked, NULL);
    if (common_loop_start_thread(loop, "test") != COMMON_OK)
        return -1;
    common_loop_call(loop, whose, &own_thread);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    common_loop_stop(loop); // lent or not
    common_loop_join(loop);
    shutdown(ours, SHUT_RDWR);
    pthread_join(echo_thread, NULL);
    event_free(answers);
    common_loop_free(loop);
    close(ours);
    close(theirs);
    return 0;
}

static void call(void)
{
    struct asked asked = {0};
    if (common_loop_borrow(loop, ask, &asked, &asked.done))
        atomic_fetch_add(&borrowed, 1);
    else
        common_loop_mail(loop, &asked.mail, ask, &asked);
    while (!atomic_load(&asked.done))
        syscall(SYS_futex, &asked.done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

// One caller: the second call on borrows; after a pause that is longer than it is lent, the loop's thread is
// back.
static void test_one_caller(void **state)
{
    (void)state;
    for (int pause = 0; pause < 3; pause++) {
        for (int i = 0; i < 500; i++)
            call();
        sleep_us(20000);
    }
    assert_true(atomic_load(&borrowed) > 500);
}

static void *call_often(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < 400; i++) {
        call();
        if (rand_r(&seed) % 50 == 0)
            sleep_us(rand_r(&seed) % 12000);
    }
    return NULL;
}

static void test_many_callers(void **state)
{
    pthread_t threads[5];
    (void)state;
    for (uintptr_t i = 0; i < 5; i++)
        pthread_create(&threads[i], NULL, call_often, (void *)(i + 1));
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
}

static void nothing(void *arg)
{
    (void)arg;
}

// Mail of others while it is lent and while it is borrowed.
static void test_mail_comes(void **state)
{
    pthread_t thread;
    (void)state;
    pthread_create(&thread, NULL, call_often, (void *)(uintptr_t)9);
    for (int i = 0; i < 3000; i++)
        common_loop_call(loop, nothing, NULL);
    pthread_join(thread, NULL);
}

struct told {
    struct common_mail mail;
    unsigned borrowed; // how often it came on a borrower's thread
    pthread_t at_last;
    atomic_bool over;
};

static void tell(void *arg)
{
    struct told *told = arg;
    if (common_loop_give_back(loop)) {
        told->borrowed++;
        common_loop_mail(loop, &told->mail, tell, told);
        return;
    }
    told->at_last = pthread_self();
    atomic_store(&told->over, true);
}

static struct told told;

static void tell_and_ask(void *arg)
{
    common_loop_mail(loop, &told.mail, tell, &told);
    ask(arg);
}

// What only the loop's own thread may run gets there, and the borrower has its answer all the same.
static void test_given_back(void **state)
{
    (void)state;
    for (unsigned times = 0; times < 50;) {
        struct asked asked = {0};
        told = (struct told){0};
        call();
        call();
        if (!common_loop_borrow(loop, tell_and_ask, &asked, &asked.done))
            continue;
        while (!atomic_load(&asked.done))
            syscall(SYS_futex, &asked.done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        while (!atomic_load(&told.over))
            sleep_us(50);
        assert_true(pthread_equal(told.at_last, own_thread));
        times++;
    }
}

static void wait_for_nothing(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

static void *never_answered(void *arg)
{
    const _Atomic uint32_t done =
        0; // on this stack, as the loop is not: after it was stopped nothing of it is touched
    while (!common_loop_borrow(loop, wait_for_nothing, arg, &done))
        call();
    return NULL;
}

// The loop ends under a borrower, and may be freed at once.
static void test_stopped_while_borrowed(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        pthread_t thread;
        static atomic_bool borrows;
        atomic_store(&borrows, false);
        pthread_create(&thread, NULL, never_answered, &borrows);
        while (!atomic_load(&borrows))
            sleep_us(10);
        if (i % 3)
            sleep_us(i * 300);
        teardown(NULL);
        pthread_join(thread, NULL);
        setup(NULL);
    }
}

static void note(void *arg)
{
    struct told *noted = arg;
    atomic_store(&noted->over, true);
}

static void ask_after(void *arg)
{
    if (!atomic_load(&told.over))
        abort();
    ask(arg);
}

// What a thread has posted goes before what it borrows the loop for.
static void test_in_order(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        struct asked asked = {0};
        told = (struct told){0};
        common_loop_mail(loop, &told.mail, note, &told);
        if (!common_loop_borrow(loop, ask_after, &asked, &asked.done))
            common_loop_mail(loop, &asked.mail, ask_after, &asked);
        while (!atomic_load(&asked.done))
            syscall(SYS_futex, &asked.done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        call();
    }
}

// Not on a borrower, who may wait for long.
static void test_called_on_its_own_thread(void **state)
{
    pthread_t thread, on;
    static atomic_bool borrows;
    (void)state;
    atomic_store(&borrows, false);
    pthread_create(&thread, NULL, never_answered, &borrows);
    while (!atomic_load(&borrows))
        sleep_us(10);
    common_loop_call(loop, whose, &on);
    common_loop_call_own(loop, whose, &on);
    assert_true(pthread_equal(on, own_thread));
    pthread_join(thread, NULL); // it has been given back
}

static void on_poke(evutil_socket_t fd, short what, void *arg)
{
    uint64_t count;
    (void)what, (void)arg;
    if (read(fd, &count, sizeof count) == sizeof count)
        common_loop_mail(loop, &told.mail, tell, &told);
}

static struct event *poke;

static void poke_begin(void *arg)
{
    poke = event_new(common_loop_base(loop), *(int *)arg, EV_READ | EV_PERSIST, on_poke, NULL);
    event_add(poke, NULL);
}

static void poke_end(void *arg)
{
    (void)arg;
    event_free(poke);
}

// What a borrower must not run comes while it looks at the sockets before its own call: that look is one
// turn.
static void test_given_back_before_it_begins(void **state)
{
    const uint64_t one = 1;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    (void)state;
    common_loop_call(loop, poke_begin, &fd);
    for (int i = 0; i < 50; i++) {
        told = (struct told){0};
        call();
        call();
        sleep_us(300); // longer than what has come may lie there unseen
        assert_int_equal(write(fd, &one, sizeof one), sizeof one);
        call();
        while (!atomic_load(&told.over))
            sleep_us(50);
        assert_true(pthread_equal(told.at_last, own_thread));
    }
    common_loop_call(loop, poke_end, NULL);
    close(fd);
}

// A fork has no thread to give it back to, and the sockets are its parent's.
static void test_not_in_a_fork(void **state)
{
    int status;
    struct asked asked = {0};
    (void)state;
    call();
    call();
    pid_t child = fork();
    if (child == 0)
        _exit(common_loop_borrow(loop, ask, &asked, &asked.done));
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
    call();
}

int main(void)
{
    alarm(300);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_caller, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_callers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mail_comes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stopped_while_borrowed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_called_on_its_own_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(test_given_back_before_it_begins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_in_a_fork, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
