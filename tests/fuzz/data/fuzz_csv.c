/* Fuzzes the CSV decoder. If it accepts the data, values must be finite and labels must be allowed. */
#include "common/data/decoders.h"

#include <math.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    csv_table table;
    error_clear();
    if (csv_decode("f", bytes, size, &table) != STATUS_OK) return 0;
    for (int64_t i = 0; i < table.samples * table.features; i++)
        if (!isfinite(table.values[i])) __builtin_trap();
    for (int64_t i = 0; i < table.samples; i++)
        if (table.labels[i] >= table.classes) __builtin_trap();
    csv_free(&table);
    return 0;
}
