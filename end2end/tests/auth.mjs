// Setting up, signing in and signing up, as people do it.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  bearer, inOrg, launchBrowser, openPage, settled, signUp, someone, startBarePortal, startDemo, waitFor,
} from './harness.mjs';

let demo, browser;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const email = (page) => page.getByRole('textbox', { name: 'E-mail' });
const password = (page) => page.getByLabel('Password', { exact: true });
// A form takes what is typed once its button is awake: before that the page is only drawn.
const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const enter = async (page, person) => {
  const button = page.getByRole('button', { name: 'Sign in' });
  await awake(button);
  await email(page).fill(person.email);
  await password(page).fill(person.password);
  await button.click();
};
const path = (page) => new URL(page.url()).pathname;

test('a link that a mail program cut says so at once', async () => {
  const { page, close } = await openPage(browser, demo.url);
  for (const link of ['/reset', '/verify', '/join']) {
    await page.goto(link);
    await page.getByText('The link is incomplete. Copy all of it from the mail.').waitFor();
    assert.equal(await page.getByRole('button', { name: /^(Set password|Verify address)$/ }).count(), 0, link);
  }
  await close();
});

test('a wrong password is said, and the address stays typed', async () => {
  const person = await signUp(demo.url);
  const { page, close } = await openPage(browser, demo.url);
  await page.goto('/sign-in');
  await enter(page, { ...person, password: 'not the password at all' });
  await page.getByRole('alert').getByText(/password/i).first().waitFor();
  assert.equal(await email(page).inputValue(), person.email);
  assert.equal(path(page), '/sign-in');
  await enter(page, person);
  await page.waitForURL((url) => url.pathname === inOrg(person.slug));
  await close();
});

test('who is not signed in is sent to sign in, and then to where they wanted', async () => {
  const person = await signUp(demo.url);
  const { page, close } = await openPage(browser, demo.url);
  await page.goto(inOrg(person.slug, '/billing'));
  await page.waitForURL((url) => url.pathname === '/sign-in');
  await enter(page, person);
  await page.waitForURL((url) => url.pathname === inOrg(person.slug, '/billing'));
  await page.getByRole('heading', { level: 1, name: 'Billing' }).waitFor();
  await close();
});

test('signing out ends it', async () => {
  const person = await signUp(demo.url);
  const { page, close } = await openPage(browser, demo.url, { headers: person.headers });
  await page.goto(inOrg(person.slug));
  await settled(page);
  await page.getByRole('button', { name: 'Sign out' }).first().click();
  await page.waitForURL((url) => url.pathname === '/sign-in');
  await page.goto(inOrg(person.slug, '/jobs'));
  await page.waitForURL((url) => url.pathname === '/sign-in');
  await close();
});

test('the sign-out clears the drafts of the tab', async () => {
  const person = await signUp(demo.url);
  const credit = { amount_micros: 20_000_000, memo: 'Welcome' };
  await bearer(demo.url, demo.operator.token)('POST', `/operator/orgs/${person.org}/credits`, credit);
  const { page, close } = await openPage(browser, demo.url, { headers: person.headers });
  const stored = () => page.evaluate(() => Object.values(sessionStorage).join('\n'));
  await page.goto(inOrg(person.slug, '/launch'));
  await awake(page.getByRole('button', { name: 'Launch job' }));
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('draft-of-grace');
  await waitFor('the draft to be stored', async () => (await stored()).includes('draft-of-grace'));
  // A change that is not stored yet at the sign-out is not stored after it.
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('last-draft-of-grace');
  await page.getByRole('button', { name: 'Sign out' }).first().click();
  await page.waitForURL((url) => url.pathname === '/sign-in');
  assert.equal(await stored(), '');
  await close();
});

test('an unknown page is a 404, signed in or not', async () => {
  const person = await signUp(demo.url);
  for (const headers of [undefined, person.headers]) {
    const { page, close } = await openPage(browser, demo.url, { headers });
    const answer = await page.goto('/no/such/page');
    assert.equal(answer.status(), 404);
    assert.match(await page.locator('h1').innerText(), /nothing|not found|no such|no page/i);
    await close();
  }
});

test('another organization’s job is a 404', async () => {
  const person = await signUp(demo.url);
  const { page, close } = await openPage(browser, demo.url, { headers: person.headers });
  const answer = await page.goto(inOrg(person.slug, '/jobs/job_01h455vb4pex5vsknk084sn02q'));
  assert.equal(answer.status(), 404);
  await close();
});

test('what is wrong with a sign-up stands at its field', async () => {
  const { page, close } = await openPage(browser, demo.url);
  await page.goto('/sign-up');
  const button = page.getByRole('button', { name: /create (account|organization)/i });
  await awake(button);
  const person = someone();
  await page.getByRole('textbox', { name: 'Your name' }).fill(person.name);
  await page.getByRole('textbox', { name: 'Organization' }).fill(person.organization);
  await email(page).fill(person.email);
  await password(page).fill('too short');
  await button.click();
  const field = page.getByLabel('Password', { exact: true });
  await page.locator('#password[aria-invalid="true"]').waitFor();
  const ids = (await field.getAttribute('aria-describedby')).split(' ');
  const said = await page.locator(ids.map((id) => `#${id}.field__error`).join(', ')).innerText();
  assert.match(said, /15 characters/);
  assert.equal(await email(page).getAttribute('aria-invalid'), null);
  assert.equal(await email(page).inputValue(), person.email);

  await password(page).fill(person.password);
  await button.click();
  await page.waitForURL((url) => !url.pathname.startsWith('/sign'));
  await close();
});

test('a new portal is set up with the token that it printed', async () => {
  const portal = await startBarePortal();
  try {
    const { page, close } = await openPage(browser, portal.url);
    await page.goto('/');
    await page.waitForURL((url) => url.pathname === '/setup');
    const button = page.getByRole('button', { name: 'Create operator' });
    await awake(button);
    const person = someone();
    await page.getByRole('textbox', { name: 'Setup token' }).fill('not the token');
    await page.getByRole('textbox', { name: 'Your name' }).fill(person.name);
    await email(page).fill(person.email);
    await password(page).fill(person.password);
    await button.click();
    await page.locator('#token[aria-invalid="true"]').waitFor();
    await page.getByRole('textbox', { name: 'Setup token' }).fill(portal.token);
    await button.click();
    await page.waitForURL((url) => url.pathname.startsWith('/operator'));
    await close();
  } finally {
    await portal.stop();
  }
});
