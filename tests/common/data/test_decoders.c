/* Tests the decoders of IDX, CIFAR-10 and CSV: the decoded values, and the error for every kind of damage. */
#include "tests/common/data/fixture.h"

#include "common/data/decoders.h"

#include <stdlib.h>
#include <string.h>

static void an_idx_file_of_images_is_read_as_written(void **state)
{
    (void)state;
    uint8_t *bytes;
    idx_images images;
    size_t size = make_idx_images(&bytes, 3);
    must(idx_decode_images("f", bytes, size, &images));
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
    must(idx_decode_labels("f", bytes, size, 10, &labels));
    assert_int_equal(labels.count, 9);
    assert_int_equal(labels.highest, 9);
    for (int i = 0; i < 9; i++) assert_int_equal(labels.labels[i], test_label(i));
    free(bytes);
}

/* Bytes to change in a file of two samples, and the number of bytes to cut from its end (or to add, if
 * negative). */
static const struct damage {
    int offset; /* Offset of the bytes to change, or -1 for none. */
    uint8_t value;
    int cut;
    const char *message;
} image_damages[] =
    {
        {-1, 0, 1, "f: truncated: expected 1584 bytes (2 images of 28x28), got 1583"},
        {-1, 0, -3, "f: expected 1584 bytes (2 images of 28x28), got 1587"},
        {-1, 0, 1584, "f: expected an IDX header of 16 bytes, got 0 bytes"},
        {-1, 0, 1584 - 15, "f: expected an IDX header of 16 bytes, got 15 bytes"},
        {3, 1, 0,
         "f: offset 0: expected magic number 0x00000803 (IDX, unsigned bytes, 3 dimensions), got 0x00000801"},
        {2, 9, 0,
         "f: offset 0: expected magic number 0x00000803 (IDX, unsigned bytes, 3 dimensions), got 0x00000903"},
        {0, 0x1f, 0,
         "f: offset 0: expected magic number 0x00000803 (IDX, unsigned bytes, 3 dimensions), got 0x1f000803"},
        {7, 0, 0, "f: offset 4: expected a number of images from 1 to 2147483647, got 0"},
        {4, 0xff, 0, "f: offset 4: expected a number of images from 1 to 2147483647, got 4278190082"},
        {7, 3, 0, "f: truncated: expected 2368 bytes (3 images of 28x28), got 1584"},
        {11, 0, 0, "f: offset 8: expected an image height from 1 to 4096, got 0"},
        {14, 0x80, 0, "f: offset 12: expected an image width from 1 to 4096, got 32796"},
},
  label_damages[] = {
      {-1, 0, 1, "f: truncated: expected 10 bytes (2 labels), got 9"},
      {-1, 0, -1, "f: expected 10 bytes (2 labels), got 11"},
      {-1, 0, 7, "f: expected an IDX header of 8 bytes, got 3 bytes"},
      {3, 3, 0,
       "f: offset 0: expected magic number 0x00000801 (IDX, unsigned bytes, 1 dimension), got 0x00000803"},
      {7, 0, 0, "f: offset 4: expected a number of labels from 1 to 2147483647, got 0"},
      {9, 10, 0, "f: offset 9: expected a label from 0 to 9, got 10"},
      {8, 255, 0, "f: offset 8: expected a label from 0 to 9, got 255"},
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
        assert_fails(idx_decode_images("f", bytes, size, &images), STATUS_DATA, image_damages[i].message);
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
        assert_fails(idx_decode_labels("f", bytes, size, 10, &labels), STATUS_DATA, label_damages[i].message);
        free(bytes);
    }
}

static void cifar10_planes_become_pixels(void **state)
{
    (void)state;
    uint8_t *bytes, pixels[2 * CIFAR10_PIXELS], labels[2];
    int64_t count;
    size_t size = make_cifar10(&bytes, 4, 2);
    must(cifar10_count("f", size, &count));
    assert_int_equal(count, 2);
    must(cifar10_decode("f", bytes, count, pixels, labels));
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
    assert_fails(cifar10_count("f", size - 1, &count), STATUS_DATA,
                 "f: expected a multiple of 3073 bytes (per record 1 label and 3072 pixels), got 6145");
    assert_fails(cifar10_count("f", 0, &count), STATUS_DATA,
                 "f: expected a multiple of 3073 bytes (per record 1 label and 3072 pixels), got 0");
    bytes[3073] = 10;
    assert_fails(cifar10_decode("f", bytes, 2, pixels, labels), STATUS_DATA,
                 "f: offset 3073: expected a label from 0 to 9, got 10");
    free(bytes);
}

static status decode_csv(const char *text, csv_table *table)
{
    /* The copy has no terminating zero, so that the address sanitizer sees reads past the end. */
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
        must(decode_csv(texts[i], &table));
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
    {"", "f: line 1, column 1: expected the number of samples, a comma, the number of features and the names "
         "of the classes, got ''"},
    {"x,3,a\n", "f: line 1, column 1: expected the number of samples, a comma, the number of features and "
                "the names of the classes, got 'x'"},
    {"0,3,a\n", "f: line 1, column 1: expected the number of samples, a comma, the number of features and "
                "the names of the classes, got '0'"},
    {"-1,3,a\n", "f: line 1, column 1: expected the number of samples, a comma, the number of features and "
                 "the names of the classes, got '-1'"},
    {"1", "f: line 1, column 1: expected the number of samples, a comma, the number of features and the "
          "names of the classes, got '1'"},
    {"1,1",
     "f: line 1, column 3: expected the number of features, and then the names of the classes, got '1'"},
    {"1,1.5,a\n",
     "f: line 1, column 3: expected the number of features, and then the names of the classes, got '1.5'"},
    {"1,1,a,,b\n", "f: line 1, column 7: expected the name of a class, got ''"},
    {"1,1,\n", "f: line 1, column 5: expected the name of a class, got ''"},
    {"999999999,999999999,a\n1,0\n", "f: line 1: 999999999 samples of 999999999 features take at least"},
    {"2,1,a\n1,0\n", "f: line 1: 2 samples of 1 features take at least 7 bytes, got 4 after"},
    {"2,1,a\n1.234,0\n", "f: truncated: expected 3 lines (one per sample), got 2"},
    {"2,2,a\n1.2345,2,0\n1,2\n", "f: line 3, column 3: expected 2 features and a class per line, got '2'"},
    {"1,2,a\n1,2,0\n3,4,0\n",
     "f: line 3, column 1: expected the end of the file after the last sample, got '3'"},
    {"1,2,a\n1,2,0\n\n", "f: line 3, column 1: expected the end of the file after the last sample, got ''"},
    {"1,2,a\n1,2,0,5\n", "f: line 2, column 7: expected the end of the line after the class, got '5'"},
    {"1,2,a\n1,2,1\n", "f: line 2, column 5: expected a class from 0 to 0, got '1'"},
    {"1,2,a\n1,2,0.0\n", "f: line 2, column 5: expected a class from 0 to 0, got '0.0'"},
    {"1,2,a,b\n1,1x3,1\n", "f: line 2, column 3: expected a decimal number, got '1x3'"},
    {"1,2,a\n12, 2,0\n", "f: line 2, column 4: expected a decimal number, got ' 2'"},
    {"1,2,a\n1,nan,0\n", "f: line 2, column 3: expected a decimal number, got 'nan'"},
    {"1,2,a\n1,inf,0\n", "f: line 2, column 3: expected a decimal number, got 'inf'"},
    {"1,2,a\n1,1e999,0\n", "f: line 2, column 3: expected a decimal number, got '1e999'"},
    {"1,2,a\n1,0x10,0\n", "f: line 2, column 3: expected a decimal number, got '0x10'"},
    {"1,2,a\n1,1e,0\n", "f: line 2, column 3: expected a decimal number, got '1e'"},
    {"1,2,a\n1,,0\n....", "f: line 2, column 3: expected a decimal number, got ''"},
    {"1,2,a\n1,\001\377,0\n", "f: line 2, column 3: expected a decimal number, got '..'"},
    {"1,2,a\n1,1111111111111111111111111111111111111111111111111111111111111111,0\n",
     "f: line 2, column 3: expected a decimal number, got '111111111111111111111111...'"},
};

static void damaged_csv_tables_are_refused_with_line_and_column(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof csv_damages / sizeof csv_damages[0]; i++) {
        csv_table table;
        assert_fails(decode_csv(csv_damages[i].text, &table), STATUS_DATA, csv_damages[i].message);
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
    must(decode_csv(text, &table));
    assert_int_equal(table.labels[0], 255);
    csv_free(&table);
    memcpy(strchr(text, '\n'), ",b\n5,0\n", 8);
    assert_fails(decode_csv(text, &table), STATUS_DATA,
                 "f: line 1, column 517: expected at most 256 names of classes, got 'b'");
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
