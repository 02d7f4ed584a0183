// The network of jobs: named networks, the policy of an organization with the grant for the host network, and its
// display to members.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { api, bearer, inOrg, launchBrowser, openPage, settled, signIn, startBarePortal } from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const TENANT = { name: 'Ada', email: 'ada@example.org', password: 'plover kettle seven drizzle', organization: 'Kelda Lab' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, operator, headers, tenant;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  await api(portal.url, {})('POST', '/sign-up', TENANT);
  [headers, tenant] = [await signIn(portal.url, OPERATOR), await signIn(portal.url, TENANT)];
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const button = (where, name) => where.getByRole('button', { name, exact: true });
const enabled = (locator) => locator.and(locator.page().locator(':enabled'));
const networks = (page) => page.getByRole('table', { name: 'Named networks' });

async function check(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
  assert.deepEqual(await axeFindings(page), []);
}

test('a policy opens a named network, and the host network has a button of its own', async () => {
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto('/operator/orgs');
    await settled(page);
    await page.getByText('No named networks yet.', { exact: false }).waitFor();
    await page.getByRole('textbox', { name: 'Network name' }).fill('storage');
    await page.getByRole('textbox', { name: 'Ranges' }).fill('127.0.0.0/8');
    await enabled(button(page, 'Add network')).click();
    await page.locator('#network-ranges-error').getByText(/stay closed to all jobs/).waitFor();
    await page.getByRole('textbox', { name: 'Ranges' }).fill('10.8.0.0/16');
    await button(page, 'Add network').click();
    await networks(page).getByText('10.8.0.0/16').waitFor();
    await check(page);

    await enabled(button(page, 'Network of Kelda Lab')).click();
    const dialog = page.getByRole('dialog', { name: 'Network of Kelda Lab' });
    await dialog.getByRole('checkbox', { name: 'storage' }).check();
    await dialog.getByRole('checkbox', { name: /^Internet/ }).uncheck();
    await dialog.getByRole('checkbox', { name: /^Host network/ }).check();
    await check(page);
    await button(dialog, 'Save and grant host network').click();
    await dialog.waitFor({ state: 'hidden' });
    await page.getByText('Kelda Lab: storage, host network on request.').waitFor();
    const { items } = await operator('GET', '/operator/orgs');
    const org = items.map((item) => item.org).find((one) => one.name === 'Kelda Lab');
    const policy = await operator('GET', `/operator/orgs/${org.id}/egress-policy`);
    assert.deepEqual([policy.internet, policy.host_network], [false, true]);

    await page.reload();
    await settled(page);
    await enabled(button(networks(page), 'Remove storage')).click();
    const question = page.getByRole('dialog', { name: 'Remove storage?' });
    await check(page);
    await button(question, 'Remove network').click();
    await question.getByText('Remove the network from their policies first.', { exact: false }).waitFor();
    // The next width begins anew.
    await operator('PUT', `/operator/orgs/${org.id}/egress-policy`, { internet: true });
    await button(question, 'Remove network').click();
    await page.getByText('No named networks yet.', { exact: false }).waitFor();
    assert.deepEqual(faults.filter((fault) => !fault.includes('409') && !fault.includes('422')), []);
    await close();
  }
});

test('members see the policy beside their limits', async () => {
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers: tenant, viewport });
    await page.goto(inOrg('kelda-lab', '/limits'));
    await settled(page);
    const section = page.locator('section').filter({ has: page.getByRole('heading', { name: 'Network of jobs' }) });
    await section.getByText('open', { exact: true }).waitFor();
    await section.getByText('not granted').waitFor();
    await check(page);
    assert.deepEqual(faults, []);
    await close();
  }
});
