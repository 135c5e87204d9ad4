// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static const char enter_text[] = "\033[?1049h\033[?25l", leave_text[] = "\033[?25h\033[?1049l";
static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS};

static struct termios before; // of stdin
static volatile sig_atomic_t keys, taken;

// Only calls that signal handlers may make.
static void write_text(const char *text, size_t len)
{
    while (len) {
        ssize_t n = write(STDOUT_FILENO, text, len);
        if (n < 0 && errno == EAGAIN)
            poll(&(struct pollfd){.fd = STDOUT_FILENO, .events = POLLOUT}, 1, 1000);
        else if (n < 0 && errno != EINTR)
            return;
        text += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
}

static void take(void)
{
    struct termios raw = before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    write_text(enter_text, sizeof enter_text - 1);
    taken = 1;
}

void ctl_screen_leave(void)
{
    if (!taken)
        return;
    taken = 0;
    write_text(leave_text, sizeof leave_text - 1);
    if (keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
}

static void on_end(int sig)
{
    ctl_screen_leave();
    signal(sig, SIG_DFL);
    raise(sig); // when this returns: the default is to end
}

static void on_stop(int sig)
{
    (void)sig;
    int error = errno;
    ctl_screen_leave();
    kill(getpid(), SIGSTOP);
    take(); // the user goes on with it
    errno = error;
}

static void on_size(int sig)
{
    (void)sig; // poll returns
}

void ctl_screen_enter(void)
{
    struct sigaction end = {.sa_handler = on_end}, stop = {.sa_handler = on_stop},
                     size = {.sa_handler = on_size};
    sigfillset(&end.sa_mask);
    sigfillset(&stop.sa_mask);
    keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        sigaction(ends[i], &end, NULL);
    sigaction(SIGTSTP, &stop, NULL);
    sigaction(SIGWINCH, &size, NULL);
    atexit(ctl_screen_leave);
    take();
}

void ctl_screen_no_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV); // of a thread's own making
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

void ctl_screen_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

void ctl_screen_size(unsigned *width, unsigned *height)
{
    struct winsize size = {0};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    *width = size.ws_col;
    *height = size.ws_row;
}

void ctl_screen_show(const char *frame, size_t len)
{
    write_text("\033[H", 3);
    write_text(frame, len);
    write_text("\033[J", 3);
}

enum ctl_screen_event ctl_screen_wait(int wake_fd, int timeout_ms, char *key)
{
    struct pollfd fds[] = {{.fd = wake_fd, .events = POLLIN},
                           {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN}};
    if (poll(fds, 2, timeout_ms) <= 0)
        return CTL_SCREEN_NOTHING;
    if (fds[1].revents) {
        ssize_t n = read(STDIN_FILENO, key, 1);
        if (n == 1)
            return CTL_SCREEN_KEY;
        return n < 0 && (errno == EINTR || errno == EAGAIN) ? CTL_SCREEN_NOTHING : CTL_SCREEN_GONE;
    }
    return fds[0].revents ? CTL_SCREEN_WOKEN : CTL_SCREEN_NOTHING;
}
