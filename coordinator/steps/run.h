// SPDX-License-Identifier: Apache-2.0
// An item's way through its states (item.h): it is let in, queued, sent, tried again, and ends.
#ifndef COORDINATOR_RUN_H
#define COORDINATOR_RUN_H

#include "coordinator/steps/item.h"

// Ends it, unless it is PLACING or in frames: then it ends when these come back. One that waits for a session that
// was deleted in this turn ends at the end of the turn.
void coordinator_item_stop(struct coordinator_item *item, enum common_code code, const char *text);

// Its end: failure says whether it worked. Rows of an append that failed are taken back first, and the failure says
// UNCONFIRMED when a holder cannot be told. The call, and the item in it, may be gone afterwards.
void coordinator_item_finish(struct coordinator_item *item);

// Its rows are stored: they are acknowledged.
void coordinator_item_acknowledge(struct coordinator_item *item);

// A frame that carried a slab of it came back, or its masses did. It may be gone afterwards.
void coordinator_item_landed(struct coordinator_item *item);

// QUEUED and its plan has retired: it goes another way, once what is under way has come back. Already out of
// the queue.
void coordinator_item_reroute(struct coordinator_item *item);

// A waiting item whose turn it is.
void coordinator_item_go(struct coordinator_item *item);

// Drains: items that are NEW. The timer of items that are RETRYING.
void coordinator_items_drain(struct coordinator_steps *steps);
enum common_code coordinator_items_init(struct coordinator_steps *steps);
void coordinator_items_stop(struct coordinator_steps *steps);

#endif
