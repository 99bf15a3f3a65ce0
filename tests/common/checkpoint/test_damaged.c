/* A damaged or edited file is refused, and the rank that tried to load it keeps its state. */
#include "tests/common/checkpoint/fixture.h"

#include <stdlib.h>
#include <string.h>

static const optimizer_options momentum = {.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9},
                               adam = {.kind = OPTIMIZER_ADAM,
                                       .lr = 0.1,
                                       .beta1 = 0.9,
                                       .beta2 = 0.99,
                                       .eps = 1e-8};

static void expect_refused(rank_state *r, const rank_state *before, const char *path, const char *message)
{
    assert_fails(rank_load(r, path, NULL), STATUS_DATA, message);
    expect_same_rank(r, before);
}

static void a_file_cut_at_any_byte_is_refused(void **state)
{
    rank_state r, before;
    size_t size;
    const char *path = path_in(*state, "c");
    rank_open(&r, "reference", &toy_model, &adam);
    rank_open(&before, "reference", &toy_model, &adam);
    rank_fill(&r, 1);
    must(rank_save(&r, path, &some_progress));
    uint8_t *bytes = read_file(path, &size);
    rank_fill(&r, 2);
    rank_fill(&before, 2);
    for (size_t cut = 0; cut < size; cut++) {
        write_file(path_in(*state, "cut"), bytes, cut);
        expect_refused(&r, &before, path_in(*state, "cut"), "at offset");
    }
    free(bytes);
    rank_close(&r);
    rank_close(&before);
}

static void a_flipped_bit_anywhere_is_refused(void **state)
{
    rank_state r, before;
    size_t size;
    const char *path = path_in(*state, "c");
    rank_open(&r, "reference", &toy_model, &momentum);
    rank_open(&before, "reference", &toy_model, &momentum);
    rank_fill(&r, 1);
    must(rank_save(&r, path, &some_progress));
    uint8_t *bytes = read_file(path, &size);
    rank_fill(&r, 2);
    rank_fill(&before, 2);
    for (size_t at = 0; at < size; at++) {
        uint8_t bit = (uint8_t)(1 << at % 8);
        bytes[at] ^= bit;
        write_file(path_in(*state, "flipped"), bytes, size);
        bytes[at] ^= bit;
        expect_refused(&r, &before, path_in(*state, "flipped"), ": ");
    }
    free(bytes);
    rank_close(&r);
    rank_close(&before);
}

/* Replaces `from`, which occurs once in the file, by `to`, which has the same length. */
static void edit(const char *from_path, const char *to_path, const char *from, const char *to)
{
    size_t size;
    uint8_t *bytes = read_file(from_path, &size);
    uint8_t *at = memmem(bytes, size, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    write_file(to_path, bytes, size);
    free(bytes);
}

static const struct {
    const char *from, *to, *message;
} edits[] = {
    {"psring.schema_version\":\"1\"", "psring.schema_version\":\"2\"",
     "metadata psring.schema_version: expected 1, got '2'"},
    {"psring.schema_version\":\"1\"", "psring.schemaXversion\":\"1\"",
     "metadata psring.schema_version is missing"},
    {"psring.step\":\"1234", "psring.step\":\"1235", "it is damaged, or edited"},
    {"psring.header_xxh3", "psring.headerXxxh3", "metadata psring.header_xxh3 is missing"},
};

static void edited_metadata_are_refused(void **state)
{
    rank_state r;
    rank_open(&r, "reference", &toy_model, &adam);
    must(rank_save(&r, path_in(*state, "c"), &some_progress));
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        edit(path_in(*state, "c"), path_in(*state, "e"), edits[i].from, edits[i].to);
        assert_fails(rank_load(&r, path_in(*state, "e"), NULL), STATUS_DATA, edits[i].message);
    }
    rank_close(&r);
}

static void a_file_that_cannot_be_one_is_refused(void **state)
{
    checkpoint *c;
    assert_fails(checkpoint_open(path_in(*state, "absent"), &c), STATUS_DATA,
                 "absent: cannot be opened: No such file");
    assert_null(c);
    assert_fails(checkpoint_open(*state, &c), STATUS_DATA, "expected a regular file, got a folder");
    assert_fails(checkpoint_open("/dev/null", &c), STATUS_DATA,
                 "expected a regular file, got a device, pipe or socket");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_file_cut_at_any_byte_is_refused),
        IN_FOLDER(a_flipped_bit_anywhere_is_refused),
        IN_FOLDER(edited_metadata_are_refused),
        IN_FOLDER(a_file_that_cannot_be_one_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
