/* Compares the ledger of one step with figures that can be followed by hand, and with a plain recount. */
#include "common/memory/ledger.h"

#include "common/base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void peaks_name_their_phase_and_their_classes(void **context)
{
    (void)context;
    ledger l = {0};
    ledger_acquire(&l, LEDGER_PARAMETERS, 100, 128);
    ledger_enter(&l, LEDGER_PHASE_FORWARD);
    ledger_acquire(&l, LEDGER_ACTIVATIONS, 50, 64);
    ledger_acquire(&l, LEDGER_ACTIVATIONS, 30, 64);
    ledger_enter(&l, LEDGER_PHASE_BACKWARD);
    ledger_acquire(&l, LEDGER_GRADIENTS, 60, 60); /* Now 240 in total. */
    ledger_release(&l, LEDGER_ACTIVATIONS, 50, 64);
    ledger_acquire(&l, LEDGER_GRADIENTS, 40, 68); /* Now 230 in total. */
    ledger_enter(&l, LEDGER_PHASE_OPTIMIZER_STEP);
    ledger_release(&l, LEDGER_ACTIVATIONS, 30, 64);
    ledger_release(&l, LEDGER_GRADIENTS, 100, 128);
    ledger_enter(&l, LEDGER_PHASE_AFTER);

    assert_int_equal(l.total.current, 100);
    assert_int_equal(l.total.reserved_current, 128);
    assert_int_equal(l.total.peak, 240);
    assert_int_equal(l.total.peak_phase, LEDGER_PHASE_BACKWARD);
    /* This peak comes after the peak of the logical bytes. */
    assert_int_equal(l.total.reserved_peak, 128 + 64 + 60 + 68);
    assert_int_equal(l.peak_classes[LEDGER_PARAMETERS], 100);
    assert_int_equal(l.peak_classes[LEDGER_ACTIVATIONS], 80);
    assert_int_equal(l.peak_classes[LEDGER_GRADIENTS], 60);
    /* This peak comes after the peak of the total. */
    assert_int_equal(l.classes[LEDGER_GRADIENTS].peak, 100);
    assert_int_equal(l.classes[LEDGER_ACTIVATIONS].peak_phase, LEDGER_PHASE_FORWARD);

    assert_int_equal(l.phase_peak[LEDGER_PHASE_FORWARD], 180);
    assert_int_equal(l.phase_peak[LEDGER_PHASE_BACKWARD], 240);
    /* The bytes at the beginning of the phase. */
    assert_int_equal(l.phase_peak[LEDGER_PHASE_OPTIMIZER_STEP], 230);
    assert_int_equal(l.phase_peak_classes[LEDGER_PHASE_OPTIMIZER_STEP][LEDGER_GRADIENTS], 100);
    assert_int_equal(l.phase_peak[LEDGER_PHASE_AFTER], 100);
    assert_int_equal(l.phase_peak[LEDGER_PHASE_REDUCE], 0);
    assert_int_equal(l.phase_end[LEDGER_PHASE_SETUP], 100);
    assert_int_equal(l.phase_end[LEDGER_PHASE_FORWARD], 180);
    assert_int_equal(l.phase_end[LEDGER_PHASE_BACKWARD], 230);
    assert_int_equal(l.phase_end_classes[LEDGER_PHASE_BACKWARD][LEDGER_ACTIVATIONS], 30);
    assert_int_equal(l.phase_end[LEDGER_PHASE_OPTIMIZER_STEP], 100);
}

static void reset_forgets_what_was_before(void **context)
{
    (void)context;
    ledger l = {0};
    ledger_enter(&l, LEDGER_PHASE_FORWARD);
    ledger_acquire(&l, LEDGER_BATCH, 500, 512);
    ledger_release(&l, LEDGER_BATCH, 400, 412);
    ledger_enter(&l, LEDGER_PHASE_AFTER);
    ledger_reset_peaks(&l);
    assert_int_equal(l.total.peak, 100);
    assert_int_equal(l.total.reserved_peak, 100);
    assert_int_equal(l.total.peak_phase, LEDGER_PHASE_AFTER);
    assert_int_equal(l.classes[LEDGER_BATCH].peak, 100);
    assert_int_equal(l.peak_classes[LEDGER_BATCH], 100);
    assert_int_equal(l.phase_peak[LEDGER_PHASE_FORWARD], 0);
    assert_int_equal(l.phase_peak[LEDGER_PHASE_AFTER], 100);
    ledger_enter(&l, LEDGER_PHASE_FORWARD);
    ledger_acquire(&l, LEDGER_WORKSPACE, 10, 10);
    assert_int_equal(l.total.peak, 110);
    assert_int_equal(l.total.peak_phase, LEDGER_PHASE_FORWARD);
    assert_int_equal(l.peak_classes[LEDGER_WORKSPACE], 10);
}

static void equal_peak_keeps_the_earlier_phase(void **context)
{
    (void)context;
    ledger l = {0};
    ledger_enter(&l, LEDGER_PHASE_FORWARD);
    ledger_acquire(&l, LEDGER_ACTIVATIONS, 10, 10);
    ledger_release(&l, LEDGER_ACTIVATIONS, 10, 10);
    ledger_enter(&l, LEDGER_PHASE_BACKWARD);
    ledger_acquire(&l, LEDGER_ACTIVATIONS, 10, 10);
    assert_int_equal(l.total.peak_phase, LEDGER_PHASE_FORWARD);
}

/* Compares figures after random events with a recount that only tracks running maximums. */
static void figures_are_those_of_a_plain_recount(void **context)
{
    (void)context;
    uint64_t start = random_start(3, random_fnv1a64("ledger")), draw = 0;
    for (int round = 0; round < 50; round++) {
        ledger l = {0};
        int64_t current[LEDGER_CLASS_COUNT] = {0}, peak[LEDGER_CLASS_COUNT] = {0}, total = 0, total_peak = 0;
        int64_t phase_peak[LEDGER_PHASE_COUNT] = {0};
        int phase = LEDGER_PHASE_SETUP;
        for (int event = 0; event < 300; event++) {
            int c = (int)random_below(start, draw++, LEDGER_CLASS_COUNT);
            int64_t bytes = (int64_t)random_below(start, draw++, 1000);
            switch (random_below(start, draw++, 5)) {
            case 0:
                phase = (int)random_below(start, draw++, LEDGER_PHASE_COUNT);
                ledger_enter(&l, (ledger_phase)phase);
                break;
            case 1:
            case 2:
                bytes = bytes < current[c] ? bytes : current[c];
                ledger_release(&l, (ledger_class)c, bytes, bytes);
                current[c] -= bytes;
                total -= bytes;
                break;
            default:
                ledger_acquire(&l, (ledger_class)c, bytes, bytes);
                current[c] += bytes;
                total += bytes;
            }
            peak[c] = current[c] > peak[c] ? current[c] : peak[c];
            total_peak = total > total_peak ? total : total_peak;
            phase_peak[phase] = total > phase_peak[phase] ? total : phase_peak[phase];
        }
        assert_int_equal(l.total.current, total);
        assert_int_equal(l.total.peak, total_peak);
        int64_t sum = 0;
        for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
            assert_int_equal(l.classes[c].current, current[c]);
            assert_int_equal(l.classes[c].peak, peak[c]);
            sum += l.peak_classes[c];
        }
        assert_int_equal(sum, total_peak);
        for (int p = 0; p < LEDGER_PHASE_COUNT; p++) assert_int_equal(l.phase_peak[p], phase_peak[p]);
    }
}

static void process_figures_move_with_touched_memory(void **context)
{
    (void)context;
    enum { MORE = 32 << 20 };
    ledger_external before = ledger_measure_process();
    char *memory = malloc(MORE);
    assert_non_null(memory);
    memset(memory, 1, MORE);
    ledger_external after = ledger_measure_process();
    assert_true(memory[MORE / 2] == 1);
    free(memory);
    if (before.resident < 0) skip(); /* no /proc/self/smaps_rollup */
    assert_true(after.resident - before.resident > MORE / 2);
    assert_true(after.proportional <= after.resident);
}

static void names_are_those_of_the_reports(void **context)
{
    (void)context;
    assert_string_equal(ledger_class_name(LEDGER_OUTPUTS), "outputs_and_loss");
    assert_string_equal(ledger_phase_name(LEDGER_PHASE_SCATTER_GRADIENT), "scatter_output_gradient");
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) assert_non_null(ledger_class_name((ledger_class)c));
    for (int p = 0; p < LEDGER_PHASE_COUNT; p++) assert_non_null(ledger_phase_name((ledger_phase)p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_name_their_phase_and_their_classes),
        cmocka_unit_test(reset_forgets_what_was_before),
        cmocka_unit_test(equal_peak_keeps_the_earlier_phase),
        cmocka_unit_test(figures_are_those_of_a_plain_recount),
        cmocka_unit_test(process_figures_move_with_touched_memory),
        cmocka_unit_test(names_are_those_of_the_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
