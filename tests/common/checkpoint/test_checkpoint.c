/* A loaded checkpoint equals the saved one, and a checkpoint of another run is refused. */
#include "tests/common/checkpoint/fixture.h"

#include <stdlib.h>
#include <string.h>

/* ---- round trips ------------------------------------------------------------------------------ */

static const optimizer_options
    sgd = {.kind = OPTIMIZER_SGD, .lr = 0.1},
    momentum = {.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9},
    adam = {.kind = OPTIMIZER_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
    adamw = {.kind = OPTIMIZER_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};

static const struct {
    const model_options *model;
    const optimizer_options *optimizer;
} round_trips[] = {
    {&toy_model, &sgd},    {&toy_model, &momentum}, {&toy_model, &adamw},      {&lenet_model, &adam},
    {&bert_model, &adamw}, {&gpt2_model, &adam},    {&small_model, &momentum},
};

static void round_trip(const char *folder, const char *device)
{
    for (size_t i = 0; i < sizeof round_trips / sizeof round_trips[0]; i++) {
        rank_state saved, loaded;
        checkpoint_progress progress = {0};
        const char *path = path_in(folder, "c.safetensors");
        rank_open(&saved, device, round_trips[i].model, round_trips[i].optimizer);
        rank_open(&loaded, device, round_trips[i].model, round_trips[i].optimizer);
        rank_fill(&saved, i);
        rank_fill(&loaded, 1000 + i);
        must(rank_save(&saved, path, &some_progress));
        must(rank_load(&loaded, path, &progress));
        expect_same_rank(&loaded, &saved);
        assert_memory_equal(&progress, &some_progress, sizeof progress);
        rank_close(&saved);
        rank_close(&loaded);
    }
}

static void the_reference_device_gets_back_every_bit(void **state)
{
    round_trip(*state, "reference");
}

static void the_cpu_gets_back_every_bit(void **state)
{
    round_trip(*state, "cpu");
}

static void a_file_is_a_function_of_what_is_saved(void **state)
{
    rank_state r;
    size_t size, again;
    rank_open(&r, "reference", &lenet_model, NULL);
    rank_fill(&r, 1);
    must(rank_save(&r, path_in(*state, "a"), &some_progress));
    must(rank_save(&r, path_in(*state, "b"), &some_progress));
    uint8_t *a = read_file(path_in(*state, "a"), &size), *b = read_file(path_in(*state, "b"), &again);
    assert_int_equal(size, again);
    assert_memory_equal(a, b, size);
    free(a);
    free(b);
    rank_close(&r);
}

static void state_is_also_read_from_host_memory(void **state)
{
    rank_state saved, loaded;
    rank_open(&saved, "reference", &lenet_model, &adam);
    rank_open(&loaded, "reference", &lenet_model, &adam);
    rank_fill(&saved, 3);
    size_t bytes = (size_t)saved.set->arena_elements * sizeof(double);
    void *copies[2];
    for (int i = 0; i < 2; i++) {
        copies[i] = malloc(bytes);
        memcpy(copies[i], saved.arenas.states[i], bytes);
        saved.arenas.states[i] = copies[i];
    }
    saved.arenas.states_on_host = true;
    must(rank_save(&saved, path_in(*state, "c"), &some_progress));
    must(rank_load(&loaded, path_in(*state, "c"), NULL));
    expect_same_rank(&loaded, &saved);
    free(copies[0]);
    free(copies[1]);
    rank_close(&saved);
    rank_close(&loaded);
}

static void without_an_optimizer_parameters_and_buffers_are_loaded_alone(void **state)
{
    rank_state saved, loaded, untouched;
    rank_open(&saved, "reference", &lenet_model, &adam);
    rank_open(&loaded, "reference", &lenet_model, &adam);
    rank_open(&untouched, "reference", &lenet_model, &adam);
    rank_fill(&saved, 3);
    must(rank_save(&saved, path_in(*state, "c"), &some_progress));
    loaded.subject.optimizer = NULL;
    must(rank_load(&loaded, path_in(*state, "c"), NULL));
    expect_same_parameters(&loaded, &saved);
    memcpy(untouched.set->params.data, saved.set->params.data,
           (size_t)saved.set->arena_elements * sizeof(double));
    expect_same_rank(&loaded, &untouched);
    must(rank_save(&loaded, path_in(*state, "weights"), &some_progress));
    assert_fails(rank_load(&saved, path_in(*state, "weights"), NULL), STATUS_DATA,
                 "expected the state of optimizer 'adam', got 'none'");
    rank_close(&saved);
    rank_close(&loaded);
    rank_close(&untouched);
}

static void tensors_stand_in_pytorchs_order_with_pytorchs_names(void **state)
{
    (void)state;
    static const char *const wanted[] = {
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "bn1.running_mean",
        "bn1.running_var",
        "bn1.num_batches_tracked",
        "conv2.weight",
        "conv2.bias",
        "bn2.weight",
        "bn2.bias",
        "bn2.running_mean",
        "bn2.running_var",
        "bn2.num_batches_tracked",
        "fc.weight",
        "fc.bias",
        "optimizer.exp_avg.conv1.weight",
        "optimizer.exp_avg.bn1.weight",
    };
    enum { COUNT = 15 + 2 * 9, SECOND = 15 + 9 };
    rank_state r;
    checkpoint_contents c;
    rank_open(&r, "reference", &small_model, &adam);
    must(checkpoint_contents_make(r.model, DTYPE_F32, &adam, &c));
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_string_equal(c.tensors[i].name, wanted[i]);
    assert_int_equal(c.count, COUNT);
    assert_string_equal(c.tensors[SECOND].name, "optimizer.exp_avg_sq.conv1.weight");
    assert_string_equal(c.tensors[COUNT - 1].name, "optimizer.exp_avg_sq.fc.bias");
    int64_t bytes = 0;
    for (int i = 0; i < c.count; i++) {
        assert_int_equal(c.tensors[i].begin % dtype_size(c.tensors[i].type), 0);
        bytes += c.tensors[i].bytes;
    }
    assert_int_equal(c.data_bytes, bytes);
    checkpoint_contents_free(&c);
    rank_close(&r);
}

/* ---- other runs ------------------------------------------------------------------------------- */

static const model_options wine_model = {.name = "wine_mlp"},
                           toy_with_7_classes = {.name = "toy", .classes = 7},
                           two_heads = {.name = "bert",
                                        .layers = 2,
                                        .hidden = 32,
                                        .heads = 2,
                                        .vocabulary = 97,
                                        .positions = 16,
                                        .sequence = 7},
                           long_bert = {.name = "bert",
                                        .layers = 2,
                                        .hidden = 32,
                                        .heads = 4,
                                        .vocabulary = 97,
                                        .positions = 16,
                                        .sequence = 12};

static const struct {
    const model_options *saved, *loaded;
    const optimizer_options *saved_optimizer, *loaded_optimizer;
    const char *message; /* The expected error, or NULL if the checkpoint loads. */
} others[] = {
    {&toy_model, &wine_model, &sgd, &sgd, "expected model 'wine_mlp', got 'toy'"},
    {&toy_with_7_classes, &toy_model, &sgd, &sgd, "expected a model with classes 5, got 7"},
    {&bert_model, &two_heads, &sgd, &sgd, "expected a model with heads 2, got 4"},
    {&bert_model, &long_bert, &sgd, &sgd, NULL},
    {&toy_model, &toy_model, &adam, &adamw, "expected the state of optimizer 'adamw', got 'adam'"},
    {&toy_model, &toy_model, &sgd, &adam, "expected the state of optimizer 'adam', got 'sgd'"},
    {&toy_model, &toy_model, &momentum, &sgd, "unexpected optimizer.momentum_buffer.net1.bias, "},
    {&toy_model, &toy_model, &sgd, &momentum, "missing optimizer.momentum_buffer.net1.weight, "},
};

static void the_checkpoint_of_another_run_is_refused_with_both_named(void **state)
{
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        rank_state saved, loaded;
        rank_open(&saved, "reference", others[i].saved, others[i].saved_optimizer);
        rank_open(&loaded, "reference", others[i].loaded, others[i].loaded_optimizer);
        rank_fill(&saved, i);
        must(rank_save(&saved, path_in(*state, "c"), &some_progress));
        status rc = rank_load(&loaded, path_in(*state, "c"), NULL);
        if (others[i].message)
            assert_fails(rc, STATUS_DATA, others[i].message);
        else
            must(rc);
        rank_close(&saved);
        rank_close(&loaded);
    }
}

static void float64_loads_into_float32_and_back(void **state)
{
    rank_state f64, f32, again;
    rank_open(&f32, "cpu", &lenet_model, &adam);
    rank_open(&f64, "reference", &lenet_model, &adam);
    rank_open(&again, "cpu", &lenet_model, &adam);
    rank_fill(&f32, 5);
    must(rank_save(&f32, path_in(*state, "f32"), &some_progress));
    must(rank_load(&f64, path_in(*state, "f32"), NULL));
    must(rank_save(&f64, path_in(*state, "f64"), &some_progress));
    must(rank_load(&again, path_in(*state, "f64"), NULL));
    expect_same_rank(&again, &f32);
    rank_close(&f64);
    rank_close(&f32);
    rank_close(&again);
}

/* ---- options ---------------------------------------------------------------------------------- */

static void options_that_mean_nothing_together_are_refused(void **state)
{
    (void)state;
    must(checkpoint_options_check(&(checkpoint_options){0}));
    must(checkpoint_options_check(
        &(checkpoint_options){.save = "c", .save_every = {.count = 5}, .load = "d"}));
    assert_fails(checkpoint_options_check(&(checkpoint_options){.save_every = {.count = 5}}), STATUS_USAGE,
                 "--save-every: expected --save FILE too");
}

static void the_name_of_a_checkpoint_has_the_number_of_epochs_in_place_of_a_word_in_braces(void **state)
{
    (void)state;
    char path[64];
    checkpoint_options numbered = {.save = "runs/wine_{epoch}.safetensors"},
                       plain = {.save = "wine.safetensors"};
    assert_string_equal(checkpoint_path(&numbered, 50, path, sizeof path), "runs/wine_50.safetensors");
    assert_string_equal(checkpoint_path(&plain, 50, path, sizeof path), "wine.safetensors");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(the_reference_device_gets_back_every_bit),
        IN_FOLDER(the_cpu_gets_back_every_bit),
        IN_FOLDER(a_file_is_a_function_of_what_is_saved),
        IN_FOLDER(state_is_also_read_from_host_memory),
        IN_FOLDER(without_an_optimizer_parameters_and_buffers_are_loaded_alone),
        cmocka_unit_test(tensors_stand_in_pytorchs_order_with_pytorchs_names),
        IN_FOLDER(the_checkpoint_of_another_run_is_refused_with_both_named),
        IN_FOLDER(float64_loads_into_float32_and_back),
        cmocka_unit_test(options_that_mean_nothing_together_are_refused),
        cmocka_unit_test(the_name_of_a_checkpoint_has_the_number_of_epochs_in_place_of_a_word_in_braces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
