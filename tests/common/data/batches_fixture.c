#include "tests/common/data/batches_fixture.h"

#include <string.h>

const data_form vector_form = {.kind = DATA_FEATURES, .features = FEATURES, .classes = 5};
const data_form picture_form = {.kind = DATA_IMAGE, .h = 8, .w = 8, .c = 3, .classes = 5};

dataset *open_synthetic(const data_form *form)
{
    dataset_config config = {
        .spec = "synthetic", .seed = 5, .model = form, .synthetic_samples = {SAMPLES, TESTS}};
    dataset *set;
    must(dataset_open(&config, &set));
    return set;
}

batches_config training(const dataset *set, int rank, int world)
{
    return (batches_config){.set = set,
                            .part = DATA_TRAIN,
                            .purpose = BATCHES_TRAIN,
                            .model = dataset_describe(set)->form,
                            .seed = 11,
                            .rank = rank,
                            .world = world,
                            .batch = BATCH,
                            .threads = 1};
}

batch_source *open_source(const batches_config *config)
{
    batch_source *source;
    must(batches_open(config, &source));
    return source;
}

size_t input_bytes(const batch_source *s, const batch_view *b)
{
    return (size_t)(b->count * data_form_input_elements(&s->form)) * 4;
}

size_t target_bytes(const batch_source *s, const batch_view *b)
{
    return (size_t)(b->count * data_form_target_elements(&s->form)) * 4;
}

static void append(recording *r, const void *bytes, size_t size)
{
    assert_true(r->size + size <= sizeof r->bytes);
    memcpy(r->bytes + r->size, bytes, size);
    r->size += size;
}

void record(const batches_config *config, int64_t first, int64_t end, recording *out)
{
    batches_config from = *config;
    from.first_step = first;
    out->size = 0;
    batch_source *source = open_source(&from);
    for (int64_t step = first; step < end; step++) {
        batch_view b;
        must(batch_source_next(source, step, &b));
        const int64_t figures[] = {b.count, b.targets_counted, b.padding, b.step, b.epoch, b.epoch_step};
        append(out, figures, RECORDED_FIGURES);
        append(out, b.inputs, input_bytes(source, &b));
        append(out, b.targets, target_bytes(source, &b));
        batch_source_return(source, &b);
    }
    batch_source_close(&source);
}

void expect_same(const recording *found, const recording *wanted)
{
    assert_int_equal(found->size, wanted->size);
    assert_memory_equal(found->bytes, wanted->bytes, wanted->size);
}
