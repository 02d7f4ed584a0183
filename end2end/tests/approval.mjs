// The approval of a new node: the form of its join token, the report beside the reason of its wait, the approval
// after a question, the labels and the dedication by the operator, and the removal of a stranger.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { api, bearer, launchBrowser, openPage, settled, signIn, startBarePortal, startWorker } from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, operator, headers, workers;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
  workers = [
    await startWorker(portal, operator, 'pier-1', '1xH100-80GB', {}),
    await startWorker(portal, operator, 'stranger', '1xA30', {}),
  ];
});
after(async () => {
  await browser?.close();
  for (const worker of workers ?? []) await worker.stop();
  await portal?.stop();
});

const button = (where, name) => where.getByRole('button', { name, exact: true });
const enabled = (locator) => locator.and(locator.page().locator(':enabled'));
const banner = (page, name) => page.locator('.banner').filter({ hasText: `${name} awaits your approval` });

async function check(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
  assert.deepEqual(await axeFindings(page), []);
}

async function open(viewport) {
  const view = await openPage(browser, portal.url, { headers, viewport });
  await view.page.goto('/operator/nodes');
  await settled(view.page);
  return view;
}

test('nodes that wait stand first with their reports, and the form of a join token has its errors', async () => {
  for (const viewport of SIZES) {
    const { page, faults, close } = await open(viewport);
    await banner(page, 'pier-1').getByText('It reports 1 × H100-80GB', { exact: false }).waitFor();
    await banner(page, 'stranger').getByText('Its join token has no approval.', { exact: false }).waitFor();
    await enabled(button(page, 'Add node')).click();
    await button(page, 'Create join token').click();
    await page.getByText('Enter 1 to 64 boards.').waitFor();
    await check(page);
    await page.getByRole('radio', { name: /^Approve any boards/ }).check();
    await button(page, 'Create join token').click();
    await page.getByText('Run this command on the GPU host.').waitFor();
    await check(page);
    assert.deepEqual(faults, []);
    await close();
  }
});

test('an approval needs an answer, and makes the node ready', async () => {
  const { page, faults, close } = await open(SIZES[0]);
  await enabled(button(page, 'Approve pier-1')).click();
  const dialog = page.getByRole('dialog', { name: 'Approve pier-1?' });
  await dialog.getByText('It reports 1 × H100-80GB', { exact: false }).waitFor();
  await button(dialog, 'Cancel').click();
  await dialog.waitFor({ state: 'hidden' });
  await button(page, 'Approve pier-1').click();
  await button(dialog, 'Approve').click();
  await banner(page, 'pier-1').waitFor({ state: 'detached' });
  await page.getByRole('row').filter({ hasText: 'pier-1' }).getByText('ready', { exact: true }).waitFor();
  const { items } = await operator('GET', '/operator/nodes?name=pier-1');
  assert.equal(items[0].state, 'ready');
  assert.deepEqual(faults, []);
  await close();
});

test('the operator sets the labels of a node', async () => {
  const { page, faults, close } = await open(SIZES[0]);
  await page.locator('summary').and(page.getByLabel('Actions of pier-1')).click();
  await enabled(button(page, 'Labels of pier-1')).click();
  const dialog = page.getByRole('dialog', { name: 'Labels of pier-1' });
  await dialog.getByRole('textbox', { name: 'Labels' }).fill('rack');
  await button(dialog, 'Save labels').click();
  await dialog.getByText('The line “rack” has no name or no value.', { exact: false }).waitFor();
  await dialog.getByRole('textbox', { name: 'Labels' }).fill('rack=r12\nrack=r13');
  await button(dialog, 'Save labels').click();
  await dialog.getByText('The label “rack” is there twice.').waitFor();
  await dialog.getByRole('textbox', { name: 'Labels' }).fill('rack=r12\nswitch=s1');
  await button(dialog, 'Save labels').click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByText('rack=r12').waitFor();
  const { items } = await operator('GET', '/operator/nodes?name=pier-1');
  assert.deepEqual(items[0].labels, { rack: 'r12', switch: 's1' });
  assert.deepEqual(faults, []);
  await close();
});

test('a certificate is revoked only after a question', async () => {
  const { page, faults, close } = await open(SIZES[0]);
  await page.locator('summary').and(page.getByLabel('Actions of pier-1')).click();
  await enabled(button(page, 'Certificate of pier-1')).click();
  const dialog = page.getByRole('dialog', { name: 'Certificate of pier-1', exact: true });
  await button(dialog, 'Create join token').click();
  await dialog.getByText("Run this command on the node's host.").waitFor();
  await button(dialog, 'Revoke certificate').click();
  const question = page.getByRole('dialog', { name: 'Revoke the certificate of pier-1?' });
  await question.getByText("Revocation ends the node's session at once.", { exact: false }).waitFor();
  assert.deepEqual(await axeFindings(page), []);
  await button(question, 'Keep certificate').click();
  await question.waitFor({ state: 'hidden' });
  await button(dialog, 'Close').click();
  await dialog.waitFor({ state: 'hidden' });
  const { items } = await operator('GET', '/operator/nodes?name=pier-1');
  assert.equal(items[0].state, 'ready', 'nothing is revoked');
  assert.deepEqual(faults, []);
  await close();
});

test('the operator dedicates a node, and the organization uses no others', async () => {
  const tenant = { name: 'Ada', email: 'ada@example.org', password: 'plover kettle seven drizzle', organization: 'Kelda Lab' };
  await api(portal.url, {})('POST', '/sign-up', tenant);
  for (const viewport of SIZES) {
    const { page, faults, close } = await open(viewport);
    await page.locator('summary').and(page.getByLabel('Actions of pier-1')).click();
    await enabled(button(page, 'Dedicate pier-1')).click();
    const dialog = page.getByRole('dialog', { name: 'Dedicate pier-1' });
    const org = dialog.getByRole('combobox', { name: 'Dedicated to' });
    await check(page);
    await org.fill('nobody');
    await button(dialog, 'Save').click();
    await dialog.getByText('No organization has this name or slug.', { exact: false }).waitFor();
    await org.fill('Kelda Lab');
    await button(dialog, 'Save').click();
    await dialog.waitFor({ state: 'hidden' });
    await page.getByText('Dedicated to Kelda Lab', { exact: true }).waitFor();
    await page.goto('/operator/orgs');
    await settled(page);
    await enabled(button(page, 'Nodes of Kelda Lab')).click();
    const nodes = page.getByRole('dialog', { name: 'Nodes of Kelda Lab' });
    await nodes.getByRole('link', { name: 'pier-1' }).waitFor();
    await nodes.getByRole('checkbox', { name: 'Own nodes only', exact: false }).check();
    await check(page);
    await button(nodes, 'Save').click();
    await page.getByText('Kelda Lab: 1 dedicated node, own nodes only.').waitFor();
    const { items } = await operator('GET', '/operator/nodes?name=pier-1');
    assert.equal(items[0].dedicated_to.name, 'Kelda Lab');
    assert.equal((await operator('GET', `/operator/orgs/${items[0].dedicated_to.org}/nodes`)).own_nodes_only, true);
    // The next width begins anew.
    await operator('PUT', `/operator/orgs/${items[0].dedicated_to.org}/nodes`, { own_nodes_only: false });
    await operator('PUT', `/operator/nodes/${items[0].id}/dedication`, {});
    assert.deepEqual(faults, []);
    await close();
  }
});

test('a stranger is removed after a question', async () => {
  const { page, faults, close } = await open(SIZES[1]);
  await enabled(button(page, 'Remove stranger')).click();
  const dialog = page.getByRole('dialog', { name: 'Remove stranger?' });
  await check(page);
  await button(dialog, 'Remove').click();
  await banner(page, 'stranger').waitFor({ state: 'detached' });
  const { items } = await operator('GET', '/operator/nodes');
  assert.deepEqual(items.map((node) => node.name), ['pier-1']);
  assert.deepEqual(faults, []);
  await close();
});
