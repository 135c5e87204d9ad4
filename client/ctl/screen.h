// SPDX-License-Identifier: Apache-2.0
// A screen of its own on a terminal: another page, no cursor, keys as they are pressed. However the program
// ends or is stopped, the terminal is given back as it was; when it goes on, it is taken again.
#ifndef CLIENT_CTL_SCREEN_H
#define CLIENT_CTL_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Takes the terminal that stdout is, and stdin too where that is one: else there are no keys. On the main
// thread, which is to get its signals: others are made with ctl_screen_no_signals.
void ctl_screen_enter(void);
void ctl_screen_leave(void);      // also after it has been left
void ctl_screen_no_signals(void); // of the calling thread, and of those that it makes
void ctl_screen_signals(void);    // again

void ctl_screen_size(unsigned *width, unsigned *height); // now; 0: not known
// In the place of what was shown.
void ctl_screen_show(const char *frame, size_t len);

enum ctl_screen_event { CTL_SCREEN_NOTHING, CTL_SCREEN_KEY, CTL_SCREEN_WOKEN, CTL_SCREEN_GONE };
// Waits for a key, for wake_fd to be readable, for another size (NOTHING, as when the time is over), or for
// the end of the terminal (GONE).
enum ctl_screen_event ctl_screen_wait(int wake_fd, int timeout_ms, char *key);

#endif
