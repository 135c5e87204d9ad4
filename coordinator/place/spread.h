// SPDX-License-Identifier: Apache-2.0
// Who serves the chunks of a session that several workers have: spread by speed when they were placed, and again here
// when speeds have changed (cluster/slow.h) or a move has given chunks another holder. No row moves.
//
//   waiting for the session alone (RELAYOUT) ──▶ who serves, the epoch + 1: one write ──▶ layouts to all members
//
// It is done only where the last worker is done a tenth sooner by it, so a session's epoch rises at most once for a
// change of speeds, or a move. At most 64 sessions at a time.
#ifndef COORDINATOR_SPREAD_H
#define COORDINATOR_SPREAD_H

struct coordinator_session;
struct coordinator_sessions;

// It is to be looked at who serves what of it, whether speeds have changed or not.
void coordinator_session_uneven(struct coordinator_session *s);

// Begins with sessions that are to be looked at, some of them: with each tick, and at the end of a turn.
void coordinator_spreads_look(struct coordinator_sessions *sessions);
void coordinator_spreads_drain(struct coordinator_sessions *sessions);

#endif
