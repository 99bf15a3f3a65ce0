/* Tests the decoder of the safetensors format: the decoded values, and that it refuses every malformed header
 * with the reason and the position. */
#include "tests/common/checkpoint/fixture.h"

#include "common/checkpoint/checkpoint_impl.h"
#include "common/checkpoint/safetensors.h"
#include "common/reduce/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Decodes a copy on the heap without a terminator, so that the address sanitizer sees reads beyond its end.
 */
static status decode(const char *text, int64_t data_bytes, safetensors_header *h)
{
    static char *copy;
    size_t length = strlen(text);
    free(copy);
    copy = malloc(length ? length : 1);
    memcpy(copy, text, length);
    return safetensors_decode("f", copy, (int64_t)length, SAFETENSORS_PREFIX + (int64_t)length + data_bytes,
                              h);
}

static void a_header_gives_names_types_shapes_and_places(void **state)
{
    (void)state;
    safetensors_header h;
    must(decode("{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
                "\"__metadata__\":{\"format\":\"pt\",\"x.y\":\"z\"},"
                "\"n\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"I64\"},"
                "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[32,32]}}   ",
                32, &h));
    assert_int_equal(h.count, 3);
    const safetensors_tensor *w = safetensors_find(&h, "w"), *n = safetensors_find(&h, "n");
    assert_non_null(w);
    assert_int_equal(w->dtype->type, DTYPE_F32);
    assert_int_equal(w->rank, 2);
    assert_int_equal(w->dims[0], 2);
    assert_int_equal(w->dims[1], 3);
    assert_int_equal(w->begin, 8);
    assert_int_equal(w->end, 32);
    assert_int_equal(n->rank, 0);
    assert_int_equal(n->elements, 1);
    assert_int_equal(safetensors_find(&h, "empty")->elements, 0);
    assert_null(safetensors_find(&h, "format"));
    assert_string_equal(safetensors_metadata(&h, "format"), "pt");
    assert_null(safetensors_metadata(&h, "w"));
    assert_true(safetensors_has_metadata(&h, "x."));
    assert_false(safetensors_has_metadata(&h, "w"));
    assert_int_equal(safetensors_offset_of(&h, "w"), 9);
    assert_int_equal(safetensors_offset_of(&h, "shape"), 8 + 20);
    safetensors_free(&h);
}

#define T(dtype, shape, offsets)                                                                             \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                                                            \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a                                             \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" b "}}"

static const struct {
    const char *header;
    int64_t data_bytes;
    const char *message;
} malformed[] = {
    {"", 0, "f: at offset 8: expected a header in JSON, got no '{'"},
    {" {}", 0, "f: at offset 8: expected a header in JSON, got no '{'"},
    {"[]", 0, "f: at offset 8: expected a header in JSON, got no '{'"},
    {"{", 0, "f: at offset 9: malformed header"},
    {"{\"a\":1,}", 0, "f: at offset 16: malformed header"},
    {"{}x", 0, "f: at offset 11: malformed header"},
    {"{\"t\":\xff}", 0, "malformed header"},
    {"{\"t\":1}", 0, "f: at offset 9: tensor t: expected a JSON object"},
    {"{\"t\":{}}", 0, "f: at offset 9: tensor t has no dtype"},
    {"{\"t\":{\"dtype\":7}}", 0, "tensor t has no dtype"},
    {T("F31", "[4]", "[0,16]"), 16, "tensor t: expected dtype F64, F32, F16, BF16 or I64, got 'F31'"},
    {T("F32", "7", "[0,16]"), 16, "tensor t has no shape"},
    {T("F32", "[-4]", "[0,16]"), 16, "tensor t: expected a shape of sizes from 0"},
    {T("F32", "[4.0]", "[0,16]"), 16, "tensor t: expected a shape of sizes from 0"},
    {T("F32", "[4294967296,4294967296]", "[0,16]"), 16, "tensor t: expected a shape of sizes from 0"},
    {T("F32", "[9223372036854775807]", "[0,16]"), 16,
     "tensor t: expected the data of F32 of shape 9223372036854775807, got 16 bytes"},
    {T("F32", "[9223372036854775808]", "[0,16]"), 16, "malformed header: too big integer"},
    {T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "tensor t: expected at most 8 dimensions, got 9"},
    {T("F32", "[4]", "[0]"), 16, "tensor t has no pair of data_offsets"},
    {T("F32", "[4]", "[0,\"16\"]"), 16, "tensor t has no pair of data_offsets"},
    {T("F32", "[4]", "[16,0]"), 16, "tensor t: expected increasing data_offsets from 0, got 16 to 0"},
    {T("F32", "[4]", "[-16,0]"), 16, "tensor t: expected increasing data_offsets from 0, got -16 to 0"},
    {T("F32", "[4]", "[0,17]"), 16, "tensor t: its data end at 17, but the file has 16 bytes of data"},
    {T("F32", "[4]", "[0,12]"), 16, "tensor t: expected the data of F32 of shape 4, got 12 bytes"},
    {T("F32", "[]", "[0,16]"), 16, "tensor t: expected the data of F32 of shape scalar, got 16 bytes"},
    {T("F32", "[4]", "[0,16]"), 24, "expected the end of the file after the last tensor, got 8 bytes"},
    {"{}", 1, "f: at offset 10: expected the end of the file after the last tensor, got 1 bytes"},
    {T("F32", "[4]", "[8,24]"), 24, "tensor t: expected its data at 0 (no holes), got 8"},
    {TWO("[0,4]", "[4,8]"), 7,
     "tensor b: its data end at 8, but the file has 7 bytes of data: it is truncated"},
    {TWO("[0,4]", "[2,6]"), 6, "tensor b: its data begin at 2 and overlap the data of a, which end at 4"},
    {TWO("[0,4]", "[0,4]"), 4, "overlap"},
    {TWO("[0,4]", "[5,9]"), 9, "tensor b: expected its data at 4 (no holes), got 5"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"t\":{\"dtype\":\"U8\",\"shape\":[0],"
     "\"data_offsets\":[0,0]}}",
     0, "malformed header: duplicate object key"},
    {"{\"__metadata__\":[]}", 0, "__metadata__: expected a JSON object"},
    {"{\"__metadata__\":{\"step\":7}}", 0, "metadata step: expected a string"},
    {"{\"two\\nlines\":1}", 0, "tensor two?lines: expected a JSON object"},
};

static void a_malformed_header_is_refused_with_reason_and_offset(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        safetensors_header h;
        assert_fails(decode(malformed[i].header, malformed[i].data_bytes, &h), STATUS_DATA,
                     malformed[i].message);
    }
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 8);
    safetensors_header h;
    memcpy(text, "{\"t\":", 5);
    memset(text + 5, '[', DEPTH);
    text[DEPTH + 5] = '\0';
    assert_fails(decode(text, 0, &h), STATUS_DATA, "maximum parsing depth reached");
    free(text);
}

static const struct {
    const char *bytes;
    size_t size;
    int64_t file_bytes;
    int64_t length; /* Length of the header, or -1 if the header is refused. */
    const char *message;
} lengths[] = {
    {"\x10\0\0\0\0\0\0", 8, 100, 16, NULL},
    {"\x5c\0\0\0\0\0\0", 8, 100, 92, NULL},
    {"\x5d\0\0\0\0\0\0", 8, 100, -1,
     "f: at offset 0: expected a header of 93 bytes, got 92 bytes after its length"},
    {"\0\xe1\xf5\x05\0\0\0", 8, INT64_C(1) << 40, 100000000, NULL},
    {"\x01\xe1\xf5\x05\0\0\0", 8, INT64_C(1) << 40, -1,
     "expected a header of at most 100000000 bytes, got 100000001"},
    {"\xff\xff\xff\xff\xff\xff\xff\xff", 8, 100, -1,
     "expected a header of at most 100000000 bytes, got 18446744073709551615"},
    {"", 0, 0, -1,
     "f: at offset 0: expected 8 bytes with the length of a safetensors header, got the end of the file"},
    {"\x10\0\0\0\0\0", 7, 7, -1,
     "f: at offset 7: expected 8 bytes with the length of a safetensors header, got the end of the file"},
    {"PK\3\4\x14\0\0\0", 8, 1000, -1, "expected a safetensors file, got one of torch.save"},
    {"\x80\x02\x8a\x0al\xfc\x9c\x46", 8, 1000, -1, "expected a safetensors file, got one of torch.save"},
};

static void a_header_must_fit_into_its_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int64_t length;
        status rc = safetensors_measure("f", (const uint8_t *)lengths[i].bytes, lengths[i].size,
                                        lengths[i].file_bytes, &length);
        if (lengths[i].length < 0) {
            assert_fails(rc, STATUS_DATA, lengths[i].message);
        } else {
            must(rc);
            assert_int_equal(length, lengths[i].length);
        }
    }
}

/* Returns the value by the definition of IEEE 754: (-1)^sign 2^(exponent - bias) (1 + fraction), or (-1)^sign
 * 2^(1 - bias) fraction if the exponent is 0. */
static double value_of(uint16_t bits, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
    int exponent = bits >> fraction_bits & most;
    double fraction = (bits & ((1 << fraction_bits) - 1)) * pow(2, -fraction_bits),
           sign = bits >> 15 ? -1 : 1;
    if (exponent == most) return fraction > 0 ? (double)NAN : sign * (double)INFINITY;
    return exponent ? sign * pow(2, exponent - bias) * (1 + fraction) : sign * pow(2, 1 - bias) * fraction;
}

static void every_half_and_bfloat16_converts_exactly(void **state)
{
    (void)state;
    for (int bits = 0; bits < 1 << 16; bits++) {
        uint16_t half = (uint16_t)bits;
        double wanted[] = {value_of(half, 5, 10), value_of(half, 8, 7)};
        double found[] = {f16_to_float(half), bf16_to_float(half)};
        for (int i = 0; i < 2; i++)
            if ((isnan(wanted[i]) != isnan(found[i])) ||
                (!isnan(wanted[i]) && memcmp(&found[i], &wanted[i], sizeof wanted[i]) != 0))
                fail_msg("%s %04x: found %.9g, wanted %.9g", i ? "bfloat16" : "float16", bits, found[i],
                         wanted[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_gives_names_types_shapes_and_places),
        cmocka_unit_test(a_malformed_header_is_refused_with_reason_and_offset),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(a_header_must_fit_into_its_file),
        cmocka_unit_test(every_half_and_bfloat16_converts_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
