#include "harness/report/page_style.h"

#include <stddef.h>

/* Colors. Each color has one meaning in all figures. Colors other than the heat maps' have a contrast of 3 :
 * 1 on light and dark paper. Colors of one figure also differ for readers with protanopia, deuteranopia and
 * tritanopia, by at least 0.05 in Oklab (tests/commands/test_report_figures.py). `ink` is the color of text
 * on `color`, with a contrast of 4.5 : 1. */
static const struct {
    const char *name, *color, *ink;
} colors[] = {{"data", "#967d63", "#101418"},
              {"forward", "#5392d9", "#101418"},
              {"backward", "#2968ad", "#ffffff"},
              {"exposed", "#df6b1e", "#101418"},
              {"message", "#df6b1e", "#101418"},
              {"optimizer", "#826de8", "#101418"},
              {"other", "#908f93", "#101418"},
              {"parameters", "#596683", "#ffffff"},
              {"outputs", "#7992b7", "#101418"},
              {"replicas", "#974cc7", "#ffffff"},
              {"gathered", "#a98d59", "#101418"},
              {"ps", "#bc3b60", "#ffffff"},
              {"ps2", "#e1668b", "#101418"},
              {"ring", "#077a70", "#ffffff"},
              {"ring2", "#15a292", "#101418"},
              {"none", "#6f739b", "#ffffff"},
              {"none2", "#7f91b7", "#101418"},
              /* Colors of heat maps, from small to large values. */
              {"heat0", "#d6e6f4", "#101418"},
              {"heat1", "#abcfe5", "#101418"},
              {"heat2", "#7db3d8", "#101418"},
              {"heat3", "#5493d0", "#101418"},
              {"heat4", "#3a70b0", "#ffffff"},
              {"heat5", "#2a5a98", "#ffffff"},
              {"heat6", "#1c437a", "#ffffff"}};

static const char light[] =
    "--paper:#fcfcfa;--ink:#16191d;--muted:#5b6470;--line:#e4e4df;--alert:#b3261e;--warn:#8a4b00;"
    "--idle:#f1ead6;--idle-line:#a18736;--card:#f4f4f0;--t-ps:#a82f57;--t-ps2:#a82f57;--t-ring:#0a6e65;"
    "--t-ring2:#0a6e65;--t-none:#56606c;--t-none2:#56606c";
static const char dark[] =
    "--paper:#14181d;--ink:#e9ebee;--muted:#a3adb8;--line:#2b323a;--alert:#ff9d94;--warn:#f0b35a;"
    "--idle:#2b2a22;--idle-line:#ab9347;--card:#1b2027;--t-ps:#f08cab;--t-ps2:#f08cab;--t-ring:#4cc7b9;"
    "--t-ring2:#4cc7b9;--t-none:#b3bcc6;--t-none2:#b3bcc6";

void page_figure_style(text_buffer *out)
{
    text_append(out, ":root{%s}@media (prefers-color-scheme:dark){:root{%s}}@media print{:root{%s}}", light,
                dark, light);
    /* Texts ignore the pointer, so that the mark below a text receives the events of the pointer. */
    text_append(out, "svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,"
                     "sans-serif;font-variant-numeric:tabular-nums;fill:var(--ink);pointer-events:none}"
                     "svg .tick{font-size:11px;fill:var(--muted)}svg .strong{font-weight:600}"
                     "svg .heading{font-size:15px;font-weight:600}.paper{fill:var(--paper)}"
                     ".grid{stroke:var(--line)}.base{stroke:var(--muted)}"
                     ".ideal{stroke:var(--ink);stroke-width:2;stroke-dasharray:5 3}"
                     ".interval{stroke:var(--ink);stroke-width:1.5}.contour{stroke:#101418;stroke-width:1.5}"
                     ".halo{paint-order:stroke;stroke-width:5px;stroke-linejoin:round}"
                     ".excess{stroke:var(--alert);stroke-width:1.5}"
                     "svg .excess-label{font-size:11px;font-weight:600;fill:var(--alert)}"
                     ".idle-ground{fill:var(--idle)}.idle-line{fill:var(--idle-line)}"
                     "svg .on-waiting,svg .on-paper{paint-order:stroke;stroke:var(--paper);stroke-width:5px}"
                     ".mark rect{fill:none;stroke:var(--warn)}"
                     "svg .mark text{font-size:11px;font-weight:700;fill:var(--warn)}"
                     ".curve{fill:none;stroke-width:2;stroke-linejoin:round;pointer-events:none}"
                     ".curve.stroke-ps2,.curve.stroke-ring2,.curve.stroke-none2{stroke-dasharray:6 3}"
                     ".point{fill-opacity:0}.point:hover{fill-opacity:1}"
                     "rect[data-t]:hover{stroke:var(--ink);stroke-width:1.5}");
    for (size_t i = 0; i < sizeof colors / sizeof colors[0]; i++)
        text_append(out, ".%s{fill:%s}.stroke-%s{stroke:%s}svg .on-%s{fill:%s}", colors[i].name,
                    colors[i].color, colors[i].name, colors[i].color, colors[i].name, colors[i].ink);
    static const char *const engines[] = {"ps", "ps2", "ring", "ring2", "none", "none2"};
    for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++)
        text_append(out, "svg .ink-%s{font-weight:600;fill:var(--t-%s)}", engines[i], engines[i]);
}

const char page_style[] =
    ":root{color-scheme:light dark}*{box-sizing:border-box}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"
    "'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;font-variant-numeric:tabular-nums;"
    "overflow-wrap:anywhere;-webkit-text-size-adjust:100%}"
    "main{max-width:1104px;margin:0 auto;padding:56px 32px 72px}"
    ".eyebrow{margin:0 0 12px;font-size:13px;color:var(--muted)}"
    "h1{margin:0 0 16px;font-size:34px;line-height:1.2;font-weight:650;letter-spacing:-.01em;"
    "max-width:24em;text-wrap:balance}"
    "h2{margin:56px 0 4px;font-size:22px;line-height:1.3;font-weight:650}"
    "h3{margin:0 0 4px;font-size:17px;line-height:1.35;font-weight:650}"
    ".lead{margin:0 0 6px;font-size:17px;max-width:46em}"
    ".notice{margin:16px 0 0;padding:10px 14px;border-left:3px solid var(--warn);background:var(--card);"
    "font-size:14px;max-width:60em}.workload{margin:0;color:var(--muted);font-size:14px;max-width:60em}"
    ".figures{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));column-gap:40px;row-gap:56px;"
    "margin-top:40px}figure{margin:0;min-width:0;grid-column:span 2}figure.half{grid-column:span 1}"
    "figure svg{display:block;width:100%;height:auto;overflow:visible;margin:18px 0 6px}"
    "figure svg.narrow{display:none}"
    "figcaption{font-size:14px;line-height:1.45;color:var(--muted);max-width:54em}h3{color:var(--ink)}"
    "details{margin-top:8px;font-size:13px}"
    "summary{cursor:pointer;color:var(--muted);padding:4px 0;width:max-content;max-width:100%}"
    "summary:focus-visible{outline:2px solid var(--t-ring);outline-offset:3px;border-radius:2px}"
    ".scroll{overflow:auto;max-width:100%;max-height:420px}"
    "table{border-collapse:collapse;margin:6px 0;font-size:13px;overflow-wrap:normal}"
    "caption{text-align:left;color:var(--muted);padding-bottom:4px;white-space:normal}"
    "th,td{padding:4px 18px 4px 0;text-align:right;white-space:nowrap;border-bottom:1px solid "
    "var(--line);max-width:26em;overflow:hidden;text-overflow:ellipsis}"
    "th{font-weight:600;color:var(--muted)}"
    "th[scope=row],th:first-child,td.text{text-align:left;color:var(--ink)}"
    "pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;margin:6px 0;padding:14px;"
    "background:var(--card);border-radius:4px;overflow-wrap:normal}"
    "pre.command{white-space:pre-wrap;overflow-wrap:anywhere}"
    "pre.command span{display:inline-block;max-width:100%;white-space:pre-wrap}"
    "dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 20px;font-size:14px;"
    "margin:12px 0}dt{color:var(--muted)}dd{margin:0}"
    "#tip{position:fixed;z-index:9;max-width:300px;padding:6px 10px;border-radius:4px;"
    "background:var(--ink);color:var(--paper);font-size:13px;line-height:1.4;pointer-events:none}"
    "#tip[hidden]{display:none}@media (max-width:1000px){figure.half{grid-column:span 2}}"
    "@media (max-width:700px){main{padding:28px 16px 48px}h1{font-size:26px}.lead{font-size:16px}"
    ".figures{row-gap:44px}figure svg.narrow{display:block}figure svg.wide{display:none}"
    "dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:8px}}@media print{body{font-size:11pt}"
    "main{max-width:none;padding:0}.figures{display:block}figure{margin-bottom:24pt}"
    "figure.half svg.wide{max-width:500px}svg,tr{break-inside:avoid}figcaption,h2,h3{break-after:avoid}"
    "#tip,summary,details.text{display:none}"
    "details::details-content{content-visibility:visible;display:block}"
    ".scroll{overflow:visible;max-height:none}table{font-size:7.5pt;width:100%}"
    "th,td{white-space:normal;padding:2px 6px 2px 0;overflow:visible}"
    "figure svg.wide{display:block!important}figure svg.narrow{display:none!important}"
    "svg,svg *{print-color-adjust:exact;-webkit-print-color-adjust:exact}}";

const char page_script[] =
    "(function(){'use strict';var tip=document.getElementById('tip'),from=0;"
    "function show(e){var m=e.target.closest?e.target.closest('[data-t]'):null;if(!m){tip.hidden=true;"
    "return}tip.textContent=m.getAttribute('data-t');tip.hidden=false;from=window.scrollY;"
    "var w=document.documentElement.clientWidth,b=tip.getBoundingClientRect();"
    "tip.style.left=Math.max(8,Math.min(e.clientX+14,w-b.width-8))+'px';"
    "tip.style.top=(e.clientY-b.height-14>0?e.clientY-b.height-14:e.clientY+20)+'px'}"
    "document.addEventListener('pointermove',show);document.addEventListener('pointerdown',show);"
    "document.addEventListener('scroll',function(){if(window.scrollY!==from)tip.hidden=true}"
    ",{passive:true});"
    /* Opens all details for printing, if CSS does not. */
    "var shut=[];"
    "window.addEventListener('beforeprint',function(){"
    "shut=Array.from(document.querySelectorAll('details:not([open])'));"
    "shut.forEach(function(d){d.open=true})});"
    "window.addEventListener('afterprint',function(){shut.forEach(function(d){d.open=false});shut=[]})}"
    ")();";
