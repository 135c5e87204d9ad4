// SPDX-License-Identifier: Apache-2.0
// The ring of events: numbers, gaps, floods, strings that are too long or broken, and the words that it
// shares with the log. Time is the test's.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/events.h"
#include "coordinator/turn.h"

static uint64_t now_ns, wall_ns;
uint64_t __wrap_common_clock_ns(void);
uint64_t __wrap_common_clock_wall_ns(void);

uint64_t __wrap_common_clock_ns(void)
{
    return now_ns;
}

uint64_t __wrap_common_clock_wall_ns(void)
{
    return wall_ns;
}

enum { CAPACITY = 8 };

static struct coordinator_events *make(void)
{
    struct coordinator_events *events;
    now_ns = COMMON_NS_PER_S;
    wall_ns = 5 * COMMON_NS_PER_S;
    assert_int_equal(coordinator_events_new(CAPACITY, NULL, &events), COMMON_OK);
    coordinator_events_set_term(events, 3);
    return events;
}

static void add(struct coordinator_events *events, enum proto_event_kind kind, const char *worker,
                const char *text)
{
    const struct coordinator_event event = {.kind = kind, .worker = worker, .text = text};
    coordinator_events_add(events, &event);
}

static void an_empty_ring_has_nothing(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    assert_null(coordinator_events_next(events, 0));
    assert_null(coordinator_events_next(events, 17));
    assert_int_equal(coordinator_events_last(events), 0);
    assert_int_equal(coordinator_events_oldest(events), 1);
    assert_true(coordinator_events_bytes(events) > CAPACITY * sizeof(struct coordinator_event));
    coordinator_events_free(events);
}

static void an_event_is_kept_as_it_was(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    char name[] = "gpu-1", session[] = "a book", text[] = "it went";
    coordinator_events_add(events, &(struct coordinator_event){.kind = PROTO_EVENT_WORKER_LOST,
                                                               .severity = PROTO_EVENT_WARN,
                                                               .worker = name,
                                                               .session = 7,
                                                               .session_name = session,
                                                               .epoch = 9,
                                                               .text = text,
                                                               .seq = 99,
                                                               .term = 99});
    memset(name, 'x', 3); // the strings were copied
    memset(session, 'x', 3);
    memset(text, 'x', 3);
    const struct coordinator_event *e = coordinator_events_next(events, 0);
    assert_non_null(e);
    assert_int_equal(e->kind, PROTO_EVENT_WORKER_LOST);
    assert_int_equal(e->severity, PROTO_EVENT_WARN);
    assert_string_equal(e->worker, "gpu-1");
    assert_string_equal(e->session_name, "a book");
    assert_string_equal(e->text, "it went");
    assert_int_equal(e->session, 7);
    assert_int_equal(e->epoch, 9);
    assert_int_equal(e->count, 1);
    assert_int_equal(e->seq, 1);
    assert_int_equal(e->term, 3);
    assert_int_equal(e->wall_ns, wall_ns);
    assert_null(coordinator_events_next(events, 1));
    assert_int_equal(coordinator_events_total(events, PROTO_EVENT_WARN), 1);
    coordinator_events_free(events);
}

static void a_ring_that_goes_over_shows_the_gap(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    char text[8];
    for (int i = 1; i <= CAPACITY + 5; i++) {
        snprintf(text, sizeof text, "%d", i);
        add(events, PROTO_EVENT_WORKER_JOINED, NULL, text);
        assert_int_equal(coordinator_events_last(events), i);
        assert_int_equal(coordinator_events_oldest(events), i > CAPACITY ? i - CAPACITY + 1 : 1);
    }
    // A reader that had come to 2 has missed 3, 4 and 5.
    uint64_t at = 2;
    const struct coordinator_event *e = coordinator_events_next(events, at);
    assert_int_equal(e->seq, 6);
    assert_int_equal(coordinator_events_oldest(events) - at - 1, 3);
    for (uint64_t seq = 6; seq <= CAPACITY + 5; seq++) {
        e = coordinator_events_next(events, seq - 1);
        snprintf(text, sizeof text, "%d", (int)seq);
        assert_int_equal(e->seq, seq);
        assert_string_equal(e->text, text);
    }
    assert_null(coordinator_events_next(events, CAPACITY + 5));
    coordinator_events_free(events);
}

static void numbers_rise_over_terms(void **state)
{
    (void)state;
    struct coordinator_events *events = make(); // term 3
    add(events, PROTO_EVENT_WORKER_JOINED, "a", "");
    coordinator_events_set_term(events, 8);
    add(events, PROTO_EVENT_WORKER_JOINED, "b", "");
    assert_int_equal(coordinator_events_next(events, 0)->term, 3);
    assert_int_equal(coordinator_events_next(events, 1)->term, 8);
    assert_int_equal(coordinator_events_next(events, 1)->seq, 2);
    assert_true(coordinator_events_is_ours(events, 3, 1));
    assert_true(coordinator_events_is_ours(events, 8, 2));
    assert_true(coordinator_events_is_ours(events, 8, 0));
    assert_false(coordinator_events_is_ours(events, 8, 1)); // another coordinator's with that term
    assert_false(coordinator_events_is_ours(events, 8, 3)); // has not come yet
    assert_false(coordinator_events_is_ours(events, 2, 1));
    assert_false(coordinator_events_is_ours(events, 9, 1));
    coordinator_events_free(events);
}

static uint32_t most_of(enum proto_event_kind kind)
{
    return proto_event_kind_most(kind);
}

static void a_flood_is_counted(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    assert_int_equal(most_of(PROTO_EVENT_REFUSED_LIMIT), 1);
    for (int i = 0; i < 1000; i++)
        add(events, PROTO_EVENT_REFUSED_LIMIT, i == 900 ? "other" : "a", "the limit is reached");
    add(events, PROTO_EVENT_WORKER_JOINED, "b", "another kind is told at once");
    assert_int_equal(coordinator_events_last(events), 2);
    now_ns += COMMON_NS_PER_S - 1;
    coordinator_events_tick(events);
    assert_int_equal(coordinator_events_last(events), 2);
    now_ns += 1;
    coordinator_events_tick(events);
    assert_int_equal(coordinator_events_last(events), 3);
    const struct coordinator_event *e = coordinator_events_next(events, 2);
    assert_int_equal(e->kind, PROTO_EVENT_REFUSED_LIMIT);
    assert_int_equal(e->count, 999);
    assert_string_equal(e->worker, ""); // they were about two
    assert_string_equal(e->text, "the limit is reached");
    // It goes on: the next time is twice as long, and is full already.
    add(events, PROTO_EVENT_REFUSED_LIMIT, "a", "once more");
    assert_int_equal(coordinator_events_last(events), 3);
    now_ns += 2 * COMMON_NS_PER_S - 1;
    coordinator_events_tick(events);
    assert_int_equal(coordinator_events_last(events), 3);
    now_ns += 1;
    coordinator_events_tick(events);
    coordinator_events_tick(events);
    assert_int_equal(coordinator_events_last(events), 4);
    e = coordinator_events_next(events, 3);
    assert_int_equal(e->count, 1);
    assert_string_equal(e->worker, "a");
    assert_string_equal(e->text, "once more");
    // After a quiet time one stands for itself at once, and the times are short again.
    now_ns += 4 * COMMON_NS_PER_S;
    coordinator_events_tick(events);
    assert_int_equal(coordinator_events_last(events), 4);
    add(events, PROTO_EVENT_REFUSED_LIMIT, "a", "after a while");
    assert_int_equal(coordinator_events_last(events), 5);
    add(events, PROTO_EVENT_REFUSED_LIMIT, "a", "and again");
    now_ns += COMMON_NS_PER_S;
    coordinator_events_tick(events);
    assert_int_equal(coordinator_events_last(events), 6);
    assert_int_equal(coordinator_events_total(events, PROTO_EVENT_INFO), 1004);
    coordinator_events_free(events);
}

// A client that is refused again and again, for a day, does not fill the ring.
static void what_goes_on_is_told_ever_more_seldom(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    for (int i = 0; i < 24 * 3600; i++) {
        add(events, PROTO_EVENT_WORKER_REFUSED, "a", "another build");
        add(events, PROTO_EVENT_REFUSED_LIMIT, NULL, "one");
        add(events, PROTO_EVENT_REFUSED_LIMIT, NULL, "two");
        now_ns += COMMON_NS_PER_S;
        coordinator_events_tick(events);
    }
    assert_in_range(coordinator_events_last(events), 24 * 60, 3 * 24 * 60);
    coordinator_events_free(events);
}

static void what_a_flood_has_in_common_stays(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    struct coordinator_event event = {
        .kind = PROTO_EVENT_REFUSED_LIMIT, .worker = "w", .session = 4, .session_name = "s", .epoch = 2};
    for (int i = 0; i < 3; i++) {
        event.severity = i == 1 ? PROTO_EVENT_ERROR : PROTO_EVENT_WARN;
        event.count = 10;
        coordinator_events_add(events, &event);
    }
    now_ns += COMMON_NS_PER_S;
    coordinator_events_tick(events);
    const struct coordinator_event *e = coordinator_events_next(events, 1);
    assert_int_equal(e->count, 20);
    assert_string_equal(e->worker, "w");
    assert_int_equal(e->session, 4);
    assert_string_equal(e->session_name, "s");
    assert_int_equal(e->severity, PROTO_EVENT_ERROR); // the worst
    event.count = UINT32_MAX;                         // counts do not wrap
    for (int i = 0; i < 3; i++) {
        event.session = 5 + (uint64_t)i;
        coordinator_events_add(events, &event);
    }
    now_ns += 2 * COMMON_NS_PER_S;
    coordinator_events_tick(events);
    e = coordinator_events_next(events, 2);
    assert_int_equal(e->count, UINT32_MAX);
    assert_int_equal(e->session, 0);
    assert_int_equal(e->epoch, 0);
    assert_string_equal(e->session_name, "");
    assert_string_equal(e->worker, "w");
    coordinator_events_free(events);
}

static void strings_are_cut_and_cleaned(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    char name[200];
    memset(name, 'n', sizeof name);
    name[PROTO_EVENT_WORKER - 2] = '\xc3'; // a character of two bytes, for which there is room for one
    name[PROTO_EVENT_WORKER - 1] = '\xa9';
    name[199] = '\0';
    add(events, PROTO_EVENT_WORKER_JOINED, name,
        "tab\there \x1b[31mred\xff caf\xc3\xa9 \xed\xa0\x80 \xc2\x9b.");
    const struct coordinator_event *e = coordinator_events_next(events, 0);
    assert_int_equal(strlen(e->worker), PROTO_EVENT_WORKER - 2);
    assert_string_equal(e->text, "tab?here ?[31mred? caf\xc3\xa9 ??? ??.");
    coordinator_events_free(events);
}

// What the log says and what the event says come from one statement.
static void the_log_and_the_event_say_the_same(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    char line[512] = "";
    int ends[2], stderr_was = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    const struct coordinator_event event = {.kind = PROTO_EVENT_WORKER_LOST,
                                            .severity = PROTO_EVENT_WARN,
                                            .worker = "gpu-1"};
    coordinator_events_tell(events, &event, "a worker is lost: %s worker=%s chunks=%d reason=%s",
                            "its link broke a=b", "gpu-1", 12, "");
    coordinator_events_tell(NULL, &event, "nobody keeps this"); // logged alone
    dup2(stderr_was, STDERR_FILENO);
    close(stderr_was);
    close(ends[1]);
    assert_true(read(ends[0], line, sizeof line - 1) > 0);
    close(ends[0]);
    assert_non_null(strstr(line, "a worker is lost: its link broke a=b worker=gpu-1 chunks=12 reason="));
    assert_string_equal(coordinator_events_next(events, 0)->text,
                        "a worker is lost: its link broke a=b (chunks=12)");
    assert_string_equal(coordinator_events_next(events, 0)->worker, "gpu-1");
    coordinator_events_tell(events, &event, "moved session=%016x chunks=%u to=%s epoch=%d: at last", 1u, 2u,
                            "b", 4);
    assert_string_equal(coordinator_events_next(events, 1)->text, "moved: at last (chunks=2, to=b)");
    assert_int_equal(coordinator_events_last(events), 2);
    coordinator_events_tell(events, &event, "wrong by=%s trace=%s", "-", "-"); // a step without a trace
    assert_string_equal(coordinator_events_next(events, 2)->text, "wrong (by=-)");
    coordinator_events_tell(events, &event, "wrong trace=%s", "-");
    assert_string_equal(coordinator_events_next(events, 3)->text, "wrong");
    coordinator_events_tell(events, &event, "wrong trace=%s", "-0af7651");
    assert_string_equal(coordinator_events_next(events, 4)->text, "wrong (trace=-0af7651)");
    coordinator_events_free(events);
}

static void the_level_of_the_log_does_not_hide_events(void **state)
{
    (void)state;
    struct coordinator_events *events = make();
    common_log_set_level(COMMON_LOG_ERROR);
    coordinator_events_tell(events, &(struct coordinator_event){.kind = PROTO_EVENT_WORKER_JOINED}, "here");
    common_log_set_level(COMMON_LOG_INFO);
    assert_string_equal(coordinator_events_next(events, 0)->text, "here");
    coordinator_events_free(events);
}

static void drained(void *arg)
{
    (*(int *)arg)++;
}

static void an_event_marks_the_turn(void **state)
{
    (void)state;
    struct coordinator_turn turn = {0};
    struct coordinator_events *events;
    int drains = 0;
    now_ns = COMMON_NS_PER_S;
    assert_int_equal(coordinator_events_new(CAPACITY, &turn, &events), COMMON_OK);
    coordinator_turn_set(&turn, COORDINATOR_PHASE_EVENTS, drained, &drains);
    coordinator_turn_drain(&turn);
    assert_int_equal(drains, 0);
    add(events, PROTO_EVENT_WORKER_JOINED, "a", "");
    add(events, PROTO_EVENT_WORKER_JOINED, "b", "");
    coordinator_turn_drain(&turn);
    coordinator_turn_drain(&turn);
    assert_int_equal(drains, 1);
    coordinator_events_free(events);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    struct coordinator_events *events = NULL;
    assert_int_equal(coordinator_events_new(1, NULL, &events), COMMON_RESOURCE_EXHAUSTED);
    assert_int_equal(coordinator_events_new(COORDINATOR_EVENTS_MOST + 1, NULL, &events),
                     COMMON_RESOURCE_EXHAUSTED);
    assert_null(events);
    coordinator_events_free(NULL);
    add(NULL, PROTO_EVENT_WORKER_JOINED, "a", "");
}

static void names_are_one_table(void **state)
{
    (void)state;
    enum proto_event_severity severity;
    for (int i = 0; i < PROTO_EVENT_KIND_COUNT; i++) {
        const char *name = proto_event_kind_name((enum proto_event_kind)i);
        assert_true(strlen(name) < PROTO_EVENT_KIND);
        assert_true(strspn(name, "abcdefghijklmnopqrstuvwxyz-") == strlen(name));
        assert_true(proto_event_kinds(name) == UINT64_C(1) << i); // so no name is there twice
        assert_true(strlen(proto_event_kind_about((enum proto_event_kind)i)) > 0);
        assert_true(proto_event_kind_most((enum proto_event_kind)i) > 0);
        assert_true(proto_event_kind_seconds((enum proto_event_kind)i) > 0);
    }
    assert_true(proto_event_kinds("refused") ==
                (UINT64_C(1) << PROTO_EVENT_REFUSED_CLIENT | UINT64_C(1) << PROTO_EVENT_REFUSED_CALL |
                 UINT64_C(1) << PROTO_EVENT_REFUSED_LIMIT));
    assert_true(proto_event_kinds("") == 0);
    assert_true(proto_event_kinds("work") == 0);
    assert_true(proto_event_kinds("worker-") == 0);
    assert_true(proto_event_kinds("worker-lost-") == 0);
    for (int i = 0; i < PROTO_EVENT_SEVERITIES; i++) {
        assert_true(
            proto_event_severity_parse(proto_event_severity_name((enum proto_event_severity)i), &severity));
        assert_int_equal(severity, i);
    }
    assert_false(proto_event_severity_parse("debug", &severity));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_ring_has_nothing),
        cmocka_unit_test(an_event_is_kept_as_it_was),
        cmocka_unit_test(a_ring_that_goes_over_shows_the_gap),
        cmocka_unit_test(numbers_rise_over_terms),
        cmocka_unit_test(a_flood_is_counted),
        cmocka_unit_test(what_goes_on_is_told_ever_more_seldom),
        cmocka_unit_test(what_a_flood_has_in_common_stays),
        cmocka_unit_test(strings_are_cut_and_cleaned),
        cmocka_unit_test(the_log_and_the_event_say_the_same),
        cmocka_unit_test(the_level_of_the_log_does_not_hide_events),
        cmocka_unit_test(an_event_marks_the_turn),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(names_are_one_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
