// Pages are quick and quiet: a page loads its own part and few shared files, its requests go out together, a hidden
// tab is silent, and a page recovers from a failed load by itself.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, inOrg, launchBrowser, openPage, settled, signIn, signUp, startBarePortal, waitFor } from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
/** More files than this would wait for each other, because a browser has six connections for each portal. */
const MOST_FILES = 24;

let portal, browser, operator, tenant;
before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  operator = await signIn(portal.url, OPERATOR);
  tenant = await signUp(portal.url, 'Longshore');
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const rail = (page) => page.getByRole('navigation', { name: 'Main' });
const follow = (page, name) => rail(page).getByRole('link', { name, exact: true }).click();
const hydrated = (page) => page.getByRole('button', { name: 'Sign out' }).and(page.locator(':enabled')).first().waitFor();
const title = (page, name) => page.getByRole('heading', { level: 1, name }).waitFor();
/** The requests of a page for data: the addresses, and those without an answer. */
const calls = (page) => {
  const [urls, open] = [[], new Set()];
  page.on('request', (request) => {
    if (!/\/api\/v1\//.test(request.url())) return;
    urls.push(request.url());
    open.add(request);
  });
  for (const end of ['requestfinished', 'requestfailed']) page.on(end, (request) => open.delete(request));
  return { urls, open };
};

/** Says to the page that its tab is hidden or visible. */
const hide = (page, hidden) =>
  page.evaluate((now) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => now });
    document.dispatchEvent(new Event('visibilitychange', { bubbles: true }));
  }, hidden);

test('a page loads its own part, and few files', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers: tenant.headers });
  const modules = [];
  page.on('request', (request) => {
    const name = /\/pkg\/.*\/(\w+)\.wasm$/.exec(request.url())?.[1];
    if (name) modules.push(name);
  });
  const parts = () => modules.filter((name) => name.startsWith('split_'));
  await page.goto(inOrg(tenant.slug, '/team'));
  await hydrated(page);
  assert.deepEqual(parts(), ['split_team']);
  assert.ok(modules.length <= MOST_FILES, `${modules.length} modules: ${modules}`);
  await follow(page, 'Limits');
  await title(page, 'Limits');
  assert.deepEqual(parts(), ['split_team', 'split_limits']);
  assert.equal(new Set(modules).size, modules.length);
  assert.deepEqual(faults, []);
  await close();
});

test('the requests of a page go out together', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers: tenant.headers });
  await page.goto(inOrg(tenant.slug));
  await hydrated(page);
  const held = [];
  await page.route('**/api/v1/orgs/*/quota', (route) => held.push(route));
  const others = Promise.all([/\/quota-requests\?/, /\/api\/v1\/offerings/].map((url) => page.waitForRequest(url)));
  await follow(page, 'Limits');
  await others;
  await waitFor('the held request', () => held.length > 0);
  await Promise.all(held.map((route) => route.continue()));
  await page.unroute('**/api/v1/orgs/*/quota');
  await title(page, 'Limits');
  await settled(page);
  assert.deepEqual(faults, []);
  await close();
});

for (const path of ['/cluster', '/limits', '/billing', '/usage', '/invoices']) {
  test(`${path} is silent in a hidden tab, and current when the tab is shown`, async () => {
    const { page, faults, close } = await openPage(browser, portal.url, { headers: tenant.headers });
    const { urls, open } = calls(page);
    await page.clock.install();
    await page.goto(inOrg(tenant.slug, path));
    await hydrated(page);
    urls.length = 0;
    await page.clock.runFor(61_000);
    await waitFor('a refresh of the visible page', () => urls.length > 0);
    await hide(page, true);
    await waitFor('the answers to the visible page', () => open.size === 0);
    urls.length = 0;
    await page.clock.runFor(130_000);
    assert.deepEqual(urls, []);
    // With a standing clock, only the return of the tab can start a request.
    await page.clock.pauseAt((await page.evaluate(() => Date.now())) + 1_000);
    await hide(page, false);
    await waitFor('a refresh of the shown page', () => urls.length > 0);
    assert.deepEqual(faults, []);
    await close();
  });
}

test('an operator page loads again when the portal answers', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers: operator });
  await page.goto('/operator');
  await hydrated(page);
  await page.route('**/api/v1/operator/loops*', (route) => route.abort('connectionreset'));
  await follow(page, 'System');
  await page.getByText('The page loads again when the portal answers.').waitFor();
  await page.unroute('**/api/v1/operator/loops*');
  await page.getByRole('table').first().waitFor();
  assert.equal(await page.getByRole('alert').count(), 0);
  assert.deepEqual(faults.filter((fault) => !/Failed to load resource/.test(fault)), []);
  await close();
});
