/* The model and the data of a run, or the recorded job of --workload. */
#include "common/base/text.h"
#include "harness/options/run_options.h"
#include "harness/workload/workload.h"

#include <string.h>

status run_config_read_workload(run_config *c)
{
    workload w;
    if (!c->run.workload) return STATUS_OK;
    for (int b = 0; b < BINDING_COUNT; b++)
        for (size_t i = 0; i < c->bindings[b].table->count; i++) {
            const char *name = c->bindings[b].table->options[i].name;
            bool recorded = c->bindings[b].table == &model_option_table ||
                            run_option_is_among(name, "batch data bf16 tf32 stages workload-out");
            if (recorded && options_given(&c->bindings[b], name))
                return fail(STATUS_USAGE, "--%s: unexpected with --workload, which determines it", name);
        }
    status rc = workload_open(c->run.workload, &w);
    if (rc == STATUS_OK) c->data.batch = w.model->recording->batch;
    bool chosen = options_given(&c->bindings[3], "optimizer");
    if (rc == STATUS_OK && !chosen && w.optimizer[0])
        rc = text_parse_choice("optimizer", w.optimizer, optimizer_names, sizeof *optimizer_names, 3,
                               &c->optimizer.kind);
    workload_free(&w);
    return rc;
}

static void fit_model(model_options *m, const model_entry *entry, const data_form *form)
{
    if (form->kind == DATA_IMAGE) {
        bool lenet = strcmp(m->name, "lenet") == 0;
        int64_t smallest = lenet ? 0 : entry->defaults.small_image;
        if (!m->image) m->image = form->h < smallest ? smallest : form->h;
        if (!m->channels && lenet) m->channels = form->c;
    }
    if (form->kind == DATA_TOKENS) {
        if (!m->sequence) m->sequence = form->sequence;
    } else if (!m->classes) {
        m->classes = form->classes;
    }
}

enum { SYNTHETIC_SAMPLES = 50000 };

status run_config_build(const run_config *c, dataset **set, nn_model **model, model_options *resolved)
{
    const model_entry *entry;
    dataset_config config = {.spec = c->data.data, .seed = c->run.seed};
    int64_t step = c->data.batch * c->run.gpus;
    if (step > SYNTHETIC_SAMPLES)
        config.synthetic_samples[DATA_TRAIN] = step; /* A step needs a full batch for every rank. */
    *set = NULL;
    *model = NULL;
    model_options options = *resolved = c->model;
    if (c->run.workload) {
        TRY(workload_replay(c->run.workload, c->run.efficiency, model));
    } else {
        TRY(model_find(options.name, &entry));
        bool features = entry->input == NN_INPUT_FEATURES && strncmp(c->data.data, "synthetic:", 10) == 0;
        bool by_model = features || strcmp(c->data.data, "synthetic") == 0; /* the model sets the targets */
        if (!by_model) {
            TRY(dataset_open(&config, set));
            fit_model(&options, entry, &dataset_describe(*set)->form);
        } else if (run_config_is_on_cpu(c) && !options.image) {
            options.image = entry->defaults.small_image;
        }
        TRY(model_resolve(&options, resolved));
        TRY(model_build(&options, model));
    }
    if (*set) return STATUS_OK;
    data_form form = data_form_of_model(*model);
    config.model = &form;
    return dataset_open(&config, set);
}
