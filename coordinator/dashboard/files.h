// SPDX-License-Identifier: Apache-2.0
// The page's files, as the build has put them into the program (cmake/EmbedFiles.cmake).
#ifndef COORDINATOR_DASHBOARD_FILES_H
#define COORDINATOR_DASHBOARD_FILES_H

#include <stddef.h>

struct coordinator_dashboard_file {
    const char *path, *type, *etag; // "/app.js", its Content-Type, its hash in quotes
    const unsigned char *bytes;
    size_t len;
};
extern const struct coordinator_dashboard_file coordinator_dashboard_files[]; // a NULL path ends them

#endif
