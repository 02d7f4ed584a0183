// Lists that the portal orders and filters, their requests as curl commands, and the documents for users.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { api, launchBrowser, openPage, settled, signIn, signUp, someone, startBarePortal } from './harness.mjs';

let portal, browser, alpha, beta, headers, page, faults;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  const person = someone();
  const { name, email, password } = person;
  await api(portal.url, {})('POST', '/setup', { token: portal.token, name, email, password });
  headers = await signIn(portal.url, person);
  alpha = await signUp(portal.url, 'Alpha');
  beta = await signUp(portal.url, 'Beta');
  const credit = (org, amount_micros) =>
    api(portal.url, headers)('POST', `/operator/orgs/${org}/credits`, { amount_micros, memo: 'Welcome' });
  await credit(alpha.org, 9_000_000);
  await credit(beta.org, 4_000_000);
  ({ page, faults } = await openPage(browser, portal.url, { headers, viewport: { width: 1440, height: 900 } }));
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const button = (name) => page.getByRole('button', { name, exact: true });
const names = async () => {
  const rows = page.getByRole('table', { name: 'Organizations' }).getByRole('rowheader');
  return (await rows.allInnerTexts()).map((text) => text.split('\n')[0]);
};

async function open(path) {
  await page.goto(path);
  await settled(page);
}

test('organizations are ordered and filtered, and the request is copied', async () => {
  await open('/operator/orgs?order_by=name');
  assert.deepEqual(await names(), [alpha.organization, beta.organization]);
  await page.getByLabel('Order by').selectOption('balance');
  await button('Apply filter').click();
  await page.waitForURL(/order_by=balance/);
  await settled(page);
  assert.deepEqual(await names(), [beta.organization, alpha.organization]);
  await page.getByLabel('Name', { exact: true }).fill('ALPHA');
  await button('Apply filter').click();
  await page.waitForURL(/name=ALPHA/);
  await settled(page);
  assert.deepEqual(await names(), [alpha.organization]);
  await page.getByText('Copy as curl', { exact: true }).first().click();
  const line = page.getByRole('group', { name: 'Organizations with curl' });
  const path = '/api/v1/operator/orgs?order_by=balance&sort=asc&name=ALPHA';
  await line.getByText(`curl '${portal.url}${path}'`, { exact: false }).waitFor();
  await page.getByLabel('Without credit').check();
  await button('Apply filter').click();
  await page.getByText('No organizations match.', { exact: false }).waitFor();
  await page.getByRole('link', { name: 'Clear filters' }).click();
  await page.getByRole('table', { name: 'Organizations' }).waitFor();
  assert.equal((await names()).length, 2);
  assert.deepEqual(faults.splice(0), []);
});

test('an organization is suggested while its name is typed, and an unknown one stops no jobs', async () => {
  await open('/operator/jobs');
  await button('Stop matching jobs').and(page.locator(':enabled')).waitFor();
  const field = page.locator('#jobs-org');
  await field.pressSequentially('bet');
  await page.locator(`#jobs-org-suggestions option[value="${beta.slug}"]`).waitFor({ state: 'attached' });
  assert.equal(await page.locator('#jobs-org-suggestions option').count(), 1);
  await field.fill(beta.slug);
  await button('Apply filter').click();
  await page.waitForURL((url) => url.searchParams.get('org') === beta.slug);
  await page.getByText('No jobs match the filter.').waitFor();
  await page.locator('.empty').getByRole('link', { name: 'Clear filters' }).waitFor();
  await page.getByText('Copy as curl', { exact: true }).click();
  await page.getByText(`operator/jobs?org=${beta.org}`, { exact: false }).waitFor();
  await open('/operator/jobs?org=nobody');
  await page.getByText('No organization or node has this name.', { exact: false }).waitFor();
  assert.equal(await button('Stop matching jobs').count(), 0);
  assert.deepEqual(faults.splice(0), []);
});

test('the documents are read with and without a session', async () => {
  await open('/operator/orgs');
  await page.locator('.rail__foot').getByRole('link', { name: 'Documentation' }).click();
  await page.waitForURL((url) => url.pathname === '/docs');
  await page.getByRole('link', { name: 'Volumes', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Volumes' }).waitFor();
  await page.getByRole('link', { name: 'all limits' }).click();
  await page.waitForURL((url) => url.pathname === '/docs/files' && url.hash === '#limits');
  assert.deepEqual(await axeFindings(page), []);

  await open('/operator/orgs');
  await button('Go to').and(page.locator(':enabled')).first().waitFor();
  await page.keyboard.press('Control+k');
  await page.getByRole('combobox', { name: 'Page, job, volume or action' }).waitFor();
  await page.keyboard.type('documentation');
  await page.keyboard.press('Enter');
  await page.waitForURL((url) => url.pathname === '/docs');
  assert.deepEqual(faults.splice(0), []);

  const visitor = await openPage(browser, portal.url, { javaScriptEnabled: false });
  assert.equal((await visitor.page.goto('/docs/billing')).status(), 200);
  assert.equal((await visitor.page.goto('/docs/glossary')).status(), 404);
  await visitor.close();
});
