// SPDX-License-Identifier: Apache-2.0
// Named places between two effects, where a test can make a process die, stand still or fail. They exist in
// builds with -DBANYAN_FAILPOINTS=ON alone (preset failpoints); in any other build the macros are nothing.
//
//   COMMON_FAILPOINT("room_moment");              // a statement: the process dies or stands still here
//   if (COMMON_FAILPOINT_FAILS("room_moment"))    // the same, or true, with errno ENOSPC: do as if it had failed
//
// BANYAN_FAILPOINT_FILE names a file that arms one of them, for all processes that have it in their
// environment, and for one hit in all:
//
//   NAME ACTION NTH       ACTION: kill, exec, error, delay:MILLISECONDS; NTH: the how-manieth hit of a process, from 1
//
// Whose hit it is renames the file to FILE.hit and then acts. A second line is armed when the first was hit.
// The file may appear at any time. Any thread. A name is used in one place; tests/failpoints finds them all
// in the sources.
#ifndef COMMON_FAILPOINT_H
#define COMMON_FAILPOINT_H

#include <stdbool.h>

#ifdef BANYAN_FAILPOINTS
bool common_failpoint(const char *name); // true: the action is `error`
#define COMMON_FAILPOINT(name)       ((void)common_failpoint(name))
#define COMMON_FAILPOINT_FAILS(name) common_failpoint(name)
#else
#define COMMON_FAILPOINT(name)       ((void)0)
#define COMMON_FAILPOINT_FAILS(name) false
#endif

#endif
