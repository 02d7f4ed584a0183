// Measures the cluster page of a portal with a thousand boards and 100,000 jobs. Prints one line of JSON.
// usage: screens_bench.mjs PROGRAM, where the program is the built example `large`.
import { api, launchBrowser, openPage, settled, signIn, signUp, startLargePortal, waitFor } from '../tests/harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const VIEWPORT = { width: 1440, height: 900 };
const BOARDS = 1_000;

/** Records the length of each long task of a page from its start. */
const watchTasks = (page) => page.addInitScript(() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: 'longtask', buffered: true });
});

/** The longest task so far in ms, 0 without a long one. The records come after the next frame. */
const longestTask = (page) => page.evaluate(async () => {
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return Math.max(0, ...window.tasks);
});

/** The page after its load: ms until its controls work, the elements, and the height of the map. */
async function load(page) {
  await page.goto('/cluster');
  const usable_ms = await page.waitForFunction(() =>
    document.querySelector('#boards-model:enabled') && performance.now(), null, { polling: 'raf' });
  await settled(page);
  const boards = await page.locator('.boards .board').count();
  if (boards !== BOARDS) throw new Error(`the map has ${boards} boards`);
  return {
    usable_ms: await usable_ms.jsonValue(),
    elements: await page.evaluate(() => document.querySelectorAll('*').length),
    map_bottom_px: await page.evaluate(() => document.querySelector('.boards').getBoundingClientRect().bottom),
  };
}

/** What a person does with the map: another colour, a filter, a walk, a board. */
async function use(page) {
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
}

const [program] = process.argv.slice(2);
const portal = await startLargePortal(program);
const browser = await launchBrowser();
try {
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  const [tenant, other] = [await signUp(portal.url, 'Longshore'), await signUp(portal.url, 'Kelda')];
  await portal.fill(tenant.org, other.org);
  const headers = await signIn(portal.url, tenant);
  const answer = await fetch(`${portal.url}/api/v1/orgs/${tenant.org}/cluster`, { headers });
  const map_bytes = (await answer.arrayBuffer()).byteLength;
  const { page, faults } = await openPage(browser, portal.url, { headers, viewport: VIEWPORT });
  await watchTasks(page);
  // The first load compiles the module; a person has it in the cache.
  await load(page);
  const loaded = await load(page);
  const load_task_ms = await longestTask(page);
  await use(page);
  const longest_task_ms = await longestTask(page);
  if (faults.length) throw new Error(faults.join('\n'));
  console.log(JSON.stringify({ ...loaded, load_task_ms, longest_task_ms, map_bytes }));
} finally {
  await browser.close();
  await portal.stop();
}
