// Second factors as people use them: an app, its codes at the sign-in, recovery codes, and the identity check.
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { after, before, test } from 'node:test';
import { api, inOrg, launchBrowser, openPage, settled, signIn, signUp, someone, startClockedPortal } from './harness.mjs';

const STEP_MS = 30_000;
const OPERATOR = { name: 'Harbour master', email: 'harbour@example.org', password: 'lantern drizzle capstan quay' };
let portal, browser;
before(async () => {
  portal = await startClockedPortal();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const path = (page) => new URL(page.url()).pathname;

/** The code of a secret in base 32, so many steps after the present one (RFC 6238). */
function totp(secret, steps = 0) {
  const bits = [...secret].map((c) => 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(c).toString(2).padStart(5, '0')).join('');
  const key = Buffer.from(bits.match(/.{8}/g).map((byte) => parseInt(byte, 2)));
  const counter = Buffer.alloc(8);
  counter.writeBigUInt64BE(BigInt(Math.floor(portal.now() / STEP_MS) + steps));
  const mac = createHmac('sha1', key).update(counter).digest();
  const value = mac.readUInt32BE(mac[19] & 15) & 0x7fff_ffff;
  return `${value % 1_000_000}`.padStart(6, '0');
}

/** Adds an app by REST. */
async function enrol(person) {
  const { secret } = await person.api('POST', '/me/totp');
  const { codes } = await person.api('POST', '/me/totp/confirm', { code: totp(secret) });
  return { secret, codes };
}

/** Enters the password on the sign-in page, and waits for the field of the code. */
async function enterPassword(page, person) {
  const button = page.getByRole('button', { name: 'Sign in' });
  await awake(button);
  await page.getByRole('textbox', { name: 'E-mail' }).fill(person.email);
  await page.getByLabel('Password', { exact: true }).fill(person.password);
  await button.click();
  await page.locator('#code:focus').waitFor();
}

async function enterCode(page, code) {
  await page.locator('#code').fill(code);
  await page.getByRole('button', { name: 'Continue' }).click();
}

for (const width of [1440, 390]) {
  test(`an app is added, and the next sign-in asks for its code at ${width}`, async () => {
    const person = await signUp(portal.url);
    const viewport = { width, height: 900 };
    const { page, close } = await openPage(browser, portal.url, { headers: person.headers, viewport });
    await page.goto('/account');
    await settled(page);
    await page.getByRole('link', { name: 'Manage second factor' }).click();
    await page.waitForURL((url) => url.pathname === '/account/second-factors');
    const add = page.getByRole('button', { name: 'Add authenticator app' });
    await awake(add);
    await add.click();
    await page.locator('#totp-code:focus').waitFor();
    await page.getByRole('button', { name: 'Cancel' }).click();
    await page.locator('#begin-app:focus').waitFor();
    await add.click();
    const secret = await page.getByRole('group', { name: 'Secret of the app' }).locator('code').innerText();
    const image = page.getByRole('img', { name: 'QR code of the secret' });
    assert.ok(await image.evaluate((img) => img.decode().then(() => img.naturalWidth > 0)));
    await page.locator('#totp-code').fill('no code');
    await page.getByRole('button', { name: 'Confirm app' }).click();
    await page.locator('#totp-code[aria-invalid="true"]').waitFor();
    await page.locator('#totp-code').fill(totp(secret));
    await page.getByRole('button', { name: 'Confirm app' }).click();
    await page.getByText('Save the recovery codes now.').waitFor();
    await page.locator('#new-codes:focus').waitFor();
    const codes = await page.getByRole('list', { name: 'Recovery codes' }).getByRole('listitem').allInnerTexts();
    assert.equal(codes.length, 10);
    await page.reload();
    await settled(page);
    await page.getByText('10 recovery codes left.').waitFor();
    const content = await page.content();
    assert.ok(!content.includes(secret) && !content.includes(codes[0]), 'nothing is shown twice');
    const replace = page.getByRole('button', { name: 'Replace recovery codes' });
    await awake(replace);
    await replace.click();
    const dialog = page.getByRole('dialog', { name: 'Replace the recovery codes?' });
    await dialog.getByRole('button', { name: 'Keep codes' }).click();
    await dialog.waitFor({ state: 'hidden' });
    assert.equal(await page.locator('#new-codes').count(), 0, 'the codes are kept');
    await replace.click();
    await dialog.getByRole('button', { name: 'Replace codes' }).click();
    await page.locator('#new-codes:focus').waitFor();
    const fresh = await page.getByRole('list', { name: 'Recovery codes' }).getByRole('listitem').allInnerTexts();
    assert.equal(fresh.length, 10);
    assert.ok(!fresh.includes(codes[0]), 'the codes are new');
    await close();

    const other = await openPage(browser, portal.url, { viewport });
    await other.page.goto('/sign-in');
    await enterPassword(other.page, person);
    await enterCode(other.page, 'no code');
    await other.page.getByRole('alert').getByText(/code is wrong/).waitFor();
    assert.equal(path(other.page), '/sign-in');
    await enterCode(other.page, totp(secret, 1));
    await other.page.waitForURL((url) => url.pathname === inOrg(person.slug));
    await other.close();

    const third = await openPage(browser, portal.url, { viewport });
    await third.page.goto(inOrg(person.slug, '/jobs'));
    await third.page.waitForURL((url) => url.pathname === '/sign-in');
    await enterPassword(third.page, person);
    await enterCode(third.page, fresh[0]);
    await third.page.waitForURL((url) => url.pathname === inOrg(person.slug, '/jobs'));
    await third.close();
  });
}

test('an expired sign-in begins again with the password', async () => {
  const person = await signUp(portal.url);
  const { secret } = await enrol(person);
  const { page, close } = await openPage(browser, portal.url, { viewport: { width: 390, height: 844 } });
  await page.goto('/sign-in');
  await enterPassword(page, person);
  await page.getByRole('button', { name: 'Enter the password again' }).click();
  await page.locator('#email:focus').waitFor();
  assert.equal(await page.getByLabel('Password', { exact: true }).inputValue(), '', 'the password is gone');
  await enterPassword(page, person);
  await portal.forward(6 * 60);
  await enterCode(page, totp(secret));
  await page.getByRole('alert').getByText(/Enter the password again/).waitFor();
  await page.locator('#email:focus').waitFor();
  assert.equal(await page.getByLabel('Password', { exact: true }).inputValue(), '');
  await enterPassword(page, person);
  await enterCode(page, totp(secret));
  await page.waitForURL((url) => url.pathname === inOrg(person.slug));
  await close();
});

test('a step with consequences asks for a fresh proof, and then continues', async () => {
  const person = await signUp(portal.url);
  const { codes } = await enrol(person);
  await portal.forward(16 * 60);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  await page.goto(inOrg(person.slug, '/tokens'));
  await settled(page);
  const create = page.getByRole('button', { name: 'Create token' });
  await awake(create);
  await page.getByRole('textbox', { name: 'Name' }).fill('nightly');
  await create.click();
  const dialog = page.getByRole('dialog', { name: 'Identity check' });
  await page.locator('#proof-code:focus').waitFor();
  assert.equal(await page.locator('#proof-password').isVisible(), false, 'the password is no proof with an app');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await page.getByRole('alert').getByText('Confirmation required').waitFor();

  await create.click();
  await dialog.getByRole('textbox', { name: /^Code/ }).fill('no code');
  await dialog.getByRole('button', { name: 'Confirm' }).click();
  await dialog.getByText('Wrong code').waitFor();
  await dialog.getByRole('textbox', { name: /^Code/ }).fill(codes[0]);
  await dialog.getByRole('button', { name: 'Confirm' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByText('Copy the token now.').waitFor();
  const { items } = await person.api('GET', `/orgs/${person.org}/tokens`);
  assert.deepEqual(items.map((token) => token.name), ['nightly']);
  await close();
});

test('a person without an app proves the identity by the password', async () => {
  const person = await signUp(portal.url);
  await portal.forward(16 * 60);
  const { page, close } = await openPage(browser, portal.url, { headers: person.headers });
  await page.goto('/account/second-factors');
  await settled(page);
  const add = page.getByRole('button', { name: 'Add authenticator app' });
  await awake(add);
  await add.click();
  const dialog = page.getByRole('dialog', { name: 'Identity check' });
  await page.locator('#proof-password:focus').waitFor();
  await dialog.getByLabel('Your password').fill(person.password);
  await dialog.getByRole('button', { name: 'Confirm' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByRole('group', { name: 'Secret of the app' }).waitFor();
  await close();
});

test('an operator removes the second factor of a person who lost it', async () => {
  const person = await signUp(portal.url);
  await enrol(person);
  const headers = await signIn(portal.url, OPERATOR);
  const { page, close } = await openPage(browser, portal.url, { headers });
  await page.goto(`/operator/people?text=${encodeURIComponent(person.email)}`);
  await settled(page);
  const remove = page.getByRole('button', { name: `Remove second factor of ${person.name}` });
  await awake(remove);
  await remove.click();
  const dialog = page.getByRole('dialog', { name: `Remove the second factor of ${person.name}?` });
  await dialog.getByRole('button', { name: 'Remove second factor' }).click();
  await page.getByText(`${person.name}: second factor removed.`).waitFor();
  await remove.waitFor({ state: 'detached' });
  await close();
  await signIn(portal.url, person);
});

test('a member of an organization that requires a second factor adds one first', async () => {
  const owner = await signUp(portal.url);
  await enrol(owner);
  const { page, close } = await openPage(browser, portal.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  const save = page.getByRole('button', { name: 'Save', exact: true });
  await awake(save);
  const required = page.getByRole('checkbox', { name: 'Second factor required for all members' });
  await required.check();
  await save.click();
  const dialog = page.getByRole('dialog', { name: 'Require a second factor?' });
  await dialog.getByRole('button', { name: 'Keep present rule' }).click();
  await dialog.waitFor({ state: 'hidden' });
  const rule = () => owner.api('GET', `/orgs/${owner.org}/sign-in-policy`);
  assert.equal((await rule()).require_second_factor, false, 'a question comes first');
  await save.click();
  await dialog.getByRole('button', { name: 'Require second factor' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByText('Saved.').waitFor();
  assert.equal((await rule()).require_second_factor, true);
  assert.ok(await required.isChecked());
  await close();

  const member = someone();
  const { link } = await owner.api('POST', `/orgs/${owner.org}/invitations`, { email: member.email, role: 'member' });
  const token = link.split('#')[1];
  await api(portal.url, {})('POST', '/invitations/accept', { token, name: member.name, password: member.password });
  const headers = await signIn(portal.url, member);
  const opened = await openPage(browser, portal.url, { headers });
  await opened.page.goto(inOrg(owner.slug, '/jobs'));
  await opened.page.waitForURL((url) => url.pathname === '/account/second-factors');
  await settled(opened.page);
  const add = opened.page.getByRole('button', { name: 'Add authenticator app' });
  await awake(add);
  await add.click();
  const secret = await opened.page.getByRole('group', { name: 'Secret of the app' }).locator('code').innerText();
  await opened.page.locator('#totp-code').fill(totp(secret));
  await opened.page.getByRole('button', { name: 'Confirm app' }).click();
  await opened.page.getByText('Your second factor is active.').waitFor();
  // A page drawn again has no codes, and still leads on.
  await opened.page.locator('.brand:visible, .rail__brand:visible').first().click();
  await opened.page.locator('#new-codes').waitFor({ state: 'detached' });
  await opened.page.getByText('10 recovery codes left.').waitFor();
  await opened.page.getByText('Your second factor is active.').waitFor();
  await opened.page.getByRole('link', { name: 'Continue' }).click();
  await opened.page.waitForURL((url) => url.pathname === inOrg(owner.slug));
  await opened.close();
});
