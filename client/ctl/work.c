// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/work.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

#define THREADS_MAX 16
#define REDRAW_NS   (200 * COMMON_NS_PER_MS)

static volatile sig_atomic_t ended; // by the user

static void on_signal(int sig)
{
    (void)sig;
    ended = 1;
}

void ctl_work_guard(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool ctl_work_ended(void)
{
    return ended != 0;
}

// ---- problems ---------------------------------------------------------------------------------------------

enum ctl_exit ctl_problem_file(struct ctl_problem *problem, const struct common_error *err)
{
    problem->of_cluster = false;
    problem->exit = err->code == COMMON_INVALID_ARGUMENT     ? CTL_REFUSED
                    : err->code == COMMON_RESOURCE_EXHAUSTED ? CTL_INTERNAL
                    : err->code == COMMON_ALREADY_EXISTS     ? CTL_STATE
                                                             : CTL_FILE;
    snprintf(problem->text, sizeof problem->text, "%s", err->message);
    return problem->exit;
}

enum ctl_exit ctl_problem_cluster(struct ctl_problem *problem, const banyan_error *error)
{
    problem->of_cluster = true;
    problem->cluster = *error;
    problem->exit = CTL_INTERNAL; // ctl_fail reports it better
    return problem->exit;
}

enum ctl_exit ctl_problem_tell(const struct ctl_problem *problem)
{
    return problem->of_cluster ? ctl_fail(&problem->cluster) : ctl_say(problem->exit, "%s", problem->text);
}

// ---- work -------------------------------------------------------------------------------------------------

struct crew {
    struct ctl_work *work;
    struct ctl_problem *problem;
    pthread_mutex_t lock; // of what follows, and of the work's counts
    size_t next;
    enum ctl_exit exit;
    bool drawing;
    uint64_t started_ns, drawn_ns;
};

static void draw(struct crew *crew, uint64_t now)
{
    const struct ctl_work *work = crew->work;
    char done[32], total[32], rate[32];
    uint64_t took = now - crew->started_ns + work->took_ns;
    double per_s = took ? (double)work->done_bytes * 1e9 / (double)took : 0;
    if (!crew->drawing || now - crew->drawn_ns < REDRAW_NS)
        return;
    crew->drawn_ns = now;
    fprintf(stderr, "\r%s: %s of %s (%u %%), %s/s\033[K", work->what,
            common_format_bytes(work->done_bytes, done, sizeof done),
            common_format_bytes(work->total_bytes, total, sizeof total),
            work->total_bytes ? (unsigned)(work->done_bytes * 100 / work->total_bytes) : 100,
            common_format_bytes((uint64_t)per_s, rate, sizeof rate));
}

static bool take(struct crew *crew, size_t *nth)
{
    pthread_mutex_lock(&crew->lock);
    if (ended && crew->exit == CTL_OK) {
        crew->exit = crew->problem->exit = CTL_TIMEOUT;
        crew->problem->of_cluster = false;
        snprintf(crew->problem->text, sizeof crew->problem->text, "ended early");
    }
    bool more = crew->exit == CTL_OK && crew->next < crew->work->n;
    *nth = more ? crew->next++ : 0;
    pthread_mutex_unlock(&crew->lock);
    return more;
}

static void *labour(void *arg)
{
    struct crew *crew = arg;
    size_t nth;
    while (take(crew, &nth)) {
        struct ctl_problem problem = {.exit = CTL_OK};
        uint64_t bytes = 0;
        enum ctl_exit exit_code = crew->work->run(crew->work->arg, nth, &bytes, &problem);
        pthread_mutex_lock(&crew->lock);
        if (exit_code != CTL_OK && crew->exit == CTL_OK) {
            crew->exit = exit_code;
            *crew->problem = problem;
        }
        crew->work->done_bytes += bytes;
        draw(crew, common_clock_ns());
        pthread_mutex_unlock(&crew->lock);
    }
    return NULL;
}

enum ctl_exit ctl_work_run(struct ctl_work *work, uint32_t threads, struct ctl_problem *problem)
{
    struct crew crew = {.work = work,
                        .problem = problem,
                        .next = work->first,
                        .exit = CTL_OK,
                        .drawing = !work->quiet && isatty(STDERR_FILENO),
                        .started_ns = common_clock_ns()};
    pthread_t others[THREADS_MAX];
    uint32_t n = 0;
    pthread_mutex_init(&crew.lock, NULL);
    while (n + 1 < threads && work->first + n + 1 < work->n && n < THREADS_MAX &&
           pthread_create(&others[n], NULL, labour, &crew) == 0)
        n++;
    labour(&crew); // a thread that could not be had is not missed
    for (uint32_t i = 0; i < n; i++)
        pthread_join(others[i], NULL);
    pthread_mutex_destroy(&crew.lock);
    work->took_ns += common_clock_ns() - crew.started_ns;
    if (crew.drawn_ns)
        fputs("\r\033[K", stderr);
    return crew.exit;
}
