// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

struct process {
    unsigned long long virtual_bytes, resident_pages, start_ticks, boot_s;
};

static bool read_text(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(out, 1, size - 1, f);
    fclose(f);
    out[n] = '\0';
    return n > 0;
}

// Fields 22 to 24 of proc(5)'s stat, counted from behind the name, which may have anything in it.
static bool read_stat(struct process *out)
{
    char text[1024], line[256];
    if (!read_text("/proc/self/stat", text, sizeof(text)))
        return false;
    const char *at = strrchr(text, ')');
    if (!at ||
        sscanf(at + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu %llu "
               "%llu",
               &out->start_ticks, &out->virtual_bytes, &out->resident_pages) != 3)
        return false;
    FILE *f = fopen("/proc/stat", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "btime %llu", &out->boot_s) == 1)
            break;
    if (f)
        fclose(f);
    return true;
}

// Linux 6.2 and later say it as the folder's size; before, they are counted, one at a time.
static double count_files(void)
{
    struct stat st;
    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
        return (double)st.st_size;
    DIR *folder = opendir("/proc/self/fd");
    double n = -3; // ".", "..", and the folder
    if (!folder)
        return 0;
    while (readdir(folder)) // cppcheck-suppress readdirCalled ; the stream is this function's
        n++;
    closedir(folder);
    return n;
}

static bool put(struct common_metrics *table, enum common_metric_kind kind, const char *name,
                const char *help, double number)
{
    return common_metrics_put(table, &(struct common_metric_spec){.kind = kind, .name = name, .help = help},
                              number);
}

static bool put_build(struct common_metrics *table)
{
    return common_metrics_put(
        table,
        &(struct common_metric_spec){.kind = COMMON_METRIC_INFO,
                                     .name = "banyan_build_info",
                                     .help = "1; version and source revision of this program.",
                                     .label = "version",
                                     .value = BANYAN_VERSION,
                                     .label2 = "revision",
                                     .value2 = BANYAN_REVISION},
        1);
}

static bool put_stat(struct common_metrics *table)
{
    struct process p = {0};
    if (!read_stat(&p))
        return true;
    double start = (double)p.boot_s + (double)p.start_ticks / (double)sysconf(_SC_CLK_TCK);
    return put(table, COMMON_METRIC_GAUGE, "process_resident_memory_bytes", "Resident memory.",
               (double)p.resident_pages * (double)sysconf(_SC_PAGESIZE)) &&
           put(table, COMMON_METRIC_GAUGE, "process_virtual_memory_bytes", "Virtual memory.",
               (double)p.virtual_bytes) &&
           (!p.boot_s || put(table, COMMON_METRIC_GAUGE, "process_start_time_seconds",
                             "Start of the process, in seconds since 1970.", start));
}

bool common_process_put(struct common_metrics *table)
{
    struct rusage used;
    struct rlimit files;
    double cpu = 0;
    if (getrusage(RUSAGE_SELF, &used) == 0)
        cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
              (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    return put_build(table) && put_stat(table) &&
           put(table, COMMON_METRIC_COUNTER, "process_cpu_seconds_total",
               "Processor time of all threads, user and system.", cpu) &&
           put(table, COMMON_METRIC_GAUGE, "process_open_fds", "Open files and connections.",
               count_files()) &&
           (getrlimit(RLIMIT_NOFILE, &files) != 0 ||
            put(table, COMMON_METRIC_GAUGE, "process_max_fds", "How many files and connections may be open.",
                files.rlim_cur == RLIM_INFINITY ? -1 : (double)files.rlim_cur));
}
