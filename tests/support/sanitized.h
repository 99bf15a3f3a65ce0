/* Whether a sanitizer watches this test. It looks at how memory is used, not at numbers: a test with many
 * sizes or draws takes fewer of each kind there, since the same code runs. */
#ifndef TESTS_SUPPORT_SANITIZED_H
#define TESTS_SUPPORT_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
