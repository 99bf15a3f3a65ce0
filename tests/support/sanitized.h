/* SANITIZED is 1 if the test is built with a sanitizer. A sanitizer checks memory accesses, not numbers. So a
 * test with many sizes or draws runs fewer of them, since the same code runs for each. */
#ifndef TESTS_SUPPORT_SANITIZED_H
#define TESTS_SUPPORT_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
