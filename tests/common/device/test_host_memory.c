/* Tests memory, copies and names of devices whose memory is host memory. */
#include "common/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static int set_up(void **context)
{
    device *d = NULL;
    device_config config = {.name = "reference", .world = 1, .threads = 1};
    status rc = device_open(&config, &d);
    *context = d;
    return rc != STATUS_OK;
}

static int tear_down(void **context)
{
    device *d = *context;
    device_close(&d);
    assert_null(d);
    error_clear();
    return 0;
}

static const device_memory_kind kinds[] = {DEVICE_MEMORY_PRIVATE, DEVICE_MEMORY_SHARED,
                                           DEVICE_MEMORY_STAGING};
static const size_t sizes[] = {0, 1, 64, 4097, (2 << 20) - 1, 2 << 20, (4 << 20) + 5};

static void memory_is_zeroed_and_aligned(void **context)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            device_memory memory;
            assert_int_equal(device_allocate(*context, kinds[k], sizes[i], &memory), STATUS_OK);
            assert_true(memory.bytes >= sizes[i]);
            assert_int_equal(memory.kind, kinds[k]);
            assert_int_equal((size_t)memory.data % 64, 0);
            if (kinds[k] == DEVICE_MEMORY_PRIVATE && sizes[i] >= 2 << 20)
                assert_int_equal((size_t)memory.data % (2 << 20), 0);
            for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(((char *)memory.data)[j], 0);
            memset(memory.data, 1, sizes[i]);
            device_free(*context, &memory);
            assert_null(memory.data);
            device_free(*context, &memory); /* A second free does nothing. */
        }
}

static void shared_memory_is_seen_through_its_descriptor(void **context)
{
    device_memory memory;
    assert_int_equal(device_allocate(*context, DEVICE_MEMORY_SHARED, 5000, &memory), STATUS_OK);
    assert_true(memory.fd >= 0);
    int peer = dup(memory.fd);
    char *seen = mmap(NULL, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, peer, 0);
    assert_ptr_not_equal(seen, MAP_FAILED);
    strcpy((char *)memory.data + 4500, "from the owner");
    assert_string_equal(seen + 4500, "from the owner");
    strcpy(seen, "from the peer");
    assert_string_equal(memory.data, "from the peer");
    device_free(*context, &memory);
    /* The mapping of a peer outlives the allocation of the owner. */
    assert_string_equal(seen, "from the peer");
    munmap(seen, 8192);
    close(peer);
}

static void private_memory_has_no_descriptor(void **context)
{
    device_memory memory;
    assert_int_equal(device_allocate(*context, DEVICE_MEMORY_PRIVATE, 1, &memory), STATUS_OK);
    assert_int_equal(memory.fd, -1);
    device_free(*context, &memory);
}

static void an_allocation_that_fails_names_its_size(void **context)
{
    for (int k = 0; k < 2; k++) {
        device_memory memory;
        assert_int_equal(device_allocate(*context, kinds[k], (size_t)1 << 60, &memory), STATUS_SYSTEM);
        assert_non_null(strstr(error_message(), "1048576.0 TiB"));
        assert_null(memory.data);
        assert_int_equal(memory.fd, -1);
        error_clear();
    }
}

static void copies_convert_between_float_types(void **context)
{
    const float host[3] = {0.5f, -1.25f, 3e30f};
    const int32_t tokens[2] = {7, -100};
    double wide[3];
    float back[3];
    int32_t same[2];
    device_stream *s;
    assert_int_equal(device_stream_open(*context, DEVICE_STREAM_COMPUTE, &s), STATUS_OK);
    assert_int_equal(device_upload(s, wide, host, DTYPE_F32, DTYPE_F64, 3), STATUS_OK);
    for (int i = 0; i < 3; i++) assert_true(wide[i] == host[i]);
    assert_int_equal(device_download(s, back, wide, DTYPE_F64, DTYPE_F32, 3), STATUS_OK);
    assert_memory_equal(back, host, sizeof host);
    assert_int_equal(device_upload(s, same, tokens, DTYPE_I32, DTYPE_I32, 2), STATUS_OK);
    assert_memory_equal(same, tokens, sizeof tokens);
    assert_int_equal(device_upload(s, wide, tokens, DTYPE_I32, DTYPE_F64, 2), STATUS_INTERNAL);
    assert_non_null(strstr(error_message(), "int32 to float64"));
    device_stream_close(&s);
}

static void an_unknown_device_is_refused_with_the_known_ones(void **context)
{
    (void)context;
    static const char *const wrong[] = {"gpu", "", "ref", "references", "referenc:e"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        device *d;
        device_config config = {.name = wrong[i], .world = 1, .threads = 1};
        assert_int_equal(device_open(&config, &d), STATUS_USAGE);
        assert_null(d);
        assert_non_null(strstr(error_message(), wrong[i]));
        assert_non_null(strstr(error_message(), "reference"));
        error_clear();
    }
}

static void the_reference_describes_itself(void **context)
{
    const device_info *info = device_get_info(*context);
    assert_string_equal(info->name, "reference");
    assert_int_equal(info->compute_type, DTYPE_F64);
    assert_true(info->real && info->host_addressable && !info->simulated);
}

#define DEVICE_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DEVICE_TEST(memory_is_zeroed_and_aligned),
        DEVICE_TEST(shared_memory_is_seen_through_its_descriptor),
        DEVICE_TEST(private_memory_has_no_descriptor),
        DEVICE_TEST(an_allocation_that_fails_names_its_size),
        DEVICE_TEST(copies_convert_between_float_types),
        DEVICE_TEST(an_unknown_device_is_refused_with_the_known_ones),
        DEVICE_TEST(the_reference_describes_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
