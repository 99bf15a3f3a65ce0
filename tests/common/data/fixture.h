/* A folder of small files for a test, and what failures must say. */
#ifndef TESTS_COMMON_DATA_FIXTURE_H
#define TESTS_COMMON_DATA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* the name is status.h's */
#undef fail_msg
#define fail_msg(...) (print_error(__VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

#include "common/base/status.h"
#include "common/data/dataset.h"

/* cmocka set-up and tear-down: *state is the path of a new folder, removed with the files in it. */
int folder_open(void **state);
int folder_close(void **state);

/* "FOLDER/NAME", valid until the eighth call after this one. */
const char *path_in(const char *folder, const char *name);

void write_file(const char *path, const void *bytes, size_t size);
void write_gzip(const char *path, const void *bytes, size_t size);

/* IDX and CIFAR-10 files with `count` samples: pixel p of image i, in the file's order, is test_pixel(i, p)
 * and its label test_label(i). Images are 1x28x28. `bytes` of the returned size must be freed. */
uint8_t test_pixel(int64_t image, int64_t pixel);
uint8_t test_label(int64_t image);
size_t make_idx_images(uint8_t **bytes, uint32_t count);
size_t make_idx_labels(uint8_t **bytes, uint32_t count);
size_t make_cifar10(uint8_t **bytes, int64_t first, int64_t count);

/* The four files of MNIST: 12 training and 5 test images. */
enum { MNIST_TRAIN = 12, MNIST_TEST = 5 };
void make_mnist_folder(const char *folder);
/* The six files of CIFAR-10: 3 images in each training file (images 0 to 14), 4 for testing (15 to 18). */
enum { CIFAR_EACH = 3, CIFAR_TEST = 4 };
void make_cifar10_folder(const char *folder);

/* Checks status and text (all of `text` must be in the message), and clears the record. */
void expect_failure(status result, status code, const char *text);
void expect_ok(status result);

/* Opens a set that must open; `seed` 5. */
dataset *open_set(const char *spec, const data_form *model);

/* Opens a set that must not open. */
void expect_refusal(const char *spec, status code, const char *message);

int32_t label_of(const dataset *set, data_part part, int64_t index);

#endif
