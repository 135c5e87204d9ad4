// SPDX-License-Identifier: Apache-2.0
// The states of a row of K and V in a chunk's layer: store.h has their drawing.
#ifndef WORKER_ROW_H
#define WORKER_ROW_H

enum worker_row {
    WORKER_ROW_ABSENT,
    WORKER_ROW_PUT,
    WORKER_ROW_PREPARED,
    WORKER_ROW_APPENDED,
    WORKER_ROW_COMMITTED,
    WORKER_ROW_FORGOTTEN
};

#endif
