// SPDX-License-Identifier: Apache-2.0
// A short life of two sessions and a fork, as a list of operations, and the model of what they should leave
// behind. The same script can be done by a client and, in another process, in the model alone: the successor
// of a client that has died has what was acknowledged to it.
#ifndef TESTS_FAILPOINTS_SCRIPT_H
#define TESTS_FAILPOINTS_SCRIPT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/banyan.h"
#include "tests/e2e/context.h"

enum { SCRIPT_SESSIONS = 3 };

struct script;

// replicas: of each session. lost: may be read at any time, from shared memory: how many copies of every
// chunk may have gone.
struct script *script_new(uint32_t replicas, const volatile int *lost);
void script_free(struct script *script);
// Called while a call is made again: starts what has ended. NULL: another process does.
void script_set_idle(struct script *script, bool (*idle)(void));
int script_length(void); // number of operations
int script_mark(void);   // the one before which a worker may be killed

// The client by which it is done from now on; opens by name what the model has.
bool script_connect(struct script *script, const char *endpoint);
// Another process has died in operation `nth`: what it has done of it is done or not, and nothing else has
// changed. Sessions are cut back to what the model has.
bool script_recover(struct script *script, int nth);
// Does operation `nth`, again and again until there is a verdict, and in the model.
bool script_do(struct script *script, int nth);
void script_pretend(struct script *script, int nth); // in the model alone
// Every row of every session, from the end and one by one.
bool script_check(struct script *script);
// Until no session lacks a copy.
bool script_wait_whole(struct script *script);
bool script_delete_all(struct script *script);

// What acts (act.h) do with it, beside the script.
enum { SCRIPT_FIRST, SCRIPT_SECOND, SCRIPT_LATER, SCRIPT_CHUNK = 16 };
// Makes a third session, with rows, and cuts the second one.
bool script_do_more(struct script *script);
bool script_check_one(struct script *script, int session); // as script_check
// Whether the session `name`, which is not the model's, has the rows of this one and no others.
bool script_same(struct script *script, int session, const char *name);
// Deletes a session by its name, which is not the model's; one that is not there is deleted already.
bool script_drop(struct script *script, const char *name);
bool script_delete(struct script *script, int session);
void script_forget(struct script *script, int session); // the coordinator's store does not know it any more
bool script_refill(struct script *script, int session); // from the start, with the same rows
bool script_covered(const struct script *script);       // some copy of every chunk must be left
banyan_client *script_client(const struct script *script);
banyan_session *script_session(const struct script *script, int session);
const struct context *script_context(const struct script *script, int session);
uint64_t script_tokens(const struct script *script, int session);
const char *script_name(int session);
const char *script_wrong(const struct script *script); // after false: what is not as it must be

#endif
