/* Saving and loading take memory for a few tensors, not for a second model. Only this project's own
 * allocations are counted. The JSON library allocates the header, whose size depends only on the number of
 * tensors. */
#include "tests/common/checkpoint/fixture.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static int64_t live, most;
static bool counting;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void __real_free(void *data);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void __wrap_free(void *data);

static void *counted(void *data)
{
    if (counting && data) live += (int64_t)malloc_usable_size(data);
    if (live > most) most = live;
    return data;
}

void *__wrap_malloc(size_t size)
{
    return counted(__real_malloc(size));
}

void *__wrap_calloc(size_t number, size_t size)
{
    return counted(__real_calloc(number, size));
}

void __wrap_free(void *data)
{
    if (counting && data) live -= (int64_t)malloc_usable_size(data);
    __real_free(data);
}

static status read_zeros(void *context, const checkpoint_tensor *t, void *values)
{
    (void)context;
    memset(values, 0, (size_t)t->bytes);
    return STATUS_OK;
}

static status write_nothing(void *context, const checkpoint_tensor *t, dtype type, const void *values)
{
    (void)context;
    (void)t;
    (void)type;
    (void)values;
    return STATUS_OK;
}

static void begin_counting(void)
{
    live = most = 0;
    counting = true;
}

static int64_t end_counting(void)
{
    counting = false;
    return most;
}

static void memory_is_that_of_the_largest_tensor(void **state)
{
    const model_options options = {
        .name = "gpt2", .layers = 12, .hidden = 128, .heads = 4, .vocabulary = 1000, .positions = 128};
    const optimizer_options adam = optimizer_defaults(OPTIMIZER_ADAM);
    const char *path = path_in(*state, "c");
    checkpoint_source source = {NULL, read_zeros};
    checkpoint_sink sink = {NULL, write_nothing};
    checkpoint_contents contents;
    checkpoint *c;
    nn_model *model;
    must(model_build(&options, &model));
    must(checkpoint_contents_make(model, DTYPE_F32, &adam, &contents));
    int64_t whole = contents.data_bytes, tensor = contents.largest_elements * 8;
    int64_t list = contents.count * (int64_t)(2 * sizeof(checkpoint_tensor)), chunk = 1 << 20;
    checkpoint_contents_free(&contents);
    checkpoint_subject subject = {.model = model, .type = DTYPE_F32, .optimizer = &adam};

    begin_counting();
    must(checkpoint_save(path, &subject, &some_progress, &source));
    int64_t saving = end_counting();
    begin_counting();
    must(checkpoint_open(path, &c));
    must(checkpoint_load(c, &subject, &sink));
    checkpoint_close(&c);
    int64_t loading = end_counting();
    nn_model_free(&model);

    /* The model must be much larger than the limit, or the test would show nothing. */
    assert_true(whole > 6 * (tensor + list + chunk));
    if (saving < tensor || saving > tensor + list + chunk)
        fail_msg("saving: found %lld bytes, wanted little more than %lld", (long long)saving,
                 (long long)tensor);
    if (loading < tensor || loading > tensor + list + chunk)
        fail_msg("loading: found %lld bytes, wanted little more than %lld", (long long)loading,
                 (long long)tensor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(memory_is_that_of_the_largest_tensor, folder_open, folder_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
