// The operator's first page: it is where an operator without an organization arrives, says that nothing needs
// attention or what does, links each figure to its page, and follows changes while its tab is visible. The home of
// a tenant shows the first jobs with the number of all.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  api, bearer, inOrg, jobIn, launchBrowser, openPage, settled, signIn, signUp, startBarePortal, startWorker,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, worker, operator, tenant, headers;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
  worker = await startWorker(portal, operator, 'pier-9', '1xH100-80GB');
  await operator('POST', '/operator/prices', { offering: 'h100-80gb', per_hour_micros: 3_600_000 });
  tenant = await signUp(portal.url, 'Longshore');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 90_000_000, memo: 'Welcome' });
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
});

const figure = (page, label) => page.locator('.stat').filter({ has: page.getByRole('link', { name: label, exact: true }) });
// The rail and the sheet of a phone have the same links.
const currentLinks = async (rail) => [...new Set(await rail.locator('[aria-current="page"]').allTextContents())];
const findings = (page) => page.getByRole('list', { name: 'Findings' });

test('an operator arrives at the overview, where nothing needs attention', async () => {
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto('/');
    await page.waitForURL((url) => url.pathname === '/operator');
    await settled(page);
    await page.getByRole('heading', { level: 1, name: 'Overview' }).waitFor();
    await page.getByText('Nothing needs attention', { exact: false }).waitFor();
    await figure(page, 'Ready nodes').getByText('1 of 1').waitFor();
    const capacity = page.getByRole('table', { name: 'Free capacity by board model' });
    await capacity.getByRole('row').filter({ hasText: 'H100-80GB' }).waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${wide} px too wide at ${viewport.width}`);
    assert.deepEqual(await axeFindings(page), []);
    assert.deepEqual(faults, []);
    await close();
  }
});

test('each figure leads to its page, and only the overview is the current link', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport: SIZES[0] });
  await page.goto('/operator');
  await settled(page);
  const rail = page.getByRole('navigation', { name: 'Main' });
  assert.deepEqual(await currentLinks(rail), ['Overview']);
  for (const [label, path] of [
    ['Ready nodes', '/operator/nodes'], ['Queued jobs', '/operator/jobs?state=queued'], ['Charges today', '/operator/orgs'],
  ]) {
    assert.equal(await figure(page, label).getByRole('link').getAttribute('href'), path);
  }
  await figure(page, 'Ready nodes').getByRole('link').click();
  await page.getByRole('heading', { level: 1, name: 'Nodes' }).waitFor();
  assert.deepEqual(await currentLinks(rail), ['Nodes']);
  assert.deepEqual(faults, []);
  await close();
});

test('a drain and a request appear by themselves, and a link keeps the focus', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport: SIZES[0] });
  await page.goto('/operator');
  await settled(page);
  const link = figure(page, 'Ready nodes').getByRole('link');
  await link.focus();
  const [node] = (await operator('GET', '/operator/nodes')).items;
  await operator('PUT', `/operator/nodes/${node.id}/drain`, { reason: 'new firmware' });
  const ask = { limits: { boards_milli: 8_000 }, reason: 'A sweep.' };
  const request = await tenant.api('POST', `/orgs/${tenant.org}/quota-requests`, ask);
  await findings(page).getByText('pier-9 (draining)').waitFor();
  await findings(page).getByRole('link', { name: '1 request for limits or credit' }).waitFor();
  await figure(page, 'Ready nodes').getByText('0 of 1').waitFor();
  assert.ok(await link.evaluate((element) => element === document.activeElement));
  await page.getByRole('table', { name: 'Latest changes' }).getByText('Drain started').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  await operator('POST', `/operator/quota-requests/${request.id}`, { grant: false });
  await operator('DELETE', `/operator/nodes/${node.id}/drain`);
  await page.getByText('Nothing needs attention', { exact: false }).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('nodes are found by state and name, and a board says how it is', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport: SIZES[0] });
  await page.goto('/operator/nodes?state=unreachable');
  await settled(page);
  await page.getByText('No nodes match the filter.').waitFor();
  await page.getByLabel('State').selectOption('ready');
  await page.getByLabel('Name', { exact: true }).fill('PIER');
  await page.getByRole('button', { name: 'Apply filter' }).click();
  await page.waitForURL(/name=PIER/);
  await settled(page);
  await page.getByRole('link', { name: 'pier-9', exact: true }).click();
  const card = page.locator('section.card').filter({ hasText: 'GPU 0 ·' });
  await card.getByText('healthy', { exact: true }).waitFor();
  await card.getByText('Temperature', { exact: true }).waitFor();
  await card.getByText('Health history').click();
  await card.getByText('No faults, checks or releases yet.').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  assert.deepEqual(faults, []);
  await close();
});

test('the home of a tenant shows the first jobs and the number of all', async () => {
  const submit = (name) =>
    tenant.api('POST', `/orgs/${tenant.org}/jobs`, {
      name, offering: 'h100-80gb', script: 'sleep 600', max_duration_s: 900,
    });
  const running = await submit('runs');
  await jobIn(tenant.api, tenant.org, running.id, ['running']);
  const waiting = [];
  for (let n = 0; n < 7; n += 1) waiting.push(await submit(`waits-${n}`));
  const { page, faults, close } = await openPage(browser, portal.url, { headers: tenant.headers, viewport: SIZES[0] });
  await page.goto('/');
  await settled(page);
  const queued = page.getByRole('table', { name: 'Queued jobs' }).getByRole('row');
  await queued.nth(1).waitFor();
  // The head and five jobs.
  assert.equal(await queued.count(), 6);
  const all = page.getByRole('link', { name: 'All 7', exact: true });
  assert.equal(await all.getAttribute('href'), inOrg(tenant.slug, '/jobs?state=queued'));
  await page.getByRole('link', { name: 'All 1', exact: true }).waitFor();
  await tenant.api('POST', `/orgs/${tenant.org}/jobs/${waiting[0].id}/cancel`);
  await page.getByRole('link', { name: 'All 6', exact: true }).waitFor();
  for (const job of [...waiting.slice(1), running]) await tenant.api('POST', `/orgs/${tenant.org}/jobs/${job.id}/cancel`);
  assert.deepEqual(faults, []);
  await close();
});
