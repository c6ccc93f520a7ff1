/* watch/report_page.h - the parts of the report that never change: style and script. */
#ifndef WATCH_REPORT_PAGE_H
#define WATCH_REPORT_PAGE_H

extern const char report_head[];   /* up to the title's text     */
extern const char report_style[];  /* from </title> to the body  */
extern const char report_script[]; /* a cursor for the charts    */

#endif
