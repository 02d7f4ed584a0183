// Storage classes: the operator declares one and grants it; an owner makes a volume of it, which has no files in the
// portal and leaves its files on the nodes at its deletion.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { api, inOrg, launchBrowser, openPage, settled, signIn, signUp, startBarePortal } from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, headers, owner;
before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  owner = await signUp(portal.url, 'Kelda Lab');
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

async function check(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
  assert.deepEqual(await axeFindings(page), []);
}

async function open(path, who, viewport) {
  const view = await openPage(browser, portal.url, { headers: who, viewport });
  await view.page.goto(path);
  await settled(view.page);
  return view.page;
}

for (const viewport of SIZES) {
  test(`a class is declared, granted, used and taken back at ${viewport.width} px`, async () => {
    const page = await open('/operator/nodes', headers, viewport);
    await page.getByText('No storage classes yet.').waitFor();
    const declare = page.getByRole('button', { name: 'Declare class' });
    await awake(declare);
    await page.locator('#storage-class-name').fill('Scratch');
    await declare.click();
    await page.locator('#storage-class-name[aria-invalid="true"]').waitFor();
    await page.locator('#storage-class-name').fill('scratch');
    await declare.click();
    const table = page.getByRole('table', { name: 'Storage classes' });
    await table.getByText('no node yet').waitFor();
    const grant = page.getByRole('button', { name: 'Grant scratch' });
    await awake(grant);
    await grant.click();
    const dialog = page.getByRole('dialog', { name: 'Grant scratch' });
    await dialog.locator('#storage-class-org').fill('nobody-has-this');
    await dialog.getByRole('button', { name: 'Grant', exact: true }).click();
    await dialog.locator('#storage-class-org[aria-invalid="true"]').waitFor();
    await dialog.locator('#storage-class-org').fill(owner.slug);
    await dialog.getByRole('button', { name: 'Grant', exact: true }).click();
    await table.getByText('Kelda Lab').waitFor();
    await check(page);

    const own = await open(inOrg(owner.slug, '/volumes'), owner.headers, viewport);
    const create = own.getByRole('button', { name: 'Create volume' });
    await awake(create);
    await own.locator('#volume-name').fill('shared');
    await own.getByLabel('Place of the files').selectOption('scratch');
    await own.locator('#volume-size').waitFor({ state: 'hidden' });
    await create.click();
    const row = own.getByRole('row').filter({ hasText: 'shared' });
    await row.getByText('Storage class scratch').waitFor();
    await check(own);
    await own.getByRole('link', { name: 'shared', exact: true }).click();
    await own.getByText("on the nodes' shared file system scratch").waitFor();
    assert.equal(await own.getByRole('table').count(), 0, 'the portal knows no files of it');
    await check(own);

    await own.goto(inOrg(owner.slug, '/volumes'));
    await settled(own);
    const remove = own.getByRole('button', { name: 'Delete shared' });
    await awake(remove);
    await remove.click();
    await own.getByText('The files stay on the storage class scratch as vol_').waitFor();
    await own.getByRole('button', { name: 'Delete volume' }).click();
    await own.getByText('No volumes yet.').waitFor();

    await page.getByRole('button', { name: 'Revoke scratch for Kelda Lab' }).click();
    await table.getByText('none', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'Delete scratch' }).click();
    await page.getByRole('button', { name: 'Delete class' }).click();
    await page.getByText('No storage classes yet.').waitFor();
  });
}

test('the reserve for bursts is set on the page of the nodes', async () => {
  const page = await open('/operator/nodes', headers, SIZES[1]);
  const boards = page.locator('#reserve-boards');
  const save = page.getByRole('button', { name: 'Save reserve' });
  await awake(save);
  assert.equal(await boards.inputValue(), '0');
  await boards.fill('10001');
  await save.click();
  await page.locator('#reserve-boards[aria-invalid="true"]').waitFor();
  await boards.fill('4');
  await save.click();
  await page.getByText('Saved.').waitFor();
  await check(page);
  assert.deepEqual(await api(portal.url, headers)('GET', '/operator/inference-pool'), { reserve_boards: 4 });
});
