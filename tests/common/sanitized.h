// SPDX-License-Identifier: Apache-2.0
// Tests with thousands of cases of one kind. A build with a sanitizer, in which each takes ten times as long,
// runs some of them, always the same; CI runs all of them in the release build (label "optimised").
//
//     for (size_t i = 0; i < n; i += SANITIZED(1, 5, 20))     plain; address and undefined behaviour; thread
#ifndef TESTS_COMMON_SANITIZED_H
#define TESTS_COMMON_SANITIZED_H

#if defined(__SANITIZE_THREAD__)
#define SANITIZED(plain, address, thread) (thread)
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED(plain, address, thread) (address)
#else
#define SANITIZED(plain, address, thread) (plain)
#endif

#endif
