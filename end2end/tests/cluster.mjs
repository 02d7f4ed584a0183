// The cluster as a map and as a table: keyboard, details of a board, filters in the address, the states of nodes, and
// requests without an answer while nothing changes.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  bearer, boardsFree, jobIn, launchBrowser, openPage, settled, signIn, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';

let demo, browser, call, operator, headers, node, page, faults;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  call = bearer(demo.url, demo.tenant.token);
  operator = bearer(demo.url, demo.operator.token);
  [node] = (await operator('GET', '/operator/nodes')).items;
  headers = await signIn(demo.url, demo.tenant);
  ({ page, faults } = await openPage(browser, demo.url, { headers, viewport: { width: 1440, height: 900 } }));
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const boards = (where = page) => where.locator('.boards .board');
const shown = (where = page) => where.locator('.boards .board:not(.board--out)');
const panel = (where = page) => where.getByRole('dialog');
const focusedId = () => page.evaluate(() => document.activeElement?.id);

/** The page, awake. */
async function open(path, where = page) {
  await where.goto(path);
  await settled(where);
  await where.locator('#boards-model:enabled').waitFor();
}

async function submit(name) {
  const body = { name, offering: SLICE, script: 'sleep 600', max_duration_s: 900 };
  const { id } = await call('POST', `/orgs/${demo.tenant.organization}/jobs`, body);
  await jobIn(call, demo.tenant.organization, id, ['running']);
  return id;
}

test('a board has an edge in forced colours', async () => {
  await open('/cluster');
  await page.emulateMedia({ forcedColors: 'active' });
  const edge = await boards().first().evaluate((board) => {
    const { outlineStyle, outlineWidth } = getComputedStyle(board);
    return `${outlineStyle} ${outlineWidth}`;
  });
  assert.equal(edge, 'solid 1px');
  await page.emulateMedia({ forcedColors: 'none' });
});

test('the map has one element for each board, and the keyboard walks over them', async () => {
  await open('/cluster');
  assert.equal(await boards().count(), node.gpus.length);
  assert.match(await boards().first().getAttribute('title'), new RegExp(`^${node.name}, GPU 0: `));
  await boards().first().focus();
  await page.keyboard.press('ArrowRight');
  assert.equal(await focusedId(), 'board-1');
  await page.keyboard.press('End');
  assert.equal(await focusedId(), `board-${node.gpus.length - 1}`);
  await page.keyboard.press('Home');
  assert.equal(await focusedId(), 'board-0');
  assert.equal(await page.locator('.boards [tabindex="0"]').count(), 1, 'one stop of the Tab key');
});

test('a board opens beside the map, which does not move, and closes with Escape', async () => {
  const map = page.locator('.boards');
  const before = await map.boundingBox();
  await boards().first().focus();
  await page.keyboard.press('Enter');
  await panel().getByRole('heading', { name: `${node.name}, GPU 0` }).waitFor();
  await panel().locator('.berth-bar--full').waitFor();
  await panel().getByText(/^free: 1 whole board or 7 × 1g\.10gb or /).waitFor();
  assert.deepEqual(await map.boundingBox(), before);
  assert.deepEqual(await axeFindings(page), []);
  await page.keyboard.press('Escape');
  await panel().waitFor({ state: 'detached' });
  assert.equal(await focusedId(), 'board-0');
});

test('a change of one board keeps the focus, and shows the own job in map and panel', async () => {
  await boards().last().focus();
  const focused = await focusedId();
  const element = await boards().first().elementHandle();
  const job = await submit('sits-on-a-slice');
  try {
    await page.locator('.boards .board--own').waitFor();
    assert.equal(await focusedId(), focused);
    assert.ok(await element.evaluate((board) => board.isConnected), 'no board is built anew');
    await page.locator('.boards .board--own').click();
    await panel().getByRole('link', { name: 'sits-on-a-slice' }).waitFor();
    await panel().getByRole('button', { name: 'Close' }).click();
    await panel().waitFor({ state: 'detached' });
    await page.getByText(/^H100.*: 0 of 2 boards in use, 1 partly free; 1 board free, or 13 slices of 1g\.10gb; largest free slice 4g\.40gb$/).waitFor();
  } finally {
    await call('POST', `/orgs/${demo.tenant.organization}/jobs/${job}/cancel`);
    await boardsFree(operator);
  }
});

test('an unchanged map is not sent again, and a hidden tab asks for nothing', async () => {
  await open('/cluster');
  const answers = [];
  const count = (response) => {
    if (response.url().endsWith('/cluster') && response.url().includes('/api/')) answers.push(response.status());
  };
  page.on('response', count);
  await waitFor('three answers', () => answers.length >= 3);
  page.off('response', count);
  assert.deepEqual([...new Set(answers.slice(1))], [304]);
  // Playwright shows every page, so the page itself answers that it is hidden, and counts the questions.
  await page.evaluate(() => {
    window.asked = 0;
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => (window.asked += 1) > 0 });
  });
  let requests = 0;
  page.on('request', (request) => (requests += request.url().includes('/api/') ? 1 : 0));
  await page.waitForFunction(() => window.asked >= 3);
  assert.equal(requests, 0);
});

test('the filter is in the address, and hides boards', async () => {
  await open('/cluster');
  await page.getByLabel('Model').selectOption({ label: 'A30-24GB' });
  await page.waitForURL(/\/cluster\?model=A30-24GB$/);
  await waitFor('one board', async () => (await shown().count()) === 1);
  await page.getByText(`1 of ${node.gpus.length} boards match the filter.`).waitFor();
  await page.getByRole('link', { name: 'Clear filter' }).click();
  await page.waitForURL(/\/cluster$/);
  await waitFor('all boards', async () => (await shown().count()) === node.gpus.length);
  assert.equal(await page.getByLabel('Model').inputValue(), '');
  await open('/cluster?fits=1g.6gb&colour=use');
  assert.equal(await shown().count(), 1);
  assert.equal(await boards().first().evaluate((board) => board.classList.contains('board--used')), true);
  await page.getByRole('checkbox', { name: 'Your jobs' }).check();
  await page.getByText(`0 of ${node.gpus.length} boards match the filter.`).waitFor();
});

test('the table has the same boards in words, filtered and in both orders', async () => {
  await open('/cluster');
  await page.getByRole('link', { name: 'Table', exact: true }).click();
  const rows = page.locator('tbody tr');
  await waitFor('a row for each board', async () => (await rows.count()) === node.gpus.length);
  await rows.first().getByText('1 whole board or 7 × 1g.10gb or', { exact: false }).waitFor();
  await page.getByRole('radio', { name: 'Z–A' }).check();
  await page.waitForURL(/view=table&sort=desc/);
  await rows.first().getByRole('button', { name: `${node.name}, GPU ${node.gpus.length - 1}` }).click();
  await panel().getByRole('heading', { name: `${node.name}, GPU ${node.gpus.length - 1}` }).waitFor();
  await page.keyboard.press('Escape');
  await panel().waitFor({ state: 'detached' });
  assert.match(await focusedId(), /^row-GPU-/);
  assert.deepEqual(await axeFindings(page), []);
});

test('a node says draining in a drain, and cordoned only with a cordon', async () => {
  await open('/cluster');
  const name = () => page.locator('.boards__node').getAttribute('data-name');
  const drain = `/operator/nodes/${node.id}/drain`;
  await operator('PUT', drain, { reason: 'a new power supply' });
  try {
    await waitFor('the drain', async () => (await name()) === `${node.name} (draining)`);
    assert.equal(await page.locator('.boards .board--draining').count(), node.gpus.length);
    await operator('DELETE', drain);
    await operator('PATCH', `/operator/nodes/${node.id}`, { cordoned: true });
    await waitFor('the cordon', async () => (await name()) === `${node.name} (cordoned)`);
  } finally {
    await operator('PATCH', `/operator/nodes/${node.id}`, { cordoned: false });
  }
  await waitFor('the open node', async () => (await name()) === node.name);
});

test('a phone has the same map, and the panel below it', async () => {
  const phone = await openPage(browser, demo.url, { headers, viewport: { width: 390, height: 844 }, colorScheme: 'dark' });
  await open('/cluster', phone.page);
  assert.equal(await boards(phone.page).count(), node.gpus.length);
  await boards(phone.page).first().click();
  await panel(phone.page).locator('.berth-bar--full').waitFor();
  const width = await phone.page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 390, `${width} px wide`);
  assert.deepEqual(await axeFindings(phone.page), []);
  assert.deepEqual(phone.faults, []);
  await phone.close();
});

test('nothing went wrong in the browser on the way', () => assert.deepEqual(faults, []));
