/* Tests parts of the device `cuda` other than operations: memory, copies, conversions, fences, time. Runs on
 * a GPU and on the emulator. */
#include "common/base/clock.h"
#include "common/device/device.h"
#include "common/memory/piece.h"
#include "common/reduce/half.h"
#include "common/reduce/reduce.h"
#include "tests/common/device/op_families.h"
#include "tests/common/device/op_runner.h"
#include "tests/gpu/check_case.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const device_setting cuda = {"cuda", 1, 0}, tf32 = {"cuda", 1, DEVICE_PRECISION_TF32};
static const double EXACT = 2e-5;

static void large_uploads_come_back(void **context)
{
    (void)context;
    enum { COUNT = 5 << 20 }; /* more than two staging buffers of 8 MiB can hold */
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_memory memory;
    int32_t *values = malloc(COUNT * sizeof *values), *back = malloc(COUNT * sizeof *back);
    assert_true(values && back);
    for (int i = 0; i < COUNT; i++) values[i] = i * 7;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, COUNT * sizeof *values, &memory));
    must(device_upload(s, memory.data, values, DTYPE_I32, DTYPE_I32, COUNT));
    /* The host may reuse its memory as soon as upload returns. */
    memset(values, 0xff, COUNT * sizeof *values);
    must(device_download(s, back, memory.data, DTYPE_I32, DTYPE_I32, COUNT));
    must(device_stream_synchronize(s));
    for (int i = 0; i < COUNT; i++) assert_int_equal(back[i], i * 7);
    device_free(d, &memory);
    device_stream_close(&s);
    device_close(&d);
    free(values);
    free(back);
}

static void memory_starts_as_zero(void **context)
{
    (void)context;
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_memory memory;
    unsigned char back[1000];
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    /* In the second round an allocation may return the memory that the first round freed. */
    for (int round = 0; round < 2; round++) {
        must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof back, &memory));
        must(device_download(s, back, memory.data, DTYPE_U8, DTYPE_U8, sizeof back));
        must(device_stream_synchronize(s));
        for (size_t i = 0; i < sizeof back; i++) assert_int_equal(back[i], 0);
        memset(back, 1, sizeof back);
        must(device_upload(s, memory.data, back, DTYPE_U8, DTYPE_U8, sizeof back));
        must(device_stream_synchronize(s));
        device_free(d, &memory);
    }
    device_stream_close(&s);
    device_close(&d);
}

typedef struct conversion {
    dtype to, from;
    double divisor;
} conversion;

static void conversions_round_as_on_the_host(void **context)
{
    (void)context;
    enum { COUNT = 1003 };
    static const conversion cases[] = {{DTYPE_F32, DTYPE_F32, 3},  {DTYPE_F16, DTYPE_F32, 1},
                                       {DTYPE_F16, DTYPE_F32, 7},  {DTYPE_BF16, DTYPE_F32, 1},
                                       {DTYPE_BF16, DTYPE_F32, 3}, {DTYPE_F32, DTYPE_F16, 5},
                                       {DTYPE_F32, DTYPE_BF16, 3}, {DTYPE_F32, DTYPE_F32, 1}};
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_memory in, out;
    float plain[COUNT];
    char from[COUNT * 4], found[COUNT * 4], expected[COUNT * 4];
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof from, &in));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof found, &out));
    for (int i = 0; i < COUNT; i++) plain[i] = (float)sin(i) * (float)exp2(i % 30 - 20);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int from_size = dtype_size(cases[c].from), to_size = dtype_size(cases[c].to);
        if (cases[c].from == DTYPE_F32)
            memcpy(from, plain, sizeof plain);
        else
            reduce_convert(cases[c].from, from, DTYPE_F32, plain, COUNT, 1);
        if (cases[c].from == cases[c].to)
            reduce_divide(cases[c].to, expected, from, COUNT, cases[c].divisor);
        else
            reduce_convert(cases[c].to, expected, cases[c].from, from, COUNT, cases[c].divisor);
        must(device_upload(s, in.data, from, DTYPE_U8, DTYPE_U8, COUNT * from_size));
        must(device_convert(s, out.data, cases[c].to, in.data, cases[c].from, COUNT, cases[c].divisor));
        must(device_download(s, found, out.data, DTYPE_U8, DTYPE_U8, COUNT * to_size));
        must(device_stream_synchronize(s));
        for (int i = 0; i < COUNT * to_size; i++)
            if (found[i] != expected[i])
                fail_msg("%s from %s / %g: byte %d is %d, on the host %d", dtype_name(cases[c].to),
                         dtype_name(cases[c].from), cases[c].divisor, i, found[i], expected[i]);
    }
    device_free(d, &in);
    device_free(d, &out);
    device_stream_close(&s);
    device_close(&d);
}

/* More pieces than travel in one launch, and one of many chunks. */
/* Two ranks of this process. */
static void what_another_rank_shows_is_copied_and_added_as_on_the_host(void **context)
{
    (void)context;
    enum { COUNT = 100003 };
    device *owner = device_setting_open(cuda), *other = device_setting_open(cuda);
    device_stream *owners, *others;
    device_memory shown, own;
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b), *sum = malloc(COUNT * sizeof *sum);
    assert_true(a && b && sum);
    for (int i = 0; i < COUNT; i++) a[i] = 1.0f / (float)(i + 1), b[i] = (float)i * 0.37f;
    must(device_stream_open(owner, DEVICE_STREAM_COMPUTE, &owners));
    must(device_stream_open(other, DEVICE_STREAM_COMMUNICATION, &others));
    must(device_allocate(owner, DEVICE_MEMORY_SHARED, COUNT * sizeof *a, &shown));
    must(device_allocate(other, DEVICE_MEMORY_PRIVATE, 2 * COUNT * sizeof *a, &own));
    must(device_upload(owners, shown.data, a, DTYPE_F32, DTYPE_F32, COUNT));
    must(device_stream_synchronize(owners));
    must(device_enable_peer(other, owner));
    float *first = own.data, *second = first + COUNT;
    must(device_convert(others, first, DTYPE_F32, shown.data, DTYPE_F32, COUNT, 1));
    must(device_upload(others, second, b, DTYPE_F32, DTYPE_F32, COUNT));
    must(device_add(others, second, second, first, DTYPE_F32, COUNT));
    must(device_download(others, sum, second, DTYPE_F32, DTYPE_F32, COUNT));
    must(device_stream_synchronize(others));
    reduce_pair(DTYPE_F32, REDUCE_SUM, a, a, b, COUNT);
    assert_memory_equal(sum, a, COUNT * sizeof *a);
    device_free(owner, &shown);
    device_free(other, &own);
    device_stream_close(&owners);
    device_stream_close(&others);
    device_close(&owner);
    device_close(&other);
    free(a);
    free(b);
    free(sum);
}

/* The pieces are small, with gaps like padding between them. */
static void updates_leave_what_they_wrote_in_bfloat16_beside_it(void **context)
{
    (void)context;
    enum { PIECES = 200, STEP = 24, COUNT = PIECES * STEP, UNTOUCHED = 0x1234 };
    static const op_desc updates[] = {
        {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = COUNT, .momentum = 0.9, .bf16 = true}},
        {.kind = OP_sgd, .type = DTYPE_F32, .u.optimizer = {.count = COUNT, .bf16 = true}},
        {.kind = OP_adam,
         .type = DTYPE_F32,
         .u.optimizer = {.count = COUNT, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bf16 = true}}};
    static float values[COUNT], found[2][COUNT];
    static uint16_t bf16[COUNT];
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_memory memory[5];
    piece pieces[PIECES];
    for (int i = 0; i < PIECES; i++) pieces[i] = (piece){(int64_t)i * STEP, 1 + i % 17};
    op_scalars scalars = {.learning_rate = 0.1,
                          .weight_decay = 0.01,
                          .gradient_scale = 0.5,
                          .bias_correction1 = 0.1,
                          .bias_correction2 = 0.001,
                          .first_step = true,
                          .pieces = pieces,
                          .piece_count = PIECES};
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    for (int i = 0; i < 5; i++) must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof values, &memory[i]));
    for (size_t u = 0; u < sizeof updates / sizeof updates[0]; u++)
        for (int with = 0; with < 2; with++) {
            void *operands[OP_MAX_OPERANDS] = {memory[0].data, memory[1].data, memory[2].data, memory[3].data,
                                               with ? memory[4].data : NULL};
            op_desc op = updates[u];
            device_kernel *kernel;
            op.u.optimizer.bf16 = with;
            for (int i = 0; i < COUNT; i++) values[i] = (float)sin(i), bf16[i] = UNTOUCHED;
            must(device_prepare(d, &op, NULL, &kernel));
            must(device_upload(s, memory[0].data, values, DTYPE_F32, DTYPE_F32, COUNT));
            for (int i = 0; i < COUNT; i++) values[i] = (float)cos(3 * i);
            must(device_upload(s, memory[1].data, values, DTYPE_F32, DTYPE_F32, COUNT));
            for (int i = 2; i < 4; i++) must(device_clear(s, memory[i].data, sizeof values));
            must(device_upload(s, memory[4].data, bf16, DTYPE_U8, DTYPE_U8, sizeof bf16));
            must(device_launch(s, kernel, operands, &scalars, NULL));
            must(device_download(s, found[with], memory[0].data, DTYPE_F32, DTYPE_F32, COUNT));
            must(device_download(s, bf16, memory[4].data, DTYPE_U8, DTYPE_U8, sizeof bf16));
            must(device_stream_synchronize(s));
            device_release(&kernel);
            for (int i = 0; i < COUNT; i++) {
                bool written = with && i % STEP < pieces[i / STEP].count;
                uint16_t expected = written ? bf16_from_float(found[1][i]) : UNTOUCHED;
                if (bf16[i] != expected)
                    fail_msg("%s, element %d: %04x, expected %04x", op_name(op.kind), i, bf16[i], expected);
                if (with && found[1][i] != found[0][i])
                    fail_msg("%s, element %d: %.9g with a copy, %.9g without", op_name(op.kind), i,
                             found[1][i], found[0][i]);
            }
        }
    for (int i = 0; i < 5; i++) device_free(d, &memory[i]);
    device_stream_close(&s);
    device_close(&d);
}

static void updates_reach_every_piece_and_nothing_else(void **context)
{
    (void)context;
    enum { PIECES = 400, LARGE = 20000, COUNT = PIECES * 24 + LARGE };
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_memory memory;
    device_kernel *kernel;
    static float values[COUNT], found[COUNT];
    piece pieces[PIECES];
    for (int i = 0; i < PIECES; i++) pieces[i] = (piece){(int64_t)i * 24, 1 + i % 17};
    pieces[PIECES - 1].count = LARGE;
    for (int i = 0; i < COUNT; i++) values[i] = (float)(i % 1000) + 1;
    op_desc op = {.kind = OP_divide, .type = DTYPE_F32, .u.elementwise = {.count = COUNT}};
    op_scalars scalars = {.divisor = 3, .pieces = pieces, .piece_count = PIECES};
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    must(device_allocate(d, DEVICE_MEMORY_PRIVATE, sizeof values, &memory));
    must(device_prepare(d, &op, NULL, &kernel));
    must(device_upload(s, memory.data, values, DTYPE_F32, DTYPE_F32, COUNT));
    must(device_launch(s, kernel, (void *[OP_MAX_OPERANDS]){memory.data}, &scalars, NULL));
    must(device_download(s, found, memory.data, DTYPE_F32, DTYPE_F32, COUNT));
    must(device_stream_synchronize(s));
    for (int i = 0; i < PIECES; i++)
        for (int64_t j = pieces[i].offset; j < pieces[i].offset + pieces[i].count; j++) values[j] /= 3;
    for (int i = 0; i < COUNT; i++)
        if (found[i] != values[i]) fail_msg("element %d is %g, expected %g", i, found[i], values[i]);
    device_release(&kernel);
    device_free(d, &memory);
    device_stream_close(&s);
    device_close(&d);
}

/* Shapes that the table does not have: several tiles, every head size of attention, more rows than one block
 * sums of a column. */
static void shapes_of_several_tiles_agree_with_the_reference(void **context)
{
    (void)context;
    static const attention_attributes heads[] = {{1, 97, 2, 32, true, 0},
                                                 {2, 70, 1, 64, false, 0},
                                                 {1, 50, 2, 96, true, 0},
                                                 {1, 33, 1, 128, false, 0}};
    static op_case c;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        case_attention(&c, heads[i]);
        check_case(&c, cuda, EXACT);
        check_case(&c, tf32,
                   heads[i].width <= 64 ? EXACT + 8 * 0x1p-10
                                        : EXACT); /* Wider heads are multiplied in float32. */
    }
    case_batchnorm(&c, (batchnorm_attributes){8, 13, 11, 70, 1e-5, 0.1, ACTIVATION_RELU, true, false, 1},
                   (case_options){0});
    check_case(&c, cuda, EXACT);
    case_layernorm(&c, (layernorm_attributes){300, 130, 1e-5, true, true}, (case_options){0});
    check_case(&c, cuda, EXACT);
    case_linear(&c, (linear_attributes){.m = 130, .in = 70, .out = 150, .bias = true, .act = ACTIVATION_GELU},
                (case_options){0});
    check_case(&c, cuda, EXACT);
    case_conv2d(&c, (conv2d_attributes){2, 17, 19, 24, 70, 3, 3, 2, 1, 1, 0, 0, true}, (case_options){0});
    check_case(&c, cuda, EXACT);
    case_embedding(&c, (embedding_attributes){3, 60, 140, 9, 70, true, true}, (case_options){0});
    check_case(&c, cuda, EXACT);
}

/* ---- fences ----------------------------------------------------------------------------------- */

typedef struct reacher {
    device_fence *fence;
    uint64_t value;
} reacher;

static void *reach_later(void *context)
{
    reacher *r = context;
    usleep(20000);
    device_fence_reach(r->fence, r->value);
    return NULL;
}

static void streams_wait_for_what_the_host_and_other_streams_say(void **context)
{
    (void)context;
    device *d = device_setting_open(cuda);
    device_stream *a, *b;
    device_fence *fence, *behind;
    pthread_t thread;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &a));
    must(device_stream_open(d, DEVICE_STREAM_COMMUNICATION, &b));
    must(device_fence_open(d, &fence));
    must(device_fence_open(d, &behind));
    reacher r = {fence, 5};
    assert_int_equal(pthread_create(&thread, NULL, reach_later, &r), 0);
    must(device_stream_wait(a, fence, 5));
    must(device_stream_signal(a, behind, 9));
    must(device_stream_wait(b, behind, 8));
    must(device_stream_synchronize(b));
    assert_true(device_fence_reached(fence, 5));
    assert_false(device_fence_reached(fence, 6));
    assert_true(device_fence_reached(behind, 9));
    pthread_join(thread, NULL);
    device_fence_close(&fence);
    device_fence_close(&behind);
    device_stream_close(&a);
    device_stream_close(&b);
    device_close(&d);
}

static void *fail_later(void *context)
{
    error_record error = {STATUS_PEER, "rank 3 is gone"};
    usleep(20000);
    device_fence_fail(context, &error);
    return NULL;
}

static void failed_fences_end_waits_with_the_error(void **context)
{
    (void)context;
    device *d = device_setting_open(cuda);
    device_stream *s;
    device_fence *fence;
    pthread_t thread;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    must(device_fence_open(d, &fence));
    assert_int_equal(pthread_create(&thread, NULL, fail_later, fence), 0);
    /* The host goes on, and the failure releases the stream. If the fence has failed already, the wait
     * returns the error at once. */
    status rc = device_stream_wait(s, fence, 5);
    if (rc == STATUS_OK) rc = device_stream_synchronize(s);
    pthread_join(thread, NULL);
    /* The stream may have been released a moment before the failure was recorded. */
    if (rc == STATUS_OK) rc = device_stream_synchronize(s);
    assert_int_equal(rc, STATUS_PEER);
    assert_string_equal(error_message(), "rank 3 is gone");
    error_clear();
    assert_int_equal(device_stream_wait(s, fence, 5), STATUS_PEER);
    error_clear();
    device_fence_close(&fence);
    device_stream_close(&s);
    device_close(&d);
}

static void marks_follow_the_host_clock(void **context)
{
    (void)context;
    device *d = device_setting_open(cuda);
    device_stream *s;
    must(device_stream_open(d, DEVICE_STREAM_COMPUTE, &s));
    int64_t before = clock_now_ns();
    must(device_mark(s, 1));
    usleep(5000);
    must(device_mark(s, 2));
    must(device_stream_synchronize(s));
    int64_t after = clock_now_ns(), first = device_mark_ns(s, 1), second = device_mark_ns(s, 2);
    enum { SLACK_NS = 2000000 };
    assert_true(first >= before - SLACK_NS && second <= after + SLACK_NS);
    assert_true(second - first >= 4000000);
    device_stream_close(&s);
    device_close(&d);
}

static void what_cannot_be_is_refused_in_one_line(void **context)
{
    (void)context;
    device *d = device_setting_open(cuda);
    device_memory memory;
    int64_t used, total;
    must(device_usage(d, &used, &total));
    assert_true(used >= 0 && used <= total);
    assert_int_equal(device_allocate(d, DEVICE_MEMORY_PRIVATE, (size_t)1 << 50, &memory), STATUS_SYSTEM);
    assert_non_null(strstr(error_message(), "no memory for"));
    assert_null(strchr(error_message(), '\n'));
    error_clear();
    device_kernel *kernel;
    op_desc op = {.kind = OP_attention_forward,
                  .type = DTYPE_F32,
                  .u.attention = {.batch = 1, .sequence = 2, .heads = 1, .width = 129, .stride = 129}};
    assert_int_equal(device_prepare(d, &op, NULL, &kernel), STATUS_CONFIG);
    assert_non_null(strstr(error_message(), "expected heads of a width of at most 128, got 129"));
    error_clear();
    device_close(&d);
    device_config beyond = {.name = "cuda", .world = 1024, .local_rank = 1000, .threads = 1};
    assert_int_equal(device_open(&beyond, &d), STATUS_CONFIG);
    assert_non_null(strstr(error_message(), "--share-gpu"));
    error_clear();
    beyond.share_gpu = true;
    must(device_open(&beyond, &d));
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_uploads_come_back),
        cmocka_unit_test(memory_starts_as_zero),
        cmocka_unit_test(conversions_round_as_on_the_host),
        cmocka_unit_test(what_another_rank_shows_is_copied_and_added_as_on_the_host),
        cmocka_unit_test(updates_leave_what_they_wrote_in_bfloat16_beside_it),
        cmocka_unit_test(updates_reach_every_piece_and_nothing_else),
        cmocka_unit_test(shapes_of_several_tiles_agree_with_the_reference),
        cmocka_unit_test(streams_wait_for_what_the_host_and_other_streams_say),
        cmocka_unit_test(failed_fences_end_waits_with_the_error),
        cmocka_unit_test(marks_follow_the_host_clock),
        cmocka_unit_test(what_cannot_be_is_refused_in_one_line),
    };
    return cmocka_run_group_tests_name("the cuda device", tests, NULL, NULL);
}
