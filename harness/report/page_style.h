/* Style and script of a report's page. */
#ifndef HARNESS_REPORT_PAGE_STYLE_H
#define HARNESS_REPORT_PAGE_STYLE_H

#include "common/base/text.h"

/* Appends the style of the figures to a page or to a figure's file: colors for light, dark and print. */
void page_figure_style(text_buffer *out);

extern const char page_style[];  /* style of the rest of the page */
extern const char page_script[]; /* shows the value of the mark at the pointer */
/* SHA-256 digests of both styles together and of the script, in base64, for the content security policy.
 * test_report.py compares them with a page, and prints the new digests after a change. */
#define PAGE_STYLE_DIGEST "5CV8FdWWFqEuewjKRk6V3DMCGz2FI172bC/69cTPRFg="
#define PAGE_SCRIPT_DIGEST "MvAM3DSgaqOZgN7oxVFP3VUBLtMUDB+BTSoL1ZNEsGc="

#endif
