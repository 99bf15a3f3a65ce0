/* Style and script of a report's page. */
#ifndef HARNESS_REPORT_PAGE_STYLE_H
#define HARNESS_REPORT_PAGE_STYLE_H

#include "common/base/text.h"

/* Of the figures: colors for light, dark and print; also in a figure's own file. */
void page_figure_style(text_buffer *out);

extern const char page_style[];  /* the rest of the page */
extern const char page_script[]; /* shows the values of what the pointer is on */

#endif
