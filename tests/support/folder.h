/* A folder of small files for a test. */
#ifndef TESTS_SUPPORT_FOLDER_H
#define TESTS_SUPPORT_FOLDER_H

#include "tests/support/check.h"

/* cmocka set-up and tear-down: *state is the path of a new folder, removed with the files in it. */
int folder_open(void **state);
int folder_close(void **state);

/* "FOLDER/NAME", valid until the eighth call after this one. */
const char *path_in(const char *folder, const char *name);

/* Replaces a file that is there. */
void write_file(const char *path, const void *bytes, size_t size);

#endif
