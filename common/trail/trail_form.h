// SPDX-License-Identifier: Apache-2.0
// The form of a record of the audit log (docs/operating/audit.md): a line of JSON that holds the hash of the
// line before it, and ends with its own.
//
//   {"seq":7,"time":"2026-11-25T20:15:01.123456Z",BODY,"prev":"64 hex","hash":"64 hex"}
//   └──────────────── SHA-256 over these bytes is ───────────────────┘         ▲
//                                                └─────────────────────────────┘
//
// Pure; any thread.
#ifndef COMMON_TRAIL_FORM_H
#define COMMON_TRAIL_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMMON_TRAIL_HASH 64 // characters of a hash: SHA-256, lower case hex
#define COMMON_TRAIL_TAIL (COMMON_TRAIL_HASH + sizeof ",\"hash\":\"\"}" - 1) // of a line: ,"hash":"…"}
#define COMMON_TRAIL_LINE 8192 // bytes of a line at most, its end included
#define COMMON_TRAIL_BODY 6144
#define COMMON_TRAIL_TEXT 512 // bytes of one text, as it stands escaped: what is longer is cut
#define COMMON_TRAIL_NONE                                                                                    \
    "0000000000000000000000000000000000000000000000000000000000000000" // before the first

// What a record says, as it is put together. All zero: empty. What has no room is left out, and the line says
// "cut":true.
struct common_trail_body {
    char text[COMMON_TRAIL_BODY];
    size_t len;
    unsigned depth; // objects that are open
    bool cut;
};

// A member of the object that is open. Texts: valid UTF-8 stays; controls and what turns the direction of
// writing are escaped, bytes that are no character become U+FFFD. NULL: nothing is put.
void common_trail_put_text(struct common_trail_body *body, const char *key, const char *text);
void common_trail_put_bytes(struct common_trail_body *body, const char *key, const char *text, size_t len);
void common_trail_put_number(struct common_trail_body *body, const char *key, uint64_t number);
void common_trail_put_id(struct common_trail_body *body, const char *key, uint64_t id); // "0x…"; 0: nothing
void common_trail_put_flag(struct common_trail_body *body, const char *key);            // true
// A member that is an object; `shut` ends it.
void common_trail_put_open(struct common_trail_body *body, const char *key);
void common_trail_put_shut(struct common_trail_body *body);

struct common_trail_place { // of a record in its chain
    uint64_t seq, wall_ns;
    char prev[COMMON_TRAIL_HASH + 1], hash[COMMON_TRAIL_HASH + 1];
};

// The line, its '\n' included, and its hash into place->hash. 0: no hash could be made (out of memory).
size_t common_trail_compose(struct common_trail_place *place, const struct common_trail_body *body,
                            char out[COMMON_TRAIL_LINE]);

enum common_trail_form {
    COMMON_TRAIL_WHOLE,   // a record, as it was written
    COMMON_TRAIL_CHANGED, // it has the form of one, and is not what was written: its hash is another one
    COMMON_TRAIL_OTHER,   // no record, or a part of one
};

// Looks at a line without its '\n'. *out is set where it is WHOLE (without wall_ns).
enum common_trail_form common_trail_examine(const char *line, size_t len, struct common_trail_place *out);

bool common_trail_is(const char *line, size_t len, const char *what); // whether the record's "what" is this
// The number behind "key": in a record's args; false: there is none. Likewise a hash.
bool common_trail_number(const char *line, size_t len, const char *key, uint64_t *out);
bool common_trail_hash(const char *line, size_t len, const char *key, char out[COMMON_TRAIL_HASH + 1]);

// SHA-256 of bytes that come one after the other.
struct common_trail_sum;
struct common_trail_sum *common_trail_sum_new(void); // NULL: out of memory
bool common_trail_sum_add(struct common_trail_sum *sum, const void *data, size_t len);
// What has come so far; it may go on. False: no memory.
bool common_trail_sum_hex(const struct common_trail_sum *sum, char out[COMMON_TRAIL_HASH + 1]);
void common_trail_sum_free(struct common_trail_sum *sum); // NULL is allowed

#endif
