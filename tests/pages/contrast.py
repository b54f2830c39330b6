"""Contrast of all text on a page, as WCAG 2 computes it: (lighter + 0.05) / (darker + 0.05) of relative luminances.

The colour of a text is blended with its opacity and with every background below it, up to the page itself. Text of a
picture (SVG) is filled; what it stands on is the picture's own paper, or the page where that is transparent.
"""

from __future__ import annotations

from typing import Any

LEAST = 4.5

CONTRAST = """(least) => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parse = text => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = 'rgba(0,0,0,0)'; canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => {
    const a = top[3] + below[3] * (1 - top[3]);
    if (a === 0) return [0, 0, 0, 0];
    const mix = k => (top[k] * top[3] + below[k] * below[3] * (1 - top[3])) / a;
    return [mix(0), mix(1), mix(2), a];
  };
  const luminance = colour => {
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = colour.slice(0, 3).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const dark = getComputedStyle(document.documentElement).colorScheme.includes('dark');
  const page = parse(dark ? '#121212' : '#ffffff');
  const ground = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      layers.push(parse(style.backgroundColor));
    }
    layers.push(page);
    return layers.reduceRight((below, top) => over(top, below));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.textContent.trim(), element = node.parentElement;
    if (!text || !element || ['SCRIPT', 'STYLE', 'TEMPLATE', 'NOSCRIPT', 'OPTION'].includes(element.tagName)) continue;
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 1 || box.height < 1 || element.closest(':disabled, [aria-hidden=true]')) continue;
    const style = getComputedStyle(element), svg = element.closest('svg') !== null;
    const ink = parse(svg ? style.fill : style.color);
    if (svg) ink[3] *= parseFloat(style.fillOpacity);
    for (let at = element; at; at = at.parentElement) ink[3] *= parseFloat(getComputedStyle(at).opacity);
    if (ink[3] === 0) continue;
    const below = ground(element), above = over(ink, below);
    const [low, high] = [luminance(above), luminance(below)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < least) {
      const where = element.tagName + '.' + (element.getAttribute('class') || '');
      found.push({text: text.slice(0, 60), ratio, ink: above.map(Math.round), ground: below.map(Math.round), where});
    }
  }
  return found;
}"""


def faint(tab: Any, least: float = LEAST) -> list[str]:
    """Every visible text of an open page whose contrast is below `least`: a sentence each, equal ones once."""
    rows = tab.evaluate(CONTRAST, least)
    sentences = (
        f"{row['ratio']:.2f} {row['where']} {row['ink'][:3]} on {row['ground'][:3]}: {row['text']!r}" for row in rows
    )
    return list(dict.fromkeys(sentences))
