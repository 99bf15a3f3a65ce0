#include "tests/common/net/net_test.h"

#include "common/base/random.h"
#include "common/net/message_wire.h"
#include "common/net/rendezvous_impl.h"

#include <stdlib.h>
#include <xxhash.h>

static const message_header full = {
    .kind = MESSAGE_FAILED,
    .sender = INT32_MAX,
    .sequence = UINT64_MAX,
    .token = UINT64_MAX,
    .frames = MESSAGE_FRAMES_MAX,
    .step = INT64_MIN,
    .key = INT64_MAX,
    .offset = INT64_MIN,
    .count = INT64_MAX,
    .dtype = INT32_MAX,
    .flags = UINT32_MAX,
    .integers = {INT64_MIN, INT64_MAX, -1},
    .doubles = {-0.0, 1e308},
    .sent_ns = INT64_MIN,
    .ready_ns = INT64_MAX,
    .arrived_ns = INT64_MIN,
    .last_ns = INT64_MAX,
    .last_rank = UINT32_MAX,
    .pushed_ns = INT64_MIN,
    .checksum = UINT64_MAX,
};
static const message_header smallest = {.kind = MESSAGE_HEARTBEAT};

static void a_header_survives_packing(void **state)
{
    (void)state;
    static const message_header *const cases[] = {&full, &smallest};
    for (int c = 0; c < 2; c++) {
        uint8_t bytes[MESSAGE_HEADER_BYTES];
        message_header back;
        memset(&back, 0xAA, sizeof back);
        size_t used = message_pack(cases[c], bytes);
        assert_true(used <= sizeof bytes);
        assert_ok(message_unpack(bytes, used, &back));
        const message_header *h = cases[c];
        assert_int_equal(back.kind, h->kind);
        assert_int_equal(back.sender, h->sender);
        assert_true(back.sequence == h->sequence && back.token == h->token && back.checksum == h->checksum);
        assert_int_equal(back.frames, h->frames);
        assert_true(back.step == h->step && back.key == h->key && back.offset == h->offset &&
                    back.count == h->count);
        assert_int_equal(back.dtype, h->dtype);
        assert_true(back.flags == h->flags);
        assert_memory_equal(back.integers, h->integers, sizeof h->integers);
        assert_memory_equal(back.doubles, h->doubles, sizeof h->doubles);
        assert_true(back.sent_ns == h->sent_ns && back.ready_ns == h->ready_ns &&
                    back.arrived_ns == h->arrived_ns);
        assert_true(back.last_ns == h->last_ns && back.last_rank == h->last_rank &&
                    back.pushed_ns == h->pushed_ns);
    }
}

/* The bytes are built by hand from the documentation of the encoding. */
static void malformed_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *what, *bytes;
        size_t count;
        const char *text;
    } cases[] = {
        {"nothing", "", 0, "not a message header"},
        {"text", "GET / HTTP/1.1", 14, "not a message header"},
        {"required fields missing", "\x08\x01", 2, "not a message header"},
        {"kind 0",
         "\x08\x00\x10\x00\x18\x00\x21"
         "12345678"
         "\x28\x00",
         17, "got 0"},
        {"kind 99",
         "\x08\x63\x10\x00\x18\x00\x21"
         "12345678"
         "\x28\x00",
         17, "got 99"},
        {"2^20 frames",
         "\x08\x01\x10\x00\x18\x00\x21"
         "12345678"
         "\x28\x80\x80\x40",
         19, "out of range"},
        {"sender 2^32 - 1",
         "\x08\x01\x10\xff\xff\xff\xff\x0f\x18\x00\x21"
         "12345678"
         "\x28\x00",
         21, "out of range"},
        {"field 99",
         "\x08\x01\x10\x00\x18\x00\x21"
         "12345678"
         "\x28\x00\x98\x06\x01",
         20, "unknown fields"},
        {"a group",
         "\x08\x01\x10\x00\x18\x00\x21"
         "12345678"
         "\x28\x00\x33\x34",
         19, "not a message header"},
        {"a varint without end", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12,
         "not a message header"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        message_header out;
        assert_fails(message_unpack(cases[i].bytes, cases[i].count, &out), STATUS_PROTOCOL, cases[i].text);
    }
}

static void every_truncation_of_a_header_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[MESSAGE_HEADER_BYTES];
    message_header out;
    size_t used = message_pack(&smallest, bytes);
    /* The header ends with optional fields, so a header without them may be valid. The required fields must
     * be there. */
    for (size_t n = 0; n < used - 19; n++) {
        uint8_t *exact = malloc(n + 1);
        memcpy(exact, bytes, n);
        if (message_unpack(exact, n, &out) != STATUS_PROTOCOL)
            fail_msg("%zu of %zu bytes are taken for a header", n, used);
        error_clear();
        free(exact);
    }
}

static void amplified_and_nested_bytes_are_refused_within_a_fixed_memory(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(2 * MESSAGE_HEADER_CAP);
    message_header out;
    static const struct {
        uint8_t unit[2];
        size_t count;
    } cases[] = {
        {{0x9A, 0x06}, MESSAGE_HEADER_CAP}, /* field 99 with 6 bytes, repeated: fields within fields */
        {{0x0A, 0x00}, MESSAGE_HEADER_CAP}, /* empty submessages */
        {{0x08, 0x01}, MESSAGE_HEADER_CAP}, /* the same field, repeated */
        {{0x0B, 0x0B}, MESSAGE_HEADER_CAP}, /* groups opened and never closed */
        {{0x08, 0x01}, 2 * MESSAGE_HEADER_CAP},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (size_t i = 0; i < cases[c].count; i++) bytes[i] = cases[c].unit[i % 2];
        assert_fails(message_unpack(bytes, cases[c].count, &out), STATUS_PROTOCOL, "header frame");
    }
    free(bytes);
}

static void the_digest_sees_every_bit_of_header_and_frames(void **state)
{
    (void)state;
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)i;
    const message_frame frames[] = {{data, 100}, {data + 100, 200}};
    uint64_t original = message_digest(&full, frames, 2);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(message_digest(&full, frames, 2) != original);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    const message_frame elsewhere[] = {{data, 101}, {data + 101, 199}}, swapped[] = {frames[1], frames[0]};
    assert_true(message_digest(&full, elsewhere, 2) != original);
    assert_true(message_digest(&full, swapped, 2) != original);
    assert_true(message_digest(&full, frames, 1) != original);
    enum { CHANGES = 22 };
    message_header h[CHANGES];
    for (int i = 0; i < CHANGES; i++) h[i] = full;
    h[0].kind--, h[1].sender--, h[2].sequence--, h[3].token--, h[4].frames--, h[5].step++, h[6].key--,
        h[7].offset++;
    h[8].count--, h[9].dtype--, h[10].flags--, h[11].integers[0]++, h[12].integers[1]--, h[13].integers[2]--;
    h[14].doubles[0] = 0.0, h[15].doubles[1] = 1e307;
    h[16].sent_ns++, h[17].ready_ns--, h[18].arrived_ns++, h[19].last_ns--, h[20].last_rank--,
        h[21].pushed_ns++;
    for (int i = 0; i < CHANGES; i++)
        if (message_digest(&h[i], frames, 2) == original) fail_msg("change %d goes unnoticed", i);
    assert_true(message_digest(&full, frames, 2) == original);
}

/* Checks that the digest of a message is the same on every processor. xxHash's portable code gave the
 * expected value. */
static void every_instruction_set_sums_alike(void **state)
{
    (void)state;
    static unsigned char data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)random_bits(3, i);
    static const size_t sizes[] = {0, 1, 3, 8, 16, 17, 128, 129, 240, 241, 1024, 4999};
    const message_header header = {.kind = MESSAGE_PUSH};
    uint64_t seed = message_digest(&header, NULL, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const message_frame frame = {data + 1, sizes[i]};
        assert_true(message_digest(&header, &frame, 1) == XXH3_64bits_withSeed(data + 1, sizes[i], seed));
    }
}

static void a_rendezvous_packet_survives_packing(void **state)
{
    (void)state;
    const rendezvous_packet in = {
        .kind = RENDEZVOUS_BYE,
        .protocol = UINT32_MAX,
        .program = "p",
        .token = 1,
        .config_hash = 2,
        .config_text = "a = 1\n",
        .rank = INT32_MIN,
        .world = INT32_MAX,
        .host = "h",
        .pid = 3,
        .sequence = 4,
        .call = "t",
        .root = -5,
        .timeout_ms = INT64_MIN,
        .code = STATUS_STOPPED,
        .text = "why",
        .blobs = 6,
    };
    uint8_t bytes[512];
    _Alignas(16) static unsigned char arena[RENDEZVOUS_ARENA_BYTES];
    rendezvous_packet out;
    assert_int_equal(rendezvous_pack(&in, bytes, 20), 0);
    assert_ok(rendezvous_unpack(bytes, rendezvous_pack(&in, bytes, sizeof bytes), arena, &out));
    assert_int_equal(out.kind, in.kind);
    assert_true(out.protocol == in.protocol && out.token == 1 && out.config_hash == 2 && out.pid == 3);
    assert_string_equal(out.program, "p");
    assert_string_equal(out.config_text, "a = 1\n");
    assert_string_equal(out.host, "h");
    assert_string_equal(out.call, "t");
    assert_string_equal(out.text, "why");
    assert_true(out.rank == INT32_MIN && out.world == INT32_MAX && out.root == -5 && out.blobs == 6);
    assert_true(out.timeout_ms == INT64_MIN && out.sequence == 4);
    assert_int_equal(out.code, STATUS_STOPPED);
    static const struct {
        const char *bytes;
        size_t count;
    } wrong[] = {{"", 0}, {"\x08\x00", 2}, {"\x08\x63", 2}, {"\x08\x01\x82\x01\x63", 5}, {"\x08", 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_fails(rendezvous_unpack(wrong[i].bytes, wrong[i].count, arena, &out), STATUS_PROTOCOL,
                     "rendezvous packet");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_survives_packing),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(every_truncation_of_a_header_is_refused),
        cmocka_unit_test(amplified_and_nested_bytes_are_refused_within_a_fixed_memory),
        cmocka_unit_test(the_digest_sees_every_bit_of_header_and_frames),
        cmocka_unit_test(every_instruction_set_sums_alike),
        cmocka_unit_test(a_rendezvous_packet_survives_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
