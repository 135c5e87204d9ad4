// SPDX-License-Identifier: Apache-2.0
// Everything that banyanctl says. Each command makes JSON; a table is one way to show it.
#include <inttypes.h>
#include <langinfo.h>
#include <libsmartcols.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/hints.h"
#include "client/ctl/yaml.h"

#define CTL_COLUMNS_MAX 48 // of a table, with the end

static struct {
    bool yaml, wrong; // wrong: a column was named that is none
    const char *columns;
} as;

void ctl_output_as(bool yaml, const char *columns)
{
    as.yaml = yaml;
    as.columns = columns;
}

enum ctl_exit ctl_output_over(void)
{
    return as.wrong ? CTL_USAGE : CTL_OK;
}

json_t *ctl_json_id(uint64_t id)
{
    char text[24];
    snprintf(text, sizeof text, "0x%016" PRIx64, id);
    return json_string(text);
}

json_t *ctl_json_u64(uint64_t value)
{
    return json_integer(value <= INT64_MAX ? (json_int_t)value : INT64_MAX);
}

void ctl_print_json(json_t *value)
{
    if (as.yaml) {
        ctl_yaml_print(stdout, value);
    } else {
        json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
    }
    json_decref(value);
}

static const char *cell_text(const json_t *value, enum ctl_format format, char *buf, size_t len)
{
    char part[32];
    uint64_t number = (uint64_t)json_integer_value(value);
    buf[0] = '\0';
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_array(value)) {
        size_t used = 0;
        for (size_t i = 0; i < json_array_size(value); i++) {
            const char *text = cell_text(json_array_get(value, i), format, part, sizeof part);
            if (used + strlen(text) + 6 >= len) {
                strcpy(buf + used, " …");
                break;
            }
            used += (size_t)snprintf(buf + used, len - used, "%s%s", i ? " " : "", text);
        }
        return buf;
    }
    if (json_is_null(value) || !value)
        return "-";
    switch (format) {
    case CTL_BYTES:
        return common_format_bytes(number, buf, len);
    case CTL_RATE:
        snprintf(buf, len, "%s/s", common_format_bytes(number, part, sizeof part));
        return buf;
    case CTL_TIME:
        return common_format_ns(number, buf, len);
    default:
        if (json_is_real(value))
            snprintf(buf, len, "%.6g", json_real_value(value));
        else
            snprintf(buf, len, "%" PRIu64, number);
        return buf;
    }
}

bool ctl_want_color(void)
{
    const char *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no_color && *no_color);
}

static const char *color_of(const char *key, const char *text)
{
    if (strcmp(key, "state") != 0)
        return NULL;
    if (strcmp(text, "active") == 0)
        return "green";
    return strcmp(text, "lost") == 0 || strcmp(text, "unavailable") == 0 ? "red" : "yellow";
}

static struct libscols_table *new_table(void)
{
    struct libscols_table *table = scols_new_table();
    if (!table)
        abort();
    scols_table_enable_colors(table, ctl_want_color());
    scols_table_enable_ascii(table, strcmp(nl_langinfo(CODESET), "UTF-8") != 0);
    if (!isatty(STDOUT_FILENO))
        scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER); // whole lines for the reader
    return table;
}

static struct libscols_line *add_line(struct libscols_table *table, struct libscols_line *parent,
                                      const json_t *row, const struct ctl_column *columns)
{
    struct libscols_line *line = scols_table_new_line(table, parent);
    for (size_t c = 0; line && columns[c].key; c++) {
        char buf[256];
        const char *text =
            cell_text(json_object_get(row, columns[c].key), columns[c].format, buf, sizeof buf);
        const char *color = color_of(columns[c].key, text);
        scols_line_set_data(line, c, text);
        if (color)
            scols_cell_set_color(scols_line_get_cell(line, c), color);
    }
    return line;
}

static struct libscols_table *table_with(const struct ctl_column *columns, int first_flags)
{
    struct libscols_table *table = new_table();
    for (size_t c = 0; columns[c].key; c++)
        scols_table_new_column(table, columns[c].title, 0,
                               c == 0                          ? first_flags
                               : columns[c].format == CTL_TEXT ? 0
                                                               : SCOLS_FL_RIGHT);
    return table;
}

// ---- which columns ----------------------------------------------------------------------------------------

static bool is_column(const struct ctl_column *column, const char *word, size_t len)
{
    return (strlen(column->key) == len && strncasecmp(column->key, word, len) == 0) ||
           (strlen(column->title) == len && strncasecmp(column->title, word, len) == 0);
}

static void fail_column(const struct ctl_column *columns, const char *word, size_t len)
{
    char names[512] = "";
    for (size_t c = 0, used = 0; columns[c].key && used < sizeof names; c++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", c ? ", " : "", columns[c].key);
    ctl_say(CTL_USAGE, "--columns: there is no column '%.*s'; there are %s", (int)(len < 64 ? len : 64), word,
            names);
    as.wrong = true;
}

// Those that --columns names; else those that are not for --output=wide alone, or all.
static bool choose(const struct ctl_column *columns, bool all, struct ctl_column shown[CTL_COLUMNS_MAX])
{
    size_t n = 0;
    memset(shown, 0, CTL_COLUMNS_MAX * sizeof *shown);
    for (size_t c = 0; !as.columns && columns[c].key && n < CTL_COLUMNS_MAX - 1; c++)
        if (all || !(columns[c].format & CTL_WIDE))
            shown[n++] = columns[c];
    for (const char *at = as.columns; at && n < CTL_COLUMNS_MAX - 1;) {
        size_t len = strcspn(at, ","), c = 0;
        while (columns[c].key && !is_column(&columns[c], at, len))
            c++;
        if (!columns[c].key) {
            fail_column(columns, at, len);
            return false;
        }
        shown[n++] = columns[c];
        at = at[len] ? at + len + 1 : NULL;
    }
    for (size_t c = 0; c < n; c++)
        shown[c].format &= (unsigned)~CTL_WIDE;
    return true;
}

// An object with the chosen members alone.
static json_t *pick(json_t *row, const struct ctl_column *chosen)
{
    json_t *out = json_object();
    for (; chosen->key; chosen++) {
        json_t *value = json_object_get(row, chosen->key);
        json_object_set_new(out, chosen->key, value ? json_incref(value) : json_null());
    }
    return out;
}

void ctl_print_rows(const struct ctl *ctl, json_t *rows, const struct ctl_column *columns)
{
    struct ctl_column shown[CTL_COLUMNS_MAX];
    size_t n = json_array_size(rows);
    if (!choose(columns, ctl->wide, shown)) {
        json_decref(rows);
        return;
    }
    if (ctl->json) {
        for (size_t i = 0; as.columns && i < n; i++)
            json_array_set_new(rows, i, pick(json_array_get(rows, i), shown));
        ctl_print_json(rows);
        return;
    }
    if (ctl->names) {
        char buf[256];
        for (size_t i = 0; i < n; i++)
            puts(
                cell_text(json_object_get(json_array_get(rows, i), columns->key), CTL_TEXT, buf, sizeof buf));
        json_decref(rows);
        return;
    }
    struct libscols_table *table = table_with(shown, 0);
    for (size_t i = 0; i < n; i++)
        add_line(table, NULL, json_array_get(rows, i), shown);
    if (n > 0)
        scols_print_table(table);
    scols_unref_table(table);
    json_decref(rows);
}

void ctl_print_tree(const struct ctl *ctl, json_t *rows, const struct ctl_column *columns)
{
    if (ctl->json) {
        ctl_print_json(rows);
        return;
    }
    struct libscols_table *table = table_with(columns, SCOLS_FL_TREE);
    size_t n = json_array_size(rows);
    struct libscols_line **lines = calloc(n + 1, sizeof(struct libscols_line *));
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        json_int_t rank = json_integer_value(json_object_get(row, "rank"));
        json_int_t parent = json_integer_value(json_object_get(row, "parent"));
        // Parents stand before their children: ranks are numbered from the root on.
        struct libscols_line *above = parent >= 0 && (size_t)parent < n ? lines[parent] : NULL;
        struct libscols_line *line = add_line(table, above, row, columns);
        if (rank >= 0 && (size_t)rank < n)
            lines[rank] = line;
    }
    scols_print_table(table);
    scols_unref_table(table);
    free(lines);
    json_decref(rows);
}

static void add_field(struct libscols_table *table, const struct ctl_column *field, const char *title,
                      const char *text)
{
    const char *color = color_of(field->key, text);
    struct libscols_line *line = scols_table_new_line(table, NULL);
    scols_line_set_data(line, 0, title);
    scols_line_set_data(line, 1, text);
    if (color)
        scols_cell_set_color(scols_line_get_cell(line, 1), color);
}

void ctl_print_record(const struct ctl *ctl, json_t *record, const struct ctl_column *all)
{
    struct ctl_column fields[CTL_COLUMNS_MAX];
    char buf[256];
    if (!choose(all, true, fields)) {
        json_decref(record);
        return;
    }
    if (ctl->json || ctl->names) {
        json_t *shown = as.columns ? pick(record, fields) : json_incref(record);
        if (ctl->json)
            ctl_print_json(json_incref(shown));
        else
            puts(cell_text(json_object_get(record, all->key), CTL_TEXT, buf, sizeof buf));
        json_decref(shown);
        json_decref(record);
        return;
    }
    struct libscols_table *table = new_table();
    scols_table_enable_noheadings(table, 1);
    scols_table_new_column(table, "field", 0, 0);
    scols_table_new_column(table, "value", 0, 0);
    for (size_t f = 0; fields[f].key; f++) {
        const json_t *value = json_object_get(record, fields[f].key);
        if (!value)
            continue;
        if (fields[f].format == CTL_LINES) {
            for (size_t i = 0; i < json_array_size(value); i++)
                add_field(table, &fields[f], i ? "" : fields[f].title,
                          json_string_value(json_array_get(value, i)));
            continue;
        }
        add_field(table, &fields[f], fields[f].title, cell_text(value, fields[f].format, buf, sizeof buf));
    }
    scols_print_table(table);
    scols_unref_table(table);
    json_decref(record);
}

enum ctl_exit ctl_say(enum ctl_exit code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("banyanctl: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return code;
}

enum ctl_exit ctl_fail_restricted(const banyan_cluster_info *info, const char *what)
{
    return ctl_say(CTL_PERMISSION,
                   "%s: a token of the access '%s' does not show workers; operators and admins see them. "
                   "'banyanctl wait ready' says whether the cluster is ready",
                   what, info->access);
}

static enum ctl_exit exit_of(banyan_code code)
{
    switch (code) {
    case BANYAN_OK:
        return CTL_OK;
    case BANYAN_NOT_FOUND:
        return CTL_NOT_FOUND;
    case BANYAN_INVALID_ARGUMENT:
    case BANYAN_OUT_OF_RANGE:
        return CTL_REFUSED;
    case BANYAN_UNAVAILABLE:
        return CTL_UNAVAILABLE;
    case BANYAN_DEADLINE_EXCEEDED:
    case BANYAN_CANCELLED:
        return CTL_TIMEOUT;
    case BANYAN_PERMISSION_DENIED:
    case BANYAN_UNAUTHENTICATED:
        return CTL_PERMISSION;
    case BANYAN_RESOURCE_EXHAUSTED:
        return CTL_EXHAUSTED;
    case BANYAN_ALREADY_EXISTS:
    case BANYAN_FAILED_PRECONDITION:
    case BANYAN_ABORTED:
        return CTL_STATE;
    case BANYAN_DATA_LOSS:
        return CTL_DATA_LOSS;
    case BANYAN_UNIMPLEMENTED:
        return CTL_UNSUPPORTED;
    default:
        return CTL_INTERNAL;
    }
}

// The sentence names the file, and its code says nothing more.
static enum ctl_exit fail_of_file(const banyan_error *error)
{
    enum ctl_exit exit_code = error->code == BANYAN_INVALID_ARGUMENT ? CTL_REFUSED
                              : error->code == BANYAN_ALREADY_EXISTS ? CTL_STATE
                                                                     : CTL_FILE;
    return ctl_say(exit_code, "%s", error->message);
}

enum ctl_exit ctl_fail(const banyan_error *error)
{
    if (error->reason == BANYAN_REASON_FILE)
        return fail_of_file(error);
    ctl_say(CTL_OK, "%s (%s%s%s)", error->message, banyan_code_name(error->code), error->reason ? ", " : "",
            banyan_reason_name(error->reason));
    for (uint32_t i = 0; i < error->n_ranges; i++)
        fprintf(stderr, "  tokens %" PRIu64 " to %" PRIu64 "\n", error->ranges[i].first,
                error->ranges[i].first + error->ranges[i].count - (error->ranges[i].count > 0));
    const char *hint = ctl_hint(error);
    if (hint)
        fprintf(stderr, "  %s\n", hint);
    return exit_of(error->code);
}
