// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <math.h>
#include <stdio.h>

void report_line(bool json, const struct report_field *fields)
{
    const char *separator = json ? "{" : "";
    for (const struct report_field *f = fields; f->key; f++) {
        if (json) {
            printf("%s\"%s\": ", separator, f->key);
            separator = ", ";
        }
        if (f->text)
            printf(json ? "\"%s\"" : "%-22s ", f->text);
        else if (json && isfinite(f->number))
            printf("%.9g", f->number);
        else if (json)
            printf("null");
        else
            printf("%s %-9.4g  ", f->key, f->number);
    }
    puts(json ? "}" : "");
    fflush(stdout);
}
