// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/wait.h"

#include <inttypes.h>
#include <langinfo.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

#define POLL_NS     (200 * COMMON_NS_PER_MS)
#define STUCK_POLLS 10
#define BAR_CELLS   24

struct waiting {
    const char *what;
    bool bar; // stderr is a terminal
    uint64_t began_ns, first_chunks, first_bytes;
    unsigned stuck_polls;
    char told[256]; // why it was stuck, as last reported
};

static void pause_poll(void)
{
    struct timespec t = {.tv_nsec = (long)POLL_NS};
    nanosleep(&t, NULL);
}

static void clear_bar(const struct waiting *w)
{
    if (w->bar)
        fputs("\r\033[K", stderr);
}

// ", 12.3 MiB, 4.5 MiB/s"; "" where bytes are not counted.
static const char *speed_text(const struct waiting *w, const struct ctl_wait_left *left, char out[80])
{
    char bytes[32], rate[32];
    double seconds = (double)(common_clock_ns() - w->began_ns) / 1e9;
    uint64_t speed = seconds > 0 ? (uint64_t)((double)(w->first_bytes - left->bytes) / seconds) : 0;
    out[0] = '\0';
    if (w->first_bytes)
        snprintf(out, 80, ", %s, %s/s", common_format_bytes(left->bytes, bytes, sizeof bytes),
                 common_format_bytes(speed, rate, sizeof rate));
    return out;
}

// How much of what was there at the start, or has come since, is done.
static void draw_bar(struct waiting *w, const struct ctl_wait_left *left)
{
    char speed[80], cells[3 * BAR_CELLS + 1] = "";
    bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    w->first_bytes = left->bytes > w->first_bytes ? left->bytes : w->first_bytes;
    w->first_chunks = left->chunks > w->first_chunks ? left->chunks : w->first_chunks;
    if (!w->bar)
        return;
    uint64_t done = w->first_chunks - left->chunks;
    uint64_t full = w->first_chunks ? done * BAR_CELLS / w->first_chunks : BAR_CELLS;
    for (uint64_t i = 0; i < BAR_CELLS; i++)
        strcat(cells, i < full ? (utf8 ? "█" : "#") : (utf8 ? "░" : "."));
    fprintf(stderr, "\r\033[K%s %s %" PRIu64 " chunks left%s", w->what, cells, left->chunks,
            speed_text(w, left, speed));
    fflush(stderr);
}

static void tell_stuck(struct waiting *w, const struct ctl_wait_left *left)
{
    w->stuck_polls = left->stuck[0] ? w->stuck_polls + 1 : 0;
    if (w->stuck_polls < STUCK_POLLS || strcmp(w->told, left->stuck) == 0)
        return;
    clear_bar(w);
    ctl_say(CTL_OK, "%s waits: %s", w->what, left->stuck);
    snprintf(w->told, sizeof w->told, "%s", left->stuck);
}

static enum ctl_exit out_of_patience(const struct waiting *w, const struct ctl_wait_left *left,
                                     const char *goes_on, uint64_t limit_ns)
{
    char limit[32], bytes[32], size[40] = "";
    if (w->first_bytes)
        snprintf(size, sizeof size, " (%s)", common_format_bytes(left->bytes, bytes, sizeof bytes));
    return ctl_say(CTL_TIMEOUT, "%s is not finished after %s: %" PRIu64 " chunks%s are left, %s%s%s", w->what,
                   common_format_ns(limit_ns, limit, sizeof limit), left->chunks, size, goes_on,
                   left->stuck[0] ? "\n  now: " : "", left->stuck);
}

enum ctl_exit ctl_wait(struct ctl *ctl, const char *what, const char *goes_on, const char *name,
                       const struct ctl_wait_given *given, ctl_wait_fn ask)
{
    struct waiting w = {.what = what, .bar = isatty(STDERR_FILENO) && !ctl->json};
    w.began_ns = common_clock_ns();
    for (;;) {
        struct ctl_wait_left left = {0};
        enum ctl_exit exit_code = ask(ctl, name, &left);
        if (exit_code != CTL_OK || left.over) {
            clear_bar(&w);
            return exit_code;
        }
        draw_bar(&w, &left);
        tell_stuck(&w, &left);
        if (given->limit_ns && common_clock_ns() - w.began_ns >= given->limit_ns) {
            clear_bar(&w);
            return out_of_patience(&w, &left, goes_on, given->limit_ns);
        }
        pause_poll();
    }
}

enum ctl_exit ctl_wait_check(const struct ctl_wait_given *given)
{
    if (given->limit_ns && !given->wait)
        return ctl_say(CTL_USAGE, "--wait-timeout needs --wait");
    return CTL_OK;
}

enum ctl_exit ctl_wait_term(struct ctl *ctl, uint64_t *term)
{
    banyan_cluster_info info;
    banyan_error error;
    if (banyan_cluster_get_info(ctl->client, &info, &error) != BANYAN_OK)
        return ctl_fail(&error);
    *term = info.term;
    banyan_cluster_info_free(&info);
    return CTL_OK;
}

enum ctl_exit ctl_wait_same_term(struct ctl *ctl, uint64_t term, const char *again)
{
    uint64_t now = 0;
    enum ctl_exit exit_code = ctl_wait_term(ctl, &now);
    if (exit_code == CTL_OK && now != term)
        return ctl_say(CTL_STATE, "the coordinator was restarted meanwhile: %s again", again);
    return exit_code;
}
