// SPDX-License-Identifier: Apache-2.0
// Command: top. A thread looks at the cluster, so that keys and the size of the terminal are handled also
// while nothing answers there; the main thread draws.
#include "client/ctl/top.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/screen.h"
#include "common/base/clock.h"

#define CALL_NS   (2 * COMMON_NS_PER_S) // unless --timeout says so: a frame that is older says so
#define REDRAW_MS 1000                  // while there is trouble, whose age is shown

static struct {
    uint64_t interval_ns;
    bool once, reverse;
    const char *sort;
} given = {.interval_ns = 2 * COMMON_NS_PER_S, .sort = "name"};

struct feed {
    struct ctl *ctl; // the feed's own from the thread's start on; its client is under the lock
    int wake_fd;     // something is new
    pthread_mutex_t lock;
    pthread_cond_t cond; // quit, on the monotonic clock
    bool quit;
    struct ctl_top_look now, before;
    char trouble[384];
    uint64_t trouble_ns; // since when; 0: there is none
};

// ---- looking ----------------------------------------------------------------------------------------------

static banyan_code look(struct ctl *ctl, struct ctl_top_look *out, banyan_error *error)
{
    banyan_code code = banyan_ping(ctl->client, &out->answer_ns, error);
    if (code == BANYAN_OK)
        code = banyan_cluster_get_info(ctl->client, &out->info, error);
    if (code == BANYAN_OK)
        out->at_ns = common_clock_ns();
    return code;
}

static void feed_take(struct feed *feed, const struct ctl_top_look *seen, banyan_code code,
                      const banyan_error *error)
{
    uint64_t one = 1;
    pthread_mutex_lock(&feed->lock);
    if (code == BANYAN_OK) {
        banyan_cluster_info_free(&feed->before.info);
        feed->before = feed->now;
        feed->now = *seen;
        feed->trouble_ns = 0;
    } else {
        snprintf(feed->trouble, sizeof feed->trouble, "%s", error->message);
        feed->trouble_ns = feed->trouble_ns ? feed->trouble_ns : common_clock_ns();
    }
    pthread_mutex_unlock(&feed->lock);
    if (write(feed->wake_fd, &one, sizeof one) < 0) { // full: the reader will see it
    }
}

// Until the next look; false: it is over.
static bool feed_rest(struct feed *feed)
{
    uint64_t at_ns = common_clock_ns() + given.interval_ns;
    struct timespec at = {(time_t)(at_ns / COMMON_NS_PER_S), (long)(at_ns % COMMON_NS_PER_S)};
    pthread_mutex_lock(&feed->lock);
    while (!feed->quit && common_clock_ns() < at_ns)
        pthread_cond_timedwait(&feed->cond, &feed->lock, &at);
    bool goes_on = !feed->quit;
    pthread_mutex_unlock(&feed->lock);
    return goes_on;
}

static banyan_code feed_connect(struct feed *feed, banyan_error *error)
{
    struct ctl mine = *feed->ctl;
    banyan_code code = ctl_connect(&mine, error);
    pthread_mutex_lock(&feed->lock);
    feed->ctl->client = code == BANYAN_OK ? mine.client : NULL;
    pthread_mutex_unlock(&feed->lock);
    return code;
}

static void *feed_run(void *arg)
{
    struct feed *feed = arg;
    ctl_screen_no_signals();
    do {
        struct ctl_top_look seen = {0};
        banyan_error error = {0};
        banyan_code code = feed->ctl->client ? BANYAN_OK : feed_connect(feed, &error);
        if (code == BANYAN_OK)
            code = look(feed->ctl, &seen, &error);
        feed_take(feed, &seen, code, &error);
    } while (feed_rest(feed));
    return NULL;
}

// What is under way ends at once; a connection that is being made, after a second or two.
static void feed_end(struct feed *feed, pthread_t thread)
{
    pthread_mutex_lock(&feed->lock);
    feed->quit = true;
    banyan_shutdown(feed->ctl->client);
    pthread_cond_signal(&feed->cond);
    pthread_mutex_unlock(&feed->lock);
    pthread_join(thread, NULL);
    banyan_cluster_info_free(&feed->now.info);
    banyan_cluster_info_free(&feed->before.info);
}

// ---- live -------------------------------------------------------------------------------------------------

static void show(struct feed *feed, struct ctl_top_view *view)
{
    char *frame = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&frame, &len);
    if (!out)
        return;
    ctl_screen_size(&view->width, &view->height);
    pthread_mutex_lock(&feed->lock);
    view->trouble = feed->trouble_ns ? feed->trouble : NULL;
    view->trouble_ns = feed->trouble_ns ? common_clock_ns() - feed->trouble_ns : 0;
    ctl_top_draw(out, &feed->now, &feed->before, view);
    pthread_mutex_unlock(&feed->lock);
    if (fclose(out) == 0)
        ctl_screen_show(frame, len);
    free(frame);
}

// False: it is the end.
static bool press(struct ctl_top_view *view, char key)
{
    key = (char)tolower((unsigned char)key);
    for (int i = 0; i < CTL_TOP_SORTS; i++)
        if (ctl_top_sorts[i].key == key)
            view->sort = (enum ctl_top_sort)i;
    if (key == 'r')
        view->reverse = !view->reverse;
    return key != 'q';
}

static enum ctl_exit run_live(struct ctl *ctl, struct ctl_top_view *view)
{
    struct feed feed = {.ctl = ctl, .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    pthread_condattr_t monotonic;
    pthread_t thread;
    char key;
    pthread_mutex_init(&feed.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&feed.cond, &monotonic);
    if (feed.wake_fd < 0 || pthread_create(&thread, NULL, feed_run, &feed) != 0)
        return ctl_say(CTL_INTERNAL, "no descriptor or thread is left");
    ctl_screen_enter();
    for (bool goes_on = true; goes_on;) {
        show(&feed, view);
        enum ctl_screen_event event = ctl_screen_wait(feed.wake_fd, REDRAW_MS, &key);
        uint64_t news;
        if (event == CTL_SCREEN_WOKEN && read(feed.wake_fd, &news, sizeof news) < 0) { // it has been read
        }
        goes_on = event != CTL_SCREEN_GONE && (event != CTL_SCREEN_KEY || press(view, key));
    }
    ctl_screen_leave();
    feed_end(&feed, thread);
    close(feed.wake_fd);
    return CTL_OK;
}

// ---- one frame --------------------------------------------------------------------------------------------

static enum ctl_exit run_once(struct ctl *ctl, const struct ctl_top_view *view)
{
    struct ctl_top_look before = {0}, now = {0};
    banyan_error error;
    enum ctl_exit exit_code = CTL_OK;
    if (look(ctl, &before, &error) != BANYAN_OK)
        return ctl_fail(&error);
    nanosleep(&(struct timespec){(time_t)(given.interval_ns / COMMON_NS_PER_S),
                                 (long)(given.interval_ns % COMMON_NS_PER_S)},
              NULL);
    if (look(ctl, &now, &error) != BANYAN_OK)
        exit_code = ctl_fail(&error);
    else if (ctl->json)
        ctl_print_json(ctl_top_json(&now, &before, view));
    else
        ctl_top_draw(stdout, &now, &before, view);
    banyan_cluster_info_free(&before.info);
    banyan_cluster_info_free(&now.info);
    return exit_code;
}

// ---- the table --------------------------------------------------------------------------------------------

static enum ctl_exit run_top(struct ctl *ctl, int n_args, char **args)
{
    (void)n_args;
    (void)args;
    struct ctl_top_view view = {.endpoint = ctl->endpoint,
                                .reverse = given.reverse,
                                .color = ctl_want_color()};
    banyan_error error;
    for (int i = 0; i < CTL_TOP_SORTS; i++)
        if (strcmp(given.sort, ctl_top_sorts[i].word) == 0)
            view.sort = (enum ctl_top_sort)i;
    view.live = isatty(STDOUT_FILENO) && !given.once && !ctl->json;
    if (view.live && ctl->limit_ns == UINT64_MAX && ctl->timeout_ns > CALL_NS)
        ctl->timeout_ns = CALL_NS;
    if (view.live)
        ctl_screen_no_signals(); // of the client's thread: they are this one's, below
    banyan_code code = ctl_connect(ctl, &error);
    if (view.live)
        ctl_screen_signals();
    bool away = code == BANYAN_UNAVAILABLE || code == BANYAN_DEADLINE_EXCEEDED;
    if (code != BANYAN_OK && !(view.live && away))
        return ctl_connect_fail(&error);
    return view.live ? run_live(ctl, &view) : run_once(ctl, &view);
}

static const struct common_option top_options[] = {
    {"interval", 'i', COMMON_OPTION_DURATION, &given.interval_ns, "TIME",
     "Time between updates. Default: 2s.", 100 * COMMON_NS_PER_MS, 3600 * COMMON_NS_PER_S},
    {"once", '1', COMMON_OPTION_FLAG, &given.once, NULL,
     "Print one frame, from two readings one interval apart, and exit.", 0, 0},
    {"sort", 's', COMMON_OPTION_STRING, &given.sort, "name|state|memory|speed|seen|tokens|steps",
     "Column to sort by; numbers sort the largest first. Default: name.", 0, 0},
    {"reverse", 'r', COMMON_OPTION_FLAG, &given.reverse, NULL, "Reverse the order.", 0, 0},
    {0},
};

const struct ctl_command ctl_top_commands[] = {
    {"top", "", "watch the cluster and its workers live",
     "Shows the cluster and its workers, updated continuously: memory in use, each worker's speed as "
     "measured at its\n"
     "start and as seen recently, tokens, and steps per second. Keys choose the sort order; q quits. Without "
     "an answer it\n"
     "says so and keeps trying. If standard output is not a terminal, or with -o json, it prints one frame.",
     top_options, 0, 0, run_top, NULL},
    {0},
};
