// Measures the pages with boards and jobs of a portal with a thousand boards and 100,000 jobs. Prints one line of JSON
// with the figures of each page.
// usage: screens_bench.mjs PROGRAM, where the program is the built example `large`.
import { launchBrowser, openPage, settled, waitFor } from '../tests/harness.mjs';
import { BOARDS, PAGES, startFilledPortal, visit } from './large_portal.mjs';

const VIEWPORT = { width: 1440, height: 900 };
/** The time of the changes under which a page is watched. */
const WATCH_MS = 20_000;

/** Records the length of each long task of a page from its start. */
const watchTasks = (page) => page.addInitScript(() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: 'longtask', buffered: true });
});

/** The longest task since the last call in ms, 0 without a long one. The records come after the next frame. */
const longestTask = (page) => page.evaluate(async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return Math.max(0, ...window.tasks.splice(0));
});

/** The time since the begin of the load in ms, once the page shows its data and its controls work. */
async function usable(page, shows) {
  const time_ms = await page.waitForFunction((shows) => {
    const isAwake = [...document.querySelectorAll('.rail__foot button')].some((button) => !button.disabled);
    const isBusy = document.querySelector('main :is(.skeleton, [aria-busy="true"])') !== null;
    return isAwake && !isBusy && document.querySelector(shows) ? performance.now() : false;
  }, shows, { polling: 'raf' });
  return time_ms.jsonValue();
}

/** Counts the transferred bytes of finished answers; a stream has none before its end. */
async function countBytes(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  const count = { bytes: 0 };
  session.on('Network.loadingFinished', ({ encodedDataLength }) => (count.bytes += encodedDataLength));
  return count;
}

/** The memory of scripts, elements and buffers of a page in bytes, after a collection. */
async function memory(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize, embedderHeapUsedSize = 0, backingStorageSize = 0 } = await session.send('Runtime.getHeapUsage');
  return usedSize + embedderHeapUsedSize + backingStorageSize;
}

/** A new browser context without a cache, and the page of a person in it. */
async function open(browser, portal, headers) {
  const opened = await openPage(browser, portal.url, { headers, viewport: VIEWPORT });
  await watchTasks(opened.page);
  return { ...opened, count: await countBytes(opened.page) };
}

/** What a person does with the map: another colour, a filter, a walk, a board. */
async function useMap(page) {
  const boards = await page.locator('.boards .board').count();
  if (boards !== BOARDS) throw new Error(`the map has ${boards} boards`);
  const bottom_px = await page.evaluate(() => document.querySelector('.boards').getBoundingClientRect().bottom);
  await longestTask(page);
  await page.getByRole('radio', { name: 'By use' }).check();
  await page.waitForURL(/colour=use/);
  await page.getByRole('checkbox', { name: 'Your jobs' }).check();
  await waitFor('the filter', async () => (await page.locator('.boards .board--out').count()) > 0);
  await page.getByRole('link', { name: 'Clear filter' }).click();
  await waitFor('all boards', async () => (await page.locator('.boards .board--out').count()) === 0);
  await page.locator('#board-0').focus();
  for (let step = 0; step < 20; step += 1) await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').locator('.berth-bar--full').waitFor();
  return { bottom_px, use_task_ms: await longestTask(page) };
}

/** The bytes that a page adds to those of the first page of the same person; none for the first page itself. */
async function addedBytes(browser, portal, one) {
  const first = PAGES.find((page) => page.role === one.role);
  if (first === one) return {};
  const { path, headers } = visit(portal, first);
  const { page, count, close } = await open(browser, portal, headers);
  await page.goto(path);
  await usable(page, first.shows);
  const before = count.bytes;
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: one.link, exact: true }).click();
  // Until its part is loaded, the page before is still shown.
  await page.getByRole('heading', { level: 1, name: one.link, exact: true }).waitFor();
  await usable(page, one.shows);
  await close();
  return { added_bytes: count.bytes - before };
}

/** The figures of one page. */
async function measure(browser, portal, one) {
  const { path, headers } = visit(portal, one);
  const { page, count, faults, close } = await open(browser, portal, headers);
  await page.goto(path);
  await usable(page, one.shows);
  await settled(page);
  const first_bytes = count.bytes;
  // The first load compiles the module; a person has it in the cache.
  await page.goto(path);
  const usable_ms = await usable(page, one.shows);
  await settled(page);
  const load_task_ms = await longestTask(page);
  const elements = await page.evaluate(() => document.querySelectorAll('*').length);
  const stop = portal.change();
  await page.waitForTimeout(WATCH_MS);
  await stop();
  const task_ms = await longestTask(page);
  const memory_bytes = await memory(page);
  const map = one.name === 'cluster' ? await useMap(page) : {};
  if (faults.length) throw new Error(`${one.name}: ${faults.join('\n')}`);
  await close();
  const added = await addedBytes(browser, portal, one);
  return { usable_ms, elements, task_ms, load_task_ms, memory_bytes, first_bytes, ...added, ...map };
}

const [program] = process.argv.slice(2);
const portal = await startFilledPortal(program);
const browser = await launchBrowser();
try {
  const figures = {};
  for (const one of PAGES) figures[one.name] = await measure(browser, portal, one);
  const { org, headers } = portal.tenant;
  const answer = await fetch(`${portal.url}/api/v1/orgs/${org}/cluster`, { headers });
  figures.cluster.map_bytes = (await answer.arrayBuffer()).byteLength;
  console.log(JSON.stringify(figures));
} finally {
  await browser.close();
  await portal.stop();
}
