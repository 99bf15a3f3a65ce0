/* Exchanges checkpoints with PyTorch. A checkpoint that this program saved must give the golden loss in
 * PyTorch, and one that PyTorch saved must give it here. golden_exchange.py is the other side. It runs in the
 * interpreter $PSRING_PYTHON, or in a python3 that has torch. If there is none, the tests are skipped. */
#include "common/base/random.h"
#include "harness/train/trainer.h"
#include "harness/verify/golden.h"
#include "tests/common/checkpoint/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of steps before the loss is compared. With several ranks, only the first batch of rank 0 can be
 * used. */
static const struct {
    const char *name;
    int64_t steps;
} cases[] = {
    {"toy_w1", 9}, {"wine_mlp_w1", 9}, {"bert_tiny_w1", 4}, {"gpt2_tiny_w2", 0}, {"resnet18_32_w1_silu", 2},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct setting {
    void *folder;
    char python[256];
    bool skips;
} setting;

/* ---- one rank on the reference device ---------------------------------------------------------- */

typedef struct golden_rank {
    golden_file *file;
    nn_model *model;
    trainer *trainer;
    batch_source *source;
    rank_slot slot;
} golden_rank;

static void rank_start(golden_rank *r, const char *name)
{
    char path[256];
    *r = (golden_rank){0};
    snprintf(path, sizeof path, "tests/golden/%s.json", name);
    must(golden_open(path, &r->file));
    must(model_build(&r->file->model, &r->model));
    trainer_config config = {.sync.world = 1,
                             .device = "reference",
                             .threads = 1,
                             .model = r->model,
                             .engine = &sync_none,
                             .sync.policy = "none",
                             .optimizer = &r->file->optimizer,
                             .batch = r->file->batch,
                             .masked_loss = true,
                             .total_steps = r->file->steps,
                             .sync.slot = &r->slot};
    must(trainer_open(&config, &r->trainer));
    must(sync_connect(trainer_engine(r->trainer), NULL));
    must(golden_source_open(r->file, r->model, 0, 1, &r->source));
}

static void rank_end(golden_rank *r)
{
    batch_source_close(&r->source);
    trainer_close(&r->trainer);
    nn_model_free(&r->model);
    golden_close(&r->file);
}

static void fill(golden_rank *r)
{
    param_set *set = trainer_params(r->trainer);
    device_stream *s = trainer_stream(r->trainer);
    for (int i = 0; i < r->model->param_count; i++) {
        float *values = malloc((size_t)r->model->params[i].elements * sizeof *values);
        assert_non_null(values);
        golden_fill_param(r->file, &r->model->params[i], values);
        must(param_set_import(set, s, set->params.data, i, DTYPE_F32, values));
        free(values);
    }
    for (int i = 0; i < r->model->buffer_count; i++) {
        double *values = malloc((size_t)r->model->buffers[i].elements * sizeof *values);
        assert_non_null(values);
        for (int64_t j = 0; j < r->model->buffers[i].elements; j++) values[j] = r->model->buffers[i].initial;
        must(param_set_import_buffer(set, s, i, DTYPE_F64, values));
        free(values);
    }
}

static checkpoint_subject subject_of(const golden_rank *r)
{
    return (checkpoint_subject){.model = r->model, .type = DTYPE_F64, .optimizer = &r->file->optimizer};
}

static void save_after(const setting *s, const char *name, int64_t steps)
{
    golden_rank r;
    char file[64];
    step_result result;
    rank_start(&r, name);
    fill(&r);
    for (int64_t step = 0; step < steps; step++) must(trainer_step(r.trainer, r.source, step, step, &result));
    checkpoint_subject subject = subject_of(&r);
    checkpoint_progress progress = {.step = steps, .optimizer_step = steps, .batches_tracked = steps};
    checkpoint_arenas arenas = checkpoint_arenas_of(trainer_params(r.trainer), trainer_stream(r.trainer),
                                                    trainer_optimizer(r.trainer));
    checkpoint_source source = checkpoint_arenas_source(&arenas);
    snprintf(file, sizeof file, "ours-%s.safetensors", name);
    must(checkpoint_save(path_in(s->folder, file), &subject, &progress, &source));
    rank_end(&r);
}

static void load_and_compare(const setting *s, const char *name, int64_t steps)
{
    golden_rank r;
    char file[64];
    checkpoint *c = NULL;
    step_result result;
    rank_start(&r, name);
    checkpoint_subject subject = subject_of(&r);
    checkpoint_arenas arenas = checkpoint_arenas_of(trainer_params(r.trainer), trainer_stream(r.trainer),
                                                    trainer_optimizer(r.trainer));
    checkpoint_sink sink = checkpoint_arenas_sink(&arenas);
    snprintf(file, sizeof file, "theirs-%s.safetensors", name);
    must(checkpoint_open(path_in(s->folder, file), &c));
    must(checkpoint_load(c, &subject, &sink));
    checkpoint_close(&c);
    must(trainer_step(r.trainer, r.source, steps, steps, &result));
    double expected = r.file->loss[steps * r.file->losses_per_step];
    if (!(fabs(result.loss - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%s: loss of step %d: found %.17g, expected %.17g", name, (int)steps, result.loss, expected);
    rank_end(&r);
}

/* ---- tests ------------------------------------------------------------------------------------- */

static void a_checkpoint_of_ours_gives_the_golden_loss_in_pytorch(void **state)
{
    setting *s = *state;
    char command[1024], line[512];
    int used = snprintf(command, sizeof command, "\"%s\" tests/harness/verify/golden_exchange.py \"%s\"",
                        s->python, (char *)s->folder),
        lines = 0;
    if (s->skips) skip();
    for (int i = 0; i < CASES; i++) {
        save_after(s, cases[i].name, cases[i].steps);
        used += snprintf(command + used, sizeof command - (size_t)used, " %s:%d", cases[i].name,
                         (int)cases[i].steps);
    }
    FILE *out = popen(command, "re");
    assert_non_null(out);
    for (; fgets(line, sizeof line, out); lines++)
        if (strncmp(line, "ok ", 3) != 0) fail_msg("%s", line);
    assert_int_equal(pclose(out), 0);
    assert_int_equal(lines, CASES);
}

static void a_checkpoint_of_pytorch_gives_the_golden_loss_here(void **state)
{
    setting *s = *state;
    if (s->skips) skip();
    for (int i = 0; i < CASES; i++) load_and_compare(s, cases[i].name, cases[i].steps);
}

static int find_python(void **state)
{
    static setting s;
    const char *named = getenv("PSRING_PYTHON"),
               *candidates[] = {named && *named ? named : "python3", "/usr/bin/python3"};
    char command[512];
    *state = &s;
    s.skips = true;
    for (int i = 0; i < 2 && s.skips; i++) {
        snprintf(s.python, sizeof s.python, "%s", candidates[i]);
        snprintf(command, sizeof command, "\"%s\" -c 'import torch, torchvision, numpy' 2>/dev/null",
                 s.python);
        s.skips = system(command) != 0;
    }
    if (s.skips)
        print_message("# skipped: no python3 with torch and torchvision; PSRING_PYTHON names another\n");
    return folder_open(&s.folder);
}

static int clean_up(void **state)
{
    return folder_close(&((setting *)*state)->folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_of_ours_gives_the_golden_loss_in_pytorch),
        cmocka_unit_test(a_checkpoint_of_pytorch_gives_the_golden_loss_here),
    };
    return cmocka_run_group_tests(tests, find_python, clean_up);
}
