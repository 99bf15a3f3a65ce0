#include "tests/common/data/fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { SIDE = 28, CIFAR_RECORD = 3073 };

void write_gzip(const char *path, const void *bytes, size_t size)
{
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose_w(file), Z_OK);
}

uint8_t test_pixel(int64_t image, int64_t pixel)
{
    return (uint8_t)(image * 37 + pixel * 5 + pixel / 256);
}

uint8_t test_label(int64_t image)
{
    return (uint8_t)(image * 7 % 10);
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

size_t make_idx_images(uint8_t **bytes, uint32_t count)
{
    size_t size = 16 + (size_t)count * SIDE * SIDE;
    *bytes = malloc(size);
    const uint32_t header[] = {0x00000803, count, SIDE, SIDE};
    for (int i = 0; i < 4; i++) put_u32(*bytes + 4 * i, header[i]);
    for (size_t i = 16; i < size; i++)
        (*bytes)[i] = test_pixel((int64_t)(i - 16) / (SIDE * SIDE), (int64_t)(i - 16) % (SIDE * SIDE));
    return size;
}

size_t make_idx_labels(uint8_t **bytes, uint32_t count)
{
    size_t size = 8 + count;
    *bytes = malloc(size);
    put_u32(*bytes, 0x00000801);
    put_u32(*bytes + 4, count);
    for (size_t i = 8; i < size; i++) (*bytes)[i] = test_label((int64_t)i - 8);
    return size;
}

size_t make_cifar10(uint8_t **bytes, int64_t first, int64_t count)
{
    size_t size = (size_t)count * CIFAR_RECORD;
    *bytes = malloc(size);
    for (int64_t i = 0; i < count; i++) {
        uint8_t *record = *bytes + i * CIFAR_RECORD;
        record[0] = test_label(first + i);
        for (int64_t p = 0; p < CIFAR_RECORD - 1; p++) record[1 + p] = test_pixel(first + i, p);
    }
    return size;
}

void make_mnist_folder(const char *folder)
{
    static const char *const images[] = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"};
    static const char *const labels[] = {"train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte"};
    static const uint32_t counts[] = {MNIST_TRAIN, MNIST_TEST};
    for (int part = 0; part < 2; part++) {
        uint8_t *bytes;
        size_t size = make_idx_images(&bytes, counts[part]);
        (part ? write_gzip : write_file)(path_in(folder, images[part]), bytes, size);
        free(bytes);
        size = make_idx_labels(&bytes, counts[part]);
        (part ? write_file : write_gzip)(path_in(folder, labels[part]), bytes, size);
        free(bytes);
    }
}

void make_cifar10_folder(const char *folder)
{
    for (int i = 0; i < 6; i++) {
        char name[32];
        uint8_t *bytes;
        snprintf(name, sizeof name, i < 5 ? "data_batch_%d.bin" : "test_batch.bin", i + 1);
        size_t size = make_cifar10(&bytes, i * CIFAR_EACH, i < 5 ? CIFAR_EACH : CIFAR_TEST);
        write_file(path_in(folder, name), bytes, size);
        free(bytes);
    }
}

dataset *open_set(const char *spec, const data_form *model)
{
    dataset *set;
    must(dataset_open(&(dataset_config){.spec = spec, .seed = 5, .model = model}, &set));
    return set;
}

void expect_refusal(const char *spec, status code, const char *message)
{
    dataset *set;
    assert_fails(dataset_open(&(dataset_config){.spec = spec, .seed = 5}, &set), code, message);
    assert_null(set);
}

int32_t label_of(const dataset *set, data_part part, int64_t index)
{
    int32_t label;
    dataset_target(set, part, index, &label);
    return label;
}
