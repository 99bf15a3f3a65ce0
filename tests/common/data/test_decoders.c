/* IDX, CIFAR-10 and CSV: what is read, and what every kind of damage is answered with. */
#include "tests/common/data/fixture.h"

#include "common/data/cifar10.h"
#include "common/data/csv.h"
#include "common/data/idx.h"

#include <stdlib.h>
#include <string.h>

static void an_idx_file_of_images_is_read_as_written(void **state)
{
    (void)state;
    uint8_t *bytes;
    idx_images images;
    size_t size = make_idx_images(&bytes, 3);
    expect_ok(idx_decode_images("f", bytes, size, &images));
    assert_int_equal(images.count, 3);
    assert_int_equal(images.h, 28);
    assert_int_equal(images.w, 28);
    for (int64_t i = 0; i < 3 * 28 * 28; i++)
        assert_int_equal(images.pixels[i], test_pixel(i / 784, i % 784));
    free(bytes);
}

static void an_idx_file_of_labels_is_read_as_written(void **state)
{
    (void)state;
    uint8_t *bytes;
    idx_labels labels;
    size_t size = make_idx_labels(&bytes, 9);
    expect_ok(idx_decode_labels("f", bytes, size, 10, &labels));
    assert_int_equal(labels.count, 9);
    assert_int_equal(labels.highest, 9);
    for (int i = 0; i < 9; i++) assert_int_equal(labels.labels[i], test_label(i));
    free(bytes);
}

/* Bytes to change in a file of two samples, and bytes to cut from its end (below 0: to add). */
static const struct damage {
    int offset; /* -1: none */
    uint8_t value;
    int cut;
    const char *message;
} image_damages[] =
    {
        {-1, 0, 1, "f: truncated: ends at offset 1583, allowed is 1584 (2 images of 28x28)"},
        {-1, 0, -3, "f: offset 1584: found 3 bytes behind the end, allowed is none (2 images of 28x28)"},
        {-1, 0, 1584, "f: ends at offset 0, allowed is an IDX header of 16 bytes"},
        {-1, 0, 1584 - 15, "f: ends at offset 15, allowed is an IDX header of 16 bytes"},
        {3, 1, 0, "f: offset 0: found magic number 0x00000801, allowed is 0x00000803"},
        {2, 9, 0, "f: offset 0: found magic number 0x00000903"},
        {0, 0x1f, 0, "f: offset 0: found magic number 0x1f000803"},
        {7, 0, 0, "f: offset 4: found number of images 0, allowed is 1 to 2147483647"},
        {4, 0xff, 0, "f: offset 4: found number of images 4278190082"},
        {7, 3, 0, "f: truncated: ends at offset 1584, allowed is 2368 (3 images of 28x28)"},
        {11, 0, 0, "f: offset 8: found image height 0, allowed is 1 to 4096"},
        {14, 0x80, 0, "f: offset 12: found image width 32796, allowed is 1 to 4096"},
},
  label_damages[] = {
      {-1, 0, 1, "f: truncated: ends at offset 9, allowed is 10 (2 labels)"},
      {-1, 0, -1, "f: offset 10: found 1 bytes behind the end, allowed is none (2 labels)"},
      {-1, 0, 7, "f: ends at offset 3, allowed is an IDX header of 8 bytes"},
      {3, 3, 0, "f: offset 0: found magic number 0x00000803, allowed is 0x00000801"},
      {7, 0, 0, "f: offset 4: found number of labels 0"},
      {9, 10, 0, "f: offset 9: found label 10, allowed is 0 to 9"},
      {8, 255, 0, "f: offset 8: found label 255, allowed is 0 to 9"},
};

static void damage(uint8_t *bytes, size_t *size, const struct damage *d)
{
    if (d->offset >= 0) bytes[d->offset] = d->value;
    *size = (size_t)((int64_t)*size - d->cut);
}

static void damaged_idx_images_are_refused_with_the_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof image_damages / sizeof image_damages[0]; i++) {
        uint8_t *bytes;
        idx_images images;
        size_t size = make_idx_images(&bytes, 2);
        damage(bytes, &size, &image_damages[i]);
        expect_failure(idx_decode_images("f", bytes, size, &images), STATUS_DATA, image_damages[i].message);
        free(bytes);
    }
}

static void damaged_idx_labels_are_refused_with_the_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof label_damages / sizeof label_damages[0]; i++) {
        uint8_t *bytes;
        idx_labels labels;
        size_t size = make_idx_labels(&bytes, 2);
        damage(bytes, &size, &label_damages[i]);
        expect_failure(idx_decode_labels("f", bytes, size, 10, &labels), STATUS_DATA,
                       label_damages[i].message);
        free(bytes);
    }
}

static void cifar10_planes_become_pixels(void **state)
{
    (void)state;
    uint8_t *bytes, pixels[2 * CIFAR10_PIXELS], labels[2];
    int64_t count;
    size_t size = make_cifar10(&bytes, 4, 2);
    expect_ok(cifar10_count("f", size, &count));
    assert_int_equal(count, 2);
    expect_ok(cifar10_decode("f", bytes, count, pixels, labels));
    for (int64_t i = 0; i < 2; i++) {
        assert_int_equal(labels[i], test_label(4 + i));
        for (int64_t p = 0; p < 1024; p++)
            for (int64_t c = 0; c < 3; c++)
                assert_int_equal(pixels[(i * 1024 + p) * 3 + c], test_pixel(4 + i, c * 1024 + p));
    }
    free(bytes);
}

static void damaged_cifar10_files_are_refused_with_the_place(void **state)
{
    (void)state;
    uint8_t *bytes, pixels[2 * CIFAR10_PIXELS], labels[2];
    int64_t count;
    size_t size = make_cifar10(&bytes, 0, 2);
    expect_failure(cifar10_count("f", size - 1, &count), STATUS_DATA,
                   "f: ends at offset 6145, inside record 1, allowed is a multiple of 3073");
    expect_failure(cifar10_count("f", 0, &count), STATUS_DATA, "f: ends at offset 0");
    bytes[3073] = 10;
    expect_failure(cifar10_decode("f", bytes, 2, pixels, labels), STATUS_DATA,
                   "f: offset 3073: found label 10, allowed is 0 to 9");
    free(bytes);
}

static status decode_csv(const char *text, csv_table *table)
{
    /* Without a terminating zero, so that reading past the end shows under the address sanitizer. */
    size_t size = strlen(text);
    uint8_t *bytes = malloc(size ? size : 1);
    memcpy(bytes, text, size);
    status result = csv_decode("f", bytes, size, table);
    free(bytes);
    return result;
}

static void a_csv_table_is_read_with_every_end_of_line(void **state)
{
    (void)state;
    static const char *const texts[] = {"2,3,red,white\n1,-2.5,3e2,0\n+.5,0,7,1\n",
                                        "2,3,red,white\n1,-2.5,3e2,0\n+.5,0,7,1",
                                        "2,3,red,white\r\n1,-2.5,3e2,0\r\n+.5,0,7,1\r\n"};
    static const double values[] = {1, -2.5, 300, .5, 0, 7};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        csv_table table;
        expect_ok(decode_csv(texts[i], &table));
        assert_int_equal(table.samples, 2);
        assert_int_equal(table.features, 3);
        assert_int_equal(table.classes, 2);
        assert_memory_equal(table.values, values, sizeof values);
        assert_int_equal(table.labels[0], 0);
        assert_int_equal(table.labels[1], 1);
        csv_free(&table);
    }
}

static const struct {
    const char *text, *message;
} csv_damages[] = {
    {"", "f: line 1, column 1: found '', allowed is the number of samples"},
    {"x,3,a\n", "f: line 1, column 1: found 'x', allowed is the number of samples"},
    {"0,3,a\n", "f: line 1, column 1: found '0'"},
    {"-1,3,a\n", "f: line 1, column 1: found '-1'"},
    {"1", "f: line 1, column 1: found '1', allowed is the number of samples, a comma"},
    {"1,1", "f: line 1, column 3: found '1', allowed is the number of features, and then the names"},
    {"1,1.5,a\n", "f: line 1, column 3: found '1.5'"},
    {"1,1,a,,b\n", "f: line 1, column 7: found '', allowed is the name of a class"},
    {"1,1,\n", "f: line 1, column 5: found '', allowed is the name of a class"},
    {"999999999,999999999,a\n1,0\n", "f: line 1: found 999999999 samples of 999999999 features"},
    {"2,1,a\n1,0\n", "f: line 1: found 2 samples of 1 features, which take at least 7 bytes"},
    {"2,1,a\n1.234,0\n", "f: truncated: ends behind line 2, allowed is 3"},
    {"2,2,a\n1.2345,2,0\n1,2\n", "f: line 3, column 3: found '2', allowed is 2 features and a class a line"},
    {"1,2,a\n1,2,0\n3,4,0\n", "f: line 3, column 1: found '3', allowed is the end of the file"},
    {"1,2,a\n1,2,0\n\n", "f: line 3, column 1: found '', allowed is the end of the file"},
    {"1,2,a\n1,2,0,5\n", "f: line 2, column 7: found '5', allowed is the end of the line"},
    {"1,2,a\n1,2,1\n", "f: line 2, column 5: found '1', allowed is a class from 0 to 0"},
    {"1,2,a\n1,2,0.0\n", "f: line 2, column 5: found '0.0', allowed is a class"},
    {"1,2,a,b\n1,1x3,1\n", "f: line 2, column 3: found '1x3', allowed is a decimal number"},
    {"1,2,a\n12, 2,0\n", "f: line 2, column 4: found ' 2', allowed is a decimal number"},
    {"1,2,a\n1,nan,0\n", "f: line 2, column 3: found 'nan', allowed is a decimal number"},
    {"1,2,a\n1,inf,0\n", "f: line 2, column 3: found 'inf'"},
    {"1,2,a\n1,1e999,0\n", "f: line 2, column 3: found '1e999'"},
    {"1,2,a\n1,0x10,0\n", "f: line 2, column 3: found '0x10'"},
    {"1,2,a\n1,1e,0\n", "f: line 2, column 3: found '1e'"},
    {"1,2,a\n1,,0\n....", "f: line 2, column 3: found '', allowed is a decimal number"},
    {"1,2,a\n1,\001\377,0\n", "f: line 2, column 3: found '..', allowed is a decimal number"},
    {"1,2,a\n1,1111111111111111111111111111111111111111111111111111111111111111,0\n",
     "f: line 2, column 3: found '111111111111111111111111...', allowed is a decimal number"},
};

static void damaged_csv_tables_are_refused_with_line_and_column(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof csv_damages / sizeof csv_damages[0]; i++) {
        csv_table table;
        expect_failure(decode_csv(csv_damages[i].text, &table), STATUS_DATA, csv_damages[i].message);
        assert_null(table.values);
    }
}

static void a_csv_table_has_at_most_256_classes(void **state)
{
    (void)state;
    char text[1024] = "1,1";
    csv_table table;
    for (int i = 0; i < 256; i++) strcat(text, ",a");
    strcat(text, "\n5,255\n");
    expect_ok(decode_csv(text, &table));
    assert_int_equal(table.labels[0], 255);
    csv_free(&table);
    memcpy(strchr(text, '\n'), ",b\n5,0\n", 8);
    expect_failure(decode_csv(text, &table), STATUS_DATA,
                   "f: line 1, column 517: found 'b', allowed is at most 256");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idx_file_of_images_is_read_as_written),
        cmocka_unit_test(an_idx_file_of_labels_is_read_as_written),
        cmocka_unit_test(damaged_idx_images_are_refused_with_the_place),
        cmocka_unit_test(damaged_idx_labels_are_refused_with_the_place),
        cmocka_unit_test(cifar10_planes_become_pixels),
        cmocka_unit_test(damaged_cifar10_files_are_refused_with_the_place),
        cmocka_unit_test(a_csv_table_is_read_with_every_end_of_line),
        cmocka_unit_test(damaged_csv_tables_are_refused_with_line_and_column),
        cmocka_unit_test(a_csv_table_has_at_most_256_classes),
    };
    return cmocka_run_group_tests_name("decoders", tests, NULL, NULL);
}
