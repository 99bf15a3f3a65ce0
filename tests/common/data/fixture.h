/* A folder of small files for a test, and checks of failures. */
#ifndef TESTS_COMMON_DATA_FIXTURE_H
#define TESTS_COMMON_DATA_FIXTURE_H

#include "common/data/dataset.h"
#include "tests/support/folder.h"

void write_gzip(const char *path, const void *bytes, size_t size);

/* The make functions build IDX and CIFAR-10 files of `count` samples. Pixel p of image i, in the order of the
 * file, is test_pixel(i, p), and the label is test_label(i). IDX images are 1x28x28. A make function returns
 * the size of *bytes, which the caller frees. */
uint8_t test_pixel(int64_t image, int64_t pixel);
uint8_t test_label(int64_t image);
size_t make_idx_images(uint8_t **bytes, uint32_t count);
size_t make_idx_labels(uint8_t **bytes, uint32_t count);
size_t make_cifar10(uint8_t **bytes, int64_t first, int64_t count);

/* Writes the four files of MNIST, with 12 training images and 5 test images. */
enum { MNIST_TRAIN = 12, MNIST_TEST = 5 };
void make_mnist_folder(const char *folder);
/* Writes the six files of CIFAR-10: 3 images in each of the five training files (images 0 to 14), and 4
 * images in the test file (15 to 18). */
enum { CIFAR_EACH = 3, CIFAR_TEST = 4 };
void make_cifar10_folder(const char *folder);

/* Opens a set with seed 5. Fails the test if the set cannot be opened. */
dataset *open_set(const char *spec, const data_form *model);

/* Fails the test unless opening the set fails with this code and message. */
void expect_refusal(const char *spec, status code, const char *message);

int32_t label_of(const dataset *set, data_part part, int64_t index);

#endif
