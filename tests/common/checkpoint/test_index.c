/* A checkpoint in several files: what it holds, which files may stand for it, and what a save that is cut off
 * leaves. */
#include "tests/common/checkpoint/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const optimizer_options adam = {
    .kind = OPTIMIZER_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
enum { MOST_FILES = 64 };

static char *index_in(const char *folder)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/run.index.json", folder);
    return path;
}

static status save_file(rank_state *r, const checkpoint_file *file, uint64_t *hash)
{
    checkpoint_source source = checkpoint_arenas_source(&r->arenas);
    return checkpoint_save_file(file, &r->subject, &some_progress, &source, hash);
}

/* As `count` ranks do one after another. Returns how many files have tensors. */
static int save_all(rank_state *r, const char *folder, int count)
{
    uint64_t hashes[MOST_FILES];
    checkpoint_file file = {.index = index_in(folder), .count = count};
    int written = 0;
    must(checkpoint_choose_set(file.index, &file.set));
    for (; file.number < count; file.number++) {
        must(save_file(r, &file, &hashes[file.number]));
        written += hashes[file.number] != 0;
    }
    file.number = 0;
    must(checkpoint_save_index(&file, &r->subject, hashes));
    return written;
}

static void open_two(rank_state *saved, rank_state *loaded, const model_options *model)
{
    rank_open(saved, "reference", model, &adam);
    rank_open(loaded, "reference", model, &adam);
    rank_fill(saved, 1);
    rank_fill(loaded, 2);
}

static void close_two(rank_state *saved, rank_state *loaded)
{
    rank_close(saved);
    rank_close(loaded);
}

static void several_files_hold_what_one_holds(void **state)
{
    static const model_options *const models[] = {&toy_model, &small_model, &gpt2_model};
    static const int counts[] = {1, 2, 3, 7, MOST_FILES}; /* of the last some have no tensors */
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            rank_state saved, loaded;
            checkpoint_progress progress;
            open_two(&saved, &loaded, models[m]);
            int written = save_all(&saved, *state, counts[i]);
            assert_int_equal(files_in(*state), written + 1);
            assert_true(counts[i] > 3 || written == counts[i]);
            must(rank_load(&loaded, index_in(*state), &progress));
            expect_same_rank(&loaded, &saved);
            assert_memory_equal(&progress, &some_progress, sizeof progress);
            close_two(&saved, &loaded);
        }
}

/* The files of the next save have other names, and only with the index those of the old one go. */
static void until_its_index_is_there_a_save_changes_nothing(void **state)
{
    rank_state first, second, loaded;
    uint64_t hashes[3];
    open_two(&first, &loaded, &small_model);
    rank_open(&second, "reference", &small_model, &adam);
    rank_fill(&second, 3);
    save_all(&first, *state, 4);
    checkpoint_file file = {.index = index_in(*state), .count = 3};
    must(checkpoint_choose_set(file.index, &file.set));
    assert_int_equal(file.set, 'b');
    for (; file.number < 3; file.number++) {
        must(save_file(&second, &file, &hashes[file.number]));
        must(rank_load(&loaded, file.index, NULL));
        expect_same_rank(&loaded, &first);
    }
    file.number = 0;
    must(checkpoint_save_index(&file, &second.subject, hashes));
    must(rank_load(&loaded, file.index, NULL));
    expect_same_rank(&loaded, &second);
    assert_int_equal(files_in(*state), 3 + 1);
    must(checkpoint_choose_set(file.index, &file.set));
    assert_int_equal(file.set, 'a');
    rank_close(&second);
    close_two(&first, &loaded);
}

/* A save by more ranks was killed; files that only look alike are not ours. */
static void what_a_killed_save_left_goes_with_the_next(void **state)
{
    static const char *const foreign[] = {"run-c-00001-of-00002.safetensors", "run-a-1-of-2.safetensors",
                                          "other-a-00001-of-00002.safetensors",
                                          "run-a-00001-of-00002.safetensors.bak"};
    rank_state r, unused;
    uint64_t hash;
    open_two(&r, &unused, &small_model);
    checkpoint_file file = {.index = index_in(*state), .set = 'b', .count = 5};
    for (; file.number < 5; file.number++) must(save_file(&r, &file, &hash));
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        write_file(path_in(*state, foreign[i]), "x", 1);
    save_all(&r, *state, 2);
    assert_int_equal(files_in(*state), 2 + 1 + (int)(sizeof foreign / sizeof foreign[0]));
    close_two(&r, &unused);
}

static void expect_no_load(rank_state *loaded, const char *folder, const char *message)
{
    rank_state before;
    rank_open(&before, "reference", &toy_model, &adam);
    rank_fill(&before, 2);
    assert_fails(rank_load(loaded, index_in(folder), NULL), STATUS_DATA, message);
    expect_same_rank(loaded, &before);
    rank_close(&before);
}

static void an_index_that_is_cut_or_flipped_anywhere_is_refused(void **state)
{
    rank_state saved, loaded;
    size_t size;
    open_two(&saved, &loaded, &toy_model);
    save_all(&saved, *state, 2);
    uint8_t *bytes = read_file(index_in(*state), &size);
    for (size_t cut = 0; cut < size; cut++) {
        write_file(index_in(*state), bytes, cut);
        expect_no_load(&loaded, *state, "at offset");
    }
    for (size_t at = 0; at < size; at++) {
        bytes[at] ^= (uint8_t)(1 << at % 8);
        write_file(index_in(*state), bytes, size);
        bytes[at] ^= (uint8_t)(1 << at % 8);
        expect_no_load(&loaded, *state, ": ");
    }
    free(bytes);
    close_two(&saved, &loaded);
}

static void files_that_are_not_of_the_save_are_refused(void **state)
{
    rank_state saved, loaded;
    size_t size;
    open_two(&saved, &loaded, &toy_model);
    save_all(&saved, *state, 2);
    const char *second = "run-a-00002-of-00002.safetensors";
    uint8_t *bytes = read_file(path_in(*state, second), &size);

    rank_fill(&saved, 9); /* a file of a later save in the place of this one's */
    checkpoint_file file = {.index = index_in(*state), .set = 'a', .number = 1, .count = 2};
    uint64_t hash;
    must(save_file(&saved, &file, &hash));
    expect_no_load(&loaded, *state, "got that of another save");

    bytes[size - 1] ^= 1;
    write_file(path_in(*state, second), bytes, size);
    expect_no_load(&loaded, *state, "expected tensors with checksum");
    unlink(path_in(*state, second));
    expect_no_load(&loaded, *state, "run-a-00002-of-00002.safetensors: cannot be opened: No such file");
    free(bytes);

    uint64_t hashes[2] = {1, 2};
    file.number = 0;
    assert_fails(checkpoint_save_index(&file, &saved.subject, hashes), STATUS_DATA,
                 "all ranks need one folder");
    close_two(&saved, &loaded);
}

static const struct {
    const char *index, *message; /* NULL: loads */
} foreign[] = {
    {"{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"net1.weight\": \"1\", \"net1.bias\": \"1\", "
     "\"net2.weight\": \"2\", \"net2.bias\": \"2\"}}",
     NULL},
    {"{\"weight_map\": {\"net1.weight\": \"1\", \"net1.bias\": \"2\", \"net2.weight\": \"2\", \"net2.bias\": "
     "\"2\"}}",
     "expected tensor net1.bias in 2, got none"},
    {"{\"weight_map\": {\"net1.weight\": \"1\", \"net2.weight\": \"2\", \"net2.bias\": \"2\"}}",
     "expected 3 tensors in its files, got 4"},
    {"{\"weight_map\": {\"net1.weight\": \"1\", \"net1.bias\": \"1\"}}", "missing net2.weight, net2.bias"},
    {"{\"weight_map\": {\"net1.weight\": \"../1\"}}",
     "expected the name of a file in the index's folder, got '../1'"},
    {"{\"weight_map\": {\"net1.weight\": 7}}",
     "expected the name of a file in the index's folder, got 'no text'"},
    {"{\"weight_map\": {}}", "expected an index with a weight_map"},
    {"[]", "expected an index with a weight_map"},
    {"{\"weight_map\": {\"net1.weight\": \"absent\"}}", "absent: cannot be opened"},
};

/* As save_pretrained() of Hugging Face's transformers writes a large model. */
static void an_index_of_another_program_loads_parameters(void **state)
{
    write_safetensors(path_in(*state, "1"),
                      "{\"net1.weight\":{\"dtype\":\"F32\",\"shape\":[10,10],\"data_offsets\":[0,400]},"
                      "\"net1.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[400,440]}}",
                      440);
    write_safetensors(path_in(*state, "2"),
                      "{\"net2.weight\":{\"dtype\":\"F32\",\"shape\":[5,10],\"data_offsets\":[0,200]},"
                      "\"net2.bias\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[200,220]}}",
                      220);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        rank_state r;
        rank_open(&r, "reference", &toy_model, &adam);
        rank_fill(&r, 2);
        write_file(index_in(*state), foreign[i].index, strlen(foreign[i].index));
        status rc = rank_load(&r, index_in(*state), NULL);
        if (foreign[i].message) {
            rank_close(&r);
            rank_open(&r, "reference", &toy_model, &adam);
            rank_fill(&r, 2);
            expect_no_load(&r, *state, foreign[i].message);
        } else {
            must(rc);
            uint32_t bits = 0x03020100; /* the first bytes of net1.weight */
            float first;
            memcpy(&first, &bits, sizeof first);
            assert_true(((const double *)r.set->params.data)[r.set->pieces[0].offset] == (double)first);
        }
        error_clear();
        rank_close(&r);
    }
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(several_files_hold_what_one_holds),
        IN_FOLDER(until_its_index_is_there_a_save_changes_nothing),
        IN_FOLDER(what_a_killed_save_left_goes_with_the_next),
        IN_FOLDER(an_index_that_is_cut_or_flipped_anywhere_is_refused),
        IN_FOLDER(files_that_are_not_of_the_save_are_refused),
        IN_FOLDER(an_index_of_another_program_loads_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
