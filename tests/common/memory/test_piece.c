/* Slices of piece lists, against the list of elements written out. */
#include "common/memory/piece.h"

#include "common/base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MOST_PIECES = 6, MOST_ELEMENTS = 64 };

/* The arena positions that a list names, in its order. */
static int write_out(piece_list list, int64_t *out)
{
    int count = 0;
    for (int i = 0; i < list.count; i++)
        for (int64_t j = 0; j < list.pieces[i].count; j++) out[count++] = list.pieces[i].offset + j;
    return count;
}

static void check_slice(piece_list list, int64_t begin, int64_t count)
{
    int64_t all[MOST_ELEMENTS], part[MOST_ELEMENTS];
    piece pieces[MOST_PIECES];
    int total = write_out(list, all);
    piece_list slice = {pieces, piece_list_slice(list, begin, count, pieces, MOST_PIECES)};
    int found = write_out(slice, part);
    int64_t expected = begin >= total ? 0 : total - begin < count ? total - begin : count;
    assert_int_equal(found, expected);
    assert_int_equal(piece_list_elements(slice), expected);
    for (int i = 0; i < found; i++) assert_int_equal(part[i], all[begin + i]);
    for (int i = 0; i < slice.count; i++) assert_true(pieces[i].count > 0);
}

static void slices_name_the_elements_in_order(void **context)
{
    (void)context;
    uint64_t start = random_start(1, random_fnv1a64("pieces")), draw = 0;
    for (int round = 0; round < 300; round++) {
        piece pieces[MOST_PIECES];
        piece_list list = {pieces, (int)random_below(start, draw++, MOST_PIECES + 1)};
        for (int i = 0; i < list.count; i++) { /* any order, gaps, some empty */
            pieces[i].offset = (int64_t)random_below(start, draw++, 1000);
            pieces[i].count = (int64_t)random_below(start, draw++, 10);
        }
        for (int64_t begin = 0; begin <= piece_list_elements(list) + 1; begin++)
            for (int64_t count = 0; count <= piece_list_elements(list) - begin + 2; count += 3)
                check_slice(list, begin, count);
    }
}

static void known_slices_are_cut_as_expected(void **context)
{
    (void)context;
    const piece pieces[] = {{0, 10}, {16, 5}, {32, 1}};
    piece_list list = {pieces, 3};
    piece out[3];
    assert_int_equal(piece_list_elements(list), 16);
    assert_int_equal(piece_list_slice(list, 8, 4, out, 3), 2);
    assert_int_equal(out[0].offset, 8);
    assert_int_equal(out[0].count, 2);
    assert_int_equal(out[1].offset, 16);
    assert_int_equal(out[1].count, 2);
    assert_int_equal(piece_list_slice(list, 10, 5, out, 3), 1);
    assert_int_equal(out[0].offset, 16);
    assert_int_equal(out[0].count, 5);
    assert_int_equal(piece_list_slice(list, 0, 16, out, 3), 3);
    assert_int_equal(piece_list_slice(list, 16, 4, out, 3), 0);
    assert_int_equal(piece_list_slice(list, 3, 0, out, 3), 0);
}

static void equal_shards_cover_all_once(void **context)
{
    (void)context;
    const piece pieces[] = {{3, 7}, {64, 11}, {128, 2}};
    piece_list list = {pieces, 3};
    for (int shards = 1; shards <= 7; shards++) {
        int64_t all[MOST_ELEMENTS], joined[MOST_ELEMENTS];
        int total = write_out(list, all), used = 0;
        for (int s = 0; s < shards; s++) {
            piece out[3];
            int64_t begin = total * s / shards, end = total * (s + 1) / shards;
            piece_list shard = {out, piece_list_slice(list, begin, end - begin, out, 3)};
            used += write_out(shard, joined + used);
        }
        assert_int_equal(used, total);
        assert_memory_equal(joined, all, (size_t)total * sizeof *all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_name_the_elements_in_order),
        cmocka_unit_test(known_slices_are_cut_as_expected),
        cmocka_unit_test(equal_shards_cover_all_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
