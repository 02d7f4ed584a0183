// Checks of a page as it is drawn, shared by several tests. Each gives its findings in words.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** The page is drawn in its new colours: transitions are over. */
export const painted = (page) => page.evaluate(async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const transitions = document.getAnimations().filter((animation) => animation instanceof CSSTransition);
  await Promise.all(transitions.map((transition) => transition.finished.catch(() => {})));
});

/** The findings of axe of every impact, by all rules or by the named ones. */
export async function axeFindings(page, rules = null) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(AXE);
  // After a change of the theme an element can have the new colour on the old background for a frame.
  await painted(page);
  return page.evaluate(async (rules) => {
    const { violations } = await window.axe.run(document, { resultTypes: ['violations'], ...(rules && { runOnly: rules }) });
    const one = (node) => `${node.target.join(' ')} (${[...node.any, ...node.all, ...node.none][0]?.message})`;
    return violations.map((v) => `axe ${v.id}, ${v.impact}: ${v.nodes.slice(0, 3).map(one).join(', ')}`);
  }, rules);
}

/** A page that is wider than its window, with the first elements beyond its edge. */
export function widthFindings(page) {
  return page.evaluate(() => {
    const root = document.documentElement;
    if (root.scrollWidth <= window.innerWidth) return [];
    const out = [...document.body.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > window.innerWidth + 1);
    return [`${root.scrollWidth} px wide in ${window.innerWidth}: ${out.slice(0, 3).map((e) => `${e.localName}.${e.className}`)}`];
  });
}

/**
 * Texts that their box cuts off. A text that ends with an ellipsis shows that it goes on; a box of one pixel is for
 * readers of screens; fields scroll.
 */
export function cutFindings(page) {
  return page.evaluate(() => {
    const cuts = (overflow) => overflow === 'hidden' || overflow === 'clip';
    const isCut = (element) => {
      const style = getComputedStyle(element);
      const wide = cuts(style.overflowX) && element.scrollWidth > element.clientWidth + 1;
      const high = cuts(style.overflowY) && element.scrollHeight > element.clientHeight + 1;
      return (wide || high) && style.textOverflow !== 'ellipsis';
    };
    const drawn = '[aria-hidden="true"], canvas, svg, [role="img"], .tile, input, select, textarea';
    return [...document.body.querySelectorAll('*')]
      .filter((e) => e.clientWidth > 1 && e.clientHeight > 1 && !e.closest(drawn) && e.innerText?.trim() && isCut(e))
      .map((e) => `cut text in ${e.localName}.${e.className}: ${e.innerText.trim().slice(0, 40)}`);
  });
}

/**
 * Bars that stay in place over the content and together cover more than `share` of the height of the window. A column
 * beside the content covers nothing of it.
 */
export function barFindings(page, share) {
  return page.evaluate((share) => {
    const places = (element) => {
      const { top, bottom, left, right } = element.getBoundingClientRect();
      return { top: Math.max(0, top), bottom: Math.min(window.innerHeight, bottom), wide: right - left };
    };
    /** A sticky element that is where it would be anyway covers nothing. */
    const isStuck = (element) => {
      const before = element.getBoundingClientRect().top;
      element.style.position = 'relative';
      element.style.inset = 'auto';
      const after = element.getBoundingClientRect().top;
      element.style.position = '';
      element.style.inset = '';
      return Math.abs(before - after) > 1;
    };
    const bars = [...document.body.querySelectorAll('*')].filter((element) => {
      const { position, visibility } = getComputedStyle(element);
      if (visibility === 'hidden' || (position !== 'fixed' && position !== 'sticky')) return false;
      const { top, bottom, wide } = places(element);
      return bottom > top && wide > window.innerWidth / 2 && (position === 'fixed' || isStuck(element));
    });
    const rows = new Set();
    for (const { top, bottom } of bars.map(places)) {
      for (let y = Math.round(top); y < Math.round(bottom); y += 1) rows.add(y);
    }
    if (rows.size <= share * window.innerHeight) return [];
    return [`${rows.size} of ${window.innerHeight} px below ${bars.map((e) => `${e.localName}.${e.className}`)}`];
  }, share);
}
