/* A folder of small files for a test. */
#ifndef TESTS_SUPPORT_FOLDER_H
#define TESTS_SUPPORT_FOLDER_H

#include "tests/support/check.h"

/* Set-up and tear-down functions of cmocka: *state is the path of a new folder, which is removed with the
 * files in it. */
int folder_open(void **state);
int folder_close(void **state);

/* Returns "FOLDER/NAME". The text is valid until the eighth call after this one. */
const char *path_in(const char *folder, const char *name);

/* Writes a file, and replaces an existing one. */
void write_file(const char *path, const void *bytes, size_t size);

#endif
