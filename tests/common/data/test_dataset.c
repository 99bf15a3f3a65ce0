/* Tests every data set that is read from files: its content, and the message if it cannot be read. */
#include "tests/common/data/fixture.h"

#include "common/data/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *spec_of(const char *set, const char *folder, const char *rest)
{
    static char spec[1200];
    snprintf(spec, sizeof spec, "%s:%s%s", set, folder, rest);
    return spec;
}

/* ---- Wine ------------------------------------------------------------------------------------- */

static void wine_holds_back_a_stratified_fifth(void **state)
{
    (void)state;
    static const int wanted[DATA_PARTS][3] = {{47, 57, 38}, {12, 14, 10}};
    dataset *set = open_set("wine", NULL);
    const data_description *d = dataset_describe(set);
    assert_string_equal(d->name, "wine");
    assert_int_equal(d->form.kind, DATA_FEATURES);
    assert_int_equal(d->form.features, 13);
    assert_int_equal(d->form.classes, 3);
    assert_int_equal(d->file_count, 1);
    assert_non_null(strstr(d->files[0], "wine_data.csv"));
    for (int part = 0; part < DATA_PARTS; part++) {
        int counts[3] = {0};
        for (int64_t i = 0; i < d->samples[part]; i++) counts[label_of(set, part, i)]++;
        for (int c = 0; c < 3; c++) assert_int_equal(counts[c], wanted[part][c]);
    }
    dataset_close(&set);
}

enum { MOST_ROWS = 178, MOST_FEATURES = 13 };

/* Reads the file again with scanf, and compares every value of both parts. */
static void expect_standardized(const char *path, const dataset *set)
{
    static double raw[MOST_ROWS][MOST_FEATURES];
    uint8_t labels[MOST_ROWS];
    int32_t picks[MOST_ROWS];
    int rows, features;
    int64_t train;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d,%d,%*[^\n]", &rows, &features), 2);
    for (int i = 0; i < rows; i++) {
        for (int f = 0; f < features; f++) assert_int_equal(fscanf(file, "%lf,", &raw[i][f]), 1);
        assert_int_equal(fscanf(file, "%hhu", &labels[i]), 1);
    }
    fclose(file);
    must(stratified_split(labels, rows, 5, picks, &train));
    for (int f = 0; f < features; f++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < train; i++) sum += raw[picks[i]][f];
        for (int i = 0; i < train; i++) squares += pow(raw[picks[i]][f] - sum / (double)train, 2);
        double deviation = squares > 0 ? sqrt(squares / (double)train) : 1;
        for (int i = 0; i < rows; i++) {
            data_part part = i < train ? DATA_TRAIN : DATA_TEST;
            const float *found = dataset_input(set, part, part == DATA_TRAIN ? i : i - train, NULL);
            double wanted = (raw[picks[i]][f] - sum / (double)train) / deviation;
            if (fabs((double)found[f] - wanted) > 1e-6)
                fail_msg("row %d, feature %d: found %.9g, wanted %.9g", picks[i], f, (double)found[f],
                         wanted);
        }
    }
}

static void wine_is_standardized_on_its_training_part(void **state)
{
    (void)state;
    dataset *set = open_set("wine", NULL);
    expect_standardized(dataset_describe(set)->files[0], set);
    dataset_close(&set);
}

static void a_constant_feature_is_centered_and_not_divided(void **state)
{
    static const char text[] = "6,2,a\n1,7,0\n2,7,0\n3,7,0\n4,7,0\n5,7,0\n9,7,0\n";
    write_file(path_in(*state, "t.csv"), text, strlen(text));
    dataset *set = open_set(spec_of("wine", *state, "/t.csv"), NULL);
    assert_true(((const float *)dataset_input(set, DATA_TEST, 0, NULL))[1] == 0);
    expect_standardized(path_in(*state, "t.csv"), set);
    dataset_close(&set);
}

static void wine_files_that_cannot_be_used_are_named(void **state)
{
    static const char damaged[] = "2,2,a,b\n1,2,0\n1,oops,1\n", one[] = "1,2,a\n1,2,0\n";
    write_file(path_in(*state, "bad.csv"), damaged, strlen(damaged));
    write_file(path_in(*state, "one.csv"), one, strlen(one));
    expect_refusal(spec_of("wine", *state, "/bad.csv"), STATUS_DATA,
                   "/bad.csv: line 3, column 3: expected a decimal number, got 'oops'");
    expect_refusal(spec_of("wine", *state, "/one.csv"), STATUS_DATA,
                   "/one.csv: expected at least 2 samples, since a fifth is held out, got 1");
    expect_refusal(spec_of("wine", *state, "/none.csv"), STATUS_DATA,
                   "/none.csv: cannot be opened: No such file");
    expect_refusal(spec_of("wine", *state, ""), STATUS_DATA, "expected a regular file, got a folder");
}

/* ---- IDX -------------------------------------------------------------------------------------- */

static void expect_image(const dataset *set, data_part part, int64_t index, int64_t image)
{
    const uint8_t *pixels = dataset_input(set, part, index, NULL);
    for (int64_t p = 0; p < 784; p++) assert_int_equal(pixels[p], test_pixel(image, p));
    assert_int_equal(label_of(set, part, index), test_label(image));
}

static void mnist_files_are_read_plain_and_compressed(void **state)
{
    make_mnist_folder(*state);
    dataset *set = open_set(spec_of("mnist", *state, ""), NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], MNIST_TRAIN);
    assert_int_equal(d->samples[DATA_TEST], MNIST_TEST);
    assert_int_equal(d->file_count, 4);
    assert_int_equal(d->form.h * d->form.w * d->form.c, 784);
    assert_int_equal(d->form.classes, 10);
    for (int64_t i = 0; i < MNIST_TRAIN; i++) expect_image(set, DATA_TRAIN, i, i);
    for (int64_t i = 0; i < MNIST_TEST; i++) expect_image(set, DATA_TEST, i, i);
    dataset_close(&set);
}

static void an_idx_pair_is_split_and_measured_on_its_training_part(void **state)
{
    uint8_t *bytes;
    char spec[1200];
    size_t size = make_idx_images(&bytes, 20);
    write_gzip(path_in(*state, "images.gz"), bytes, size);
    free(bytes);
    size = make_idx_labels(&bytes, 20);
    write_file(path_in(*state, "labels"), bytes, size);
    free(bytes);
    snprintf(spec, sizeof spec, "idx:%s,%s", path_in(*state, "images.gz"), path_in(*state, "labels"));
    dataset *set = open_set(spec, NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], 16);
    assert_int_equal(d->samples[DATA_TEST], 4);
    assert_int_equal(d->form.classes, 10);
    double sum = 0, squares = 0;
    int seen[10] = {0};
    for (int part = 0; part < DATA_PARTS; part++) {
        for (int64_t i = 0; i < d->samples[part]; i++) {
            const uint8_t *pixels = dataset_input(set, part, i, NULL);
            seen[label_of(set, part, i)]++;
            for (int p = 0; p < 784 && part == DATA_TRAIN; p++) {
                sum += pixels[p] / 255.0;
                squares += pixels[p] / 255.0 * (pixels[p] / 255.0);
            }
        }
    }
    double mean = sum / (16 * 784);
    for (int c = 0; c < 10; c++) assert_int_equal(seen[c], 2);
    assert_true(fabs((double)d->mean[0] - mean) < 1e-6);
    assert_true(fabs((double)d->deviation[0] - sqrt(squares / (16 * 784) - mean * mean)) < 1e-6);
    dataset_close(&set);
}

/* Each damage is done to a fresh folder of MNIST files. */
static void keep(const char *folder, const char *name, size_t size)
{
    assert_int_equal(truncate(path_in(folder, name), (off_t)size), 0);
}

static void overwrite(const char *folder, const char *name, long offset, uint8_t byte)
{
    FILE *file = fopen(path_in(folder, name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fputc(byte, file), byte);
    fclose(file);
}

static size_t size_of(const char *folder, const char *name)
{
    struct stat info;
    assert_int_equal(stat(path_in(folder, name), &info), 0);
    return (size_t)info.st_size;
}

static void damaged_mnist_folders_are_refused_with_file_and_place(void **state)
{
    const char *spec = spec_of("mnist", *state, ""), *test_images = "t10k-images-idx3-ubyte.gz";
    uint8_t *bytes;

    make_mnist_folder(*state);
    unlink(path_in(*state, "t10k-labels-idx1-ubyte"));
    expect_refusal(spec, STATUS_DATA, "data set mnist: expected a file /tmp/");
    expect_refusal(spec, STATUS_DATA, "/t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz");

    make_mnist_folder(*state);
    keep(*state, "train-images-idx3-ubyte", 5000);
    expect_refusal(spec, STATUS_DATA,
                   "/train-images-idx3-ubyte: truncated: expected 9424 bytes (12 images of 28x28), got 5000");

    make_mnist_folder(*state);
    keep(*state, test_images, size_of(*state, test_images) - 20);
    expect_refusal(spec, STATUS_DATA, "/t10k-images-idx3-ubyte.gz: gzip data end early, after ");

    make_mnist_folder(*state);
    overwrite(*state, test_images, (long)size_of(*state, test_images) - 8, 0x5a);
    expect_refusal(spec, STATUS_DATA, "/t10k-images-idx3-ubyte.gz: damaged gzip data: ");

    make_mnist_folder(*state);
    overwrite(*state, "t10k-labels-idx1-ubyte", 10, 77);
    expect_refusal(spec, STATUS_DATA,
                   "/t10k-labels-idx1-ubyte: offset 10: expected a label from 0 to 9, got 77");

    make_mnist_folder(*state);
    size_t size = make_idx_labels(&bytes, MNIST_TEST + 1);
    write_file(path_in(*state, "t10k-labels-idx1-ubyte"), bytes, size);
    free(bytes);
    expect_refusal(spec, STATUS_DATA,
                   "/t10k-labels-idx1-ubyte: offset 4: expected 5 labels, one per image in /tmp/");

    make_mnist_folder(*state);
    overwrite(*state, "train-images-idx3-ubyte", 11, 14);
    keep(*state, "train-images-idx3-ubyte", 16 + MNIST_TRAIN * 14 * 28);
    expect_refusal(spec, STATUS_DATA,
                   "/train-images-idx3-ubyte: offset 8: expected images of 28x28, got 14x28");

    make_mnist_folder(*state);
    size = make_idx_labels(&bytes, MNIST_TRAIN);
    write_file(path_in(*state, "train-images-idx3-ubyte"), bytes, size);
    free(bytes);
    expect_refusal(spec, STATUS_DATA,
                   "/train-images-idx3-ubyte: offset 0: expected magic number 0x00000803 (IDX, unsigned "
                   "bytes, 3 dimensions), got 0x00000801");

    make_mnist_folder(*state);
    keep(*state, "train-images-idx3-ubyte", 0);
    expect_refusal(spec, STATUS_DATA,
                   "/train-images-idx3-ubyte: expected an IDX header of 16 bytes, got 0 bytes");
}

static void fashion_mnist_is_whole_and_normalized_by_its_own_figures(void **state)
{
    (void)state;
    if (access("/usr/share/datasets/fashion-mnist", R_OK) != 0) {
        print_message("# skipped: Debian's package dataset-fashion-mnist is not installed\n");
        skip();
    }
    dataset *set = open_set("fashion-mnist", NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], 60000);
    assert_int_equal(d->samples[DATA_TEST], 10000);
    for (int part = 0; part < DATA_PARTS; part++) {
        int counts[10] = {0};
        for (int64_t i = 0; i < d->samples[part]; i++) counts[label_of(set, part, i)]++;
        for (int c = 0; c < 10; c++) assert_int_equal(counts[c], part == DATA_TRAIN ? 6000 : 1000);
    }
    static const int first_labels[] = {9, 0, 0, 3, 0, 2, 7, 2, 5, 5};
    for (int i = 0; i < 10; i++) assert_int_equal(label_of(set, DATA_TRAIN, i), first_labels[i]);
    double sum = 0, squares = 0, count = 60000.0 * 784;
    for (int64_t i = 0; i < 60000; i++) {
        const uint8_t *pixels = dataset_input(set, DATA_TRAIN, i, NULL);
        for (int p = 0; p < 784; p++) {
            sum += pixels[p];
            squares += pixels[p] * pixels[p];
        }
    }
    double mean = sum / count / 255, deviation = sqrt(squares / count - sum / count * (sum / count)) / 255;
    assert_true(fabs(mean - (double)d->mean[0]) < 5e-5);           /* 0.28604 */
    assert_true(fabs(deviation - (double)d->deviation[0]) < 5e-5); /* 0.35302 */
    dataset_close(&set);
}

/* ---- CIFAR-10 --------------------------------------------------------------------------------- */

static void cifar10_files_are_read_in_order(void **state)
{
    make_cifar10_folder(*state);
    dataset *set = open_set(spec_of("cifar10", *state, ""), NULL);
    const data_description *d = dataset_describe(set);
    assert_int_equal(d->samples[DATA_TRAIN], 5 * CIFAR_EACH);
    assert_int_equal(d->samples[DATA_TEST], CIFAR_TEST);
    assert_int_equal(d->file_count, 6);
    for (int64_t i = 0; i < 5 * CIFAR_EACH + CIFAR_TEST; i++) {
        data_part part = i < 5 * CIFAR_EACH ? DATA_TRAIN : DATA_TEST;
        int64_t index = part == DATA_TRAIN ? i : i - 5 * CIFAR_EACH;
        const uint8_t *pixels = dataset_input(set, part, index, NULL);
        assert_int_equal(label_of(set, part, index), test_label(i));
        for (int64_t p = 0; p < 1024; p++)
            for (int64_t c = 0; c < 3; c++) assert_int_equal(pixels[p * 3 + c], test_pixel(i, c * 1024 + p));
    }
    dataset_close(&set);
}

static void damaged_cifar10_folders_are_refused_with_file_and_place(void **state)
{
    const char *spec = spec_of("cifar10", *state, "");
    make_cifar10_folder(*state);
    overwrite(*state, "data_batch_4.bin", 2 * 3073, 10);
    expect_refusal(spec, STATUS_DATA, "/data_batch_4.bin: offset 6146: expected a label from 0 to 9, got 10");
    make_cifar10_folder(*state);
    keep(*state, "test_batch.bin", 4 * 3073 - 1);
    expect_refusal(
        spec, STATUS_DATA,
        "/test_batch.bin: expected a multiple of 3073 bytes (per record 1 label and 3072 pixels), got 12291");
    unlink(path_in(*state, "data_batch_5.bin"));
    expect_refusal(spec, STATUS_DATA, "/data_batch_5.bin: cannot be opened: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wine_holds_back_a_stratified_fifth),
        cmocka_unit_test(wine_is_standardized_on_its_training_part),
        cmocka_unit_test_setup_teardown(a_constant_feature_is_centered_and_not_divided, folder_open,
                                        folder_close),
        cmocka_unit_test_setup_teardown(wine_files_that_cannot_be_used_are_named, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(mnist_files_are_read_plain_and_compressed, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(an_idx_pair_is_split_and_measured_on_its_training_part, folder_open,
                                        folder_close),
        cmocka_unit_test_setup_teardown(damaged_mnist_folders_are_refused_with_file_and_place, folder_open,
                                        folder_close),
        cmocka_unit_test(fashion_mnist_is_whole_and_normalized_by_its_own_figures),
        cmocka_unit_test_setup_teardown(cifar10_files_are_read_in_order, folder_open, folder_close),
        cmocka_unit_test_setup_teardown(damaged_cifar10_folders_are_refused_with_file_and_place, folder_open,
                                        folder_close),
    };
    return cmocka_run_group_tests_name("dataset", tests, NULL, NULL);
}
