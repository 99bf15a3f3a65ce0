/* Exchanges checkpoints in both directions between this program and PyTorch with its safetensors package.
 * pytorch.py is the other side, and runs in the interpreter $PSRING_PYTHON, or python3. The tests are skipped
 * if the packages are missing. */
#include "tests/common/checkpoint/fixture.h"

#include "common/base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEED = 7, COARSE = 64, SKIPS = 77 };

typedef struct setting {
    void *folder;
    bool skips;
    char *results; /* Output of pytorch.py, one line for each of its checks. */
} setting;

static const model_options resnet_model = {.name = "resnet18", .image = 32, .classes = 10};
static const optimizer_options
    sgd = {.kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01},
    adam =
        {.kind = OPTIMIZER_ADAM, .lr = 0.1, .weight_decay = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6},
    adamw = {
        .kind = OPTIMIZER_ADAMW, .lr = 0.1, .weight_decay = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6};

/* ---- values that are functions of name and index ---------------------------------------------- */

static double value_at(const char *name, int64_t i, bool coarse)
{
    double value = random_signed(random_start(SEED, random_fnv1a64(name)), (uint64_t)i);
    return coarse ? floor(value * COARSE) / COARSE : value;
}

static status write_values(const checkpoint_sink *sink, const checkpoint_tensor *t, const char *name)
{
    double *values = malloc((size_t)t->elements * sizeof *values);
    for (int64_t i = 0; i < t->elements; i++) values[i] = value_at(name, i, false);
    status rc = sink->write(sink->context, t, DTYPE_F64, values);
    free(values);
    return rc;
}

static void fill_by_name(rank_state *r)
{
    checkpoint_contents c;
    checkpoint_sink sink = checkpoint_arenas_sink(&r->arenas);
    must(checkpoint_contents_make(r->model, r->set->type, &r->optimizer_options, &c));
    for (int i = 0; i < c.count; i++)
        if (c.tensors[i].kind != CHECKPOINT_BATCHES)
            must(write_values(&sink, &c.tensors[i], c.tensors[i].name));
    checkpoint_contents_free(&c);
}

/* Checks that parameters and buffers have the values that pytorch.py gave them. */
static void expect_values(rank_state *r, const char *file)
{
    checkpoint_contents c;
    checkpoint_source source = checkpoint_arenas_source(&r->arenas);
    must(checkpoint_contents_make(r->model, DTYPE_F64, NULL, &c));
    double *values = malloc((size_t)c.largest_elements * sizeof *values);
    for (int i = 0; i < c.count; i++) {
        const checkpoint_tensor *t = &c.tensors[i];
        if (t->kind == CHECKPOINT_BATCHES) continue;
        must(source.read(source.context, t, values));
        for (int64_t j = 0; j < t->elements; j++)
            if (values[j] != value_at(t->name, j, true))
                fail_msg("%s: %s[%lld]: found %.9g, wanted %.9g", file, t->name, (long long)j, values[j],
                         value_at(t->name, j, true));
    }
    free(values);
    checkpoint_contents_free(&c);
}

/* ---- the exchange ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    const model_options *model;
    bool wide; /* True if the case also runs on the reference device. */
} models[] = {{"small", &small_model, true}, {"toy", &toy_model, true},   {"lenet", &lenet_model, true},
              {"bert", &bert_model, true},   {"gpt2", &gpt2_model, true}, {"resnet18", &resnet_model, false}};
enum { MODELS = sizeof models / sizeof models[0] };

static void write_ours(const char *folder)
{
    static const char *const devices[] = {"cpu", "reference"}, *const types[] = {"float32", "float64"};
    for (int i = 0; i < MODELS; i++) {
        for (int d = 0; d <= models[i].wide; d++) {
            rank_state r;
            char name[64];
            snprintf(name, sizeof name, "ours-%s-%s.safetensors", models[i].name, types[d]);
            rank_open(&r, devices[d], models[i].model, NULL);
            fill_by_name(&r);
            must(rank_save(&r, path_in(folder, name), &some_progress));
            rank_close(&r);
        }
    }
}

/* Writes a checkpoint, updates the parameters once more, and writes another checkpoint. PyTorch will use the
 * same gradients for its update. */
static void write_step(const char *folder, const char *kind, const optimizer_options *o)
{
    rank_state r, gradients;
    char name[64];
    checkpoint_progress progress = {.step = 4, .optimizer_step = 4};
    rank_open(&r, "reference", &small_model, o);
    rank_open(&gradients, "reference", &small_model, o);
    fill_by_name(&r);
    /* Second moments are not negative. */
    double *second = r.arenas.states[1];
    for (int64_t i = 0; second && i < r.set->arena_elements; i++) second[i] = fabs(second[i]);
    snprintf(name, sizeof name, "ours-%s-before.safetensors", kind);
    must(rank_save(&r, path_in(folder, name), &progress));
    checkpoint_contents c;
    checkpoint_sink sink = checkpoint_arenas_sink(&gradients.arenas);
    must(checkpoint_contents_make(r.model, DTYPE_F64, NULL, &c));
    for (int i = 0; i < c.count; i++) {
        snprintf(name, sizeof name, "gradient.%s", c.tensors[i].name);
        if (c.tensors[i].kind == CHECKPOINT_PARAM) must(write_values(&sink, &c.tensors[i], name));
    }
    checkpoint_contents_free(&c);
    must(optimizer_update(r.optimizer, r.stream, r.set->params.data, gradients.set->params.data,
                          param_set_pieces(r.set, 0, r.model->param_count), progress.optimizer_step, o->lr,
                          1));
    progress.step = ++progress.optimizer_step;
    snprintf(name, sizeof name, "ours-%s-after.safetensors", kind);
    must(rank_save(&r, path_in(folder, name), &progress));
    rank_close(&r);
    rank_close(&gradients);
}

static int exchange(void **state)
{
    static setting s;
    char command[1024];
    const char *python = getenv("PSRING_PYTHON"), *root = getenv("SOURCE_DIR");
    if (folder_open(&s.folder) != 0) return -1;
    *state = &s;
    if (!python || !*python) python = "python3";
    snprintf(command, sizeof command, "\"%s\" -c 'import torch, safetensors.torch' 2>/dev/null", python);
    s.skips = system(command) != 0;
    if (s.skips) {
        print_message("# skipped: %s has no torch with safetensors; PSRING_PYTHON names another\n", python);
        return 0;
    }
    write_ours(s.folder);
    write_step(s.folder, "sgd", &sgd);
    write_step(s.folder, "adam", &adam);
    write_step(s.folder, "adamw", &adamw);
    snprintf(command, sizeof command, "\"%s\" \"%s/tests/common/checkpoint/pytorch.py\" \"%s\"", python,
             root ? root : ".", (char *)s.folder);
    if (system(command) != 0) return -1;
    size_t size;
    s.results = (char *)read_file(path_in(s.folder, "results"), &size);
    if (!s.results) return -1;
    s.results[size] = '\0';
    return 0;
}

static int clean_up(void **state)
{
    setting *s = *state;
    free(s->results);
    return folder_close(&s->folder);
}

static setting *setting_or_skip(void **state)
{
    setting *s = *state;
    if (s->skips) skip();
    return s;
}

static const char *theirs(const setting *s, const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "theirs-%s.safetensors", name);
    return path_in(s->folder, file);
}

/* ---- tests ------------------------------------------------------------------------------------ */

static void pytorch_finds_our_checkpoints_as_it_wants_them(void **state)
{
    setting *s = setting_or_skip(state);
    int lines = 0;
    for (char *line = strtok(s->results, "\n"); line; line = strtok(NULL, "\n"), lines++)
        if (strncmp(line, "ok ", 3) != 0) fail_msg("%s", line);
    assert_true(lines >= 5 * 2 + 3 + 1);
}

static const struct {
    const char *file;
    const model_options *model;
} loaded[] = {
    {"small", &small_model},
    {"toy", &toy_model},
    {"lenet", &lenet_model},
    {"bert", &bert_model},
    {"gpt2", &gpt2_model},
    {"resnet18", &resnet_model},
    {"small-float64", &small_model},
    {"small-float16", &small_model},
    {"small-bfloat16", &small_model},
    {"small-old", &small_model},
    {"bert-model", &bert_model},
    {"bert-both", &bert_model},
    {"gpt2-model", &gpt2_model},
    {"gpt2-both", &gpt2_model},
    {"gpt2-conv1d", &gpt2_model},
};

static void checkpoints_of_pytorch_load_and_the_optimizer_starts_fresh(void **state)
{
    setting *s = setting_or_skip(state);
    for (size_t i = 0; i < sizeof loaded / sizeof loaded[0]; i++) {
        const char *path = theirs(s, loaded[i].file);
        if (access(path, F_OK) != 0 && strcmp(loaded[i].file, "resnet18") == 0)
            continue; /* torchvision is not installed */
        rank_state r, untouched;
        checkpoint *c;
        rank_open(&r, "cpu", loaded[i].model, NULL);
        rank_open(&untouched, "cpu", loaded[i].model, NULL);
        rank_fill(&r, 1);
        rank_fill(&untouched, 1);
        checkpoint_sink sink = checkpoint_arenas_sink(&r.arenas);
        must(checkpoint_open(path, &c));
        must(checkpoint_load(c, &r.subject, &sink));
        const checkpoint_info *info = checkpoint_get_info(c);
        assert_true(info->foreign);
        assert_memory_equal(&info->progress, &(checkpoint_progress){0}, sizeof info->progress);
        checkpoint_close(&c);
        expect_values(&r, loaded[i].file);
        for (int k = 0; k < 2; k++)
            assert_memory_equal(r.arenas.states[k], untouched.arenas.states[k],
                                (size_t)r.set->arena_elements * sizeof(float));
        rank_close(&r);
        rank_close(&untouched);
    }
}

static const struct {
    const char *file;
    const model_options *model;
    const char *message;
} refused[] = {
    {"lenet", &toy_model,
     "expected the tensors of model toy: missing net1.weight, net1.bias, net2.weight, net2.bias; "
     "unexpected conv1.bias, conv1.weight, conv2.bias, conv2.weight and 6 more"},
    {"toy-with-state", &toy_model, "unexpected optimizer.exp_avg.net1.bias, "},
    {"toy-rewritten", &toy_model, "it is damaged, or edited"},
    {"toy-integers", &toy_model, "tensor net1.bias: expected dtype F64, F32, F16 or BF16, got I64"},
    {"toy-shape", &toy_model, "tensor net1.weight: expected shape 10x10, got 7x10"},
    {"toy-pickle", &toy_model, "at offset 0: expected a safetensors file, got one of torch.save"},
    {"gpt2-untied", &gpt2_model, "tensor lm_head.weight differs from transformer.wte.weight"},
};

static void checkpoints_of_pytorch_that_do_not_fit_are_refused(void **state)
{
    setting *s = setting_or_skip(state);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        rank_state r, untouched;
        rank_open(&r, "reference", refused[i].model, NULL);
        rank_open(&untouched, "reference", refused[i].model, NULL);
        rank_fill(&r, 1);
        rank_fill(&untouched, 1);
        assert_fails(rank_load(&r, theirs(s, refused[i].file), NULL), STATUS_DATA, refused[i].message);
        expect_same_rank(&r, &untouched);
        rank_close(&r);
        rank_close(&untouched);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pytorch_finds_our_checkpoints_as_it_wants_them),
        cmocka_unit_test(checkpoints_of_pytorch_load_and_the_optimizer_starts_fresh),
        cmocka_unit_test(checkpoints_of_pytorch_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, exchange, clean_up);
}
