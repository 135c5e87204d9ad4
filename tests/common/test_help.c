// SPDX-License-Identifier: Apache-2.0
// One style of --help in all programs: usage, what it is, options with their defaults, exit codes.
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/process.h"

// An option's entry: from its dashes to the next option, or to the empty line behind all of them.
static const char *entry_end(const char *entry)
{
    const char *at = entry;
    while ((at = strchr(at, '\n'))) {
        at++;
        if (*at == '\n' || *at == '\0' || strncmp(at, "  -", 3) == 0 || strncmp(at, "      --", 8) == 0)
            return at;
    }
    return entry + strlen(entry);
}

static void check_entry(const char *program, const char *entry, size_t len)
{
    char text[2048] = "", *name_end;
    memcpy(text, entry, len < sizeof text - 1 ? len : sizeof text - 1);
    name_end = strstr(text, "--");
    name_end += strcspn(name_end, " \n");
    bool takes_value = memchr(text, '=', (size_t)(name_end - text)) != NULL;
    const char *words = name_end + strspn(name_end, " \n");
    const char *last = text + strlen(text) - 1;
    if (*last == '\n')
        last--;
    if (!isupper((unsigned char)*words))
        fail_msg("%s: the help of an option is a sentence: %s", program, text);
    if (*last != '.')
        fail_msg("%s: the help of an option ends with a full stop: %s", program, text);
    if (takes_value && !strstr(text, "Default: ") && !strstr(text, "Required.") && !strstr(text, "(default)"))
        fail_msg("%s: an option without its default: %s", program, text);
}

static void check_help(const char *name)
{
    char path[4096], usage[64];
    struct harness_output out;
    assert_true(harness_program_path(name, path, sizeof path));
    char *argv[] = {path, "--help", NULL};
    assert_true(harness_run(argv, NULL, UINT64_C(60000000000), &out));
    assert_int_equal(out.exit_code, 0);
    snprintf(usage, sizeof usage, "Usage: %s ", name);
    const char *options = strstr(out.out, "\n\nOptions:\n"), *codes = strstr(out.out, "\nExit codes: 0 ");
    if (strncmp(out.out, usage, strlen(usage)) != 0 || !options || !codes || codes < options)
        fail_msg("%s: not usage, what it is, options, exit codes:\n%s", name, out.out);
    const char *about = strstr(out.out, "\n\n");
    assert_true(about < options);
    unsigned n = 0;
    for (const char *at = options + strlen("\n\nOptions:\n"), *end; *at == ' '; at = end, n++) {
        end = entry_end(at);
        check_entry(name, at, (size_t)(end - at));
    }
    assert_true(n > 4);
    for (const char *line = out.out, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        if (end - line > 120)
            fail_msg("%s: a line of %d characters: %.*s", name, (int)(end - line), (int)(end - line), line);
    }
    harness_output_free(&out);
}

static void test_programs(void **state)
{
    (void)state;
    check_help("banyan-coordinator");
    check_help("banyan-worker");
    check_help("banyanctl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
