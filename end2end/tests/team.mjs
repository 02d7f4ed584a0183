// A team as people make one: inviting, joining, another role, leaving nothing behind.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, settled, signUp, someone, startDemo } from './harness.mjs';

let demo, browser;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const path = (page) => new URL(page.url()).pathname;
const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

const team = (page) => page.getByRole('table', { name: 'Members', exact: true });

/** What the portal answers to what is done meanwhile. */
async function answerOf(page, method, end, act) {
  const answered = page.waitForResponse((r) => r.request().method() === method && new URL(r.url()).pathname.endsWith(end));
  await act();
  const answer = await answered;
  return { status: answer.status(), body: await answer.json() };
}

/** Invites by the form of an open team page; the link, as the portal answered it. */
async function invite(page, email, role) {
  const button = page.getByRole('button', { name: 'Send invitation' });
  await awake(button);
  await page.getByRole('textbox', { name: 'E-mail' }).fill(email);
  await page.locator('#invite-role').selectOption(role);
  const { status, body } = await answerOf(page, 'POST', '/invitations', () => button.click());
  assert.equal(status, 201, JSON.stringify(body));
  await page.getByRole('group', { name: 'Invitation link' }).getByText(body.link).waitFor();
  return new URL(body.link).hash;
}

test('somebody new is invited, joins, gets another role, and is removed', async () => {
  const owner = await signUp(demo.url);
  const person = { ...someone(), name: 'Linus Berg' };
  const desk = await openPage(browser, demo.url, { headers: owner.headers });
  await desk.page.goto(inOrg(owner.slug, '/team'));
  await settled(desk.page);
  const hash = await invite(desk.page, person.email, 'viewer');
  const open = desk.page.getByRole('table', { name: 'Open invitations' });
  await open.getByRole('row').filter({ hasText: person.email }).getByText('viewer').waitFor();

  const far = await openPage(browser, demo.url);
  const asked = [];
  far.page.on('request', (request) => asked.push(`${request.url()} ${request.headers().referer ?? ''}`));
  await far.page.goto(`/join${hash}`);
  await far.page.getByRole('heading', { level: 1, name: `Join ${owner.organization}` }).waitFor();
  await far.page.getByText(person.email).waitFor();
  const create = far.page.getByRole('button', { name: 'Create account and join' });
  await awake(create);
  await far.page.getByRole('textbox', { name: 'Your name' }).fill(person.name);
  await far.page.getByLabel('Password', { exact: true }).fill('too short');
  await create.click();
  await far.page.locator('#password[aria-invalid="true"]').waitFor();
  await far.page.getByLabel('Password', { exact: true }).fill(person.password);
  await create.click();
  await far.page.waitForURL((url) => url.pathname === inOrg(owner.slug));
  await settled(far.page);
  assert.deepEqual(asked.filter((line) => line.includes(hash.slice(1))), [], 'the secret was in no address');

  // A viewer sees the team, and changes nothing of it.
  await far.page.goto(inOrg(owner.slug, '/team'));
  await settled(far.page);
  const row = (page) => team(page).getByRole('row').filter({ hasText: person.email });
  await row(far.page).getByText('viewer').waitFor();
  assert.equal(await far.page.getByRole('button', { name: 'Send invitation' }).count(), 0);
  assert.equal(await far.page.getByRole('button', { name: /^Remove/ }).count(), 0);
  assert.equal((await far.page.request.get(`/api/v1/orgs/${owner.org}/balance`)).status(), 403);

  // A page that a viewer may not have keeps a heading, and the launch form says at its top that it is not for viewers.
  await far.page.goto(inOrg(owner.slug, `/statements/${new Date().toISOString().slice(0, 7)}`));
  await far.page.getByRole('heading', { level: 1, name: 'Page not available' }).waitFor();
  assert.match(await far.page.title(), /^Page not available · /);
  await far.page.goto(inOrg(owner.slug, '/launch'));
  await far.page.getByRole('status').getByText('Your role here is viewer, which cannot launch jobs.').waitFor();
  assert.ok(await far.page.getByRole('button', { name: 'Launch job' }).isDisabled());
  await far.page.goto(inOrg(owner.slug));
  await settled(far.page);
  assert.equal(await far.page.getByRole('link', { name: 'Launch job' }).count(), 0);

  await desk.page.reload();
  await settled(desk.page);
  await desk.page.getByText('No open invitations.').waitFor();
  const choice = desk.page.getByRole('combobox', { name: `Role of ${person.name}` });
  await awake(choice);
  await choice.selectOption('billing');
  await desk.page.getByText(`Role of ${person.name}: billing.`).waitFor();
  assert.equal((await far.page.request.get(`/api/v1/orgs/${owner.org}/balance`)).status(), 200);
  await desk.page.getByRole('row').filter({ hasText: 'Role of a member changed' }).first().waitFor();
  await far.page.goto(inOrg(owner.slug, '/budgets'));
  await far.page.getByText('Owners of the organization create budgets.').waitFor();
  assert.equal(await far.page.getByRole('button', { name: 'Create budget' }).count(), 0);
  await far.page.goto(inOrg(owner.slug, '/limits'));
  await far.page.getByText('Owners of the organization request other limits.').waitFor();
  assert.equal(await far.page.getByRole('button', { name: 'Send request' }).count(), 0);

  // The only owner stays, and the choice says so.
  const own = desk.page.getByRole('combobox', { name: `Role of ${owner.name}` });
  await own.selectOption('viewer');
  await desk.page.getByRole('alert').getByText(/only owner/).waitFor();
  assert.equal(await own.inputValue(), 'owner');

  await desk.page.getByRole('button', { name: `Remove ${person.name}` }).click();
  await desk.page.getByRole('button', { name: 'Remove member' }).click();
  await row(desk.page).waitFor({ state: 'detached' });
  assert.equal((await far.page.request.get(`/api/v1/orgs/${owner.org}/members`)).status(), 404);
  await far.page.goto('/');
  await far.page.getByText(/not a member of an organization/).waitFor();
  // What a browser says of answers that were asked for here: the plan of a viewer, the last owner, the short password.
  const unasked = [...desk.faults, ...far.faults].filter((fault) => !/status of (403|409|422)/.test(fault));
  assert.deepEqual(unasked, []);
  await far.close();
  await desk.close();
});

test('an owner creates, disables and deletes a service account', async () => {
  const owner = await signUp(demo.url);
  const { page, close, faults } = await openPage(browser, demo.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  await page.getByText(/^No service accounts yet/).waitFor();
  const create = page.getByRole('button', { name: 'Create service account' });
  await awake(create);
  await page.locator('#service-account-name').fill('nightly');
  await page.locator('#service-account-role').selectOption('viewer');
  await create.click();
  const row = page.getByRole('table', { name: 'Service accounts' }).getByRole('row').filter({ hasText: 'nightly' });
  await row.getByText('viewer').waitFor();
  const { items } = await owner.api('GET', `/orgs/${owner.org}/service-accounts`);
  assert.deepEqual(items.map((account) => [account.name, account.role]), [['nightly', 'viewer']]);

  // Its token is created on the other page, where its role is fixed.
  await page.goto(inOrg(owner.slug, '/tokens'));
  await settled(page);
  const make = page.getByRole('button', { name: 'Create token' });
  await awake(make);
  await page.getByRole('textbox', { name: 'Name' }).fill('runner');
  await page.getByLabel('Owner').selectOption({ label: 'nightly (viewer)' });
  await page.locator('#role').waitFor({ state: 'hidden' });
  await make.click();
  await page.getByText('Copy the token now.').waitFor();
  await page.getByRole('row').filter({ hasText: 'Service account nightly' }).getByText('runner').waitFor();

  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  await awake(page.getByRole('button', { name: 'Disable nightly' }));
  await page.getByRole('button', { name: 'Disable nightly' }).click();
  await page.getByText('nightly is disabled.').waitFor();
  await page.getByRole('button', { name: 'Enable nightly' }).click();
  await page.getByText('nightly is enabled.').waitFor();
  await page.getByRole('button', { name: 'Delete nightly' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete service account' }).click();
  await page.getByText(/^No service accounts yet/).waitFor();
  assert.deepEqual((await owner.api('GET', `/orgs/${owner.org}/tokens`)).items, []);
  assert.deepEqual(faults, []);
  await close();
});

test('who has an account joins with it, and chooses between organizations', async () => {
  const owner = await signUp(demo.url);
  const guest = await signUp(demo.url);
  const third = await signUp(demo.url);
  const { link } = await owner.api('POST', `/orgs/${owner.org}/invitations`, { email: guest.email, role: 'member' });
  const { hash } = new URL(link);

  // Signed in as another: it says so, and signing out leads to the same invitation.
  const { page, close } = await openPage(browser, demo.url, { headers: third.headers });
  await page.goto(`/join${hash}`);
  await page.getByText('Signed in with another account').waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('button', { name: 'Create account and join' }).waitFor();
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  const button = page.getByRole('button', { name: 'Sign in and join' });
  await awake(button);
  await page.getByLabel('Password', { exact: true }).fill(guest.password);
  await button.click();
  await page.waitForURL((url) => url.pathname === inOrg(owner.slug));
  await settled(page);
  const orgs = page.locator('#org');
  assert.equal(await orgs.inputValue(), owner.slug);
  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  await team(page).getByRole('row').filter({ hasText: owner.email }).waitFor();
  await awake(orgs);
  await orgs.selectOption(guest.slug);
  await team(page).getByRole('row').filter({ hasText: owner.email }).waitFor({ state: 'detached' });
  await team(page).getByRole('row').filter({ hasText: guest.email }).waitFor();
  assert.equal(path(page), inOrg(guest.slug, '/team'));

  // A used link says so, and what to do.
  await page.goto(`/join${hash}`);
  await page.getByRole('alert').getByText(/not valid/).first().waitFor();
  await close();
});

test('an invitation is sent again with another link, and withdrawn', async () => {
  const owner = await signUp(demo.url);
  const person = someone();
  const { page, close } = await openPage(browser, demo.url, { headers: owner.headers, viewport: { width: 390, height: 844 } });
  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  const first = await invite(page, person.email, 'member');
  const again = page.getByRole('button', { name: `Resend the invitation of ${person.email}` });
  await awake(again);
  const { body } = await answerOf(page, 'POST', '/resend', () => again.click());
  await page.getByRole('group', { name: 'Invitation link' }).getByText(body.link).waitFor();
  const look = (hash) => page.request.post('/api/v1/invitations/look', { data: { token: hash.slice(1) } });
  assert.equal((await look(first)).status(), 404);
  assert.equal((await look(new URL(body.link).hash)).status(), 200);
  await page.getByRole('button', { name: `Withdraw the invitation of ${person.email}` }).click();
  await page.getByText('No open invitations.').waitFor();
  assert.equal((await look(new URL(body.link).hash)).status(), 404);
  assert.equal(await page.getByRole('group', { name: 'Invitation link' }).count(), 0);
  await close();
});
