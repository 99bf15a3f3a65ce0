/* A folder of small files for a test, and what failures must say. */
#ifndef TESTS_COMMON_DATA_FIXTURE_H
#define TESTS_COMMON_DATA_FIXTURE_H

#include "common/data/dataset.h"
#include "tests/support/folder.h"

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

/* Opens a set, and fails the test if the set cannot be opened; `seed` 5. */
dataset *open_set(const char *spec, const data_form *model);

/* Fails the test unless the set is refused with this code and message. */
void expect_refusal(const char *spec, status code, const char *message);

int32_t label_of(const dataset *set, data_part part, int64_t index);

#endif
