/* Files made by hand, as another program may write them. Tests which files load, what the log says, and which
 * files are refused. test_pytorch.c does the same with files that PyTorch has written. */
#include "tests/common/checkpoint/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The four tensors of the toy model have 100 + 10 + 50 + 5 elements. */
#define ENTRY(name, dtype, shape, offsets)                                                                   \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define FIRST                                                                                                \
    ENTRY("net1.weight", "F32", "[10,10]", "[0,400]") "," ENTRY("net1.bias", "F32", "[10]", "[400,440]")
#define SECOND ENTRY("net2.weight", "F32", "[5,10]", "[440,640]")
#define LAST ENTRY("net2.bias", "F32", "[5]", "[640,660]")
static const char plain[] = "{" FIRST "," SECOND "," LAST "}";
enum { PLAIN_BYTES = 660 };

/* Loads the checkpoint, and writes the log to `log`. */
static status load_and_log(rank_state *r, const char *path, char *log, size_t size)
{
    checkpoint *c;
    char name[] = "/tmp/test-psring-log-XXXXXX";
    checkpoint_sink sink = checkpoint_arenas_sink(&r->arenas);
    log[0] = '\0';
    TRY(checkpoint_open(path, &c));
    status rc = checkpoint_load(c, &r->subject, &sink);
    int before = dup(STDERR_FILENO), file = mkstemp(name);
    assert_true(file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    if (rc == STATUS_OK) checkpoint_log_load(c, &r->subject);
    dup2(before, STDERR_FILENO);
    ssize_t length = pread(file, log, size - 1, 0);
    log[length < 0 ? 0 : length] = '\0';
    close(before);
    close(file);
    unlink(name);
    checkpoint_close(&c);
    return rc;
}

static void expect_parameter(rank_state *r, int param, const void *bytes, size_t size)
{
    float values[100];
    must(param_set_export(r->set, r->stream, r->set->params.data, param, DTYPE_F32, values));
    assert_memory_equal(values, bytes, size);
}

static void parameters_load_in_any_order_and_the_log_says_that_the_optimizer_starts_fresh(void **state)
{
    char log[1024];
    uint8_t bytes[PLAIN_BYTES];
    rank_state r, before;
    for (int i = 0; i < PLAIN_BYTES; i++) bytes[i] = (uint8_t)i;
    rank_open(&r, "cpu", &toy_model, NULL);
    rank_open(&before, "cpu", &toy_model, NULL);
    rank_fill(&r, 1);
    rank_fill(&before, 1);
    static const char *const headers[] = {
        plain, "{" LAST "," SECOND "," FIRST "}   ",
        "{\"__metadata__\":{\"format\":\"pt\"}," SECOND ", " LAST ",\n" FIRST "}",
        "{" FIRST "," SECOND "," ENTRY("AuxLogits.fc.bias", "F32", "[0]", "[640,640]") "," LAST "}"};
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        write_safetensors(path_in(*state, "c"), headers[i], PLAIN_BYTES);
        must(load_and_log(&r, path_in(*state, "c"), log, sizeof log));
        expect_parameter(&r, 0, bytes, 400);
        expect_parameter(&r, 1, bytes + 400, 40);
        expect_parameter(&r, 2, bytes + 440, 200);
        expect_parameter(&r, 3, bytes + 640, 20);
        if (!strstr(log, "c: parameters and buffers loaded; another program wrote it, so the optimizer "
                         "starts fresh, at step 0\n"))
            fail_msg("found the log '%s'", log);
    }
    for (int i = 0; i < 2; i++)
        assert_memory_equal(r.arenas.states[i], before.arenas.states[i],
                            (size_t)r.set->arena_elements * sizeof(float));
    rank_close(&r);
    rank_close(&before);
}

static const struct {
    const char *what, *header;
    size_t data_bytes;
    const char *message;
} refused[] = {
    {"a missing tensor", "{" FIRST "," SECOND "}", 640, "missing net2.bias"},
    {"an unexpected tensor", "{" FIRST "," SECOND "," LAST "," ENTRY("scale", "F32", "[]", "[660,664]") "}",
     664, "unexpected scale"},
    {"another shape", "{" FIRST "," ENTRY("net2.weight", "F32", "[10,5]", "[440,640]") "," LAST "}", 660,
     "tensor net2.weight: expected shape 5x10, got 10x5"},
    {"another rank", "{" FIRST "," SECOND "," ENTRY("net2.bias", "F32", "[5,1]", "[640,660]") "}", 660,
     "tensor net2.bias: expected shape 5, got 5x1"},
    {"a scalar", "{" FIRST "," SECOND "," ENTRY("net2.bias", "F32", "[]", "[640,644]") "}", 644,
     "tensor net2.bias: expected shape 5, got scalar"},
    {"integers", "{" FIRST "," SECOND "," ENTRY("net2.bias", "I32", "[5]", "[640,660]") "}", 660,
     "tensor net2.bias: expected dtype F64, F32, F16 or BF16, got I32"},
    {"eight-bit floats", "{" FIRST "," SECOND "," ENTRY("net2.bias", "F8_E4M3", "[5]", "[640,645]") "}", 645,
     "tensor net2.bias: expected dtype F64, F32, F16 or BF16, got F8_E4M3"},
    {"nothing", "{}", 0, "missing net1.weight, net1.bias, net2.weight, net2.bias"},
    {"one of our keys", "{\"__metadata__\":{\"psring.step\":\"7\"}," FIRST "," SECOND "," LAST "}", 660,
     "at offset 8: metadata psring.schema_version is missing"},
    {"a later version", "{\"__metadata__\":{\"psring.schema_version\":\"9\"}," FIRST "," SECOND "," LAST "}",
     660, "metadata psring.schema_version: expected 1, got '9'"},
    {"no version", "{\"__metadata__\":{\"psring.schema_version\":\"one\"}," FIRST "," SECOND "," LAST "}",
     660, "metadata psring.schema_version: expected an integer, got 'one'"},
};

static void files_that_do_not_fit_are_refused_and_nothing_is_loaded(void **state)
{
    rank_state r, before;
    rank_open(&r, "reference", &toy_model, NULL);
    rank_open(&before, "reference", &toy_model, NULL);
    rank_fill(&r, 1);
    rank_fill(&before, 1);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        write_safetensors(path_in(*state, "c"), refused[i].header, refused[i].data_bytes);
        status rc = rank_load(&r, path_in(*state, "c"), NULL);
        if (rc != STATUS_DATA) print_error("%s\n", refused[i].what);
        assert_fails(rc, STATUS_DATA, refused[i].message);
        expect_same_rank(&r, &before);
    }
    rank_close(&r);
    rank_close(&before);
}

static void the_log_names_the_options_that_differ_and_where_the_run_goes_on(void **state)
{
    char log[1024];
    rank_state saved, loaded;
    optimizer_options fast = optimizer_defaults(OPTIMIZER_ADAM), slow = fast;
    slow.lr = 0.25;
    rank_open(&saved, "reference", &toy_model, &fast);
    rank_open(&loaded, "cpu", &toy_model, &slow);
    rank_fill(&saved, 1);
    must(rank_save(&saved, path_in(*state, "c"), &some_progress));
    must(load_and_log(&loaded, path_in(*state, "c"), log, sizeof log));
    static const char *const wanted[] = {
        "c: loaded; the run resumes at step 1234567890123 (step 399 of epoch 17)\n",
        "c: 12 tensors converted to F32\n",
        "warning: ", "c: options differ from the saved ones: lr was 0.001", ", is 0.25\n"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!strstr(log, wanted[i])) fail_msg("found the log '%s', wanted '%s' in it", log, wanted[i]);
    rank_close(&saved);
    rank_close(&loaded);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(parameters_load_in_any_order_and_the_log_says_that_the_optimizer_starts_fresh),
        IN_FOLDER(files_that_do_not_fit_are_refused_and_nothing_is_loaded),
        IN_FOLDER(the_log_names_the_options_that_differ_and_where_the_run_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
