// People's own accounts: the password, a link by mail, the verification of an address, sessions, disabled and deleted
// accounts, at both widths.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { api, inOrg, launchBrowser, openPage, settled, signIn, signUp, startBarePortal, waitFor } from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];
const NEW_PASSWORD = 'violet anchor nine barometer';

let portal, browser, headers;
before(async () => {
  portal = await startBarePortal({ BERTH_VERIFY_EMAIL: 'true' });
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const path = (page) => new URL(page.url()).pathname;

/** The page and the secret of the link in the newest mail to an address with a link to this page. */
const linkTo = (email, page) => waitFor(`a mail to ${email} with /${page}`, () => {
  const outbox = join(portal.data, 'outbox');
  if (!existsSync(outbox)) return null;
  for (const name of readdirSync(outbox).filter((name) => name.endsWith('.eml'))) {
    const mail = readFileSync(join(outbox, name), 'utf8');
    const link = new RegExp(`/${page}#[\\w-]{43}`).exec(mail);
    if (mail.includes(`To: ${email}`) && link) return link[0];
  }
  return null;
});

async function holds(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
  assert.deepEqual(await axeFindings(page), []);
}

test('a link by mail verifies an address', async () => {
  const person = await signUp(portal.url);
  for (const viewport of SIZES) {
    const { page, close } = await openPage(browser, portal.url, { headers: person.headers, viewport });
    await page.goto('/account');
    await settled(page);
    await page.getByText('E-mail address not verified').waitFor();
    await holds(page);
    await close();
  }
  const { page, faults, close } = await openPage(browser, portal.url, { headers: person.headers });
  await page.goto(await linkTo(person.email, 'verify'));
  const verify = page.getByRole('button', { name: 'Verify address' });
  await awake(verify);
  await verify.click();
  await page.getByRole('heading', { name: 'Your address is verified' }).waitFor();
  await page.getByText(person.email).waitFor();
  await page.getByRole('button', { name: 'Open Berth' }).click();
  await page.waitForURL((url) => url.pathname === inOrg(person.slug));
  await settled(page);
  assert.equal(await page.getByText('E-mail address not verified').count(), 0);
  await page.goto('/account');
  await page.getByText(/^verified on/).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('a person changes the own name', async () => {
  const person = await signUp(portal.url);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  await page.goto('/account');
  await settled(page);
  const save = page.getByRole('button', { name: 'Save name' });
  await awake(save);
  const name = page.getByRole('textbox', { name: 'Your name' });
  assert.equal(await name.inputValue(), person.name);
  await name.fill(' ');
  await save.click();
  await page.locator('#name[aria-invalid="true"]').waitFor();
  await name.fill(' Ada King ');
  await save.click();
  await page.getByText('Name saved.').waitFor();
  assert.equal(await name.inputValue(), 'Ada King');
  const link = page.getByRole('link', { name: 'Your account: Ada King' });
  await link.waitFor();
  await page.reload();
  await link.waitFor();
  assert.equal((await api(portal.url, person.headers)('GET', '/me')).user.name, 'Ada King');
  await close();
});

test('a changed password ends the other sessions', async () => {
  const person = await signUp(portal.url);
  const other = await signIn(portal.url, person);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  await page.goto('/account');
  await settled(page);
  const change = page.getByRole('button', { name: 'Change password' });
  await awake(change);
  await page.getByLabel('Current password').fill('not the password at all');
  await page.getByLabel('New password').fill(NEW_PASSWORD);
  await change.click();
  await page.locator('#current-password[aria-invalid="true"]').waitFor();
  await page.getByLabel('Current password').fill(person.password);
  await change.click();
  await page.getByText('Password changed. Ended: 1 other session.').waitFor();
  assert.equal(await page.getByLabel('New password').inputValue(), '');
  const sessions = page.getByRole('table', { name: 'Sessions, newest first' });
  await waitFor('the end of the other session in the list', async () => (await sessions.getByRole('row').count()) === 2);
  await sessions.getByText('this browser').waitFor();
  await assert.rejects(api(portal.url, other)('GET', '/me'), /401/);
  await api(portal.url, person.headers)('GET', '/me');
  await signIn(portal.url, { ...person, password: NEW_PASSWORD });
  await close();
});

test('sessions end one by one and all at once', async () => {
  const person = await signUp(portal.url);
  const other = await signIn(portal.url, person);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  await page.goto('/account');
  await settled(page);
  const sessions = page.getByRole('table', { name: 'Sessions, newest first' });
  assert.equal(await sessions.getByRole('row').count(), 3, 'the head and two sessions');
  await sessions.getByText('this browser').waitFor();
  const end = sessions.getByRole('button', { name: /^End session of/ });
  await awake(end);
  await end.click();
  const question = page.getByRole('dialog', { name: /^End session of .+\?$/ });
  await question.getByRole('button', { name: 'Keep session' }).click();
  await question.waitFor({ state: 'hidden' });
  await api(portal.url, other)('GET', '/me');
  await end.click();
  await question.getByRole('button', { name: 'End session' }).click();
  await page.getByText(/^Session ended:/).waitFor();
  assert.equal(await sessions.getByRole('row').count(), 2);
  await assert.rejects(api(portal.url, other)('GET', '/me'), /401/);

  await page.getByRole('button', { name: 'Sign out everywhere' }).first().click();
  const dialog = page.getByRole('dialog', { name: 'Sign out everywhere?' });
  await dialog.getByRole('button', { name: 'Stay signed in' }).click();
  assert.equal(path(page), '/account');
  await page.getByRole('button', { name: 'Sign out everywhere' }).first().click();
  await dialog.getByRole('button', { name: 'Sign out everywhere' }).click();
  await page.waitForURL((url) => url.pathname === '/sign-in');
  await assert.rejects(api(portal.url, person.headers)('GET', '/me'), /401/);
  await close();
});

test('a link by mail sets a new password', async () => {
  const person = await signUp(portal.url);
  const { page, close } = await openPage(browser, portal.url, { viewport: SIZES[1] });
  const asked = [];
  page.on('request', (request) => asked.push(`${request.url()} ${request.headers().referer ?? ''}`));
  await page.goto('/sign-in');
  await settled(page);
  await page.getByRole('link', { name: 'Set a new password by mail' }).click();
  await page.waitForURL((url) => url.pathname === '/forgot');
  const send = page.getByRole('button', { name: 'Send link' });
  await awake(send);
  await page.getByRole('textbox', { name: 'E-mail' }).fill(person.email);
  await send.click();
  await page.getByRole('heading', { name: 'Link requested' }).waitFor();
  await page.locator('#link-requested:focus').waitFor();
  await page.getByRole('button', { name: 'Use another address' }).click();
  await page.locator('#email:focus').waitFor();
  const link = await linkTo(person.email, 'reset');
  await page.goto(link);
  const set = page.getByRole('button', { name: 'Set password' });
  await awake(set);
  await page.getByLabel('Password', { exact: true }).fill('too short');
  await set.click();
  await page.locator('#password[aria-invalid="true"]').waitFor();
  await page.getByLabel('Password', { exact: true }).fill(NEW_PASSWORD);
  await set.click();
  await page.getByRole('heading', { name: 'Password set' }).waitFor();
  await holds(page);
  await assert.rejects(api(portal.url, person.headers)('GET', '/me'), /401/);
  await signIn(portal.url, { ...person, password: NEW_PASSWORD });
  assert.deepEqual(asked.filter((line) => line.includes(link.split('#')[1])), [], 'the secret was in no address');

  // The link works once.
  await page.goto('/sign-in');
  await page.goto(link);
  await awake(set);
  await page.getByLabel('Password', { exact: true }).fill(person.password);
  await set.click();
  await page.getByRole('alert').getByText(/not valid/).first().waitFor();
  await close();
});

test('an operator disables and enables an account', async () => {
  const person = await signUp(portal.url);
  const { page, close } = await openPage(browser, portal.url, { headers });
  await page.goto(`/operator/people?text=${encodeURIComponent(person.email)}`);
  await settled(page);
  await holds(page);
  const row = page.getByRole('row').filter({ hasText: person.email });
  await row.getByText('e-mail not verified').waitFor();
  const disable = row.getByRole('button', { name: `Disable ${person.name}` });
  await awake(disable);
  await disable.click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Disable account' }).click();
  await dialog.locator('#disable-reason[aria-invalid="true"]').waitFor();
  await dialog.getByLabel('Reason').fill('Unpaid invoices.');
  await dialog.getByRole('button', { name: 'Disable account' }).click();
  await row.getByText('disabled: Unpaid invoices.').waitFor();
  await assert.rejects(api(portal.url, person.headers)('GET', '/me'), /401/);

  const far = await openPage(browser, portal.url);
  await far.page.goto('/sign-in');
  const button = far.page.getByRole('button', { name: 'Sign in' });
  await awake(button);
  await far.page.getByRole('textbox', { name: 'E-mail' }).fill(person.email);
  await far.page.getByLabel('Password', { exact: true }).fill(person.password);
  await button.click();
  await far.page.getByRole('alert').getByText(/Unpaid invoices/).first().waitFor();
  await far.close();

  await row.getByRole('button', { name: `Enable ${person.name}` }).click();
  await row.getByText('e-mail not verified').waitFor();
  await signIn(portal.url, person);
  await close();
});

test('a person deletes the account', async () => {
  const person = await signUp(portal.url);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers, viewport: SIZES[1] });
  await page.goto('/account');
  await settled(page);
  const open = page.getByRole('button', { name: 'Delete account' }).first();
  await awake(open);
  await open.click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Password', { exact: true }).fill(person.password);
  await dialog.getByRole('button', { name: 'Delete account' }).click();
  await page.waitForURL((url) => url.pathname === '/sign-in');
  await assert.rejects(signIn(portal.url, person), /401/);
  await close();
});
